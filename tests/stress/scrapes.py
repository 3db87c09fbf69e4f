"""Reads an agent's metrics twice a second until standard input ends, as from another machine.

    scrapes.py HOST PORT

It prints as JSON how many were answered, and what failed.
"""

import http.client
import json
import select
import sys


def main(host: str, port: str) -> None:
    answered = 0
    failed: list[str] = []
    while not select.select([sys.stdin], [], [], 0.5)[0]:
        try:
            connection = http.client.HTTPConnection(host, int(port), timeout=10)
            connection.request("GET", "/metrics")
            response = connection.getresponse()
            response.read()
            connection.close()
        except (OSError, http.client.HTTPException) as error:
            failed.append(repr(error))
        else:
            answered += response.status == 200
    print(json.dumps({"answered": answered, "failed": failed}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

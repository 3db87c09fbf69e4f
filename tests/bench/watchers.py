"""Minimal clients that read what agents read: `python -m tests.bench.watchers PORT ACCOUNT NODE…`

Each lists and watches the pods of one node, its Node and the brake, as a simple program does: a watch lasts for 5 to 10
minutes, what fails is tried again after a second, and nothing is kept but the version. ACCOUNT: the directory of a
service account.
"""

import json
import random
import ssl
import sys
import threading
import time
from contextlib import closing
from http import HTTPStatus
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

_RETRY: Final = 1.0
_STACK: Final = 256 * 1024
_PATHS: Final = (
    "/api/v1/pods?fieldSelector=spec.nodeName%3D{}",
    "/api/v1/nodes?fieldSelector=metadata.name%3D{}",
    "/api/v1/namespaces/kube-system/configmaps?fieldSelector=metadata.name%3Dnodeleak-brake",
)


class _Server(NamedTuple):
    port: int
    token: str
    context: ssl.SSLContext


def _get(connection: HTTPSConnection, server: _Server, path: str) -> Any:
    connection.request("GET", path, headers={"Authorization": f"Bearer {server.token}"})
    response = connection.getresponse()
    if response.status != HTTPStatus.OK:
        raise ValueError(f"{path}: {response.status} {response.read()[:200]!r}")
    return response


def _list_and_watch(connection: HTTPSConnection, server: _Server, path: str) -> None:
    """List, then watch until something fails."""
    listed = json.loads(_get(connection, server, f"{path}&resourceVersion=0").read())
    version = listed["metadata"]["resourceVersion"]
    while True:
        seconds = random.randint(300, 600)  # noqa: S311 (spreads load)
        query = (
            f"watch=1&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds={seconds}"
        )
        for line in _get(connection, server, f"{path}&{query}"):
            event = json.loads(line)
            if event["type"] == "ERROR":
                raise ValueError(f"{path}: {event['object']}")
            version = event["object"]["metadata"]["resourceVersion"]


def _follow(server: _Server, path: str) -> None:
    while True:
        connection = HTTPSConnection("127.0.0.1", server.port, context=server.context, timeout=660)
        with closing(connection):
            try:
                _list_and_watch(connection, server, path)
            except (OSError, HTTPException, ValueError) as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        time.sleep(_RETRY)


def main() -> None:
    port, account, *nodes = sys.argv[1:]
    context = ssl.create_default_context(cafile=f"{account}/ca.crt")
    server = _Server(int(port), Path(account, "token").read_text(), context)
    threading.stack_size(_STACK)
    for node in nodes:
        for path in _PATHS:
            arguments = (server, path.format(quote(node)))
            threading.Thread(target=_follow, args=arguments, daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main()

"""Run on another machine: attack an agent for a minute, or read its metrics meanwhile. Prints JSON.

attack HOST   as many connections as one address has, each with a reset at another moment
scrape HOST   until standard input ends: GET /metrics, twice a second
"""

import http.client
import json
import select
import socket
import struct
import sys
import time
from contextlib import suppress

PORT = 9747
LIMIT = 15.0


def connect(host: str) -> socket.socket:
    connection = socket.create_connection((host, PORT), timeout=5)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return connection


def at_the_limit(host: str, moment: float) -> int:
    """Complete requests just before the time limit, and reset them; return how many."""
    begun = time.monotonic()
    connections = [connect(host) for _ in range(8)]
    for connection in connections:
        connection.sendall(b"GET /metrics HTTP/1.1\r\n")
    while time.monotonic() - begun < moment - 3.6:
        time.sleep(3.6)
        for connection in connections:
            connection.sendall(b"A: b\r\n")
    time.sleep(max(0.0, begun + moment - time.monotonic()))
    for connection in connections:
        with suppress(OSError):
            connection.sendall(b"\r\n")
    time.sleep(0.001)
    for connection in connections:
        connection.close()
    return len(connections)


def flood(host: str, seconds: float, count: int) -> int:
    made = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end or made < count:
        with suppress(OSError):
            connection = connect(host)
            made += 1
            connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n"[: made % 26])
            connection.close()
    return made


def attack(host: str) -> None:
    made = 0
    for moment in (LIMIT - 0.01, LIMIT + 0.2):
        made += at_the_limit(host, moment)
        made += flood(host, 1.0, 5000)
    print(json.dumps({"connections": made}), flush=True)


def scrape(host: str) -> None:
    answered = 0
    failed: list[str] = []
    while not select.select([sys.stdin], [], [], 0.5)[0]:
        try:
            connection = http.client.HTTPConnection(host, PORT, timeout=10)
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
    {"attack": attack, "scrape": scrape}[sys.argv[1]](sys.argv[2])

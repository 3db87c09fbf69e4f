"""Attacks an agent's port from another address: slow requests, floods, and resets at every moment.

    attack.py HOST PORT SECONDS SOURCE

SOURCE is the address that it comes from. It prints how many connections it made.
"""

import random
import socket
import struct
import sys
import time
from contextlib import suppress

LIMIT = 15.0  # Seconds that the agent gives a request
AT_ONCE = 8  # Connections that it allows an address
REQUEST = b"GET /metrics HTTP/1.1\r\n"


class Attack:
    def __init__(self, address: tuple[str, int], seconds: float, source: str) -> None:
        self._address = address
        self._source = (source, 0)
        self._end = time.monotonic() + seconds
        self._random = random.Random(1)  # noqa: S311 (no secret)
        self.connections = 0

    def goes_on(self) -> bool:
        return time.monotonic() < self._end

    def connect(self) -> socket.socket:
        """Return a connection whose close is a reset."""
        connection = socket.create_connection(self._address, 1, self._source)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connections += 1
        return connection

    def complete_late(self) -> None:
        """Complete requests about when their time is over, and reset them before the answer."""
        begun = time.monotonic()
        held: list[socket.socket] = []
        with suppress(OSError):
            held = [self.connect() for _ in range(AT_ONCE)]
        moment = begun + LIMIT + self._random.uniform(-0.02, 0.02)
        self._send(held, REQUEST)
        while time.monotonic() < moment - 4:
            time.sleep(3)
            self._send(held, b"A: b\r\n")
        time.sleep(max(0.0, moment - time.monotonic()))
        self._send(held, b"\r\n")
        for connection in held:
            connection.close()

    def flood(self, seconds: float) -> None:
        """Connect, send a part of a request, and reset."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with suppress(OSError):
                connection = self.connect()
                connection.sendall((REQUEST + b"\r\n")[: self._random.randrange(26)])
                connection.close()

    def leave_in_the_answer(self, seconds: float) -> None:
        """Ask for the metrics, read little of them, and reset."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with suppress(OSError):
                connection = self.connect()
                connection.sendall(REQUEST + b"\r\n")
                connection.recv(self._random.randrange(1, 200))
                connection.close()

    @staticmethod
    def _send(held: list[socket.socket], content: bytes) -> None:
        for connection in held:
            with suppress(OSError):
                connection.sendall(content)


def main(host: str, port: str, seconds: str, source: str) -> None:
    attack = Attack((host, int(port)), float(seconds), source)
    while attack.goes_on():
        attack.flood(3)
        attack.leave_in_the_answer(3)
        attack.complete_late()
    print(attack.connections, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Clients that misbehave: each ends in its own way, at any point of a request or an answer."""

import os
import socket
import struct
from collections.abc import Callable
from contextlib import suppress

REQUEST = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
_RESET = struct.pack("ii", 1, 0)

Connect = Callable[[], socket.socket]


def reset(connection: socket.socket) -> None:
    """End a connection with a reset instead of a normal end."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    connection.close()


def reset_everywhere(connect: Connect, answer_bytes: int, step: int) -> None:
    """Reset at each point of the request, and after each part of the answer."""
    for sent in range(0, len(REQUEST) + 1, step):
        connection = connect()
        with suppress(OSError):
            connection.sendall(REQUEST[:sent])
        reset(connection)
    for received in range(1, answer_bytes, step * 40):
        connection = connect()
        with suppress(OSError):
            connection.sendall(REQUEST)
            left = received
            while left > 0 and (part := connection.recv(left)):
                left -= len(part)
        reset(connection)


def half_closed(connect: Connect) -> None:
    """Say that nothing more comes, before the request is complete."""
    connection = connect()
    with suppress(OSError):
        connection.sendall(REQUEST[:10])
        connection.shutdown(socket.SHUT_WR)
        connection.recv(100)
    connection.close()


def not_reading(connect: Connect, count: int) -> list[socket.socket]:
    """Ask for answers, and read none: the sockets are open."""
    connections = [connect() for _ in range(count)]
    for connection in connections:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        with suppress(OSError):
            connection.sendall(REQUEST)
    return connections


def many(connect: Connect, count: int) -> int:
    """Open connections, keeping as many as there are descriptors; return how many were made."""
    kept: list[socket.socket] = []
    made = 0
    for _ in range(count):
        try:
            kept.append(connect())
        except OSError:
            continue
        made += 1
        if len(kept) > 200:
            for connection in kept:
                connection.close()
            kept.clear()
    for connection in kept:
        connection.close()
    return made


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))

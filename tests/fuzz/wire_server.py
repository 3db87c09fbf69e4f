"""A server that answers with exactly the bytes of one example, whatever it is asked."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PATIENCE = 5.0
"""Seconds for a client that neither sends nor ends its connection."""


class Replies:
    """Serves one connection after the other. `at`: a unix socket; None: TCP on loopback."""

    def __init__(self, at: Path | None, first: dict[bytes, bytes], *, waits: bool) -> None:
        """`first`: fixed answers, by a part of the request. `waits`: for a request of HTTP, before it answers."""
        self.content = b""
        self._first, self._waits = first, waits
        if at is None:
            self._socket = socket.create_server(("127.0.0.1", 0))
            self.port = self._socket.getsockname()[1]
        else:
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.bind(str(at))
            self._socket.listen()

    @contextmanager
    def serving(self) -> Iterator["Replies"]:
        thread = threading.Thread(target=self._serve, name="replies", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            thread.join()
            self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                accepted, _ = self._socket.accept()
            except OSError:
                return
            with accepted, contextlib.suppress(OSError):
                accepted.settimeout(_PATIENCE)
                self._answer(accepted)

    def _answer(self, accepted: socket.socket) -> None:
        request = b""
        while self._waits and b"\r\n\r\n" not in request:
            if not (received := accepted.recv(65536)):
                return
            request += received
        fixed = next((answer for part, answer in self._first.items() if part in request), None)
        accepted.sendall(self.content if fixed is None else fixed)
        accepted.shutdown(socket.SHUT_WR)
        # A client without requests of its own kind is still sending. A request of HTTP was read as a whole.
        while not self._waits and accepted.recv(65536):
            pass

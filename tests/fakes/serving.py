"""Shared by the fake servers: JSON over HTTP/1.1, one thread per connection, and the objects that they serve."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import BaseServer, ThreadingMixIn
from string import Template
from threading import Thread
from typing import Any
from urllib.parse import SplitResult, urlsplit


class Threads(ThreadingMixIn):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect."""


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD; subclasses implement `answer`."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # send head and body together: separate writes wait for a delayed ACK

    def answer(self, url: SplitResult) -> None:
        raise NotImplementedError

    def do_GET(self) -> None:
        self.answer(urlsplit(self.path))

    def do_HEAD(self) -> None:
        self.do_GET()

    def end_headers(self) -> None:
        if self.close_connection:
            self.send_header("Connection", "close")  # as Go's servers answer whoever asked for it
        super().end_headers()

    def send(
        self,
        body: bytes,
        content_type: str = "application/json",
        status: HTTPStatus = HTTPStatus.OK,
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_tree(self, tree: Any, status: HTTPStatus = HTTPStatus.OK) -> None:
        self.send(compact(tree), status=status)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class names it so)
        """Do not log requests."""


def filled(name: str, **values: object) -> dict[str, Any]:
    """Return an object of `objects/` with these values in the places of their names."""
    text = (Path(__file__).parent / f"objects/{name}.json").read_text()
    tree: dict[str, Any] = json.loads(Template(text).substitute(values))
    return tree


def compact(tree: Any) -> bytes:
    """Write JSON as Go does: no spaces, a final newline."""
    return json.dumps(tree, separators=(",", ":")).encode() + b"\n"


@contextmanager
def serving(server: BaseServer) -> Iterator[None]:
    """Serve in a thread while the block runs."""
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()

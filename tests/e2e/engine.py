"""A fake docker engine that has no containers.

A real engine has done so for a moment after a restart (moby#34779); it cannot be had on demand.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from threading import Thread


@contextmanager
def fake_engine(socket: Path) -> Iterator[str]:
    """Serve on a unix socket; yields the URL for `--docker-host`."""
    with _Server(str(socket), _Empty) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"unix://{socket}"
        server.shutdown()


class _Server(ThreadingUnixStreamServer):
    daemon_threads = True


class _Empty(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b'{"ApiVersion": "1.41"}' if self.path.endswith("/version") else b"[]"
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class names it so)
        """Do not log requests."""

"""A proxy on a unix socket that counts the gRPC calls which clients send to the server behind it."""

import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socketserver import BaseRequestHandler, UnixStreamServer
from threading import Lock, Thread

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived

from tests.fakes.serving import Threads, serving


class CallCounter(Threads, UnixStreamServer):
    """Forwards bytes unchanged in both directions."""

    request_queue_size = 64

    def __init__(self, at: Path, server: Path) -> None:
        super().__init__(str(at), _Forwarding)
        self.upstream = str(server)
        self._calls: Counter[str] = Counter()
        self._lock = Lock()

    def count(self, method: str) -> None:
        with self._lock:
            self._calls[method] += 1

    @property
    def calls(self) -> dict[str, int]:
        """How often each method was called: `/package.Service/Method`."""
        with self._lock:
            return dict(self._calls)


class _Forwarding(BaseRequestHandler):
    server: CallCounter

    def handle(self) -> None:
        with socket.socket(socket.AF_UNIX) as upstream:
            upstream.connect(self.server.upstream)
            back = Thread(target=_forward, args=(upstream, self.request), daemon=True)
            back.start()
            self._forward_calls(upstream)
            back.join()

    def _forward_calls(self, upstream: socket.socket) -> None:
        # Reads what the client sends as a server would. What it would answer is dropped.
        reader = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        reader.initiate_connection()
        with suppress(OSError):
            while sent := self.request.recv(65536):
                for event in reader.receive_data(sent):
                    if isinstance(event, RequestReceived):
                        self.server.count(dict(event.headers or ())[b":path"].decode())
                    elif isinstance(event, DataReceived):
                        reader.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                upstream.sendall(sent)
        _end(upstream)


def _forward(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while sent := source.recv(65536):
            sink.sendall(sent)
    _end(sink)


def _end(sink: socket.socket) -> None:
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


@contextmanager
def counting(at: Path, server: Path) -> Iterator[CallCounter]:
    """Listen at a path while the block runs."""
    with CallCounter(at, server) as proxy, serving(proxy):
        yield proxy

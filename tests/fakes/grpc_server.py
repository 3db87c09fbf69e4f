"""A stand-in for a gRPC server on a unix socket, because no real server misbehaves on demand.

h2 speaks its side of HTTP/2. One thread for each connection; a connection's calls are answered one after the other.
"""

import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.exceptions import H2Error

from tests.wire import Listener

OPENING = {":status": "200", "content-type": "application/grpc"}


class Call:
    """One call, and every way to answer it, right or wrong."""

    def __init__(self, connection: "_Connection", stream: int, headers: dict[str, str]) -> None:
        self.headers, self.body, self.stream = headers, b"", stream
        self.method = headers[":path"]
        self.closing = connection.server.closing
        self._connection = connection

    @property
    def request(self) -> bytes:
        """The message, whose prefix must be right."""
        assert self.body[:5] == b"\0" + (len(self.body) - 5).to_bytes(4)
        return self.body[5:]

    def answer(self, message: bytes) -> None:
        self.head(OPENING)
        self.data(framed(message))
        self.head({"grpc-status": "0"}, end=True)

    def fail(self, code: int, message: str = "") -> None:
        """Answer as grpc-go does: one block of headers is all."""
        self.head(
            {**OPENING, "grpc-status": str(code), "grpc-message": quote(message, safe=" :/")},
            end=True,
        )

    def head(self, headers: dict[str, str], *, end: bool = False) -> None:
        """Send a block of headers: the first one, or the trailers."""
        self._connection.h2.send_headers(self.stream, list(headers.items()), end_stream=end)
        self._connection.flush()

    def data(self, content: bytes, *, end: bool = False) -> None:
        """Send bytes as fast as the client allows."""
        h2 = self._connection.h2
        at = 0
        while at < len(content):
            while not (
                room := min(h2.local_flow_control_window(self.stream), h2.max_outbound_frame_size)
            ):
                self._connection.read()
            h2.send_data(self.stream, content[at : at + room])
            self._connection.flush()
            at += room
        if end:
            h2.end_stream(self.stream)
            self._connection.flush()

    def reset(self, error: int) -> None:
        self._connection.h2.reset_stream(self.stream, error)
        self._connection.flush()

    def go_away(self, error: int, text: bytes = b"") -> None:
        self._connection.h2.close_connection(error, text)
        self._connection.flush()

    def ping(self) -> None:
        self._connection.h2.ping(b"12345678")
        self._connection.flush()

    def raw(self, content: bytes) -> None:
        self._connection.send(content)

    def hang_up(self) -> None:
        self._connection.socket.shutdown(socket.SHUT_RDWR)

    def hang(self) -> None:
        """Send nothing until the test is over."""
        self.closing.wait(30)


Answers = Callable[[Call], None]


class FakeGrpcServer(Listener):
    """Serves while the block runs. `piece`: how many bytes it sends at once, wherever frames begin and end."""

    def __init__(self, at: Path, answers: Answers, piece: int = 1 << 20) -> None:
        super().__init__(at)
        self.answers, self.piece = answers, piece
        self.calls: list[Call] = []
        self.connections, self.http = 0, b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"

    @property
    def methods(self) -> list[str]:
        """The methods that were called, without their services."""
        return [call.method.rpartition("/")[2] for call in self.calls]

    def serve(self, connection: socket.socket) -> None:
        self.connections += 1
        if (
            self.http and connection.recv(4, socket.MSG_PEEK) == b"GET "
        ):  # as CRI-O, at the same socket
            connection.recv(65536)
            connection.sendall(self.http)
            connection.close()
        else:
            _Connection(self, connection).serve()


class _Connection:
    def __init__(self, server: FakeGrpcServer, accepted: socket.socket) -> None:
        self.server, self.socket = server, accepted
        self.h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self._calls: dict[int, Call] = {}

    def serve(self) -> None:
        with contextlib.suppress(OSError, H2Error), self.socket:
            self.h2.initiate_connection()
            self.flush()
            while not self.server.closing.is_set():
                for call in self.read():
                    self.server.calls.append(call)
                    self.server.answers(call)

    def read(self) -> Iterator[Call]:
        """Wait for bytes; return the calls that they complete."""
        received = self.socket.recv(65536)
        if not received:
            raise ConnectionResetError
        complete = [self._take(event) for event in self.h2.receive_data(received)]
        self.flush()
        return (call for call in complete if call)

    def _take(self, event: events.Event) -> Call | None:
        match event:
            case events.RequestReceived(stream_id=stream, headers=headers):
                self._calls[stream] = Call(
                    self, stream, {str(key): str(value) for key, value in headers}
                )
            case events.DataReceived(stream_id=stream, data=data, flow_controlled_length=length):
                self._calls[stream].body += data
                self.h2.acknowledge_received_data(length, stream)
            case events.StreamEnded(stream_id=stream):
                return self._calls.pop(stream)
            case _:
                pass
        return None

    def flush(self) -> None:
        self.send(self.h2.data_to_send())

    def send(self, content: bytes) -> None:
        for start in range(0, len(content), self.server.piece):
            self.socket.sendall(content[start : start + self.server.piece])


def framed(message: bytes) -> bytes:
    """Put the prefix of gRPC before a message."""
    return b"\0" + len(message).to_bytes(4) + message

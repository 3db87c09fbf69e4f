"""Unary gRPC calls over a unix socket.

Nothing is retried, and an answer counts only with the server's status OK.
"""

import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import unquote

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.exceptions import H2Error

from agent.model.text import truncate
from agent.sources.deadline import Late
from agent.sources.runtime.protobuf import Encoded
from agent.sources.source_error import SourceError, describe_os_error, os_remedy

MESSAGE_LIMIT: Final = 16 * 1024 * 1024
"""Bytes of a response, or of all to one `calls`: the kubelet takes as much."""

OK: Final = 0
NOT_FOUND: Final = 5
RESOURCE_EXHAUSTED: Final = 8  # such as a response that is larger than the server may send
UNIMPLEMENTED: Final = 12
"""The status codes that the agent distinguishes (grpc/doc/statuscodes.md)."""

_PREFIX: Final = 5  # before a message: whether it is compressed, and its length in four bytes


class GrpcError(SourceError):
    """The server answered with a status that is not OK."""

    def __init__(self, where: str, code: int, message: str) -> None:
        super().__init__(f"{where}: {truncate(message) or 'no message'} (gRPC status {code})")
        self.code = code
        self.message = message


class _InvalidResponse(Exception):
    """The server does not follow the protocol, or ended the call without a response."""


class GrpcConnection:
    """One connection, for the calls of one thread.

    After a SourceError that is no GrpcError it cannot be used.
    """

    def __init__(self, path: Path, timeout: float, clock: Callable[[], float]) -> None:
        """`timeout`: seconds by `clock` for each call, from request to the end of the response."""
        self._path = path
        self._timeout = timeout
        self._clock = clock
        self._responses: dict[int, _Response] = {}  # by the ID of their stream
        self._h2 = H2Connection(H2Configuration(header_encoding=None))
        self._h2.local_settings.enable_push = 0
        self._h2.initiate_connection()

    def __enter__(self) -> Self:
        """Connect; raises SourceError."""
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.settimeout(self._timeout)
            self._socket.connect(os.fspath(self._path))
        except OSError as error:
            self._socket.close()
            text = f"cannot connect to {self._path}: {describe_os_error(error)}"
            raise SourceError(text, os_remedy(error)) from error
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def call(
        self, method: str, request: bytes = b"", metadata: Mapping[str, str] | None = None
    ) -> Encoded:
        """Call `/package.Service/Method`, and return the encoded response.

        Raises SourceError or GrpcError.
        """
        (response,) = self.calls(method, [request], metadata)
        if isinstance(response, GrpcError):
            raise response
        return response

    def calls(
        self, method: str, requests: Sequence[bytes], metadata: Mapping[str, str] | None = None
    ) -> list[Encoded | GrpcError]:
        """Send all requests before the first response is awaited; return the responses in order.

        Raises SourceError.
        """
        where = f"{self._path}: {method.rpartition('/')[2]}"
        limit = MESSAGE_LIMIT // len(requests)

        self._responses = {}
        try:
            for request in requests:
                stream = self._send(method, request, metadata or {})
                self._responses[stream] = _Response(limit)
            self._receive()
            return [response.result(where) for response in self._responses.values()]
        except TimeoutError as error:
            raise Late(f"{where}: no complete response within {self._timeout:g} s") from error
        except OSError as error:
            raise SourceError(f"{where}: {describe_os_error(error)}") from error
        except (H2Error, _InvalidResponse) as error:
            raise SourceError(f"{where}: {truncate(error) or type(error).__name__}") from error

    def _send(self, method: str, request: bytes, metadata: Mapping[str, str]) -> int:
        """Queue the request; return the ID of its stream."""
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": method,
            ":authority": "localhost",
            "te": "trailers",
            "content-type": "application/grpc",
            "grpc-timeout": f"{int(self._timeout * 1000)}m",
            **metadata,
        }
        stream: int = self._h2.get_next_available_stream_id()
        self._h2.send_headers(stream, list(headers.items()))
        self._h2.send_data(stream, b"\0" + len(request).to_bytes(4) + request, end_stream=True)
        return stream

    def _receive(self) -> None:
        """Receive until every response is complete; raises TimeoutError, OSError and the like."""
        end = self._clock() + self._timeout
        while not self._is_complete():
            self._limit_wait(end)
            # A server that closed the connection may have said why: that is still to be read.
            with suppress(BrokenPipeError):
                self._socket.sendall(self._h2.data_to_send())

            self._limit_wait(end)
            received = self._socket.recv(65536)
            if not received:
                raise _InvalidResponse("the server closed the connection")
            for event in self._h2.receive_data(received):
                self._handle(event)

    def _is_complete(self) -> bool:
        return all(response.complete for response in self._responses.values())

    def _limit_wait(self, end: float) -> None:
        """Let the next operation of the socket wait until `end` at most; raises TimeoutError."""
        remaining = end - self._clock()
        if remaining <= 0:
            raise TimeoutError
        self._socket.settimeout(remaining)

    def _handle(self, event: Any) -> None:
        """Take an event of the connection to the response that it is about."""
        if isinstance(event, events.ConnectionTerminated) and not self._is_complete():
            raise _InvalidResponse(f"the server ends the connection ({_name(event.error_code)})")
        if isinstance(event, events.DataReceived):
            # The server may send as much again, on this stream and on the connection.
            self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)

        response = self._responses.get(getattr(event, "stream_id", 0))
        if response is None or response.complete:
            return

        match event:
            case events.ResponseReceived() | events.TrailersReceived():
                # A server that fails early may send one block that is both.
                response.headers.update(event.headers)
            case events.DataReceived():
                response.add(event.data)
            case events.StreamReset():
                raise _InvalidResponse(f"the server reset the call ({_name(event.error_code)})")
            case events.StreamEnded():
                response.complete = True
            case _:
                pass


class _Response:
    """What arrived on the stream of one call."""

    def __init__(self, limit: int) -> None:
        """`limit`: bytes of its message."""
        self.complete = False
        """Whether the server has ended the stream."""
        self.headers: dict[bytes, bytes] = {}
        """And its trailers."""
        self._limit = limit
        self._received = bytearray()

    def add(self, data: bytes) -> None:
        """Append a part of the message; raises _InvalidResponse if it is too long."""
        self._received += data
        if len(self._received) > self._limit + _PREFIX:
            raise _InvalidResponse(f"the response is larger than {self._limit:,} bytes")

    def result(self, where: str) -> Encoded | GrpcError:
        """Return the message, or the error that the server answered; raises _InvalidResponse."""
        http_status = self.headers.get(b":status", b"").decode(errors="replace")
        if http_status != "200":
            raise _InvalidResponse(f"HTTP status {http_status}")

        status = self.headers.get(b"grpc-status", b"").decode(errors="replace")
        if not re.fullmatch("[0-9]{1,3}", status):
            raise _InvalidResponse(f"the response has no valid gRPC status ({status!r})")
        if int(status) != OK:
            text = self.headers.get(b"grpc-message", b"").decode(errors="replace")
            return GrpcError(where, int(status), unquote(text))

        prefix = self._received[:_PREFIX]
        message = memoryview(self._received)[_PREFIX:]
        if len(prefix) < _PREFIX or prefix[0] or int.from_bytes(prefix[1:]) != len(message):
            size = f"{len(self._received)} bytes"
            raise _InvalidResponse(f"the response is not one uncompressed message ({size})")
        return message


def _name(code: object) -> str:
    return getattr(code, "name", str(code))

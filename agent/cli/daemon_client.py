"""Reads reports of the daemon of this node, on loopback.

Any process could hold its port, so its answers are only displayed.
"""

import json
import re
import socket
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final

from agent.exporters.json import Document
from agent.exporters.json.status import Malformed, checked
from agent.sources.deadline import Deadline
from agent.sources.source_error import SourceError, describe_os_error

_READ_TIMEOUT: Final = 2.0
"""Seconds for one read."""

_TIMEOUT: Final = 4.0
"""Seconds for a whole answer: a process may send a byte now and then."""

_MAX_STATUS: Final = 256 * 1024
_MAX_REPORT: Final = 4 * 1024 * 1024
"""Bytes: about 10,000 reservations, in the memory limit of the daemon."""

_MAX_HEAD: Final = 64 * 1024
_PIECE: Final = 64 * 1024
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.[01] ([0-9]{3})(?: [^\r\n]*)?\r\n")
_LOOPBACK: Final = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (a client)
"""Where a daemon is reached that listens on any address."""

_POD: Final = re.compile(r"[a-z0-9.-]{1,253}/[a-z0-9.-]{1,253}")  # namespace and name


class DaemonClient:
    """Asks the daemon over HTTP, or HTTPS if that does not answer."""

    def __init__(self, listen: tuple[str, int]) -> None:
        """`listen`: where the daemon listens; an empty host: on every address."""
        host, self._port = listen
        self._host = _LOOPBACK.get(host, host)
        shown = f"[{self._host}]" if ":" in self._host else self._host
        self._address = f"{shown}:{self._port}"
        self._in_time = Deadline(f"daemon on {self._address}", _TIMEOUT)

    def status(self) -> Document:
        """Return the document of `/api/v1/status`; raises SourceError."""
        try:
            return checked(self._request("/api/v1/status", _MAX_STATUS))
        except Malformed as error:
            raise self._not_ours() from error

    def pods(self) -> dict[str, str]:
        """Return the pods that the daemon knows, by container ID; raises SourceError."""
        pods = {}
        try:
            for reservation in self._request("/api/v1/report", _MAX_REPORT)["reservations"]:
                match reservation:
                    case {"container_id": str(id_), "pod": str(pod)} if _POD.fullmatch(pod):
                        pods[id_] = pod
        except (LookupError, TypeError) as error:
            raise self._not_ours() from error
        return pods

    def _request(self, path: str, limit: int) -> Any:
        """Return a JSON document of at most `limit` bytes; raises SourceError."""
        try:
            status, body = self._in_time(lambda: self._get(path, limit))
            if status == HTTPStatus.OK:
                return json.loads(body)
        except OSError as error:
            reason = describe_os_error(error)
            raise SourceError(f"no daemon answers on {self._address} ({reason})") from error
        except (ValueError, RecursionError) as error:
            raise self._not_ours() from error

        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            raise SourceError(f"the daemon on {self._address} has not finished its first sync")
        if status == HTTPStatus.FORBIDDEN:
            raise SourceError(
                f"the daemon on {self._address} answers only loopback clients: "
                f"set --listen=:{self._port}"
            )
        raise self._not_ours()

    def _get(self, path: str, limit: int) -> tuple[int, bytes]:
        """Return status and body of a response. If HTTP fails, the daemon may have a certificate.

        It does without `http.client`, which loads `ssl`: a fifth of the memory of a command.
        """
        # HTTP/1.0 has no chunks, and a response ends with its connection.
        request = f"GET {path} HTTP/1.0\r\nHost: {self._address}\r\n\r\n".encode()
        try:
            with self._connect() as connection:
                return _get(connection, request, limit)
        except ConnectionResetError:
            import ssl

            # The name is not verified: the answer is only displayed.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            with (
                suppress(OSError, ValueError),
                self._connect() as connection,
                context.wrap_socket(connection) as encrypted,
            ):
                return _get(encrypted, request, limit)
            raise

    def _connect(self) -> socket.socket:
        return socket.create_connection((self._host, self._port), _READ_TIMEOUT)

    def _not_ours(self) -> SourceError:
        return SourceError(
            f"what answers on {self._address} is not the daemon of this version of nodeleak"
        )


def _get(connection: socket.socket, request: bytes, limit: int) -> tuple[int, bytes]:
    """Return status and body of a response; raises OSError, and ValueError if it is odd."""
    connection.sendall(request)
    received = bytearray()
    while piece := connection.recv(_PIECE):
        received += piece
        if len(received) > limit + _MAX_HEAD:
            raise ValueError("the response is too long")
    if not received:
        raise ConnectionResetError("the connection was closed without a response")

    head, _, body = bytes(received).partition(b"\r\n\r\n")
    status = _STATUS_LINE.match(head + b"\r\n")
    if status is None:
        raise ValueError("the response is not HTTP")
    return int(status[1]), body

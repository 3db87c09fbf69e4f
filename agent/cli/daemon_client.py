"""The daemon of this node, asked on loopback. Any process could hold its port: what it answers decides nothing."""

import json
import re
import ssl
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final

from agent.exporters.json.status import Malformed, checked
from agent.sources.deadline import Deadline
from agent.sources.source_error import SourceError, describe_os_error

_READ_TIMEOUT, _WHOLE_TIMEOUT = 2.0, 4.0  # seconds for one read, and for the whole answer
_MOST_STATUS: Final = 256 * 1024
_MOST_REPORT: Final = (
    4 * 1024 * 1024
)  # bytes: about 10,000 reservations, in the memory limit of the daemon
_ANY_ADDRESS: Final = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (nothing listens here)
_POD: Final = re.compile(r"[a-z0-9.-]{1,253}/[a-z0-9.-]{1,253}")  # namespace and name


class DaemonClient:
    def __init__(self, listen: tuple[str, int]) -> None:
        host, self._port = listen
        self._host = _ANY_ADDRESS.get(host, host)
        self._where = (
            f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"
        )
        # The timeout of a connection is for one read: a process may send a byte now and then.
        self._in_time = Deadline(f"daemon on {self._where}", _WHOLE_TIMEOUT)

    def status(self) -> dict[str, Any]:
        """Return the document of `/api/v1/status`; raises SourceError."""
        try:
            return checked(self._ask("/api/v1/status", _MOST_STATUS))
        except Malformed as error:
            raise self._not_ours() from error

    def pods(self) -> dict[str, str]:
        """Return the pods that the daemon knows, by container ID; raises SourceError."""
        match self._ask("/api/v1/report", _MOST_REPORT):
            case {"reservations": list(reservations)}:
                return dict(filter(None, map(_named, reservations)))
            case _:
                raise self._not_ours()

    def _ask(self, path: str, most: int) -> Any:
        try:
            status, body = self._in_time(lambda: self._get(path, most + 1))
            if status == HTTPStatus.OK and len(body) <= most:
                return json.loads(body)
        except OSError as error:
            raise SourceError(
                f"no daemon answers on {self._where} ({describe_os_error(error)})"
            ) from error
        except (HTTPException, ValueError, RecursionError) as error:
            raise self._not_ours() from error
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            raise SourceError(f"the daemon on {self._where} has not finished its first sync")
        if status == HTTPStatus.FORBIDDEN:
            raise SourceError(
                f"the daemon on {self._where} answers only loopback clients: set --listen=:{self._port}"
            )
        raise self._not_ours()

    def _get(self, path: str, most: int) -> tuple[int, bytes]:
        """Ask over HTTP; what ends the connection may be a daemon with `--tls-cert-file`."""
        connection = HTTPConnection(self._host, self._port, timeout=_READ_TIMEOUT)
        try:
            return _answer(connection, path, most)
        except ConnectionResetError:
            with suppress(OSError, HTTPException):
                return self._get_tls(path, most)
            raise

    def _get_tls(self, path: str, most: int) -> tuple[int, bytes]:
        # Its name is not verified: whoever has the port of loopback decides nothing anyway.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        connection = HTTPSConnection(self._host, self._port, timeout=_READ_TIMEOUT, context=context)
        return _answer(connection, path, most)

    def _not_ours(self) -> SourceError:
        return SourceError(
            f"what answers on {self._where} is not the daemon of this version of nodeleak"
        )


def _answer(connection: HTTPConnection, path: str, most: int) -> tuple[int, bytes]:
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read(most)
    finally:
        connection.close()


def _named(reservation: Any) -> tuple[str, str] | None:
    match reservation:
        case {"container_id": str(container_id), "pod": str(pod)} if _POD.fullmatch(pod):
            return container_id, pod
        case _:
            return None

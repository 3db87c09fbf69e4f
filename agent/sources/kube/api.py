"""Reads from the API server.

Objects stay raw JSON: typed models would need more memory than the rest of the agent.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Final, Generic, NamedTuple, TypeVar

from urllib3 import BaseHTTPResponse

from agent.model.clocks import SLOWEST_ANSWER, WHOLE_SECOND, Moment
from agent.model.text import truncate
from agent.sources.kube.connection import (
    LARGEST_ERROR,
    WHOLE_RESPONSE,
    Connection,
    Query,
    read_body,
    refusal,
)
from agent.sources.kube.credentials import Credentials
from agent.sources.kube.fields import Object
from agent.sources.source_error import MALFORMED, SourceError

_T = TypeVar("_T")

LARGEST_OBJECT: Final = 4 * 1024 * 1024
"""Bytes of an answer, object of a list, or event: etcd takes 1.5 MiB."""
LARGEST_LIST: Final = 256 * 1024 * 1024
"""Bytes, of which only one object at a time is kept."""

_VERSION: Final = re.compile(r"v[0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,6}(?:[-+.][A-Za-z0-9.+_-]{0,60})?")
"""`v1.20.2`, `v1.18.9-eks-d1db3c`, `v1.9.2+coreos.0`. It is printed to terminals, so nothing else
is accepted."""
_LARGEST_SKEW: Final = timedelta(days=36525)
"""A node without a battery boots in 1970. No skew is a century."""


class Resource(NamedTuple, Generic[_T]):
    """What is listed or watched."""

    name: str
    path: str
    query: Query
    """Which objects."""
    parse: Callable[[Object], _T]
    """Raises KeyError, TypeError, ValueError or AttributeError for anything else."""


@dataclass
class ServerInfo:
    """What the connections to one API server learn about it, in any thread."""

    now: Callable[[], Moment]
    version: str = ""
    """Empty: not known."""
    skew: timedelta | None = None
    """At most 2.5 s wrong: half a round trip and half a second."""

    def record_date(self, date: str | None, sent: datetime, received: datetime) -> None:
        """Measure the skew by the `Date` of a response.

        `sent`, `received`: the request and the response, by the node's clock.
        """
        # The server truncates its time to the second, and wrote it between the two: their middle is
        # the best estimate.
        round_trip = received - sent
        # No date, or one without a zone, is from an odd proxy: reading pods does not depend on it.
        with suppress(ValueError, TypeError, OverflowError):
            at = parsedate_to_datetime(date or "") + WHOLE_SECOND / 2

            skew = at - (sent + round_trip / 2)
            if timedelta(0) <= round_trip <= SLOWEST_ANSWER and abs(skew) <= _LARGEST_SKEW:
                self.skew = skew


class Api:
    """Reads from one API server, one request after the other on one connection. Not thread-safe."""

    def __init__(self, credentials: Credentials, timeout: float, server: ServerInfo) -> None:
        """`timeout`: seconds to connect, and between bytes."""
        self._credentials = credentials
        self._timeout = timeout
        self._server = server
        self._connection = Connection(credentials, timeout)

    @property
    def has_expired(self) -> bool:
        """Whether its credentials are known to be no longer valid."""
        expires = self._credentials.expires
        return expires is not None and self._server.now().wall >= expires

    def second_connection(self) -> AbstractContextManager["Api"]:
        """Open another connection, for requests during a watch; it does not stay idle."""
        return closing(Api(self._credentials, self._timeout, self._server))

    def get(self, path: str, query: Query = ()) -> bytes:
        """Return the body of a response; raises SourceError, and ApiError if the server refuses."""
        with self.read(path, query, LARGEST_OBJECT) as pieces:
            return b"".join(pieces)

    @contextmanager
    def read(self, path: str, query: Query, limit: int = LARGEST_LIST) -> Iterator[Iterator[bytes]]:
        """Yield the body of a response in pieces; raises as `get`, before and between them.

        What is not read is given up, and the connection with it. Only a response that is read to
        its end leaves it open.
        """
        sent = self._server.now()
        response = self._request(path, query, self._timeout)
        try:
            yield self._pieces(response, sent, limit)
        finally:
            response.close()

    @contextmanager
    def stream(self, path: str, query: Query, silence: float) -> Iterator[Iterator[bytes]]:
        """Start a watch, and yield its lines until the server ends it.

        Raises SourceError, also between two lines, and after a last line that is incomplete.
        `silence`: seconds without a byte after which the connection counts as lost.
        """
        response = self._request(path, query, silence)
        try:
            yield _lines(response)
        finally:
            # Not returned to the pool: the rest of a watch must not be read as another response.
            response.close()

    def request_version(self) -> None:
        """Request the server's version. If it refuses, or is late, the version is not known."""
        try:
            version = str(json.loads(self.get("/version"))["gitVersion"])
        except (SourceError, *MALFORMED):
            version = ""
        self._server.version = version if _VERSION.fullmatch(version) else ""

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        self._connection.close()

    def _request(self, path: str, query: Query, silence: float) -> BaseHTTPResponse:
        """Return a response in JSON, with its body still to be read; raises as `get`."""
        sent = self._server.now()
        response = self._connection.request("GET", path, query=query, silence=silence)
        if response.status != HTTPStatus.OK:
            body = self._pieces(response, sent, LARGEST_ERROR)
            raise refusal(response, body, sent.wall)

        content_type = str(response.headers.get("Content-Type"))
        # A proxy's page may have status 200 too.
        if "json" not in content_type:
            response.close()
            shown = truncate(content_type)
            raise SourceError(f"API server: expected a response in JSON, got {shown}")

        date = response.headers.get("Date")
        self._server.record_date(date, sent.wall, self._server.now().wall)
        return response

    def _pieces(self, response: BaseHTTPResponse, sent: Moment, limit: int) -> Iterator[bytes]:
        """Yield a body that was requested at `sent`; raises SourceError if it is late as a whole."""
        seconds = self._timeout * WHOLE_RESPONSE
        for piece in read_body(response, limit):
            # The library limits each single read: an occasional byte would do.
            if (self._server.now().uptime - sent.uptime).total_seconds() > seconds:
                raise SourceError(f"API server: no complete response within {seconds:g} s")
            yield piece


def _lines(response: BaseHTTPResponse) -> Iterator[bytes]:
    """Yield the lines of a watch; raises as `Api.stream`."""
    incomplete = b""
    for piece in read_body(response, what="watch"):
        *lines, incomplete = (incomplete + piece).split(b"\n")
        yield from lines
        if len(incomplete) > LARGEST_OBJECT:
            text = f"an event of the watch is larger than {LARGEST_OBJECT:,} bytes"
            raise SourceError(f"API server: {text}")
    if incomplete:
        raise SourceError("API server: the watch broke off in the middle of a line")

"""The API server, read-only: transport of the kubernetes client, objects as raw JSON.

Typed models would need more memory than the rest of the agent. A list is read as a stream, so that only one object
exists at a time: servers ignore `limit` where they list from their cache, and 6,000 evicted pods are 70 MB.
"""

import json
import re
from codecs import iterdecode
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from kubernetes import client, config
from urllib3.exceptions import HTTPError

from agent.model.clocks import SLOWEST_ANSWER, WHOLE_SECOND, Moment
from agent.model.text import truncate
from agent.sources.kube.credentials import Credentials, loader
from agent.sources.kube.errors import ApiError, parse_retry_after
from agent.sources.kube.fields import Object, parsing, resource_version
from agent.sources.source_error import SourceError, connection_failure

_T = TypeVar("_T")

LARGEST_OBJECT: Final = (
    4 * 1024 * 1024
)  # bytes of an answer, object of a list, or event: etcd takes 1.5 MiB
LARGEST_LIST: Final = 256 * 1024 * 1024  # bytes, of which only one object at a time is kept
LARGEST_ERROR: Final = 64 * 1024  # bytes of a refusal: more of it is not worth its connection
_LONGEST_HEAD: Final = 64 * 1024  # characters before the items of a list: its own metadata
_PIECE: Final = 64 * 1024  # bytes read at once: an object of usual size is rarely cut in two
_WHOLE_ANSWER: Final = (
    3  # times the timeout of a read, for the whole: a list of thousands of pods is slow
)
_FAILURE_KEPT: Final = 120.0  # seconds at most: ten minutes would be most of the time that is left
_LIMIT: Final = (
    "limit",
    "500",
)  # objects in a page: a node has fewer pods, so one page is the rule
_GAP: Final = re.compile(r"[ \t\r\n,]*")  # between two objects
_NO_LIST: Final = "the response is not a list of objects"
_ITEMS: Final = re.compile(r'"items":\s*(?:\[|null)')

_VERSION: Final = re.compile(r"v[0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,6}(?:[-+.][A-Za-z0-9.+_-]{0,60})?")
"""`v1.20.2`, `v1.18.9-eks-d1db3c`, `v1.9.2+coreos.0`. It is printed to terminals, so nothing else is accepted."""
_LARGEST_SKEW: Final = timedelta(
    days=36525
)  # a node without a battery boots in 1970; no skew is a century

Query: TypeAlias = Sequence[tuple[str, str]]
Get: TypeAlias = Callable[
    [str, Query], bytes
]  # returns the body for a path; raises SourceError, also ApiError
Inquire: TypeAlias = Callable[
    [], AbstractContextManager[Get]
]  # opens a connection for the requests of one snapshot


class Resource(NamedTuple, Generic[_T]):
    name: str
    path: str
    query: Query  # which of them
    parse: Callable[
        [Object], _T
    ]  # raises KeyError, TypeError, ValueError or AttributeError for anything else


class ServerInfo:
    """What the connections to one API server learn about it, in any thread."""

    def __init__(self, now: Callable[[], Moment]) -> None:
        self.now = now
        self.version = ""  # empty: not known
        self.skew: timedelta | None = (
            None  # at most 2.5 s wrong: half a round trip and half a second
        )

    def record_date(self, date: str | None, sent: datetime, received: datetime) -> None:
        """Take an answer's `Date`, and the node's time when the request was sent and the answer received."""
        # The server truncates its time to the second, and wrote it between the two: their middle is the best estimate.
        round_trip = received - sent
        # No date, or one without a zone, is from an odd proxy: reading pods does not depend on it.
        with suppress(ValueError, TypeError, OverflowError):
            skew = parsedate_to_datetime(date or "") + WHOLE_SECOND / 2 - (sent + round_trip / 2)
            if timedelta(0) <= round_trip <= SLOWEST_ANSWER and abs(skew) <= _LARGEST_SKEW:
                self.skew = skew


class Api:
    """A connection to one API server, kept for one request after the other. Not thread-safe."""

    def __init__(
        self,
        kubeconfig: Path | None,
        timeout: float,
        server: ServerInfo,
        credentials: Credentials | None = None,
    ) -> None:
        """Read the credentials, if they are not given; raises SourceError, and NoCredentials.

        `timeout`: seconds to connect, and between bytes.
        """
        self._timeout = timeout
        self._server = server
        self._kubeconfig = kubeconfig
        self._credentials = credentials or loader(kubeconfig, timeout).load()
        self._client = open_client(self._credentials)

    @property
    def has_expired(self) -> bool:
        """Whether its credentials are known to be no longer valid."""
        expires = self._credentials.expires
        return expires is not None and self._server.now().wall >= expires

    @contextmanager
    def beside(self) -> Iterator["Api"]:
        """Open another connection, for requests during a watch; it does not stay idle beside it."""
        other = Api(self._kubeconfig, self._timeout, self._server, self._credentials)
        with closing(other):
            yield other

    def get(self, path: str, query: Query = ()) -> bytes:
        """Return the body of an answer; raises SourceError, and ApiError if the server refuses."""
        with self.read(path, query, LARGEST_OBJECT) as pieces:
            return b"".join(pieces)

    @contextmanager
    def read(self, path: str, query: Query, limit: int = LARGEST_LIST) -> Iterator[Iterator[bytes]]:
        """Read the body of an answer in pieces; raises as `get`, before and between them.

        The rest is given up, and the connection with it. Only an answer that is read to its end
        leaves it open.
        """
        sent = self._server.now()
        response = self._request(path, query, self._timeout)
        try:
            yield self._pieces(response, sent, limit)
        finally:
            response.response.close()

    def stream(self, path: str, query: Query, silence: float) -> Iterator[bytes]:
        """Start a watch, and yield its lines until the server ends it. Raises SourceError, also between two lines."""
        # `silence`: seconds without a byte after which the connection counts as lost. A last line that is incomplete is
        # an error.
        return _lines(self._request(path, query, silence))

    def request_version(self) -> None:
        """Request the server's version. If it refuses, or does not answer in time, it is not known."""
        try:
            version = str(json.loads(self.get("/version"))["gitVersion"])
        except (SourceError, ValueError, KeyError, TypeError, RecursionError):
            version = ""
        self._server.version = version if _VERSION.fullmatch(version) else ""

    def close(self) -> None:
        close_client(self._client)

    def _request(self, path: str, query: Query, silence: float) -> Any:
        try:
            request = self._client.param_serialize(
                "GET",
                path,
                query_params=list(query),
                header_params={"Accept": "application/json"},
                auth_settings=["BearerToken"],
            )
            sent = self._server.now()
            response = self._client.call_api(*request, _request_timeout=(self._timeout, silence))
        except client.ApiException as error:
            raise SourceError(f"API server: {truncate(str(error.reason))}") from error
        except (HTTPError, OSError, config.ConfigException, ValueError) as error:
            if reason := connection_failure(error):
                host = self._client.configuration.host
                raise SourceError(
                    f"cannot connect to the API server at {host}: {reason}"
                ) from error
            raise SourceError(f"API server: {describe_failure(error)}") from error
        if response.status != 200:  # noqa: PLR2004 (the only status of a successful read)
            raise refusal(response, self._pieces(response, sent, LARGEST_ERROR), sent.wall)
        # A proxy's page may have status 200 too.
        if "json" not in (kind := str(response.getheader("Content-Type"))):
            response.response.close()
            raise SourceError(f"API server: expected a response in JSON, got {truncate(kind)}")
        self._server.record_date(response.getheader("Date"), sent.wall, self._server.now().wall)
        return response

    def _pieces(self, response: Any, sent: Moment, limit: int) -> Iterator[bytes]:
        seconds = self._timeout * _WHOLE_ANSWER
        size = 0
        try:
            for piece in _received(response):
                size += len(piece)
                if size > limit:
                    raise SourceError(f"API server: the response is larger than {limit:,} bytes")
                # The library limits each single read: an occasional byte would do.
                if (self._server.now().uptime - sent.uptime).total_seconds() > seconds:
                    raise SourceError(f"API server: no complete response within {seconds:g} s")
                yield piece
        except (HTTPError, OSError) as error:
            raise SourceError(f"API server: the response broke off ({error})") from error


def open_client(credentials: Credentials) -> Any:
    """Return a client of the library, which opens a connection when it is needed, and keeps it."""
    credentials.settings.retries = False
    credentials.settings.connection_pool_maxsize = 2
    api = client.ApiClient(credentials.settings)
    api.user_agent = "nodeleak"
    return api


def close_client(api: Any) -> None:
    """Close its idle connections now, and not when nobody refers to them any more."""
    pools = api.rest_client.pool_manager.pools
    for key in pools.keys():  # noqa: SIM118 (it is no mapping to iterate over)
        pools[key].close()
    api.close()


def describe_failure(error: Exception) -> str:
    """Return what the library says of a request, on one line."""
    # Of a header that cannot be sent, it quotes the value: that of the token.
    if type(error) is ValueError or isinstance(error, UnicodeEncodeError):
        return "cannot send a header of the request: is there a line break in the token?"
    return truncate(str(error))


def refusal(response: Any, body: Iterable[bytes], now: datetime | None) -> ApiError:
    """Make an error from a refusal; `now`: by the node's wall clock, if it is known.

    Its body is read to the end, if that comes soon, so that the connection can be kept.
    """
    received = b""
    try:
        for piece in body:
            received += piece
    except (SourceError, HTTPError, OSError):
        pass  # the status says enough
    finally:
        response.response.close()
    try:
        message = str(json.loads(received)["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        message = str(response.reason)
    asked, date = response.getheader("Retry-After"), response.getheader("Date")
    text = f"{response.status} {truncate(message)}"
    return ApiError(response.status, text, parse_retry_after(asked, date, now))


def _received(response: Any) -> Iterator[bytes]:
    """Yield what arrives, as it arrives."""
    body = response.response
    if body.chunked:
        yield from body.stream(_PIECE, decode_content=True)
        return
    while piece := body.read1(_PIECE, decode_content=True):
        yield piece


def _lines(response: Any) -> Iterator[bytes]:
    rest = b""
    try:
        for piece in _received(response):
            *lines, rest = (rest + piece).split(b"\n")
            yield from lines
            if len(rest) > LARGEST_OBJECT:
                raise SourceError(
                    f"API server: an event of the watch is larger than {LARGEST_OBJECT:,} bytes"
                )
    except (HTTPError, OSError) as error:
        raise SourceError(f"API server: the watch broke off ({error})") from error
    finally:
        # Not returned to the pool: the rest of a watch must not be read as another answer.
        response.response.close()
    if rest:
        raise SourceError("API server: the watch broke off in the middle of a line")


@contextmanager
def list_all(api: Api, path: str, query: Query) -> Iterator[tuple[int, Iterator[dict[str, Any]]]]:
    """Yield a list's version, and its items as they arrive; raises SourceError, as the iterator may."""
    # With a limit, a given version means exactly that version and not "this or newer" (KEP-2523); "0" means any.
    exact = any(name == "resourceVersion" and value not in {"", "0"} for name, value in query)
    with api.read(path, query if exact else (*query, _LIMIT)) as pieces:
        version, more, items = parse_list(pieces)
        yield version, _with_pages(api, path, query, items, more)


def _with_pages(
    api: Api, path: str, query: Query, items: Iterator[dict[str, Any]], more: str
) -> Iterator[dict[str, Any]]:
    yield from items
    unversioned = tuple((name, value) for name, value in query if name != "resourceVersion")
    while more:
        with api.read(path, (*unversioned, _LIMIT, ("continue", more))) as pieces:
            _, more, items = parse_list(pieces)
            yield from items


def parse_list(pieces: Iterable[bytes]) -> tuple[int, str, Iterator[dict[str, Any]]]:
    """Return a list's resourceVersion, its continuation, and its items one by one; raises SourceError, as they may."""
    texts, text = iterdecode(pieces, "utf-8"), ""
    with parsing(_NO_LIST):
        while not (found := _ITEMS.search(text)):
            text = _extended(text, texts, _LONGEST_HEAD)
        metadata = json.loads(f'{text[: found.start()]}"items":[]}}')["metadata"]
        version, more = resource_version(metadata), str(metadata.get("continue") or "")
    if found[0].endswith("null"):  # Go may write an empty list so
        return version, more, iter(())
    return version, more, _items(text[found.end() :], texts)


def _items(text: str, texts: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Parse the objects of an array that has begun, and the end of the list after it."""
    decode, at = json.JSONDecoder().raw_decode, 0
    with parsing(_NO_LIST):
        while (gap := _GAP.match(text, at)) and not text.startswith("]", at := gap.end()):
            try:
                item, at = decode(text, at)
            except json.JSONDecodeError:
                text, at = _extended(text[at:], texts, LARGEST_OBJECT), 0
                continue
            if not isinstance(item, dict):
                raise TypeError(f"expected an object, found {item!r}")
            yield item
        if "".join("".join((text[at:], *texts)).split()) != "]}":
            raise ValueError("it does not end with its objects")


def _extended(text: str, texts: Iterator[str], longest: int) -> str:
    """Return the text with what comes next; raises ValueError if nothing does, or if it is too long already."""
    if len(text) > longest:
        raise ValueError(f"one part of it is longer than {longest:,} characters")
    if not (more := next(texts, "")):
        raise ValueError("it ends too early")
    return text + more


class CachedRequest(Generic[_T]):
    """The last answer to a request that is made for a reason only. A failure is kept too: each may take long."""

    def __init__(self, inquire: Inquire, clock: Callable[[], float], seconds: float) -> None:
        """`clock`: seconds, never jumping. `seconds`: for how long an answer is kept."""
        self._inquire, self._clock, self._seconds = inquire, clock, seconds
        self._kept: tuple[float, frozenset[str], _T | SourceError] | None = (
            None  # until when, about what, the answer
        )

    def get(self, read: Callable[[Get], _T], subjects: frozenset[str] = frozenset()) -> _T:
        """Return the kept answer about these subjects and maybe more, or read it; raises SourceError."""
        now = self._clock()
        if self._kept is None or now >= self._kept[0] or not subjects <= self._kept[1]:
            try:
                with self._inquire() as get, parsing("malformed object"):
                    self._kept = now + self._seconds, subjects, read(get)
            except SourceError as error:
                self._kept = now + min(self._seconds, _FAILURE_KEPT), subjects, error
        answer = self._kept[2]
        if isinstance(answer, SourceError):
            raise answer.with_traceback(None)  # or it would grow with each call
        return answer

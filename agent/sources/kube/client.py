"""The API server, read-only: credentials and transport of the kubernetes client, objects as raw JSON.

Typed models would need more memory than the rest of the agent. A list is read as a stream, so that only one object
exists at a time: servers ignore `limit` where they list from their cache, and 6,000 evicted pods are 70 MB.
"""

import json
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, Final

from kubernetes import client, config
from urllib3.exceptions import HTTPError

from agent.model.text import truncate
from agent.sources.json_stream import PIECE, JsonStream
from agent.sources.kube.credentials import client_for, in_time
from agent.sources.kube.fields import resource_version
from agent.sources.kube.server_clock import ServerClock
from agent.sources.os_error import why_not_connected
from agent.sources.source_error import SourceError

_LARGEST_ERROR = 4096
_LONGEST_HEAD = 4096
"""Characters before the items of a list: its own metadata."""
_ITEMS = '"items":['
_LIMIT = ("limit", "500")
"""Objects in a page: a node has fewer pods, so one page is the rule. The agent's memory does not depend on it."""
_MOST_PAGES: Final = 200
"""Of a list. A server may make pages smaller than it is asked to."""
MOST_LISTED: Final = 20_000
"""Objects of a list. Kubernetes removes terminated pods of a cluster above 12,500; each costs up to 1 KiB here."""
LARGEST_PAGE: Final = 1024 * 1024 * 1024
"""Bytes of a page, of which only one object at a time is kept: what the most objects of 50 KB each have."""
LARGEST_OBJECT: Final = 4 * 1024 * 1024
"""Bytes of an answer that is no list, and of one event of a watch. etcd takes objects of 1.5 MiB."""

Query = Sequence[tuple[str, str]]


class ApiError(SourceError):
    """The API server answered with an error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"API server: {text}")
        self.status = status


class Api:
    """A connection to one API server, and while a watch occupies it, another one for each request beside the watch.

    Not thread-safe: each reflector has its own.
    """

    def __init__(self, kubeconfig: Path | None, timeout: float, clock: ServerClock | None = None) -> None:
        """Find credentials: the given kubeconfig, the pod's service account, or $KUBECONFIG; raises SourceError.

        `timeout`: seconds to connect, and between bytes. `clock`: receives the `Date` of every answer; connections may
        share it.
        """
        self._timeout, self._clock, self._kubeconfig = timeout, clock, kubeconfig
        self._client = client_for(kubeconfig)
        self._watching = False

    def get(self, path: str, query: Query = ()) -> bytes:
        """Return the body of an answer; raises SourceError, and ApiError if the server refuses."""
        with self._read(path, query, LARGEST_OBJECT) as pieces:
            return b"".join(pieces)

    def read(self, path: str, query: Query) -> AbstractContextManager[Iterator[bytes]]:
        """Read the body of a list in pieces; raises as `get`, before and between them.

        Whatever was not read at the end of the block is given up.
        """
        return self._read(path, query, LARGEST_PAGE)

    def stream(self, path: str, query: Query, silence: float) -> Iterator[bytes]:
        """Start a watch, and yield its lines until the server ends it.

        `silence`: seconds without a byte after which the connection counts as lost. Raises SourceError, at once or
        between two lines; also for a last line that is incomplete.
        """
        response = self._request(path, query, silence)
        self._watching = True
        return self._stream_of(response)

    def close(self) -> None:
        self._client.close()

    def _stream_of(self, response: Any) -> Iterator[bytes]:
        try:
            yield from _lines(response)
        finally:
            self._watching = False

    @contextmanager
    def _read(self, path: str, query: Query, most: int) -> Iterator[Iterator[bytes]]:
        response = self._request(path, query, self._timeout)
        try:
            yield _pieces(response, most)
        finally:
            response.response.close()

    def _request(self, path: str, query: Query, silence: float) -> Any:
        try:
            request = in_time(self._kubeconfig, lambda: self._serialized(path, query))
            asked = self._clock.now() if self._clock else None
            response = self._client.call_api(*request, _request_timeout=(self._timeout, silence))
            heard = self._clock.now() if self._clock else None
        except client.ApiException as error:
            raise SourceError(f"API server: {truncate(str(error.reason))}") from error
        except (HTTPError, OSError, config.ConfigException, ValueError) as error:
            raise SourceError(self._cannot_connect(error) or f"API server: {truncate(str(error))}") from error
        if response.status != 200:  # noqa: PLR2004 (the only status of a successful read)
            raise refusal(response)
        # A proxy's page may have status 200 too.
        if "json" not in (kind := str(response.getheader("Content-Type"))):
            response.response.close()
            raise SourceError(f"API server: expected a response in JSON, got {truncate(kind)}")
        if self._clock and asked and heard:
            self._clock.record(response.getheader("Date"), asked, heard)
        return response

    def _serialized(self, path: str, query: Query) -> tuple[Any, Any, Any, Any, Any]:
        return self._client.param_serialize(
            "GET",
            path,
            query_params=list(query),
            # Nothing follows on a connection beside a watch: left open, it would be idle for the life of the watch.
            header_params={"Accept": "application/json"} | ({"Connection": "close"} if self._watching else {}),
            auth_settings=["BearerToken"],
        )

    def _cannot_connect(self, error: Exception) -> str:
        """Say why there is no connection; empty where the error is another one."""
        reason = why_not_connected(error)
        return f"cannot connect to the API server at {self._client.configuration.host}: {reason}" if reason else ""


def refusal(response: Any) -> ApiError:
    """Make an error from a refusal, and close its connection."""
    try:
        body = response.response.read(_LARGEST_ERROR)
    except (HTTPError, OSError):
        body = b""
    finally:
        response.response.close()
    try:
        message = str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        message = str(response.reason)
    return ApiError(response.status, f"{response.status} {truncate(message)}")


def _pieces(response: Any, most: int) -> Iterator[bytes]:
    read = 0
    try:
        for piece in response.response.stream(PIECE, decode_content=True):
            read += len(piece)
            if read > most:
                raise SourceError(f"API server: the response is larger than {most:,} bytes")
            yield piece
    except (HTTPError, OSError) as error:
        raise SourceError(f"API server: the response broke off ({error})") from error


def _lines(response: Any) -> Iterator[bytes]:
    rest, size = list[bytes](), 0
    try:
        for chunk in response.response.stream(PIECE, decode_content=True):
            *lines, last = chunk.split(b"\n")
            if lines:
                yield b"".join((*rest, lines[0]))
                yield from lines[1:]
                rest, size = [], 0
            rest.append(last)
            size += len(last)
            if size > LARGEST_OBJECT:
                raise SourceError(f"API server: an event of the watch is larger than {LARGEST_OBJECT:,} bytes")
    except (HTTPError, OSError) as error:
        raise SourceError(f"API server: the watch broke off ({error})") from error
    finally:
        # Not returned to the pool: the rest of a watch must not be read as another answer.
        response.response.close()
    if any(rest):
        raise SourceError("API server: the watch broke off in the middle of a line")


@contextmanager
def list_all(api: Api, path: str, query: Query) -> Iterator[tuple[int, Iterator[dict[str, Any]]]]:
    """Yield a list's version, and its items as they arrive; raises SourceError, as the iterator may."""
    # With a limit, a given version means exactly that one and not "this or newer" (KEP-2523); "0" means any.
    exact = any(name == "resourceVersion" and value not in {"", "0"} for name, value in query)
    with api.read(path, query if exact else (*query, _LIMIT)) as pieces:
        version, more, first = parse_list(pieces)
        with closing(_with_pages(api, path, query, first, more)) as items:
            yield version, _bounded(items)


def _bounded(items: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for number, item in enumerate(items):
        if number == MOST_LISTED:
            raise SourceError(f"API server: the list has more than {MOST_LISTED:,} objects")
        yield item


def _with_pages(
    api: Api, path: str, query: Query, items: Iterator[dict[str, Any]], more: str
) -> Generator[dict[str, Any]]:
    yield from items
    for _ in range(_MOST_PAGES):
        if not more:
            return
        unversioned = [(name, value) for name, value in query if name != "resourceVersion"]
        with api.read(path, (*unversioned, _LIMIT, ("continue", more))) as pieces:
            _, more, items = parse_list(pieces)
            yield from items
    raise SourceError(f"API server: the list has more than {_MOST_PAGES} pages")


def parse_list(pieces: Iterable[bytes]) -> tuple[int, str, Iterator[dict[str, Any]]]:
    """Return a list's resourceVersion, its continuation, and its items one at a time.

    Raises SourceError for anything that is not a list of objects, as the iterator may.
    """
    stream = JsonStream(pieces)
    try:
        # The list's own metadata usually comes first and is small; otherwise everything is parsed at once.
        before = stream.before(_ITEMS, _LONGEST_HEAD)
        if before is not None and (head := _head(before)):
            return (*_metadata(head), _items(stream, before))
        tree = json.loads(f"{'' if before is None else before + _ITEMS}{stream.rest()}")
        version, more = _metadata(tree)
        return version, more, iter(_listed(tree["items"]))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise SourceError(f"API server: the response is not a list of objects ({truncate(repr(error))})") from error


def _head(before: str) -> Any:
    """Return the list without its items; None: they are not its items, or its metadata follows them."""
    try:
        head = json.loads(f"{before}{_ITEMS}]}}")
    except ValueError:
        return None
    return head if "metadata" in head else None


def _metadata(tree: Any) -> tuple[int, str]:
    return resource_version(tree["metadata"]), str(tree["metadata"].get("continue") or "")


def _listed(items: Any) -> list[Any]:
    """Return a list's items; Go may write an empty list as null."""
    if items is not None and not isinstance(items, list):
        raise TypeError(f"items is {type(items).__name__}")
    return items or []


def _items(stream: JsonStream, before: str) -> Iterator[dict[str, Any]]:
    try:
        yield from stream.objects()
        json.loads(f"{before}{_ITEMS}]{stream.rest()}")  # what follows the items ends the list
    except (ValueError, RecursionError) as error:
        raise SourceError(f"API server: the list broke off ({truncate(error)})") from error

"""The API server, read-only: credentials and transport of the kubernetes client, objects as raw JSON.

Typed models would need more memory than the rest of the agent. A list is parsed item by item, so that only one object
exists at a time.
"""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from kubernetes import client, config
from urllib3.exceptions import HTTPError
from yaml import YAMLError  # type: ignore[import-untyped]

from agent.model.input_limit import InputLimit
from agent.model.text import truncate
from agent.sources.kube.fields import resource_version
from agent.sources.kube.server_clock import ServerClock
from agent.sources.os_error import describe_os_error, why_not_connected
from agent.sources.source_error import SourceError

_IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
_MEMORY = Path("/dev/shm")  # noqa: S108 (the client creates private files in it)
_AGENT = "nodeleak"
_LARGEST_ERROR = 4096
MAX_EVENT_BYTES: Final[InputLimit] = 8 * 1024 * 1024
"""Bytes of one line of a watch; etcd has no object of more than 1.5 MiB."""
_LIMIT = ("limit", "500")
"""Objects in a page: a node has fewer pods, so one page is the rule."""

Query = Sequence[tuple[str, str]]


class NoCredentials(SourceError):
    """There are no credentials for an API server; the text says where they were expected."""


class ApiError(SourceError):
    """The API server answered with an error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"API server: {text}")
        self.status = status


class Api:
    """A connection to one API server. Not thread-safe: each reflector has its own."""

    def __init__(self, kubeconfig: Path | None, timeout: float, clock: ServerClock | None = None) -> None:
        """Find credentials: the given kubeconfig, the pod's service account, or $KUBECONFIG; raises NoCredentials.

        `timeout`: seconds to connect, and for one answer. `clock`: receives the `Date` of every answer; connections may
        share it.
        """
        self._timeout, self._clock = timeout, clock
        self._client = client_for(kubeconfig)

    def get(self, path: str, query: Query = ()) -> bytes:
        """Return the body of an answer; raises SourceError, and ApiError if the server refuses."""
        response = self._request(path, query, self._timeout)
        try:
            return bytes(response.read())
        except (HTTPError, OSError) as error:
            raise SourceError(f"API server: the response broke off ({error})") from error
        finally:
            response.response.release_conn()

    def stream(self, path: str, query: Query, silence: float) -> Iterator[bytes]:
        """Start a watch, and yield its lines until the server ends it.

        `silence`: seconds without a byte after which the connection counts as lost. Raises SourceError, at once or
        between two lines; also for a last line that is incomplete.
        """
        return _lines(self._request(path, query, silence))

    def close(self) -> None:
        self._client.close()

    def _request(self, path: str, query: Query, silence: float) -> Any:
        try:
            request = self._client.param_serialize(
                "GET",
                path,
                query_params=list(query),
                header_params={"Accept": "application/json"},
                auth_settings=["BearerToken"],
            )
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

    def _cannot_connect(self, error: Exception) -> str:
        """Say why there is no connection; empty where the error is another one."""
        reason = why_not_connected(error)
        return f"cannot connect to the API server at {self._client.configuration.host}: {reason}" if reason else ""


def client_for(kubeconfig: Path | None) -> client.ApiClient:
    """Find credentials, and return a client that uses them; raises NoCredentials."""
    settings = client.Configuration()
    try:
        if kubeconfig is not None:
            _load(str(kubeconfig), settings)
        elif _IN_CLUSTER.exists() and os.environ.get("KUBERNETES_SERVICE_HOST"):
            config.load_incluster_config(settings)
        elif os.environ.get("KUBECONFIG"):
            _load(None, settings)
        else:
            raise NoCredentials("no service account is mounted, and neither --kubeconfig nor KUBECONFIG is set")
    except (config.ConfigException, YAMLError, OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        where = kubeconfig or os.environ.get("KUBECONFIG") or _IN_CLUSTER.parent
        raise NoCredentials(f"cannot read {where}: {_why_unusable(where, error)}") from error
    settings.retries = False
    settings.connection_pool_maxsize = 2
    api = client.ApiClient(settings)
    api.user_agent = _AGENT
    return api


def _why_unusable(where: str | Path, error: Exception) -> str:
    if isinstance(error, OSError):
        # It may be a file that the kubeconfig names.
        other = f"{error.filename}: " if error.filename and str(error.filename) != str(where) else ""
        return f"{other}{describe_os_error(error)}"
    # The client reports a file that does not exist as an invalid one.
    return truncate(str(error)) if Path(where).exists() else "no such file or directory"


def _load(kubeconfig: str | None, settings: client.Configuration) -> None:
    """Load a kubeconfig without changing it. Its certificates are written to memory, if possible."""
    config.load_kube_config(
        kubeconfig,
        client_configuration=settings,
        persist_config=False,
        temp_file_path=str(_MEMORY) if os.access(_MEMORY, os.W_OK) else None,
    )


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


def _lines(response: Any) -> Iterator[bytes]:
    rest, size = list[bytes](), 0
    try:
        for chunk in response.response.stream(amt=None, decode_content=True):
            *lines, last = chunk.split(b"\n")
            if lines:
                yield b"".join((*rest, lines[0]))
                yield from lines[1:]
                rest, size = [], 0
            rest.append(last)
            size += len(last)
            if size > MAX_EVENT_BYTES:
                raise SourceError(f"API server: the watch sent an event of more than {MAX_EVENT_BYTES} bytes")
    except (HTTPError, OSError) as error:
        raise SourceError(f"API server: the watch broke off ({error})") from error
    finally:
        # Not returned to the pool: the rest of a watch must not be read as another answer.
        response.response.close()
    if any(rest):
        raise SourceError("API server: the watch broke off in the middle of a line")


def list_all(api: Api, path: str, query: Query) -> tuple[int, Iterator[dict[str, Any]]]:
    """Return a list's version, and its items parsed one at a time; raises SourceError, as the iterator may."""
    # With a limit, a given version means exactly that one and not "this or newer" (KEP-2523); "0" means any.
    exact = any(name == "resourceVersion" and value not in {"", "0"} for name, value in query)
    version, more, items = parse_list(api.get(path, query if exact else (*query, _LIMIT)))
    return version, _with_pages(api, path, query, items, more)


def _with_pages(
    api: Api, path: str, query: Query, items: Iterator[dict[str, Any]], more: str
) -> Iterator[dict[str, Any]]:
    yield from items
    while more:
        unversioned = [(name, value) for name, value in query if name != "resourceVersion"]
        page = api.get(path, (*unversioned, _LIMIT, ("continue", more)))
        _, more, items = parse_list(page)
        yield from items


def parse_list(body: bytes) -> tuple[int, str, Iterator[dict[str, Any]]]:
    """Return a list's resourceVersion, its continuation, and its items one at a time.

    Raises SourceError for anything that is not a list of objects, as the iterator may.
    """
    try:
        text = body.decode()
        start = text.find('"items":[')
        # The list's own metadata usually comes first and is small; otherwise everything is parsed at once.
        head = json.loads(f'{text[:start]}"items":[]}}') if 0 <= start < _LARGEST_ERROR else None
    except (ValueError, RecursionError):
        head = None
    try:
        if head is not None and "metadata" in head:
            return (*_metadata(head), _items(text, start + len('"items":[')))
        tree = json.loads(body)
        version, more = _metadata(tree)
        return version, more, iter(_listed(tree["items"]))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise SourceError(f"API server: the response is not a list of objects ({truncate(repr(error))})") from error


def _metadata(tree: Any) -> tuple[int, str]:
    return resource_version(tree["metadata"]), str(tree["metadata"].get("continue") or "")


def _listed(items: Any) -> list[Any]:
    """Return a list's items; Go may write an empty list as null."""
    if items is not None and not isinstance(items, list):
        raise TypeError(f"items is {type(items).__name__}")
    return items or []


def _items(text: str, position: int) -> Iterator[dict[str, Any]]:
    decoder = json.JSONDecoder()
    try:
        while text[position] != "]":
            item, position = decoder.raw_decode(text, position)
            yield item
            if text[position] == ",":
                position += 1
    except (ValueError, IndexError, RecursionError) as error:
        raise SourceError("API server: the list broke off") from error

"""The API server, read-only: credentials and transport are the kubernetes client's, objects stay raw JSON.

Typed models would cost more memory than the rest of the agent; a list is parsed item by item, so that only one object
exists at a time.
"""

import json
import os
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from kubernetes import client, config
from urllib3.exceptions import HTTPError
from yaml import YAMLError  # type: ignore[import-untyped]

from agent.model.text import truncate
from agent.sources.error import SourceError
from agent.sources.kube.fields import resource_version
from agent.sources.kube.server_clock import ServerClock

_IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
_MEMORY = Path("/dev/shm")  # noqa: S108 (the client makes files of its own in it, for us alone)
_AGENT = "nodeleak"
_LARGEST_ERROR = 4096
_LIMIT = ("limit", "500")
"""Objects in an answer: a node has fewer pods, so one answer is the rule."""

Query = Sequence[tuple[str, str]]


class NoCredentials(SourceError):
    """There is no way to reach an API server; the text says what was looked for."""


class ApiError(SourceError):
    """The API server answered, but not with what was asked for."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"API server: {text}")
        self.status = status


class Api:
    """One API server. Not safe for threads: each reflector has its own."""

    def __init__(self, kubeconfig: Path | None, timeout: float, clock: ServerClock | None = None) -> None:
        """Find credentials: a kubeconfig if named, the pod's service account, $KUBECONFIG.

        `timeout`: seconds to connect, and for one answer. `clock`: is told the `Date` of every answer, and may be
        that of other connections too. Raises NoCredentials.
        """
        self._timeout, self._clock = timeout, clock
        self._client = client_for(kubeconfig)

    @property
    def skew(self) -> timedelta | None:
        """How far the API server's clock is ahead of the node's; None: not known, or nobody gave us the node's."""
        return self._clock.skew if self._clock else None

    def get(self, path: str, query: Query = ()) -> bytes:
        """Return the body of an answer; raises Unavailable, and Refused where the server says no."""
        response = self._request(path, query, self._timeout)
        try:
            return bytes(response.read())
        except (HTTPError, OSError) as error:
            raise SourceError(f"API server: the answer broke off ({error})") from error
        finally:
            response.response.release_conn()

    def stream(self, path: str, query: Query, silence: float) -> Iterator[bytes]:
        """Start a watch, and return its lines as they come; they end when the server ends it.

        `silence`: seconds without a byte after which the connection counts as lost. A last line without its end is
        an answer that broke off. Raises Unavailable, at once or between two lines.
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
            raise SourceError(f"API server: {truncate(str(error))}") from error
        if response.status != 200:  # noqa: PLR2004 (every answer to a read that is one)
            raise refusal(response)
        # A proxy's page with status 200 is no word of the API server's.
        if "json" not in (kind := str(response.getheader("Content-Type"))):
            response.response.close()
            raise SourceError(f"API server: it answered {truncate(kind)} where JSON was asked for")
        if self._clock and asked and heard:
            self._clock.told(response.getheader("Date"), asked, heard)
        return response


def client_for(kubeconfig: Path | None) -> client.ApiClient:
    """Find credentials, and return the transport that uses them; raises NoCredentials."""
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
        raise NoCredentials(f"{where}: {truncate(str(error))}") from error
    settings.retries = False
    settings.connection_pool_maxsize = 2
    api = client.ApiClient(settings)
    api.user_agent = _AGENT
    return api


def _load(kubeconfig: str | None, settings: client.Configuration) -> None:
    """Load a kubeconfig and leave it as it is; certificates in it are kept in memory, where there is such a place."""
    config.load_kube_config(
        kubeconfig,
        client_configuration=settings,
        persist_config=False,
        temp_file_path=str(_MEMORY) if os.access(_MEMORY, os.W_OK) else None,
    )


def refusal(response: Any) -> ApiError:
    """Make an error of an answer that is a no, and end its connection."""
    try:
        body = response.response.read(_LARGEST_ERROR)
    except (HTTPError, OSError):
        body = b""
    finally:
        response.response.close()
    try:
        said = str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        said = str(response.reason)
    return ApiError(response.status, f"{response.status} {truncate(said)}")


def _lines(response: Any) -> Iterator[bytes]:
    rest = b""
    try:
        for chunk in response.response.stream(amt=None, decode_content=True):
            *lines, rest = (rest + chunk).split(b"\n")
            yield from lines
    except (HTTPError, OSError) as error:
        raise SourceError(f"API server: the watch broke off ({error})") from error
    finally:
        # Not given back to the pool: what is left of a watch must not be read as another answer.
        response.response.close()
    if rest:
        raise SourceError("API server: the watch broke off in the middle of a line")


def list_all(api: Api, path: str, query: Query) -> tuple[int, Iterator[dict[str, Any]]]:
    """List a resource: its version, and its items parsed one at a time; raises Unavailable, as the iterator may."""
    # With a limit, a named version means exactly that one and not "this or newer" (KEP-2523); "0" means any.
    named = any(name == "resourceVersion" and value not in {"", "0"} for name, value in query)
    version, more, items = parse_list(api.get(path, query if named else (*query, _LIMIT)))
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
    """Take a list apart: its resourceVersion, its continuation, and its items one at a time.

    Raises Unavailable for anything that is not a list of objects (an HTML page of a proxy, say); so may the iterator.
    """
    try:
        text = body.decode()
        start = text.find('"items":[')
        # The list's own metadata comes first and is small; in any other order everything is parsed at once.
        head = json.loads(f'{text[:start]}"items":[]}}') if 0 <= start < _LARGEST_ERROR else None
    except ValueError:
        head = None
    try:
        if head is not None and "metadata" in head:
            return (*_metadata(head), _items(text, start + len('"items":[')))
        tree = json.loads(body)
        version, more = _metadata(tree)
        return version, more, iter(_listed(tree["items"]))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise SourceError(f"API server: the answer is not a list of objects ({truncate(repr(error))})") from error


def _metadata(tree: Any) -> tuple[int, str]:
    return resource_version(tree["metadata"]), str(tree["metadata"].get("continue") or "")


def _listed(items: Any) -> list[Any]:
    """Return a list's items: null is how Go may write none, an empty object is no list at all."""
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

"""Lists all of docker's containers in one request. Read-only; no other module knows docker."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar, cast

import docker
from docker.constants import DEFAULT_UNIX_SOCKET
from docker.errors import DockerException, NotFound, create_api_error_from_http_exception
from docker.utils import kwargs_from_env, parse_host
from docker.utils.config import load_general_config
from requests.exceptions import HTTPError as RequestsHTTPError
from requests.exceptions import RequestException
from urllib3.exceptions import HTTPError

from agent.model.runtime import DOCKER, ContainerRuntime
from agent.model.snapshot import Container
from agent.model.text import truncate
from agent.sources.host.cni_config import CniStatus
from agent.sources.json_list import objects_of
from agent.sources.json_tree import subobject
from agent.sources.runtime.runtime import Runtime, labeled_container
from agent.sources.source_error import MALFORMED, SourceError, connection_failure

_T = TypeVar("_T")

_PIECE: Final = 64 * 1024  # bytes that are read at a time
_CONTAINER_LIMIT: Final = 4 * 1024 * 1024
"""Characters: the labels have a pod's annotations, 256 KiB that Go may escape to six times."""
_LIST_LIMIT: Final = 256 * 1024 * 1024
"""Bytes: 5,000 exited sandboxes of 50 KB."""


class Docker(Runtime):
    """One engine. The connection is opened at the first request, and again after every failure."""

    expected: Final = ContainerRuntime(DOCKER)

    def __init__(
        self, host: str | None, timeout: float, require: Callable[[], None] = lambda: None
    ) -> None:
        """`host`: as in DOCKER_HOST; None: by its variables. `timeout`: seconds for a response.

        `require`: raises SourceError unless docker runs, because a connection to the socket of a
        stopped docker may start it (systemd's socket activation). Raises SourceError.
        """
        self._options: Mapping[str, Any] = {"base_url": host}
        try:
            if host is None:
                self._options = kwargs_from_env()
            parse_host(self._options.get("base_url"))
        except (DockerException, ValueError) as error:
            raise SourceError(f"invalid docker host: {error}") from error

        self._timeout = timeout
        self._require = require
        self._client: docker.APIClient | None = None

    def identify(self) -> ContainerRuntime:
        return self.expected

    def containers(self, _: Collection[str] = ()) -> tuple[Container, ...]:
        """Docker lists a sandbox before its address is reserved."""
        return self._call(_list)

    def has(self, container_id: str) -> bool:
        """Return False only if docker denies the container by its ID."""

        def inspect(client: docker.APIClient) -> bool:
            try:
                container = client.inspect_container(container_id)
            except NotFound as error:
                # A proxy can answer 404 too, and mean another page.
                if f"no such container: {container_id}" in str(error.explanation).lower():
                    return False
                raise

            if container["Id"] != container_id:
                raise ValueError(f"requested {container_id}, got {container['Id']}")
            return True

        return self._call(inspect)

    def networks(self) -> CniStatus:
        """Return nothing: the kubelet, not docker, attaches pods to networks."""
        return CniStatus()

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _call(self, call: Callable[[docker.APIClient], _T]) -> _T:
        """Return the result of a call with the client; raises SourceError."""
        self._require()

        try:
            if self._client is None:
                timeout = cast("int", self._timeout)
                self._client = docker.APIClient(version="auto", timeout=timeout, **self._options)
                # The client adds them to its own requests only.
                self._client.headers.update(load_general_config().get("HttpHeaders") or {})
            return call(self._client)
        except (DockerException, RequestException, HTTPError) as error:
            self.close()  # an upgraded engine may speak another API version: negotiate again
            if reason := connection_failure(error):
                host = str(self._options.get("base_url") or DEFAULT_UNIX_SOCKET)
                where = host.removeprefix("http+unix://").removeprefix("unix://")
                raise SourceError(f"cannot connect to docker at {where}: {reason}") from error
            raise SourceError(f"docker: {truncate(error)}") from error
        except MALFORMED as error:
            self.close()
            reason = truncate(repr(error))
            raise SourceError(f"docker: cannot parse the response ({reason})") from error


def _list(client: docker.APIClient) -> tuple[Container, ...]:
    """Return every container in any state."""
    # Not `docker.containers.list()`, which inspects each container, and fails if one is removed
    # meanwhile. And not `client.containers()`, which holds the whole answer three times: an exited
    # sandbox keeps its annotations.
    url = f"{client.base_url}/v{client.api_version}/containers/json"
    query = {"all": 1, "size": 0}

    with client.get(url, params=query, timeout=client.timeout, stream=True) as response:
        try:
            response.raise_for_status()
        except RequestsHTTPError as error:
            create_api_error_from_http_exception(error)  # it raises one with docker's message

        pieces = _bounded(response.iter_content(_PIECE))
        return tuple(map(_container, objects_of(pieces, _CONTAINER_LIMIT)))


def _bounded(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the pieces; raises ValueError if they exceed the limit."""
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > _LIST_LIMIT:
            raise ValueError(f"the list is larger than {_LIST_LIMIT:,} bytes")
        yield piece


def _container(item: Mapping[str, Any]) -> Container:
    labels = subobject(item, "Labels")
    # dockershim and cri-dockerd label each of their containers `podsandbox` or `container`.
    sandbox = labels.get("io.kubernetes.docker.type") == "podsandbox"
    return labeled_container(
        item["Id"], item["State"], int(item.get("Created") or 0), labels, sandbox=sandbox
    )

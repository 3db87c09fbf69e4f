"""Lists docker's containers, all of them, in one request. Changes nothing; no other module knows docker.

The low-level list is used: `containers.list()` inspects each container, and fails where one is removed meanwhile.
"""

import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeVar, cast

import docker
import tenacity
from docker.constants import DEFAULT_UNIX_SOCKET
from docker.errors import DockerException, NotFound
from docker.utils import kwargs_from_env, parse_host
from requests.exceptions import RequestException
from urllib3.exceptions import HTTPError

from agent.model.runtime import DOCKER, ContainerRuntime
from agent.model.snapshot import Container
from agent.model.text import truncate
from agent.sources.host.cni_config import CniStatus
from agent.sources.os_error import why_not_connected
from agent.sources.runtime.runtime import checked_container, counted
from agent.sources.source_error import SourceError

_T = TypeVar("_T")

_LABEL = "io.kubernetes."


class Docker:
    """One engine. The connection is opened at the first request, and again after every failure."""

    def __init__(self, host: str | None, timeout: float, require: Callable[[], None] = lambda: None) -> None:
        """`host`: as in DOCKER_HOST; None: taken from the environment, with docker's TLS variables.

        `timeout`: seconds for one answer. `require`: raises SourceError unless docker runs: a connection to the socket
        of a stopped one may start it (systemd's socket activation). Raises SourceError where the host cannot be parsed.
        """
        try:
            self._where: Mapping[str, Any] = kwargs_from_env() if host is None else {"base_url": host}
            parse_host(self._where.get("base_url"))
        except (DockerException, ValueError) as error:
            raise SourceError(f"invalid docker host: {error}") from error
        self.timeout, self._require = timeout, require
        self._client: docker.APIClient | None = None

    expected: Final = ContainerRuntime(DOCKER)

    def identify(self) -> ContainerRuntime:
        return self.expected

    def containers(self, _asked: Collection[str] = ()) -> tuple[Container, ...]:
        """List every container in any state: a sandbox is listed before its address is reserved. Raises SourceError."""
        return self._ask(_list)

    def has(self, container_id: str) -> bool:
        """Return whether this container exists; False only where docker itself says so. Raises SourceError."""

        def inspect(client: docker.APIClient) -> bool:
            try:
                found = client.inspect_container(container_id)
            except NotFound as error:
                # A proxy can answer 404 too, and mean another page.
                if f"no such container: {container_id}" in str(error.explanation).lower():
                    return False
                raise
            if found["Id"] != container_id:
                raise ValueError(f"requested {container_id}, got {found['Id']}")
            return True

        return self._ask(inspect)

    def networks(self) -> CniStatus:
        """Say nothing: the kubelet, not docker, attaches pods to networks."""
        return CniStatus()

    def _ask(self, question: Callable[[docker.APIClient], _T]) -> _T:
        quickly = tenacity.Retrying(
            # A refused connection is retried at once; an engine that hangs is not.
            stop=tenacity.stop_after_attempt(3) | tenacity.stop_after_delay(self.timeout),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=0.5),
            retry=tenacity.retry_if_exception_type((DockerException, RequestException, HTTPError)),
            reraise=True,
        )
        try:
            return cast("_T", quickly(self._ask_once, question))
        except (DockerException, RequestException, HTTPError) as error:
            raise SourceError(self._cannot_connect(error) or f"docker: {truncate(error)}") from error
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise SourceError(f"docker: cannot parse the response ({truncate(repr(error))})") from error

    def _cannot_connect(self, error: Exception) -> str:
        """Say why there is no connection; empty where the error is another one."""
        if not (reason := why_not_connected(error)):
            return ""
        host = str(self._where.get("base_url") or DEFAULT_UNIX_SOCKET)
        return f"cannot connect to docker at {host.removeprefix('http+unix://').removeprefix('unix://')}: {reason}"

    def _ask_once(self, question: Callable[[docker.APIClient], _T]) -> _T:
        try:
            self._require()  # before each attempt: docker may have been stopped after the one before
            if self._client is None:
                self._client = docker.APIClient(version="auto", timeout=cast("int", self.timeout), **self._where)
            return question(self._client)
        except BaseException:
            # An upgraded engine may speak another API version: negotiate again.
            self.close()
            raise

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def _list(client: docker.APIClient) -> tuple[Container, ...]:
    listed = client.containers(all=True)
    if not isinstance(listed, list):
        raise TypeError(f"expected a list, found {listed!r}")
    return counted("docker", map(_container, listed))


def _container(item: Mapping[str, Any]) -> Container:
    labels = item.get("Labels") or {}
    name = labels.get(f"{_LABEL}pod.name", "")
    namespace = labels.get(f"{_LABEL}pod.namespace", "")
    return checked_container(
        Container(
            id=item["Id"],
            state=sys.intern(item["State"]),
            created=int(item.get("Created") or 0),
            pod=f"{namespace}/{name}" if name else "",
            pod_uid=labels.get(f"{_LABEL}pod.uid", ""),
            # dockershim and cri-dockerd label each of their containers `podsandbox` or `container`.
            sandbox=labels.get(f"{_LABEL}docker.type") == "podsandbox",
        )
    )

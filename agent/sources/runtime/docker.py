"""Docker's containers, all of them, in one request. Nothing here changes anything, and nothing above knows docker.

The low-level list is used: `containers.list()` would ask again for each container, and fail where one goes meanwhile.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import docker
import tenacity
from docker.errors import DockerException, NotFound
from docker.utils import kwargs_from_env, parse_host
from requests.exceptions import RequestException
from urllib3.exceptions import HTTPError

from agent.model.snapshot import Container
from agent.model.text import truncate
from agent.sources.error import SourceError

T = TypeVar("T")

_LABEL = "io.kubernetes."


class Docker:
    """One engine. The connection is made when first asked, and anew after every failure."""

    def __init__(self, host: str | None, timeout: float) -> None:
        """`host`: as in DOCKER_HOST; None takes it, and docker's TLS variables, from the environment.

        `timeout`: seconds for one answer. Raises Unavailable where the host is not one.
        """
        try:
            self._where: Mapping[str, Any] = kwargs_from_env() if host is None else {"base_url": host}
            parse_host(self._where.get("base_url"))
        except (DockerException, ValueError) as error:
            raise SourceError(f"docker: {error}") from error
        self.timeout = timeout
        self._client: docker.APIClient | None = None

    def containers(self) -> tuple[Container, ...]:
        """List every container in any state; raises Unavailable."""
        return self._ask(lambda client: _parse(client.containers(all=True)))

    def has(self, container_id: str) -> bool:
        """Tell whether there is this one container; False only where docker itself says so. Raises Unavailable."""

        def inspect(client: docker.APIClient) -> bool:
            try:
                found = client.inspect_container(container_id)
            except NotFound as error:
                # Anything on the way to docker can answer 404, and mean another page.
                if f"no such container: {container_id}" in str(error.explanation).lower():
                    return False
                raise
            if found["Id"] != container_id:
                raise ValueError(f"asked for {container_id}, told of {found['Id']}")
            return True

        return self._ask(inspect)

    def _ask(self, question: Callable[[docker.APIClient], T]) -> T:
        quickly = tenacity.Retrying(
            # A refused connection is tried again at once; an engine that hangs has had its chance.
            stop=tenacity.stop_after_attempt(3) | tenacity.stop_after_delay(self.timeout),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=0.5),
            retry=tenacity.retry_if_exception_type((DockerException, RequestException, HTTPError)),
            reraise=True,
        )
        try:
            return cast("T", quickly(self._ask_once, question))
        except (DockerException, RequestException, HTTPError) as error:
            raise SourceError(f"docker: {truncate(error)}") from error
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise SourceError(f"docker gave an answer that cannot be understood ({truncate(repr(error))})") from error

    def _ask_once(self, question: Callable[[docker.APIClient], T]) -> T:
        try:
            if self._client is None:
                self._client = docker.APIClient(version="auto", timeout=cast("int", self.timeout), **self._where)
            return question(self._client)
        except BaseException:
            # An upgraded engine may speak another version: negotiate again.
            self.close()
            raise

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def _parse(listed: Any) -> tuple[Container, ...]:
    if not isinstance(listed, list):
        raise TypeError(type(listed).__name__)  # an empty object is not an empty list
    return tuple(_container(item) for item in listed)


def _container(item: Mapping[str, Any]) -> Container:
    labels = item.get("Labels") or {}
    name = labels.get(f"{_LABEL}pod.name", "")
    namespace = labels.get(f"{_LABEL}pod.namespace", "")
    container = Container(
        id=item["Id"],
        state=item["State"],
        created=int(item.get("Created") or 0),
        pod=f"{namespace}/{name}" if name else "",
        pod_uid=labels.get(f"{_LABEL}pod.uid", ""),
        # dockershim and cri-dockerd label every container of theirs with one of the two.
        sandbox=labels.get(f"{_LABEL}docker.type") == "podsandbox",
    )
    for text in (container.id, container.state, container.pod_uid):
        if not isinstance(text, str):
            raise TypeError(f"{text!r} where a text should be")
    return container

"""The real docker: containers that are only created, which is all that an owner of an address needs to be."""

import contextlib
import secrets
from collections.abc import Iterator
from typing import Final

import docker
from docker.errors import APIError, DockerException, NotFound
from requests.exceptions import RequestException

HOST: Final = "unix:///var/run/docker.sock"
"""Where hack/cluster has its engine."""
BROKEN: Final = (DockerException, RequestException)
"""What a docker that fails raises."""
_IMAGE: Final = "nodeleak/busybox:1"
_LABEL: Final = "nodeleak-torture"
_SECONDS: Final = 60


class Engine:
    """The containers of one torture, known by a label of their own. A connection belongs to one thread."""

    def __init__(self, torture: str | None = None) -> None:
        """`torture`: whose containers; None begins another."""
        self.torture = torture or secrets.token_hex(4)
        self._client = docker.APIClient(HOST, version="auto", timeout=_SECONDS)

    def another(self) -> "Engine":
        """Return a connection for another thread."""
        return Engine(self.torture)

    def create(self) -> str:
        """Make a container, and return its id."""
        made = self._client.create_container(
            _IMAGE,
            labels={_LABEL: self.torture},
            host_config=self._client.create_host_config(network_mode="none"),
        )
        return str(made["Id"])

    def remove(self, sandbox: str) -> None:
        self._client.remove_container(sandbox, v=True)

    def close(self) -> None:
        self._client.close()


@contextlib.contextmanager
def engine() -> Iterator[Engine]:
    """Connect; whatever containers of this torture are left are removed in the end."""
    ours = Engine()
    try:
        yield ours
    finally:
        _sweep(ours)


def _sweep(ours: Engine) -> None:
    client = docker.APIClient(HOST, version="auto", timeout=_SECONDS)
    for container in client.containers(all=True, filters={"label": f"{_LABEL}={ours.torture}"}):
        with contextlib.suppress(NotFound, APIError):  # another thread's last deed
            client.remove_container(container["Id"], v=True, force=True)
    client.close()
    ours.close()

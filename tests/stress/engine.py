"""The real docker: containers that are created and never started, which is enough to own an address."""

import contextlib
import secrets
from collections.abc import Iterator
from typing import Final

import docker
from docker.errors import APIError, DockerException, NotFound
from requests.exceptions import RequestException

HOST: Final = "unix:///var/run/docker.sock"
"""The engine of hack/cluster."""
BROKEN: Final = (DockerException, RequestException)
"""The exceptions of a failing docker."""
_IMAGE: Final = "nodeleak/busybox:1"
_LABEL: Final = "nodeleak-stress"
_SECONDS: Final = 60


class Engine:
    """The containers of one run, identified by a label. Each thread needs its own connection."""

    def __init__(self, run_id: str | None = None) -> None:
        """`run_id`: the run whose containers these are; None starts a new run."""
        self.run_id = run_id or secrets.token_hex(4)
        self._client = docker.APIClient(HOST, version="auto", timeout=_SECONDS)

    def another(self) -> "Engine":
        """Return a connection for another thread."""
        return Engine(self.run_id)

    def create(self) -> str:
        """Create a container and return its id."""
        made = self._client.create_container(
            _IMAGE,
            labels={_LABEL: self.run_id},
            host_config=self._client.create_host_config(network_mode="none"),
        )
        return str(made["Id"])

    def remove(self, sandbox: str) -> None:
        self._client.remove_container(sandbox, v=True)

    def close(self) -> None:
        self._client.close()


@contextlib.contextmanager
def engine() -> Iterator[Engine]:
    """Connect; on exit, remove every container of this run that is left."""
    ours = Engine()
    try:
        yield ours
    finally:
        _sweep(ours)


def _sweep(ours: Engine) -> None:
    client = docker.APIClient(HOST, version="auto", timeout=_SECONDS)
    for container in client.containers(all=True, filters={"label": f"{_LABEL}={ours.run_id}"}):
        with contextlib.suppress(NotFound, APIError):  # another thread's last action
            client.remove_container(container["Id"], v=True, force=True)
    client.close()
    ours.close()

"""A docker that has no containers: a real one was so for a moment after a restart (moby#34779)."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from tests.fakes.engine import engine
from tests.fakes.nodes import healthy


@contextmanager
def docker_without_containers(socket: Path) -> Iterator[str]:
    """Serve on a unix socket; yields the URL for `--docker-host`."""
    with engine(
        socket, healthy(datetime.fromtimestamp(0, UTC), 0, "10.0.0.0/24"), keep_alive=False
    ):
        yield f"unix://{socket}"

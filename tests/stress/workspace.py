"""The directories of one run, and the environment that points cleaners to them."""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests import processes
from tests.stress.engine import HOST

_CHECKPOINTS = ("/var/lib/dockershim/sandbox", "/var/lib/cri-dockerd/sandbox")
"""The machine's own checkpoint directories, read beside the empty one: they belong to real pods that may run here."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """The directories of one run."""

    root: Path

    @property
    def networks(self) -> Path:
        return self.root / "networks"

    @property
    def store(self) -> Path:
        return self.networks / "kubenet"

    @property
    def cache(self) -> Path:
        return self.root / "cache/results"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def make(self) -> None:
        for directory in (self.store, self.cache, self.checkpoints, self.state, self.logs):
            directory.mkdir(parents=True)

    def age_journal(self) -> None:
        """Let nodeleak's journal have room: a run can release more in an hour than it does in a day on a node."""
        for file in (self.state / "journal").glob("*.json"):
            with suppress(FileNotFoundError):
                os.utime(file, (0, 0))

    def environment(self) -> Mapping[str, str]:
        """Return the variables that tell any cleaner, and nodeleak, where to clean."""
        return processes.environment(
            DOCKER_HOST=HOST,
            STRESS_NETWORKS=str(self.networks),
            STRESS_STORE=str(self.store),
            STRESS_CACHE=str(self.cache),
            STRESS_STATE=str(self.state),
            NODELEAK_API="off",
            NODELEAK_DOCKER_HOST=HOST,
            NODELEAK_CNI_NETWORKS_DIR=str(self.networks),
            NODELEAK_CNI_CACHE_DIR=str(self.cache),
            NODELEAK_CHECKPOINT_DIR=",".join([str(self.checkpoints), *_CHECKPOINTS]),
            NODELEAK_STATE_DIR=str(self.state),
        )

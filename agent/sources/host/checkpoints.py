"""Reads the kubelet's sandbox checkpoints (dockershim, cri-dockerd): sandboxes that it has not finished with.

A file is written after the container is created and removed after it is gone. Only the file's name counts; content
that cannot be parsed costs no more than the pod's name. Changes nothing.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from agent.model.snapshot import Checkpoint, Container, Snapshot, known_or
from agent.sources.host.files import names_in, open_directory, read_file
from agent.sources.source import Source
from agent.sources.source_error import NotFound, SourceError, cannot_read


class _Directory(NamedTuple):
    checkpoints: dict[str, Checkpoint]  # by container ID
    newest: float  # seconds since the epoch; its youngest file


@dataclass
class CheckpointDirectories(Source):
    """The directories of every runtime that the kubelet may use. It remembers which files in them were left over."""

    directories: Sequence[Path]
    name = "checkpoints"
    _left_over: frozenset[Path] = frozenset()

    def read(self, snapshot: Snapshot) -> tuple[Checkpoint, ...]:
        """Read the directories in use by the containers that were listed before; raises SourceError."""
        # Each kubelet creates its own directory when it starts, so one of them may be missing. Where all are missing,
        # no such kubelet ever ran here, or they are not mounted: `crosscheck.py` tells these apart.
        found = {
            path: directory for path in self.directories if (directory := _read(path)) is not None
        }
        if not found:
            directories = ", ".join(map(str, self.directories))
            remedy = "in a pod apply deploy/overlays/docker, elsewhere check --checkpoint-dir"
            raise NotFound(f"none of these exists: {directories} ({remedy})")
        sandboxes = [
            container for container in known_or(snapshot.containers, ()) if container.sandbox
        ]
        left_over = _left_over(found, sandboxes, snapshot.taken_at.timestamp())
        self._left_over = frozenset(
            path / name for path in left_over for name in found[path].checkpoints
        )
        in_use = (found[path].checkpoints.values() for path in found if path not in left_over)
        return tuple(chain.from_iterable(in_use))

    def has(self, container_id: str) -> bool:
        """Return whether this sandbox has a checkpoint that is not left over. Raises SourceError."""
        files = {directory / container_id for directory in self.directories} - self._left_over
        return any(map(_exists, files))


def _left_over(
    found: Mapping[Path, _Directory], sandboxes: Sequence[Container], now: float
) -> frozenset[Path]:
    """Return the directories of a runtime that the kubelet no longer uses: nobody retries their teardowns."""
    # Every running sandbox has its checkpoint in another directory and is younger than every file in this directory,
    # which has no sandbox that is listed. If all are from the future, the clock was wrong, and their age shows nothing.
    created = {sandbox.id: sandbox.created for sandbox in sandboxes if sandbox.running}
    oldest, listed = min(created.values(), default=now), {sandbox.id for sandbox in sandboxes}
    if oldest >= now or not any(
        created.keys() <= directory.checkpoints.keys() for directory in found.values()
    ):
        return frozenset()
    return frozenset(
        path for path, (ids, newest) in found.items() if newest < oldest and listed.isdisjoint(ids)
    )


def _exists(file: Path) -> bool:
    try:
        file.lstat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise SourceError(cannot_read(file.parent, error)) from error
    return True


def _read(path: Path) -> _Directory | None:
    try:
        with open_directory(path) as directory:
            # The kubelet writes `.<digits>` first and renames it.
            names = [name for name in names_in(directory, path) if not name.startswith(".")]
            files = [_checkpoint(name, directory) for name in names]
    except NotFound:
        return None
    checkpoints = {checkpoint.container_id: checkpoint for checkpoint, _ in files}
    return _Directory(checkpoints, max((written for _, written in files), default=0.0))


def _checkpoint(name: str, directory: int) -> tuple[Checkpoint, float]:
    """Return it, and when it was written."""
    written = math.inf  # of a file that has just vanished: somebody uses the directory
    try:
        written = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime
        content, _ = read_file(name, directory)
        tree = json.loads(content)
        host_network = (tree.get("data") or {}).get("host_network") is True
        return Checkpoint(name, f"{tree['namespace']}/{tree['name']}", host_network), written
    except (OSError, SourceError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Checkpoint(name, ""), written

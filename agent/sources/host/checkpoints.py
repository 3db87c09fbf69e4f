"""Reads the kubelet's sandbox checkpoints (dockershim, cri-dockerd): sandboxes it is not done with.

A file is written after the container is created and removed after it is gone. Only the file's name
counts; content that cannot be parsed costs no more than the pod's name. Changes nothing.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from agent.model.remedy import Remedy
from agent.model.snapshot import Checkpoint, Container, Snapshot, known_or
from agent.sources.host.files import names_in, open_directory, read_file
from agent.sources.json_tree import subobject
from agent.sources.source import Source
from agent.sources.source_error import MALFORMED, NotFound, SourceError, none_exists, read_error


class _Directory(NamedTuple):
    checkpoints: dict[str, Checkpoint]
    """By container ID."""
    newest: float
    """When its youngest file was written, in seconds since the epoch; infinite if one vanished."""


@dataclass
class CheckpointDirectories(Source):
    """The directories of every runtime that the kubelet may use.

    It remembers which of their files were left over.
    """

    directories: Sequence[Path]
    _left_over: frozenset[Path] = frozenset()
    name = "checkpoints"

    def read(self, snapshot: Snapshot) -> tuple[Checkpoint, ...]:
        """Return what is in the directories in use; raises SourceError."""
        # Each kubelet creates its own directory when it starts, so one of them may be missing. If
        # all are missing, no such kubelet ever ran here, or they are not mounted: `crosscheck.py`
        # tells these apart.
        existing = {}
        for path in self.directories:
            if directory := _read(path):
                existing[path] = directory

        if not existing:
            remedy = Remedy(
                "in a pod apply deploy/overlays/docker, elsewhere check --checkpoint-dir"
            )
            raise none_exists(self.directories, remedy)

        containers = known_or(snapshot.containers, ())
        sandboxes = [container for container in containers if container.sandbox]
        unused = _unused(existing, sandboxes, snapshot.taken_at.timestamp())

        checkpoints: list[Checkpoint] = []
        left_over: set[Path] = set()
        for path, directory in existing.items():
            if path in unused:
                left_over.update(path / name for name in directory.checkpoints)
            else:
                checkpoints += directory.checkpoints.values()
        self._left_over = frozenset(left_over)
        return tuple(checkpoints)

    def has(self, container_id: str) -> bool:
        """Return whether a sandbox has a checkpoint that is not left over; raises SourceError."""
        files = {directory / container_id for directory in self.directories}
        return any(map(_exists, files - self._left_over))


def _unused(
    existing: Mapping[Path, _Directory], sandboxes: Sequence[Container], now: float
) -> frozenset[Path]:
    """Return the directories that the kubelet no longer uses: nobody retries their teardowns.

    `now`: seconds since the epoch.
    """
    # Every running sandbox has its checkpoint in another directory and is younger than every file
    # in this directory, which has no sandbox that is listed. If all are from the future, the clock
    # was wrong, and their age shows nothing.
    created = {sandbox.id: sandbox.created for sandbox in sandboxes if sandbox.running}
    oldest = min(created.values(), default=now)
    has_all = any(created.keys() <= directory.checkpoints.keys() for directory in existing.values())
    if oldest >= now or not has_all:
        return frozenset()

    listed = {sandbox.id for sandbox in sandboxes}
    return frozenset(
        path
        for path, directory in existing.items()
        if directory.newest < oldest and listed.isdisjoint(directory.checkpoints)
    )


def _exists(file: Path) -> bool:
    """Return whether a file exists, a link too; raises SourceError if that is unknown."""
    try:
        file.lstat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise read_error(file.parent, error) from error
    return True


def _read(path: Path) -> _Directory | None:
    """Return a directory; None: it does not exist. Raises SourceError."""
    checkpoints: dict[str, Checkpoint] = {}
    newest = 0.0
    try:
        with open_directory(path) as directory:
            for name in names_in(directory, path):
                if name.startswith("."):  # the kubelet writes `.<digits>` first and renames it
                    continue
                checkpoints[name], written = _checkpoint(name, directory)
                newest = max(newest, written)
    except NotFound:
        return None
    return _Directory(checkpoints, newest)


def _checkpoint(name: str, directory: int) -> tuple[Checkpoint, float]:
    """Return a checkpoint, and when it was written, in seconds since the epoch."""
    written = math.inf  # the file vanished during the read, so the directory is in use
    try:
        written = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime
        content, _ = read_file(name, directory)
        tree = json.loads(content)
        host_network = subobject(tree, "data").get("host_network") is True
        return Checkpoint(name, f"{tree['namespace']}/{tree['name']}", host_network), written
    except (OSError, SourceError, *MALFORMED):
        return Checkpoint(name, ""), written

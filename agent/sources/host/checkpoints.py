"""Reads the kubelet's sandbox checkpoints (dockershim, cri-dockerd): sandboxes that it has not finished with.

A file is written after the container is created and removed after it is gone. Only the file's name counts; content
that cannot be parsed costs no more than the pod's name. Changes nothing.
"""

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.model.snapshot import Checkpoint, Container
from agent.sources.host.directory import names_in
from agent.sources.os_error import cannot_read
from agent.sources.source_error import NotFound, SourceError

_LARGEST: Final = 64 * 1024
"""Bytes; the kubelet writes some hundred."""


@dataclass(frozen=True, slots=True)
class _Directory:
    checkpoints: tuple[Checkpoint, ...]
    newest: float
    """Seconds since the epoch; its youngest file."""

    @property
    def ids(self) -> set[str]:
        return {one.container_id for one in self.checkpoints}


class CheckpointDirectories:
    """The directories of every runtime that the kubelet may use. It remembers which files in them were left over."""

    def __init__(self, directories: Iterable[Path]) -> None:
        self._directories = tuple(directories)
        self._left_over: frozenset[Path] = frozenset()

    def read(self, containers: Iterable[Container], now: float) -> tuple[Checkpoint, ...]:
        """Read the directories in use; raises SourceError where none exists, or one cannot be read.

        Each kubelet creates its own directory when it starts, so one of them may be missing. Where all are missing, no
        such kubelet ever ran here, or they are not mounted: `crosscheck.py` tells these apart. `containers`: all that
        are known, listed before; they tell which directories are in use. `now`: seconds since the epoch.
        """
        found = {path: one for path in self._directories if (one := _read_one(path)) is not None}
        if not found:
            raise NotFound(f"none of these exists: {', '.join(map(str, self._directories))} (check --checkpoint-dir)")
        left_over = _left_over(found, containers, now)
        self._left_over = frozenset(path / one for path in left_over for one in found[path].ids)
        return tuple(one for path, each in found.items() if path not in left_over for one in each.checkpoints)

    def has(self, container_id: str) -> bool:
        """Return whether this sandbox has a checkpoint that is not left over. Raises SourceError."""
        return any(_has(path, container_id) for path in self._directories if path / container_id not in self._left_over)


def _left_over(found: Mapping[Path, _Directory], containers: Iterable[Container], now: float) -> frozenset[Path]:
    """Return the directories of a runtime that the kubelet no longer uses: nobody retries their teardowns.

    Every running sandbox has its checkpoint in another directory and is younger than every file in this one, which has
    no sandbox that is listed. If all are from the future, the clock was wrong, and their age shows nothing.
    """
    sandboxes = [one for one in containers if one.sandbox]
    listed = {one.id for one in sandboxes}
    created = {one.id: one.created for one in sandboxes if one.running}
    oldest = min(created.values(), default=now)
    if oldest >= now or not any(created.keys() <= each.ids for each in found.values()):
        return frozenset()
    return frozenset(path for path, each in found.items() if each.newest < oldest and not each.ids & listed)


def _has(directory: Path, container_id: str) -> bool:
    try:
        (directory / container_id).lstat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise SourceError(cannot_read(directory, error)) from error
    return True


def _read_one(directory: Path) -> _Directory | None:
    try:
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SourceError(cannot_read(directory, error)) from error
    try:
        # The kubelet writes `.<digits>` first and renames it.
        names = [name for name in names_in(handle, directory) if not name.startswith(".")]
        newest = max((_written(name, handle) for name in names), default=0.0)
        return _Directory(tuple(_checkpoint(name, handle) for name in names), newest)
    except OSError as error:
        raise SourceError(cannot_read(directory, error)) from error
    finally:
        os.close(handle)


def _written(name: str, directory: int) -> float:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return math.inf  # somebody uses this directory


def _checkpoint(name: str, directory: int) -> Checkpoint:
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return Checkpoint(name, "")
    try:
        tree = json.loads(os.read(handle, _LARGEST))
        host_network = (tree.get("data") or {}).get("host_network") is True
        return Checkpoint(name, f"{tree['namespace']}/{tree['name']}", host_network)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Checkpoint(name, "")
    finally:
        os.close(handle)

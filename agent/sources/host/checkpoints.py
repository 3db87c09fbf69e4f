"""Reads the kubelet's sandbox checkpoints (dockershim, cri-dockerd): sandboxes that it has not finished with.

A file is written after the container is created and removed after it is gone. Only the file's name counts; content
that cannot be parsed costs no more than the pod's name. Changes nothing.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path

from agent.model.snapshot import Checkpoint
from agent.sources.error import SourceError, cannot_read

_LARGEST = 64 * 1024


def read_checkpoints(directories: Iterable[Path]) -> tuple[Checkpoint, ...]:
    """Read the directories that exist; raises SourceError where none does, or one cannot be read.

    Each kubelet creates its own directory when it starts, so one of them may be missing. Where all are missing, no such
    kubelet ever ran here, or they are not mounted: `crosscheck.py` tells these apart.
    """
    directories = tuple(directories)
    found = [checkpoints for directory in directories if (checkpoints := _read_one(directory)) is not None]
    if not found:
        raise SourceError(f"none of these exists: {', '.join(map(str, directories))} (check --checkpoint-dir)")
    return tuple(checkpoint for checkpoints in found for checkpoint in checkpoints)


def has(directories: Iterable[Path], container_id: str) -> bool:
    """Return whether any of the directories has this sandbox's checkpoint. Raises SourceError."""
    for directory in directories:
        try:
            (directory / container_id).lstat()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise SourceError(cannot_read(directory, error)) from error
        return True
    return False


def _read_one(directory: Path) -> list[Checkpoint] | None:
    try:
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SourceError(cannot_read(directory, error)) from error
    try:
        # The kubelet writes `.<digits>` first and renames it.
        return [_checkpoint(name, handle) for name in os.listdir(handle) if not name.startswith(".")]
    except OSError as error:
        raise SourceError(cannot_read(directory, error)) from error
    finally:
        os.close(handle)


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

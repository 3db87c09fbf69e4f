"""Free space where reservations, the runtime and the kubelet write.

Read-only, only while a pod waits or a sandbox is stuck.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from agent.model.node_network import Disk
from agent.model.snapshot import Snapshot
from agent.sources.deadline import Deadline
from agent.sources.host.mount_table import OWN_PROC, MountEntry, is_on_node, read_mount_table
from agent.sources.source import Source, reason_nothing_is_stuck
from agent.sources.source_error import SourceError, read_error

_TIMEOUT: Final = 5.0  # seconds, after which a file system hangs


@dataclass(frozen=True)
class DisksSource(Source):
    """The file systems of some directories, each once: by the topmost of its directories."""

    directories: tuple[Path, ...]
    """As the node knows them."""
    runtime_root: Callable[[], Path | None]
    """Returns where the runtime keeps images and containers; None: unknown."""
    mounted: Callable[[Path], Path]
    """Returns where a path of the node is for this process."""
    proc: Path
    in_time: Deadline = field(default_factory=partial(Deadline, "disks", _TIMEOUT))
    name = "disks"

    def reason_not_needed(self, snapshot: Snapshot) -> str | None:
        return reason_nothing_is_stuck(snapshot)

    def read(self, _: Snapshot) -> tuple[Disk, ...]:
        """Return their file systems, each once; raises SourceError, also if one of them hangs."""
        return self.in_time(self._read)

    def _read(self) -> tuple[Disk, ...]:
        mounts = read_mount_table(self.proc)

        places = {directory: self._place(directory) for directory in self.directories}
        if root := self.runtime_root():
            places[root] = self._place(root) or _own_root()
        known = {path: here for path, here in places.items() if here}

        disks = (_disk(path, here, mounts) for path, here in known.items() if _is_own(path, known))
        return tuple(filter(None, disks))

    def _place(self, directory: Path) -> Path | None:
        """Return where a directory is for this process; None: it is not mounted here."""
        here = self.mounted(directory)
        # The DaemonSet mounts only parts of the kubelet's directory.
        for place in (here, here / "pods"):
            if is_on_node(place, self.proc) and place.is_dir():
                return place
        return None


def _is_own(path: Path, places: Mapping[Path, Path]) -> bool:
    """Return whether no directory above it is in the same file system; raises SourceError."""
    try:
        device = places[path].stat().st_dev
        above = [here for other, here in places.items() if other in path.parents]
        return all(here.stat().st_dev != device for here in above)
    except OSError as error:
        raise read_error(path, error) from error


def _own_root() -> Path | None:
    """Return the root of this container if the runtime keeps it beside its own files."""
    try:
        roots = [entry for entry in read_mount_table(OWN_PROC, "self") if entry.point == "/"]
    except SourceError:
        return None
    return Path("/") if roots and roots[-1].kind == "overlay" else None


def _disk(path: Path, here: Path, mounts: Iterable[MountEntry]) -> Disk | None:
    """Return the file system of a directory of the node; None: it was removed.

    `here`: where it is for this process. `mounts`: the node's.
    """
    try:
        status = os.statvfs(here)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise read_error(path, error) from error

    # In a pod, a mount may be read-only, and the node's is not. The last of the longest counts.
    around = [entry for entry in mounts if path.is_relative_to(entry.point)]
    nearest = max(reversed(around), key=lambda entry: len(entry.point), default=None)

    return Disk(
        path=str(path),
        free_bytes=status.f_bavail * status.f_frsize,
        total_bytes=status.f_blocks * status.f_frsize,
        free_inodes=status.f_favail,
        total_inodes=status.f_files,
        read_only=nearest is not None and nearest.read_only,
    )

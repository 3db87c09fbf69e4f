"""Which CNI plugins have no program on the node. Read-only."""

import stat
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agent.sources.host.mount_table import is_on_node


@dataclass(frozen=True)
class PluginPrograms:
    """The directories in which a runtime looks for plugins, as far as this process sees them.

    The DaemonSet mounts none of them: in its pods nothing is known to be missing.
    """

    mounted: Callable[[Path], Path]
    """Returns where a path of the node is for this process."""
    proc: Path

    def missing(
        self, types: Collection[str], directories: Iterable[Path]
    ) -> tuple[str, ...] | None:
        """Return the types without a program; None: not every directory can be read from here."""
        here = [self.mounted(directory) for directory in directories]
        if not all(is_on_node(directory, self.proc) for directory in here):
            return None

        # Where none of them exists, the runtime is likely to have them elsewhere.
        try:
            existing = [directory for directory in here if directory.is_dir()]
            missing = {name for name in types if not _is_installed(name, existing)}
        except OSError:
            return None
        return tuple(sorted(missing)) if existing else None


def _is_installed(name: str, directories: Iterable[Path]) -> bool:
    """Return whether libcni finds a plugin and can run it; raises OSError."""
    for directory in directories:
        with suppress(FileNotFoundError):
            mode = (directory / name).stat().st_mode
            if stat.S_ISREG(mode) and mode & 0o111:
                return True
    return False

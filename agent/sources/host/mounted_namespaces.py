"""Where network namespaces are mounted. Read-only."""

from collections.abc import Iterable
from pathlib import Path

from agent.sources.host.mount_table import read_mount_table


def read_namespaces(proc: Path, runtimes: Iterable[int]) -> tuple[str, ...]:
    """Return where network namespaces are mounted, for the first process or for a runtime; raises SourceError."""
    # A runtime may have mounts of its own, as on OpenShift. A mount keeps a namespace, and its addresses, without any
    # process: the kernel in it still answers for them. Below a shared directory, a namespace is listed more than once.
    entries = (entry for process in (1, *runtimes) for entry in read_mount_table(proc, process))
    mounted = (
        entry.point for entry in entries if entry.kind == "nsfs" and entry.root.startswith("net:[")
    )
    return tuple(dict.fromkeys(mounted))

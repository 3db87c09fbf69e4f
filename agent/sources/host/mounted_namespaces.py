"""Where network namespaces are mounted. Read-only."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from agent.model.index import named_sandboxes
from agent.model.snapshot import Snapshot, known_or
from agent.sources.host.mount_table import read_mount_table
from agent.sources.host.processes import ProcessTable
from agent.sources.source import Source, unowned_ids


@dataclass(frozen=True)
class MountedNamespacesSource(Source):
    proc: Path
    processes: ProcessTable
    name = "mounted_namespaces"

    def reason_not_needed(self, snapshot: Snapshot) -> str | None:
        sandboxes = named_sandboxes(known_or(snapshot.cni_results, ()))
        if sandboxes.isdisjoint(unowned_ids(snapshot)):
            return "libcni's cache names no mounted network namespace of a sandbox without an owner"
        return None

    def read(self, _: Snapshot) -> tuple[str, ...]:
        return read_namespaces(self.proc, self.processes.runtime_processes())


def read_namespaces(proc: Path, runtimes: Iterable[int]) -> tuple[str, ...]:
    """Return where network namespaces are mounted; raises SourceError.

    `runtimes`: the processes of runtimes, which may have mounts of their own, as on OpenShift. A
    mount keeps a namespace, and its addresses, without any process: the kernel in it still answers
    for them.
    """
    points: dict[str, None] = {}  # below a shared directory, a namespace is listed more than once
    for process in (1, *runtimes):
        for entry in read_mount_table(proc, process):
            if entry.kind == "nsfs" and entry.root.startswith("net:["):
                points[entry.point] = None
    return tuple(points)

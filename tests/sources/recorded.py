"""Sources that answer from a snapshot."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, Final

from agent.model.clocks import Moment
from agent.model.snapshot import SOURCES, Snapshot
from agent.sources.collector import take_snapshot
from agent.sources.host.addresses import AddressesSource
from agent.sources.host.disks import DisksSource
from agent.sources.host.links import LinksSource
from agent.sources.host.mounted_namespaces import MountedNamespacesSource
from agent.sources.host.mounts import MountsSource
from agent.sources.host.processes import ProcessTable
from agent.sources.kube.attachments import AttachmentsSource
from agent.sources.kube.sandbox_failures import SandboxFailuresSource
from agent.sources.source import Source, Sources, WithFields
from agent.sources.source_error import SourceError
from tests.sources.kube.connections import inquirer

NOW: Final = Moment(datetime(2026, 3, 26, 20, 0, tzinfo=UTC), timedelta(days=3))
_WITH: Final = {
    "cni_results": ("damaged_results",),
    "watches": ("api_skew", "server_version"),
}
"""The fields that come with the answer of a source."""
_NOWHERE: Final = Path("/nonexistent")
_SILENT: Final = inquirer(lambda *_: b"")
_NOT_ALWAYS_NEEDED: Final[dict[str, Source]] = {
    source.name: source
    for source in (
        AddressesSource(_NOWHERE),
        MountedNamespacesSource(_NOWHERE, ProcessTable(_NOWHERE)),
        MountsSource(_NOWHERE, None),
        LinksSource(_NOWHERE),
        DisksSource((), lambda: None, lambda path: path, _NOWHERE),
        AttachmentsSource(_SILENT, "worker-1", lambda: 0.0),
        SandboxFailuresSource(_SILENT, lambda: 0.0),
    )
}
_BROKEN: Final = SourceError("it broke")


class RecordedSources:
    """Answers from a snapshot, and records the order of the reads."""

    def __init__(self, snapshot: Snapshot, broken: str = "", error: SourceError = _BROKEN) -> None:
        """`broken`: the source that raises `error`."""
        self.requested: list[str] = []
        self.broken = broken
        self._error = error
        self._snapshot = snapshot
        self.sources: Sources = [_Recorded(self, name) for name in SOURCES]

    def take(self) -> Snapshot:
        """Take a snapshot, by a clock on which everything takes a second."""
        ticks = count()
        return take_snapshot(self.sources, "worker-1", NOW, lambda: float(next(ticks)))

    def read(self, name: str) -> Any:
        self.requested.append(name)
        if name == self.broken:
            raise self._error
        fields = {field: getattr(self._snapshot, field) for field in _WITH.get(name, ())}
        return WithFields(getattr(self._snapshot, name), fields)


@dataclass(frozen=True)
class _Recorded(Source):
    node: RecordedSources
    name: str

    def reason_not_needed(self, snapshot: Snapshot) -> str | None:
        """Ask the real source: it needs nothing of the node for that."""
        real = _NOT_ALWAYS_NEEDED.get(self.name)
        return real.reason_not_needed(snapshot) if real else None

    def read(self, _: Snapshot) -> Any:
        return self.node.read(self.name)

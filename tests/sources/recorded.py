"""Sources that answer from a snapshot."""

from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from typing import Any, Final

from agent.model.clocks import Moment
from agent.model.snapshot import SOURCES, Snapshot
from agent.sources.collector import Sources, take_snapshot
from agent.sources.source_error import SourceError

NOW: Final = Moment(datetime(2026, 3, 26, 20, 0, tzinfo=UTC), timedelta(days=3))


class RecordedSources:
    """Answers from a snapshot, and records the order of the reads."""

    def __init__(self, snapshot: Snapshot, broken: str = "") -> None:
        self.requested: list[str] = []
        self.skew_read_after: tuple[str, ...] = ()
        self.broken = broken
        self._snapshot = snapshot
        self.sources: Sources = {name: partial(self._read, name) for name in SOURCES} | {
            "api_skew": self._api_skew,
            "server_version": lambda _: snapshot.server_version,
            "damaged_results": lambda _: snapshot.damaged_results,
        }

    def take(self) -> Snapshot:
        """Take a snapshot, by a clock on which everything takes a second."""
        ticks = count()
        return take_snapshot(self.sources, "worker-1", NOW, lambda: float(next(ticks)))

    def _read(self, source: str, _so_far: Snapshot) -> Any:
        self.requested.append(source)
        if source == self.broken:
            raise SourceError("it broke")
        return getattr(self._snapshot, source)

    def _api_skew(self, _so_far: Snapshot) -> Any:
        self.skew_read_after = tuple(self.requested)
        return self._snapshot.api_skew

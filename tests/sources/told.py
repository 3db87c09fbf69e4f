"""Sources that answer what a snapshot says."""

from functools import partial
from typing import Any

from agent.checks.volumes import lost_volumes
from agent.model.snapshot import SOURCES, Snapshot
from agent.sources.collector import Sources
from agent.sources.error import SourceError


class Told:
    """Answers from a snapshot, and remembers in which order the sources were read."""

    def __init__(self, told: Snapshot, broken: str = "") -> None:
        self.asked: list[str] = []
        self.skew_asked_after: tuple[str, ...] = ()
        self.asked_about: tuple[str, ...] = ()
        self.broken = broken
        self._told = told
        readers = {name: partial(self._read, name) for name in SOURCES}
        self.sources = Sources(readers, self._api_skew, lambda: told.server_version)

    def _read(self, source: str, so_far: Snapshot) -> Any:
        self.asked.append(source)
        if source == self.broken:
            raise SourceError("it broke")
        if source == "attachments" and (asked := lost_volumes.question(so_far)):
            self.asked_about = (*asked.volumes, *(pod.name for pod in asked.pods))
        return getattr(self._told, source)

    def _api_skew(self) -> Any:
        self.skew_asked_after = tuple(self.asked)
        return self._told.api_skew

"""Counts the evidence that a server sends old versions, with the first and the last time of each kind."""

from collections.abc import Callable
from dataclasses import replace

from agent.model.watches import LASTS, Evidence, Watch
from agent.sources.collector import Moment


class WatchMonitor:
    """The evidence of one watched resource, one record for each kind. One thread writes, any thread may read."""

    def __init__(self, resource: str, now: Callable[[], Moment], server_version: Callable[[], str]) -> None:
        self._resource, self._now, self._server_version = resource, now, server_version
        self.watches: tuple[Watch, ...] = ()
        """Replaced whole, never changed: other threads read it meanwhile."""

    def record(self, evidence: Evidence, before: int, version: int) -> None:
        """`before`: the version received before; `version`: the older version received after it."""
        now = self._now()
        known = {watch.evidence: watch for watch in self.watches}
        earlier = known.get(evidence)
        watch = Watch(
            self._resource, evidence, before, version, 1, now.wall, now.wall, now.uptime, self._server_version()
        )
        if earlier is not None and now.uptime - earlier.last_uptime <= LASTS:
            watch = replace(watch, count=earlier.count + 1, first=earlier.first)
        self.watches = tuple((known | {evidence: watch}).values())

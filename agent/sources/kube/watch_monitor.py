"""Counts what a watch shows of the server's versions, of each kind the first and the last time."""

from collections.abc import Callable
from dataclasses import replace

from agent.model.watches import LASTS, Evidence, Watch
from agent.sources.collector import Moment


class WatchMonitor:
    """Of one resource. One thread tells it, any may ask. It holds one record of each kind of evidence at most."""

    def __init__(self, resource: str, now: Callable[[], Moment], server_version: Callable[[], str]) -> None:
        self._resource, self._now, self._server_version = resource, now, server_version
        self._watches: tuple[Watch, ...] = ()

    @property
    def watches(self) -> tuple[Watch, ...]:
        return self._watches

    def saw(self, evidence: Evidence, before: int, version: int) -> None:
        """Take it down. `before`: the version heard before; `version`: the one that is older."""
        now = self._now()
        known = {one.evidence: one for one in self._watches}
        earlier = known.get(evidence)
        seen = Watch(
            self._resource, evidence, before, version, 1, now.wall, now.wall, now.uptime, self._server_version()
        )
        if earlier is not None and now.uptime - earlier.last_uptime <= LASTS:
            seen = replace(seen, count=earlier.count + 1, first=earlier.first)
        # Replaced whole, never changed: others read it meanwhile.
        self._watches = tuple((known | {evidence: seen}).values())

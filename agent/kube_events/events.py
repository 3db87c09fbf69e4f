"""Kubernetes Events of findings and releases: one Event each, patched for as long as it lasts."""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from agent.kube_events.messages import EventSpec, event_specs
from agent.kube_events.queue import Failure, Kind, Message, Put, Server
from agent.kube_events.rate_limit import REPEAT_AFTER, RateLimiter
from agent.model.report import Report
from agent.sources.kube.client import ApiError

_NOT_FOUND: Final = 404
_EXISTS: Final = 409
_MOST_REMEMBERED: Final = 1000
_UNKNOWN: Final = 0


class EventExporter:
    """Queues what is due after each sync; never waits, never fails."""

    def __init__(
        self, put: Put, failed: Callable[[Kind, Failure, int], None], repeat_after: timedelta = REPEAT_AFTER
    ) -> None:
        """`failed`: called with the number of Events over the rate limit."""
        self._put, self._failed = put, failed
        self._limiter, self._series = RateLimiter(repeat_after), EventSeries()

    def export(self, report: Report, seconds: float) -> None:  # noqa: ARG002 (a metric)
        snapshot = report.assessment.snapshot
        due, over_limit = self._limiter.due(event_specs(report), snapshot.uptime)
        for one in due:
            self._put(Message(Kind.EVENT, one.reason, partial(self._series.send, one, snapshot.taken_at)))
        if over_limit:
            self._failed(Kind.EVENT, Failure.RATE_LIMITED, over_limit)


class EventSeries:
    """The Events that this process created or found, with their counts. Belongs to the delivery thread."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def send(self, spec: EventSpec, at: datetime, server: Server) -> None:
        """Create the Event, or patch the existing one; raises SourceError. The next attempt goes on from here.

        The agent has no right to read Events, so the answers to writes say which exist.
        """
        if spec.name not in self._counts and self._created(spec, at, server):
            return
        if not self._patched(spec, at, server):
            # It has expired.
            del self._counts[spec.name]
            self._created(spec, at, server)

    def _created(self, spec: EventSpec, at: datetime, server: Server) -> bool:
        try:
            server.create(spec.path, spec.event(at))
        except ApiError as error:
            if error.status != _EXISTS:
                raise
            # An earlier process of the agent created it.
            self._remember(spec, _UNKNOWN)
            return False
        self._remember(spec, 1)
        return True

    def _patched(self, spec: EventSpec, at: datetime, server: Server) -> bool:
        known = self._counts[spec.name]
        count = None if known == _UNKNOWN else known + 1
        try:
            answer = server.patch(f"{spec.path}/{spec.name}", spec.changes(at, count))
        except ApiError as error:
            if error.status == _NOT_FOUND:
                return False
            raise
        current = answer.get("count")
        self._remember(spec, current if isinstance(current, int) else count or 1)
        return True

    def _remember(self, spec: EventSpec, count: int) -> None:
        self._counts[spec.name] = count
        while len(self._counts) > _MOST_REMEMBERED:
            del self._counts[next(iter(self._counts))]

"""Kubernetes Events of the findings, and of what was released. One Event each, patched as long as it lasts."""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from agent.kube_events.messages import EventSpec, event_specs
from agent.kube_events.queue import Failure, Message, Post, Server, What
from agent.kube_events.rate_limit import AGAIN, RateLimiter
from agent.model.report import Report
from agent.sources.kube.client import ApiError

_NOT_FOUND: Final = 404
_EXISTS: Final = 409
_MOST_REMEMBERED: Final = 1000


class EventExporter:
    """Hands over what is due after each round; nothing is waited for, and nothing fails."""

    def __init__(self, post: Post, missed: Callable[[What, Failure, int], None], again: timedelta = AGAIN) -> None:
        """`missed`: told how many could not be told."""
        self._post, self._missed = post, missed
        self._pace, self._series = RateLimiter(again), Series()

    def export(self, report: Report, seconds: float) -> None:  # noqa: ARG002 (it tells of no time)
        snapshot = report.assessment.snapshot
        due, too_many = self._pace.due(event_specs(report), snapshot.uptime)
        for one in due:
            self._post(Message(What.EVENT, one.reason, partial(self._series.send, one, snapshot.taken_at)))
        if too_many:
            self._missed(What.EVENT, Failure.RATE_LIMITED, too_many)


class Series:
    """The Events that this process made or met, and how often each was said. It belongs to the courier's thread."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def send(self, spec: EventSpec, at: datetime, server: Server) -> None:
        """Create the Event, or patch the one that is there; raises Unavailable.

        Reading Events is no right of ours, so the server's answers to writing tell what is there.
        """
        # Forgotten until the answer: where none comes, nobody knows what is there.
        count = self._counts.pop(spec.name, None)
        if count is not None and self._patched(spec, at, server, count + 1):
            return
        if self._created(spec, at, server):
            return
        # It is there, made by an agent before us. What it tells of is the same, and not one more.
        if not self._patched(spec, at, server, None):
            # It expired between the two.
            server.create(spec.path, spec.event(at))
            self._remember(spec, 1)

    def _created(self, spec: EventSpec, at: datetime, server: Server) -> bool:
        try:
            server.create(spec.path, spec.event(at))
        except ApiError as error:
            if error.status == _EXISTS:
                return False
            raise
        self._remember(spec, 1)
        return True

    def _patched(self, spec: EventSpec, at: datetime, server: Server, count: int | None) -> bool:
        try:
            answer = server.patch(f"{spec.path}/{spec.name}", spec.now(at, count))
        except ApiError as error:
            if error.status == _NOT_FOUND:
                return False
            raise
        told = answer.get("count")
        self._remember(spec, told if isinstance(told, int) else count or 1)
        return True

    def _remember(self, spec: EventSpec, count: int) -> None:
        self._counts[spec.name] = count
        while len(self._counts) > _MOST_REMEMBERED:
            del self._counts[next(iter(self._counts))]

"""Kubernetes Events of the findings, and of what was released. One Event each, patched as long as it lasts."""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from agent.kube_events.messages import Notice, notices
from agent.kube_events.queue import Failure, Letter, Post, Server, What
from agent.kube_events.rate_limit import AGAIN, Pace
from agent.model.report import Report
from agent.sources.kube.client import Refused

_NOT_FOUND: Final = 404
_EXISTS: Final = 409
_MOST_REMEMBERED: Final = 1000


class EventExporter:
    """Hands over what is due after each round; nothing is waited for, and nothing fails."""

    def __init__(self, post: Post, missed: Callable[[What, Failure, int], None], again: timedelta = AGAIN) -> None:
        """`missed`: told how many could not be told."""
        self._post, self._missed = post, missed
        self._pace, self._series = Pace(again), Series()

    def tell(self, report: Report, seconds: float) -> None:  # noqa: ARG002 (it tells of no time)
        snapshot = report.scene.snapshot
        due, too_many = self._pace.due(notices(report), snapshot.uptime)
        for one in due:
            self._post(Letter(What.EVENT, one.reason, partial(self._series.send, one, snapshot.taken_at)))
        if too_many:
            self._missed(What.EVENT, Failure.RATE_LIMITED, too_many)


class Series:
    """The Events that this process made or met, and how often each was said. It belongs to the courier's thread."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def send(self, notice: Notice, at: datetime, server: Server) -> None:
        """Create the Event, or patch the one that is there; raises Unavailable.

        Reading Events is no right of ours, so the server's answers to writing tell what is there.
        """
        # Forgotten until the answer: where none comes, nobody knows what is there.
        count = self._counts.pop(notice.name, None)
        if count is not None and self._patched(notice, at, server, count + 1):
            return
        if self._created(notice, at, server):
            return
        # It is there, made by an agent before us. What it tells of is the same, and not one more.
        if not self._patched(notice, at, server, None):
            # It expired between the two.
            server.create(notice.path, notice.event(at))
            self._remember(notice, 1)

    def _created(self, notice: Notice, at: datetime, server: Server) -> bool:
        try:
            server.create(notice.path, notice.event(at))
        except Refused as error:
            if error.status == _EXISTS:
                return False
            raise
        self._remember(notice, 1)
        return True

    def _patched(self, notice: Notice, at: datetime, server: Server, count: int | None) -> bool:
        try:
            answer = server.patch(f"{notice.path}/{notice.name}", notice.now(at, count))
        except Refused as error:
            if error.status == _NOT_FOUND:
                return False
            raise
        told = answer.get("count")
        self._remember(notice, told if isinstance(told, int) else count or 1)
        return True

    def _remember(self, notice: Notice, count: int) -> None:
        self._counts[notice.name] = count
        while len(self._counts) > _MOST_REMEMBERED:
            del self._counts[next(iter(self._counts))]

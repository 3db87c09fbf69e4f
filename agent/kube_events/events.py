"""Kubernetes Events of findings and releases: one Event each, patched for as long as it lasts."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from agent.kube_events.delivery import REPEAT_AFTER, DeliveryQueue, Failure, Kind, Message
from agent.kube_events.messages import EventSpec, event_specs
from agent.kube_events.token_bucket import TokenBucket
from agent.model.finding import Severity
from agent.model.report import Report
from agent.sources.kube.errors import ApiError

if TYPE_CHECKING:  # as in `delivery`
    from agent.kube_events.writer import Writer

_CAPACITY: Final = 1000
_BURST: Final = 25
"""As in client-go, but for the whole agent, not for each object: 200 rejected pods are 200 objects."""
_TOKEN_INTERVAL: Final = timedelta(seconds=12)
"""Until the bucket gets one token back: five a minute for the whole agent."""
_FORGET_AFTER: Final = timedelta(hours=1)
"""When the server has expired the Event too."""


class EventExporter:
    """Queues what is due after each sync, never many at a time; never waits, never fails."""

    def __init__(self, queue: DeliveryQueue) -> None:
        self._queue, self._bucket = queue, TokenBucket(_BURST, _TOKEN_INTERVAL)
        self._sent: dict[str, tuple[timedelta, Severity]] = {}
        """When, by the boot clock, and how severe."""
        self._waiting: frozenset[str] = frozenset()
        self._counts: dict[str, int] = {}
        """Of the Events that this process created or found. Belongs to the delivery thread."""

    def export(self, report: Report, seconds: float) -> None:  # noqa: ARG002 (a metric)
        """Send new Events at once, and lasting ones every five minutes."""
        snapshot = report.assessment.snapshot
        now = snapshot.uptime
        self._bucket.fill(now)
        self._sent = {
            name: sent for name, sent in self._sent.items() if now - sent[0] < _FORGET_AFTER
        }
        wanted = sorted(
            (spec for spec in event_specs(report) if self._is_due(spec, now)), key=self._priority
        )
        tokens = self._bucket.take(len(wanted))
        for spec in wanted[:tokens]:
            self._sent[spec.name] = now, spec.severity
            self._queue.put(
                Message(Kind.EVENT, spec.reason, partial(self._send, spec, snapshot.taken_at))
            )
        self._hold_back(wanted[tokens:])

    def _hold_back(self, rest: Sequence[EventSpec]) -> None:
        """Count each once. They are sent later if they are still true."""
        if over_limit := sum(not spec.lasting or spec.name not in self._waiting for spec in rest):
            self._queue.metrics.failed(Kind.EVENT, Failure.RATE_LIMITED, over_limit)
        self._waiting = frozenset(spec.name for spec in rest if spec.lasting)

    def _is_due(self, spec: EventSpec, now: timedelta) -> bool:
        sent = self._last_sent(spec)
        return not spec.lasting or sent is None or now - sent >= REPEAT_AFTER

    def _priority(self, spec: EventSpec) -> tuple[bool, timedelta]:
        # What is critical, and what can be sent only now; of each, what was never sent, then what was sent longest ago.
        return spec.lasting and spec.severity is not Severity.CRITICAL, self._last_sent(
            spec
        ) or timedelta.min

    def _last_sent(self, spec: EventSpec) -> timedelta | None:
        """Return when it was sent; None if never, or if it is more severe now."""
        at, severity = self._sent.get(spec.name, (None, Severity.INFO))
        return at if severity.rank >= spec.severity.rank else None

    def _send(self, spec: EventSpec, at: datetime, writer: "Writer") -> None:
        """Create or patch the Event; raises SourceError. Refusals say which exist: the agent may not read Events."""
        event, path = spec.event(at), f"{spec.path}/{spec.name}"
        count = self._counts.get(spec.name)
        try:
            answer = (
                writer.patch(path, spec.changes(at, count + 1))
                if count
                else writer.create(spec.path, event)
            )
        except ApiError as error:
            if count and error.status == HTTPStatus.NOT_FOUND:  # it has expired
                answer = writer.create(spec.path, event)
            elif (
                not count and error.status == HTTPStatus.CONFLICT
            ):  # an earlier process of the agent created it
                answer = writer.patch(path, spec.changes(at, None))
            else:
                raise
        if len(self._counts) >= _CAPACITY:
            self._counts.clear()
        found = answer.get("count")
        self._counts[spec.name] = found if isinstance(found, int) else 1

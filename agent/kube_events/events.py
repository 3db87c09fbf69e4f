"""Kubernetes Events of findings and releases: one Event each, patched for as long as it lasts."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from agent.kube_events.delivery import REPEAT_AFTER, DeliveryQueue, Failure, Kind, Message
from agent.kube_events.messages import EventSpec, event_specs
from agent.kube_events.token_bucket import TokenBucket
from agent.model.finding import Severity
from agent.model.report import Report
from agent.sources.kube.errors import ApiError

if TYPE_CHECKING:  # as in `delivery`
    from collections.abc import Mapping

    from agent.kube_events.writer import Writer

_CAPACITY: Final = 1000
"""Events whose counts are remembered."""
_BURST: Final = 25
"""As in client-go, but for the whole agent, not for each object: 200 rejected pods are 200
objects."""
_TOKEN_INTERVAL: Final = timedelta(seconds=12)
"""Until the bucket gets one token back: five a minute for the whole agent."""
_FORGET_AFTER: Final = timedelta(hours=1)
"""When the server has expired the Event too."""


class _Sent(NamedTuple):
    """The last time that an Event was queued."""

    at: timedelta
    """By the boot clock."""
    severity: Severity


class EventExporter:
    """Queues the Events that are due after each sync, only some at a time.

    It never waits and never fails.
    """

    def __init__(self, queue: DeliveryQueue) -> None:
        self._queue = queue
        self._bucket = TokenBucket(_BURST, _TOKEN_INTERVAL)
        self._sent: dict[str, _Sent] = {}
        """By the name of the Event."""
        self._held_back: frozenset[str] = frozenset()
        """Names of lasting Events that the last sync did not send."""
        self._counts: dict[str, int] = {}
        """Of the Events that this process created or patched. Belongs to the delivery thread."""

    def export(self, report: Report, seconds: float) -> None:  # noqa: ARG002 (a metric)
        """Send new Events now, and lasting ones every five minutes."""
        snapshot = report.assessment.snapshot
        now = snapshot.uptime
        self._bucket.fill(now)
        remembered = self._sent.items()
        self._sent = {name: sent for name, sent in remembered if now - sent.at < _FORGET_AFTER}

        due = [spec for spec in event_specs(report) if self._is_due(spec, now)]
        due.sort(key=self._priority)

        tokens = self._bucket.take(len(due))
        for spec in due[:tokens]:
            self._sent[spec.name] = _Sent(now, spec.severity)
            send = partial(self._send, spec, snapshot.taken_at)
            self._queue.put(Message(Kind.EVENT, spec.reason, send))

        self._hold_back(due[tokens:])

    def _hold_back(self, specs: Sequence[EventSpec]) -> None:
        """Count each of them once. They are sent later if they are still true."""
        over_limit = sum(not spec.lasting or spec.name not in self._held_back for spec in specs)
        if over_limit:
            self._queue.counts.failed(Kind.EVENT, Failure.RATE_LIMITED, over_limit)
        self._held_back = frozenset(spec.name for spec in specs if spec.lasting)

    def _is_due(self, spec: EventSpec, now: timedelta) -> bool:
        """Return whether it is new, happened in this sync, or was sent long ago."""
        sent_at = self._last_sent(spec)
        return not spec.lasting or sent_at is None or now - sent_at >= REPEAT_AFTER

    def _priority(self, spec: EventSpec) -> tuple[bool, timedelta]:
        """Return what to sort by: first what is critical, and what can be sent only now.

        Of these and of the others, first what was never sent, then what was sent longest ago.
        """
        can_wait = spec.lasting and spec.severity is not Severity.CRITICAL
        return can_wait, self._last_sent(spec) or timedelta.min

    def _last_sent(self, spec: EventSpec) -> timedelta | None:
        """Return when it was sent; None if never, or if it is more severe now."""
        sent = self._sent.get(spec.name)
        return sent.at if sent and sent.severity.rank >= spec.severity.rank else None

    def _send(self, spec: EventSpec, at: datetime, writer: "Writer") -> None:
        """Create or patch the Event; raises SourceError."""
        answer = self._create_or_patch(spec, at, writer)

        if len(self._counts) >= _CAPACITY:
            self._counts.clear()
        count = answer.get("count")
        self._counts[spec.name] = count if isinstance(count, int) else 1

    def _create_or_patch(
        self, spec: EventSpec, at: datetime, writer: "Writer"
    ) -> "Mapping[str, Any]":
        """Return the Event as the server has it now; raises SourceError.

        Refusals say which Events exist: the agent may not read them.
        """
        path = f"{spec.path}/{spec.name}"
        count = self._counts.get(spec.name)

        try:
            if count:
                return writer.patch(path, spec.changes(at, count + 1))
            return writer.create(spec.path, spec.event(at))
        except ApiError as error:
            if count and error.status == HTTPStatus.NOT_FOUND:  # it has expired
                return writer.create(spec.path, spec.event(at))

            # An earlier process of the agent created it.
            if not count and error.status == HTTPStatus.CONFLICT:
                return writer.patch(path, spec.changes(at, None))
            raise

"""Kubernetes Events of findings and releases: one Event each, patched for as long as it lasts."""

from datetime import datetime
from functools import partial
from http import HTTPStatus
from typing import Final

from agent.kube_events.delivery import DeliveryQueue, Failure, Kind, Message
from agent.kube_events.messages import EventSpec, RateLimiter, event_specs
from agent.kube_events.writer import Writer
from agent.model.report import Report
from agent.sources.kube.client import ApiError

_CAPACITY: Final = 1000


class EventExporter:
    """Queues what is due after each sync; never waits, never fails."""

    def __init__(self, queue: DeliveryQueue) -> None:
        self._queue, self._limiter = queue, RateLimiter()
        self._counts: dict[str, int] = {}
        """Of the Events that this process created or found. Belongs to the delivery thread."""

    def export(self, report: Report, seconds: float) -> None:  # noqa: ARG002 (a metric)
        snapshot = report.assessment.snapshot
        due, over_limit = self._limiter.due(event_specs(report), snapshot.uptime)
        for spec in due:
            self._queue.put(Message(Kind.EVENT, spec.reason, partial(self._send, spec, snapshot.taken_at)))
        if over_limit:
            self._queue.metrics.failed(Kind.EVENT, Failure.RATE_LIMITED, over_limit)

    def _send(self, spec: EventSpec, at: datetime, writer: Writer) -> None:
        """Create or patch the Event; raises SourceError. Refusals say which exist: the agent may not read Events."""
        event, path = spec.event(at), f"{spec.path}/{spec.name}"
        count = self._counts.get(spec.name)
        try:
            answer = writer.patch(path, spec.changes(at, count + 1)) if count else writer.create(spec.path, event)
        except ApiError as error:
            if count and error.status == HTTPStatus.NOT_FOUND:  # it has expired
                answer = writer.create(spec.path, event)
            elif not count and error.status == HTTPStatus.CONFLICT:  # an earlier process of the agent created it
                answer = writer.patch(path, spec.changes(at, None))
            else:
                raise
        if len(self._counts) >= _CAPACITY:
            self._counts.clear()
        found = answer.get("count")
        self._counts[spec.name] = found if isinstance(found, int) else 1

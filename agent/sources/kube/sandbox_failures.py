"""Why sandboxes of this node's pods could not be created or removed, from Events.

They are requested only while pods wait, or should be gone.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

from agent.checks.waiting.causes import RANGE_FULL
from agent.checks.waiting_pods import pods_to_list
from agent.model import catalog
from agent.model.snapshot import (
    CREATION_REASONS,
    FAILED_KILL,
    NotRequested,
    Pod,
    SandboxFailure,
    Snapshot,
)
from agent.model.text import escape, truncate
from agent.sources.json_tree import subobject, text_field
from agent.sources.kube.cached_request import CachedRequest, Get, OpenSession
from agent.sources.kube.errors import FORBIDDEN, ApiError
from agent.sources.kube.fields import Object, moment
from agent.sources.kube.pod_events import pod_events
from agent.sources.source import Source

CACHED_FOR: Final = 60.0
"""Seconds."""

_LONGEST_MESSAGE: Final = 300
_LONGEST_KIND: Final = 200
_REASONS: Final = (*CREATION_REASONS, FAILED_KILL)


class SandboxFailuresSource(Source):
    """Lists the Events of some pods, at most once a minute."""

    name = "sandbox_failures"

    def __init__(self, open_session: OpenSession, clock: Callable[[], float]) -> None:
        self._cached = CachedRequest[tuple[SandboxFailure, ...]](open_session, clock, CACHED_FOR)

    def reason_not_needed(self, snapshot: Snapshot) -> str | None:
        return None if pods_to_list(snapshot) else "no pod waits for its sandbox, or should be gone"

    def read(self, snapshot: Snapshot) -> tuple[SandboxFailure, ...] | NotRequested:
        """Return the last failures of these pods; raises SourceError.

        Without the right to list events they are not requested.
        """
        pods = pods_to_list(snapshot)

        def request(get: Get) -> tuple[SandboxFailure, ...]:
            return tuple(failure for pod in pods for failure in _last_failures(get, pod))

        try:
            return self._cached.get(request)
        except ApiError as error:
            if error.status != FORBIDDEN:
                raise
            return NotRequested("sandbox_failures", "the account may not list events")


def _last_failures(get: Get, pod: Pod) -> Iterator[SandboxFailure]:
    """Yield the last failure of each reason, in the order of their times.

    If the range is full now, what failed before is yielded too: it may have filled it.
    """
    items = json.loads(get(*pod_events(pod))).get("items") or []
    events = [event for event in items if event.get("reason") in _REASONS]
    failures = sorted((_failure(pod.name, event) for event in events), key=_time)

    kept = []
    for reason in _REASONS:
        of_reason = [failure for failure in failures if failure.reason == reason]
        kept += of_reason[-1:]
        if of_reason and of_reason[-1].exhausted:
            kept += [failure for failure in of_reason if not failure.exhausted][-1:]
    yield from sorted(kept, key=_time)


def _time(failure: SandboxFailure) -> float:
    """Return seconds since the epoch; 0: the time is unknown."""
    return failure.at.timestamp() if failure.at else 0.0


def _failure(pod: str, event: Object) -> SandboxFailure:
    # Which of these times and counts an Event has depends on the version that wrote it.
    series = subobject(event, "series")
    event_time = moment(event.get("eventTime"))
    first = (moment(event.get("firstTimestamp")), event_time)
    last = (moment(event.get("lastTimestamp")), event_time, moment(series.get("lastObservedTime")))
    count = max(_count(event.get("count")), _count(series.get("count")))

    text = text_field(event, "message")
    peeled = catalog.peel(text)
    entry = catalog.find(text)
    key = entry.key if entry else ""

    return SandboxFailure(
        pod=pod,
        at=max(filter(None, last), default=None),
        message=escape(truncate(peeled.words, _LONGEST_MESSAGE)),
        plugin=escape(peeled.plugin or ""),
        network=escape(peeled.network or ""),
        operation=peeled.operation or "",
        exhausted=escape(peeled.range_set or "") if key == RANGE_FULL else "",
        reason=str(event.get("reason")),
        count=count,
        first=min(filter(None, first), default=None),
        entry=key,
        kind=escape(truncate(catalog.without_variable_parts(text), _LONGEST_KIND)),
        requested_ip=escape(peeled.requested_ip or ""),
    )


def _count(value: Any) -> int:
    """Return how often it happened, as an Event says; 1 if it says nothing plausible."""
    return value if isinstance(value, int) and 0 < value < 2**31 else 1

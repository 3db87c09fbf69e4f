"""A timeline as the JSON document `nodeleak.timeline/v1`, for programs."""

from typing import Any, Final

from agent.exporters.timeline import Event, Timeline
from agent.model.text import rfc3339

_SCHEMA: Final = "nodeleak.timeline/v1"


def timeline_document(timeline: Timeline) -> dict[str, Any]:
    return {
        "schema": _SCHEMA,
        "node": timeline.node,
        "taken_at": rfc3339(timeline.taken_at),
        "events": [_event(event) for event in timeline.events],
        "undated_rejections": timeline.undated,
        "api_skew_seconds": None if timeline.api_skew is None else timeline.api_skew.total_seconds(),
        "warnings": list(timeline.warnings),
        "unavailable": [{"source": one.source, "why": one.why} for one in timeline.unavailable],
    }


def _event(event: Event) -> dict[str, Any]:
    return {
        "at": rfc3339(event.at, "milliseconds"),
        "exact": event.exact,
        "what": event.kind.value,
        "subject": event.subject,
        "text": event.text,
        "source": event.source,
    }

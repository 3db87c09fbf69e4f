"""A timeline as text, for people, and as the JSON document `nodeleak.timeline/v1`, for programs."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any, Final

from agent.exporters.json.scan import moment
from agent.exporters.text.scan import grid, lines_as_text
from agent.exporters.timeline import Event, Timeline

SCHEMA: Final = "nodeleak.timeline/v1"

_LONGEST_RUN = 12
"""How many events of one kind in a row are told one by one: a storm is hundreds."""
_SMALL_SKEW = timedelta(seconds=2)
"""What answers and roundings take; it is no clock that is wrong."""

_ABOUT: Final = "~ about then: when a look saw it first, or by the API server's clock; a leak: at the earliest."


def table(timeline: Timeline, since: str) -> str:
    """Draw a timeline. `since`: the span that was asked for, as it was written; empty: all there is."""
    return lines_as_text(_lines(timeline, since))


def _lines(timeline: Timeline, since: str) -> Iterator[str]:
    yield f"Node {timeline.node}, {moment(timeline.taken_at)}"
    yield ""
    if timeline.events:
        yield from grid([[" TIME (UTC)", "WHAT HAPPENED"], *_rows(timeline.events)])
    else:
        yield _nothing(timeline, since)
    if not all(event.exact for event in timeline.events):
        yield ""
        yield _ABOUT
    if timeline.api_skew is not None and abs(timeline.api_skew) > _SMALL_SKEW:
        seconds = timeline.api_skew.total_seconds()
        where = "ahead of" if seconds > 0 else "behind"
        yield f"The API server's clock is {abs(seconds):.0f} s {where} the node's: its times are told by the node's."
    if timeline.undated:
        yield ""
        yield f"Refused pods of which nothing says when: {timeline.undated} (nodeleak scan lists them)."
    if timeline.warnings:
        yield ""
        yield from (f"warning: {warning}" for warning in timeline.warnings)
    if timeline.unavailable:
        yield ""
        yield "Could not be read (what it would tell is missing above):"
        yield from (f"  {one.source}: {one.why}" for one in timeline.unavailable)


def _nothing(timeline: Timeline, since: str) -> str:
    when = f" in the last {since}" if since else ""
    so_far = "" if timeline.complete else ", as far as could be read"
    return f"Nothing is known to have happened{when}{so_far}."


def _rows(events: Sequence[Event]) -> Iterator[list[str]]:
    for what, run in groupby(events, key=lambda event: event.what):
        alike = list(run)
        yield from ([when(event), event.text] for event in alike[:_LONGEST_RUN])
        if (more := len(alike) - _LONGEST_RUN) > 0:
            yield [when(alike[-1]), f"… and {more} more {what.value} until here: -o json lists all"]


def when(event: Event) -> str:
    if event.exact:
        return f" {_spelled(event.at, 'milliseconds')}"
    return f"~{_spelled(event.at, 'seconds')}"


def _spelled(when: datetime, to_the: str) -> str:
    return when.astimezone(UTC).replace(tzinfo=None).isoformat(" ", to_the)


def document(timeline: Timeline) -> dict[str, Any]:
    """Draw a timeline in full."""
    return {
        "schema": SCHEMA,
        "node": timeline.node,
        "taken_at": moment(timeline.taken_at),
        "events": [_event(event) for event in timeline.events],
        "undated_rejections": timeline.undated,
        "api_skew_seconds": None if timeline.api_skew is None else timeline.api_skew.total_seconds(),
        "warnings": list(timeline.warnings),
        "unavailable": [{"source": one.source, "why": one.why} for one in timeline.unavailable],
    }


def _event(event: Event) -> dict[str, Any]:
    return {
        "at": event.at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "exact": event.exact,
        "what": event.what.value,
        "subject": event.subject,
        "text": event.text,
        "source": event.source,
    }

"""A timeline as text, for people."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Final

from agent.exporters.text.table import grid, lines_as_text
from agent.exporters.text.unavailable import by_reason
from agent.exporters.timeline import Event, Timeline
from agent.model.text import rfc3339

_LONGEST_RUN = 12
"""How many consecutive events of one kind are printed: hundreds of pods can be rejected at once."""
_SMALL_SKEW = timedelta(seconds=2)
"""Latency and rounding; a greater difference is a wrong clock."""

_APPROXIMATE: Final = (
    "~ approximate: when it was first seen, or by the API server's clock; of a leak, the earliest possible time."
)


def timeline_table(timeline: Timeline, since: str, *, verbose: bool = False) -> str:
    """Write a timeline. `since`: the requested duration as the user wrote it; empty: everything.

    `verbose`: every event on a line of its own.
    """
    return lines_as_text(_lines(timeline, since, verbose=verbose))


def _lines(timeline: Timeline, since: str, *, verbose: bool) -> Iterator[str]:
    yield f"Node {timeline.node}, {rfc3339(timeline.taken_at)}"
    yield ""
    if timeline.events:
        yield from grid([[" TIME (UTC)", "EVENT"], *_rows(timeline.events, verbose=verbose)])
    else:
        yield _no_events(timeline, since)
    if not all(event.exact for event in timeline.events):
        yield ""
        yield _APPROXIMATE
    if timeline.api_skew is not None and abs(timeline.api_skew) > _SMALL_SKEW:
        seconds = timeline.api_skew.total_seconds()
        where = "ahead of" if seconds > 0 else "behind"
        yield f"The API server's clock is {abs(seconds):.0f} s {where} the node's; its times above are converted."
    if timeline.undated:
        yield ""
        yield f"Rejected pods without a known time: {timeline.undated} (nodeleak scan lists them)."
    if timeline.warnings:
        yield ""
        yield from (f"warning: {warning}" for warning in timeline.warnings)
    if timeline.unavailable:
        yield ""
        yield "Unavailable (events of these sources are missing above):"
        yield from (f"  {line}" for line in by_reason(timeline.unavailable))


def _no_events(timeline: Timeline, since: str) -> str:
    when = f" in the last {since}" if since else ""
    return f"No events{when}{'' if timeline.complete else ' in the sources that could be read'}."


def _rows(events: Sequence[Event], *, verbose: bool) -> Iterator[list[str]]:
    for kind, run in groupby(events, key=lambda event: event.kind):
        alike = list(run)
        shown = alike if verbose else alike[:_LONGEST_RUN]
        yield from ([when(event), event.text] for event in shown)
        if more := len(alike) - len(shown):
            yield [when(alike[-1]), f"… and {more} more {kind.value} until this time: use -v to list all"]


def when(event: Event) -> str:
    if event.exact:
        return f" {_utc(event.at, 'milliseconds')}"
    return f"~{_utc(event.at, 'seconds')}"


def _utc(at: datetime, timespec: str) -> str:
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(" ", timespec)

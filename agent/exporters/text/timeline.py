"""A timeline as text, for people."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from itertools import groupby
from typing import Final

from agent.exporters.json import Document
from agent.exporters.rows import event_time
from agent.exporters.text.layout import as_text, by_reason, fill, fill_each, fill_labeled, section
from agent.model.text import format_age, join_names

_MAX_ALIKE: Final = 3
_MAX_RUN: Final = 12
"""How many of a run of events of one kind are printed in full: those alike, and all.

Hundreds of addresses can leak at once, and hundreds of pods can be rejected.
"""

_SMALL_SKEW: Final = 2
"""Seconds. Latency and rounding; a greater difference is a wrong clock."""

_APPROXIMATE: Final = (
    "~ approximate: when it was first seen, by the API server's clock, or a bound, as the event "
    "says."
)


@as_text
def timeline_table(
    timeline: Document,
    since: timedelta | None,
    *,
    verbose: bool = False,
    columns: int | None = None,
) -> Iterator[str]:
    """Write the document `nodeleak.timeline/v1`.

    `since`: the requested duration; None: everything. `verbose`: every event of a long run.
    """
    events = timeline["events"]
    yield f"Node {timeline['node']}, {timeline['taken_at']}"
    yield ""

    if events:
        yield from _table(list(_rows(events, verbose=verbose)), columns)
    else:
        when = "" if since is None else f" in the last {format_age(since)}"
        where = " in the sources that could be read" if timeline["unavailable"] else ""
        yield f"No events{when}{where}."

    if not all(event["exact"] for event in events):
        yield from section(fill(_APPROXIMATE, columns))

    skew = timeline["api_skew_seconds"] or 0
    if abs(skew) > _SMALL_SKEW:
        where = "ahead of" if skew > 0 else "behind"
        text = (
            f"The API server's clock is {abs(skew):.0f} s {where} the node's; its times above are "
            "converted."
        )
        yield from fill(text, columns)

    if undated := timeline["undated_rejections"]:
        yield ""
        yield f"Rejected pods without a known time: {undated} (nodeleak scan lists them)."

    yield from section(fill_labeled("warning", timeline["warnings"], columns))
    missing = fill_each(by_reason(timeline["unavailable"]), columns)
    yield from section(missing, "Unavailable (events of these sources are missing above):")


def _table(rows: Sequence[tuple[str, str]], columns: int | None) -> Iterator[str]:
    """`rows`: times with texts, which are broken within their column."""
    width = 2 + max(len(time) for time, _ in rows)
    yield f"{' TIME (UTC)':<{width}}EVENT"
    for time, text in rows:
        yield from fill(text, columns, first=f"{time:<{width}}", rest=" " * width)


def _rows(events: Sequence[Document], *, verbose: bool) -> Iterator[tuple[str, str]]:
    """Yield the time and the text of each event. Of a long run, the last row names the others."""
    for what, same in groupby(events, key=lambda event: event["what"]):
        run = list(same)
        shown, more = (run, []) if verbose else _shortened(run)
        for event in shown:
            yield _marked_time(event), event["text"]

        if more:
            subjects = join_names(list(dict.fromkeys(event["subject"] for event in more)))
            text = f"… and {len(more)} more {what} until this time: {subjects} (-v lists each)"
            yield _marked_time(run[-1]), text


def _shortened(run: Iterable[Document]) -> tuple[list[Document], list[Document]]:
    """Return the events that are printed in full, and those that are only named."""
    shown: list[Document] = []
    more: list[Document] = []
    counts: Counter[str] = Counter()

    for event in run:
        # Pods are rejected for different reasons. Leaks differ in their pods alone.
        reason = event["text"].replace(event["subject"], "") if event["what"] == "rejected" else ""
        counts[reason] += 1
        if counts[reason] <= _MAX_ALIKE and len(shown) < _MAX_RUN:
            shown.append(event)
        else:
            more.append(event)

    return shown, more


def _marked_time(event: Document) -> str:
    mark = " " if event["exact"] else "~"
    return f"{mark}{event_time(event)}"

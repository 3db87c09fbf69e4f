"""A timeline as text and as JSON."""

import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from agent.exporters.json.timeline import timeline_document
from agent.exporters.text.timeline import timeline_table
from agent.exporters.timeline import Event, EventKind, Timeline
from agent.model.snapshot import Unavailable
from tests.builders import NOW

HOUR = timedelta(hours=1)


def event(
    at: datetime = NOW - HOUR, *, exact: bool = True, kind: EventKind = EventKind.REGISTERED, text: str = "words"
) -> Event:
    return Event(at, exact, kind, "a.b/c", text, "device_plugins")


def timeline(*events: Event, **more: Any) -> Timeline:
    return Timeline("worker-1", NOW, events, **{"unavailable": (), **more})


def lines(text: Timeline, since: str = "") -> list[str]:
    return timeline_table(text, since).splitlines()


def test_each_event_is_a_line_with_its_time_to_the_millisecond() -> None:
    at = NOW - HOUR + timedelta(milliseconds=536)
    assert lines(timeline(event(at, text="a.b/c was registered"))) == [
        "Node worker-1, 2026-03-26T20:00:00Z",
        "",
        " TIME (UTC)               EVENT",
        " 2026-03-26 19:00:00.536  a.b/c was registered",
    ]


def test_an_approximate_time_is_marked_and_the_mark_is_explained() -> None:
    text = lines(timeline(event(), event(exact=False, kind=EventKind.REJECTED)))
    assert text[3].startswith(" 2026-03-26 19:00:00.000  ")
    assert text[4].startswith("~2026-03-26 19:00:00      ")
    assert text[-1].startswith("~ approximate")


def test_an_unused_mark_is_not_explained() -> None:
    assert "~" not in timeline_table(timeline(event()), "")


@pytest.mark.parametrize(
    ("since", "unavailable", "text"),
    [
        ("", (), "No events."),
        ("1h30m", (), "No events in the last 1h30m."),
        ("", (Unavailable("pods", "dark"),), "No events in the sources that could be read."),
    ],
)
def test_no_events(since: str, unavailable: tuple[Unavailable, ...], text: str) -> None:
    assert lines(timeline(unavailable=unavailable), since)[2] == text


def test_a_long_run_of_one_kind_is_cut_and_counted() -> None:
    storm = [event(NOW - HOUR + timedelta(seconds=n), kind=EventKind.REJECTED, exact=False) for n in range(500)]
    text = lines(timeline(*storm, event(NOW)))
    assert len(text) < 25
    assert "~2026-03-26 19:08:19      … and 488 more rejected until this time: use -v to list all" in text
    assert text[
        text.index("~2026-03-26 19:08:19      … and 488 more rejected until this time: use -v to list all") + 1
    ] == (" 2026-03-26 20:00:00.000  words")
    assert len(timeline_document(timeline(*storm))["events"]) == 500
    whole = timeline_table(timeline(*storm, event(NOW)), "", verbose=True).splitlines()
    assert len(whole) > 500
    assert not any("more rejected" in line for line in whole)


def test_unavailable_sources_and_damage_are_listed() -> None:
    text = lines(
        timeline(unavailable=(Unavailable("pods", "it gave no word"),), warnings=("journal: line 3",), undated=2)
    )
    assert "Unavailable (events of these sources are missing above):" in text
    assert "  pods: it gave no word" in text
    assert "warning: journal: line 3" in text
    assert "Rejected pods without a known time: 2 (nodeleak scan lists them)." in text


@pytest.mark.parametrize(("skew", "word"), [(90, "90 s ahead of"), (-90, "90 s behind")])
def test_a_wrong_clock_is_reported(skew: int, word: str) -> None:
    text = timeline_table(timeline(api_skew=timedelta(seconds=skew)), "")
    assert f"The API server's clock is {word} the node's" in text


def test_a_small_skew_is_not_reported() -> None:
    assert "clock" not in timeline_table(timeline(event(), api_skew=timedelta(seconds=1)), "")


def test_text_is_escaped() -> None:
    text = timeline_table(
        timeline(event(text="\x1b[2J\u202e\nrefused"), unavailable=(Unavailable("pods", "\x07"),)), ""
    )
    assert not {"\x1b", "\u202e", "\x07"} & set(text)
    assert len(text.splitlines()) == 7


def test_the_document_has_every_key() -> None:
    text = json.loads(
        json.dumps(
            timeline_document(
                timeline(
                    event(exact=False, text="it\x1b happened"),
                    undated=1,
                    warnings=("damage",),
                    unavailable=(Unavailable("pods", "dark"),),
                    api_skew=timedelta(milliseconds=-400),
                )
            ),
            allow_nan=False,
        )
    )
    assert text == {
        "schema": "nodeleak.timeline/v1",
        "node": "worker-1",
        "taken_at": "2026-03-26T20:00:00Z",
        "events": [
            {
                "at": "2026-03-26T19:00:00.000Z",
                "exact": False,
                "what": "registered",
                "subject": "a.b/c",
                "text": "it\x1b happened",
                "source": "device_plugins",
            }
        ],
        "undated_rejections": 1,
        "api_skew_seconds": -0.4,
        "warnings": ["damage"],
        "unavailable": [{"source": "pods", "why": "dark"}],
    }


def test_an_unknown_skew_is_null() -> None:
    assert timeline_document(timeline())["api_skew_seconds"] is None

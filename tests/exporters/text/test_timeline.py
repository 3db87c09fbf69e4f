"""A timeline for people and for programs."""

import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from agent.exporters.text.timeline import document, table
from agent.exporters.timeline import Event, Timeline, What
from agent.model.snapshot import Unavailable
from tests.builders import NOW

HOUR = timedelta(hours=1)


def event(at: datetime = NOW - HOUR, *, exact: bool = True, what: What = What.REGISTERED, text: str = "words") -> Event:
    return Event(at, exact, what, "a.b/c", text, "device_plugins")


def timeline(*events: Event, **more: Any) -> Timeline:
    return Timeline("worker-1", NOW, events, **{"unavailable": (), **more})


def lines(told: Timeline, since: str = "") -> list[str]:
    return table(told, since).splitlines()


def test_each_event_is_a_line_with_its_time_to_the_millisecond() -> None:
    at = NOW - HOUR + timedelta(milliseconds=536)
    assert lines(timeline(event(at, text="a.b/c was registered"))) == [
        "Node worker-1, 2026-03-26T20:00:00Z",
        "",
        " TIME (UTC)               WHAT HAPPENED",
        " 2026-03-26 19:00:00.536  a.b/c was registered",
    ]


def test_what_is_not_exact_has_its_sign_and_the_sign_is_explained() -> None:
    told = lines(timeline(event(), event(exact=False, what=What.REFUSED)))
    assert told[3].startswith(" 2026-03-26 19:00:00.000  ")
    assert told[4].startswith("~2026-03-26 19:00:00      ")
    assert told[-1].startswith("~ about then")


def test_a_sign_that_is_not_used_is_not_explained() -> None:
    assert "~" not in table(timeline(event()), "")


@pytest.mark.parametrize(
    ("since", "unavailable", "said"),
    [
        ("", (), "Nothing is known to have happened."),
        ("1h30m", (), "Nothing is known to have happened in the last 1h30m."),
        ("", (Unavailable("pods", "dark"),), "Nothing is known to have happened, as far as could be read."),
    ],
)
def test_nothing_is_said(since: str, unavailable: tuple[Unavailable, ...], said: str) -> None:
    assert lines(timeline(unavailable=unavailable), since)[2] == said


def test_a_storm_is_cut_and_says_how_much_of_it_there_is() -> None:
    storm = [event(NOW - HOUR + timedelta(seconds=n), what=What.REFUSED, exact=False) for n in range(500)]
    told = lines(timeline(*storm, event(NOW)))
    assert len(told) < 25
    assert "~2026-03-26 19:08:19      … and 488 more refused until here: -o json lists all" in told
    assert told[told.index("~2026-03-26 19:08:19      … and 488 more refused until here: -o json lists all") + 1] == (
        " 2026-03-26 20:00:00.000  words"
    )
    assert len(document(timeline(*storm))["events"]) == 500


def test_what_was_not_read_and_what_is_damaged_is_told() -> None:
    told = lines(
        timeline(unavailable=(Unavailable("pods", "it gave no word"),), warnings=("journal: line 3",), undated=2)
    )
    assert "Could not be read (what it would tell is missing above):" in told
    assert "  pods: it gave no word" in told
    assert "warning: journal: line 3" in told
    assert "Refused pods of which nothing says when: 2 (nodeleak scan lists them)." in told


@pytest.mark.parametrize(("skew", "word"), [(90, "90 s ahead of"), (-90, "90 s behind")])
def test_a_clock_that_is_wrong_is_told(skew: int, word: str) -> None:
    told = table(timeline(api_skew=timedelta(seconds=skew)), "")
    assert f"The API server's clock is {word} the node's" in told


def test_a_clock_that_is_right_is_not_told() -> None:
    assert "clock" not in table(timeline(event(), api_skew=timedelta(seconds=1)), "")


def test_a_name_cannot_steer_the_readers_terminal() -> None:
    told = table(timeline(event(text="\x1b[2J\u202e\nrefused"), unavailable=(Unavailable("pods", "\x07"),)), "")
    assert not {"\x1b", "\u202e", "\x07"} & set(told)
    assert len(told.splitlines()) == 7


def test_programs_are_told_everything_in_closed_keys() -> None:
    told = json.loads(
        json.dumps(
            document(
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
    assert told == {
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


def test_a_skew_that_is_not_known_is_null() -> None:
    assert document(timeline())["api_skew_seconds"] is None

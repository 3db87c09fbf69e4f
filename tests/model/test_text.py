"""Names, numbers and times as every output writes them."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.text import count_of, escape, format_age, format_number, rfc3339, truncate


@pytest.mark.parametrize(
    ("text", "escaped"),
    [("zürich", "zürich"), ("\x1b[2J", "\\x1b[2J"), ("a\n\u202eb", "a\\n\\u202eb"), ("é\udcff", "é\\udcff"), ("", "")],
)
def test_only_unprintable_characters_are_escaped(text: str, escaped: str) -> None:
    assert escape(text) == escaped


@given(st.text(st.characters(exclude_categories=())))
def test_escaped_text_is_printable_and_escaping_it_again_changes_nothing(text: str) -> None:
    escaped = escape(text)
    assert escaped.isprintable()
    assert escape(escaped) == escaped


def test_an_external_message_is_one_line_of_bounded_length() -> None:
    assert truncate("<html>\n  <body>") == "<html> <body>"
    assert truncate("x" * 300) == "x" * 197 + "..."


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (datetime(2026, 3, 26, 20, 0, 0, 999999, tzinfo=UTC), "2026-03-26T20:00:00Z"),
        (datetime(2026, 3, 26, 20, 0, tzinfo=timezone(timedelta(hours=8))), "2026-03-26T12:00:00Z"),
    ],
)
def test_times_are_utc_to_the_second(at: datetime, text: str) -> None:
    assert rfc3339(at) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59, "59s"), (60, "1m"), (90, "1m30s"), (600, "10m"), (7200, "2h"), (93600, "1d2h"), (-90, "-1m30s"),
     (86400 * 41, "41d")],
)  # fmt: skip
def test_ages_have_one_or_two_units(seconds: int, text: str) -> None:
    assert format_age(timedelta(seconds=seconds)) == text


def test_numbers_are_readable_and_unknown_is_not_zero() -> None:
    assert [format_number(number) for number in (None, 0, 65534, 2**64)] == ["?", "0", "65,534", "1.8e+19"]
    assert [count_of(1, "pod"), count_of(2, "pod"), count_of(0, "address", "addresses")] == [
        "1 pod", "2 pods", "0 addresses",
    ]  # fmt: skip

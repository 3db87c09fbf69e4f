"""Names and times as every output writes them."""

from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from agent.model.text import escape, format_time, rfc3339


def test_only_unprintable_characters_are_escaped() -> None:
    for text, escaped in (
        ("zürich", "zürich"), ("\x1b[2J", "\\x1b[2J"), ("a\n\u202eb", "a\\n\\u202eb"), ("é\udcff", "é\\udcff"),
        ("", ""),
    ):  # fmt: skip
        assert escape(text) == escaped


@given(st.text(st.characters(exclude_categories=())))
def test_escaped_text_is_printable_and_escaping_it_again_changes_nothing(text: str) -> None:
    escaped = escape(text)
    assert escaped.isprintable()
    assert escape(escaped) == escaped


def test_times_are_utc_to_the_second() -> None:
    for at, text in (
        (datetime(2026, 3, 26, 20, 0, 0, 999999, tzinfo=UTC), "2026-03-26T20:00:00Z"),
        (datetime(2026, 3, 26, 20, 0, tzinfo=timezone(timedelta(hours=8))), "2026-03-26T12:00:00Z"),
    ):
        assert rfc3339(at) == text


def test_a_year_has_four_digits_with_every_python() -> None:
    assert format_time(datetime(1, 1, 1, tzinfo=UTC)) == "0001-01-01 00:00:00Z"

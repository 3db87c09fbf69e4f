"""A bound for a whole answer, however it drips."""

from threading import Event

import pytest

from agent.sources.deadline import Deadline
from agent.sources.unavailable import Unavailable


def test_an_answer_in_time_is_the_answer() -> None:
    assert Deadline("docker", 5.0)(lambda: (1, 2)) == (1, 2)


def test_what_reading_raises_is_raised() -> None:
    def refused() -> None:
        raise Unavailable("docker: refused")

    with pytest.raises(Unavailable, match="refused"):
        Deadline("docker", 5.0)(refused)


def test_an_answer_that_never_ends_is_unread_and_not_asked_for_twice() -> None:
    enough, asked = Event(), []

    def dripping() -> str:
        asked.append(1)
        enough.wait(10)
        return "late"

    deadline = Deadline("docker", 0.05)
    with pytest.raises(Unavailable, match=r"docker: no whole answer within 0\.05 s"):
        deadline(dripping)
    with pytest.raises(Unavailable, match="has not finished an earlier answer"):
        deadline(dripping)
    assert asked == [1]
    enough.set()

"""A deadline of a program that has no sources."""

from threading import Event

import pytest

from agent.deadline import Deadline


def test_a_late_response_is_an_error_of_its_own_kind_and_the_next_call_waits_for_it() -> None:
    release = Event()
    in_time = Deadline("Prometheus", 0.1)
    try:
        with pytest.raises(TimeoutError, match=r"^Prometheus: no complete response within 0\.1 s$"):
            in_time(release.wait)
        with pytest.raises(TimeoutError, match="still waiting for an earlier response"):
            in_time(release.wait)
    finally:
        release.set()

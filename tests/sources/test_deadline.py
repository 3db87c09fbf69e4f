"""A deadline for a complete answer, even if it arrives slowly."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

import pytest

from agent.sources.deadline import Deadline
from agent.sources.source_error import SourceError
from tests.wire import until


def test_an_answer_in_time_is_returned() -> None:
    assert Deadline("docker", 5.0)(lambda: (1, 2)) == (1, 2)


def test_an_exception_of_the_reader_is_raised() -> None:
    def refused() -> None:
        raise SourceError("docker: refused")

    with pytest.raises(SourceError, match="refused"):
        Deadline("docker", 5.0)(refused)


def test_a_reader_that_never_ends_is_unavailable_and_not_called_twice() -> None:
    enough, asked = Event(), []

    def dripping() -> str:
        asked.append(1)
        enough.wait(10)
        return "late"

    deadline = Deadline("docker", 0.05)
    with pytest.raises(SourceError, match=r"docker: no complete response within 0\.05 s"):
        deadline(dripping)
    with pytest.raises(SourceError, match="still waiting for an earlier response"):
        deadline(dripping)
    assert asked == [1]
    enough.set()


def second_answer(deadline: Deadline) -> str:
    """Ask again until there is an answer."""
    answers: list[str] = []

    def answered() -> bool:
        with contextlib.suppress(SourceError):
            answers.append(deadline(lambda: "second"))
        return bool(answers)

    until(answered, "it is asked again")
    return answers[0]


@pytest.mark.parametrize("fails", [False, True])
def test_a_late_answer_or_failure_is_never_that_to_another_request(fails: bool) -> None:
    """`Is there this container?` must not be answered with what was said of another."""
    enough, gone = Event(), Event()

    def late() -> str:
        enough.wait(10)
        gone.set()
        if fails:
            raise ValueError("of the first")
        return "first"

    deadline = Deadline("docker", 0.05)
    with pytest.raises(SourceError, match="no complete response"):
        deadline(late)
    with pytest.raises(SourceError, match="still waiting for an earlier"):
        deadline(lambda: "second")
    enough.set()
    assert gone.wait(10)
    assert second_answer(deadline) == "second"


def test_after_a_signal_the_answer_of_the_first_is_never_that_of_another_request() -> None:
    enough, deadline = Event(), Deadline("docker", 10)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            deadline(lambda: enough.wait(10))
    finally:
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(SourceError, match="still waiting for an earlier response"):
        deadline(lambda: "second")
    enough.set()
    assert second_answer(deadline) == "second"


@contextmanager
def no_thread_can_start() -> Iterator[None]:
    """As where the memory is used up: the kernel has none for its stack."""
    before = threading.stack_size(1 << 60)
    try:
        yield
    finally:
        threading.stack_size(before)


def test_a_thread_that_cannot_start_is_reported_and_tried_again() -> None:
    deadline = Deadline("docker", 5.0)
    with no_thread_can_start(), pytest.raises(SourceError, match=r"cannot start a thread \(.*\): no memory"):
        deadline(lambda: 1)
    assert deadline(lambda: 1) == 1


def test_an_exception_that_ends_a_thread_is_raised_in_the_caller() -> None:
    def ends() -> None:
        raise SystemExit(3)

    deadline = Deadline("docker", 5.0)
    with pytest.raises(SystemExit):
        deadline(ends)
    assert deadline(lambda: 1) == 1

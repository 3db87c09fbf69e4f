"""A deadline for a complete answer, even if it arrives slowly."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, current_thread

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


def test_a_late_answer_is_never_returned_for_another_request() -> None:
    """`Is there this container?` must not be answered with what was said of another."""
    enough, gone = Event(), Event()

    def late() -> bool:
        enough.wait(10)
        gone.set()
        return False

    deadline = Deadline("docker", 0.05)
    with pytest.raises(SourceError, match="no complete response"):
        deadline(late)
    with pytest.raises(SourceError, match="still waiting for an earlier"):
        deadline(lambda: True)
    enough.set()
    assert gone.wait(10)
    answers: list[bool] = []

    def answered() -> bool:
        try:
            answers.append(deadline(lambda: True))
        except SourceError:
            return False
        return True

    until(answered, "it is asked again")
    assert answers == [True]


def test_a_late_failure_is_never_raised_for_another_request() -> None:
    enough = Event()

    def late() -> None:
        enough.wait(10)
        raise ValueError("of the first")

    deadline = Deadline("docker", 0.05)
    with pytest.raises(SourceError):
        deadline(late)
    enough.set()

    def answered() -> bool:
        try:
            return deadline(lambda: True)
        except SourceError:
            return False

    until(answered, "it is asked again")


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

    def answered() -> str:
        try:
            return deadline(lambda: "third")
        except SourceError:
            return ""

    until(lambda: answered() == "third", "it is asked again")


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


def test_all_reads_run_in_one_other_thread() -> None:
    deadline = Deadline("docker", 5.0)
    threads = {deadline(current_thread) for _ in range(3)}
    assert len(threads) == 1
    (thread,) = threads
    assert (thread.name, thread.daemon, thread is current_thread()) == ("docker", True, False)


def test_an_exception_that_ends_a_thread_is_raised_in_the_caller() -> None:
    def ends() -> None:
        raise SystemExit(3)

    deadline = Deadline("docker", 5.0)
    with pytest.raises(SystemExit):
        deadline(ends)
    assert deadline(lambda: 1) == 1, "the thread is still there"

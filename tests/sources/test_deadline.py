"""A deadline for a complete answer, even if it arrives slowly."""

import contextlib
import signal
import threading
from threading import Event

import pytest

from agent.sources.deadline import Deadline
from agent.sources.source_error import SourceError
from tests.wire import until


def test_an_answer_in_time_is_returned_and_an_exception_or_a_thread_that_cannot_start_reported() -> (
    None
):
    def refuse() -> None:
        raise SourceError("docker: refused")

    def end() -> None:
        raise SystemExit(3)

    deadline = Deadline("docker", 5.0)
    for question, expected in ((refuse, SourceError), (end, SystemExit)):
        with pytest.raises(expected):
            deadline(question)
    assert deadline(lambda: (1, 2)) == (1, 2)
    before = threading.stack_size(
        1 << 60
    )  # as where the memory is used up: the kernel has none for its stack
    try:
        with pytest.raises(SourceError, match=r"cannot start a thread \(.*\): no memory"):
            deadline(lambda: 1)
    finally:
        threading.stack_size(before)
    assert deadline(lambda: 1) == 1


def second_answer(deadline: Deadline) -> str:
    """Ask again until there is an answer."""
    answers: list[str] = []

    def answered() -> bool:
        with contextlib.suppress(SourceError):
            answers.append(deadline(lambda: "second"))
        return bool(answers)

    until(answered, "it is asked again")
    return answers[0]


def test_a_late_answer_or_failure_is_never_that_to_another_question() -> None:
    """`Is there this container?` must not be answered with what was said of another."""
    for failure in (None, ValueError("of the first")):
        enough, gone, asked = Event(), Event(), list[str]()

        def late(
            enough: Event = enough, gone: Event = gone, failure: Exception | None = failure
        ) -> str:
            enough.wait(10)
            gone.set()
            if failure:
                raise failure
            return "first"

        deadline = Deadline("docker", 0.05)
        with pytest.raises(SourceError, match=r"docker: no complete response within 0\.05 s"):
            deadline(late)
        with pytest.raises(SourceError, match="still waiting for an earlier response"):
            deadline(lambda asked=asked: asked.append("too early"))  # type: ignore[misc]
        enough.set()
        assert gone.wait(10)
        assert (second_answer(deadline), asked) == ("second", [])
    # Nor is one to a question that a signal ended.
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

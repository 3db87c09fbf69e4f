"""A time limit for a whole answer. Libraries limit each read, so an occasional byte can keep them waiting forever."""

from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Lock, Thread
from typing import Any, TypeVar

from agent.sources.source_error import SourceError

_T = TypeVar("_T")


class Late(SourceError):
    """There is no answer in time, or an earlier answer has not come yet."""


class Deadline:
    """Asks one question at a time, each in a thread of its own. Any thread may ask."""

    def __init__(self, what: str, seconds: float) -> None:
        self._what, self._seconds = what, seconds
        self._last: Future[Any] | None = None
        self._asking = Lock()

    def __call__(self, question: Callable[[], _T]) -> _T:
        """Ask; raises Late if the answer is late, and whatever the question raises."""
        with self._asking:
            if self._last and not self._last.done():
                raise Late(f"{self._what}: still waiting for an earlier response")
            answer = in_thread(self._what, question)
            self._last = answer
            wait([answer], self._seconds)
            if answer.done():
                self._last = None  # an exception has a traceback, which would keep what was asked
        if not answer.done():
            raise Late(f"{self._what}: no complete response within {self._seconds:g} s")
        return answer.result()


def in_thread(what: str, question: Callable[[], _T]) -> Future[_T]:
    """Ask in a new thread, which does not keep the process alive; raises SourceError."""
    answer = Future[_T]()
    thread = Thread(target=_answer, args=(question, answer), name=what, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        why = "no memory is left, or no process (pids.max)"
        raise SourceError(f"cannot start a thread ({error}): {why}") from error
    return answer


def _answer(question: Callable[[], _T], answer: "Future[_T]") -> None:
    try:
        answer.set_result(question())
    except BaseException as error:  # noqa: BLE001 (it is raised in the asking thread)
        answer.set_exception(error)
    finally:
        del question, answer  # a failure has a traceback with this frame, which would keep itself

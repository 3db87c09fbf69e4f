"""A time limit for a whole answer. Libraries limit each read, so an occasional byte can keep them waiting forever."""

from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, NoReturn, TypeVar

from agent.sources.source_error import SourceError

_T = TypeVar("_T")


def start(thread: Thread) -> None:
    """Start a thread; raises SourceError if the system refuses."""
    try:
        thread.start()
    except RuntimeError as error:
        raise SourceError(f"cannot start a thread ({error}): no memory is left, or no process (pids.max)") from error


class Late(SourceError):
    """There is no answer in time, or an earlier one has not come yet."""


class Deadline:
    """Runs questions in one thread of its own, and waits for each answer for a limited time. Any thread may ask."""

    def __init__(self, what: str, seconds: float) -> None:
        self._what, self._seconds = what, seconds
        self._questions: SimpleQueue[Callable[[], Any]] = SimpleQueue()
        self._answers: SimpleQueue[Callable[[], Any]] = SimpleQueue()
        self._thread: Thread | None = None
        self._late, self._asking = False, Lock()

    def __call__(self, question: Callable[[], _T]) -> _T:
        """Ask; raises Late if the answer is late, and whatever the question raises."""
        with self._asking:
            answer = self._ask(question)
        return answer()

    def _ask(self, question: Callable[[], _T]) -> Callable[[], _T]:
        self._discard_late_answer()
        if self._thread is None:
            thread = Thread(target=self._answer, name=self._what, daemon=True)
            start(thread)
            self._thread = thread
        self._questions.put(question)
        try:
            return self._answers.get(timeout=self._seconds)
        except Empty:
            self._late = True
            raise Late(f"{self._what}: no complete response within {self._seconds:g} s") from None
        except BaseException:  # a signal: the answer to this question is still to come, and is not that to the next
            self._late = True
            raise

    def _discard_late_answer(self) -> None:
        if not self._late:
            return
        try:
            self._answers.get_nowait()
        except Empty:
            raise Late(f"{self._what}: still waiting for an earlier response") from None
        self._late = False

    def _answer(self) -> None:
        while True:
            question = self._questions.get()
            try:
                answer = question()
            except BaseException as error:  # noqa: BLE001 (it is raised in the asking thread)
                self._answers.put(raising(error))
            else:
                self._answers.put(_returning(answer))


def raising(error: BaseException) -> Callable[[], NoReturn]:
    traceback = error.__traceback__

    def answer() -> NoReturn:
        raise error.with_traceback(traceback)  # or it would grow with each call

    return answer


def _returning(value: _T) -> Callable[[], _T]:
    return lambda: value

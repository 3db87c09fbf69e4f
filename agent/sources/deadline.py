"""A bound for a whole answer: libraries bound each read of it, so that a byte now and then holds them for ever."""

from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, NoReturn, TypeVar

from agent.sources.error import SourceError

T = TypeVar("T")


class Deadline:
    """Asks in a thread of its own, always the same, and waits for the answer no longer than agreed."""

    def __init__(self, what: str, seconds: float) -> None:
        self._what, self._seconds = what, seconds
        self._questions: SimpleQueue[Callable[[], Any]] = SimpleQueue()
        self._answers: SimpleQueue[Callable[[], Any]] = SimpleQueue()
        self._thread: Thread | None = None
        self._late = False

    def __call__(self, question: Callable[[], T]) -> T:
        """Ask; raises Unavailable where the answer is late, and whatever asking raises."""
        self._pass_over_late_answer()
        if self._thread is None:
            self._thread = Thread(target=self._answer, name=self._what, daemon=True)
            self._thread.start()
        self._questions.put(question)
        try:
            answer: Callable[[], T] = self._answers.get(timeout=self._seconds)
        except Empty:
            self._late = True
            raise SourceError(f"{self._what}: no whole answer within {self._seconds:g} s") from None
        return answer()

    def _pass_over_late_answer(self) -> None:
        if not self._late:
            return
        try:
            self._answers.get_nowait()
        except Empty:
            raise SourceError(f"{self._what}: it has not finished an earlier answer") from None
        self._late = False

    def _answer(self) -> None:
        while True:
            question = self._questions.get()
            try:
                answer = question()
            except BaseException as error:  # noqa: BLE001 (it is raised where it was asked for)
                self._answers.put(_raising(error))
            else:
                self._answers.put(_returning(answer))


def _raising(error: BaseException) -> Callable[[], NoReturn]:
    def answer() -> NoReturn:
        raise error

    return answer


def _returning(value: T) -> Callable[[], T]:
    return lambda: value

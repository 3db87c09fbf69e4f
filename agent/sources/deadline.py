"""A bound for a whole answer: libraries bound each read of it, so that a byte now and then holds them for ever."""

from collections.abc import Callable
from threading import Thread
from typing import Generic, TypeVar

from agent.sources.unavailable import Unavailable

T = TypeVar("T")


class Deadline(Generic[T]):
    """Reads in a thread of its own, and waits for it no longer than agreed. One answer is awaited at a time."""

    def __init__(self, what: str, read: Callable[[], T], seconds: float) -> None:
        self._what, self._read, self._seconds = what, read, seconds
        self._under_way: Thread | None = None

    def __call__(self) -> T:
        """Read; raises Unavailable where the answer is late, and whatever reading raises."""
        if self._under_way is not None and self._under_way.is_alive():
            raise Unavailable(f"{self._what}: it has not finished an earlier answer")
        answers: list[T | BaseException] = []
        self._under_way = Thread(target=self._keep_answer, args=(answers,), name=self._what, daemon=True)
        self._under_way.start()
        self._under_way.join(self._seconds)
        if not answers:
            raise Unavailable(f"{self._what}: no whole answer within {self._seconds:g} s")
        if isinstance(answers[0], BaseException):
            raise answers[0]
        return answers[0]

    def _keep_answer(self, answers: list[T | BaseException]) -> None:
        try:
            answers.append(self._read())
        except BaseException as error:  # noqa: BLE001 (it is raised again where it was asked for)
            answers.append(error)

"""One answer, or the failure to get one, kept for a while."""

from collections.abc import Callable
from typing import Generic, TypeVar

from agent.sources.deadline import raising
from agent.sources.source_error import SourceError

_T = TypeVar("_T")


class TTLCache(Generic[_T]):
    """The last answer to one kind of question. A failure is kept too: asking again takes time."""

    def __init__(self, clock: Callable[[], float], seconds: float, failure_seconds: float | None = None) -> None:
        """`clock`: seconds, never jumping. `failure_seconds`: for how long a failure is kept, if not as an answer."""
        self._clock, self._seconds = clock, seconds
        self._failure_seconds = seconds if failure_seconds is None else failure_seconds
        self._expires: float | None = None
        self._about: frozenset[str] = frozenset()
        self._answer: Callable[[], _T] | None = None

    def get(self, ask: Callable[[], _T], about: frozenset[str] = frozenset()) -> _T:
        """Return the kept answer, or ask; raises SourceError.

        `about`: the subjects of the question. An answer about more subjects is an answer too.
        """
        now = self._clock()
        if self._answer is None or self._expires is None or now >= self._expires or not about <= self._about:
            self._answer, seconds = self._asked(ask)
            self._expires, self._about = now + seconds, about
        return self._answer()

    def _asked(self, ask: Callable[[], _T]) -> tuple[Callable[[], _T], float]:
        try:
            answer = ask()
        except SourceError as error:
            return raising(error), self._failure_seconds
        return lambda: answer, self._seconds

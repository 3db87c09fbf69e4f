"""One answer, or the failure to get one, kept for a while."""

from collections.abc import Callable
from typing import Generic, TypeVar

from agent.sources.source_error import SourceError

_T = TypeVar("_T")


class TTLCache(Generic[_T]):
    """The last answer to one kind of question. A failure is kept too: asking again takes time."""

    def __init__(self, clock: Callable[[], float], seconds: float, failure_seconds: float | None = None) -> None:
        """`clock`: seconds, never jumping. `failure_seconds`: for how long a failure is kept, if not as an answer."""
        self._clock, self._seconds = clock, seconds
        self._failure_seconds = seconds if failure_seconds is None else failure_seconds
        self._kept: tuple[float, frozenset[str], _T | SourceError] | None = None
        """Until when, about which subjects, and what."""

    def get(self, ask: Callable[[], _T], about: frozenset[str] = frozenset()) -> _T:
        """Return the kept answer, or ask; raises SourceError.

        `about`: the subjects of the question. An answer about more subjects is an answer too.
        """
        now = self._clock()
        if self._kept is None or now >= self._kept[0] or not about <= self._kept[1]:
            try:
                self._kept = now + self._seconds, about, ask()
            except SourceError as error:
                self._kept = now + self._failure_seconds, about, error
        answer = self._kept[2]
        if isinstance(answer, SourceError):
            raise answer.with_traceback(None)  # or it would grow with each call
        return answer

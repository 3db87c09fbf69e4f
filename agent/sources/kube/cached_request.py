"""What the API server is asked for a reason only: one answer, or the failure to get one, is kept for a while."""

from collections.abc import Callable
from typing import Generic, TypeVar

from agent.sources.kube.client import Get, Inquire
from agent.sources.kube.fields import parsing
from agent.sources.source_error import SourceError

_T = TypeVar("_T")


class CachedRequest(Generic[_T]):
    """The last answer to one kind of request. A failure is kept too: each attempt may take long."""

    def __init__(
        self, inquire: Inquire, clock: Callable[[], float], seconds: float, failure_seconds: float | None = None
    ) -> None:
        """`clock`: seconds, never jumping. `failure_seconds`: for how long a failure is kept, if not as an answer."""
        self._inquire, self._clock, self._seconds = inquire, clock, seconds
        self._failure_seconds = seconds if failure_seconds is None else failure_seconds
        self._kept: tuple[float, frozenset[str], _T | SourceError] | None = None
        """Until when, about which subjects, and what."""

    def get(self, read: Callable[[Get], _T], subjects: frozenset[str] = frozenset()) -> _T:
        """Return the kept answer, or read it; raises SourceError.

        `subjects`: what the request is about. An answer about more subjects is an answer too.
        """
        now = self._clock()
        if self._kept is None or now >= self._kept[0] or not subjects <= self._kept[1]:
            try:
                with self._inquire() as get, parsing("malformed object"):
                    self._kept = now + self._seconds, subjects, read(get)
            except SourceError as error:
                self._kept = now + self._failure_seconds, subjects, error
        answer = self._kept[2]
        if isinstance(answer, SourceError):
            raise answer.with_traceback(None)  # or it would grow with each call
        return answer

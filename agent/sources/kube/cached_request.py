"""Requests that are made for a reason only, and their last answer."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from agent.sources.kube.connection import Query
from agent.sources.kube.fields import parsing
from agent.sources.source_error import SourceError

_T = TypeVar("_T")

Get: TypeAlias = Callable[[str, Query], bytes]
"""Returns the body for a path and a query; raises SourceError, also ApiError."""
OpenSession: TypeAlias = Callable[[], AbstractContextManager[Get]]
"""Opens a connection for the requests of one snapshot."""

_LONGEST_FAILURE: Final = 120.0
"""Seconds for which a failure is cached at most: a node that is not registered has a quarter of an
hour."""


class _Cached(NamedTuple, Generic[_T]):
    """A result, with the time until which it counts."""

    until: float
    subjects: frozenset[str]
    result: _T | SourceError


@dataclass
class CachedRequest(Generic[_T]):
    """Caches one result for some seconds. It may be a failure: each may take long."""

    open_session: OpenSession
    clock: Callable[[], float]
    """Returns seconds, never jumping."""
    seconds: float
    """For how long a result is cached."""
    _cached: _Cached[_T] | None = None

    def get(self, read: Callable[[Get], _T], subjects: frozenset[str] = frozenset()) -> _T:
        """Return the cached result, or that of `read`; raises SourceError.

        `subjects`: what it has to be about. A cached result may be about more.
        """
        now = self.clock()
        cached = self._cached
        if cached is None or now >= cached.until or not subjects <= cached.subjects:
            cached = self._cached = self._read(read, subjects, now)

        if isinstance(cached.result, SourceError):
            raise cached.result.with_traceback(None)  # or it would grow with each call
        return cached.result

    def _read(self, read: Callable[[Get], _T], subjects: frozenset[str], now: float) -> _Cached[_T]:
        try:
            with self.open_session() as get, parsing("malformed object"):
                return _Cached(now + self.seconds, subjects, read(get))
        except SourceError as error:
            return _Cached(now + min(self.seconds, _LONGEST_FAILURE), subjects, error)

"""list + watch of one resource, in a thread of its own.

The watch starts at the list's version and requests bookmarks. It never adopts a lower version, and lists again only if
the server says that the version has expired, or etcd was restored from a backup. Without an event or bookmark for too
long, the resource is unavailable. Evidence of a server that sends old versions is reported, and they are ignored.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from threading import Event
from typing import Any, Generic, TypeVar

from agent.model.snapshot import Known, Reading, Unavailable
from agent.sources.kube.client import Api, ApiError, Query, list_all
from agent.sources.kube.etcd_restore import RestoreDetector
from agent.sources.kube.replica import (
    UNWATCHABLE,
    Expired,
    MalformedAnswer,
    OnEvidence,
    Regressed,
    Replica,
    ignore_evidence,
)
from agent.sources.source_error import SourceError

_T = TypeVar("_T")

_BACKOFF = (0.5, 15.0)
"""Seconds: the shortest and the longest wait after a failure. It does not begin short and grow: behind a load balancer
the first attempt succeeds, and the agents of all nodes make it after the same event."""

_SPREAD = 30.0
"""Seconds: all agents notice a restored etcd at about the same time, and list within so long."""

_SERVER_ERROR = 500
_RESTORED = "API server: versions went back: etcd was restored from a backup; listing again"


class Restored(SourceError):
    """Etcd was restored from a backup: what was received before no longer counts."""


def list_once(api: Api, path: str, query: Query, parse: Callable[[Mapping[str, Any]], _T]) -> tuple[_T, ...]:
    """List a resource without watching it, read through to etcd; raises SourceError."""
    replica = Replica(parse)
    with list_all(api, path, query) as (version, items):
        replica.replace(version, items, consistent=True)
    return replica.items()


class RestartCause(StrEnum):
    """Why a watch was started again."""

    ENDED = "ended"
    """The server ended it, as it regularly does."""
    EXPIRED = "expired"
    """The server no longer had its version: a list followed."""
    REGRESSED = "regressed"
    """The server listed an older version than before, or sent an event for a deleted object."""
    RESTORED = "restored"
    """Etcd was restored from a backup: a list followed."""
    REFUSED = "refused"
    """The server answered with an error."""
    BROKEN = "broken"
    """The connection failed, or carried something other than a watch."""


@dataclass(frozen=True, slots=True)
class _Held(Generic[_T]):
    """What the thread publishes: replaced whole, never changed."""

    items: tuple[_T, ...] | None
    heard_at: float
    trouble: str


class Reflector(Generic[_T]):
    """A watched resource. `run` belongs to one thread; `reading` may be called from any."""

    def __init__(
        self,
        source: str,
        connect: Callable[[], Api],
        path: str,
        query: Query,
        parse: Callable[[Mapping[str, Any]], _T],
        *,
        clock: Callable[[], float],
        stale_after: float,
        restores: RestoreDetector,
        on_evidence: OnEvidence = ignore_evidence,
        on_connect: Callable[[Api], None] = lambda _: None,
    ) -> None:
        """`clock`: seconds, never jumping. `stale_after`: seconds of silence after which the resource is unavailable.

        `restores`: shared by all reflectors of an API server, so that one question serves them all.
        `on_evidence`: called with evidence that the server sends old versions. `on_connect`: called once for each
        connection, as soon as the server has answered on it.
        """
        self.source = source
        self.restarts: Counter[RestartCause] = Counter(dict.fromkeys(RestartCause, 0))
        """How often the watch was started again, by cause."""
        self.answered = Event()
        """Set when the first list was read, or failed."""
        self._connect, self._path, self._query = connect, path, tuple(query)
        self._replica = Replica(parse, on_evidence)
        self._clock, self._stale_after, self._on_connect = clock, stale_after, on_connect
        self._held: _Held[_T] = _Held(None, clock(), "the API server has not answered yet")
        self._api: Api | None = None
        self._on_connect_due = True
        # As client-go: any version first ("0"), then nothing older than the current one, then, if the server refuses,
        # read through to etcd (""). None: no list is due.
        self._list_from: str | None = "0"
        self._restores, self._restore = restores, restores.last

    @property
    def regressions(self) -> int:
        """How often the server sent a version older than one before."""
        return self._replica.regressions

    def reading(self) -> Reading[tuple[_T, ...]]:
        """Return the current state."""
        held, now = self._held, self._clock()
        if self._restore is not self._restores.last:
            return Unavailable(self.source, _RESTORED)
        if held.items is None:
            return Unavailable(self.source, held.trouble)
        if (silence := now - held.heard_at) > self._stale_after:
            return Unavailable(self.source, f"no event for {silence:.0f} s: {held.trouble or 'the watch is silent'}")
        return Known(held.items)

    def run(self, stop: Event) -> None:
        """List and watch until told to stop."""
        longest = min(_BACKOFF[1], self._stale_after / 8)  # a break of the connection must not make data unavailable
        shortest = min(_BACKOFF[0], longest)
        while not stop.is_set():
            # Watches last for random times, so the wait after one that was not disturbed need not be long.
            between = (0, shortest) if self._watch_once(stop) else (shortest, longest)
            stop.wait(random.uniform(*between))  # noqa: S311 (spreads load, keeps no secret)

    def _watch_once(self, stop: Event) -> bool:
        """List if due, and watch until the watch ends; returns whether to go on at once."""
        try:
            self._start_over_if_restored(stop)
            self._list_if_due()
            in_due_time = self._watch()
        except SourceError as error:
            self._recover_from(error)
            # An API server that restarts breaks the watches of all nodes, and then calls their versions expired.
            return isinstance(error, Restored)
        self.restarts[RestartCause.ENDED] += 1
        return in_due_time

    def _start_over_if_restored(self, stop: Event) -> None:
        if (restore := self._restores.last) is not self._restore:
            self._held = _Held(None, self._clock(), _RESTORED)
            # From the server's cache: it is as good as etcd if it is not older than etcd's revision now.
            self._restore, self._list_from = restore, str(restore.revision)
            stop.wait(random.uniform(0, _SPREAD))  # noqa: S311 (spreads load)

    def _list_if_due(self) -> None:
        if self._list_from is None:
            return
        query = (*self._query, ("resourceVersion", self._list_from))
        with list_all(self._connected(), self._path, query) as (version, items):
            self._replica.replace(version, items, consistent=self._list_from == "" or self._is_restored(version))
        self._list_from = None
        self._publish()

    def _is_restored(self, version: int) -> bool:
        """Whether this is the first list after a restore, and not older than etcd was then."""
        return self._held.items is None and 0 < self._restore.revision <= version

    def _watch(self) -> bool:
        """Watch until the server ends it; returns whether it did so in due time, and not because it shuts down."""
        # The server ends it well before it counts as silent, in case the server sends no bookmarks.
        seconds = max(1, round(self._stale_after * random.uniform(0.4, 0.6)))  # noqa: S311
        query = (
            *self._query,
            ("watch", "1"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", str(self._replica.version)),
            ("timeoutSeconds", str(seconds)),
        )
        self._replica.begin()
        due = self._clock() + seconds - 1
        api = self._connected()
        lines = api.stream(self._path, query, silence=seconds + 10)
        self._publish()
        if self._on_connect_due:
            self._on_connect(api)
            self._on_connect_due = False
        self._restores.check(api)  # once the server answers, as a dead one would not
        if self._restore is not self._restores.last:
            raise Restored(_RESTORED)
        for line in lines:
            self._replica.apply(line)
            self._publish()
        self._publish()
        return self._clock() >= due

    def _publish(self) -> None:
        self._restores.received(self._replica.version, self._restore)
        self._held = _Held(self._replica.items(), self._clock(), "")
        self.answered.set()

    def _recover_from(self, error: SourceError) -> None:
        self._held = replace(self._held, trouble=str(error))
        self.answered.set()
        cause = _cause(error)
        self.restarts[cause] += 1
        if self._replica.version and _is_failure(error):
            self._restores.suspect()
        if cause in {RestartCause.EXPIRED, RestartCause.REGRESSED}:
            self._list_from = str(self._replica.version) if self._list_from is None else ""
        elif isinstance(error, MalformedAnswer) and self._list_from is None:
            # The same line would come again, and every watch that starts would count as an event.
            self._list_from = str(self._replica.version)
        # Credentials may have been rotated, or the server replaced: connect again.
        if self._api is not None:
            self._api.close()
            self._api = None

    def _connected(self) -> Api:
        if self._api is None:
            self._api, self._on_connect_due = self._connect(), True
        return self._api


def _is_failure(error: SourceError) -> bool:
    """Whether the connection failed, or a balancer has no server to pass it on to."""
    match error:
        case MalformedAnswer():
            return False
        case ApiError():
            return error.status >= _SERVER_ERROR and error.status not in UNWATCHABLE
        case _:
            return _cause(error) is RestartCause.BROKEN


def _cause(error: SourceError) -> RestartCause:
    match error:
        case Restored():
            return RestartCause.RESTORED
        case Expired():
            return RestartCause.EXPIRED
        case ApiError() if error.status in UNWATCHABLE:
            return RestartCause.EXPIRED
        case Regressed():
            return RestartCause.REGRESSED
        case ApiError():
            return RestartCause.REFUSED
        case _:
            return RestartCause.BROKEN

"""list + watch of one resource, kept fresh in a thread of its own. It waits for its stream, and is told the time.

It starts from a list's version, asks for bookmarks, never adopts a lower version, lists anew only when the server says
that its version has expired, and never believes silence: what has not been heard for too long is unread. What it sees
of a server that hands out old versions it tells a witness, and adopts none of it.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from threading import Event
from typing import Any, Generic, TypeVar

from agent.model.snapshot import Known, Reading, Unavailable
from agent.sources.error import SourceError
from agent.sources.kube.client import Api, ApiError, Query, list_all
from agent.sources.kube.replica import UNWATCHABLE, Expired, Regressed, Replica, Saw, Strange

T = TypeVar("T")

_BACKOFF = (0.5, 15.0)
"""Seconds: the first and the longest."""


def list_once(api: Api, path: str, query: Query, parse: Callable[[Mapping[str, Any]], T]) -> tuple[T, ...]:
    """List a resource without watching it, read through to etcd; raises Unavailable."""
    replica = Replica(parse)
    version, items = list_all(api, path, query)
    replica.replace(version, items, consistent=True)
    return replica.items()


class RestartCause(StrEnum):
    """Why a watch was started again."""

    ENDED = "ended"
    """The server ended it in due time."""
    EXPIRED = "expired"
    """Its version was none that the server has: a list followed."""
    REGRESSED = "regressed"
    """The server listed something older than it had before, or sent news of what was deleted."""
    REFUSED = "refused"
    """The server answered with an error."""
    BROKEN = "broken"
    """The connection failed, or carried something that is not a watch."""


@dataclass(frozen=True, slots=True)
class _Held(Generic[T]):
    """What the thread hands over: replaced whole, never changed."""

    items: tuple[T, ...] | None
    heard_at: float
    trouble: str


class Reflector(Generic[T]):
    """A watched resource. `run` belongs to one thread; `reading` may be called from any."""

    def __init__(
        self,
        source: str,
        connect: Callable[[], Api],
        path: str,
        query: Query,
        parse: Callable[[Mapping[str, Any]], T],
        *,
        clock: Callable[[], float],
        stale_after: float,
        saw: Saw = lambda *_: None,
        on_connect: Callable[[Api], None] = lambda _: None,
    ) -> None:
        """`clock`: seconds, never jumping. `stale_after`: seconds without a word after which nothing is known.

        `saw`: is told of evidence that the server hands out old versions. `on_connect`: asks what else there is, once
        a connection, as soon as the server has answered on it.
        """
        self.source = source
        self.restarts: Counter[RestartCause] = Counter(dict.fromkeys(RestartCause, 0))
        """How often the watch was started again, by cause."""
        self.answered = Event()
        """Set when the first list was read, or could not be."""
        self._connect, self._path, self._query = connect, path, tuple(query)
        self._replica = Replica(parse, saw)
        self._clock, self._stale_after, self._greet = clock, stale_after, on_connect
        self._held: _Held[T] = _Held(None, clock(), "the API server has not answered yet")
        self._api: Api | None = None
        self._greeted = False
        # As client-go: any version first, then nothing older than what we have, then (the server has said no) "",
        # which is read through to etcd. None: no list is due.
        self._list_from: str | None = "0"

    @property
    def regressions(self) -> int:
        """How often the server handed out a version older than one before."""
        return self._replica.regressions

    def reading(self) -> Reading[tuple[T, ...]]:
        """Return what is known now."""
        held, now = self._held, self._clock()
        if held.items is None:
            return Unavailable(self.source, held.trouble)
        if (silence := now - held.heard_at) > self._stale_after:
            return Unavailable(self.source, f"no word for {silence:.0f} s: {held.trouble or 'the watch is silent'}")
        return Known(held.items)

    def run(self, stop: Event) -> None:
        """List, and watch, until told to stop."""
        failures = 0
        while not stop.is_set():
            heard_before = self._held.heard_at
            try:
                self._list_if_due()
                self._watch()
                self.restarts[RestartCause.ENDED] += 1
                # A moment, so that a server that ends every watch at once is not asked without pause.
                stop.wait(random.uniform(0, _BACKOFF[0]))  # noqa: S311
            except SourceError as error:
                self._recover_from(error)
                failures = 0 if self._held.heard_at > heard_before else failures + 1
                # Jittered, so that the agents of all nodes do not come back at once.
                backoff = min(_BACKOFF[1], _BACKOFF[0] * 2**failures)
                stop.wait(random.uniform(backoff / 2, backoff))  # noqa: S311 (spreads load, keeps no secret)

    def _list_if_due(self) -> None:
        if self._list_from is None:
            return
        version, items = list_all(self._connected(), self._path, (*self._query, ("resourceVersion", self._list_from)))
        self._replica.replace(version, items, consistent=self._list_from == "")
        self._list_from = None
        self._hand_over()

    def _watch(self) -> None:
        # Ended by the server well before silence would count: a server that sends no bookmarks stays believable.
        seconds = max(1, round(self._stale_after * random.uniform(0.4, 0.6)))  # noqa: S311
        query = (
            *self._query,
            ("watch", "1"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", str(self._replica.version)),
            ("timeoutSeconds", str(seconds)),
        )
        self._replica.begin()
        api = self._connected()
        lines = api.stream(self._path, query, silence=seconds + 10)
        self._hand_over()
        if not self._greeted:
            self._greet(api)
            self._greeted = True
        for line in lines:
            self._replica.apply(line)
            self._hand_over()
        self._hand_over()

    def _hand_over(self) -> None:
        self._held = _Held(self._replica.items(), self._clock(), "")
        self.answered.set()

    def _recover_from(self, error: SourceError) -> None:
        self._held = replace(self._held, trouble=str(error))
        self.answered.set()
        cause = _cause(error)
        self.restarts[cause] += 1
        if cause in {RestartCause.EXPIRED, RestartCause.REGRESSED}:
            self._list_from = str(self._replica.version) if self._list_from is None else ""
        elif isinstance(error, Strange) and self._list_from is None:
            # The same line would come again, and every watch that starts would count as a word.
            self._list_from = str(self._replica.version)
        # Credentials may have been rotated, and the server replaced: connect anew.
        if self._api is not None:
            self._api.close()
            self._api = None

    def _connected(self) -> Api:
        if self._api is None:
            self._api, self._greeted = self._connect(), False
        return self._api


def _cause(error: SourceError) -> RestartCause:
    match error:
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

"""list + watch of one resource, in a thread of its own.

The watch starts at the list's version and requests bookmarks. It lists again only if the server
says that the version has expired, or etcd was restored from a backup. Without an event or bookmark
for too long, the resource is unavailable. Evidence of a server that sends old versions is reported,
and they are ignored.

A watch from a version that a restored etcd has not reached is silent. So the own Node, a single
key, is listed through to etcd now and then, and soon after a connection failed, because etcd is
restored while the API servers are stopped: the version of that list is etcd's revision.
"""

import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from threading import Event
from typing import Any, Final, Generic, NamedTuple, TypeVar

from agent.model.snapshot import Known, Reading, Unavailable
from agent.model.watches import EVIDENCE_LASTS, Evidence, Watch
from agent.sources.kube.api import Api, Resource, ServerInfo
from agent.sources.kube.errors import ApiError
from agent.sources.kube.replica import (
    UNWATCHABLE,
    MalformedAnswer,
    Replica,
    RestartCause,
    WatchRestart,
)
from agent.sources.kube.retries import (
    LONGEST_GROWTH,
    LONGEST_SPREAD,
    SHORTEST,
    Wait,
    backoff,
    retrying,
)
from agent.sources.kube.streamed_list import list_all
from agent.sources.source_error import SourceError

_T = TypeVar("_T")

_FRESH: Final = 8
"""While the data are valid, no wait but those that the server asks for is longer than two of so
many parts of their validity: a break that lasts for half of it makes nothing unavailable. Later
there is nothing to lose."""
_RENEW: Final = 10
"""After so many refusals in a row the credentials are read again, with a new connection: perhaps
others are meant."""
_RESTORE_SPREAD: Final = 30.0
"""Seconds: all agents notice a restored etcd at about the same time, and list within so long."""
_CHECK_PERIOD: Final = 600.0
"""Seconds between two requests for etcd's revision, on average."""
_CHECK_PAUSE: Final = 60.0
"""Seconds between two of them at least, after a failed connection."""

# Where a list starts, as in client-go: at any version first, then at nothing older than the current
# version, then, if the server refuses, read through to etcd.
_ANY_VERSION: Final = "0"
_FROM_ETCD: Final = ""


class _State(NamedTuple, Generic[_T]):
    """What the thread publishes: replaced whole, never changed."""

    items: tuple[_T, ...] | None
    """None: nothing was listed yet."""
    heard_at: float
    """When the server last sent something, in seconds of the clock."""
    trouble: str
    """Empty: none."""


class Reflector(Generic[_T]):
    """A watched resource. `run` belongs to one thread; `reading` may be called from any."""

    def __init__(
        self,
        resource: Resource[_T],
        connect: Callable[[], Api],
        node: Resource[Any],
        clock: Callable[[], float],
        stale_after: float,
        server: ServerInfo,
    ) -> None:
        """`node`: the own Node. `clock`: seconds, never jumping.

        `stale_after`: seconds of silence after which the resource is unavailable.
        """
        self.source = resource.name
        self.watches: tuple[Watch, ...] = ()
        """Evidence that the server sends old versions, one record for each kind. Replaced whole,
        never changed."""
        self.restarts: Counter[RestartCause] = Counter(dict.fromkeys(RestartCause, 0))
        self.answered = Event()
        """Set when the first list was read, or failed."""
        self.replica = Replica(resource.parse, self._record)

        self._resource = resource
        self._connect = connect
        self._node = node
        self._clock = clock
        self._stale_after = stale_after
        self._server = server
        self._spread = min(LONGEST_SPREAD, stale_after / _FRESH)
        self._shortest = min(SHORTEST, self._spread)

        self._heard = 0
        """Events and bookmarks, of all watches."""
        self._watching_since: float | None = None
        """When the watch began; None: there is none."""
        self._refusals = 0
        """In a row."""
        self._state: _State[_T] = _State(None, clock(), "the API server has not answered yet")
        self._api: Api | None = None
        self._is_new = True
        """Whether the server's version is still to be requested."""

        self._list_from: str | None = _ANY_VERSION
        """The version from which to list. None: no list is due."""
        self._restored: int | None = None
        """etcd's revision at its restore, until all is listed again."""
        self._checked = float("-inf")
        """When etcd's revision was last requested."""
        self._check_due = clock() + _CHECK_PERIOD * _jitter()

    @property
    def regressions(self) -> int:
        """How often the server sent a version older than before."""
        return self.replica.regressions

    def reading(self) -> Reading[tuple[_T, ...]]:
        """Return the objects; unavailable if nothing was listed, or the server is silent."""
        state = self._state
        silence = self._clock() - state.heard_at
        if state.items is None:
            return Unavailable(self.source, state.trouble)

        if silence > self._stale_after:
            trouble = state.trouble or "the watch is silent"
            return Unavailable(self.source, f"no event for {silence:.0f} s: {trouble}")
        return Known(state.items)

    def run(self, stop: Event) -> None:
        """List and watch until `stop` is set, whatever fails."""
        while not stop.is_set():
            # A watch that worked, however it ended, begins the waits anew.
            for attempt in retrying(stop, self._backoff):
                if stop.is_set():
                    return
                with attempt:
                    shortest, longest = self._list_and_watch()
            stop.wait(random.uniform(shortest, longest))  # noqa: S311 (spreads load)

    def _backoff(self) -> Wait:
        """Return how to wait after failures: not long while there are valid data."""
        if isinstance(self.reading(), Known):
            return backoff(growth=self._spread, spread=self._spread)
        return backoff()

    def _list_and_watch(self) -> tuple[float, float]:
        """List if due, and watch. Return how long to wait after the watch, at least and at most.

        Raises SourceError if no watch worked: it has to last, or to say something other than an
        error.
        """
        heard_before = self._heard
        self._watching_since = None
        try:
            self._list_if_due()
            in_due_time = self._watch()
        except SourceError as error:
            # An API server that restarts breaks the watches of all nodes, and then calls their
            # versions expired.
            if self._recover_from(error) is RestartCause.RESTORED:
                return 0, _RESTORE_SPREAD
            if not self._has_worked(heard_before):
                raise
            return self._shortest, self._spread

        self.restarts[RestartCause.ENDED] += 1
        if in_due_time:
            # Watches last for random times, so the wait after one that was not disturbed need not
            # be long.
            return 0, self._shortest
        if not self._has_worked(heard_before):
            raise WatchRestart(RestartCause.ENDED, "it ended the watch at once")
        return self._shortest, self._spread

    def _has_worked(self, heard_before: int) -> bool:
        """Whether there was a watch that worked, however it ended."""
        since = self._watching_since
        lasted = since is not None and self._clock() - since >= LONGEST_GROWTH
        return lasted or self._heard != heard_before

    def _list_if_due(self) -> None:
        """Adopt a list, if one is due; raises SourceError."""
        if self._list_from is None:
            return

        query = (*self._resource.query, ("resourceVersion", self._list_from))
        with list_all(self._connected(), self._resource.path, query) as (version, items):
            # After a restore, a list from the cache is as good as etcd if it is not older than etcd
            # was then.
            as_restored = self._restored is not None and version >= self._restored
            consistent = self._list_from == _FROM_ETCD or as_restored
            self.replica.replace(version, items, consistent=consistent)

        self._list_from = None
        self._restored = None
        self._publish()

    def _watch(self) -> bool:
        """Watch until the server ends it; return whether it did so in due time.

        It does so early when it shuts down.
        """
        # The server ends it well before it counts as silent, in case the server sends no bookmarks.
        seconds = max(1, round(self._stale_after * random.uniform(0.4, 0.6)))  # noqa: S311
        query = (
            *self._resource.query,
            ("watch", "1"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", str(self.replica.version)),
            ("timeoutSeconds", str(seconds)),
        )

        self.replica.begin_watch()
        due = self._clock() + seconds - 1
        api = self._connected()
        with api.stream(self._resource.path, query, silence=seconds + 10) as lines:
            self._refusals = 0
            self._watching_since = self._clock()
            self._publish()
            self._check_server(api)  # once it answers, as a dead server would not

            for line in lines:
                self.replica.apply(line)
                self._heard += 1
                self._publish()
        self._publish()
        return self._clock() >= due

    def _check_server(self, watching: Api) -> None:
        """Request the server's version and etcd's revision, beside a watch, if they are due."""
        now = self._clock()
        is_due = now >= self._check_due
        if not self._is_new and not is_due:
            return

        with watching.second_connection() as api:
            if self._is_new:
                api.request_version()
                self._is_new = False
            if is_due:
                self._check_revision(api, now)

    def _check_revision(self, api: Api, now: float) -> None:
        """Start again if etcd's revision is lower than what was received before.

        That no longer counts then.
        """
        self._checked = now
        self._check_due = now + _CHECK_PERIOD * _jitter()
        query = (*self._node.query, ("resourceVersion", _FROM_ETCD))

        try:
            with list_all(api, self._node.path, query) as (revision, items):
                deque(items, maxlen=0)
        except SourceError:
            self._check_due = now + _CHECK_PAUSE * _jitter()
            return  # the watch says whether the server answers

        if revision < self.replica.version:
            trouble = "versions went back: etcd was restored from a backup; listing again"
            self._state = _State(None, now, f"API server: {trouble}")
            self._list_from = str(revision)
            self._restored = revision
            raise WatchRestart(RestartCause.RESTORED, trouble)

    def _publish(self) -> None:
        self._state = _State(self.replica.items(), self._clock(), "")
        self.answered.set()

    def _recover_from(self, error: SourceError) -> RestartCause:
        """Publish an error, and decide what has to be done anew before the next watch."""
        self._state = self._state._replace(trouble=str(error))
        self.answered.set()
        cause = _cause(error)
        self.restarts[cause] += 1

        current = str(self.replica.version)
        if cause in {RestartCause.EXPIRED, RestartCause.REGRESSED}:
            self._list_from = current if self._list_from is None else _FROM_ETCD
        elif cause is not RestartCause.RESTORED and self.replica.version:
            self._check_due = min(self._check_due, self._checked + _CHECK_PAUSE)
        if isinstance(error, MalformedAnswer) and self._list_from is None:
            # The same line would come again, and every watch that starts would count as an event.
            self._list_from = current

        is_refusal = isinstance(error, ApiError) and error.keeps_connection
        self._refusals = self._refusals + 1 if is_refusal else 0
        # Otherwise credentials may have been rotated, or the server replaced.
        if not is_refusal or self._refusals % _RENEW == 0:
            self._disconnect()
        return cause

    def _connected(self) -> Api:
        """Return the connection, opened anew if its credentials have expired; raises SourceError."""
        if self._api is not None and self._api.has_expired:
            self._disconnect()
        if self._api is None:
            self._api = self._connect()
            self._is_new = True
        return self._api

    def _disconnect(self) -> None:
        if self._api is not None:
            self._api.close()
            self._api = None

    def _record(self, evidence: Evidence, before: int, version: int) -> None:
        """Add evidence to the record of its kind, which begins anew if the last one is long ago."""
        now = self._server.now()
        records = {watch.evidence: watch for watch in self.watches}
        watch = Watch(
            resource=self.source,
            evidence=evidence,
            before=before,
            version=version,
            count=1,
            first=now.wall,
            last=now.wall,
            last_uptime=now.uptime,
            server_version=self._server.version,
        )

        earlier = records.get(evidence)
        if earlier is not None and now.uptime - earlier.last_uptime <= EVIDENCE_LASTS:
            watch = replace(watch, count=earlier.count + 1, first=earlier.first)
        self.watches = tuple((records | {evidence: watch}).values())


def _jitter() -> float:
    """Return what to multiply a period with, so that not all nodes request at once."""
    return random.uniform(0.5, 1.5)  # noqa: S311 (spreads load)


def _cause(error: SourceError) -> RestartCause:
    if isinstance(error, ApiError):
        return RestartCause.EXPIRED if error.status in UNWATCHABLE else RestartCause.REFUSED
    return error.cause if isinstance(error, WatchRestart) else RestartCause.BROKEN

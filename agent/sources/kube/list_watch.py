"""list + watch of one resource, in a thread of its own.

The watch starts at the list's version and requests bookmarks. It never adopts a lower version, and lists again only if
the server says that the version has expired, or etcd was restored from a backup. Without an event or bookmark for too
long, the resource is unavailable. Evidence of a server that sends old versions is reported, and they are ignored.

A watch from a version that a restored etcd has not reached is silent. So the own Node, a single key, is listed through
to etcd now and then, and soon after a connection failed, because etcd is restored while the API servers are stopped:
the version of that list is etcd's revision.
"""

import json
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from threading import Event
from typing import Any, Final, Generic, NamedTuple, TypeVar

from agent.model.snapshot import Known, Reading, Unavailable
from agent.model.text import truncate
from agent.model.watches import LASTS, Evidence, Watch
from agent.sources.kube.api import Api, Resource, ServerInfo
from agent.sources.kube.errors import ApiError
from agent.sources.kube.fields import Object, parsing, resource_version
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
_SPREAD: Final = 30.0  # seconds: all agents notice a restored etcd at about the same time, and list within so long
_CHECK_PERIOD: Final = 600.0  # seconds between two questions for etcd's revision, on average
_CHECK_PAUSE: Final = 60.0  # seconds between two of them at least, after a failed connection
_UNWATCHABLE: Final = frozenset(
    {410, 504}
)  # the server no longer has the requested version, or not yet
_MAX_TOMBSTONES: Final = (
    1000  # the latest deletions: versions alone reject nearly every older event
)


def list_once(api: Api, resource: Resource[_T]) -> tuple[_T, ...]:
    """List a resource without watching it, read through to etcd; raises SourceError."""
    replica = Replica(resource.parse, lambda *_: None)
    with list_all(api, resource.path, resource.query) as (version, items):
        replica.replace(version, items, consistent=True)
    return replica.items()


class RestartCause(StrEnum):
    ENDED = "ended"  # the server ended it, as it regularly does
    EXPIRED = "expired"  # the server no longer had its version: a list followed
    REGRESSED = "regressed"  # the server listed an older version than before, or sent an event for a deleted object
    RESTORED = "restored"  # etcd was restored from a backup: a list followed
    REFUSED = "refused"  # the server answered with an error
    BROKEN = "broken"  # the connection failed, or carried something other than a watch


class MalformedAnswer(SourceError):
    """The server sent something other than the expected events and objects."""


class _Restart(SourceError):
    def __init__(self, cause: RestartCause, text: str) -> None:
        super().__init__(f"API server: {text}")
        self.cause = cause


class _Held(NamedTuple, Generic[_T]):
    """What the thread publishes: replaced whole, never changed."""

    items: tuple[_T, ...] | None
    heard_at: float
    trouble: str


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
        """`node`: the own Node. `clock`: seconds, never jumping. `stale_after`: seconds until silence counts."""
        self.source = resource.name
        self.watches: tuple[Watch, ...] = ()
        """Evidence that the server sends old versions, one record for each kind. Replaced whole, never changed."""
        self.restarts: Counter[RestartCause] = Counter(dict.fromkeys(RestartCause, 0))
        self.answered = Event()  # set when the first list was read, or failed
        self._resource, self._connect, self._node = resource, connect, node
        self._clock, self._stale_after, self._server = clock, stale_after, server
        self._spread = min(LONGEST_SPREAD, stale_after / _FRESH)
        self._shortest = min(SHORTEST, self._spread)
        self._heard = 0  # events and bookmarks, of all watches
        self._watching_since: float | None = None
        self._refusals = 0  # in a row
        self.replica = Replica(resource.parse, self._record)
        self._held: _Held[_T] = _Held(None, clock(), "the API server has not answered yet")
        self._api: Api | None = None
        self._is_new = True  # whether the server's version is still to be requested
        # As client-go: any version first ("0"), then nothing older than the current version, then, if the server
        # refuses, read through to etcd (""). None: no list is due.
        self._list_from: str | None = "0"
        self._restored: int | None = (
            None  # etcd's revision at its restore, until all is listed again
        )
        self._checked, self._check_due = float("-inf"), clock() + _CHECK_PERIOD * _jitter()

    @property
    def regressions(self) -> int:
        return self.replica.regressions

    def reading(self) -> Reading[tuple[_T, ...]]:
        held, now = self._held, self._clock()
        if held.items is None:
            return Unavailable(self.source, held.trouble)
        if (silence := now - held.heard_at) > self._stale_after:
            return Unavailable(
                self.source,
                f"no event for {silence:.0f} s: {held.trouble or 'the watch is silent'}",
            )
        return Known(held.items)

    def run(self, stop: Event) -> None:
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
        held = self._held
        is_valid = held.items is not None and self._clock() - held.heard_at <= self._stale_after
        if is_valid:
            return backoff(growth=self._spread, spread=self._spread)
        return backoff()

    def _list_and_watch(self) -> tuple[float, float]:
        """List if due, and watch. Return how long to wait after the watch, at least and at most.

        Raises SourceError if no watch worked: it has to last, or to say something other than an
        error.
        """
        heard = self._heard
        self._watching_since = None
        try:
            self._list_if_due()
            in_due_time = self._watch()
        except SourceError as error:
            # An API server that restarts breaks the watches of all nodes, and then calls their versions expired.
            if self._recover_from(error) is RestartCause.RESTORED:
                return 0, _SPREAD
            if not self._has_worked(heard):
                raise
            return self._shortest, self._spread
        self.restarts[RestartCause.ENDED] += 1
        if in_due_time:
            # Watches last for random times, so the wait after one that was not disturbed need not
            # be long.
            return 0, self._shortest
        if not self._has_worked(heard):
            raise _Restart(RestartCause.ENDED, "it ended the watch at once")
        return self._shortest, self._spread

    def _has_worked(self, heard: int) -> bool:
        """Whether there was a watch that worked, however it ended. `heard`: events before it."""
        since = self._watching_since
        lasted = since is not None and self._clock() - since >= LONGEST_GROWTH
        return lasted or self._heard != heard

    def _list_if_due(self) -> None:
        if self._list_from is None:
            return
        query = (*self._resource.query, ("resourceVersion", self._list_from))
        with list_all(self._connected(), self._resource.path, query) as (version, items):
            # After a restore, a list from the cache is as good as etcd if it is not older than etcd was then.
            as_restored = self._restored is not None and version >= self._restored
            self.replica.replace(version, items, consistent=self._list_from == "" or as_restored)
        self._list_from = self._restored = None
        self._publish()

    def _watch(self) -> bool:
        """Watch until the server ends it; returns whether it did so in due time, and not because it shuts down."""
        # The server ends it well before it counts as silent, in case the server sends no bookmarks.
        seconds = max(1, round(self._stale_after * random.uniform(0.4, 0.6)))  # noqa: S311
        query = (
            *self._resource.query,
            ("watch", "1"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", str(self.replica.version)),
            ("timeoutSeconds", str(seconds)),
        )
        self.replica.begin()
        due = self._clock() + seconds - 1
        api = self._connected()
        lines = api.stream(self._resource.path, query, silence=seconds + 10)
        self._refusals = 0
        self._watching_since = self._clock()
        self._publish()
        # Once the server answers, as a dead server would not.
        if self._is_new or self._clock() >= self._check_due:
            with api.second_connection() as beside:
                self._ask_beside(beside)
        for line in lines:
            self.replica.apply(line)
            self._heard += 1
            self._publish()
        self._publish()
        return self._clock() >= due

    def _ask_beside(self, api: Api) -> None:
        if self._is_new:
            api.request_version()
            self._is_new = False
        self._check_revision(api)

    def _check_revision(self, api: Api) -> None:
        """Start again if etcd's revision is lower than what was received before, which then no longer counts."""
        if (now := self._clock()) < self._check_due:
            return
        self._checked, self._check_due = now, now + _CHECK_PERIOD * _jitter()
        try:
            with list_all(api, self._node.path, (*self._node.query, ("resourceVersion", ""))) as (
                revision,
                items,
            ):
                deque(items, maxlen=0)
        except SourceError:
            self._check_due = now + _CHECK_PAUSE * _jitter()
            return  # the watch says whether the server answers
        if revision < self.replica.version:
            why = "versions went back: etcd was restored from a backup; listing again"
            self._held = _Held(None, now, f"API server: {why}")
            self._list_from, self._restored = str(revision), revision
            raise _Restart(RestartCause.RESTORED, why)

    def _publish(self) -> None:
        self._held = _Held(self.replica.items(), self._clock(), "")
        self.answered.set()

    def _recover_from(self, error: SourceError) -> RestartCause:
        self._held = self._held._replace(trouble=str(error))
        self.answered.set()
        cause = _cause(error)
        self.restarts[cause] += 1
        if cause in {RestartCause.EXPIRED, RestartCause.REGRESSED}:
            self._list_from = str(self.replica.version) if self._list_from is None else ""
        elif cause is not RestartCause.RESTORED and self.replica.version:
            self._check_due = min(self._check_due, self._checked + _CHECK_PAUSE)
        if isinstance(error, MalformedAnswer) and self._list_from is None:
            # The same line would come again, and every watch that starts would count as an event.
            self._list_from = str(self.replica.version)
        is_refusal = isinstance(error, ApiError) and error.keeps_connection
        self._refusals = self._refusals + 1 if is_refusal else 0
        # Otherwise credentials may have been rotated, or the server replaced.
        if not is_refusal or self._refusals % _RENEW == 0:
            self._disconnect()
        return cause

    def _disconnect(self) -> None:
        if self._api is not None:
            self._api.close()
            self._api = None

    def _record(self, evidence: Evidence, before: int, version: int) -> None:
        now, known = self._server.now(), {watch.evidence: watch for watch in self.watches}
        watch = Watch(
            self.source,
            evidence,
            before,
            version,
            1,
            now.wall,
            now.wall,
            now.uptime,
            self._server.version,
        )
        earlier = known.get(evidence)
        if earlier is not None and now.uptime - earlier.last_uptime <= LASTS:
            watch = replace(watch, count=earlier.count + 1, first=earlier.first)
        self.watches = tuple((known | {evidence: watch}).values())

    def _connected(self) -> Api:
        if self._api is not None and self._api.has_expired:
            self._disconnect()
        if self._api is None:
            self._api = self._connect()
            self._is_new = True
        return self._api


def _jitter() -> float:
    return random.uniform(0.5, 1.5)  # noqa: S311 (spreads load)


def _cause(error: SourceError) -> RestartCause:
    if isinstance(error, ApiError):
        return RestartCause.EXPIRED if error.status in _UNWATCHABLE else RestartCause.REFUSED
    return error.cause if isinstance(error, _Restart) else RestartCause.BROKEN


@dataclass(slots=True)
class Replica(Generic[_T]):
    """The objects by uid, and their version; 0 before the first list. It does no I/O.

    It never adopts a version lower than that of its list or of an event. API servers before 1.9.3 sent DELETED events
    with the version of the object's last update; a client that adopted it watched from there, and received events of
    deleted pods again. A bookmark counts until an older event follows it: by the API's contract, none does.

    A deleted object stays deleted: uids are unique, and the watch selectors only match immutable fields. Only a list as
    current as etcd may contain it again: etcd may have been restored.
    """

    parse: Callable[[Object], _T]
    on_evidence: Callable[[Evidence, int, int], None]  # with the versions before and after
    version: int = 0
    regressions: int = 0  # how often the server sent a version older than before
    latest: _T | None = (
        None  # the object that was sent last: it may change and be deleted between two snapshots
    )
    _objects: dict[str, _T] = field(default_factory=dict)
    _tombstones: dict[str, None] = field(
        default_factory=dict
    )  # uids of deleted objects, oldest first
    _began: int = 0  # the version that the watch was started from: all its events should be newer
    _highest: int = 0  # of its events; not of bookmarks, which some servers sent ahead of events

    def items(self) -> tuple[_T, ...]:
        return tuple(self._objects.values())

    def replace(self, version: int, items: Iterable[Object], *, consistent: bool) -> None:
        """Adopt a list; raises SourceError if it is older, and MalformedAnswer for an odd object or version."""
        # `consistent`: it is as current as etcd, so a lower version means that etcd was restored. Any other list that
        # is older than this copy is from a server's cache.
        if version == 0:
            # A watch from 0 starts at any version, with events for all existing objects in any order.
            raise MalformedAnswer("API server: it listed version 0, which cannot be watched from")
        if version < self.version:
            self.regressions += 1
            self.on_evidence(
                Evidence.RV_RESET if consistent else Evidence.OLDER_LIST, self.version, version
            )
            if not consistent:
                raise _Restart(
                    RestartCause.REGRESSED, f"it listed version {version} after {self.version}"
                )
        objects = {_uid(item): self._parse(item) for item in items}
        if not consistent and not self._tombstones.keys().isdisjoint(objects):
            # A server that lags: the deletions had old versions, so this copy's version is too low to show it.
            self.on_evidence(Evidence.OLDER_LIST, self.version, version)
            raise _Restart(
                RestartCause.REGRESSED, f"it listed a deleted object at version {version}"
            )
        for uid in objects:
            self._tombstones.pop(uid, None)
        for uid in self._objects.keys() - objects.keys():
            self._add_tombstone(uid)
        self._objects, self.version = objects, version
        self.begin()

    def begin(self) -> None:
        """Prepare for a watch that starts from the current version."""
        self._began, self._highest = self.version, 0

    def apply(self, line: bytes) -> None:
        """Apply one line of a watch; raises MalformedAnswer, or SourceError for an error, or an older version."""
        # An update of a deleted object is older: only a list read through to etcd can decide.
        with parsing(f"not a watch event: {line[:60]!r}", MalformedAnswer):
            event = json.loads(line)
            kind, item = event["type"], event["object"]
            if kind == "ERROR":
                raise _error(item)
            version = resource_version(item["metadata"])
        if version < self.version:
            self.regressions += 1
        match kind:
            case "DELETED":
                self._delete(_uid(item), version)
            case "ADDED" | "MODIFIED":
                self._update(_uid(item), version, item)
            case _:  # a bookmark
                self.version = max(self.version, version)
                return
        if version > self._began:
            # A bookmark that was ahead of this event may be ahead of others, which the next watch has to send.
            self.version = self._highest

    def _delete(self, uid: str, version: int) -> None:
        if version < (before := max(self._began, self._highest)):
            self.on_evidence(Evidence.DELETED_BELOW, before, version)
        self._highest = max(self._highest, version)
        self._add_tombstone(uid)  # by uid, so it is final whatever the event's version

    def _update(self, uid: str, version: int, item: Object) -> None:
        if version <= self._began or uid in self._tombstones:
            self.on_evidence(Evidence.REPLAYED, self.version, version)
        if version <= max(self._began, self._highest):
            return  # older than this copy
        if uid in self._tombstones:
            raise _Restart(
                RestartCause.REGRESSED, f"an update of a deleted object at version {version}"
            )
        self._objects[uid] = self._parse(item)
        self._highest = version

    def _add_tombstone(self, uid: str) -> None:
        self._objects.pop(uid, None)
        self._tombstones.pop(uid, None)
        self._tombstones[uid] = None
        if len(self._tombstones) > _MAX_TOMBSTONES:
            del self._tombstones[next(iter(self._tombstones))]

    def _parse(self, item: Object) -> _T:
        with parsing("incomplete object", MalformedAnswer):
            self.latest = self.parse(item)
        return self.latest


def _uid(item: Object) -> str:
    with parsing("an object without metadata.uid", MalformedAnswer):
        return str(item["metadata"]["uid"])


def _error(status: Object) -> SourceError:
    text = (
        f"{truncate(status.get('code'))} {truncate(status.get('message') or status.get('reason'))}"
    )
    return _Restart(
        RestartCause.EXPIRED if status.get("code") in _UNWATCHABLE else RestartCause.BROKEN, text
    )

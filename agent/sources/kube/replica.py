"""A copy of what the API server lists and watches, which is never older than it was. No I/O."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Generic, TypeVar

from agent.model.text import truncate
from agent.model.watches import Evidence
from agent.sources.kube.fields import Object, parsing, resource_version
from agent.sources.source_error import SourceError

_T = TypeVar("_T")

UNWATCHABLE: Final = frozenset({410, 504})
"""The server no longer has the requested version, or not yet."""
_MAX_TOMBSTONES: Final = 1000
"""The latest deletions. Versions alone reject nearly every older event."""


class RestartCause(StrEnum):
    """Why a watch was started again."""

    ENDED = "ended"
    """The server ended it, as it regularly does."""
    EXPIRED = "expired"
    """The server no longer had its version: a list followed."""
    REGRESSED = "regressed"
    """The server listed an older version than before, or sent an event for a deleted object."""
    RESTORED = "restored"
    """etcd was restored from a backup: a list followed."""
    REFUSED = "refused"
    """The server answered with an error."""
    BROKEN = "broken"
    """The connection failed, or carried something other than a watch."""


class WatchRestart(SourceError):
    """A watch has to be started again, for a cause that no other error says."""

    def __init__(self, cause: RestartCause, text: str) -> None:
        super().__init__(f"API server: {text}")
        self.cause = cause


class MalformedAnswer(SourceError):
    """The server sent something other than the expected events and objects."""


@dataclass(slots=True)
class Replica(Generic[_T]):
    """The objects by uid, and their version; 0 before the first list.

    It never adopts a version lower than that of its list or of an event. API servers before 1.9.3
    sent DELETED events with the version of the object's last update; a client that adopted it
    watched from there, and received events of deleted pods again. A bookmark counts until an older
    event follows it: by the API's contract, none does.

    A deleted object stays deleted: uids are unique, and the watch selectors only match immutable
    fields. Only a list as current as etcd may contain it again: etcd may have been restored.
    """

    parse: Callable[[Object], _T]
    on_evidence: Callable[[Evidence, int, int], None]
    """Called with the versions before and after."""
    version: int = 0
    regressions: int = 0
    """How often the server sent a version older than before."""
    latest: _T | None = None
    """The object that was sent last: it may change and be deleted between two snapshots."""
    _objects: dict[str, _T] = field(default_factory=dict)
    _tombstones: dict[str, None] = field(default_factory=dict)
    """The uids of deleted objects, oldest first."""
    _watched_from: int = 0
    """The version that the watch was started from: all its events should be newer."""
    _highest: int = 0
    """Of its events; not of bookmarks, which some servers sent ahead of events."""

    def items(self) -> tuple[_T, ...]:
        return tuple(self._objects.values())

    def replace(self, version: int, items: Iterable[Object], *, consistent: bool) -> None:
        """Adopt a list; raises WatchRestart if it is older, MalformedAnswer if it is odd.

        `consistent`: it is as current as etcd, so a lower version means that etcd was restored. Any
        other list that is older than this copy is from a server's cache.
        """
        if version == 0:
            # A watch from 0 starts at any version, with events for all existing objects in any
            # order.
            raise MalformedAnswer("API server: it listed version 0, which cannot be watched from")
        if version < self.version:
            self.regressions += 1
            evidence = Evidence.RV_RESET if consistent else Evidence.OLDER_LIST
            self.on_evidence(evidence, self.version, version)
            if not consistent:
                text = f"it listed version {version} after {self.version}"
                raise WatchRestart(RestartCause.REGRESSED, text)

        objects = {_uid(item): self._parse(item) for item in items}
        if not consistent and not self._tombstones.keys().isdisjoint(objects):
            # A server that lags: the deletions had old versions, so this copy's version is too low
            # to show it.
            self.on_evidence(Evidence.OLDER_LIST, self.version, version)
            text = f"it listed a deleted object at version {version}"
            raise WatchRestart(RestartCause.REGRESSED, text)

        for uid in objects:
            self._tombstones.pop(uid, None)
        for uid in self._objects.keys() - objects.keys():
            self._add_tombstone(uid)
        self._objects = objects
        self.version = version
        self.begin_watch()

    def begin_watch(self) -> None:
        """Prepare for a watch that starts from the current version."""
        self._watched_from = self.version
        self._highest = 0

    def apply(self, line: bytes) -> None:
        """Apply one line of a watch.

        Raises MalformedAnswer, and WatchRestart for an error or an update of a deleted object: only
        a list read through to etcd can decide.
        """
        with parsing(f"not a watch event: {line[:60]!r}", MalformedAnswer):
            event = json.loads(line)
            kind = event["type"]
            item = event["object"]
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

        if version > self._watched_from:
            # A bookmark that was ahead of this event may be ahead of others, which the next watch
            # has to send.
            self.version = self._highest

    def _delete(self, uid: str, version: int) -> None:
        """Remove an object for good, whatever the version of the event."""
        before = max(self._watched_from, self._highest)
        if version < before:
            self.on_evidence(Evidence.DELETED_BELOW, before, version)
        self._highest = max(self._highest, version)
        self._add_tombstone(uid)

    def _update(self, uid: str, version: int, item: Object) -> None:
        """Adopt an object that is newer than this copy; raises as `apply`."""
        if version <= self._watched_from or uid in self._tombstones:
            self.on_evidence(Evidence.REPLAYED, self.version, version)
        if version <= max(self._watched_from, self._highest):
            return  # older than this copy
        if uid in self._tombstones:
            text = f"an update of a deleted object at version {version}"
            raise WatchRestart(RestartCause.REGRESSED, text)

        self._objects[uid] = self._parse(item)
        self._highest = version

    def _add_tombstone(self, uid: str) -> None:
        """Remember a deletion as the latest one, and forget the oldest if there are too many."""
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


def _error(status: Object) -> WatchRestart:
    code = status.get("code")
    cause = RestartCause.EXPIRED if code in UNWATCHABLE else RestartCause.BROKEN
    message = truncate(status.get("message") or status.get("reason"))
    return WatchRestart(cause, f"{truncate(code)} {message}")

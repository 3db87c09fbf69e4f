"""A local copy of one resource of the API server. It enforces the order of versions, and does no I/O.

It never adopts a version lower than that of its list or of an event. API servers before 1.9.3 sent DELETED events with
the version of the object's last update; a client that adopted it watched from there, and received events of deleted
pods again. A bookmark counts until an older event follows it: by the API's contract, none does.

A deleted object stays deleted: uids are unique, and the watch selectors only match immutable fields. Only a list as
current as etcd may contain it again: etcd may have been restored.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from agent.model.text import truncate
from agent.model.watches import Evidence
from agent.sources.kube.fields import parsing, resource_version
from agent.sources.source_error import SourceError

_T = TypeVar("_T")

UNWATCHABLE = frozenset({410, 504})
"""The status codes of a server that no longer has the requested version, or does not have it yet."""

MAX_TOMBSTONES: Final = 1000
"""How many deleted uids are remembered, the latest ones: versions alone reject nearly every old event."""


class Expired(SourceError):
    """The server does not have the version to watch from: only a new list helps."""


class MalformedAnswer(SourceError):
    """The server sent something other than the expected events and objects."""


class Regressed(SourceError):
    """The server sent something older than what it had sent before."""


@dataclass(slots=True)
class Replica(Generic[_T]):
    """The objects by uid, and their version; 0 before the first list."""

    parse: Callable[[Mapping[str, Any]], _T]
    on_evidence: Callable[[Evidence, int, int], None]
    """Called with evidence against the server: the version received before, and the older version received after it."""
    version: int = 0
    regressions: int = 0  # how often the server sent a version older than before
    latest: _T | None = None  # the object that was sent last: it may change and be deleted between two snapshots
    _objects: dict[str, _T] = field(default_factory=dict)
    _tombstones: dict[str, None] = field(default_factory=dict)
    """Uids of deleted objects, oldest first; at most MAX_TOMBSTONES."""
    _began: int = 0  # the version that the watch was started from: all its events should be newer
    _highest: int = 0
    """The highest version of its events. Bookmarks do not count: some servers sent them ahead of events."""

    def items(self) -> tuple[_T, ...]:
        return tuple(self._objects.values())

    def replace(self, version: int, items: Iterable[Mapping[str, Any]], *, consistent: bool) -> None:
        """Adopt a list. `consistent`: it is as current as etcd, so a lower version means that etcd was restored.

        Raises Regressed for a list from a server's cache that is older than this copy, MalformedAnswer for an
        unreadable object or a version that cannot be watched from.
        """
        if version == 0:
            # A watch from 0 starts at any version, with events for all existing objects in any order.
            raise MalformedAnswer("API server: it listed version 0, which cannot be watched from")
        if version < self.version:
            self.regressions += 1
            self.on_evidence(Evidence.RV_RESET if consistent else Evidence.OLDER_LIST, self.version, version)
            if not consistent:
                raise Regressed(f"API server: it listed version {version} after {self.version}")
        objects = {_uid(item): self._parse(item) for item in items}
        if not consistent and not self._tombstones.keys().isdisjoint(objects):
            # A server that lags: the deletions had old versions, so this copy's version is too low to show it.
            self.on_evidence(Evidence.OLDER_LIST, self.version, version)
            raise Regressed(f"API server: it listed a deleted object at version {version}")
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
        """Apply one line of a watch; raises Expired, MalformedAnswer, Regressed, or SourceError for another error."""
        # An update of a deleted object is Regressed: only a list read through to etcd can decide.
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

    def _update(self, uid: str, version: int, item: Mapping[str, Any]) -> None:
        if version <= self._began or uid in self._tombstones:
            self.on_evidence(Evidence.REPLAYED, self.version, version)
        if version <= max(self._began, self._highest):
            return  # older than this copy
        if uid in self._tombstones:
            raise Regressed(f"API server: an update of a deleted object at version {version}")
        self._objects[uid] = self._parse(item)
        self._highest = version

    def _add_tombstone(self, uid: str) -> None:
        self._objects.pop(uid, None)
        self._tombstones.pop(uid, None)
        self._tombstones[uid] = None
        if len(self._tombstones) > MAX_TOMBSTONES:
            del self._tombstones[next(iter(self._tombstones))]

    def _parse(self, item: Mapping[str, Any]) -> _T:
        with parsing("incomplete object", MalformedAnswer):
            self.latest = self.parse(item)
        return self.latest


def _uid(item: Mapping[str, Any]) -> str:
    with parsing("an object without metadata.uid", MalformedAnswer):
        return str(item["metadata"]["uid"])


def _error(status: Mapping[str, Any]) -> SourceError:
    text = f"API server: {truncate(status.get('code'))} {truncate(status.get('message') or status.get('reason'))}"
    return Expired(text) if status.get("code") in UNWATCHABLE else SourceError(text)

"""One resource of the API server as we hold it: the discipline of versions, without any I/O.

A version is adopted only upwards. API servers before 1.9.3 sent DELETED events with the version of the object's last
update; a client that adopted it watched from there, and saw old pods come back to life.

What is deleted stays so: a uid is never given twice, and the selectors of our watches are of what never changes in an
object. Only a list read through to etcd can say otherwise, because etcd may have been restored from a backup.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeAlias, TypeVar

from agent.model.watches import Evidence
from agent.sources.error import SourceError
from agent.sources.kube.fields import resource_version

T = TypeVar("T")

UNWATCHABLE = frozenset({410, 504})
"""What a server answers that has forgotten the version asked for, and one that has not got there yet."""

MOST_DEAD: Final = 1000
"""Deleted uids remembered, the latest ones: versions alone keep away nearly everything."""

Saw: TypeAlias = Callable[[Evidence, int, int], None]
"""Is told of evidence against the server: the version heard before, and the one handed out after it."""


class Expired(SourceError):
    """The version to watch from is none that the server has: only a new list helps."""


class Strange(SourceError):
    """The server said something else than the events and objects that we expect."""


class Regressed(SourceError):
    """The server handed out something older than what it had handed out before."""


def _nobody(_evidence: Evidence, _before: int, _version: int) -> None: ...


@dataclass(slots=True)
class Replica(Generic[T]):
    """The objects by uid, and the version they are of; 0 before the first list."""

    parse: Callable[[Mapping[str, Any]], T]
    saw: Saw = _nobody
    version: int = 0
    regressions: int = 0
    _objects: dict[str, T] = field(default_factory=dict)
    _dead: dict[str, None] = field(default_factory=dict)
    """Deleted uids, in the order in which they were; MOST_DEAD of them."""
    _began: int = 0
    """The version that the watch was started from: every event of it is newer."""
    _shown: int = 0
    """The highest version of its events. A bookmark is none: some servers sent them ahead of events."""

    def items(self) -> tuple[T, ...]:
        return tuple(self._objects.values())

    def replace(self, version: int, items: Iterable[Mapping[str, Any]], *, consistent: bool) -> None:
        """Adopt a list. `consistent`: it was read through to etcd, so a lower version is a restored etcd's, and true.

        Raises Regressed for a list out of a server's cache that is older than what we hold, Unavailable for an object
        we cannot read, or a version that cannot be watched from.
        """
        if version == 0:
            # A watch from 0 is one from any version: it begins with all objects there are, in any order.
            raise Strange("API server: it listed version 0, which is none to watch from")
        if version < self.version:
            self.regressions += 1
            self.saw(Evidence.RV_RESET if consistent else Evidence.OLDER_LIST, self.version, version)
            if not consistent:
                raise Regressed(f"API server: it listed version {version} after {self.version}")
        objects = {_uid(item): self._parse(item) for item in items}
        if not consistent and not self._dead.keys().isdisjoint(objects):
            # A server that lags: deletions with old versions did not tell us how far we had got.
            self.saw(Evidence.OLDER_LIST, self.version, version)
            raise Regressed(f"API server: it listed, at version {version}, what had been deleted")
        for uid in objects:
            self._dead.pop(uid, None)
        for uid in self._objects.keys() - objects.keys():
            self._add_tombstone(uid)
        self._objects, self.version = objects, version
        self.begin()

    def begin(self) -> None:
        """Expect the events of a watch that is started from our version."""
        self._began, self._shown = self.version, 0

    def apply(self, line: bytes) -> None:
        """Apply one line of a watch; raises Expired, or Unavailable for a line that is not an event of ours.

        Raises Regressed for news of an object that was deleted: a list read through to etcd knows better than both.
        """
        try:
            event = json.loads(line)
            kind, item = event["type"], event["object"]
            if kind == "ERROR":
                raise _error(item)
            version = resource_version(item["metadata"])
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise Strange(f"API server: a line of the watch is not an event ({line[:60]!r})") from error
        if version < self.version:
            self.regressions += 1
        match kind:
            case "DELETED":
                self._delete(_uid(item), version)
            case "ADDED" | "MODIFIED":
                self._update(_uid(item), version, item)
            case _:
                pass  # a bookmark
        self.version = max(self.version, version)

    def _delete(self, uid: str, version: int) -> None:
        if version < (before := max(self._began, self._shown)):
            self.saw(Evidence.DELETED_BELOW, before, version)
        self._shown = max(self._shown, version)
        # By uid, so it is final whatever its version.
        self._add_tombstone(uid)

    def _update(self, uid: str, version: int, item: Mapping[str, Any]) -> None:
        if version <= self._began or uid in self._dead:
            self.saw(Evidence.REPLAYED, self.version, version)
        if version <= self.version:
            return  # older than what we hold
        if uid in self._dead:
            raise Regressed(f"API server: news, at version {version}, of an object that had been deleted")
        self._objects[uid] = self._parse(item)
        self._shown = version

    def _add_tombstone(self, uid: str) -> None:
        self._objects.pop(uid, None)
        self._dead.pop(uid, None)
        self._dead[uid] = None
        if len(self._dead) > MOST_DEAD:
            del self._dead[next(iter(self._dead))]

    def _parse(self, item: Mapping[str, Any]) -> T:
        try:
            return self.parse(item)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise Strange(f"API server: an object lacks what every object of its kind has ({error!r})") from error


def _uid(item: Mapping[str, Any]) -> str:
    try:
        return str(item["metadata"]["uid"])
    except (KeyError, TypeError) as error:
        raise Strange("API server: an object without metadata.uid") from error


def _error(status: Mapping[str, Any]) -> SourceError:
    said = f"API server: {status.get('code')} {status.get('message') or status.get('reason')}"
    return Expired(said) if status.get("code") in UNWATCHABLE else SourceError(said)

"""One resource of the API server as we hold it: the discipline of versions, without any I/O.

A version is adopted only upwards. API servers before 1.9.3 sent DELETED events with the version of the object's last
update; a client that adopted it watched from there, and saw old pods come back to life.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from agent.sources.unavailable import Unavailable

T = TypeVar("T")

UNWATCHABLE = frozenset({410, 504})
"""What a server answers that has forgotten the version asked for, and one that has not got there yet."""


class Expired(Unavailable):
    """The version to watch from is none that the server has: only a new list helps."""


class Strange(Unavailable):
    """The server said something else than the events and objects that we expect."""


class Regressed(Unavailable):
    """The server handed out a version older than one it had handed out before."""


@dataclass(slots=True)
class Replica(Generic[T]):
    """The objects by uid, and the version they are of; 0 before the first list."""

    parse: Callable[[Mapping[str, Any]], T]
    version: int = 0
    regressions: int = 0
    _objects: dict[str, T] = field(default_factory=dict)

    def items(self) -> tuple[T, ...]:
        return tuple(self._objects.values())

    def replace(self, version: int, items: Iterable[Mapping[str, Any]], *, consistent: bool) -> None:
        """Adopt a list. `consistent`: it was read through to etcd, so a lower version is a restored etcd's, and true.

        Raises Regressed for a lower version out of a server's cache, Unavailable for an object we cannot read.
        """
        if version < self.version:
            self.regressions += 1
            if not consistent:
                raise Regressed(f"API server: it listed version {version} after {self.version}")
        self._objects = {_uid(item): self._parse(item) for item in items}
        self.version = version

    def apply(self, line: bytes) -> None:
        """Apply one line of a watch; raises Expired, or Unavailable for a line that is not an event of ours."""
        try:
            event = json.loads(line)
            kind, item = event["type"], event["object"]
            if kind == "ERROR":
                raise _error(item)
            version = _version(item)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise Strange(f"API server: a line of the watch is not an event ({line[:60]!r})") from error
        if version < self.version:
            self.regressions += 1
        match kind:
            case "BOOKMARK":
                pass
            case "DELETED":
                # By uid, so it is final whatever its version: what is deleted never comes back as the same object.
                self._objects.pop(_uid(item), None)
            case "ADDED" | "MODIFIED" if version > self.version:
                self._objects[_uid(item)] = self._parse(item)
            case _:
                pass  # older than what we hold: a replay
        self.version = max(self.version, version)

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


def _version(item: Mapping[str, Any]) -> int:
    return int(item["metadata"]["resourceVersion"])


def _error(status: Mapping[str, Any]) -> Unavailable:
    said = f"API server: {status.get('code')} {status.get('message') or status.get('reason')}"
    return Expired(said) if status.get("code") in UNWATCHABLE else Unavailable(said)

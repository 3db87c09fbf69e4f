"""Notices that etcd was restored from a backup: its revision is lower than a version that was received before.

A server does not refuse a watch from a version that etcd has not reached. The watch is silent: no event, no bookmark,
no error. So a watch without progress and a failed connection are reasons to list the own Node once, read through to
etcd: a single key, and the list's version is etcd's revision. Progress on any watch shows that etcd has that version.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from threading import Lock

from agent.sources.kube.client import Api, Query, list_all
from agent.sources.kube.node import NODES_PATH
from agent.sources.source_error import SourceError


class Trigger(StrEnum):
    """What makes a restore of etcd possible."""

    SILENT = "silent"
    """A watch ended without progress. Regular on servers without bookmarks, and where nothing changes."""
    FAILED = "failed"
    """A connection failed: etcd is restored while the API servers are stopped."""


_PAUSES = {Trigger.SILENT: (120.0, 3600.0), Trigger.FAILED: (60.0, 600.0)}
"""Seconds between two questions: at first, and at most."""


@dataclass(frozen=True, slots=True)
class WatchPosition:
    """What was known of etcd at some time."""

    highest: int
    answers: int


@dataclass(frozen=True, slots=True)
class Restore:
    """A restore of etcd; compared by identity."""

    revision: int
    """What etcd had reached when it was noticed."""


class RestoreDetector:
    """Shared by the watches of one API server; any thread may call it."""

    def __init__(self, node: Query, clock: Callable[[], float]) -> None:
        """`node`: selects the own Node."""
        self._query = (*node, ("resourceVersion", ""))
        self._clock = clock
        self._lock, self._asking = Lock(), Lock()
        self._highest = self._answers = 0
        self._pauses = {trigger: _Pause(*seconds) for trigger, seconds in _PAUSES.items()}
        self.last = Restore(0)
        """The last restore that was noticed; revision 0: none."""

    def position(self) -> WatchPosition:
        return WatchPosition(self._highest, self._answers)

    def progressed(self, since: WatchPosition) -> bool:
        return self._highest > since.highest

    def received(self, version: int, restore: Restore) -> None:
        """Take note of a version received from the API server after that restore."""
        if version <= self._highest:
            return
        with self._lock:
            if restore is self.last:
                self._highest = max(self._highest, version)

    def check(self, trigger: Trigger, since: WatchPosition, api: Api) -> bool:
        """Ask whether etcd was restored, unless this is known by now. Returns False if it remains unknown for now."""
        with self._asking:
            if self.progressed(since) or self._answers > since.answers:
                return True
            return self._pauses[trigger].is_over(self._clock()) and self._ask(api)

    def _ask(self, api: Api) -> bool:
        before = self._highest  # what is received during the list may be newer than its answer
        try:
            with list_all(api, NODES_PATH, self._query) as (revision, items):
                deque(items, maxlen=0)  # read to the end, the connection can be used again
        except SourceError:
            return False  # the watch says whether the server answers
        with self._lock:
            self._answers += 1
            if revision < before:
                self._highest, self.last = revision, Restore(revision)
        return True


class _Pause:
    """The time between two questions, jittered. It doubles until there was no question for long."""

    def __init__(self, first: float, longest: float) -> None:
        self._first, self._longest, self._length = first, longest, first
        self._asked = self._until = float("-inf")

    def is_over(self, now: float) -> bool:
        """Return whether a question may be asked; then the next pause begins."""
        if now < self._until:
            return False
        recent = now - self._asked < 2 * self._longest
        self._length = min(2 * self._length, self._longest) if recent else self._first
        self._asked, self._until = now, now + self._length * random.uniform(0.5, 1.5)  # noqa: S311 (spreads load)
        return True

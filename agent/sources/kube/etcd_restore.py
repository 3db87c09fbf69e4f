"""Notices that etcd was restored from a backup: its revision is lower than a version that was received before.

A server does not refuse a watch from a version that etcd has not reached. The watch is silent: no event, no bookmark,
no error. So the own Node is listed now and then, and soon after a connection failed, because etcd is restored while the
API servers are stopped: a single key, read through to etcd, and the list's version is etcd's revision.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Final

from agent.sources.kube.client import Api, Query, list_all
from agent.sources.kube.node import NODES_PATH
from agent.sources.source_error import SourceError

_PERIOD: Final = 600.0
"""Seconds between two questions, on average."""
_SHORTEST: Final = 60.0
"""Seconds between two questions at least, after a failed connection."""


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
        self._highest, self._asked = 0, float("-inf")
        self._due = clock() + _jittered(_PERIOD)
        self.last = Restore(0)
        """The last restore that was noticed; revision 0: none."""

    def received(self, version: int, restore: Restore) -> None:
        """Take note of a version received from the API server after that restore."""
        if version <= self._highest:
            return
        with self._lock:
            if restore is self.last:
                self._highest = max(self._highest, version)

    def suspect(self) -> None:
        """Ask soon: a connection failed."""
        self._due = min(self._due, self._asked + _SHORTEST)

    def check(self, api: Api) -> None:
        """Ask whether etcd was restored, if that is due."""
        with self._asking:
            now = self._clock()
            if now >= self._due:
                self._asked, self._due = now, now + _jittered(_PERIOD if self._ask(api) else _SHORTEST)

    def _ask(self, api: Api) -> bool:
        before = self._highest  # what is received during the list may be newer than its answer
        try:
            with list_all(api, NODES_PATH, self._query) as (revision, items):
                deque(items, maxlen=0)  # read to the end, the connection can be used again
        except SourceError:
            return False  # the watch says whether the server answers
        with self._lock:
            if revision < before:
                self._highest, self.last = revision, Restore(revision)
        return True


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(0.5, 1.5)  # noqa: S311 (spreads load)

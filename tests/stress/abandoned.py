"""What killed workers have left, and the kubelet's garbage collector, which picks it up: late, and in any order."""

import time
from random import Random
from threading import Event, Lock
from typing import Final

from tests.stress.course import Course
from tests.stress.node import Node

_LATEST: Final = 5.0
"""Seconds that a sandbox may lie about; none does any more once the workers wind down."""
_REST: Final = 0.02


class Abandoned:
    """Sandboxes without a worker, each with the time at which it is found."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._lock = Lock()
        self._found_at: dict[str, float] = {}

    def leave(self, sandbox: str) -> None:
        with self._lock:
            self._found_at[sandbox] = time.monotonic() + self._chance.uniform(0, _LATEST)

    def pick(self, *, all_of_them: bool) -> str | None:
        """Take one of those that are found by now; None where there is none."""
        with self._lock:
            now = time.monotonic()
            due = [sandbox for sandbox, found_at in self._found_at.items() if all_of_them or found_at <= now]
            if not due:
                return None
            sandbox = self._chance.choice(due)
            del self._found_at[sandbox]
            return sandbox


class Collector:
    """The kubelet's garbage collector. `leaks`: whether it forgets DEL for half of what it removes."""

    def __init__(self, node: Node, abandoned: Abandoned, chance: Random, history: Course, *, leaks: bool) -> None:
        self._node, self._abandoned, self._chance, self._course = node, abandoned, chance, history
        self._share_leaked = 0.5 if leaks else 0.0
        self._no_more = Event()

    def no_more(self) -> None:
        """Tell that nothing will be abandoned any more."""
        self._no_more.set()

    def work(self) -> None:
        """Collect until there is no more, or all is lost."""
        while not self._course.over.is_set():
            last = self._no_more.is_set()
            if self._collect(all_of_them=self._course.winding_down.is_set()):
                continue
            if last:
                return
            self._course.over.wait(_REST)

    def _collect(self, *, all_of_them: bool) -> bool:
        """Remove one sandbox; tells whether there was one."""
        sandbox = self._abandoned.pick(all_of_them=all_of_them)
        if sandbox is None:
            return False
        if self._chance.random() >= self._share_leaked:
            self._node.delete(sandbox)
        self._node.remove(sandbox)
        return True

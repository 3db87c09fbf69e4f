"""Sandboxes left by killed workers, and the garbage collector that removes them late and in random order."""

import time
from random import Random
from threading import Event, Lock
from typing import Final

from tests.stress.node import Node
from tests.stress.run_state import RunState

_LATEST: Final = 5.0
"""Maximum age of an abandoned sandbox in seconds; ignored once the workers stop."""
_REST: Final = 0.02


class Abandoned:
    """Sandboxes without a worker, each with the time at which it becomes due."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._lock = Lock()
        self._due_at: dict[str, float] = {}

    def leave(self, sandbox: str) -> None:
        with self._lock:
            self._due_at[sandbox] = time.monotonic() + self._chance.uniform(0, _LATEST)

    def pick(self, *, all_of_them: bool) -> str | None:
        """Take one sandbox that is due, or None."""
        with self._lock:
            now = time.monotonic()
            due = [sandbox for sandbox, due_at in self._due_at.items() if all_of_them or due_at <= now]
            if not due:
                return None
            sandbox = self._chance.choice(due)
            del self._due_at[sandbox]
            return sandbox


class GarbageCollector:
    """The kubelet's garbage collector. `leaks`: skip DEL for half of the sandboxes that it removes."""

    def __init__(self, node: Node, abandoned: Abandoned, chance: Random, state: RunState, *, leaks: bool) -> None:
        self._node, self._abandoned, self._chance, self._state = node, abandoned, chance, state
        self._share_leaked = 0.5 if leaks else 0.0
        self._no_more = Event()

    def no_more(self) -> None:
        """Signal that no more sandboxes will be abandoned."""
        self._no_more.set()

    def work(self) -> None:
        """Collect until nothing is left or the run fails."""
        while not self._state.over.is_set():
            last = self._no_more.is_set()
            if self._collect(all_of_them=self._state.stopping.is_set()):
                continue
            if last:
                return
            self._state.over.wait(_REST)

    def _collect(self, *, all_of_them: bool) -> bool:
        """Remove one sandbox; return whether there was one."""
        sandbox = self._abandoned.pick(all_of_them=all_of_them)
        if sandbox is None:
            return False
        if self._chance.random() >= self._share_leaked:
            self._node.delete(sandbox)
        self._node.remove(sandbox)
        return True

"""Kills containerd, starts it again, and removes what a kubelet finds then.

A sandbox whose records were deleted is in no list afterwards, and its network namespace is still there: the address is
in use until somebody deletes the namespace, and is a leak from then on.
"""

import time
from dataclasses import dataclass
from queue import SimpleQueue
from random import Random
from typing import Final

from agent.sources.source_error import SourceError
from tests import processes
from tests.stress.containerd.sandboxes import Sandboxes
from tests.stress.events import Action

_EVERY: Final = (6.0, 12.0)
_LONGEST_PINNED: Final = 20.0
_PLUGINS: Final = 30.0
_EMPTY_TURN: Final = 0.1
_FORGOTTEN: Final = 0.5
"""The share of lost sandboxes without libcni's cached result."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A sandbox without a record."""

    sandbox: str
    ip: str
    namespace: str
    until: float
    """When its namespace is deleted."""


class Outages:
    """The life of containerd during a run."""

    def __init__(self, sandboxes: Sandboxes, chance: Random) -> None:
        self._sandboxes, self._node, self._chance = sandboxes, sandboxes.node, chance
        self._to_lose: SimpleQueue[tuple[str, str]] = SimpleQueue()
        self._pinned: list[Lost] = []
        self.kills = self.lost = 0
        self.left_behind = 0
        """Network namespaces that containerd forgot: their sandboxes were never made, or are gone."""

    def lose(self, sandbox: str, ip: str) -> None:
        """Let the next outage delete the records of a sandbox."""
        self._to_lose.put((sandbox, ip))

    def work(self) -> None:
        next_kill = time.monotonic() + self._chance.uniform(*_EVERY)
        while not self._sandboxes.state.stopping.is_set():
            if time.monotonic() >= next_kill:
                self.outage()
                next_kill = time.monotonic() + self._chance.uniform(*_EVERY)
            self._unpin(time.monotonic())
            self._sandboxes.state.stopping.wait(_EMPTY_TURN)

    def finish(self) -> None:
        """Remove what is left of sandboxes that are gone, but their leaks; no thread makes sandboxes any more."""
        self.outage()
        self._unpin(float("inf"))
        remaining = {self._node.namespace_of(sandbox) for sandbox in self._sandboxes.known}
        for namespace in self._node.mounted_namespaces() - remaining:
            self.left_behind += 1
            self._node.run("ip", "netns", "delete", namespace)
        # The kernel would believe for up to a minute that they are still there.
        self._node.run("ip", "neigh", "flush", "dev", "cni0")

    def outage(self) -> None:
        """Kill containerd while sandboxes are being made, and start it again."""
        lost = self._lose_records()
        self._sandboxes.pause()
        self._node.kill_containerd()
        self.kills += 1
        if not self._sandboxes.all_paused():
            raise TimeoutError("a thread does not return from its call")
        for _ in processes.until(time.monotonic() + _PLUGINS):
            if not self._node.plugins_running():
                break
        self._node.start_containerd()
        self._collect()
        self._mark_leaks()
        self._pinned += lost
        self._sandboxes.resume()

    def _collect(self) -> None:
        """Remove what the killed containerd left, as often as it takes: plugins are killed at this time, too."""
        end = time.monotonic() + _PLUGINS
        while True:
            try:
                self._node.collect(keep=self._sandboxes.known)
            except SourceError:
                if time.monotonic() > end:
                    raise
            else:
                return

    def _lose_records(self) -> list[Lost]:
        lost = []
        while not self._to_lose.empty():
            sandbox, ip = self._to_lose.get()
            namespace = self._node.namespace_of(sandbox)
            self._node.lose_record(sandbox)
            if self._chance.random() < _FORGOTTEN:  # then only the address itself can tell that it is in use
                self._node.forget_result(sandbox)
            until = time.monotonic() + self._chance.uniform(0, _LONGEST_PINNED)
            lost.append(Lost(sandbox, ip, namespace, until))
        return lost

    def _mark_leaks(self) -> None:
        """Mark every sandbox that was asked for and is neither known nor listed."""
        existing = self._sandboxes.known | set(self._node.kubelet.sandboxes()) | self._node.kubelet.records()
        for sandbox in {words[1] for words in self._node.plugin_log()} - existing:
            self._sandboxes.mark_gone(sandbox)

    def _unpin(self, now: float) -> None:
        for one in [one for one in self._pinned if one.until <= now]:
            self._pinned.remove(one)
            self.lost += 1
            self._sandboxes.store.read(one.ip)
            self._sandboxes.ledger.action(Action.RM_CALLED, one.sandbox)
            self._sandboxes.gone.add(one.sandbox)
            self._sandboxes.known.discard(one.sandbox)
            self._node.run("ip", "netns", "delete", one.namespace)

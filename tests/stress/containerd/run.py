"""One stress run on containerd: churn, wind down, reclaim, check."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from random import Random
from typing import Final

from tests import processes
from tests.containerd.node import SLOWED, SUBNET, ContainerdNode, containerd_node
from tests.containerd.packages import unpacked
from tests.stress.cleaner import Cleaner
from tests.stress.command import Command
from tests.stress.containerd import commands
from tests.stress.containerd.disturbances import Forger, PluginKiller
from tests.stress.containerd.outages import Outages
from tests.stress.containerd.sandboxes import Sandboxes
from tests.stress.containerd.worker import Worker
from tests.stress.ledger import Ledger
from tests.stress.run_state import RunState, Threads
from tests.stress.store import Store
from tests.stress.store_watcher import watch
from tests.stress.workspace import Workspace

_FIRST: Final = 10
_PROGRESS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Options:
    version: str
    cleaner: str
    seconds: float
    workers: int
    addresses: int
    lose: float
    """Percentage of the sandboxes whose records are deleted."""
    seed: int
    reclaim: float
    report: Path | None


class NodeWorkspace(Workspace):
    """The directories of a node, for a cleaner that may run inside or outside of it."""

    @property
    def networks(self) -> Path:
        return self.root / "cni/networks"

    @property
    def store(self) -> Path:
        return self.networks / "pods"

    @property
    def cache(self) -> Path:
        return self.root / "cni/results"

    @property
    def state(self) -> Path:
        return self.root / "nodeleak"

    def environment(self) -> Mapping[str, str]:
        return processes.environment(
            STRESS_STORE=str(self.store),
            STRESS_PODS=commands.pods(self.root),
            NODELEAK_API="off",
            NODELEAK_NETWORK="pods",
        )


class ContainerdRun:
    """All parts of a run and its phases."""

    def __init__(self, options: Options, node: ContainerdNode) -> None:
        self.options, self.node = options, node
        self.state, self.ledger = RunState(), Ledger()
        self.workspace = NodeWorkspace(node.home)
        chance = Random(options.seed)  # noqa: S311 (chance, not secrecy)
        store = Store(node.store, _addresses(options), self.ledger)
        self.sandboxes = Sandboxes(node, store, self.ledger, self.state)
        self.outages = Outages(self.sandboxes, Random(chance.random()))  # noqa: S311
        self.plugin_killer = PluginKiller(self.sandboxes, Random(chance.random()))  # noqa: S311
        self.forger = Forger(self.sandboxes, Random(chance.random()))  # noqa: S311
        self.workers = [
            Worker(number, self.sandboxes, self.outages, options.lose, Random(chance.random()))  # noqa: S311
            for number in range(options.workers)
        ]
        self.cleaner = self._cleaner(commands.named(options.cleaner, node))
        self.seconds = 0.0
        """How long the churn took."""
        self._threads = Threads(self.state)

    def _cleaner(self, command: Command | None) -> Cleaner | None:
        return Cleaner(command, self.workspace, 0, self.state, self.ledger, 0.0) if command else None

    def execute(self) -> None:
        """Run all phases; no thread is left behind, whatever happens."""
        try:
            # As on any node, one pod stays: libcni's cache has the range of the network while there is one.
            staying = self.sandboxes.run("stays")
            self._churn()
            self._reclaim()
            if staying and not self.state.failures:
                self.sandboxes.delete(staying[0])
        except BaseException:
            self.state.abort()
            raise
        finally:
            self.state.end()
            self._threads.join()
        if not self.state.failures:
            self.ledger.finish(self.sandboxes.store.left())

    def _churn(self) -> None:
        began = time.monotonic()
        if self.cleaner:
            self._threads.start(self.cleaner.work)
        self._threads.start(lambda: watch(self.sandboxes.store, self.state))
        churning = [self.outages.work, self.plugin_killer.work, self.forger.work, *(one.work for one in self.workers)]
        threads = [self._threads.start(work) for work in churning]
        next_progress = began
        for _ in processes.until(began + self.options.seconds):
            self.workspace.age_journal()
            if self.state.stopping.is_set():
                break
            if (now := time.monotonic()) >= next_progress:
                next_progress = now + _PROGRESS
                print(f"{now - began:5.0f} s  {self.ledger.counts()}", flush=True)
        self.state.stopping.set()
        for thread in threads:
            thread.join()
        self.seconds = time.monotonic() - began
        if not self.state.failures:
            self.outages.finish()

    def _reclaim(self) -> None:
        """Give the cleaner time to reclaim the leaks."""
        if self.cleaner:
            for _ in processes.until(time.monotonic() + self.options.reclaim):
                if self.state.over.is_set() or set(self.node.reserved.values()) <= self.sandboxes.known:
                    return
                self.workspace.age_journal()


def run_stress(options: Options) -> ContainerdRun:
    """Run the stress test and return its result; everything that it created is removed. Raises CannotRun."""
    with _slowed(options) as node:
        stress_run = ContainerdRun(options, node)
        stress_run.execute()
        return stress_run


@contextmanager
def _slowed(options: Options) -> Iterator[ContainerdNode]:
    addresses = _addresses(options)
    with containerd_node(unpacked(options.version), addresses=(addresses[0], addresses[-1])) as node:
        node.turn(**{name.replace("-", "_"): seconds for name, seconds in SLOWED.items()})
        yield node


def _addresses(options: Options) -> list[str]:
    return [str(IPv4Network(SUBNET)[_FIRST + number]) for number in range(options.addresses)]

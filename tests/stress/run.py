"""One stress run: churn, wind down, reclaim, check; then remove everything it created."""

import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ipaddress import IPv4Network
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any, Final

from tests import processes
from tests.stress.cleaner import Cleaner
from tests.stress.daemon import Daemon
from tests.stress.engine import Engine, engine
from tests.stress.garbage_collector import Abandoned, GarbageCollector
from tests.stress.host_local import HostLocal
from tests.stress.ledger import Ledger
from tests.stress.libcni import Cache
from tests.stress.node import Node
from tests.stress.options import Options
from tests.stress.run_state import RunState, Threads
from tests.stress.slices import Slices
from tests.stress.stopwatch import Beside, Stopwatch
from tests.stress.store import Store
from tests.stress.store_watcher import watch
from tests.stress.worker import Worker
from tests.stress.workspace import Workspace

_SUBNET: Final = IPv4Network("10.254.77.0/24")
_FIRST: Final = 10
_PROGRESS: Final = 5.0


class StressRun:
    """All parts of a run and its phases."""

    def __init__(self, options: Options, workspace: Workspace, containers: Engine) -> None:
        self.options, self.workspace = options, workspace
        self.state, self.ledger, self.adds = RunState(), Ledger(), Stopwatch()
        self.cleaners = tuple(
            Cleaner(given, workspace, number, self.state, self.ledger, options.pause)
            for number, given in enumerate(options.cleaners)
        )
        self.daemons = tuple(
            Daemon(given, workspace, number, self.state) for number, given in enumerate(options.daemons)
        )
        self.node = _node(options, workspace, containers, self.ledger)
        self.cache_left = 0
        """libcni cache entries of leaks that no cleaner removed."""
        self._threads = Threads(self.state)
        self._next_progress = time.monotonic() + _PROGRESS

    def execute(self) -> None:
        """Run all phases; no thread or process is left behind, whatever happens."""
        try:
            with self._staying_pod() as ip:
                self._churn()
                self._reclaim(ip)
        except BaseException:
            self.state.abort()
            raise
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)  # shutdown has started
            for daemon in self.daemons:
                daemon.end()
            self.state.end()
            self._threads.join()
        if not self.state.failures:
            self.ledger.finish(self.node.store.left())
        self.cache_left = self.node.cache.left()

    @contextmanager
    def _staying_pod(self) -> Iterator[str]:
        """Hold an address from before the first leak until all leaks are reclaimed; yield it.

        Its cached result is what tells nodeleak the range when the churn is over. Without any, it rightly refuses.
        """
        node = self.node.for_another_thread()
        sandbox = node.create()
        added = node.add(sandbox)
        if added is None:
            raise RuntimeError("an empty store is exhausted")
        yield added.ip
        node.delete(sandbox)
        node.remove(sandbox)

    def _churn(self) -> None:
        chance = Random(self.options.seed)  # noqa: S311 (chance, not secrecy)
        abandoned = Abandoned(Random(chance.random()))  # noqa: S311
        collector = GarbageCollector(
            self.node.for_another_thread(),
            abandoned,
            Random(chance.random()),  # noqa: S311
            self.state,
            leaks=self.options.rates.leak > 0,
        )
        self._start_cleaning()
        self._threads.start(lambda: watch(self.node.store, self.state))
        collecting = self._threads.start(collector.work)
        workers = [
            self._threads.start(self._worker(abandoned, Random(chance.random())).work)  # noqa: S311
            for _ in range(self.options.workers)
        ]
        self._wait_for_churn()
        self.state.stopping.set()
        _join(workers)
        collector.no_more()
        _join([collecting])

    def _worker(self, abandoned: Abandoned, chance: Random) -> Worker:
        node = self.node.for_another_thread()
        return Worker(node, self.options.rates, chance, self.state, abandoned, self.adds)

    def _start_cleaning(self) -> None:
        for daemon in self.daemons:
            daemon.start()
        for cleaner in self.cleaners:
            self._threads.start(cleaner.work)
        self.adds.now(Beside.CLEANERS if self.daemons or self.cleaners else Beside.NOTHING)

    def _wait_for_churn(self) -> None:
        slices = None
        if self.options.compare:
            slices = Slices(self.cleaners, self.daemons, self.adds, self.node, self.options.pause)
        for _ in processes.until(time.monotonic() + self.options.seconds):
            if self.state.stopping.is_set():
                return
            if slices:
                slices.turn()
            self._watch()
        self.adds.now(None)
        if slices:
            slices.resume()

    def _reclaim(self, staying: str) -> None:
        """Give the cleaners time to reclaim all but the address that stays; return at once without cleaners."""
        if not self.daemons and not self.cleaners:
            return
        for cleaner in self.cleaners:
            if cleaner.command.during_churn:
                cleaner.pause_runs()
        for _ in processes.until(time.monotonic() + self.options.reclaim):
            if self.state.over.is_set() or self.node.store.has_only(staying):
                return
            self._watch()

    def _watch(self) -> None:
        for daemon in self.daemons:
            daemon.watch()
        self.workspace.age_journal()
        if (now := time.monotonic()) >= self._next_progress:
            self._next_progress = now + _PROGRESS
            print(f"{now - self.ledger.began:5.0f} s  {self.ledger.counts()}", flush=True)


def run_stress(options: Options) -> StressRun:
    """Run the stress test and return its result; everything that it created is removed."""
    with directory(keep=options.keep) as workspace, engine() as containers:
        stress_run = StressRun(options, workspace, containers)
        stress_run.execute()
        return stress_run


@contextmanager
def directory(*, keep: bool) -> Iterator[Workspace]:
    """Create the directories of a run, and remove them at the end."""
    workspace = Workspace(Path(tempfile.mkdtemp(prefix="nodeleak-stress-")))
    try:
        workspace.make()
        yield workspace
    finally:
        if keep:
            print(f"kept: {workspace.root}", file=sys.stderr)
        else:
            shutil.rmtree(workspace.root, ignore_errors=True)


def _node(options: Options, workspace: Workspace, containers: Engine, ledger: Ledger) -> Node:
    addresses = [str(_SUBNET[_FIRST + number]) for number in range(options.addresses)]
    host_local = HostLocal(workspace.root / "netconf.json", _ipam(workspace, addresses))
    cache = Cache(workspace.cache, host_local.netconf)
    return Node(containers, host_local, cache, Store(workspace.store, addresses, ledger), ledger)


def _ipam(workspace: Workspace, addresses: list[str]) -> dict[str, Any]:
    span = {"subnet": str(_SUBNET), "rangeStart": addresses[0], "rangeEnd": addresses[-1]}
    return {"ranges": [[span]], "dataDir": str(workspace.networks)}


def _join(threads: Sequence[Thread]) -> None:
    for thread in threads:
        thread.join()

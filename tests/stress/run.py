"""One torture from its begin to its end: churn, wind down, reclaim, judge; and everything that it made is removed."""

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
from tests.stress.abandoned import Abandoned, Collector
from tests.stress.cleaner import Cleaner
from tests.stress.course import Course, Crew
from tests.stress.engine import Engine, engine
from tests.stress.ledger import Ledger
from tests.stress.libcni import Cache
from tests.stress.node import Node
from tests.stress.options import Options
from tests.stress.place import Place
from tests.stress.plugin import HostLocal
from tests.stress.resident import Resident
from tests.stress.slices import Slices
from tests.stress.stopwatch import Beside, Stopwatch
from tests.stress.store import Store
from tests.stress.watcher import watch
from tests.stress.worker import Worker

_SUBNET: Final = IPv4Network("10.254.77.0/24")
_FIRST: Final = 10
_PROGRESS: Final = 5.0


class Torture:
    """Everything that takes part, and the acts in which it does."""

    def __init__(self, options: Options, place: Place, ours: Engine) -> None:
        self.options, self.place = options, place
        self.history, self.ledger, self.adds = Course(), Ledger(), Stopwatch()
        self.cleaners = tuple(
            Cleaner(given, place, number, self.history, self.ledger, options.pause)
            for number, given in enumerate(options.cleaners)
        )
        self.daemons = tuple(
            Resident(given, place, number, self.history) for number, given in enumerate(options.daemons)
        )
        self.node = _node(options, place, ours, self.ledger)
        self.cache_left = 0
        """Entries of libcni's cache that the leaks have left, and nobody removed."""
        self._crew = Crew(self.history)
        self._next_progress = time.monotonic() + _PROGRESS

    def play(self) -> None:
        """Play all acts; whatever happens, no thread and no process is left behind."""
        try:
            self._churn()
            self._reclaim()
        except BaseException:
            self.history.abort()
            raise
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)  # it is ending already
            for daemon in self.daemons:
                daemon.end()
            self.history.end()
            self._crew.join()
        if not self.history.failures:
            self.ledger.settle(self.node.store.left())
        self.cache_left = self.node.cache.left()

    def _churn(self) -> None:
        chance = Random(self.options.seed)  # noqa: S311 (chance, not secrecy)
        abandoned = Abandoned(Random(chance.random()))  # noqa: S311
        collector = Collector(
            self.node.for_another_thread(),
            abandoned,
            Random(chance.random()),  # noqa: S311
            self.history,
            leaks=self.options.habits.leak > 0,
        )
        self._start_cleaning()
        self._crew.start(lambda: watch(self.node.store, self.history))
        collecting = self._crew.start(collector.work)
        workers = [
            self._crew.start(self._worker(abandoned, Random(chance.random())).work)  # noqa: S311
            for _ in range(self.options.workers)
        ]
        self._wait_out_the_churn()
        self.history.winding_down.set()
        _join(workers)
        collector.no_more()
        _join([collecting])

    def _worker(self, abandoned: Abandoned, chance: Random) -> Worker:
        node = self.node.for_another_thread()
        return Worker(node, self.options.habits, chance, self.history, abandoned, self.adds)

    def _start_cleaning(self) -> None:
        for daemon in self.daemons:
            daemon.start()
        for cleaner in self.cleaners:
            self._crew.start(cleaner.work)
        self.adds.now(Beside.CLEANERS if self.daemons or self.cleaners else Beside.NOTHING)

    def _wait_out_the_churn(self) -> None:
        slices = None
        if self.options.compare:
            slices = Slices(self.cleaners, self.daemons, self.adds, self.node, self.options.pause)
        for _ in processes.until(time.monotonic() + self.options.seconds):
            if self.history.winding_down.is_set():
                return
            if slices:
                slices.turn()
            self._watch()
        self.adds.now(None)
        if slices:
            slices.go_on()

    def _reclaim(self) -> None:
        """Give the cleaners time for what has leaked; without any there is nothing to wait for."""
        if not self.daemons and not self.cleaners:
            return
        for _ in processes.until(time.monotonic() + self.options.reclaim):
            if self.history.over.is_set() or self.node.store.is_empty():
                return
            self._watch()

    def _watch(self) -> None:
        for daemon in self.daemons:
            daemon.watch()
        if (now := time.monotonic()) >= self._next_progress:
            self._next_progress = now + _PROGRESS
            print(f"{now - self.ledger.began:5.0f} s  {self.ledger.counts()}", flush=True)


def torture(options: Options) -> Torture:
    """Play a torture, and return what became of it; nothing that it made is left."""
    with directory(keep=options.keep) as place, engine() as ours:
        played = Torture(options, place, ours)
        played.play()
        return played


@contextmanager
def directory(*, keep: bool) -> Iterator[Place]:
    """Make the directories of a torture, and remove them in the end."""
    place = Place(Path(tempfile.mkdtemp(prefix="nodeleak-torture-")))
    try:
        place.make()
        yield place
    finally:
        if keep:
            print(f"kept: {place.root}", file=sys.stderr)
        else:
            shutil.rmtree(place.root, ignore_errors=True)


def _node(options: Options, place: Place, ours: Engine, ledger: Ledger) -> Node:
    addresses = [str(_SUBNET[_FIRST + number]) for number in range(options.addresses)]
    host_local = HostLocal(place.root / "netconf.json", _ipam(place, addresses))
    cache = Cache(place.cache, host_local.netconf)
    return Node(ours, host_local, cache, Store(place.store, addresses, ledger), ledger)


def _ipam(place: Place, addresses: list[str]) -> dict[str, Any]:
    span = {"subnet": str(_SUBNET), "rangeStart": addresses[0], "rangeEnd": addresses[-1]}
    return {"ranges": [[span]], "dataDir": str(place.networks)}


def _join(threads: Sequence[Thread]) -> None:
    for thread in threads:
        thread.join()

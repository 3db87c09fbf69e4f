"""One stress run: churn, wind down, reclaim, check. Whatever happens, no thread and no process is left behind."""

import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from threading import Event, Lock, Thread
from typing import Any, Final, Protocol

from tests import processes
from tests.stress.checker import KEPT
from tests.stress.ledger import Ledger

_PROGRESS: Final = 10.0
_AFRESH: Final = 60.0
"""Seconds after the churn in which cleaners go on with what they know, each time."""


class RunState:
    """Stop signals that every thread checks, and the failures that caused them."""

    def __init__(self) -> None:
        self.stopping = Event()  # No new sandboxes; existing ones complete their lifecycle
        self.over = Event()  # Every thread stops after its current step
        self.aborted = Event()  # The run failed: running commands are terminated as well
        self._lock = Lock()
        self._failures: list[str] = []

    def fail(self, why: str) -> None:
        """End the run at once."""
        with self._lock:
            self._failures.append(why)
        self.abort()

    def abort(self) -> None:
        self.aborted.set()
        self.end()

    def end(self) -> None:
        self.stopping.set()
        self.over.set()

    @property
    def failures(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(self._failures)


@dataclass(frozen=True, slots=True)
class Options:
    """The command line."""

    profile: str  # Of the whole node (hack/cluster); empty: docker
    cleaner: Sequence[str]
    daemon: Sequence[str]
    seconds: float
    workers: int
    addresses: int
    leak: float  # Percentage of the sandboxes that leak
    kill: float  # Percentage of the sandboxes during which the kubelet is killed
    seed: int
    reclaim: float
    release: float | None  # When a reservation in use is removed by hand, in seconds
    report: Path | None


@dataclass(frozen=True, slots=True)
class Context:
    """What all parts of a run share."""

    options: Options
    chance: Random
    state: RunState
    ledger: Ledger

    def another_chance(self) -> Random:
        return Random(self.chance.random())  # noqa: S311 (chance, not secrecy)


class Cleaner:
    """A command that cleans, in a loop or as a daemon."""

    def start(self) -> None: ...
    def watch(self) -> None:
        """Fail the run if it cannot go on."""

    def churn_is_over(self) -> None: ...
    def start_afresh(self) -> None:
        """Forget what it knows of addresses: what answered a probe may be gone."""

    def end(self) -> None: ...
    def result(self) -> dict[str, Any]:
        return {}


class Runtime(Protocol):
    """What is stressed."""

    journal: Path  # nodeleak's, whose files are aged

    @property
    def cleaners(self) -> Sequence[Cleaner]: ...
    def stays(self) -> AbstractContextManager[None]:
        """Keep one pod during the block: libcni's cache has the range of the network while there is one."""

    def watchers(self) -> Sequence[Callable[[], None]]:
        """Return what runs in threads until the run is over."""

    def churn(self) -> Sequence[Callable[[], None]]:
        """Return what runs in threads until it is stopping."""

    def wind_down(self) -> None:
        """Remove what is left of sandboxes that are gone, but their leaks."""

    def left(self) -> dict[str, str]:
        """Return the files in the store that are nobody's."""

    def release_by_name(self, addresses: Sequence[str]) -> None:
        """Let `nodeleak clean` release these addresses, as a person does who names them."""

    def result(self) -> dict[str, Any]: ...


class StressRun:
    """All parts of a run and its phases."""

    def __init__(self, context: Context, runtime: Runtime) -> None:
        self.options, self.state, self.ledger = context.options, context.state, context.ledger
        self.runtime = runtime
        self.seconds = 0.0  # How long the churn took
        self._threads: list[Thread] = []
        self._next_progress = 0.0

    def execute(self) -> None:
        runtime = self.runtime
        try:
            with runtime.stays():
                self._churn()
                if not self.state.failures:
                    runtime.wind_down()
                self._reclaim()
        except BaseException:
            self.state.abort()
            raise
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)  # shutdown has started
            for cleaner in runtime.cleaners:
                cleaner.end()
            self.state.end()
            for thread in self._threads:
                thread.join()
        if not self.state.failures:
            self.ledger.finish(runtime.left())

    def _churn(self) -> None:
        began = time.monotonic()
        for cleaner in self.runtime.cleaners:
            cleaner.start()
        for work in self.runtime.watchers():
            self._start(work)
        churning = [self._start(work) for work in self.runtime.churn()]
        for _ in processes.until(began + self.options.seconds):
            if self.state.stopping.is_set():
                break
            self._watch()
        self.state.stopping.set()
        for thread in churning:
            thread.join()
        self.seconds = time.monotonic() - began

    def _reclaim(self) -> None:
        """Give the cleaners time to reclaim the leaks."""
        for cleaner in self.runtime.cleaners:
            cleaner.churn_is_over()
        afresh = time.monotonic()
        for _ in (
            processes.until(time.monotonic() + self.options.reclaim)
            if self.runtime.cleaners
            else ()
        ):
            left = self.runtime.left()
            if self.state.over.is_set() or not left.keys() - KEPT:
                return
            # An ADD that was killed between the two leaves a file without an id, which no cleaner takes by itself.
            if empty := [ip for ip, found in left.items() if ip not in KEPT and not found]:
                self.runtime.release_by_name(empty)
            if time.monotonic() >= afresh:
                afresh += _AFRESH
                for cleaner in self.runtime.cleaners:
                    cleaner.start_afresh()
            self._watch()

    def _watch(self) -> None:
        for cleaner in self.runtime.cleaners:
            cleaner.watch()
        # A run can release more in an hour than a node does in a day: let nodeleak's journal have room.
        for file in self.runtime.journal.glob("*.json"):
            with suppress(FileNotFoundError):
                os.utime(file, (0, 0))
        if (now := time.monotonic()) >= self._next_progress:
            self._next_progress = now + _PROGRESS
            counts = ", ".join(f"{count} {what}" for what, count in self.ledger.counts().items())
            print(f"{now - self.ledger.began:5.0f} s  {counts}", flush=True)

    def _start(self, work: Callable[[], None]) -> Thread:
        thread = Thread(target=self._guarded, args=(work,), daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 (any exception of a thread fails the run)
            where = traceback.extract_tb(error.__traceback__)[-1]
            self.state.fail(f"{type(error).__name__} at {where.name}:{where.lineno}: {error}")

"""A real containerd of its own: sandboxes are made by CRI, and containerd and its CNI plugins are killed.

host-local is slowed, records of running sandboxes are deleted, and reservations are written by hand. A sandbox whose
records were deleted is in no list afterwards, and its network namespace is still there: the address is in use until
somebody deletes the namespace, and is a leak from then on.
"""

import fcntl
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from queue import SimpleQueue
from threading import Condition
from typing import Any, Final, TypeVar

from agent.sources.runtime.grpc_unary import GrpcError
from agent.sources.source_error import SourceError
from tests import processes
from tests.containerd.node import NETWORK, NODELEAK, SLOWED, SUBNET, ContainerdNode, containerd_node
from tests.containerd.packages import unpacked
from tests.stress import cleaners
from tests.stress.checker import Action
from tests.stress.cleaners import AT_ONCE, Loop
from tests.stress.ledger import Ledger, Store
from tests.stress.run import Context, RunState

_T = TypeVar("_T")

_FIRST: Final = 10
_BEFORE_RETRY: Final = 0.1
_LONGEST: Final = 60.0
"""Seconds until a call that keeps failing fails the run."""
_EXHAUSTED: Final = "no IP addresses available in range set"
_ID: Final = re.compile("[0-9a-f]{64}")
_LONGEST_HOLD, _BETWEEN_READS = 0.6, 0.03
_EVERY_DISTURBANCE, _EVERY_OUTAGE = (0.5, 3.0), (6.0, 12.0)
_LONGEST_PINNED, _PLUGINS = 20.0, 30.0
_FORGOTTEN: Final = 0.5
"""The share of lost sandboxes without libcni's cached result."""


class Sandboxes:
    """The sandboxes of one node. Every thread that calls the runtime pauses while it is down."""

    def __init__(self, node: ContainerdNode, store: Store, ledger: Ledger, state: RunState) -> None:
        self.node, self.store, self.ledger, self.state = node, store, ledger, state
        self.known: set[str] = set()
        """Those that a thread will stop, or that lost their records: nobody else may remove them."""
        self.gone: set[str] = set()
        """Those that no longer exist: whoever finds an address of them has found a leak."""
        self.interrupted = 0
        self._changed = Condition()
        self._up, self._callers, self._paused = True, 0, 0

    def join(self, change: int) -> None:
        """Count a thread that calls, or (-1) no longer does."""
        with self._changed:
            self._callers += change
            self._changed.notify_all()

    def pause(self) -> None:
        """From now on, every thread waits before its next call."""
        with self._changed:
            self._up = False

    def all_paused(self) -> bool:
        """Wait until every thread waits."""
        with self._changed:
            return self._changed.wait_for(lambda: self._paused >= self._callers, _LONGEST)

    def resume(self) -> None:
        with self._changed:
            self._up = True
            self._changed.notify_all()

    def _until_up(self) -> None:
        with self._changed:
            self._paused += 1
            self._changed.notify_all()
            while not self._up and not self.state.over.is_set():
                self._changed.wait(_BEFORE_RETRY)
            self._paused -= 1

    def _persist(self, call: Callable[[], _T], what: str) -> _T:
        """Repeat a call until it succeeds, as a kubelet does."""
        end = time.monotonic() + _LONGEST
        while True:
            self._until_up()
            try:
                return call()
            except SourceError as error:
                if time.monotonic() > end or self.state.over.is_set():
                    raise SourceError(f"{what} keeps failing: {error}") from error
                time.sleep(_BEFORE_RETRY)

    # What a kubelet does

    def run(self, pod: str) -> tuple[str, str] | None:
        """Make a sandbox; return its id and its address, which the runtime names. None: it failed."""
        self._until_up()
        try:
            sandbox = self.node.kubelet.run(pod)
        except SourceError as error:
            self._failed(error)
            return None
        self.known.add(sandbox)
        ip = self._persist(lambda: self.node.kubelet.address(sandbox), "PodSandboxStatus")
        self.ledger.action(Action.CREATED, sandbox)
        self.ledger.action(Action.ADDED, sandbox, ip)
        self.store.read(ip)
        return sandbox, ip

    def _failed(self, error: SourceError) -> None:
        message = error.message if isinstance(error, GrpcError) else ""
        if _EXHAUSTED in message:
            self.ledger.action(Action.EXHAUSTED, "")
        else:
            self.interrupted += 1
        # Of an interrupted call nobody knows the id: who restarts containerd removes what it finds.
        if named := _ID.search(message):
            sandbox = named[0]
            if sandbox in self._persist(self.node.kubelet.sandboxes, "ListPodSandbox"):
                self.remove(sandbox)
            self.mark_gone(sandbox)

    def read(self, sandbox: str) -> None:
        self.store.read(*self.ledger.owned(sandbox))

    def delete(self, sandbox: str) -> None:
        """Stop and remove a sandbox."""
        self.read(sandbox)
        self.ledger.action(Action.DEL_CALLED, sandbox)
        self.remove(sandbox)
        self.mark_gone(sandbox)
        self.known.discard(sandbox)

    def remove(self, sandbox: str) -> None:
        kubelet = self.node.kubelet

        def stop_and_remove() -> None:
            kubelet.stop(sandbox)
            kubelet.remove(sandbox)

        self._persist(stop_and_remove, f"the removal of {sandbox[:12]}")

    def mark_gone(self, sandbox: str) -> None:
        """From now on, a file with its id is a leak."""
        if sandbox not in self.gone:
            self.gone.add(sandbox)
            self.ledger.action(Action.CREATED, sandbox)
            self.ledger.action(Action.RM_CALLED, sandbox)


@dataclass(frozen=True, slots=True)
class Lost:
    """A sandbox without a record."""

    sandbox: str
    ip: str
    namespace: str
    until: float
    """When its namespace is deleted."""


class Outages:
    """Kills containerd, starts it again, and removes what a kubelet finds then."""

    def __init__(self, sandboxes: Sandboxes, context: Context) -> None:
        self._sandboxes, self._node, self._chance = sandboxes, sandboxes.node, context.another_chance()
        self._to_lose: SimpleQueue[tuple[str, str]] = SimpleQueue()
        self._pinned: list[Lost] = []
        self.kills = self.lost = 0
        self.left_behind = 0
        """Network namespaces that containerd forgot: their sandboxes were never made, or are gone."""

    def lose(self, sandbox: str, ip: str) -> None:
        """Let the next outage delete the records of a sandbox."""
        self._to_lose.put((sandbox, ip))

    def work(self) -> None:
        next_kill = time.monotonic() + self._chance.uniform(*_EVERY_OUTAGE)
        while not self._sandboxes.state.stopping.wait(_BEFORE_RETRY):
            if time.monotonic() >= next_kill:
                self._outage()
                next_kill = time.monotonic() + self._chance.uniform(*_EVERY_OUTAGE)
            self._unpin(time.monotonic())

    def finish(self) -> None:
        """Remove what is left of sandboxes that are gone, but their leaks; no thread makes sandboxes any more."""
        self._outage()
        self._unpin(float("inf"))
        remaining = {self._node.namespace_of(sandbox) for sandbox in self._sandboxes.known}
        for namespace in self._node.mounted_namespaces() - remaining:
            self.left_behind += 1
            self._node.run("ip", "netns", "delete", namespace)
        # The kernel would believe for up to a minute that they are still there.
        self._node.run("ip", "neigh", "flush", "dev", "cni0")

    def _outage(self) -> None:
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
        # Every sandbox that was asked for and is neither known nor listed.
        existing = self._sandboxes.known | set(self._node.kubelet.sandboxes()) | self._node.kubelet.records()
        for sandbox in {words[1] for words in self._node.plugin_log()} - existing:
            self._sandboxes.mark_gone(sandbox)
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

    def _unpin(self, now: float) -> None:
        for lost in [lost for lost in self._pinned if lost.until <= now]:
            self._pinned.remove(lost)
            self.lost += 1
            self._sandboxes.store.read(lost.ip)
            self._sandboxes.ledger.action(Action.RM_CALLED, lost.sandbox)
            self._sandboxes.gone.add(lost.sandbox)
            self._sandboxes.known.discard(lost.sandbox)
            self._node.run("ip", "netns", "delete", lost.namespace)


class ContainerdRuntime:
    """containerd, its plugins, and a kubelet's threads."""

    def __init__(self, context: Context, node: ContainerdNode) -> None:
        self._context, self._node = context, node
        self.store = Store(node.store, _addresses(context), context.ledger)
        self.journal = node.home / "nodeleak/journal"
        self._sandboxes = Sandboxes(node, self.store, context.ledger, context.state)
        self._outages = Outages(self._sandboxes, context)
        self._chance = context.another_chance()
        self._plugins_killed = self._forged = 0
        logs = node.home / "cleaners"
        logs.mkdir()
        environment = processes.environment(
            STRESS_STORE=str(node.store), STRESS_PODS=_pods(node.home), NODELEAK_API="off", NODELEAK_NETWORK=NETWORK
        )
        names = context.options.cleaner or [cleaners.NODELEAK]
        self.cleaners = [
            Loop(name, _command(name, node), environment, logs, context.state)
            for name in names
            if name != cleaners.NONE
        ]

    @contextmanager
    def stays(self) -> Iterator[None]:
        staying = self._sandboxes.run("stays")
        yield
        if staying and not self._context.state.failures:
            self._sandboxes.delete(staying[0])

    def watchers(self) -> Sequence[Callable[[], None]]:
        return [lambda: self.store.watch(self._context.state.over)]

    def churn(self) -> Sequence[Callable[[], None]]:
        workers = [lambda number=number: self._work(number) for number in range(self._context.options.workers)]
        return [self._outages.work, self._kill_plugins, self._forge, *workers]

    def wind_down(self) -> None:
        self._outages.finish()

    def left(self) -> dict[str, str]:
        return {name: found for name, found in self.store.left().items() if found not in self._sandboxes.known}

    def result(self) -> dict[str, Any]:
        return {
            "containerd": self._node.packages.version(),
            "kills": {"containerd": self._outages.kills, "plugins": self._plugins_killed},
            "creations failed": self._sandboxes.interrupted,
            "leaks": {"record deleted": self._outages.lost, "by hand": self._forged},
            "namespaces left behind": self._outages.left_behind,
        }

    def _work(self, number: int) -> None:
        """Make one sandbox after another, as one thread of a kubelet, and lose some of them."""
        chance, stopping = self._context.another_chance(), self._context.state.stopping
        leak = 3.0 if self._context.options.leak is None else self._context.options.leak
        made = 0
        self._sandboxes.join(1)
        try:
            while not stopping.is_set():
                made += 1
                if (running := self._sandboxes.run(f"worker-{number}-{made}")) is None:
                    stopping.wait(chance.uniform(0.02, 0.2))
                    continue
                self._hold(running[0], chance.uniform(0, _LONGEST_HOLD))
                if chance.uniform(0, 100) < leak:
                    self._outages.lose(*running)
                else:
                    self._sandboxes.delete(running[0])
        finally:
            self._sandboxes.join(-1)

    def _hold(self, sandbox: str, left: float) -> None:
        while left > 0:
            self._sandboxes.read(sandbox)
            self._context.state.over.wait(_BETWEEN_READS)
            left -= _BETWEEN_READS

    def _kill_plugins(self) -> None:
        """Kill a plugin or host-local's wrapper now and then; what they started goes on without them."""
        while not self._context.state.stopping.wait(self._chance.uniform(*_EVERY_DISTURBANCE)):
            with suppress(ProcessLookupError, IndexError):
                os.kill(self._chance.choice(self._node.plugins_running()), signal.SIGKILL)
                self._plugins_killed += 1

    def _forge(self) -> None:
        """Write reservations of sandboxes that never were, under host-local's lock."""
        chance = self._context.another_chance()
        while not self._context.state.stopping.wait(chance.uniform(*_EVERY_DISTURBANCE)):
            sandbox, ip = f"{chance.getrandbits(256):064x}", chance.choice(self.store.addresses)
            if not self.store.directory.is_dir():
                continue
            self._sandboxes.mark_gone(sandbox)
            with (self.store.directory / "lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                with suppress(FileExistsError):
                    with (self.store.directory / ip).open("x") as written:
                        written.write(f"{sandbox}\r\neth0")
                    self.store.read(ip)
                    self._forged += 1


@contextmanager
def prepared(context: Context) -> Iterator[ContainerdRuntime]:
    """Return the runtime on a node of its own; everything of it is gone after the block. Raises CannotRun."""
    addresses = _addresses(context)
    with containerd_node(unpacked(context.options.version), addresses=(addresses[0], addresses[-1])) as node:
        node.turn(**{name.replace("-", "_"): seconds for name, seconds in SLOWED.items()})
        yield ContainerdRuntime(context, node)


def _addresses(context: Context) -> list[str]:
    return [str(IPv4Network(SUBNET)[_FIRST + number]) for number in range(context.options.addresses)]


def _pods(home: Path) -> str:
    """Return the command that lists the pods."""
    return shlex.join([sys.executable, "-m", "tests.containerd.pods", str(home / "run/containerd.sock")])


def _command(name: str, node: ContainerdNode) -> str:
    if name == cleaners.ONE_LINER:
        return shlex.join(["bash", str(Path(__file__).with_name("one_liner_containerd.sh"))])
    options = (f"--network={NETWORK}", f"--cleanup-network={NETWORK}", "--output=json", *AT_ONCE)
    return shlex.join(node.enter(str(NODELEAK), "clean", "--apply", *options))

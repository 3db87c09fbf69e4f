"""A cleaner made of the agent's own code, which can be stopped at every operation on the node.

Python cannot copy a running function. But the cleaner is a function of the answers that it gets: to continue from any
position, it runs again from the beginning with the same answers, until it asks something new. So a position is the list
of everything that the cleaner has read, a node in a tree (`Tree`), and two cleaners that have read the same are equal.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final

from agent.checks import engine
from agent.checks.engine import ConfirmationState
from agent.cleanup import guards
from agent.cleanup.guards import GuardContext, RuntimeHistory
from agent.cleanup.journal import Entry, FileImage, Journal
from agent.cleanup.journal_store import Busy, JournalStore
from agent.cleanup.recheck import Recheck
from agent.cleanup.restore import RestoreError, recover_and_restore
from agent.cleanup.run import Cleaner
from agent.cleanup.unlink import LockedNetwork, LockHeld, NodeFiles
from agent.model.brake import MAX_AGE_SECONDS
from agent.model.clocks import Moment
from agent.model.ranges import subnet_range
from agent.model.release import Limits, ProbeResult, Reason
from agent.model.report import Report
from agent.model.runtime import DOCKER, ContainerRuntime
from agent.model.snapshot import CniResult, Known, Node, NotRequested, Reservation, Snapshot
from agent.sources.collector import take_snapshot
from agent.sources.kube.brake import BrakeSource
from agent.sources.source import ReadBy, Sources
from tests.cleanup.recheck import recheck
from tests.proof.operations import START, UPTIME, Answer, Question
from tests.proof.world import NETWORK

# Pure, and asked again at every later position of a cleaner.
_needs_second_snapshot = lru_cache(1 << 14)(engine.needs_second_snapshot)
_assess = lru_cache(1 << 14)(engine.run)
_replay = lru_cache(1 << 14)(engine.replay)

MERGE: Final = "merge"
"""Not an operation: from here on only its arguments matter. Cleaners with equal arguments are at the same position."""

ENDED: Final = (
    -1
)  # The position of every cleaner that has ended: what it has read no longer matters


class _Asks(BaseException):
    """Asks something that has no answer yet. Not an Exception: the agent must not catch it."""

    def __init__(self, question: Question) -> None:
        super().__init__(question)
        self.question = question


class Answered:
    """Repeats the earlier answers, and stops the cleaner at the first new question."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self._answers, self._at, self._stopped = answers, 0, False

    def __call__(self, *question: Any) -> Any:
        if self._stopped:  # the agent's `finally` blocks run on the way out, and change nothing
            return None
        if self._at == len(self._answers):
            self._stopped = True
            raise _Asks(question)
        answer = self._answers[self._at]
        self._at += 1
        if isinstance(answer, Exception):
            raise type(answer)(*answer.args)
        return answer


_DOCKER: Final = ContainerRuntime(DOCKER)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How a cleaner runs."""

    api: bool = False
    networks: tuple[str, ...] = (NETWORK,)
    cleaned: frozenset[str] = frozenset({NETWORK})
    grace: timedelta = timedelta(0)
    confirm: timedelta = timedelta(0)
    settle: timedelta = timedelta(0)
    max_share: float = 1.0
    per_sync: tuple[str, int] | None = None
    only: frozenset[str] | None = None
    clock: bool = (
        False  # Whether time passes. Otherwise it stands still, and every grace period must be 0.
    )
    subnet: str = "10.244.1.0/24"
    merged: bool = (
        True  # Whether to forget what no longer has any effect, which merges equivalent states
    )
    one_snapshot: bool = (
        False  # Whether the first snapshot serves as the second too. No real cleaner does that.
    )
    restores: str = (
        ""  # The journal entry that `nodeleak restore --apply` restores; empty: it is a cleaner
    )
    runtime: ContainerRuntime = _DOCKER  # The runtime that it asks
    pinning: bool = False
    """Whether a network namespace may be left without a process: then it matters when the probe asks."""
    probe: bool = True  # Whether addresses are probed
    cached: bool = False
    """Whether libcni's cache may name a network namespace that is left: then it matters when it is read."""
    brake: bool = False  # Whether a setting names a brake
    syncs: int = 0  # 0: `nodeleak clean`; otherwise the number of syncs of `nodeleak run`


def _asks(name: str) -> Callable[..., Any]:
    """Return a method that only asks."""
    return lambda self, *of: self._ask(name, *of)


class InMemory:
    """The operations of a cleaner on the node in memory. A mutation replaces some of them."""

    def __init__(self, ask: Answered, setup: Setup) -> None:
        self._ask, self._setup = ask, setup
        self._reserved: set[str] = set()
        self._seconds = 0.0
        self._brake = BrakeSource(
            "kube-system/nodeleak-brake", lambda: ask("brake"), lambda: self._seconds
        )

    def sources(self) -> Sources:
        """Return the readers of what has a say in addresses; the model has nothing else."""
        names = (
            "reservations", "checkpoints", "containers", "cni_results", "processes", "addresses", "mounted_namespaces",
            "pods", "node",
        )  # fmt: skip
        return [
            *(ReadBy(name, self._reader(name)) for name in names),
            ReadBy("runtimes", lambda _: (self._setup.runtime,)),
            ReadBy("brake", lambda _: self.read_brake()),
        ]

    def _reader(self, name: str) -> Callable[[Snapshot], Any]:
        return lambda _: getattr(self, name)()  # at each call: a mutation replaces the method

    def reservations(self) -> Any:
        stores = self._ask("reservations", self._setup.networks)
        self._reserved = {
            reservation.container_id for store in stores for reservation in store.reading.known()
        }
        return stores

    def checkpoints(self) -> Any:
        return () if self._asks_cri else self._ask("checkpoints")

    def containers(self) -> Any:
        """Ask containerd and CRI-O for records too, of the sandboxes that their list lacks."""
        listed = self._ask("containers")
        missing = self._reserved.difference({""}, (container.id for container in listed))
        return (
            (*listed, *self.records(tuple(sorted(missing))))
            if self._asks_cri and missing
            else listed
        )

    records = _asks("records")

    @property
    def _asks_cri(self) -> bool:
        return self._setup.runtime.name != DOCKER

    def cni_results(self) -> Any:
        named = self._ask("named_namespaces") if self._setup.cached else ()
        return _cni_results(self._setup.subnet, self._setup.networks, named)

    def mounted_namespaces(self) -> Any:
        return tuple(map(_place, self._ask("named_namespaces")))

    processes, addresses = _asks("processes"), _asks("addresses")

    def pods(self) -> Any:
        return self._ask("pods") if self._setup.api else NotRequested("pods", "--api=off")

    def node(self) -> Any:
        return (
            Known(Node("worker-1", (), 110))
            if self._setup.api
            else NotRequested("node", "--api=off")
        )

    def read_brake(self) -> Any:
        if not self._setup.brake:
            return NotRequested("brake", "--brake=off")
        self._seconds += 2 * MAX_AGE_SECONDS  # what was read before is too old for this release
        return self._brake.read_now()

    def reread_brake(self) -> Any:
        return self.read_brake()

    def has_container(self, container_id: str) -> Any:
        return self._ask("has_container", container_id) or (
            self._asks_cri and self.has_record(container_id)
        )

    has_record, is_mounted = _asks("has_record"), _asks("is_mounted")

    def has_checkpoint(self, container_id: str) -> Any:
        return not self._asks_cri and self._ask("has_checkpoint", container_id)

    def probe(self, reservations: Sequence[Reservation]) -> dict[Any, ProbeResult]:
        if not self._setup.probe:
            return {
                leak.key: ProbeResult("not probed: --probe=off", conclusive=False)
                for leak in reservations
            }
        answering = (
            self._ask("probe", tuple(leak.ip for leak in reservations))
            if self._setup.pinning
            else ()
        )
        taken = {leak.key: Reason.ADDRESS_IN_USE for leak in reservations if leak.ip in answering}
        return {
            leak.key: ProbeResult(f"{leak.ip} was probed", taken.get(leak.key))
            for leak in reservations
        }

    def holder_of(self, container_id: str, ips: Sequence[str]) -> str:
        if self._ask("holder_of", tuple(ips)):
            return "process 7 (pause)"
        return (
            "its network namespace" if self._setup.cached and self.is_mounted(container_id) else ""
        )

    def recheck(self) -> Recheck:
        return recheck(self.has_container, self.has_checkpoint, self.holder_of, self.probe)

    read, lock, unlock = _asks("read"), _asks("lock"), _asks("unlock")

    def files(self) -> NodeFiles:
        return InMemoryFiles(self, self._ask)


class Network(LockedNetwork):
    def __init__(self, network: str, node: InMemory, ask: Answered) -> None:
        super().__init__(network, -1)
        self._node, self._ask = node, ask

    def read(self, name: str) -> Any:
        return self._node.read(self.directory, name)

    def addresses_of(self, container_id: str) -> list[str]:
        return list(self._ask("addresses_of", container_id, self.directory) or ())

    def unlink(self, name: str) -> None:
        self._ask("remove", self.directory, name)

    def link(self, image: FileImage) -> None:
        self._ask("put_back", image)


class InMemoryFiles(NodeFiles):
    """libcni's cache is not modeled."""

    def __init__(self, node: InMemory, ask: Answered) -> None:
        super().__init__(Path(), (), 0, lambda: 0.0)
        self._node, self._ask = node, ask

    @contextmanager
    def opened(self, directories: Iterable[str]) -> Iterator[Mapping[str, Network]]:
        yield {directory: Network(directory, self._node, self._ask) for directory in directories}

    def removed(self, _directories: Iterable[str]) -> frozenset[str]:
        return frozenset()

    @contextmanager
    def locked(self, directories: Iterable[str]) -> Iterator[Mapping[str, Network]]:
        if not self._node.lock():
            raise LockHeld
        try:
            with self.opened(directories) as networks:
                yield networks
        finally:
            self._node.unlock()


@cache
def _cni_results(
    subnet: str, networks: tuple[str, ...], named: tuple[str, ...]
) -> tuple[CniResult, ...]:
    ranges = ((subnet_range(subnet),), (subnet_range("fd00::/64"),))
    results = tuple(CniResult(name, "f" * 64, "eth0", "", ranges, "", 0) for name in networks)
    return (
        *results,
        *(
            CniResult(NETWORK, container_id, "eth0", "", ranges, "", 0, _place(container_id))
            for container_id in named
        ),
    )


def _place(container_id: str) -> str:
    return f"/run/netns/cni-{container_id[:8]}"


class InMemoryJournal(JournalStore):
    """The journal and the cleaner's lock, in memory."""

    def __init__(self, ask: Answered, setup: Setup) -> None:
        self._ask, self._setup = ask, setup
        self.known = Journal()

    @contextmanager
    def exclusive(self, _seconds: float) -> Iterator[None]:
        if not self._ask("exclusive"):
            raise Busy("another cleaner is at work")
        try:
            yield
        finally:
            self._ask("leave")

    def why_unwritable(self) -> str | None:
        return None

    def read(self) -> Journal:
        self.known = self._ask("journal")
        return self.known

    def begin(self, entry: Entry, _evidence: Sequence[str], _now: datetime | None = None) -> None:
        self._ask("begin", entry)

    def update(self, entry: Entry, _at: datetime) -> None:
        self._ask("update", entry)


Parts = tuple[InMemory, InMemoryJournal]


def unchanged(ask: Answered, setup: Setup) -> Parts:
    """Return a cleaner as it is."""
    return InMemory(ask, setup), InMemoryJournal(ask, setup)


Assembly = Callable[[Answered, Setup], Parts]


def restore(ask: Answered, setup: Setup, assemble: Assembly) -> None:
    """`nodeleak restore ENTRY --apply`."""
    node, journal = assemble(ask, setup)
    with suppress(Busy, OSError, RestoreError), journal.exclusive(0):
        recover_and_restore(setup.restores, node.files(), journal, START)


def clean(ask: Answered, setup: Setup, assemble: Assembly) -> None:
    """`nodeleak clean --apply`, or syncs of `nodeleak run --cleanup=auto`."""
    node, journal = assemble(ask, setup)
    sources = node.sources()
    named = {
        name: getattr(setup, name) for name in ("grace", "settle", "max_share", "only", "per_sync")
    }
    limits = Limits(networks=setup.cleaned, **named)

    def now() -> Moment:
        return ask("moment") if setup.clock else Moment(START, UPTIME)

    taken_at, taken_after_boot = [START], [UPTIME]

    def snapshot() -> Snapshot:
        moment = now()
        taken_at.append(moment.wall)
        taken_after_boot.append(moment.uptime)
        return take_snapshot(sources, "worker-1", moment, lambda: 0.0)

    def journal_time() -> datetime:
        # No time passes after a snapshot: that it expires after a minute is not modeled.
        return taken_at[-1] + timedelta(microseconds=ask("number"))

    def uptime() -> timedelta:
        return taken_after_boot[-1]

    cleaner = (Cleaner if setup.syncs else _Merging)(
        limits=limits,
        actor="run" if setup.syncs else "clean",
        store=journal,
        recheck=node.recheck(),
        read_brake=node.reread_brake,
        files=node.files(),
        now=journal_time,
        uptime=uptime,
        dry_run=False,
    )
    if not isinstance(cleaner, _Merging):
        state: ConfirmationState | None = None
        for _ in range(setup.syncs):
            cleaner.before_snapshot()
            current = snapshot()
            report, state = engine.run(
                current, state, grace=setup.grace, confirm_after=setup.confirm
            )
            cleaner.after_snapshot((current,), report)
        return
    cleaner.ask, cleaner.setup = ask, setup
    cleaner.before_snapshot()
    snapshots: tuple[Snapshot, ...] = (snapshot(),)
    if _needs_second_snapshot(snapshots[0], setup.grace):
        _, memory = _assess(snapshots[0], None, grace=setup.grace, confirm_after=setup.confirm)
        runtime_history = RuntimeHistory().after(snapshots[0])
        found, pods = frozenset(memory.observations.items()), frozenset(memory.memory.pods.items())
        owned = frozenset(
            reservation
            for reservation, remembered in memory.memory.reservations.items()
            if remembered.owned_at
        )
        observed = snapshots[0].taken_at, snapshots[0].uptime, found, owned, pods
        # Whether a released container reappeared depends on the whole snapshot.
        whole = snapshots[0] if journal.known.entries else None
        _merge(ask, setup, "snapshot", *observed, runtime_history, journal.known, whole)
        if setup.confirm:
            ask("wait", setup.confirm.total_seconds())
        snapshots = (*snapshots, snapshots[0] if setup.one_snapshot else snapshot())
    cleaner.after_snapshot(
        snapshots, _replay(snapshots, grace=setup.grace, confirm_after=setup.confirm)
    )


def _merge(ask: Answered, setup: Setup, *relevant: Answer) -> None:
    if setup.merged:
        ask(MERGE, *relevant)


class _Merging(Cleaner):
    """After the decisions, only what they are has any effect."""

    ask: Answered
    setup: Setup

    def context(self, report: Report) -> GuardContext:
        context = super().context(report)
        passed = tuple(request for request, refusals in guards.decide(context) if not refusals)
        sandboxes = {request.container_id for request in passed}
        known = tuple(entry for entry in context.journal.entries if entry.container_id in sandboxes)
        _merge(self.ask, self.setup, "decided", passed, known, context.halted)
        return context


class Tree:
    """Everything that a cleaner can have read, and what it asks next. The root, 0, has read nothing."""

    def __init__(self, setup: Setup, assemble: Assembly = unchanged) -> None:
        self._setup, self._assemble = setup, assemble
        self._read: list[tuple[Answer, ...]] = [()]
        self._next: dict[int, Question | None] = {}
        self._children: dict[tuple[int, Answer], int] = {}
        self._places: dict[Question, int] = {}

    def question(self, node: int) -> Question | None:
        """Return what the cleaner asks next; None if it has ended."""
        if node == ENDED:
            return None
        if node not in self._next:
            self._next[node] = self._run(self._read[node])
        return self._next[node]

    def _run(self, answers: tuple[Answer, ...]) -> Question | None:
        try:
            command = restore if self._setup.restores else clean
            command(Answered(answers), self._setup, self._assemble)
        except _Asks as asks:
            return asks.question
        return None

    def after(self, node: int, answer: Answer) -> int:
        """Return the position after an answer."""
        key = (node, answer)
        if key not in self._children:
            self._children[key] = len(self._read)
            self._read.append((*self._read[node], answer))
        child = self._children[key]
        return self._merged(child)

    def _merged(self, node: int) -> int:
        question = self.question(node)
        if question is None:
            return ENDED
        if question[0] != MERGE:
            return node
        if question not in self._places:
            self._places[question] = node
        return self.after(self._places[question], None)

    @property
    def halted(self) -> bool:
        """Whether cleanup halted anywhere, because a released container reappeared."""
        return any(question[1] == "decided" and question[-1] for question in self._places)

    def __len__(self) -> int:
        return len(self._read)

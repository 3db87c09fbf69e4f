"""One process of ours, made of the agent's own code, that can be stopped at every touch of the node.

Python cannot copy a running function. But the agent is a function of what it was answered: to go on from anywhere, it
is run again from its beginning with the same answers, until it asks something new. So where a process is, is the list
of all that it has read: a leaf of a tree (`Tree`), and two that have read the same are the same.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from agent.checks import engine
from agent.checks.confirm import ConfirmationState
from agent.cleanup import guards
from agent.cleanup.book import Busy, JournalStore
from agent.cleanup.cleaner import ApplyingCleaner
from agent.cleanup.guard_context import GuardContext
from agent.cleanup.journal import Entry, Journal
from agent.cleanup.release import FileImage, Locked, Recheck
from agent.cleanup.restore import RestoreOperations
from agent.cleanup.runtime_history import RuntimeHistory, watch
from agent.cleanup.session import Budget, CleanupSession
from agent.model.ranges import subnet_range
from agent.model.release import Limits, ReleaseRequest, Verdict
from agent.model.report import Report
from agent.model.snapshot import (
    Address,
    Checkpoint,
    CniResult,
    Container,
    Known,
    NetworkStore,
    Node,
    NotRequested,
    Pod,
    ProcessStartTimes,
    Reading,
    Reservation,
    Snapshot,
    UnrecognizedEntry,
)
from agent.sources.collector import Moment, Reader, Sources, take_snapshot
from agent.sources.error import SourceError
from tests.proof.touch import START, UPTIME, Answer, Broken, Missing, Question, Silent, Taken
from tests.proof.world import NETWORK

MERGE: Final = "merge"
"""Not a question: from here on only what it says is remembered, and whoever says the same is at the same place."""

ENDED: Final = -1
"""Where every process is in the end: what it has read does not matter any more."""


class _Asks(BaseException):
    """It asks something that it has no answer to yet. Not an Exception: the agent must not catch it."""

    def __init__(self, question: Question) -> None:
        super().__init__(question)
        self.question = question


class Answered:
    """Answers what was answered before; stops the process at the first new question."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self._answers, self._at, self._stopped = answers, 0, False

    def __call__(self, *question: Any) -> Any:
        if self._stopped:  # the agent's `finally`s run on the way out, and touch nothing
            return None
        if self._at == len(self._answers):
            self._stopped = True
            raise _Asks(question)
        answer = self._answers[self._at]
        self._at += 1
        if isinstance(answer, Missing):
            raise FileNotFoundError(2, "No such file or directory", "the reservation")
        if isinstance(answer, Broken):
            raise OSError(5, "Input/output error", "the disk")
        if isinstance(answer, Silent):
            raise SourceError("it gives no word")
        if isinstance(answer, Taken):
            raise FileExistsError(17, "File exists", "the reservation")
        return answer


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How a process of ours is run."""

    api: bool = False
    networks: tuple[str, ...] = (NETWORK,)
    cleaned: frozenset[str] = frozenset({NETWORK})
    grace: timedelta = timedelta(0)
    confirm: timedelta = timedelta(0)
    settle: timedelta = timedelta(0)
    max_share: float = 1.0
    budget: Budget = field(default_factory=Budget)
    only: frozenset[str] | None = None
    clock: bool = False
    """Whether time is looked at; otherwise it stands still, which no grace period survives."""
    subnet: str = "10.244.1.0/24"
    merged: bool = True
    """Whether what has no effect any more is forgotten, which makes fewer states of the same."""
    one_look: bool = False
    """Whether the first look is taken for the second too, which no real process does."""
    rounds: int = 0
    """0: `nodeleak clean`; otherwise so many rounds of `nodeleak run`."""


class InMemory:
    """The sources, the second look, the hands and the journal of a process, all asked of the node in memory."""

    waited = 0.0

    def __init__(self, ask: Answered, setup: Setup) -> None:
        self._ask, self._setup = ask, setup

    # Sources

    def sources(self) -> Sources:
        """Return the readers of what has a say in addresses; the model has nothing else."""
        names = ("reservations", "checkpoints", "containers", "cni_results", "processes", "addresses", "pods", "node")
        return Sources({name: self._reader(name) for name in names})

    def _reader(self, name: str) -> Reader:
        # By name at each call: a mutation replaces the method.
        return lambda _: getattr(self, name)()

    def reservations(self) -> tuple[NetworkStore, ...]:
        return self._ask("reservations", self._setup.networks)  # type: ignore[no-any-return]

    def checkpoints(self) -> tuple[Checkpoint, ...]:
        return self._ask("checkpoints")  # type: ignore[no-any-return]

    def containers(self) -> tuple[Container, ...]:
        return self._ask("containers")  # type: ignore[no-any-return]

    def cni_results(self) -> tuple[CniResult, ...]:
        ranges = ((subnet_range(self._setup.subnet),), (subnet_range("fd00::/64"),))
        return tuple(CniResult(name, "f" * 64, "eth0", "", ranges, "", 0) for name in self._setup.networks)

    def processes(self) -> ProcessStartTimes:
        return self._ask("processes")  # type: ignore[no-any-return]

    def addresses(self) -> tuple[Address, ...]:
        return self._ask("addresses")  # type: ignore[no-any-return]

    def pods(self) -> Reading[tuple[Pod, ...]]:
        return self._ask("pods") if self._setup.api else NotRequested("pods", "--api=off")

    def node(self) -> Reading[Node | None]:
        return Known(Node("worker-1", (), 110)) if self._setup.api else NotRequested("node", "--api=off")

    # Recheck

    def has_container(self, container_id: str) -> bool:
        return self._ask("has_container", container_id)  # type: ignore[no-any-return]

    def has_checkpoint(self, container_id: str) -> bool:
        return self._ask("has_checkpoint", container_id)  # type: ignore[no-any-return]

    def holder_of(self, ips: Sequence[str]) -> str:
        return "process 7 (pause)" if self._ask("holder_of", tuple(ips)) else ""

    # Hands

    def check(self, networks: Sequence[str]) -> None: ...

    def read(self, reservation: Reservation) -> tuple[Reservation | UnrecognizedEntry, FileImage] | None:
        return self._ask("read", reservation.network, reservation.ip)  # type: ignore[no-any-return]

    def cached(self, _candidate: ReleaseRequest) -> tuple[FileImage, ...]:
        return ()

    def lock(self, _networks: Sequence[str]) -> Locked | None:
        return self if self._ask("lock") else None

    def unlock(self) -> float:
        self._ask("unlock")
        return 0.0

    def remove(self, image: FileImage) -> None:
        self._ask("remove", image)

    def put_back(self, image: FileImage) -> None:
        self._ask("put_back", image)

    def present(self, image: FileImage) -> FileImage | None:
        return self._ask("present", image)  # type: ignore[no-any-return]

    def taken(self, image: FileImage) -> bool:
        return self._ask("present", image) is not None

    def addresses_of(self, container_id: str, network: str) -> tuple[str, ...]:
        raise NotImplementedError  # only `nodeleak restore` asks, which is not modelled


class InMemoryBook(JournalStore):
    """The journal and the cleaner's lock in memory."""

    def __init__(self, ask: Answered) -> None:
        self._ask = ask
        self.known = Journal()

    @contextmanager
    def exclusive(self, _seconds: float) -> Iterator[None]:
        if not self._ask("exclusive"):
            raise Busy("another cleaner is at work")
        try:
            yield
        finally:
            self._ask("leave")

    def trouble(self) -> str:
        return ""

    def read(self) -> Journal:
        self.known = self._ask("journal")
        return self.known

    def begin(self, entry: Entry, _evidence: Sequence[str]) -> None:
        self._ask("begin", entry)

    def end(self, name: str, verdict: Verdict, why: str, _at: datetime) -> None:
        self._ask("end", name, verdict, why)


Parts = tuple[Sources, Recheck, RestoreOperations, InMemoryBook]


def as_it_is(ask: Answered, setup: Setup) -> Parts:
    """Put a process together without any change."""
    node = InMemory(ask, setup)
    return node.sources(), node, node, InMemoryBook(ask)


Assembly = Callable[[Answered, Setup], Parts]


def clean(ask: Answered, setup: Setup, assemble: Assembly) -> None:
    """`nodeleak clean --apply`, or rounds of `nodeleak run --cleanup=auto`."""
    sources, again, file_ops, journal_store = assemble(ask, setup)
    limits = Limits(
        networks=setup.cleaned, grace=setup.grace, settle=setup.settle, max_share=setup.max_share, only=setup.only
    )

    def now() -> Moment:
        return ask("moment") if setup.clock else Moment(START, UPTIME)

    looked = [START]

    def look() -> Snapshot:
        moment = now()
        looked.append(moment.wall)
        return take_snapshot(sources, "worker-1", moment, lambda: 0.0)

    def pen_time() -> datetime:
        # No time passes after a look: that verdicts are acted on for a minute only is not what is proved here.
        return looked[-1] + timedelta(microseconds=ask("number"))

    if setup.rounds:
        live = ApplyingCleaner(
            CleanupSession(limits, setup.budget, journal_store, "run"),
            again,
            lambda: file_ops,
            journal_store,
            pen_time,
            0.0,
        )
        memory: ConfirmationState | None = None
        for _ in range(setup.rounds):
            live.before_snapshot(START)
            snapshot = look()
            report, memory = engine.run(snapshot, memory, grace=setup.grace, confirm_after=setup.confirm)
            live.after_snapshot((snapshot,), report)
        return
    live = ApplyingCleaner(
        _Judge(limits, setup, journal_store, ask), again, lambda: file_ops, journal_store, pen_time, 0.0
    )
    live.before_snapshot(START)
    snapshots: tuple[Snapshot, ...] = (look(),)
    if engine.needs_second_snapshot(snapshots[0], setup.grace):
        _, memory = engine.run(snapshots[0], None, grace=setup.grace, confirm_after=setup.confirm)
        runtime_history = watch(RuntimeHistory(), snapshots[0])
        found, pods = frozenset(memory.observations.items()), frozenset(memory.pods.items())
        # Whether a released id is there again is asked of the look itself.
        _forget(
            ask,
            setup,
            "looked",
            memory.taken_at,
            memory.uptime,
            found,
            pods,
            runtime_history,
            journal_store.known,
            snapshots[0] if journal_store.known.entries else None,
        )
        if setup.confirm:
            ask("wait", setup.confirm.total_seconds())
        snapshots = (*snapshots, snapshots[0] if setup.one_look else look())
    live.after_snapshot(snapshots, engine.replay(snapshots, grace=setup.grace, confirm_after=setup.confirm))


def _forget(ask: Answered, setup: Setup, *all_that_counts: Answer) -> None:
    if setup.merged:
        ask(MERGE, *all_that_counts)


class _Judge(CleanupSession):
    """Says what it lets pass: nothing else of all that was read has any effect after that."""

    def __init__(self, limits: Limits, setup: Setup, journal_store: JournalStore, ask: Answered) -> None:
        super().__init__(limits, setup.budget, journal_store, "clean")
        self._ask, self._setup = ask, setup

    def case(self, snapshots: Sequence[Snapshot], report: Report) -> GuardContext:
        case = super().case(snapshots, report)
        _forget(
            self._ask,
            self._setup,
            "judged",
            tuple(one for one, refusals in guards.decide(case) if not refusals),
            case.halted,
        )
        return case


class Tree:
    """Everything that a process can have read, and what it asks next. The root is 0: it has not begun."""

    def __init__(self, setup: Setup, assemble: Assembly = as_it_is) -> None:
        self._setup, self._assemble = setup, assemble
        self._read: list[tuple[Answer, ...]] = [()]
        self._next: dict[int, Question | None] = {}
        self._children: dict[tuple[int, Answer], int] = {}
        self._places: dict[Question, int] = {}

    def question(self, node: int) -> Question | None:
        """Return what the process asks next; None where it has ended."""
        if node == ENDED:
            return None
        if node not in self._next:
            self._next[node] = self._run(self._read[node])
        return self._next[node]

    def _run(self, answers: tuple[Answer, ...]) -> Question | None:
        try:
            clean(Answered(answers), self._setup, self._assemble)
        except _Asks as asks:
            return asks.question
        return None

    def after(self, node: int, answer: Answer) -> int:
        """Return where the process is when it was answered."""
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
    def stopped(self) -> bool:
        """Whether cleaning stopped itself anywhere, because a released sandbox was there again."""
        return any(question[1] == "judged" and question[-1] for question in self._places)

    def __len__(self) -> int:
        return len(self._read)

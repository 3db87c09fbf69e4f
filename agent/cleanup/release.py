"""Releasing one sandbox's addresses, step by step: look again, lock, compare, remove. Nothing is touched from here.

Every touch is the hands' (`actuator.py`, `book.py`, the sources), one between two `yield`s, so that a test can put
anything that can happen on a node, and our own death, between any two of them.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Protocol

from agent.model.release import Candidate, Outcome, Reason, Refusal, Verdict
from agent.model.snapshot import Foreign, Reservation
from agent.sources.error import Unavailable

RESERVATION: Final = "reservation"


@dataclass(frozen=True, slots=True)
class Kept:
    """One file, whole: enough to know it again, and to put it back byte for byte."""

    place: str
    """`RESERVATION`, or the directory of libcni's cache that it lies in."""
    network: str
    name: str
    content: bytes
    mode: int
    uid: int
    gid: int
    inode: int
    mtime_ns: int


class SecondLook(Protocol):
    """What is asked again of one sandbox, live. Each raises Unavailable where there is no definite answer."""

    def has_container(self, container_id: str) -> bool: ...
    def has_checkpoint(self, container_id: str) -> bool: ...
    def holder_of(self, ips: Sequence[str]) -> str:
        """Return who has one of the addresses configured; empty where nobody has."""
        ...


class Locked(Protocol):
    """host-local's locks on some networks, as held."""

    @property
    def waited(self) -> float: ...
    def unlock(self) -> float:
        """Return the seconds for which they were held."""
        ...


class Hands(Protocol):
    """What changes the node. Each raises OSError where the system says no."""

    def check(self, networks: Sequence[str]) -> None:
        """Raise OSError where nothing could be removed."""
        ...

    def read(self, reservation: Reservation) -> tuple[Reservation | Foreign, Kept] | None:
        """Return what lies under that name now; None where nothing does."""
        ...

    def cached(self, candidate: Candidate) -> tuple[Kept, ...]:
        """Return what libcni keeps of the sandbox, known by what is inside."""
        ...

    def lock(self, networks: Sequence[str]) -> Locked | None:
        """Return the locks; None where somebody held one for too long."""
        ...

    def remove(self, kept: Kept) -> None: ...
    def put_back(self, kept: Kept) -> None: ...


class Pen(Protocol):
    """What writes the journal. `begin` returns the entry's name, and raises OSError where it is not on disk."""

    def begin(self, candidate: Candidate, files: Sequence[Kept], evidence: Sequence[str]) -> str: ...
    def end(self, entry: str, verdict: Verdict, why: str) -> None: ...


class Step(StrEnum):
    """Where a release is. The node may change, and we may die, at each."""

    ASKED_DOCKER = "asked docker"
    ASKED_KUBELET = "asked for a checkpoint"
    ASKED_KERNEL = "asked the namespaces"
    READ = "read the files"
    JOURNALLED = "journalled"
    LOCKED = "locked"
    COMPARED = "compared"
    REMOVED = "removed a reservation"
    UNLOCKED = "unlocked"
    FORGOTTEN = "removed from libcni's cache"


def release(candidate: Candidate, again: SecondLook, hands: Hands, pen: Pen) -> Generator[Step, None, Outcome]:
    """Release one candidate that passed every guard, or say what came between."""
    try:
        hands.check(candidate.networks)
        if refusal := (yield from _look_again(candidate, again)):
            return Outcome(candidate, Verdict.REFUSED, (refusal,))
        files = [_read(reservation, hands) for reservation in candidate.reservations]
        cached = hands.cached(candidate)
        yield Step.READ
    except _Missed as missed:
        return Outcome(candidate, missed.verdict, why=missed.why)
    except (Unavailable, OSError) as error:
        return Outcome(candidate, Verdict.FAILED, why=said(error))
    waited = _probe(candidate, hands)
    if isinstance(waited, Outcome):
        return waited
    try:
        # Before the lock, because a disk may take its time, and every ADD of the node would wait for it. What is
        # compared under the lock is what was written down here, to the byte.
        entry = pen.begin(candidate, (*files, *cached), _EVIDENCE)
    except OSError as error:
        return Outcome(candidate, Verdict.REFUSED, (Refusal(Reason.JOURNAL_UNWRITABLE, said(error)),))
    yield Step.JOURNALLED
    outcome = yield from _under_lock(candidate, files, hands)
    why = outcome.why
    if outcome.verdict is Verdict.RELEASED:
        why = "; ".join(filter(None, (why, (yield from _forget(cached, hands)))))
    try:
        pen.end(entry, outcome.verdict, why)
    except OSError as error:
        why = "; ".join(filter(None, (why, f"the journal does not say how it ended: {said(error)}")))
    return replace(outcome, why=why, entry=entry, waited=None if outcome.waited is None else waited + outcome.waited)


_EVIDENCE = (
    "docker answered that there is no such container",
    "no sandbox checkpoint",
    "no process has the address configured",
    "under host-local's locks the file was the one kept here",
)


class _Missed(Exception):
    """The file is not the one that was judged: a race lost, and no fault."""

    def __init__(self, verdict: Verdict, why: str) -> None:
        super().__init__(why)
        self.verdict, self.why = verdict, why


def said(error: Exception) -> str:
    """Put an error into words: the file and the system's reason, where it has them."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def _look_again(candidate: Candidate, again: SecondLook) -> Generator[Step, None, Refusal | None]:
    """Ask the owners once more, of this sandbox alone. An empty file names none: then only the kernel is asked."""
    if container_id := candidate.container_id:
        if again.has_container(container_id):
            return Refusal(Reason.CONTAINER_EXISTS, "asked for that one id, docker has its container")
        yield Step.ASKED_DOCKER
        if again.has_checkpoint(container_id):
            return Refusal(Reason.TEARDOWN_PENDING, "a checkpoint of its sandbox is there now")
        yield Step.ASKED_KUBELET
    if holder := again.holder_of([reservation.ip for reservation in candidate.reservations]):
        return Refusal(Reason.ADDRESS_ALIVE, f"{holder} has the address now")
    yield Step.ASKED_KERNEL
    return None


def _read(reservation: Reservation, hands: Hands) -> Kept:
    now = hands.read(reservation)
    if now is None:
        raise _Missed(Verdict.GONE, f"{reservation.ip} was released by somebody else")
    if now[0] != reservation:
        raise _Missed(Verdict.CHANGED, f"{reservation.ip} is not the file that was judged")
    return now[1]


def _probe(candidate: Candidate, hands: Hands) -> Outcome | float:
    """See that the locks are to be had: one that is held for hours must not fill the journal. Returns the wait."""
    try:
        locked = hands.lock(candidate.networks)
    except OSError as error:
        return Outcome(candidate, Verdict.FAILED, why=said(error))
    if locked is None:
        return Outcome(candidate, Verdict.BUSY, why=_HELD)
    locked.unlock()
    return locked.waited


_HELD = "host-local's lock is held by somebody else"


def _compare(reservation: Reservation, kept: Kept, hands: Hands) -> None:
    if _read(reservation, hands) != kept:
        raise _Missed(Verdict.CHANGED, f"{reservation.ip} is not the file that was written down")


def _under_lock(candidate: Candidate, files: Sequence[Kept], hands: Hands) -> Generator[Step, None, Outcome]:
    """Compare and remove. No socket is asked here, nothing is waited for, nothing is written but the directory."""
    try:
        locked = hands.lock(candidate.networks)
    except OSError as error:
        return Outcome(candidate, Verdict.FAILED, why=said(error))
    if locked is None:
        return Outcome(candidate, Verdict.BUSY, why=_HELD)
    verdict, why = Verdict.RELEASED, ""
    removed: list[Kept] = []
    lost: list[str] = []
    try:
        yield Step.LOCKED
        for reservation, kept in zip(candidate.reservations, files, strict=True):
            _compare(reservation, kept, hands)
        yield Step.COMPARED
        for kept in files:
            try:
                hands.remove(kept)
                removed.append(kept)
            except FileNotFoundError:
                lost.append(f"{kept.name}: removed by somebody who does not take the lock")
            yield Step.REMOVED
        verdict, why = (Verdict.RELEASED if removed else Verdict.GONE), "; ".join(lost)
    except _Missed as missed:
        verdict, why = missed.verdict, missed.why
    except OSError as error:
        verdict, why = Verdict.FAILED, f"{said(error)}{_undo(removed, hands)}"
    finally:
        held = locked.unlock()
    yield Step.UNLOCKED
    return Outcome(candidate, verdict, why=why, waited=locked.waited, held=held)


def _undo(removed: Sequence[Kept], hands: Hands) -> str:
    """Put back what was removed of a sandbox that cannot be released whole; say where that failed."""
    try:
        for kept in removed:
            hands.put_back(kept)
    except OSError as error:
        return f"; {said(error)}: half of the sandbox was removed, and `nodeleak restore` can put it back"
    return ""


def _forget(cached: Sequence[Kept], hands: Hands) -> Generator[Step, None, str]:
    """Remove what libcni remembers of the sandbox; that it could not be is told, and no failure."""
    left: list[str] = []
    for kept in cached:
        try:
            hands.remove(kept)
        except OSError as error:
            left.append(f"left in libcni's cache: {said(error)}")
        yield Step.FORGOTTEN
    return "; ".join(left)

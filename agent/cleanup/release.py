"""Releasing one sandbox's addresses, step by step: look again, lock, compare, remove. Nothing is touched from here.

Every change is made by `files.py`, `book.py` or a source, one between two `yield`s, so that a test can put
anything that can happen on a node, and our own death, between any two of them.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Protocol

from agent.model.release import Outcome, Reason, Refusal, ReleaseRequest, Verdict
from agent.model.snapshot import Reservation, UnrecognizedEntry
from agent.sources.error import SourceError

RESERVATION: Final = "reservation"


@dataclass(frozen=True, slots=True)
class FileImage:
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


class Recheck(Protocol):
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


class FileOperations(Protocol):
    """What changes the node. Each raises OSError where the system says no."""

    def check(self, networks: Sequence[str]) -> None:
        """Raise OSError where nothing could be removed."""
        ...

    def read(self, reservation: Reservation) -> tuple[Reservation | UnrecognizedEntry, FileImage] | None:
        """Return what lies under that name now; None where nothing does."""
        ...

    def cached(self, candidate: ReleaseRequest) -> tuple[FileImage, ...]:
        """Return what libcni keeps of the sandbox, known by what is inside."""
        ...

    def lock(self, networks: Sequence[str]) -> Locked | None:
        """Return the locks; None where somebody held one for too long."""
        ...

    def remove(self, image: FileImage) -> None: ...
    def put_back(self, image: FileImage) -> None: ...


class JournalWriter(Protocol):
    """What writes the journal. `begin` returns the entry's name, and raises OSError where it is not on disk."""

    def begin(self, candidate: ReleaseRequest, files: Sequence[FileImage], evidence: Sequence[str]) -> str: ...
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


def release(
    candidate: ReleaseRequest, again: Recheck, file_ops: FileOperations, writer: JournalWriter
) -> Generator[Step, None, Outcome]:
    """Release one candidate that passed every guard, or say what came between."""
    try:
        file_ops.check(candidate.networks)
        if refusal := (yield from _look_again(candidate, again)):
            return Outcome(candidate, Verdict.REFUSED, (refusal,))
        files = [_read(reservation, file_ops) for reservation in candidate.reservations]
        cached = file_ops.cached(candidate)
        yield Step.READ
    except _Missed as missed:
        return Outcome(candidate, missed.verdict, why=missed.why)
    except (SourceError, OSError) as error:
        return Outcome(candidate, Verdict.FAILED, why=describe_error(error))
    waited = _probe(candidate, file_ops)
    if isinstance(waited, Outcome):
        return waited
    try:
        # Before the lock, because a disk may take its time, and every ADD of the node would wait for it. What is
        # compared under the lock is what was written down here, to the byte.
        entry = writer.begin(candidate, (*files, *cached), _EVIDENCE)
    except OSError as error:
        return Outcome(candidate, Verdict.REFUSED, (Refusal(Reason.JOURNAL_UNWRITABLE, describe_error(error)),))
    yield Step.JOURNALLED
    outcome = yield from _under_lock(candidate, files, file_ops)
    why = outcome.why
    if outcome.verdict is Verdict.RELEASED:
        why = "; ".join(filter(None, (why, (yield from _forget(cached, file_ops)))))
    try:
        writer.end(entry, outcome.verdict, why)
    except OSError as error:
        why = "; ".join(filter(None, (why, f"the journal does not say how it ended: {describe_error(error)}")))
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


def describe_error(error: Exception) -> str:
    """Put an error into words: the file and the system's reason, where it has them."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def _look_again(candidate: ReleaseRequest, again: Recheck) -> Generator[Step, None, Refusal | None]:
    """Ask the owners once more, of this sandbox alone. An empty file names none: then only the kernel is asked."""
    if container_id := candidate.container_id:
        if again.has_container(container_id):
            return Refusal(Reason.CONTAINER_EXISTS, "asked for that one id, docker has its container")
        yield Step.ASKED_DOCKER
        if again.has_checkpoint(container_id):
            return Refusal(Reason.TEARDOWN_PENDING, "a checkpoint of its sandbox is there now")
        yield Step.ASKED_KUBELET
    if holder := again.holder_of([reservation.ip for reservation in candidate.reservations]):
        return Refusal(Reason.ADDRESS_IN_USE, f"{holder} has the address now")
    yield Step.ASKED_KERNEL
    return None


def _read(reservation: Reservation, file_ops: FileOperations) -> FileImage:
    now = file_ops.read(reservation)
    if now is None:
        raise _Missed(Verdict.GONE, f"{reservation.ip} was released by somebody else")
    if now[0] != reservation:
        raise _Missed(Verdict.CHANGED, f"{reservation.ip} is not the file that was judged")
    return now[1]


def _probe(candidate: ReleaseRequest, file_ops: FileOperations) -> Outcome | float:
    """See that the locks are to be had: one that is held for hours must not fill the journal. Returns the wait."""
    try:
        locked = file_ops.lock(candidate.networks)
    except OSError as error:
        return Outcome(candidate, Verdict.FAILED, why=describe_error(error))
    if locked is None:
        return Outcome(candidate, Verdict.BUSY, why=_HELD)
    locked.unlock()
    return locked.waited


_HELD = "host-local's lock is held by somebody else"


def _compare(reservation: Reservation, image: FileImage, file_ops: FileOperations) -> None:
    if _read(reservation, file_ops) != image:
        raise _Missed(Verdict.CHANGED, f"{reservation.ip} is not the file that was written down")


def _under_lock(
    candidate: ReleaseRequest, files: Sequence[FileImage], file_ops: FileOperations
) -> Generator[Step, None, Outcome]:
    """Compare and remove. No socket is asked here, nothing is waited for, nothing is written but the directory."""
    try:
        locked = file_ops.lock(candidate.networks)
    except OSError as error:
        return Outcome(candidate, Verdict.FAILED, why=describe_error(error))
    if locked is None:
        return Outcome(candidate, Verdict.BUSY, why=_HELD)
    verdict, why = Verdict.RELEASED, ""
    removed: list[FileImage] = []
    lost: list[str] = []
    try:
        yield Step.LOCKED
        for reservation, image in zip(candidate.reservations, files, strict=True):
            _compare(reservation, image, file_ops)
        yield Step.COMPARED
        for image in files:
            try:
                file_ops.remove(image)
                removed.append(image)
            except FileNotFoundError:
                lost.append(f"{image.name}: removed by somebody who does not take the lock")
            yield Step.REMOVED
        verdict, why = (Verdict.RELEASED if removed else Verdict.GONE), "; ".join(lost)
    except _Missed as missed:
        verdict, why = missed.verdict, missed.why
    except OSError as error:
        verdict, why = Verdict.FAILED, f"{describe_error(error)}{_undo(removed, file_ops)}"
    finally:
        held = locked.unlock()
    yield Step.UNLOCKED
    return Outcome(candidate, verdict, why=why, waited=locked.waited, held=held)


def _undo(removed: Sequence[FileImage], file_ops: FileOperations) -> str:
    """Put back what was removed of a sandbox that cannot be released whole; say where that failed."""
    try:
        for image in removed:
            file_ops.put_back(image)
    except OSError as error:
        return f"; {describe_error(error)}: half of the sandbox was removed, and `nodeleak restore` can put it back"
    return ""


def _forget(cached: Sequence[FileImage], file_ops: FileOperations) -> Generator[Step, None, str]:
    """Remove what libcni remembers of the sandbox; that it could not be is told, and no failure."""
    left: list[str] = []
    for image in cached:
        try:
            file_ops.remove(image)
        except OSError as error:
            left.append(f"left in libcni's cache: {describe_error(error)}")
        yield Step.FORGOTTEN
    return "; ".join(left)

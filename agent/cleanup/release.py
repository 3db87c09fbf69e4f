"""The release of one sandbox's addresses, step by step: recheck, read, journal, lock, compare, remove. No I/O here.

`files.py`, `journal_store.py` or a source does each operation, between two `yield`s, so that a test can put any event
on the node, and the death of the agent, between any two operations.
"""

import posixpath
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Protocol

from agent.model.release import Outcome, ProbeResult, Reason, Refusal, ReleaseRequest, Verdict
from agent.model.snapshot import Reservation, UnrecognizedEntry
from agent.sources.source_error import SourceError

RESERVATION: Final = "reservation"
LOCK_HELD: Final = "another process holds host-local's lock"


@dataclass(frozen=True, slots=True)
class FileImage:
    """One file: enough to recognize it, and to put it back byte for byte."""

    place: str
    """`RESERVATION`, or its directory in libcni's cache."""
    network: str
    name: str
    content: bytes
    mode: int
    uid: int
    gid: int
    inode: int
    mtime_ns: int
    data_dir: str = ""
    """Of a reservation (`Reservation.data_dir`)."""

    @property
    def directory(self) -> str:
        """The directory of a reservation (`Reservation.directory`)."""
        return posixpath.join(self.data_dir, self.network)


class Recheck(Protocol):
    """Live questions about a sandbox or an address. Each raises SourceError if there is no definite answer."""

    def has_container(self, container_id: str, /) -> bool: ...
    def has_checkpoint(self, container_id: str, /) -> bool | None:
        """None: the kubelet of this node keeps none."""
        ...

    def holder_of(self, container_id: str, ips: Sequence[str]) -> str:
        """Say who has one of the addresses; empty if nobody has. `container_id`: empty if it is not known."""
        ...

    def probe(self, ips: Sequence[str]) -> Mapping[str, ProbeResult]:
        """Look for whoever has an address without a process. Of all addresses at once: it may take some seconds."""
        ...


class Locked(Protocol):
    """host-local's locks on some directories, held until `unlock`."""

    @property
    def waited(self) -> float: ...
    def unlock(self) -> float:
        """Return the seconds for which the locks were held."""
        ...


class FileOperations(Protocol):
    """What changes the node. Each raises OSError."""

    def read(self, reservation: Reservation) -> tuple[Reservation | UnrecognizedEntry, FileImage] | None:
        """Return the file that has the reservation's name now; None if there is none."""
        ...

    def cached(self, request: ReleaseRequest) -> tuple[FileImage, ...]:
        """Return libcni's cached results for the sandbox, without those that the runtime needs."""
        ...

    def try_lock(self, directories: Sequence[str]) -> float | None:
        """Check that files can be removed and locks taken. Return the seconds waited; None if a lock is held."""
        ...

    def lock(self, directories: Sequence[str]) -> Locked | None:
        """Take the locks; None if another process held one for too long."""
        ...

    def remove(self, image: FileImage) -> None: ...
    def put_back(self, image: FileImage) -> None: ...


class JournalFull(OSError):
    """The journal would have to drop an entry that may still be needed; the text says until when."""


class JournalWriter(Protocol):
    """`begin` returns the name of the entry, and raises OSError if it is not on disk."""

    def begin(self, request: ReleaseRequest, files: Sequence[FileImage], evidence: Sequence[str]) -> str: ...
    def end(self, entry: str, verdict: Verdict, why: str) -> None: ...


class Step(StrEnum):
    """What a release has just done. The node may change, and the agent may die, at each step."""

    ASKED_RUNTIME = "asked the container runtime"
    ASKED_KUBELET = "asked for a checkpoint"
    ASKED_KERNEL = "asked the namespaces"
    READ = "read the files"
    JOURNALED = "journaled"
    LOCKED = "locked"
    COMPARED = "compared"
    REMOVED = "removed a reservation"
    UNLOCKED = "unlocked"
    CACHE_REMOVED = "removed from libcni's cache"


def run_steps(steps: Generator[Step, None, Outcome]) -> Outcome:
    """Run a release to its end."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            outcome: Outcome = done.value
            return outcome


def release(
    request: ReleaseRequest,
    recheck: Recheck,
    file_ops: FileOperations,
    writer: JournalWriter,
    evidence: Sequence[str] = (),
) -> Generator[Step, None, Outcome]:
    """Release one request that passed every guard. `evidence`: for the journal, besides what is asked here."""
    try:
        if isinstance(asked := (yield from _recheck(request, recheck)), Refusal):
            return Outcome(request, Verdict.REFUSED, (asked,))
        files = [_read(reservation, file_ops) for reservation in request.reservations]
        cached = file_ops.cached(request)
        yield Step.READ
        # A lock that is held for hours must not fill the journal.
        if (waited := file_ops.try_lock(request.directories)) is None:
            return Outcome(request, Verdict.BUSY, why=LOCK_HELD)
    except _RaceLost as lost:
        return Outcome(request, lost.verdict, why=lost.why)
    except (SourceError, OSError) as error:
        return Outcome(request, Verdict.FAILED, why=describe_error(error))
    try:
        # Not under the lock, because a disk can be slow, and every ADD on the node would wait for it. What is
        # compared under the lock is, to the byte, what is journaled here.
        entry = writer.begin(request, (*files, *cached), (*asked, *evidence))
    except OSError as error:
        reason = Reason.JOURNAL_FULL if isinstance(error, JournalFull) else Reason.JOURNAL_UNWRITABLE
        return Outcome(request, Verdict.REFUSED, (Refusal(reason, describe_error(error)),))
    yield Step.JOURNALED
    try:
        outcome = yield from _under_lock(request, files, file_ops)
    except OSError as error:  # the entry stays unfinished
        return Outcome(request, Verdict.FAILED, why=describe_error(error), entry=entry)
    left = (yield from _remove_cached(cached, file_ops)) if outcome.verdict is Verdict.RELEASED else ""
    why = join(outcome.why, left)
    try:
        writer.end(entry, outcome.verdict, why)
    except OSError as error:
        why = join(why, f"the journal does not record the outcome: {describe_error(error)}")
    return replace(outcome, why=why, entry=entry, waited=None if outcome.waited is None else waited + outcome.waited)


class _RaceLost(Exception):
    """The file is no longer the one that was assessed. Not a failure."""

    def __init__(self, verdict: Verdict, why: str) -> None:
        super().__init__(why)
        self.verdict, self.why = verdict, why


def describe_error(error: Exception) -> str:
    """Return the file and the system's message, if the error has them."""
    if isinstance(error, OSError) and error.strerror:
        why = f"{error.strerror[:1].lower()}{error.strerror[1:]}"
        return f"{error.filename}: {why}" if error.filename else why
    return str(error)


def join(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def _recheck(request: ReleaseRequest, recheck: Recheck) -> Generator[Step, None, Refusal | list[str]]:
    """Ask again for owners of this sandbox alone. Return each answer if none objects.

    An empty file names no sandbox: then only the kernel is asked.
    """
    asked: list[str] = []
    if container_id := request.container_id:
        if recheck.has_container(container_id):
            return Refusal(Reason.CONTAINER_EXISTS, "recheck: the container runtime has the container")
        asked.append("the container runtime answered that there is no such container")
        yield Step.ASKED_RUNTIME
        if checkpoint := recheck.has_checkpoint(container_id):
            return Refusal(Reason.TEARDOWN_PENDING, "recheck: the sandbox has a checkpoint")
        if checkpoint is not None:
            asked.append("the kubelet has no checkpoint of the sandbox")
        yield Step.ASKED_KUBELET
    if holder := recheck.holder_of(container_id, [reservation.ip for reservation in request.reservations]):
        return Refusal(Reason.ADDRESS_IN_USE, f"recheck: {holder}")
    asked.append("no process has the address configured")
    if container_id:
        asked.append("no mounted network namespace is that of the sandbox, as far as libcni's cache names it")
    yield Step.ASKED_KERNEL
    return asked


def _read(reservation: Reservation, file_ops: FileOperations) -> FileImage:
    found = file_ops.read(reservation)
    if found is None:
        raise _RaceLost(Verdict.GONE, f"{reservation.ip} was released by another process")
    if found[0] != reservation or not found[1].name:  # it may vanish between two readings
        raise _RaceLost(Verdict.CHANGED, f"{reservation.ip} is not the file that was assessed")
    return found[1]


def _compare(reservation: Reservation, image: FileImage, file_ops: FileOperations) -> None:
    if _read(reservation, file_ops) != image:
        raise _RaceLost(Verdict.CHANGED, f"{reservation.ip} is not the file that was journaled")


def _under_lock(
    request: ReleaseRequest, files: Sequence[FileImage], file_ops: FileOperations
) -> Generator[Step, None, Outcome]:
    """Compare and remove. Under the lock nothing is asked, nothing is waited for, and only the directory is written."""
    try:
        locked = file_ops.lock(request.directories)
    except OSError as error:
        return Outcome(request, Verdict.FAILED, why=describe_error(error))
    if locked is None:
        return Outcome(request, Verdict.BUSY, why=LOCK_HELD)
    verdict, why = Verdict.RELEASED, ""
    removed: list[FileImage] = []
    lost: list[str] = []
    try:
        yield Step.LOCKED
        for reservation, image in zip(request.reservations, files, strict=True):
            _compare(reservation, image, file_ops)
        yield Step.COMPARED
        for image in files:
            try:
                file_ops.remove(image)
                removed.append(image)
            except FileNotFoundError:
                lost.append(f"{image.name}: removed by a process that does not take the lock")
            yield Step.REMOVED
        verdict, why = (Verdict.RELEASED if removed else Verdict.GONE), "; ".join(lost)
    except _RaceLost as race:
        verdict, why = race.verdict, race.why
    except OSError as error:
        verdict, why = Verdict.FAILED, describe_error(error)
        _undo(removed, file_ops, why)
    finally:
        held = locked.unlock()
    yield Step.UNLOCKED
    return Outcome(request, verdict, why=why, waited=locked.waited, held=held)


def _undo(removed: Sequence[FileImage], file_ops: FileOperations, why: str) -> None:
    """Put back what was removed of a sandbox that cannot be released completely. Raises OSError."""
    try:
        for image in removed:
            file_ops.put_back(image)
    except OSError as error:
        partly = "the sandbox is partly released; the next cleanup or restore recovers it"
        raise OSError(join(why, f"{describe_error(error)}: {partly}")) from error


def _remove_cached(cached: Sequence[FileImage], file_ops: FileOperations) -> Generator[Step, None, str]:
    """Remove libcni's cached results. Return what could not be removed, which is not a failure."""
    left: list[str] = []
    for image in cached:
        try:
            file_ops.remove(image)
        except OSError as error:
            left.append(f"left in libcni's cache: {describe_error(error)}")
        yield Step.CACHE_REMOVED
    return "; ".join(left)

"""Restore released addresses, and recover interrupted releases and restorations."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from agent.cleanup.journal import Entry, Journal
from agent.cleanup.journal_store import JournalStore
from agent.cleanup.release import LOCK_HELD, RESERVATION, FileImage, FileOperations, Locked, describe_error, join
from agent.model.release import Verdict


class RestoreOperations(FileOperations, Protocol):
    """What restoring needs besides releasing. Each raises OSError."""

    def present(self, image: FileImage) -> FileImage | None: ...
    def taken(self, image: FileImage) -> bool: ...
    def addresses_of(self, container_id: str, directory: str) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class Restoration:
    """The outcome of a restoration."""

    entry: Entry
    done: bool
    why: str = ""
    """Why it failed; or what was not put back besides the reservations."""


class RestoreError(Exception):
    """The entry must not be restored; the text says why."""


class _PartlyRestored(OSError):
    """Some reservations were put back, and cannot be removed again."""


def missing_of(entry: Entry, file_ops: RestoreOperations) -> tuple[FileImage, ...]:
    """Return the reservations to put back.

    Raises RestoreError if that would take an address from its owner, or give a sandbox two.
    """
    if entry.verdict is None:
        raise RestoreError("the entry is unfinished, the next cleanup or restore recovers it")
    if entry.verdict not in {Verdict.RELEASED, Verdict.INTERRUPTED}:
        raise RestoreError(f"nothing was released: the outcome was {entry.verdict.value}")
    missing = _missing(entry, file_ops)
    if not missing and not (entry.released and entry.reservations):
        raise RestoreError("nothing is missing: all reservations are in place")
    for image in missing:
        if file_ops.taken(image):
            raise RestoreError(f"{image.name} of network {image.network} is reserved again")
    if entry.container_id:
        _check_addresses(entry, {image.directory for image in missing}, file_ops)
    return missing


def _check_addresses(entry: Entry, directories: Iterable[str], file_ops: RestoreOperations) -> None:
    own = {image.name for image in entry.reservations}
    for directory in directories:
        if others := set(file_ops.addresses_of(entry.container_id, directory)) - own:
            listed = ", ".join(sorted(others))
            raise RestoreError(f"container {entry.container_id[:12]} has another address now: {listed}")


def _missing(entry: Entry, file_ops: RestoreOperations) -> tuple[FileImage, ...]:
    """Return the reservations that are not in place. IDs are never reused, so equal content is proof."""
    found = ((image, file_ops.present(image)) for image in entry.reservations)
    return tuple(image for image, now in found if now is None or now.content != image.content)


def restore(entry: Entry, file_ops: RestoreOperations, journal_store: JournalStore, now: datetime) -> Restoration:
    """Put the files of an entry back, under host-local's locks. The caller holds the cleaner's lock."""
    try:
        missing_of(entry, file_ops)
        # A lock that is held for hours must not fill the journal.
        if file_ops.try_lock(_directories(entry)) is None:
            return Restoration(entry, done=False, why=LOCK_HELD)
        # If this process is killed now, the next cleanup or restore knows what it began.
        journal_store.restoring(entry.name, now)
    except (RestoreError, OSError) as error:
        return Restoration(entry, done=False, why=describe_error(error))
    try:
        missing = _put_back_under_lock(entry, file_ops)
    except _PartlyRestored as error:
        return Restoration(entry, done=False, why=f"{error}; the next cleanup or restore recovers it")
    except (RestoreError, OSError) as error:
        why = describe_error(error)
        verdict = entry.verdict or Verdict.FAILED
        unrecorded = _record(lambda: journal_store.end(entry.name, verdict, f"not restored: {why}", now))
        return Restoration(entry, done=False, why=join(why, unrecorded))
    left = _put_back_cache(entry, file_ops) if missing else "it was already in place; the journal now records that"
    unrecorded = _record(lambda: journal_store.restored(entry.name, now))
    return Restoration(entry, done=True, why=join(left, unrecorded))


def recover_and_restore(
    name: str, file_ops: RestoreOperations, journal_store: JournalStore, now: datetime
) -> Restoration:
    """Do what `restore --apply` does, once it holds the cleaner's lock. Raises RestoreError, SourceError."""
    before = journal_store.read().named(name)
    unfinished = recover_all(file_ops, journal_store, now)
    journal = journal_store.read()
    entry = journal.named(name)
    if before is None or entry is None:
        raise RestoreError("the journal does not have the entry any more")
    if why := unfinished.get(name):
        # If it began anew and failed, nobody would know that a part of it may be in place.
        raise RestoreError(f"the entry is unfinished, and cannot be recovered now: {why}")
    if before.unfinished and not entry.released:
        return Restoration(entry, done=True, why="it was interrupted, and all its reservations are in place now")
    if before.verdict is None and entry.released:
        raise RestoreError(entry.why)
    check_last(journal, entry)
    return restore(entry, file_ops, journal_store, now)


def check_last(journal: Journal, entry: Entry) -> None:
    """Raise RestoreError if the entry's sandbox was released again later."""
    if later := journal.released_again(entry):
        raise RestoreError(f"the entry was restored and released again since: restore {later.name} instead")


def _directories(entry: Entry) -> list[str]:
    return sorted({image.directory for image in entry.reservations})


def _lock(entry: Entry, file_ops: RestoreOperations) -> Locked:
    locked = file_ops.lock(_directories(entry))
    if locked is None:
        raise RestoreError(LOCK_HELD)
    return locked


def _put_back_under_lock(entry: Entry, file_ops: RestoreOperations) -> tuple[FileImage, ...]:
    """Put back what is missing now, and return it."""
    locked = _lock(entry, file_ops)
    try:
        missing = missing_of(entry, file_ops)
        _put_back(missing, file_ops)
    finally:
        locked.unlock()
    return missing


def _record(write: Callable[[], None]) -> str:
    """Write an outcome to the journal. Return why that failed: the entry is unfinished then."""
    try:
        write()
    except OSError as error:
        return f"the journal does not record the outcome: {describe_error(error)}"
    return ""


def _put_back(reservations: tuple[FileImage, ...], file_ops: RestoreOperations) -> None:
    """Put back all or none."""
    created: list[FileImage] = []
    try:
        for image in reservations:
            file_ops.put_back(image)
            created.append(image)
    except OSError as error:
        try:
            for image in created:
                file_ops.remove(image)
        except OSError as left:
            raise _PartlyRestored(join(describe_error(error), describe_error(left))) from error
        raise


def _put_back_cache(entry: Entry, file_ops: RestoreOperations) -> str:
    left = []
    for image in entry.files:
        if image.place == RESERVATION:
            continue
        try:
            file_ops.put_back(image)
        except OSError as error:
            left.append(f"not restored to libcni's cache: {image.name}: {describe_error(error)}")
    return "; ".join(left)


def recover_all(file_ops: RestoreOperations, journal_store: JournalStore, now: datetime) -> Mapping[str, str]:
    """Finish what is unfinished. Return why an entry stays unfinished until the next time, by name.

    The caller holds the cleaner's lock. Raises SourceError if the journal cannot be read.
    """
    left: dict[str, str] = {}
    for entry in journal_store.read().unfinished():
        try:
            recover(entry, file_ops, journal_store, now)
        except (RestoreError, OSError) as error:
            left[entry.name] = describe_error(error)
    return left


def recover(entry: Entry, file_ops: RestoreOperations, journal_store: JournalStore, now: datetime) -> None:
    """Determine the outcome of an unfinished release or restoration, and record it. Raises OSError and RestoreError."""
    locked = _lock(entry, file_ops)
    try:
        verdict, found = _complete(entry, file_ops)
    finally:
        locked.unlock()
    if entry.restoring and verdict is None:
        _put_back_cache(entry, file_ops)
        journal_store.restored(entry.name, now)
        return
    during = "restoration" if entry.restoring else "release"
    journal_store.end(entry.name, verdict or Verdict.FAILED, f"this {during} was interrupted{found}", now)


def _complete(entry: Entry, file_ops: RestoreOperations) -> tuple[Verdict | None, str]:
    """Put back the rest of a sandbox that is partly in place. Return None if all of it is in place then."""
    missing = _missing(entry, file_ops)
    if len(missing) == len(entry.reservations):
        unknown = "" if entry.verdict else ", and it is not known whether this release or another process removed them"
        return entry.verdict or Verdict.INTERRUPTED, f"; no reservation is in place{unknown}"
    if any(file_ops.taken(image) for image in missing):
        return Verdict.INTERRUPTED, ", and a removed address is reserved again"
    _put_back(missing, file_ops)
    return None, "; all reservations are in place"

"""Putting back what was released, and settling what we died in the middle of."""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from agent.cleanup.book import JournalStore
from agent.cleanup.journal import Entry
from agent.cleanup.release import RESERVATION, FileImage, FileOperations, describe_error
from agent.model.release import Verdict


class RestoreOperations(FileOperations, Protocol):
    """What restoring needs beside releasing. Each raises OSError."""

    def present(self, image: FileImage) -> FileImage | None: ...
    def taken(self, image: FileImage) -> bool: ...
    def addresses_of(self, container_id: str, network: str) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class Restoration:
    """What came of putting an entry back."""

    entry: Entry
    done: bool
    why: str = ""
    """Why not; or what could not be put back beside the reservations."""


class RestoreError(Exception):
    """It must not be put back; the text says why."""


def missing_of(entry: Entry, file_ops: RestoreOperations) -> tuple[FileImage, ...]:
    """Return the reservations to put back; raises Refused where that would take an address, or give a sandbox two."""
    if entry.verdict is None:
        raise RestoreError("the entry never ended; the next cleaning settles it")
    if entry.verdict not in {Verdict.RELEASED, Verdict.FAILED}:
        raise RestoreError(f"nothing was released: the entry ended as {entry.verdict.value}")
    missing = _missing(entry, file_ops)
    if not missing and not (entry.released and entry.reservations):
        raise RestoreError("nothing is missing: all of it is in place")
    for image in missing:
        if file_ops.taken(image):
            raise RestoreError(f"{image.name} of network {image.network} is reserved again")
    mine = {image.name for image in entry.reservations}
    for network in {image.network for image in missing} if entry.container_id else ():
        if others := set(file_ops.addresses_of(entry.container_id, network)) - mine:
            held = ", ".join(sorted(others))
            raise RestoreError(f"container {entry.container_id[:12]} has another address by now: {held}")
    return missing


def _missing(entry: Entry, file_ops: RestoreOperations) -> tuple[FileImage, ...]:
    """Return the reservations that are not in place, whoever put them there: ids never return, so the bytes tell."""
    found = ((image, file_ops.present(image)) for image in entry.reservations)
    return tuple(image for image, now in found if now is None or now.content != image.content)


def restore(entry: Entry, file_ops: RestoreOperations, journal_store: JournalStore, now: datetime) -> Restoration:
    """Put an entry's files back, under host-local's locks; the caller is the only cleaner."""
    try:
        locked = file_ops.lock(sorted({image.network for image in entry.reservations}))
        if locked is None:
            return Restoration(entry, done=False, why="host-local's lock is held by somebody else")
        try:
            missing = missing_of(entry, file_ops)
            # First the word, then the file: a file that is there again although it was released stops all cleaning.
            journal_store.restoring(entry.name, now)
            _put_back(missing, file_ops)
        finally:
            locked.unlock()
    except (RestoreError, OSError) as error:
        return Restoration(entry, done=False, why=describe_error(error))
    if not missing:
        return Restoration(entry, done=True, why="it was in place already, and the journal says so now")
    return Restoration(entry, done=True, why=_put_back_cache(entry, file_ops))


def _put_back(reservations: tuple[FileImage, ...], file_ops: RestoreOperations) -> None:
    """Put back all, or none."""
    made: list[FileImage] = []
    try:
        for image in reservations:
            file_ops.put_back(image)
            made.append(image)
    except OSError:
        for image in made:
            file_ops.remove(image)
        raise


def _put_back_cache(entry: Entry, file_ops: RestoreOperations) -> str:
    left = []
    for image in entry.files:
        if image.place == RESERVATION:
            continue
        try:
            file_ops.put_back(image)
        except OSError as error:
            left.append(f"libcni's {image.name} was not put back: {describe_error(error)}")
    return "; ".join(left)


def recover(entry: Entry, file_ops: RestoreOperations, journal_store: JournalStore, now: datetime) -> None:
    """Find out how an entry ended in whose middle we died, and end it. Raises OSError."""
    locked = file_ops.lock(sorted({image.network for image in entry.reservations}))
    if locked is None:
        return
    verdict, why = Verdict.FAILED, "the agent ended in the middle of it; all of it is in place"
    try:
        missing = _missing(entry, file_ops)
        if len(missing) == len(entry.reservations):
            verdict, why = Verdict.RELEASED, "found after the agent ended in the middle of it"
        elif any(file_ops.taken(image) for image in missing):
            why = "the agent ended in the middle of it, and what was removed of it is reserved again"
        else:
            _put_back(missing, file_ops)
    finally:
        locked.unlock()
    journal_store.end(entry.name, verdict, why, now)

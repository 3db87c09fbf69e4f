"""Restore released addresses, and recover entries that an agent left unfinished when it died."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from agent.cleanup.journal import Entry
from agent.cleanup.journal_store import JournalStore
from agent.cleanup.release import LOCK_HELD, RESERVATION, FileImage, FileOperations, describe_error
from agent.model.release import Verdict


class RestoreOperations(FileOperations, Protocol):
    """What restoring needs besides releasing. Each raises OSError."""

    def present(self, image: FileImage) -> FileImage | None: ...
    def taken(self, image: FileImage) -> bool: ...
    def addresses_of(self, container_id: str, network: str) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class Restoration:
    """The outcome of a restoration."""

    entry: Entry
    done: bool
    why: str = ""
    """Why it failed; or what was not put back besides the reservations."""


class RestoreError(Exception):
    """The entry must not be restored; the text says why."""


def missing_of(entry: Entry, file_ops: RestoreOperations) -> tuple[FileImage, ...]:
    """Return the reservations to put back.

    Raises RestoreError if that would take an address from its owner, or give a sandbox two.
    """
    if entry.verdict is None:
        raise RestoreError("the entry is unfinished, the next cleanup recovers it")
    if entry.verdict not in {Verdict.RELEASED, Verdict.FAILED}:
        raise RestoreError(f"nothing was released: the outcome was {entry.verdict.value}")
    missing = _missing(entry, file_ops)
    if not missing and not (entry.released and entry.reservations):
        raise RestoreError("nothing is missing: all reservations are in place")
    for image in missing:
        if file_ops.taken(image):
            raise RestoreError(f"{image.name} of network {image.network} is reserved again")
    if entry.container_id:
        _check_addresses(entry, {image.network for image in missing}, file_ops)
    return missing


def _check_addresses(entry: Entry, networks: Iterable[str], file_ops: RestoreOperations) -> None:
    own = {image.name for image in entry.reservations}
    for network in networks:
        if others := set(file_ops.addresses_of(entry.container_id, network)) - own:
            listed = ", ".join(sorted(others))
            raise RestoreError(f"container {entry.container_id[:12]} has another address now: {listed}")


def _missing(entry: Entry, file_ops: RestoreOperations) -> tuple[FileImage, ...]:
    """Return the reservations that are not in place. IDs are never reused, so equal content is proof."""
    found = ((image, file_ops.present(image)) for image in entry.reservations)
    return tuple(image for image, now in found if now is None or now.content != image.content)


def restore(entry: Entry, file_ops: RestoreOperations, journal_store: JournalStore, now: datetime) -> Restoration:
    """Put the files of an entry back, under host-local's locks. The caller holds the cleaner's lock."""
    try:
        locked = file_ops.lock(sorted({image.network for image in entry.reservations}))
        if locked is None:
            return Restoration(entry, done=False, why=LOCK_HELD)
        try:
            missing = missing_of(entry, file_ops)
            # Journal first: a released reservation that reappears without a restoration halts all cleanup.
            journal_store.restoring(entry.name, now)
            _put_back(missing, file_ops)
        finally:
            locked.unlock()
    except (RestoreError, OSError) as error:
        return Restoration(entry, done=False, why=describe_error(error))
    if not missing:
        return Restoration(entry, done=True, why="it was already in place; the journal now records that")
    return Restoration(entry, done=True, why=_put_back_cache(entry, file_ops))


def _put_back(reservations: tuple[FileImage, ...], file_ops: RestoreOperations) -> None:
    """Put back all or none."""
    created: list[FileImage] = []
    try:
        for image in reservations:
            file_ops.put_back(image)
            created.append(image)
    except OSError:
        for image in created:
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
            left.append(f"not restored to libcni's cache: {image.name}: {describe_error(error)}")
    return "; ".join(left)


def recover(entry: Entry, file_ops: RestoreOperations, journal_store: JournalStore, now: datetime) -> None:
    """Determine the outcome of an unfinished entry, and record it. Raises OSError."""
    locked = file_ops.lock(sorted({image.network for image in entry.reservations}))
    if locked is None:
        return
    verdict, why = Verdict.FAILED, "the agent died during this release; all reservations are in place"
    try:
        missing = _missing(entry, file_ops)
        if len(missing) == len(entry.reservations):
            verdict, why = Verdict.RELEASED, "found after the agent died during this release"
        elif any(file_ops.taken(image) for image in missing):
            why = "the agent died during this release, and a removed address is reserved again"
        else:
            _put_back(missing, file_ops)
    finally:
        locked.unlock()
    journal_store.end(entry.name, verdict, why, now)

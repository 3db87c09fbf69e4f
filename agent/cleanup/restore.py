"""Restores released addresses, and recovers interrupted operations. Removes no reservation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from agent.cleanup.journal import Entry, FileImage, Journal
from agent.cleanup.journal_store import Busy, JournalStore
from agent.cleanup.signals import held_signals
from agent.cleanup.unlink import LockHeld, NodeFiles, OpenNetwork, describe_error, record
from agent.model.release import Verdict
from agent.sources.source_error import SourceError

_UNFINISHED: Final = "the entry is unfinished; the next cleanup or restore recovers it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoration:
    """What became of a `restore`, or would."""

    entry: Entry
    failure: str | None = None  # why it was not restored; None: it was
    note: str | None = None  # what else happened, such as what was not put back in libcni's cache


class RestoreError(Exception):
    """The entry must not be restored; the text says why."""


def restore(
    entry: Entry,
    journal: Journal,
    files: NodeFiles,
    store: JournalStore,
    now: Callable[[], datetime],
    *,
    dry_run: bool,
) -> Restoration:
    """Recover what is unfinished, and restore an entry, under the cleaner's lock.

    A dry run only checks whether that is possible.
    """
    note: str | None = None
    try:
        if dry_run:
            require_restorable(entry, journal, files)
        else:
            with store.exclusive(files.lock_timeout), held_signals():
                note = recover_and_restore(entry.name, files, store, now())
    except (Busy, OSError, RestoreError, SourceError) as error:
        return Restoration(entry=entry, failure=describe_error(error))
    return Restoration(entry=entry, note=note)


def recover_and_restore(
    name: str, files: NodeFiles, store: JournalStore, now: datetime
) -> str | None:
    """Do what `restore --apply` does while it holds the cleaner's lock. Return a note, if any.

    Raises RestoreError, OSError and SourceError.
    """
    before = store.read().named(name)
    unrecovered = recover_all(files, store, now)
    journal = store.read()
    entry = journal.named(name)

    if before is None or entry is None:
        raise RestoreError("the journal does not have the entry any more")
    if reason := unrecovered.get(name):
        # If it began anew and failed, nobody would know that a part of it may be in place.
        raise RestoreError(f"the entry is unfinished, and cannot be recovered now: {reason}")
    if before.unfinished and not entry.released:
        return "it was interrupted, and all its reservations are in place now"
    if before.verdict is None and entry.released:
        raise RestoreError(entry.why)

    require_restorable(entry, journal, files)
    return _restore(entry, files, store, now)


def require_restorable(entry: Entry, journal: Journal, files: NodeFiles) -> None:
    """Raise RestoreError or OSError if the entry cannot be restored.

    Such as when its sandbox was released again later.
    """
    later = journal.released_from().get(entry.container_id, entry)
    if later.name != entry.name:
        raise RestoreError(f"its sandbox was released again since: restore {later.name} instead")

    files.require_known(entry.directories)
    with files.opened(entry.directories) as networks:
        _missing_images(entry, networks)
    if entry.restored:
        raise RestoreError(
            "the entry was restored before: nodeleak did not remove what is missing now"
        )


def _restore(entry: Entry, files: NodeFiles, store: JournalStore, now: datetime) -> str | None:
    """Put the files of an entry back, under host-local's locks. Return a note, if any."""
    # If this process is killed now, the next cleanup or restore knows what it began.
    began = entry.restoration_began(now)
    store.update(began, now)

    linked: list[FileImage] = []
    try:
        with files.locked(entry.directories) as networks:
            for image in _missing_images(entry, networks):
                networks[image.directory].link(image)
                linked.append(image)
    except (RestoreError, LockHeld, OSError) as error:
        reason = describe_error(error)
        if linked:
            raise RestoreError(f"{reason}: {_UNFINISHED}") from error
        ended = began.ended(entry.verdict or Verdict.FAILED, f"not restored: {reason}")
        raise RestoreError(record(store, ended, now, reason)) from error

    note = "it was already in place; the journal now records that"
    if linked:
        note = files.link_cached(entry)
    return record(store, replace(began, restored=now, restoring=None), now, note) or None


def _missing_images(entry: Entry, networks: Mapping[str, OpenNetwork]) -> Sequence[FileImage]:
    """Return what to put back.

    Raises RestoreError if restoring would take the address from its new owner, or give the sandbox
    a second one.
    """
    if entry.verdict is None:
        raise RestoreError(_UNFINISHED)
    if entry.verdict not in {Verdict.RELEASED, Verdict.IN_DOUBT}:
        raise RestoreError(f"nothing was released: the outcome was {entry.verdict.value}")

    missing = _not_in_place(entry, networks)
    if not missing and not (entry.released and entry.reservations):  # one in doubt may be in place
        raise RestoreError("nothing is missing: all reservations are in place")

    for image, replacement in missing.items():
        if replacement:
            raise RestoreError(f"{image.name} of network {image.network} is reserved again")
        if not entry.container_id:
            continue
        reserved = networks[image.directory].addresses_of(entry.container_id)
        if new := sorted(set(reserved).difference(entry.ips)):
            container = entry.container_id[:12]
            raise RestoreError(f"container {container} has another address now: {', '.join(new)}")
    return tuple(missing)


def _not_in_place(
    entry: Entry, networks: Mapping[str, OpenNetwork]
) -> Mapping[FileImage, FileImage | None]:
    """Return what is missing, with the file that has its name now, if there is one.

    A file with the same content is in place: container IDs are random (64 hexadecimal digits in
    docker, containerd and CRI-O) and never reused. `networks`: without removed directories.
    """
    missing: dict[FileImage, FileImage | None] = {}
    for image in entry.reservations:
        network = networks.get(image.directory)
        current = network.read(image.name) if network else None
        if current is None or (current.name, current.content) != (image.name, image.content):
            missing[image] = current
    return missing


def recover_all(files: NodeFiles, store: JournalStore, now: datetime) -> Mapping[str, str]:
    """Finish what is unfinished; needs the cleaner's lock. Return why entries stay so, by name.

    Raises SourceError.
    """
    unrecovered: dict[str, str] = {}
    for entry in store.read().unfinished():
        try:
            store.update(_recovered(entry, files, now), now)
        except (LockHeld, OSError) as error:
            unrecovered[entry.name] = describe_error(error)
    return unrecovered


def _recovered(entry: Entry, files: NodeFiles, now: datetime) -> Entry:
    """Put back the rest of a sandbox that is partly in place. Return the entry as it ended.

    Raises LockHeld and OSError.
    """
    interrupted = f"this {'restoration' if entry.restoring else 'release'} was interrupted"
    files.require_known(entry.directories)
    removed = files.removed(entry.directories)
    with files.locked(sorted({*entry.directories} - removed)) as networks:
        missing = _not_in_place(entry, networks)
        if missing.keys() == {*entry.reservations}:
            why = f"{interrupted}; no reservation is in place"
            if entry.verdict:
                return entry.ended(entry.verdict, why)
            why += ", and it is not known whether this release or another process removed them"
            # Or the runtime may run DEL with the results when another pod has the address.
            left = files.unlink_cached(entry)
            return entry.ended(Verdict.IN_DOUBT, f"{why}; {left}" if left else why)
        if any(missing.values()):
            why = f"{interrupted}, and a removed address is reserved again"
            return entry.ended(Verdict.IN_DOUBT, why)
        if removed:
            why = f"{interrupted}, and {', '.join(sorted(removed))} does not exist any more"
            return entry.ended(Verdict.IN_DOUBT, why)
        for image in missing:
            networks[image.directory].link(image)

    if entry.restoring:
        files.link_cached(entry)
        return replace(entry, restored=now, restoring=None)
    return entry.ended(Verdict.FAILED, f"{interrupted}; all reservations are in place")

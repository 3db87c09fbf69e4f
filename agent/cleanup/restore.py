"""Restore released addresses, and recover interrupted releases and restorations. Nothing is removed here."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

from agent.cleanup.journal import Entry, FileImage, Journal, JournalStore
from agent.cleanup.unlink import LockHeld, NodeFiles, OpenNetwork, describe_error, record
from agent.model.release import Verdict

_UNFINISHED = "the entry is unfinished; the next cleanup or restore recovers it"


class Restoration(NamedTuple):
    entry: Entry
    done: bool
    why: str = ""  # why it failed; or what was not put back besides the reservations


class RestoreError(Exception):
    """The entry must not be restored; the text says why."""


def missing_of(entry: Entry, networks: Mapping[str, OpenNetwork]) -> Sequence[FileImage]:
    """Return what to put back. Raises RestoreError if that took an address from its owner, or gave a sandbox two."""
    if entry.verdict is None:
        raise RestoreError(_UNFINISHED)
    if entry.verdict not in {Verdict.RELEASED, Verdict.INTERRUPTED}:
        raise RestoreError(f"nothing was released: the outcome was {entry.verdict.value}")
    missing, taken = _not_in_place(entry, networks)
    if not missing and not (entry.released and entry.reservations):
        raise RestoreError("nothing is missing: all reservations are in place")
    for image in missing:
        if image in taken:
            raise RestoreError(f"{image.name} of network {image.network} is reserved again")
        reserved = networks[image.directory].addresses_of(entry.container_id) if entry.container_id else []
        if others := sorted(set(reserved).difference(entry.ips)):
            raise RestoreError(f"container {entry.container_id[:12]} has another address now: {', '.join(others)}")
    return missing


def _not_in_place(entry: Entry, networks: Mapping[str, OpenNetwork]) -> tuple[list[FileImage], list[FileImage]]:
    """Return what is missing, and of that what others have by now. IDs are never reused: equal content is proof."""
    found = [(image, networks[image.directory].read(image.name)) for image in entry.reservations]
    missing = [image for image, now in found if now is None or (now.name, now.content) != (image.name, image.content)]
    return missing, [image for image, now in found if now is not None and image in missing]


def restore(entry: Entry, files: NodeFiles, journal: JournalStore, now: datetime) -> Restoration:
    """Put the files of an entry back, under host-local's locks. The caller holds the cleaner's lock."""
    try:
        with files.opened(entry.directories) as opened:
            missing_of(entry, opened)
        # If this process is killed now, the next cleanup or restore knows what it began.
        began = entry.restoration_began(now)
        journal.update(began, now)
    except (RestoreError, OSError) as error:
        return Restoration(entry, done=False, why=describe_error(error))
    linked: list[FileImage] = []
    try:
        with files.locked(entry.directories) as networks:
            for image in missing_of(replace(began, restoring=None), networks):
                networks[image.directory].link(image)
                linked.append(image)
    except (RestoreError, LockHeld, OSError) as error:
        why = describe_error(error)
        if linked:
            return Restoration(entry, done=False, why=f"{why}: {_UNFINISHED}")
        ended = began.ended(entry.verdict or Verdict.FAILED, f"not restored: {why}")
    else:
        ended = replace(began, restored=now, restoring=None)
        why = files.link_cached(entry) if linked else "it was already in place; the journal now records that"
    return Restoration(entry, done=ended.restored is not None, why=record(journal, ended, now, why))


def recover_and_restore(name: str, files: NodeFiles, journal: JournalStore, now: datetime) -> Restoration:
    """Do what `restore --apply` does, once it holds the cleaner's lock. Raises RestoreError, SourceError."""
    before = journal.read().named(name)
    unfinished = recover_all(files, journal, now)
    read = journal.read()
    entry = read.named(name)
    if before is None or entry is None:
        raise RestoreError("the journal does not have the entry any more")
    if why := unfinished.get(name):
        # If it began anew and failed, nobody would know that a part of it may be in place.
        raise RestoreError(f"the entry is unfinished, and cannot be recovered now: {why}")
    if before.unfinished and not entry.released:
        return Restoration(entry, done=True, why="it was interrupted, and all its reservations are in place now")
    if before.verdict is None and entry.released:
        raise RestoreError(entry.why)
    check_last(read, entry)
    return restore(entry, files, journal, now)


def check_last(journal: Journal, entry: Entry) -> None:
    """Raise RestoreError if the entry's sandbox was released again later."""
    later = None if entry.released else journal.released_from().get(entry.container_id)
    if later:
        raise RestoreError(f"the entry was restored and released again since: restore {later.name} instead")


def recover_all(files: NodeFiles, journal: JournalStore, now: datetime) -> Mapping[str, str]:
    """Finish what is unfinished, under the cleaner's lock. Return why entries stay so, by name. Raises SourceError."""
    left: dict[str, str] = {}
    for entry in journal.read().unfinished():
        try:
            journal.update(_recovered(entry, files, now), now)
        except (LockHeld, OSError) as error:
            left[entry.name] = describe_error(error)
    return left


def _recovered(entry: Entry, files: NodeFiles, now: datetime) -> Entry:
    """Put back the rest of a sandbox that is partly in place; return what is known of it. Raises LockHeld, OSError."""
    interrupted = f"this {'restoration' if entry.restoring else 'release'} was interrupted"
    with files.locked(entry.directories) as networks:
        missing, taken = _not_in_place(entry, networks)
        if len(missing) == len(entry.reservations):
            why = f"{interrupted}; no reservation is in place"
            if entry.verdict:
                return entry.ended(entry.verdict, why)
            doubt = f"{why}, and it is not known whether this release or another process removed them"
            left = files.unlink_cached(entry)  # or the runtime may run DEL with them when another pod has the address
            return entry.ended(Verdict.INTERRUPTED, f"{doubt}; {left}" if left else doubt)
        if taken:
            return entry.ended(Verdict.INTERRUPTED, f"{interrupted}, and a removed address is reserved again")
        for image in missing:
            networks[image.directory].link(image)
    if entry.restoring:
        files.link_cached(entry)
        return replace(entry, restored=now, restoring=None)
    return entry.ended(Verdict.FAILED, f"{interrupted}; all reservations are in place")

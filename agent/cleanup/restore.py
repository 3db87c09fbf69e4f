"""Restore released addresses, and recover interrupted releases and restorations. Nothing is removed here."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

from agent.cleanup.journal import IN_DOUBT, Entry, FileImage, Journal, JournalStore
from agent.cleanup.unlink import LockHeld, NodeFiles, OpenNetwork, describe_error, record
from agent.model.release import Verdict

_UNFINISHED = "the entry is unfinished; the next cleanup or restore recovers it"


class Restoration(NamedTuple):
    entry: Entry
    done: bool
    why: str = ""  # why it failed; or what was not put back besides the reservations


class RestoreError(Exception):
    """The entry must not be restored; the text says why."""


def _to_put_back(entry: Entry, networks: Mapping[str, OpenNetwork]) -> Sequence[FileImage]:
    """Return what to put back. Raises RestoreError if that took an address from its owner, or gave a sandbox two."""
    if entry.verdict is None:
        raise RestoreError(_UNFINISHED)
    if entry.verdict not in {Verdict.RELEASED, IN_DOUBT}:
        raise RestoreError(f"nothing was released: the outcome was {entry.verdict.value}")
    missing = _not_in_place(entry, networks)
    if not missing and not (entry.released and entry.reservations):  # one in doubt may be in place
        raise RestoreError("nothing is missing: all reservations are in place")
    for image, other in missing.items():
        if other:
            raise RestoreError(f"{image.name} of network {image.network} is reserved again")
        reserved = (
            networks[image.directory].addresses_of(entry.container_id) if entry.container_id else []
        )
        if others := sorted(set(reserved).difference(entry.ips)):
            raise RestoreError(
                f"container {entry.container_id[:12]} has another address now: {', '.join(others)}"
            )
    return tuple(missing)


def _not_in_place(
    entry: Entry, networks: Mapping[str, OpenNetwork]
) -> Mapping[FileImage, FileImage | None]:
    """Return what is missing, with what others have there by now.

    IDs are never reused: equal content is proof. `networks`: without those whose directory was
    removed, with everything in it.
    """
    found = (
        (image, networks[image.directory].read(image.name) if image.directory in networks else None)
        for image in entry.reservations
    )
    return {
        image: now
        for image, now in found
        if not now or (now.name, now.content) != (image.name, image.content)
    }


def require_restorable(entry: Entry, journal: Journal, files: NodeFiles) -> None:
    """Raise RestoreError or OSError if the entry cannot be restored, as when its sandbox was released again later."""
    later = journal.released_from().get(entry.container_id, entry)
    if later.name != entry.name:
        raise RestoreError(f"its sandbox was released again since: restore {later.name} instead")
    files.require_known(entry.directories)
    with files.opened(entry.directories) as networks:
        _to_put_back(entry, networks)
    if entry.restored:
        raise RestoreError(
            "the entry was restored before: nodeleak did not remove what is missing now"
        )


def recover_and_restore(name: str, files: NodeFiles, store: JournalStore, now: datetime) -> str:
    """Do what `restore --apply` does, once it holds the cleaner's lock. Return a note; empty: all is back.

    Raises RestoreError, OSError and SourceError.
    """
    before = store.read().named(name)
    unfinished = recover_all(files, store, now)
    journal = store.read()
    entry = journal.named(name)
    if before is None or entry is None:
        raise RestoreError("the journal does not have the entry any more")
    if why := unfinished.get(name):
        # If it began anew and failed, nobody would know that a part of it may be in place.
        raise RestoreError(f"the entry is unfinished, and cannot be recovered now: {why}")
    if before.unfinished and not entry.released:
        return "it was interrupted, and all its reservations are in place now"
    if before.verdict is None and entry.released:
        raise RestoreError(entry.why)
    require_restorable(entry, journal, files)
    return _restore(entry, files, store, now)


def _restore(entry: Entry, files: NodeFiles, store: JournalStore, now: datetime) -> str:
    """Put the files of an entry back, under host-local's locks."""
    # If this process is killed now, the next cleanup or restore knows what it began.
    began = entry.restoration_began(now)
    store.update(began, now)
    linked: list[FileImage] = []
    try:
        with files.locked(entry.directories) as networks:
            for image in _to_put_back(entry, networks):
                networks[image.directory].link(image)
                linked.append(image)
    except (RestoreError, LockHeld, OSError) as error:
        why = describe_error(error)
        if linked:
            raise RestoreError(f"{why}: {_UNFINISHED}") from error
        ended = began.ended(entry.verdict or Verdict.FAILED, f"not restored: {why}")
        raise RestoreError(record(store, ended, now, why)) from error
    why = (
        files.link_cached(entry)
        if linked
        else "it was already in place; the journal now records that"
    )
    return record(store, replace(began, restored=now, restoring=None), now, why)


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
    files.require_known(entry.directories)
    removed = files.removed(entry.directories)
    with files.locked(sorted({*entry.directories} - removed)) as networks:
        missing = _not_in_place(entry, networks)
        if missing.keys() == {*entry.reservations}:
            why = f"{interrupted}; no reservation is in place"
            if entry.verdict:
                return entry.ended(entry.verdict, why)
            doubt = (
                f"{why}, and it is not known whether this release or another process removed them"
            )
            left = files.unlink_cached(
                entry
            )  # or the runtime may run DEL with them when another pod has the address
            return entry.ended(IN_DOUBT, f"{doubt}; {left}" if left else doubt)
        if any(missing.values()):
            return entry.ended(IN_DOUBT, f"{interrupted}, and a removed address is reserved again")
        if removed:
            which = ", ".join(sorted(removed))
            return entry.ended(IN_DOUBT, f"{interrupted}, and {which} does not exist any more")
        for image in missing:
            networks[image.directory].link(image)
    if entry.restoring:
        files.link_cached(entry)
        return replace(entry, restored=now, restoring=None)
    return entry.ended(Verdict.FAILED, f"{interrupted}; all reservations are in place")

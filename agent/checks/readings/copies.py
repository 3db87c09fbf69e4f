"""Whether a network's directory is only a copy of another one, such as `cp -a cbr0 cbr0.bak`. Pure.

People make such a backup before they clean up. host-local and the runtimes never read it, so
nothing in it is in use, leaked, or an address at all.
"""

import re
from dataclasses import replace
from typing import Final

from agent.model.index import SnapshotIndex
from agent.model.runtime import RuntimeNetwork
from agent.model.snapshot import (
    Known,
    LeftOver,
    NetworkStore,
    NotRequested,
    Reservation,
    Snapshot,
    Unavailable,
    known_or,
)

_WORD: Final = r"bak|backup|old|orig|original|copy|saved?|prev|previous|before"
_MARK: Final = re.compile(rf"(?:[\s._~+:-]|{_WORD}|\d|(?<=\d)[tz])+", re.IGNORECASE)
"""What people add to a name: separators, such words, and dates, as `-20240131t0102z`."""
_BACKUP_SIGN: Final = re.compile(rf"{_WORD}|~|(?:\d\D?){{6}}", re.IGNORECASE)
"""What such a mark must have in it: `storage-1` may be a network. A date has six digits or more."""


def exclude_copy(store: NetworkStore, index: SnapshotIndex) -> NetworkStore:
    """Return the store unchanged, or, if it is a copy, with its reservations not requested."""
    if not isinstance(store.reading, Known) or store.network in _named_networks(index.snapshot):
        return store
    reservations = store.reading.value

    if (original := _original_by_files(store, index)) is not None:
        reason = f"it is a copy of the directory of network {original}, and no program reads it"
    elif (original := _original_by_name(store, index)) is not None:
        reason = f"it has the name of a copy of network {original}'s directory, and nothing uses it"
        container_ids = {reservation.container_id for reservation in reservations}
        if not container_ids.isdisjoint(index.running_sandboxes):
            reason += ": it was moved away while pods ran"
    else:
        return store

    times = [reservation.mtime_ns for reservation in reservations]
    left_over = None
    if times:
        left_over = LeftOver(
            directory=store.directory,
            files=len(times),
            oldest_ns=min(times),
            newest_ns=max(times),
            pods=0,
            copy_of=original,
        )
    reading = NotRequested("reservations", reason)
    return replace(store, reading=reading, unrecognized=(), left_over=left_over)


def _original_by_files(store: NetworkStore, index: SnapshotIndex) -> str | None:
    """Return the network whose directory has one of its files, too; None: it is a copy of none.

    Both reserve an address for the same interface of a sandbox. No ADD does that: an interface has
    its addresses from one network.
    """
    snapshot = index.snapshot
    files = {_file(entry) for entry in known_or(store.reading, ()) if entry.container_id}
    sharing = {
        entry.network
        for entry in index.reservations
        if entry.network != store.network and _file(entry) in files
    }

    # `exclude_copy` found the name neither in the configuration nor in libcni's cache. That proves
    # something only if both were read.
    configured = {network.name for network in configured_networks(snapshot)}
    nothing_names_it = (
        store.discovered
        and isinstance(snapshot.networks, Known)
        and not isinstance(snapshot.cni_results, Unavailable)
    )

    for network in sorted(sharing):
        if is_backup_name(store.network, network) or (nothing_names_it and network in configured):
            return network
    return None


def _original_by_name(store: NetworkStore, index: SnapshotIndex) -> str | None:
    """Return the network that it has the name of a copy of; None: it is a copy of none.

    The original may have been cleaned since: then no file is in both.
    """
    snapshot = index.snapshot
    if not store.discovered or isinstance(snapshot.cni_results, Unavailable):
        return None
    for name in sorted(_named_networks(snapshot)):
        if is_backup_name(store.network, name):
            return name
    return None


def _named_networks(snapshot: Snapshot) -> set[str]:
    """Return the networks of a configuration or of a result in libcni's cache."""
    names = {network.name for network in configured_networks(snapshot)}
    return names.union(result.network for result in known_or(snapshot.cni_results, ()))


def configured_networks(snapshot: Snapshot) -> tuple[RuntimeNetwork, ...]:
    """Return the networks of all files of the CNI configuration, as far as they are known."""
    networks = known_or(snapshot.networks, ())
    later = networks[0].later if networks else ()  # those of the later files, the same in each
    return (*networks, *later)


def _file(reservation: Reservation) -> tuple[str, str, str]:
    """Return name and content of its file, which a copy keeps."""
    return reservation.ip, reservation.container_id, reservation.ifname


def is_backup_name(name: str, original: str) -> bool:
    """Return whether a name is another one with `.bak`, a date or the like."""
    if name.startswith(original):
        mark = name.removeprefix(original)
        is_apart = not mark[:1].isdigit()  # `cbr02` is another network
    else:
        mark = name.removesuffix(original)
        is_apart = mark != name
    return is_apart and bool(_MARK.fullmatch(mark) and _BACKUP_SIGN.search(mark))

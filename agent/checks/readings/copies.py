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
"""What people add to a name: separators, such words, and dates."""
_IS_BACKUP: Final = re.compile(rf"{_WORD}|~|(?:\d\D?){{6}}", re.IGNORECASE)
"""A number alone is not a mark: `storage-1` may be a network. A date has six digits or more."""


def set_apart(store: NetworkStore, index: SnapshotIndex) -> NetworkStore:
    """Return the store if it may be a network's, else one that is not requested: a copy."""
    if not isinstance(store.reading, Known) or store.network in _named_networks(index.snapshot):
        return store
    reservations = store.reading.value

    original = _same_files(store, index)
    reason = f"it is a copy of the directory of network {original}, and no program reads it"
    if original is None:
        original = _similar_name(store, index)
        reason = f"it has the name of a copy of network {original}'s directory, and nothing uses it"
        container_ids = {held.container_id for held in reservations}
        if not container_ids.isdisjoint(index.running_sandboxes):
            reason += ": it was moved away while pods ran"
    if original is None:
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


def _same_files(store: NetworkStore, index: SnapshotIndex) -> str | None:
    """Return the network of whose directory it is a copy by its files; None: of none.

    Both reserve an address for the same interface of a sandbox. No ADD does that: an interface has
    its addresses from one network.
    """
    snapshot = index.snapshot
    contents = {_content(held) for held in known_or(store.reading, ()) if held.container_id}
    others = {
        held.network
        for held in index.reservations
        if held.network != store.network and _content(held) in contents
    }

    configured = {network.name for network in configured_networks(snapshot)}
    nothing_names_it = (
        store.discovered
        and isinstance(snapshot.networks, Known)
        and not isinstance(snapshot.cni_results, Unavailable)
    )

    for network in sorted(others):
        if is_backup_name(store.network, network) or (nothing_names_it and network in configured):
            return network
    return None


def _similar_name(store: NetworkStore, index: SnapshotIndex) -> str | None:
    """Return the network of whose directory it is a copy by its name; None: of none.

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
    later = networks[0].later if networks else ()
    return (*networks, *later)


def _content(reservation: Reservation) -> tuple[str, str, str]:
    return reservation.ip, reservation.container_id, reservation.ifname


def is_backup_name(name: str, original: str) -> bool:
    """Return whether a name is another one with `.bak`, a date or the like."""
    if name.startswith(original):
        mark = name.removeprefix(original)
        is_apart = not mark[:1].isdigit()  # `cbr02` is another network
    else:
        mark = name.removesuffix(original)
        is_apart = mark != name
    return is_apart and bool(_MARK.fullmatch(mark) and _IS_BACKUP.search(mark))

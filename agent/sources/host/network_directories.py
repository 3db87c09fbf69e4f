"""Which directories of host-local are read: those that settings name, and, with `auto`, all that can be found.

Whose a found directory is, is decided later (`networks.py`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from agent.model.runtime import RuntimeNetwork
from agent.model.setting_values import AUTO
from agent.model.snapshot import Known, NetworkStore, NotRequested, Reading, Unavailable, known_or
from agent.model.text import escape
from agent.sources.host.reservations import MAX_NETWORKS, is_directory, network_names, read_reservations
from agent.sources.os_error import cannot_read

DEFAULT_DATA_DIR: Final = Path("/var/lib/cni/networks")
"""host-local's `dataDir` where a configuration names none."""


class _Directory(NamedTuple):
    network: str
    above: Path
    """Where it lies for this process."""
    data_dir: Path
    """Where it lies for the node."""
    named: str
    """Who names it: `settings`, `runtime`, or nobody."""


class _Listing(NamedTuple):
    names: Sequence[str] = ()
    undecodable: Sequence[str] = ()
    """Names that are not UTF-8, escaped."""
    why_incomplete: str = ""
    """Why there may be others; empty: these are all."""


def read_all(
    settings: Sequence[str],
    networks: Reading[tuple[RuntimeNetwork, ...]],
    networks_dir: Path,
    mounted: Callable[[Path], Path],
    most: int = 16384,
    is_missing: Callable[[Path], bool] = lambda _: False,
) -> tuple[NetworkStore, ...]:
    """Read each directory once; names in the settings win.

    If the directories cannot be listed, those that settings or the runtime name are read, and a store of the name
    `auto` is unavailable for the others. `mounted`: where a path of the node is for this process. `most`: how
    many files are read of all together. `is_missing`: whether what does not exist for this process is known not to
    exist on the node.
    """
    listing = _list(networks_dir) if AUTO in settings else _Listing()
    found: dict[str, _Directory] = {}
    for one in _directories(settings, known_or(networks, ()), networks_dir, mounted, listing.names):
        # A chain may have two directories for one network.
        first = found.setdefault(one.network, one)
        if first.named == one.named == "runtime" and not is_directory(first.above / first.network):
            found[one.network] = one
    stores: dict[str, NetworkStore] = {}
    files = 0
    for one in found.values():
        store = stores[one.network] = _read(one, networks_dir, is_missing, most, files)
        files += len(known_or(store.reading, ())) + len(store.unrecognized)
    for unread in _unread(listing, networks_dir):
        if unread.network == AUTO or unread.network not in stores:
            stores[unread.network] = unread
    return tuple(stores.values())


def _list(networks_dir: Path) -> _Listing:
    try:
        names = network_names(networks_dir)
    except OSError as error:
        return _Listing(why_incomplete=cannot_read(networks_dir, error))
    if len(names) > MAX_NETWORKS:
        why = f"{networks_dir} has more than {MAX_NETWORKS:,} directories: find out what makes them"
        return _Listing(why_incomplete=why)
    undecodable = [escape(name) for name in names if not _is_utf8(name)]
    return _Listing([name for name in names if _is_utf8(name)], undecodable)


def _is_utf8(name: str) -> bool:
    return not any("\ud800" <= one <= "\udfff" for one in name)


def _unread(listing: _Listing, networks_dir: Path) -> Iterator[NetworkStore]:
    """Yield what stands for directories that were found, or may be there, and are not read."""

    def store(name: str, reading: Unavailable | NotRequested) -> NetworkStore:
        return NetworkStore(name, reading, data_dir=str(networks_dir), discovered=True)

    # A network's name comes from JSON, which Go decodes to UTF-8 whatever is in it: no network can have this directory,
    # so it is not in use. Unavailable, it would be an alert until somebody removes it, and stop cleanup for nothing.
    why = "its name is not UTF-8, and no network configuration can have such a name"
    yield from (store(name, NotRequested("reservations", why)) for name in listing.undecodable)
    if listing.why_incomplete:
        yield store(AUTO, Unavailable("reservations", listing.why_incomplete))


def _directories(
    settings: Sequence[str],
    networks: Sequence[RuntimeNetwork],
    networks_dir: Path,
    mounted: Callable[[Path], Path],
    names: Sequence[str],
) -> Iterator[_Directory]:
    for name in settings:
        if name != AUTO:
            yield _Directory(name, networks_dir, networks_dir, "settings")
    if AUTO not in settings:
        return
    for one in networks:
        data_dir = Path(one.data_dir or DEFAULT_DATA_DIR)
        above = networks_dir if data_dir == DEFAULT_DATA_DIR else mounted(data_dir)
        yield _Directory(one.name, above, networks_dir if above == networks_dir else data_dir, "runtime")
    for name in names:
        yield _Directory(name, networks_dir, networks_dir, "")


def _read(
    one: _Directory,
    networks_dir: Path,
    is_missing: Callable[[Path], bool],
    most: int,
    others: int,
) -> NetworkStore:
    store = read_reservations(one.above, one.network, most, others)
    store = replace(store, data_dir=str(one.data_dir), discovered=one.named != "settings")
    if one.data_dir != networks_dir and isinstance(store.reading, Known):
        found = (replace(it, data_dir=store.data_dir) for it in store.reading.value)
        store = replace(store, reading=Known(tuple(found)))
    if one.named == "runtime" and isinstance(store.reading, Unavailable) and store.reading.missing:
        if is_missing(one.above / one.network):
            return replace(store, absent=True)
        if one.data_dir != networks_dir:
            mount = f"network {one.network} has the dataDir {one.data_dir}, which must be mounted"
            return replace(store, reading=Unavailable("reservations", f"{one.above} does not exist: {mount}", True))
    return store

"""Which directories of host-local are read: those that settings name, and, with `auto`, all that can be found."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from posixpath import normpath
from typing import Final, NamedTuple

from agent.model.runtime import AUTO, RuntimeNetwork
from agent.model.snapshot import DEFAULT_DATA_DIR, CniResult, Known, NetworkStore, Reading, Unavailable, known_or
from agent.sources.host.cni_config import is_part_of_path
from agent.sources.host.mounts import shared_storage
from agent.sources.host.reservations import is_directory, network_names, read_reservations
from agent.sources.source_error import SourceError, cannot_read

_SETTINGS: Final = "settings"
_RUNTIME: Final = "runtime"
_CACHE: Final = "libcni's cache"


class _Directory(NamedTuple):
    network: str
    above: Path  # where it lies for this process
    data_dir: Path  # where it lies for the node
    named: str = ""  # who names it; empty: nobody
    other: str = ""  # another `data_dir` of the network, of a chain with two


def read_all(
    settings: Sequence[str],
    networks: Reading[tuple[RuntimeNetwork, ...]],
    networks_dir: Path,
    mounted: Callable[[Path], Path],
    most: int,
    is_missing: Callable[[Path], bool],
    cached: Iterable[CniResult],
) -> tuple[NetworkStore, ...]:
    """Read each directory once; names in the settings win.

    If the directories cannot be listed, those that settings or the runtime name are read, and a store of the name
    `auto` is unavailable for the others. `mounted`: where a path of the node is for this process. `most`: how many
    files are read of all together. `is_missing`: whether what does not exist for this process is known not to exist on
    the node. `cached`: the results of further networks (Multus), whose directories nothing else may name.
    """
    names, unlisted = list[str](), ""
    try:
        names = network_names(networks_dir) if AUTO in settings else []
    except OSError as error:
        unlisted = cannot_read(networks_dir, error)
    found: dict[str, _Directory] = {}
    for directory in _directories(settings, known_or(networks, ()), networks_dir, mounted, names, cached):
        first = found.setdefault(directory.network, directory)
        differs = first.above != directory.above and first.named in {"", directory.named}
        if differs and not _is_absent(directory, is_missing):
            other = first._replace(other=str(directory.data_dir))
            found[directory.network] = directory if _is_absent(first, is_missing) else other
    stores, files = list[NetworkStore](), 0
    for directory in found.values():
        store = read_reservations(directory.above, directory.network, most, files)
        stores.append(_placed(_own(store, directory), directory, networks_dir, is_missing))
        files += len(known_or(store.reading, ())) + len(store.unrecognized)
    if unlisted:
        reading = Unavailable("reservations", unlisted)
        stores.append(NetworkStore(AUTO, reading, data_dir=str(networks_dir), discovered=True))
    return tuple(stores)


def _directories(
    settings: Sequence[str],
    networks: Sequence[RuntimeNetwork],
    networks_dir: Path,
    mounted: Callable[[Path], Path],
    names: Sequence[str],
    cached: Iterable[CniResult],
) -> Iterator[_Directory]:
    yield from (_Directory(name, networks_dir, networks_dir, _SETTINGS) for name in settings if name != AUTO)
    if AUTO not in settings:
        return
    for network in networks:
        data_dir = Path(network.data_dir or DEFAULT_DATA_DIR)
        above = networks_dir if data_dir == Path(DEFAULT_DATA_DIR) else mounted(data_dir)
        yield _Directory(network.name, above, networks_dir if above == networks_dir else data_dir, _RUNTIME)
    yield from (_Directory(name, networks_dir, networks_dir) for name in names)
    yield from _further(cached, mounted)


def _further(cached: Iterable[CniResult], mounted: Callable[[Path], Path]) -> Iterator[_Directory]:
    """Yield what this process sees of the directories that results name: users of the cluster wrote these names."""
    for network, data_dir in sorted({(result.network, result.data_dir) for result in cached if result.data_dir}):
        if is_part_of_path(network, data_dir) and (path := normpath(data_dir)) != DEFAULT_DATA_DIR:
            directory = _Directory(network, mounted(Path(path)), Path(path), _CACHE)
            if is_directory(directory.above / network):
                yield directory


def _is_absent(directory: _Directory, is_missing: Callable[[Path], bool]) -> bool:
    path = directory.above / directory.network
    return not is_directory(path) and is_missing(path)


def _own(store: NetworkStore, directory: _Directory) -> NetworkStore:
    """Return the store if the reservations in it are of this node's pods only: no record says which of them are."""
    if not isinstance(store.reading, Known):
        return store
    path = directory.above / directory.network
    try:
        kind = shared_storage(path)
    except (OSError, SourceError) as error:
        why = f"it is unknown whether other nodes share {path}: {error}"
    else:
        why = kind and f"{path} is on {kind}, which other nodes may share: it is unknown which reservations are theirs"
    return replace(store, reading=Unavailable("reservations", why), unrecognized=()) if why else store


def _placed(
    store: NetworkStore, directory: _Directory, networks_dir: Path, is_missing: Callable[[Path], bool]
) -> NetworkStore:
    """Return the store with where it lies. Where the runtime names it, it may be missing because it is not mounted."""
    data_dir = str(directory.data_dir)
    store = replace(store, data_dir=data_dir, discovered=directory.named != _SETTINGS)
    elsewhere = directory.data_dir != networks_dir
    if directory.other:
        why = f"network {store.network} has two dataDirs, {data_dir} and {directory.other}, and only one can be read"
        return replace(store, reading=Unavailable("reservations", why), unrecognized=())
    match store.reading:
        case Known(reservations) if elsewhere:
            placed = tuple(replace(reservation, data_dir=data_dir) for reservation in reservations)
            return replace(store, reading=Known(placed))
        case Unavailable(missing=True) if directory.named == _RUNTIME and is_missing(directory.above / store.network):
            return replace(store, absent=True)
        case Unavailable(missing=True) if directory.named == _RUNTIME and elsewhere:
            mount = f"network {store.network} has the dataDir {data_dir}, which must be mounted"
            why = f"{directory.above} does not exist: {mount}"
            return replace(store, reading=Unavailable("reservations", why, missing=True))
    return store

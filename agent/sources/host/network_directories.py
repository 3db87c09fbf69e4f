"""Reads host-local's directories: those that settings name, and with `auto` all that are found."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from posixpath import normpath
from typing import Final, NamedTuple

from agent.model.remedy import Remedy
from agent.model.runtime import RuntimeNetwork
from agent.model.settings import AUTO
from agent.model.snapshot import (
    DEFAULT_DATA_DIR,
    Known,
    NetworkStore,
    Snapshot,
    Unavailable,
    known_or,
)
from agent.sources.host.cni_cache import CniResults
from agent.sources.host.cni_config import is_part_of_path
from agent.sources.host.reservations import is_directory, network_names, read_reservations
from agent.sources.host.shared_storage import shared_storage
from agent.sources.source import Source
from agent.sources.source_error import SourceError, cannot_read

_SETTINGS: Final = "settings"
_RUNTIME: Final = "runtime"
_CACHE: Final = "libcni's cache"


class _Directory(NamedTuple):
    network: str
    parent: Path
    """Where it lies for this process."""
    data_dir: Path
    """Where it lies for the node."""
    named_by: str | None = None
    """None: it was only found."""
    second: Path | None = None
    """The network's second dataDir, if its chain has two."""

    @property
    def path(self) -> Path:
        return self.parent / self.network


@dataclass(frozen=True)
class ReservationsSource(Source):
    results: CniResults
    settings: Sequence[str]
    """Names of networks, which win, and `auto`."""
    networks_dir: Path
    mounted: Callable[[Path], Path]
    """Returns where a path of the node is for this process."""
    limit: int
    """Files of all directories together."""
    local: Collection[str]
    """Types of file systems that settings call the node's own."""
    is_missing: Callable[[Path], bool]
    """Returns whether a path that does not exist here is known not to exist on the node."""
    name = "reservations"

    def read(self, snapshot: Snapshot) -> tuple[NetworkStore, ...]:
        """Return each directory as a store.

        If the directories cannot be listed, a store of the name `auto` is unavailable.
        """
        directories, listing_failure = self._directories(known_or(snapshot.networks, ()))

        stores = []
        files = 0
        for directory in directories:
            store = read_reservations(directory.parent, directory.network, self.limit, files)
            files += len(known_or(store.reading, ())) + len(store.unrecognized)
            store = self._unless_shared(store, directory.path)
            stores.append(self._placed(store, directory))

        if listing_failure:
            reading = Unavailable("reservations", listing_failure)
            data_dir = str(self.networks_dir)
            stores.append(NetworkStore(AUTO, reading, data_dir=data_dir, discovered=True))
        return tuple(stores)

    def _directories(
        self, networks: Iterable[RuntimeNetwork]
    ) -> tuple[Iterable[_Directory], str | None]:
        """Return one directory for each network, and why they could not be listed, if so."""
        names: list[str] = []
        failure = None
        if AUTO in self.settings:
            try:
                names = network_names(self.networks_dir)
            except OSError as error:
                failure = cannot_read(self.networks_dir, error)

        directories: dict[str, _Directory] = {}
        for directory in self._candidates(networks, names):
            network = directory.network
            first = directories.setdefault(network, directory)
            is_as_good = first.named_by in {None, directory.named_by}
            if first.parent == directory.parent or not is_as_good or self._is_absent(directory):
                continue
            if self._is_absent(first):
                directories[network] = directory
            else:
                directories[network] = first._replace(second=directory.data_dir)
        return directories.values(), failure

    def _candidates(
        self, networks: Iterable[RuntimeNetwork], names: Iterable[str]
    ) -> Iterator[_Directory]:
        """Yield every directory that something names, the best evidence first."""
        base = self.networks_dir
        for name in self.settings:
            if name != AUTO:
                yield _Directory(name, parent=base, data_dir=base, named_by=_SETTINGS)
        if AUTO not in self.settings:
            return

        for network in networks:
            data_dir = Path(network.data_dir or DEFAULT_DATA_DIR)
            is_default = data_dir == Path(DEFAULT_DATA_DIR)
            parent = base if is_default else self.mounted(data_dir)
            if parent == base:
                data_dir = base
            yield _Directory(network.name, parent=parent, data_dir=data_dir, named_by=_RUNTIME)

        for name in names:
            yield _Directory(name, parent=base, data_dir=base)
        yield from self._named_by_results()

    def _named_by_results(self) -> Iterator[_Directory]:
        """Yield the directories of other networks (Multus), which only the cached results name."""
        try:
            cached = self.results.read()
        except SourceError:  # reported when cni_results itself is read
            return

        named = {(result.network, result.data_dir) for result in cached if result.data_dir}
        for network, data_dir in sorted(named):
            # Users of the cluster wrote these names, so only what this process sees counts.
            if not is_part_of_path(network, data_dir):
                continue
            path = Path(normpath(data_dir))
            directory = _Directory(
                network, parent=self.mounted(path), data_dir=path, named_by=_CACHE
            )
            if path != Path(DEFAULT_DATA_DIR) and is_directory(directory.path):
                yield directory

    def _is_absent(self, directory: _Directory) -> bool:
        """Return whether the node is known not to have it."""
        return not is_directory(directory.path) and self.is_missing(directory.path)

    def _placed(self, store: NetworkStore, directory: _Directory) -> NetworkStore:
        """Return the store with where it lies.

        If the runtime names it, it may be missing because it is not mounted.
        """
        data_dir = str(directory.data_dir)
        is_elsewhere = directory.data_dir != self.networks_dir
        store = replace(store, data_dir=data_dir, discovered=directory.named_by != _SETTINGS)
        if directory.second:
            dirs = f"network {store.network} has two dataDirs, {data_dir} and {directory.second}"
            return _unavailable(store, f"{dirs}, and only one can be read")

        match store.reading:
            case Known(reservations) if is_elsewhere:
                placed = tuple(replace(held, data_dir=data_dir) for held in reservations)
                return replace(store, reading=Known(placed))
            case Unavailable(missing=True) if directory.named_by == _RUNTIME:
                if self.is_missing(directory.path):
                    return replace(store, absent=True)
                if is_elsewhere:
                    network = f"network {store.network} has the dataDir {data_dir}"
                    why = f"{directory.parent} does not exist: {network}, which must be mounted"
                    return replace(store, reading=Unavailable("reservations", why, missing=True))
        return store

    def _unless_shared(self, store: NetworkStore, path: Path) -> NetworkStore:
        """Return the store; unavailable if other nodes may have written reservations in it.

        host-local's files name no node.
        """
        if not isinstance(store.reading, Known):
            return store
        try:
            kind = shared_storage(path, self.local)
        except (OSError, SourceError) as error:
            return _unavailable(store, f"it is unknown whether other nodes share {path}: {error}")
        if kind is None:
            return store

        shared = f"{path} is on {kind}, which other nodes may share"
        remedy = Remedy(f"if no other node writes to it, set --local-filesystem={kind}")
        why = f"{shared}: it is unknown which reservations are theirs ({remedy})"
        return _unavailable(store, why, remedy)


def _unavailable(store: NetworkStore, why: str, remedy: Remedy | None = None) -> NetworkStore:
    reading = Unavailable("reservations", why, remedy=remedy)
    return replace(store, reading=reading, unrecognized=())

"""Which directories of host-local are read: those that settings name, and, with `auto`, all that can be found."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from posixpath import normpath
from typing import Final, NamedTuple

from agent.model.runtime import AUTO, RuntimeNetwork
from agent.model.snapshot import (
    DEFAULT_DATA_DIR,
    CniResult,
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
    above: Path  # where it lies for this process
    data_dir: Path  # where it lies for the node
    named: str = ""  # who names it; empty: nobody
    other: str = ""  # another `data_dir` of the network, of a chain with two

    @property
    def path(self) -> Path:
        return self.above / self.network


@dataclass(frozen=True)
class ReservationsSource(Source):
    results: CniResults
    settings: Sequence[str]  # names of networks, which win, and `auto`
    networks_dir: Path
    mounted: Callable[[Path], Path]  # where a path of the node is for this process
    most: int  # files of all directories together
    local: Collection[str]  # types of file systems that settings call the node's own
    is_missing: Callable[[Path], bool]
    """Whether what does not exist for this process is known not to exist on the node."""
    name = "reservations"

    def read(self, snapshot: Snapshot) -> tuple[NetworkStore, ...]:
        """Read each directory once. If they cannot be listed, a store of the name `auto` is unavailable."""
        try:
            cached = self.results.read()  # only these may name the directories of other networks
        except SourceError:  # the source of the results reports it
            cached = ()
        networks = known_or(snapshot.networks, ())
        names, unlisted = list[str](), ""
        try:
            names = network_names(self.networks_dir) if AUTO in self.settings else []
        except OSError as error:
            unlisted = cannot_read(self.networks_dir, error)
        found: dict[str, _Directory] = {}
        for directory in self._directories(networks, names, cached):
            first = found.setdefault(directory.network, directory)
            differs = first.above != directory.above and first.named in {"", directory.named}
            if differs and not self._is_absent(directory):
                other = first._replace(other=str(directory.data_dir))
                found[directory.network] = directory if self._is_absent(first) else other
        stores, files = list[NetworkStore](), 0
        for directory in found.values():
            store = read_reservations(directory.above, directory.network, self.most, files)
            stores.append(self._placed(self._own(store, directory.path), directory))
            files += len(known_or(store.reading, ())) + len(store.unrecognized)
        if unlisted:
            reading = Unavailable("reservations", unlisted)
            stores.append(
                NetworkStore(AUTO, reading, data_dir=str(self.networks_dir), discovered=True)
            )
        return tuple(stores)

    def _directories(
        self, networks: Iterable[RuntimeNetwork], names: Iterable[str], cached: Iterable[CniResult]
    ) -> Iterator[_Directory]:
        usual = self.networks_dir, self.networks_dir
        yield from (_Directory(name, *usual, _SETTINGS) for name in self.settings if name != AUTO)
        if AUTO not in self.settings:
            return
        for network in networks:
            data_dir = Path(network.data_dir or DEFAULT_DATA_DIR)
            above = (
                self.networks_dir if data_dir == Path(DEFAULT_DATA_DIR) else self.mounted(data_dir)
            )
            yield _Directory(
                network.name, above, above if above == self.networks_dir else data_dir, _RUNTIME
            )
        yield from (_Directory(name, *usual) for name in names)
        yield from self._further(cached)

    def _further(self, cached: Iterable[CniResult]) -> Iterator[_Directory]:
        """Yield what this process sees of the directories that results name: users of the cluster wrote these names."""
        for network, data_dir in sorted(
            {(result.network, result.data_dir) for result in cached if result.data_dir}
        ):
            if (
                is_part_of_path(network, data_dir)
                and (path := normpath(data_dir)) != DEFAULT_DATA_DIR
            ):
                directory = _Directory(network, self.mounted(Path(path)), Path(path), _CACHE)
                if is_directory(directory.path):
                    yield directory

    def _is_absent(self, directory: _Directory) -> bool:
        return not is_directory(directory.path) and self.is_missing(directory.path)

    def _placed(self, store: NetworkStore, directory: _Directory) -> NetworkStore:
        """Return it with where it lies. Where the runtime names it, it may be missing because it is not mounted."""
        data_dir, elsewhere = str(directory.data_dir), directory.data_dir != self.networks_dir
        store = replace(store, data_dir=data_dir, discovered=directory.named != _SETTINGS)
        if directory.other:
            return _unavailable(
                store,
                f"network {store.network} has two dataDirs, {data_dir} and {directory.other}, and only one can be read",
            )
        match store.reading:
            case Known(reservations) if elsewhere:
                placed = tuple(
                    replace(reservation, data_dir=data_dir) for reservation in reservations
                )
                return replace(store, reading=Known(placed))
            case Unavailable(missing=True) if directory.named == _RUNTIME and self.is_missing(
                directory.path
            ):
                return replace(store, absent=True)
            case Unavailable(missing=True) if directory.named == _RUNTIME and elsewhere:
                mount = f"network {store.network} has the dataDir {data_dir}, which must be mounted"
                why = f"{directory.above} does not exist: {mount}"
                return replace(store, reading=Unavailable("reservations", why, missing=True))
        return store

    def _own(self, store: NetworkStore, path: Path) -> NetworkStore:
        """Return the store; unavailable, if other nodes may have written reservations in it.

        No record says which are theirs.
        """
        if not isinstance(store.reading, Known):
            return store
        try:
            kind = shared_storage(path, self.local)
        except (OSError, SourceError) as error:
            return _unavailable(store, f"it is unknown whether other nodes share {path}: {error}")
        if not kind:
            return store
        shared = f"{path} is on {kind}, which other nodes may share"
        why = f"{shared}: it is unknown which reservations are theirs"
        remedy = f"if no other node writes to it, set --local-filesystem={kind}"
        return _unavailable(store, f"{why} ({remedy})")


def _unavailable(store: NetworkStore, why: str) -> NetworkStore:
    return replace(store, reading=Unavailable("reservations", why), unrecognized=())

"""Which directories of host-local are read: those that settings name, and, with `auto`, all that can be found.

Whose a found directory is, is decided later (`attribution.py`): the runtime's word and the pods tell.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from agent.model.assessment import KUBENET
from agent.model.runtime import RuntimeNetwork
from agent.model.setting_values import AUTO
from agent.model.snapshot import NetworkStore, Reading, Reservation, Unavailable, known_or
from agent.sources.host.reservations import MAX_NETWORKS, network_names, read_reservations
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


def read_all(
    settings: Sequence[str],
    networks: Reading[tuple[RuntimeNetwork, ...]],
    networks_dir: Path,
    mounted: Callable[[Path], Path],
    before: Iterable[NetworkStore] = (),
    most: int = 65536,
) -> tuple[NetworkStore, ...]:
    """Read each directory once; names in the settings win.

    `mounted`: where a path of the node is for this process. `before`: what was read last.
    `most`: how many files are read of all together.
    """
    earlier = {store.network: known_or(store.reading, ()) for store in before}
    names, why_unread = _listed(networks_dir) if AUTO in settings else ([], "")
    found: dict[str, _Directory] = {}
    for one in _directories(settings, known_or(networks, ()), networks_dir, mounted, names):
        found.setdefault(one.network, one)
    if why_unread and all(one.named == "settings" for one in found.values()):
        found[AUTO] = _Directory(AUTO, networks_dir, networks_dir, "")  # stands for those that are not read
    stores: list[NetworkStore] = []
    files = 0
    for one in found.values():
        if why_unread and one.named != "settings":
            unread = Unavailable("reservations", why_unread)
            stores.append(NetworkStore(one.network, unread, data_dir=str(one.data_dir), discovered=True))
            continue
        store = _read(one, networks_dir, earlier.get(one.network, ()), most, files)
        files += len(known_or(store.reading, ())) + len(store.unrecognized)
        stores.append(store)
    return tuple(stores)


def _listed(networks_dir: Path) -> tuple[list[str], str]:
    """Return the directories, or why none is read: the part that is known may lack those with the leaks."""
    try:
        names = network_names(networks_dir)
    except OSError as error:
        return [], cannot_read(networks_dir, error)
    if len(names) > MAX_NETWORKS:
        return [], f"{networks_dir} has more than {MAX_NETWORKS:,} directories: find out what makes them"
    return names, ""


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
    # No runtime knows kubenet: it is the kubelet's.
    for name in (*names, *(() if networks else (KUBENET,))):
        yield _Directory(name, networks_dir, networks_dir, "")


def _read(one: _Directory, networks_dir: Path, before: Iterable[Reservation], most: int, others: int) -> NetworkStore:
    store = read_reservations(one.above, one.network, before, most, others)
    store = replace(store, data_dir=str(one.data_dir), discovered=one.named != "settings")
    if one.named != "runtime" or not isinstance(store.reading, Unavailable):
        return store
    if " does not exist: " not in store.reading.why:
        return store
    # Whatever else is there, host-local makes this one for the first pod.
    store = replace(store, absent=one.above.is_dir() or one.above.parent.is_dir())
    if one.above.is_dir() or one.data_dir == networks_dir:
        return store
    why = f"{one.above} does not exist: network {one.network} has the dataDir {one.data_dir}, which must be mounted"
    return replace(store, reading=Unavailable("reservations", why))

"""The kubelet's device manager, from outside: its sockets, checkpoint and connections. Read-only.

Neither a plugin nor the kubelet is called. When the kubelet starts, it empties the directory and
binds `kubelet.sock`; then each plugin binds its own socket again and registers. Some plugins
(SR-IOV, RDMA) have their socket in `plugins_registry` beside it, where a start removes nothing. The
checkpoint (`devicemanager/checkpoint`) says which devices the kubelet knows, and which containers
it gave them to. It is replaced by a rename, so never half written, and its checksum is not
verified.
"""

import json
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from agent.model.devices import (
    KUBELET_SOCKET,
    Allocation,
    DevicePlugins,
    PluginSocket,
    Registered,
)
from agent.model.documents import StoredHistory
from agent.model.snapshot import from_mtime
from agent.model.text import escape
from agent.sources.host.files import names_in, open_directory, read_file
from agent.sources.host.unix_sockets import UnixSockets, read_sockets
from agent.sources.source_error import NotFound, SourceError

_CHECKPOINT: Final = "kubelet_internal_checkpoint"
_CANONICAL: Final = Path("/var/lib/kubelet/device-plugins")
"""The directory as the kubelet knows it."""

_REGISTRY: Final = "plugins_registry"
_OF_A_DRIVER: Final = "-reg.sock"
"""The kubelet's registration sockets of drivers: `node-driver-registrar` for storage, and DRA."""
_MAX_IN_REGISTRY: Final = 128
"""Sockets of plugins. Those of dead plugins stay, as nothing removes them, and are the oldest."""
_NO_SOCKETS: Final = UnixSockets(frozenset(), frozenset())


class _Checkpoint(NamedTuple):
    written: datetime | None = None
    """None: there is no checkpoint."""
    registered: tuple[Registered, ...] = ()
    allocations: tuple[Allocation, ...] = ()


class _Registry(NamedTuple):
    made: Mapping[str, datetime]
    """When each plugin bound its socket."""
    drivers: tuple[str, ...]
    """The names of drivers that have a registration socket."""


def read_device_plugins(
    path: Path, proc: Path, history: Callable[[], StoredHistory]
) -> DevicePlugins:
    """Return all of it; raises SourceError if the directory or the checkpoint is unavailable.

    `history`: returns that up to the last snapshot.
    """
    with open_directory(path) as directory:
        # The kubelet's socket before the plugins': if the kubelet starts meanwhile, it removes
        # their sockets, so none seems older than a kubelet that would have removed it.
        kubelet = _bound_at(KUBELET_SOCKET, directory)
        made = _sockets_in(directory, path)
        checkpoint = _read_checkpoint(directory)
    beside = path.parent / _REGISTRY
    registry = _read_registry(beside)
    stored = history()

    paths = {
        **_paths_of(registry.made, beside, _CANONICAL.with_name(_REGISTRY)),
        **_paths_of((KUBELET_SOCKET, *made), path, _CANONICAL),
    }
    open_sockets = _NO_SOCKETS
    if made or registry.made or kubelet is None:
        open_sockets = _open_sockets(proc, chain.from_iterable(paths.values()))
    # The kernel lists a socket until it is closed, also without its file. Here only the path that
    # was read counts: the kubelet has its socket in another directory if that is the wrong one.
    listens = os.fsencode(path / KUBELET_SOCKET) in open_sockets.listening

    return DevicePlugins(
        kubelet_socket=kubelet,
        sockets=_with_connections(made, registry.made, paths, open_sockets),
        checkpoint_written=checkpoint.written,
        registered=checkpoint.registered,
        allocations=checkpoint.allocations,
        history=stored.transitions,
        trouble=stored.trouble,
        drivers=_devices(registry.drivers),
        listens_without_file=kubelet is None and listens,
    )


def _sockets_in(directory: int, path: Path) -> dict[str, datetime]:
    """Return when each plugin's socket of an open directory was bound."""
    bound = {}
    for name in names_in(directory, path):
        if name == KUBELET_SOCKET or name.startswith("."):
            continue
        if at := _bound_at(name, directory):
            bound[name] = at
    return bound


def _read_registry(path: Path) -> _Registry:
    """Return what the registry has; nothing where there is no registry."""
    try:
        with open_directory(path) as directory:
            made = _sockets_in(directory, path)
    except NotFound:
        return _Registry({}, ())

    drivers = tuple(name for name in made if name.endswith(_OF_A_DRIVER))
    of_plugins = sorted(made.keys() - set(drivers), key=lambda name: (made[name], name))

    return _Registry(
        made={name: made[name] for name in of_plugins[-_MAX_IN_REGISTRY:]},
        drivers=tuple(name.removesuffix(_OF_A_DRIVER) for name in drivers),
    )


def _paths_of(names: Iterable[str], *directories: Path) -> dict[str, set[bytes]]:
    """Return by name the paths by which the kernel may list each socket."""
    return {name: {os.fsencode(parent / name) for parent in directories} for name in names}


def _open_sockets(proc: Path, paths: Iterable[bytes]) -> UnixSockets:
    """Find these paths in the node's list; nothing if it is unavailable."""
    try:
        return read_sockets(proc, paths)
    except SourceError:
        return _NO_SOCKETS


def _with_connections(
    made: Mapping[str, datetime],
    in_registry: Mapping[str, datetime],
    paths: Mapping[str, set[bytes]],
    open_sockets: UnixSockets,
) -> tuple[PluginSocket, ...]:
    """Add whether the kubelet is connected, if the list is that of its network namespace."""
    # A list without the kubelet's own socket is another namespace's, or the kubelet does not run.
    is_kubelets = bool(paths[KUBELET_SOCKET] & open_sockets.listening)

    sockets = []
    for name, at in sorted({**in_registry, **made}.items()):
        connected = bool(paths[name] & open_sockets.connected) if is_kubelets else None
        sockets.append(PluginSocket(escape(name), at, connected, registry=name not in made))
    return tuple(sockets)


def _bound_at(name: str, directory: int) -> datetime | None:
    """Return when a socket was bound; None: it is gone, or not a socket."""
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    # Connecting to a socket and listening on it do not change its times.
    return from_mtime(status.st_mtime_ns) if stat.S_ISSOCK(status.st_mode) else None


def _read_checkpoint(directory: int) -> _Checkpoint:
    """Return the checkpoint in an open directory; raises SourceError if it cannot be parsed."""
    try:
        content, mtime_ns = read_file(_CHECKPOINT, directory)
    except FileNotFoundError:
        return _Checkpoint()

    try:
        data = json.loads(content)["Data"]
        devices = {} if data["RegisteredDevices"] is None else data["RegisteredDevices"]
        registered = [
            Registered(_text(resource), _devices(_list(ids)))
            for resource, ids in sorted(devices.items())
        ]
        allocations = map(_allocation, _list(data["PodDeviceEntries"]))
        return _Checkpoint(from_mtime(mtime_ns), tuple(registered), tuple(allocations))
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{_CHECKPOINT}: not JSON ({len(content)} bytes)") from error
    except (KeyError, TypeError, AttributeError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise SourceError(f"{_CHECKPOINT}: unknown format ({problem})") from error


def _allocation(entry: Mapping[str, Any]) -> Allocation:
    """Parse an entry. Its devices are a list, and since kubelet 1.20 one for each NUMA node."""
    listed = entry["DeviceIDs"]
    lists = listed.values() if isinstance(listed, dict) else [listed]
    return Allocation(
        pod_uid=_text(entry["PodUID"]),
        container=_text(entry["ContainerName"]),
        resource=_text(entry["ResourceName"]),
        devices=_devices(chain.from_iterable(map(_list, lists))),
    )


def _devices(listed: Iterable[Any]) -> tuple[str, ...]:
    """Sort devices: the kubelet writes its sets in random order."""
    return tuple(sorted(map(_text, listed)))


def _list(tree: Any) -> list[Any]:
    """Return a list; Go writes an empty list as null too."""
    if tree is None:
        return []
    if not isinstance(tree, list):
        raise TypeError(f"{tree!r:.40} is not a list")
    return tree


def _text(tree: Any) -> str:
    """Return a text without control characters; raises TypeError for anything else."""
    if not isinstance(tree, str):
        raise TypeError(f"{tree!r:.40} is not a string")
    return escape(tree)

"""The kubelet's device manager, from outside: its directory of sockets, its checkpoint, its connections. Read-only.

Neither a plugin nor the kubelet is called. When the kubelet starts, it empties the directory and binds `kubelet.sock`;
then each plugin binds its own socket again and registers. The checkpoint says which devices the kubelet knows, and
which containers it gave them to. It is replaced by a rename, so never half written, and its checksum is not verified.
"""

import json
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, Final

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
from agent.sources.source_error import SourceError

_CHECKPOINT: Final = "kubelet_internal_checkpoint"
_CANONICAL: Final = Path("/var/lib/kubelet/device-plugins")  # as the kubelet knows the directory


def read_device_plugins(
    path: Path, proc: Path, history: Callable[[], StoredHistory]
) -> DevicePlugins:
    """Raises SourceError if the directory or the checkpoint is unavailable. `history`: up to the last snapshot."""
    with open_directory(path) as directory:
        # The kubelet's socket before the plugins': if the kubelet starts meanwhile, it removes their sockets, so no
        # plugin's socket seems older than a kubelet that would have removed it.
        kubelet = _made(KUBELET_SOCKET, directory)
        names = (
            name
            for name in names_in(directory, path)
            if name != KUBELET_SOCKET and not name.startswith(".")
        )
        made = {name: at for name in names if (at := _made(name, directory))}
        checkpoint = _read_checkpoint(directory)
    stored = history()
    paths = {
        name: {os.fsencode(directory / name) for directory in (path, _CANONICAL)}
        for name in (KUBELET_SOCKET, *made)
    }
    open_sockets = UnixSockets(frozenset(), frozenset())
    if made or kubelet is None:
        open_sockets = _open_sockets(proc, chain.from_iterable(paths.values()))
    # The kernel lists a socket until it is closed, also without its file. Here only the path that
    # was read counts: the kubelet has its socket in another directory if that is the wrong one.
    listens = os.fsencode(path / KUBELET_SOCKET) in open_sockets.listening
    return DevicePlugins(
        kubelet_socket=kubelet,
        sockets=_with_connections(made, paths, open_sockets),
        checkpoint_written=checkpoint[0],
        registered=checkpoint[1],
        allocations=checkpoint[2],
        history=stored.transitions,
        trouble=stored.trouble,
        listens_without_file=kubelet is None and listens,
    )


def _open_sockets(proc: Path, paths: Iterable[bytes]) -> UnixSockets:
    """Find these paths in the node's list; nothing if it is unavailable."""
    try:
        return read_sockets(proc, paths)
    except SourceError:
        return UnixSockets(frozenset(), frozenset())


def _with_connections(
    made: Mapping[str, datetime], paths: Mapping[str, set[bytes]], open_sockets: UnixSockets
) -> tuple[PluginSocket, ...]:
    """Add whether the kubelet is connected, if the list of unix sockets is that of the kubelet's network namespace."""
    # A list without the kubelet's own socket is another namespace's, or the kubelet does not run.
    same_namespace = bool(paths[KUBELET_SOCKET] & open_sockets.listening)
    connected = {
        name: bool(paths[name] & open_sockets.connected) if same_namespace else None
        for name in made
    }
    return tuple(
        PluginSocket(escape(name), at, connected[name]) for name, at in sorted(made.items())
    )


def _made(name: str, directory: int) -> datetime | None:
    """Return when a socket was bound; None: it is gone, or not a socket."""
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    # Connecting to a socket and listening on it do not change its times.
    return from_mtime(found.st_mtime_ns) if stat.S_ISSOCK(found.st_mode) else None


def _read_checkpoint(
    directory: int,
) -> tuple[datetime | None, tuple[Registered, ...], tuple[Allocation, ...]]:
    """Return when the checkpoint was written, and what is in it; None and nothing if there is none."""
    try:
        content, mtime_ns = read_file(_CHECKPOINT, directory)
    except FileNotFoundError:
        return None, (), ()
    try:
        data = json.loads(content)["Data"]
        devices = {} if data["RegisteredDevices"] is None else data["RegisteredDevices"]
        registered = tuple(
            Registered(_text(name), _devices(_list(ids))) for name, ids in sorted(devices.items())
        )
        return (
            from_mtime(mtime_ns),
            registered,
            tuple(map(_allocation, _list(data["PodDeviceEntries"]))),
        )
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{_CHECKPOINT}: not JSON ({len(content)} bytes)") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise SourceError(
            f"{_CHECKPOINT}: unknown format ({type(error).__name__}: {error})"
        ) from error


def _allocation(entry: Mapping[str, Any]) -> Allocation:
    """Parse an entry. Its devices are a list up to kubelet 1.19, and a list for each NUMA node since 1.20."""
    listed = entry["DeviceIDs"]
    lists = listed.values() if isinstance(listed, dict) else [listed]
    devices = _devices(chain.from_iterable(map(_list, lists)))
    return Allocation(
        _text(entry["PodUID"]), _text(entry["ContainerName"]), _text(entry["ResourceName"]), devices
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
    if not isinstance(tree, str):
        raise TypeError(f"{tree!r:.40} is not a string")
    return escape(tree)

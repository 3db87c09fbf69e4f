"""The kubelet's device manager, from outside: its directory of sockets, its checkpoint, its connections. Read-only.

Neither a plugin nor the kubelet is called. When the kubelet starts, it empties the directory and binds `kubelet.sock`;
then each plugin binds its own socket again and registers. `kubelet_internal_checkpoint` says which devices the kubelet
knows, and which containers it gave them to. It is replaced by a rename whenever they change, so it is never half
written, and its checksum is not verified.
"""

import json
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from agent.model.devices import Allocation, DevicePlugins, PluginSocket, Registered
from agent.model.documents import StoredHistory
from agent.model.snapshot import from_mtime
from agent.model.text import escape
from agent.sources.host.files import names_in, open_directory, read_file
from agent.sources.host.unix_sockets import UnixSockets, read_sockets
from agent.sources.source_error import SourceError

KUBELET: Final = "kubelet.sock"
CHECKPOINT: Final = "kubelet_internal_checkpoint"
CANONICAL: Final = Path("/var/lib/kubelet/device-plugins")
"""The path by which the kubelet knows the directory, wherever it is mounted for the agent."""


class DeviceManager:
    def __init__(self, directory: Path, proc: Path, history: Callable[[], StoredHistory]) -> None:
        """`history`: returns the transitions up to the last snapshot."""
        self._directory, self._proc, self._history = directory, proc, history

    def read(self) -> DevicePlugins:
        """Read it once; raises SourceError if the directory or the checkpoint is unavailable."""
        with open_directory(self._directory) as directory:
            # The kubelet's socket before the plugins': if the kubelet starts meanwhile, it removes their sockets, so no
            # plugin's socket seems older than a kubelet that would have removed it.
            kubelet = _made(KUBELET, directory)
            made = _sockets(directory, self._directory)
            known, written = _read_checkpoint(directory)
        history = self._history()
        return DevicePlugins(
            kubelet_socket=kubelet,
            sockets=self._with_connections(made),
            checkpoint_written=written,
            registered=known.registered,
            allocations=known.allocations,
            history=history.transitions,
            trouble=history.trouble,
        )

    def _with_connections(self, made: Mapping[str, datetime]) -> tuple[PluginSocket, ...]:
        """Add whether the kubelet is connected, if the list of unix sockets is that of the kubelet's network namespace.

        A list without the kubelet's own socket is another namespace's, or the kubelet does not run.
        """
        if not made:
            return ()
        paths = {name: self._paths(name) for name in (KUBELET, *made)}
        try:
            found = read_sockets(self._proc, chain.from_iterable(paths.values()))
        except SourceError:
            found = UnixSockets(frozenset(), frozenset())
        same_namespace = bool(paths[KUBELET] & found.listening)
        connected = {name: bool(paths[name] & found.connected) if same_namespace else None for name in made}
        return tuple(PluginSocket(escape(name), at, connected[name]) for name, at in sorted(made.items()))

    def _paths(self, name: str) -> frozenset[bytes]:
        return frozenset(os.fsencode(directory / name) for directory in (self._directory, CANONICAL))


def _sockets(directory: int, path: Path) -> dict[str, datetime]:
    """Return when each plugin's socket was bound."""
    names = (name for name in names_in(directory, path) if name != KUBELET and not name.startswith("."))
    return {name: made for name in names if (made := _made(name, directory))}


def _made(name: str, directory: int) -> datetime | None:
    """Return when a socket was bound; None: it is gone, or not a socket."""
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    # Connecting to a socket and listening on it do not change its times.
    return from_mtime(found.st_mtime_ns) if stat.S_ISSOCK(found.st_mode) else None


class DeviceCheckpoint(NamedTuple):
    registered: tuple[Registered, ...] = ()
    allocations: tuple[Allocation, ...] = ()


def _read_checkpoint(directory: int) -> tuple[DeviceCheckpoint, datetime | None]:
    """Return the checkpoint and when it was written; an empty checkpoint and None if there is none."""
    try:
        content, mtime_ns = read_file(CHECKPOINT, directory)
    except FileNotFoundError:
        return DeviceCheckpoint(), None
    return parse_checkpoint(content), from_mtime(mtime_ns)


def parse_checkpoint(content: bytes) -> DeviceCheckpoint:
    """Read a checkpoint; raises SourceError with the reason, whatever the bytes."""
    try:
        tree = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{CHECKPOINT}: not JSON ({len(content)} bytes)") from error
    try:
        data = tree["Data"]
        registered = {} if data["RegisteredDevices"] is None else data["RegisteredDevices"]
        return DeviceCheckpoint(
            tuple(
                Registered(_text(resource), _devices(_list(listed))) for resource, listed in sorted(registered.items())
            ),
            tuple(map(_allocation, _list(data["PodDeviceEntries"]))),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise SourceError(f"{CHECKPOINT}: unknown format ({type(error).__name__}: {error})") from error


def _allocation(entry: Mapping[str, Any]) -> Allocation:
    """Parse an entry. Its devices are a list up to kubelet 1.19, and a list for each NUMA node since 1.20."""
    listed = entry["DeviceIDs"]
    lists = listed.values() if isinstance(listed, dict) else [listed]
    devices = _devices(chain.from_iterable(map(_list, lists)))
    return Allocation(_text(entry["PodUID"]), _text(entry["ContainerName"]), _text(entry["ResourceName"]), devices)


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

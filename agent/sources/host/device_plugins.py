"""The kubelet's device manager, from outside: its directory of sockets, its checkpoint, its connections. Read-only.

Neither a plugin nor the kubelet is called. When the kubelet starts, it empties the directory and binds `kubelet.sock`;
then each plugin binds its own socket again and registers. `kubelet_internal_checkpoint` is replaced whole whenever
devices change.
"""

import os
import stat
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from agent.model.devices import DevicePlugins, PluginSocket
from agent.model.snapshot import from_mtime
from agent.model.state_files import StoredHistory
from agent.model.text import escape
from agent.sources.host import device_checkpoint, unix_sockets
from agent.sources.host.cached_file import CachedFile
from agent.sources.host.device_checkpoint import DeviceCheckpoint
from agent.sources.host.directory import names_in
from agent.sources.os_error import cannot_read
from agent.sources.source_error import NotFound, SourceError

KUBELET = "kubelet.sock"
CANONICAL = Path("/var/lib/kubelet/device-plugins")
"""The path by which the kubelet knows the directory, wherever it is mounted for the agent."""


class DeviceManager:
    def __init__(self, directory: Path, proc: Path, history: Callable[[], StoredHistory]) -> None:
        """`history`: returns the transitions up to the last snapshot."""
        self._directory, self._proc, self._history = directory, proc, history
        self._checkpoint = CachedFile(device_checkpoint.parse_checkpoint, device_checkpoint.MAX_CHECKPOINT_BYTES)

    def read(self) -> DevicePlugins:
        """Read it once; raises SourceError if the directory or the checkpoint is unavailable."""
        try:
            handle = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise NotFound(f"{self._directory} does not exist") from error
        except OSError as error:
            raise SourceError(cannot_read(self._directory, error)) from error
        try:
            # The kubelet's socket before the plugins': if the kubelet starts meanwhile, it removes their sockets, so no
            # plugin's socket seems older than a kubelet that would have removed it.
            kubelet = _made(KUBELET, handle)
            made = _sockets(handle, self._directory)
            device_checkpoint.check_number(len(made), f"{self._directory}: sockets")
            checkpoint = self._checkpoint.read(device_checkpoint.NAME, handle)
        except OSError as error:
            raise SourceError(cannot_read(self._directory, error)) from error
        finally:
            os.close(handle)
        known, written_ns = checkpoint or (DeviceCheckpoint(), None)
        history = self._history()
        return DevicePlugins(
            kubelet_socket=kubelet,
            sockets=self._with_connections(made),
            checkpoint_written=None if written_ns is None else _moment(written_ns, device_checkpoint.NAME),
            registered=known.registered,
            allocations=known.allocations,
            history=history.transitions,
            trouble=history.trouble,
        )

    def _with_connections(self, made: dict[str, datetime]) -> tuple[PluginSocket, ...]:
        """Add whether the kubelet is connected, if the list of unix sockets is that of the kubelet's network namespace.

        A list without the kubelet's own socket is another namespace's, or the kubelet does not run.
        """
        if not made:
            return ()
        paths = {name: self._paths(name) for name in (KUBELET, *made)}
        try:
            found = unix_sockets.read_sockets(self._proc, {path for both in paths.values() for path in both})
        except SourceError:
            found = unix_sockets.UnixSockets(frozenset(), frozenset())
        same_namespace = bool(paths[KUBELET] & found.listening)
        return tuple(
            PluginSocket(escape(name), at, bool(paths[name] & found.connected) if same_namespace else None)
            for name, at in sorted(made.items())
        )

    def _paths(self, name: str) -> frozenset[bytes]:
        return frozenset(os.fsencode(directory / name) for directory in (self._directory, CANONICAL))


def _sockets(directory: int, path: Path) -> dict[str, datetime]:
    """Return when each plugin's socket was bound."""
    return {
        name: made
        for name in names_in(directory, path)
        if name != KUBELET and not name.startswith(".") and (made := _made(name, directory))
    }


def _made(name: str, directory: int) -> datetime | None:
    """Return when a socket was bound; None: it is gone, or not a socket."""
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    # Connecting to a socket and listening on it do not change its times.
    return _moment(found.st_mtime_ns, name) if stat.S_ISSOCK(found.st_mode) else None


def _moment(ns: int, name: str) -> datetime:
    try:
        return from_mtime(ns)
    except OverflowError as error:
        raise SourceError(f"{escape(name)}: its modification time is not a date") from error

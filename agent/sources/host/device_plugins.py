"""The kubelet's device manager, from outside: its directory of sockets, its checkpoint, its connections.

No plugin and no kubelet is spoken to. The kubelet empties the directory when it starts, binds `kubelet.sock`, and each
plugin binds its own socket anew and registers; `kubelet_internal_checkpoint` is replaced whole whenever devices change.
Nothing here changes anything.
"""

import os
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from agent.model.device_history import StoredHistory
from agent.model.devices import DevicePlugins, PluginSocket
from agent.model.text import escape
from agent.sources.error import SourceError
from agent.sources.host import device_checkpoint, unix_sockets
from agent.sources.host.cached_file import CachedFile
from agent.sources.host.device_checkpoint import DeviceCheckpoint

KUBELET = "kubelet.sock"
CANONICAL = Path("/var/lib/kubelet/device-plugins")
"""Where the kubelet says the directory is, wherever it is mounted for us."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class DeviceManager:
    """One kubelet's device manager."""

    def __init__(self, directory: Path, proc: Path, chronicle: Callable[[], StoredHistory]) -> None:
        """`chronicle`: what earlier looks left behind."""
        self._directory, self._proc, self._chronicle = directory, proc, chronicle
        self._checkpoint = CachedFile(device_checkpoint.parse, device_checkpoint.LARGEST)

    def read(self) -> DevicePlugins:
        """Read it once; raises Unavailable where the directory or the checkpoint gives no word."""
        try:
            handle = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise SourceError(f"{self._directory} does not exist") from error
        except OSError as error:
            raise SourceError(f"{self._directory}: {error.strerror}") from error
        try:
            # The kubelet's before the plugins': a kubelet that starts meanwhile has then taken their sockets away, and
            # no plugin looks older than a kubelet that would have removed it.
            kubelet = _made(KUBELET, handle)
            made = _sockets(handle)
            checkpoint = self._checkpoint.read(device_checkpoint.NAME, handle)
        except OSError as error:
            raise SourceError(f"{self._directory}: {error.strerror}") from error
        finally:
            os.close(handle)
        known, written_ns = checkpoint or (DeviceCheckpoint(), None)
        chronicle = self._chronicle()
        return DevicePlugins(
            kubelet_socket=kubelet,
            sockets=self._with_connections(made),
            checkpoint_written=None if written_ns is None else _moment(written_ns, device_checkpoint.NAME),
            registered=known.registered,
            allocations=known.allocations,
            history=chronicle.transitions,
            trouble=chronicle.trouble,
        )

    def _with_connections(self, made: dict[str, datetime]) -> tuple[PluginSocket, ...]:
        """Say of each whether the kubelet is connected, where the list that tells it is the kubelet's.

        A list without the kubelet's own socket is another network namespace's, or its kubelet is not there.
        """
        if not made:
            return ()
        paths = {name: self._paths(name) for name in (KUBELET, *made)}
        try:
            found = unix_sockets.read(self._proc, {path for both in paths.values() for path in both})
        except SourceError:
            found = unix_sockets.UnixSockets(frozenset(), frozenset())
        believed = bool(paths[KUBELET] & found.listening)
        return tuple(
            PluginSocket(escape(name), at, bool(paths[name] & found.connected) if believed else None)
            for name, at in sorted(made.items())
        )

    def _paths(self, name: str) -> frozenset[bytes]:
        return frozenset(os.fsencode(directory / name) for directory in (self._directory, CANONICAL))


def _sockets(directory: int) -> dict[str, datetime]:
    """Return when each plugin's socket was made; whatever is no socket is no plugin's."""
    return {
        name: made
        for name in os.listdir(directory)
        if name != KUBELET and not name.startswith(".") and (made := _made(name, directory))
    }


def _made(name: str, directory: int) -> datetime | None:
    """Return when a socket was bound; None where it is gone by now, or is none."""
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    # Connecting to it and listening on it leave its times alone.
    return _moment(found.st_mtime_ns, name) if stat.S_ISSOCK(found.st_mode) else None


def _moment(ns: int, name: str) -> datetime:
    try:
        return _EPOCH + timedelta(microseconds=ns // 1000)
    except OverflowError as error:
        # A file system's years go further than the calendar's.
        raise SourceError(f"{escape(name)}: its time is no date") from error

"""The node's unix sockets: which paths are listened on, and which are connected. Read-only.

The accepted end of a connection is listed in the network namespace of the connecting process, with the path: the
kubelet's connections are in the node's own list, wherever the plugin runs.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from agent.sources.os_error import cannot_read
from agent.sources.source_error import SourceError

_ACCEPTS = 0x10000
"""`__SO_ACCEPTCON` in the kernel's flags: the socket listens."""
_CONNECTED = b"03"
_FLAGS, _STATE, _PATH = 3, 5, 7
"""Columns of `/proc/net/unix` (proc_pid_net(5))."""
_SLASHES = re.compile(rb"/+")


@dataclass(frozen=True, slots=True)
class UnixSockets:
    listening: frozenset[bytes]
    connected: frozenset[bytes]


def read_sockets(proc: Path, paths: Iterable[bytes]) -> UnixSockets:
    """Find these paths in the node's list; raises SourceError if it cannot be read."""
    try:
        # Line by line: a busy node has thousands, of which a few matter.
        with (proc / "1/net/unix").open("rb") as lines:
            return find(lines, paths)
    except OSError as error:
        raise SourceError(cannot_read(f"{proc}/1/net/unix", error)) from error


def find(lines: Iterable[bytes], paths: Iterable[bytes]) -> UnixSockets:
    """Find the paths in the kernel's lines. Never raises, whatever they contain."""
    wanted = frozenset(paths)
    ends = tuple({b"/%b\n" % path.rpartition(b"/")[2] for path in wanted})
    listening, connected = set[bytes](), set[bytes]()
    for line in lines:
        if not line.endswith(ends):
            continue
        columns = line[:-1].split(None, _PATH)
        # The kernel keeps a path as it was bound, such as `///var/lib/...` from a carelessly split URL.
        if len(columns) <= _PATH or (path := _SLASHES.sub(b"/", columns[_PATH])) not in wanted:
            continue
        if columns[_STATE] == _CONNECTED:
            connected.add(path)
        elif _accepts(columns[_FLAGS]):
            listening.add(path)
    return UnixSockets(frozenset(listening), frozenset(connected))


def _accepts(flags: bytes) -> bool:
    try:
        return bool(int(flags, 16) & _ACCEPTS)
    except ValueError:
        return False

"""The node's unix sockets: which paths are listened on, and which are connected. Read-only.

The accepted end of a connection is listed in the network namespace of the connecting process, with
the path: the kubelet's connections are in the node's own list, wherever the plugin runs.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from agent.sources.source_error import read_error

_LINE: Final = re.compile(
    rb"\S+: \S+ \S+ (?P<flags>[0-9A-Fa-f]+) \S+ (?P<state>\S+) +\d+ (?P<path>/.*)\n"
)
"""A line of `/proc/net/unix` (proc_pid_net(5))."""
_ACCEPTS: Final = 0x10000  # `__SO_ACCEPTCON` of include/uapi/linux/net.h: the socket listens
_CONNECTED: Final = b"03"  # `SS_CONNECTED` of the same file
_SLASHES: Final = re.compile(rb"/+")


class UnixSockets(NamedTuple):
    """The paths of sockets, by what they are at."""

    listening: frozenset[bytes]
    connected: frozenset[bytes]


def read_sockets(proc: Path, paths: Iterable[bytes]) -> UnixSockets:
    """Return which of these paths are in the node's list; raises SourceError."""
    wanted = frozenset(paths)
    ends = tuple({b"/%b\n" % path.rpartition(b"/")[2] for path in wanted})
    listening = set()
    connected = set()

    table = proc / "1/net/unix"
    try:
        with table.open("rb") as lines:
            for line in lines:
                # Most of a busy node's thousands of lines are of no interest.
                if not line.endswith(ends) or not (parts := _LINE.fullmatch(line)):
                    continue
                # The kernel keeps a path as it was bound: `///var/lib/...` from a carelessly split
                # URL.
                path = _SLASHES.sub(b"/", parts["path"])
                if path not in wanted:
                    continue
                if parts["state"] == _CONNECTED:
                    connected.add(path)
                elif int(parts["flags"], 16) & _ACCEPTS:
                    listening.add(path)
    except OSError as error:
        raise read_error(table, error) from error

    return UnixSockets(frozenset(listening), frozenset(connected))

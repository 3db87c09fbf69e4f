"""The node's unix sockets: which paths are listened on, and which are connected. Read-only.

The accepted end of a connection is listed in the network namespace of the connecting process, with the path: the
kubelet's connections are in the node's own list, wherever the plugin runs.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from agent.sources.source_error import SourceError, cannot_read

_LINE: Final = re.compile(
    rb"\S+: \S+ \S+ (?P<flags>[0-9A-Fa-f]+) \S+ (?P<state>\S+) +\d+ (?P<path>/.*)\n"
)
"""A line of `/proc/net/unix` (proc_pid_net(5))."""
_ACCEPTS: Final = 0x10000  # `__SO_ACCEPTCON` in the kernel's flags: the socket listens
_CONNECTED: Final = b"03"
_SLASHES: Final = re.compile(rb"/+")


class UnixSockets(NamedTuple):
    listening: frozenset[bytes]
    connected: frozenset[bytes]


def read_sockets(proc: Path, paths: Iterable[bytes]) -> UnixSockets:
    """Find these paths in the node's list; raises SourceError if it cannot be read."""
    wanted, listening, connected = frozenset(paths), set[bytes](), set[bytes]()
    ends = tuple({b"/%b\n" % path.rpartition(b"/")[2] for path in wanted})
    try:
        # Line by line: a busy node has thousands, of which a few matter.
        with (proc / "1/net/unix").open("rb") as lines:
            for matched in filter(
                None, (_LINE.fullmatch(line) for line in lines if line.endswith(ends))
            ):
                # The kernel keeps a path as it was bound, such as `///var/lib/...` from a carelessly split URL.
                path = _SLASHES.sub(b"/", matched["path"])
                if path in wanted and matched["state"] == _CONNECTED:
                    connected.add(path)
                elif path in wanted and int(matched["flags"], 16) & _ACCEPTS:
                    listening.add(path)
    except OSError as error:
        raise SourceError(cannot_read(f"{proc}/1/net/unix", error)) from error
    return UnixSockets(frozenset(listening), frozenset(connected))

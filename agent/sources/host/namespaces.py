"""Reads which network namespaces are mounted on the node. Changes nothing.

A mount keeps a namespace, and its addresses, without any process: the kernel in it still answers for them.
"""

from pathlib import Path
from typing import Final

from agent.sources.host.mount_table import read_mount_table

_FILE_SYSTEM: Final = "nsfs"
_NETWORK: Final = "net:["


def read_namespaces(proc: Path) -> tuple[str, ...]:
    """Return the mount points; raises SourceError. Below a shared directory, a namespace is listed more than once."""
    mounted = (one for one in read_mount_table(proc) if one.kind == _FILE_SYSTEM and one.root.startswith(_NETWORK))
    return tuple(dict.fromkeys(one.place for one in mounted))

"""Whether other nodes may write to a directory too. Read-only."""

import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Final

from agent.sources.host.mount_table import OWN_PROC, read_mount_table

_LOCAL: Final = re.compile(
    r"ext[234]|xfs|btrfs|bcachefs|f2fs|jfs|zfs|nilfs2|reiserfs|ubifs|jffs2|tmpfs|ramfs|rootfs"
    r"|overlay|aufs|fuse\.fuse-overlayfs|erofs|squashfs"
)
"""Types of file systems that only one node has at a time. Any other may be shared.

`rootfs` is the memory of a node that runs from its initramfs. An image of `erofs` or `squashfs` is
read-only, so that no other node can write reservations there. `virtiofs`, like 9p, is a directory
of the machine that the node's VM runs on, which may give it to other VMs as well.
"""


def shared_storage(path: Path, local: Collection[str]) -> str | None:
    """Return the type of a directory's file system if other nodes may share it.

    `local`: other types that are this node's own. Raises OSError, SourceError.
    """
    device = path.stat().st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    for entry in read_mount_table(OWN_PROC, "self"):
        is_local = entry.kind in local or _LOCAL.fullmatch(entry.kind)
        if entry.device == name and not is_local:
            return entry.kind
    return None  # a device that no entry has is a subvolume of btrfs

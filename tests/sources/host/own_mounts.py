"""Mounts of a process of its own, as a container has them."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.wire import needs, run

_CLONE_NEWNS = 0x20000


@contextmanager
def own_mounts(
    *mounted: object, kind: str = "ext4", device: int = 0, namespace: Path | None = None
) -> Iterator[None]:
    """Run the block with these mount points in /proc/self/mountinfo, and nothing else in /proc.

    A pair has a path, and what is mounted there. `namespace`: the file that stands for the own mount namespace.
    """
    needs(os.geteuid() == 0, "root, to mount")
    libc, before = ctypes.CDLL(None, use_errno=True), Path.cwd()
    own = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    needs(libc.unshare(_CLONE_NEWNS) == 0, "the right to mount")
    try:
        run("mount", "--make-rprivate", "/")
        run("mount", "-t", "tmpfs", "none", "/proc")
        (process := Path("/proc/self/ns")).mkdir(parents=True)
        pairs = (mount if isinstance(mount, tuple) else (mount, mount) for mount in mounted)
        place = f"{os.major(device)}:{os.minor(device)}"
        lines = (
            f"42 27 {place} {root} {point} rw,relatime - {kind} /dev/vda rw\n"
            for point, root in pairs
        )
        (process.parent / "mountinfo").write_text("".join(lines))
        if namespace:
            (process / "mnt").symlink_to(namespace)
        yield
    finally:
        assert libc.setns(own, _CLONE_NEWNS) == 0
        os.close(own)
        os.chdir(before)

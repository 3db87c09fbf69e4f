"""The lock by which commands take turns: each needs as much memory as the daemon, and in a pod they share its limit.

The daemon makes its file, and commands only lock it: where there is none, they run as they are. It admits nobody to
anything: cleaners exclude each other by a lock of their own. A command waits before it imports more than this module.
"""

import os

NAME = "commands.lock"
SECONDS = 30
"""A command takes a few seconds. One that hangs must not keep the others from showing why, before kubectl gives up."""
WAITING = "nodeleak: another command is running on this node: waiting for it to end"


def make(state_dir: str | os.PathLike[str]) -> None:
    """Make the file; raises OSError."""
    os.makedirs(state_dir, mode=0o700, exist_ok=True)  # noqa: PTH103 (commands have no memory for pathlib yet)
    os.close(os.open(_path(state_dir), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))


def opened(state_dir: str) -> int | None:
    """Return the open file; None where there is none to lock."""
    try:
        return os.open(_path(state_dir), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None


def _path(state_dir: str | os.PathLike[str]) -> str:
    return os.path.join(state_dir, NAME)  # noqa: PTH118 (as above)

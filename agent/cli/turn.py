"""One command at a time reads the node. The others wait, before they import anything that needs memory."""

import fcntl
import os
import signal
import sys
from collections.abc import Sequence

from agent.state import command_lock
from agent.state.command_lock import SECONDS, WAITING

_COMMANDS = frozenset({"scan", "clean", "record", "timeline"})
"""Those that read the node. `run` makes the lock, and never takes it."""
_READ_NOTHING = frozenset({"-h", "--help", "--help-all", "--recording"})
_OPTION, _VARIABLE, _DEFAULT = "--state-dir", "NODELEAK_STATE_DIR", "/var/lib/nodeleak"

_held: list[int] = []
"""Open until the process ends, because so long it needs its memory. The lock goes with it, however it ends."""


class _WaitedEnough(Exception):
    """The wait has an end."""


def wait_for_turn(arguments: Sequence[str]) -> None:
    """Wait until no other command reads the node, at most `SECONDS`, and keep others waiting from now on.

    The lock saves memory and proves nothing, so a command that cannot have it goes on.
    """
    release()
    handle = command_lock.opened(state_dir(arguments)) if _reads_node(arguments) else None
    if handle is None:
        return
    _held.append(handle)
    if not _locked(handle, fcntl.LOCK_NB):
        _wait(handle)


def release() -> None:
    """Let others go on where this process goes on after its command."""
    while _held:
        os.close(_held.pop())


def _reads_node(arguments: Sequence[str]) -> bool:
    names = {one.partition("=")[0] for one in arguments[1:]}
    return bool(_COMMANDS.intersection(arguments[:1])) and not names & _READ_NOTHING


def state_dir(arguments: Sequence[str]) -> str:
    """Return the state directory as `agent.config` does, whose import is what has to wait; any other has no lock."""
    directory = os.environ.get(_VARIABLE) or _DEFAULT
    for one, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, value = one.partition("=")
        if name == _OPTION:
            directory = value if equals else following
    return directory


def _wait(handle: int) -> None:
    print(f"{WAITING} (at most {SECONDS} s)", file=sys.stderr)
    before = signal.signal(signal.SIGALRM, _end_wait)
    try:
        signal.alarm(SECONDS)
        try:
            _locked(handle)
        finally:
            signal.alarm(0)
    except _WaitedEnough:
        print(f"nodeleak: the other command is still running after {SECONDS} s: starting beside it", file=sys.stderr)
    finally:
        signal.signal(signal.SIGALRM, before)


def _end_wait(_signal: int, _frame: object) -> None:
    raise _WaitedEnough


def _locked(handle: int, flags: int = 0) -> bool:
    """Return whether nobody else has the lock; also where the file system has none."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | flags)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True

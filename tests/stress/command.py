"""Cleaners as shell commands, and the few that have short names."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.stress.workspace import Workspace

NODELEAK: Final = "nodeleak"
NOTHING: Final = "none"
_ONE_LINER: Final = "one-liner"
_RESTORE: Final = "restore"
_RESTORE_AND_DIE: Final = """
timeout --signal=KILL "$(shuf -n 1 -e 0.2 0.3 0.4 0.6 30 30)" {restore}
code=$?
[ $code -eq 2 ] || exit $code  # 2: nothing is released yet
"""
AT_ONCE: Final = ("--cleanup-network=auto", "--grace=0s", "--confirm-after=0s", "--settle=0s", "--max-share=100%")
"""No waiting periods and no share limit: only the read order and the lock protect an address then."""
WITHOUT_CAPS: Final = ("--max-per-sync=1000", "--max-per-hour=1000000")


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    shell: str
    during_churn: bool = False
    """Whether it ends with the churn: it makes leaks, and the cleaners have to find an end."""


def cleaner(text: str) -> Command:
    """Return the command that is run in a loop."""
    if text == NODELEAK:
        return Command(text, shlex.join([_nodeleak(), "clean", "--apply", "--output=json", *AT_ONCE]))
    if text == _ONE_LINER:
        return Command(text, shlex.join(["bash", str(Path(__file__).with_name("one_liner.sh"))]))
    if text == _RESTORE:
        restore = shlex.join([_nodeleak(), "restore", "--last", "--apply"])
        return Command(text, _RESTORE_AND_DIE.format(restore=restore), during_churn=True)
    return Command(text, text)


def daemon(text: str) -> Command:
    """Return the command that is started once."""
    if text != NODELEAK:
        return Command(text, text)
    settings = ("--cleanup=auto", "--interval=100ms", "--listen=127.0.0.1:0", "--log-format=json")
    # exec: otherwise the shell would hide the exit code.
    return Command(text, "exec " + shlex.join([_nodeleak(), "run", *settings, *AT_ONCE, *WITHOUT_CAPS]))


def _nodeleak() -> str:
    beside = Path(sys.executable).with_name(NODELEAK)
    return str(beside) if beside.exists() else shutil.which(NODELEAK) or NODELEAK


def start(command: Command, workspace: Workspace, output: Path, errors: Path) -> "subprocess.Popen[bytes]":
    """Start a command in its own session, so that all its processes can be terminated."""
    with output.open("wb") as out, errors.open("wb") as err:
        return subprocess.Popen(
            ["/bin/sh", "-c", command.shell],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=dict(workspace.environment()),
            start_new_session=True,
        )


def end(child: "subprocess.Popen[bytes]", timeout: float) -> int:
    """Terminate a command and its children, kill them after `timeout` seconds, and return the exit code."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            child.wait(timeout)
        with suppress(ProcessLookupError):  # its children, and the command itself if it still runs
            os.killpg(child.pid, signal.SIGKILL)
    return child.wait()


def tail(file: Path) -> str:
    return file.read_text(errors="replace").strip()[-2000:]

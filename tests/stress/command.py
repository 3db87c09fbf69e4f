"""What cleans: a shell command, known by what it does alone; and the few that have a name here."""

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

from tests.stress.place import Place

NODELEAK: Final = "nodeleak"
NOTHING: Final = "none"
_ONE_LINER: Final = "one-liner"
_AT_ONCE: Final = ("--grace=0s", "--confirm-after=0s", "--settle=0s", "--max-share=100%")
"""No span to wait out and no share to keep: what protects an address then is the order of reads and the lock."""
_WITHOUT_CAPS: Final = ("--max-per-sync=1000", "--max-per-hour=1000000")


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    shell: str


def cleaner(text: str) -> Command:
    """Return what is to be run again and again."""
    if text == NODELEAK:
        return Command(text, shlex.join([_nodeleak(), "clean", "--apply", "--output=json", *_AT_ONCE]))
    if text == _ONE_LINER:
        return Command(text, shlex.join(["bash", str(Path(__file__).with_name("one_liner.sh"))]))
    return Command(text, text)


def daemon(text: str) -> Command:
    """Return what is to be started once."""
    if text != NODELEAK:
        return Command(text, text)
    settings = ("--cleanup=auto", "--interval=100ms", "--listen=127.0.0.1:0", "--log-format=json")
    # exec: a shell in between would not pass on its exit code.
    return Command(text, "exec " + shlex.join([_nodeleak(), "run", *settings, *_AT_ONCE, *_WITHOUT_CAPS]))


def _nodeleak() -> str:
    beside = Path(sys.executable).with_name(NODELEAK)
    return str(beside) if beside.exists() else shutil.which(NODELEAK) or NODELEAK


def start(command: Command, place: Place, output: Path, errors: Path) -> "subprocess.Popen[bytes]":
    """Start a command in a session of its own, so that all of it can be ended."""
    with output.open("wb") as out, errors.open("wb") as err:
        return subprocess.Popen(
            ["/bin/sh", "-c", command.shell],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=dict(place.environment()),
            start_new_session=True,
        )


def end(child: "subprocess.Popen[bytes]", patience: float) -> int:
    """End a command and all that it started; returns its exit code. `patience`: seconds before they are killed."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            child.wait(patience)
        with suppress(ProcessLookupError):  # what it has left behind, and itself if it has not ended
            os.killpg(child.pid, signal.SIGKILL)
    return child.wait()


def tail(file: Path) -> str:
    return file.read_text(errors="replace").strip()[-2000:]

"""Cleaners: shell commands that run in a loop, and daemons that are started once."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from tests import processes
from tests.bench.measure import get
from tests.stress.run import Cleaner, RunState

NODELEAK: Final = "nodeleak"
ONE_LINER: Final = "one-liner"
RESTORE: Final = "restore"
NONE: Final = "none"
AT_ONCE: Final = ("--grace=0s", "--confirm-after=0s", "--settle=0s", "--max-share=100%")
"""No waiting periods and no share limit: only the read order and the lock protect an address then."""
WITHOUT_CAPS: Final = ("--max-per-sync=1000", "--max-per-hour=1000000")
_CLEAN: Final = ("clean", "--apply", "--output=json", "--cleanup-network=auto", *AT_ONCE)
_RELEASE_BY_NAME: Final = """
{clean} $(ls "$NODELEAK_CNI_NETWORKS_DIR"/* | sed -n 's/^[0-9.]*$/--ip=&/p')
"""
"""Names every address: what was restored is released by name only."""
_RESTORE_AND_DIE: Final = f"""
timeout --signal=KILL "$(shuf -n 1 -e 0.2 0.3 0.4 0.6 30 30)" {{restore}}
code=$?
{_RELEASE_BY_NAME}
[ $code -eq 2 ] || exit $code  # 2: nothing is released yet
"""
_FATAL: Final = {
    2: "wrong usage",
    70: "internal error",
    126: "not executable",
    127: "command not found",
}
"""Exit codes after which another run is pointless."""
_LONGEST_RUN: Final = 60.0
_TIMEOUT: Final = 10.0
_EVERY: Final = 0.01
_LOCK_HELD: Final = "nodeleak_lock_held_seconds_bucket"


def nodeleak() -> str:
    beside = Path(sys.executable).with_name(NODELEAK)
    return str(beside) if beside.exists() else shutil.which(NODELEAK) or NODELEAK


def clean_command() -> list[str]:
    """Return the command that releases every leak that it finds."""
    return [nodeleak(), *_CLEAN]


def loop_command(text: str) -> str:
    """Return the shell command that is run in a loop beside docker."""
    clean = shlex.join(clean_command())
    named = {
        NODELEAK: clean,
        ONE_LINER: shlex.join(["bash", str(Path(__file__).with_name("one_liner.sh"))]),
        RESTORE: _RESTORE_AND_DIE.format(
            restore=shlex.join([nodeleak(), "restore", "--last", "--apply"]), clean=clean
        ),
    }
    return named.get(text, text)


def daemon_command(text: str) -> str:
    """Return the shell command that is started once beside docker."""
    settings = ("--cleanup=auto", "--interval=100ms", "--listen=127.0.0.1:0", "--log-format=json")
    run = shlex.join(
        [nodeleak(), "run", *settings, "--cleanup-network=auto", *AT_ONCE, *WITHOUT_CAPS]
    )
    return (
        f"exec {run}" if text == NODELEAK else text
    )  # exec: otherwise the shell would hide the exit code


@dataclass
class _Process(Cleaner):
    """A command of a run, with its output in files."""

    name: str
    shell: str
    env: Mapping[str, str]
    logs: Path
    state: RunState

    def __post_init__(self) -> None:
        self.codes: Counter[int] = Counter()
        self.last_errors: dict[
            int, str
        ] = {}  # The end of stderr by exit code, for codes other than 0
        number = len(list(self.logs.iterdir()))
        self._output, self._errors = self.logs / f"{number}.out", self.logs / f"{number}.err"
        for file in (self._output, self._errors):
            file.touch()

    def result(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "codes": {str(code): count for code, count in sorted(self.codes.items())},
            "last_errors": {str(code): text for code, text in sorted(self.last_errors.items())},
            "last_output": self._output.read_text(errors="replace")[-2000:],
        }

    def _spawn(self) -> "subprocess.Popen[bytes]":
        """Start the command in its own session, so that all its processes can be terminated."""
        with self._output.open("wb") as out, self._errors.open("wb") as err:
            return subprocess.Popen(
                ["/bin/sh", "-c", self.shell],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=dict(self.env),
                start_new_session=True,
            )

    def _terminate(self, child: "subprocess.Popen[bytes]", timeout: float) -> int:
        """Terminate the command and its children, kill them after `timeout` seconds, and count the exit code."""
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                child.wait(timeout)
            with suppress(
                ProcessLookupError
            ):  # its children, and the command itself if it still runs
                os.killpg(child.pid, signal.SIGKILL)
        code = child.wait()
        self.codes[code] += 1
        if code:
            self.last_errors[code] = self._said()
        return code

    def _said(self) -> str:
        return self._errors.read_text(errors="replace").strip()[-2000:]


class Loop(_Process):
    """A command that runs again and again.

    That of `restore` ends with the churn, because it makes leaks. What it restored last may still
    have been refused in the churn; from then on, it is released by name.
    """

    _may_run = True
    _thread: Thread | None = None
    _after_churn: "Loop | None" = None

    def start(self) -> None:
        self._thread = Thread(target=self._work, daemon=True)
        self._thread.start()

    def churn_is_over(self) -> None:
        if self.name == RESTORE and self._thread:
            self._may_run = False
            self._thread.join()
            self._after_churn = Loop(
                name="release by name",
                shell=_RELEASE_BY_NAME.format(clean=shlex.join(clean_command())),
                env=self.env,
                logs=self.logs,
                state=self.state,
            )
            self._after_churn.start()

    def end(self) -> None:
        self.state.end()
        if self._thread:
            self._thread.join()
        if self._after_churn:
            self._after_churn.end()

    def _work(self) -> None:
        while self._may_run and not self.state.over.is_set():
            self._run()

    def _run(self) -> None:
        begun = time.monotonic()
        child = self._spawn()
        while (
            child.poll() is None
            and time.monotonic() < begun + _LONGEST_RUN
            and not self.state.aborted.is_set()
        ):
            time.sleep(_EVERY)
        hangs = child.poll() is None
        code = self._terminate(child, 5.0)
        if self.state.aborted.is_set():
            return  # the code only says that it was terminated
        if hangs:
            self.state.fail(f"cleaner {self.name}: a run took longer than {_LONGEST_RUN:.0f} s")
        elif code in _FATAL:
            self.state.fail(
                f"cleaner {self.name} exited with {code}, {_FATAL[code]}:\n{self._said()}"
            )


class Daemon(_Process):
    """A command that is started once."""

    _child: "subprocess.Popen[bytes] | None" = None
    lock_held_seconds: float | None = None
    """Within which 99 % of its releases held host-local's lock, by its own metrics."""

    def start(self) -> None:
        """Start it; for nodeleak, wait until it serves HTTP."""
        self._child = self._spawn()
        for _ in processes.until(time.monotonic() + _TIMEOUT) if NODELEAK in self.shell else ():
            self.watch()
            if self.state.aborted.is_set() or self._port():
                return
        if NODELEAK in self.shell:
            self.state.fail(f"daemon {self.name} did not start:\n{self._said()}")

    def watch(self) -> None:
        if self._child is not None and (code := self._child.poll()) is not None:
            self._child = None
            self.state.fail(f"daemon {self.name} exited on its own with {code}:\n{self._said()}")

    def end(self) -> None:
        self.watch()
        if self._child is None:
            return
        if port := self._port():
            self.lock_held_seconds = _within(get(f"http://127.0.0.1:{port}/metrics"))
        begun = time.monotonic()
        self._terminate(self._child, _TIMEOUT)
        if time.monotonic() > begun + _TIMEOUT:
            self.state.fail(f"daemon {self.name} had to be killed:\n{self._said()}")

    def result(self) -> dict[str, Any]:
        return super().result() | {"lock_held_seconds": self.lock_held_seconds}

    def _port(self) -> int | None:
        """Find its port in its log."""
        for line in self._errors.read_text(errors="replace").splitlines():
            with suppress(ValueError):
                event = json.loads(line)
                if event.get("event") == "agent.started":
                    return int(event["port"])
        return None


def _within(metrics: str) -> float | None:
    """Return the smallest bound of the histogram that covers 99 %; None if nothing was counted."""
    buckets = Counter[float]()
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name == _LOCK_HELD:
                buckets[float(sample.labels["le"])] += int(sample.value)
    count = buckets[float("inf")]
    return next(
        (bound for bound, held in sorted(buckets.items()) if count and held >= 0.99 * count), None
    )

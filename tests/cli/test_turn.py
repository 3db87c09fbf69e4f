"""Commands take turns: each needs as much memory as the daemon, and in its pod they share the daemon's limit."""

import fcntl
import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cli import turn
from agent.cli.parser import parse_arguments
from agent.config import all_settings, variable
from agent.fleet.answers import answer_of
from agent.state import command_lock
from agent.state.command_lock import NAME, SECONDS, WAITING
from tests.cli.test_failures import AGENT, SmallNode, engine, environment, nodeleak, running
from tests.wire import FakeServer, until

WAITS = f"{WAITING} (at most {SECONDS} s)\n"
GOES_ON = f"nodeleak: the other command is still running after {SECONDS} s: starting beside it\n"
SCAN = ("scan", "-o", "json", "--api=off")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SmallNode]:
    with FakeServer(engine, at=tmp_path / "docker.sock") as docker:
        small = SmallNode(tmp_path, docker)
        command_lock.make(tmp_path / "state")
        yield small


@contextmanager
def another_command(node: SmallNode) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a process that has the lock."""
    with subprocess.Popen(["flock", str(node.home / "state" / NAME), "sleep", "60"], start_new_session=True) as process:  # noqa: S603, S607 (ours)
        until(lambda: _is_locked(node), "the other process has the lock")
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def _is_locked(node: SmallNode) -> bool:
    with (node.home / "state" / NAME).open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@contextmanager
def started(*arguments: str, agent: Sequence[str] = AGENT) -> Iterator["subprocess.Popen[str]"]:
    """Start a command, and kill it at the end."""
    with subprocess.Popen(  # noqa: S603 (ours)
        [*agent, *arguments], env=environment({}), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def first_error(process: "subprocess.Popen[str]") -> str:
    assert process.stderr is not None
    return process.stderr.readline()


@pytest.mark.parametrize("command", ["scan", "clean", "record", "timeline"])
def test_a_command_that_reads_the_node_waits_until_another_one_was_killed(node: SmallNode, command: str) -> None:
    arguments = (command, "--api=off", *node.options)
    alone = nodeleak(*arguments)
    asked = len(node.docker.requests)
    with another_command(node) as other, started(*arguments) as waiting:
        assert first_error(waiting) == WAITS
        assert len(node.docker.requests) == asked
        os.killpg(other.pid, signal.SIGKILL)
        _, errors = waiting.communicate(timeout=30)
    assert len(node.docker.requests) > asked
    assert (waiting.returncode, errors) == (alone.code, alone.err)


def test_what_waits_reads_the_node_when_its_turn_has_come(node: SmallNode) -> None:
    assert json.loads(nodeleak(*SCAN, *node.options).out)["findings"]
    with another_command(node) as other, started(*SCAN, *node.options) as waiting:
        assert first_error(waiting) == WAITS
        (node.home / "networks/kubenet/10.244.1.9").unlink()
        os.killpg(other.pid, signal.SIGKILL)
        output, _ = waiting.communicate(timeout=30)
    assert json.loads(output)["findings"] == []


def test_two_commands_at_once_take_turns(node: SmallNode) -> None:
    arguments = ("clean", "-o", "json", "--api=off", *node.options)
    with started(*arguments) as first, started(*arguments) as second:
        answers = [one.communicate(timeout=30) for one in (first, second)]
    assert {errors for _, errors in answers} <= {"", WAITS}  # the first may have ended before the other began
    (mine, theirs) = (json.loads(output) for output, _ in answers)
    assert (first.returncode, set(mine)) == (second.returncode, set(theirs))


def test_a_command_does_not_wait_without_end(node: SmallNode) -> None:
    soon = f"import sys; from agent.cli import main, turn; turn.SECONDS = 1; sys.exit(main({[*SCAN, *node.options]}))"
    with another_command(node), started(agent=(sys.executable, "-c", soon)) as waiting:
        output, errors = waiting.communicate(timeout=30)
    assert json.loads(output)["findings"]
    assert errors == (WAITS + GOES_ON).replace(f"{SECONDS} s", "1 s")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 130)])
def test_a_waiting_command_can_be_ended(node: SmallNode, number: signal.Signals, code: int) -> None:
    with another_command(node), started(*SCAN, *node.options) as waiting:
        assert first_error(waiting) == WAITS
        waiting.send_signal(number)
        output, _ = waiting.communicate(timeout=30)
    assert (waiting.returncode, output) == (code, "")


def test_a_waiting_command_runs_also_if_nobody_reads_its_errors(node: SmallNode) -> None:
    with another_command(node) as other, started(*SCAN, *node.options) as waiting:
        assert waiting.stderr is not None
        waiting.stderr.close()
        blocked = re.compile(rf"-> FLOCK .* {waiting.pid} ")
        until(lambda: blocked.search(Path("/proc/locks").read_text()), "it waits")
        os.killpg(other.pid, signal.SIGKILL)
        assert waiting.stdout is not None
        assert json.loads(waiting.stdout.read())["findings"]


@pytest.mark.parametrize(
    "arguments", [["scan", "--help"], ["clean", "-h"], ["explain"], ["version"], ["scan", "--recording", "-"]]
)
def test_what_does_not_read_the_node_does_not_wait(node: SmallNode, arguments: list[str]) -> None:
    with another_command(node):
        done = nodeleak(*arguments, NODELEAK_STATE_DIR=str(node.home / "state"))
    assert WAITING not in done.err


@pytest.mark.parametrize("kind", ["missing", "a directory", "a link", "a FIFO"])
def test_without_the_daemons_file_a_command_runs_at_once_and_makes_none(node: SmallNode, kind: str) -> None:
    lock = node.home / "state" / NAME
    lock.unlink()
    if kind == "a directory":
        lock.mkdir()
    elif kind == "a link":
        lock.symlink_to(node.home / "docker.sock")
    elif kind == "a FIFO":
        os.mkfifo(lock)
    before = sorted(path.name for path in lock.parent.iterdir())
    done = nodeleak(*SCAN, *node.options)
    assert (len(json.loads(done.out)["findings"]), done.err) == (1, "")
    assert sorted(path.name for path in lock.parent.iterdir()) == before


def test_a_read_only_state_directory_has_a_lock_too(node: SmallNode, read_only: tuple[str, ...]) -> None:
    with another_command(node) as other, started(*SCAN, *node.options, agent=(*read_only, *AGENT)) as waiting:
        assert first_error(waiting) == WAITS
        os.killpg(other.pid, signal.SIGKILL)
        output, _ = waiting.communicate(timeout=30)
    assert json.loads(output)["findings"]


def test_the_daemon_makes_the_file_for_root_alone_and_never_holds_it(node: SmallNode) -> None:
    lock = node.home / "state" / NAME
    lock.unlink()
    with running("--api=off", "--listen=127.0.0.1:0", "--interval=10ms", *node.options) as daemon:
        daemon.log_event("agent.started")
        assert stat.S_IMODE(lock.stat().st_mode) == 0o600
        assert nodeleak(*SCAN, *node.options).err == ""


def test_a_daemon_without_a_writable_state_directory_runs(node: SmallNode, read_only: tuple[str, ...]) -> None:
    lock = node.home / "state" / NAME
    lock.unlink()
    with running("--api=off", "--listen=127.0.0.1:0", *node.options, prefix=read_only) as daemon:
        daemon.log_event("agent.started")
    assert not lock.exists()


def test_a_command_waits_before_it_imports_what_needs_memory() -> None:
    code = "import sys, agent.cli; print(*sorted(one for one in sys.modules if one.startswith('agent')))"
    with started(agent=(sys.executable, "-c", code)) as done:
        output, _ = done.communicate(timeout=30)
    assert output.split() == ["agent", "agent.cli", "agent.cli.turn", "agent.state", "agent.state.command_lock"]


def test_what_is_no_path_has_no_lock() -> None:
    assert command_lock.opened("\0") is None


_DIRECTORIES = st.sampled_from(["/a", "/b"])
_GIVEN = st.lists(
    st.one_of(
        _DIRECTORIES.map(lambda one: [f"--state-dir={one}"]),
        _DIRECTORIES.map(lambda one: ["--state-dir", one]),
        st.just(["--api=off"]),
        st.just(["--grace", "5m"]),
    )
)


@given(_GIVEN)
def test_the_state_directory_is_that_of_the_options(options: list[list[str]]) -> None:
    arguments = ["scan", *(word for option in options for word in option)]
    assert turn.state_dir(arguments) == (parse_arguments(arguments).state_dir or "/var/lib/nodeleak")


def test_the_state_directory_is_that_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert turn.state_dir(["scan"]) == all_settings()["state_dir"].default
    monkeypatch.setenv(variable("state_dir"), "/elsewhere")
    assert turn.state_dir(["scan"]) == "/elsewhere"


def test_the_fleet_does_not_take_waiting_for_the_reason_of_a_failure() -> None:
    errors = f"{WAITS}nodeleak: unknown option --x\ncommand terminated with exit code 2"
    assert answer_of("worker-1", 2, "", errors).reason == "nodeleak: unknown option --x"

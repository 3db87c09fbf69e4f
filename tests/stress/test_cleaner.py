"""Exit codes and output of cleaner commands, and how they end a run."""

from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from tests.stress.cleaner import Cleaner
from tests.stress.command import Command
from tests.stress.daemon import Daemon
from tests.stress.ledger import Ledger
from tests.stress.run_state import RunState
from tests.stress.workspace import Workspace

Run = Callable[[str], tuple[Cleaner, RunState]]


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    workspace = Workspace(tmp_path / "stress")
    workspace.make()
    return workspace


@pytest.fixture
def run(workspace: Workspace) -> Run:
    def run_until_over(shell: str) -> tuple[Cleaner, RunState]:
        state = RunState()
        cleaner = Cleaner(Command("mine", shell), workspace, 0, state, Ledger(), pause=0)
        thread = Thread(target=cleaner.work)
        thread.start()
        state.over.wait(0.3)
        state.end()
        thread.join()
        return cleaner, state

    return run_until_over


def test_a_cleaner_runs_in_a_loop_and_its_exit_codes_are_counted(run: Run, workspace: Workspace) -> None:
    cleaner, state = run("ls $STRESS_STORE && echo . >> $STRESS_STATE/runs; exit 3")

    assert cleaner.codes == {3: len((workspace.state / "runs").read_text().splitlines())}
    assert cleaner.codes[3] > 1
    assert state.failures == ()


@pytest.mark.parametrize("code", [2, 70, 127])
def test_a_fatal_exit_code_ends_the_run_with_its_stderr(run: Run, code: int) -> None:
    cleaner, state = run(f"echo this is why >&2; exit {code}")

    assert cleaner.codes == {code: 1}
    assert "this is why" in state.failures[0]


def test_verdicts_in_json_output_are_counted(run: Run) -> None:
    output = '{"releases": [{"ip": "10.254.77.10", "verdict": "released"}, {"ip": "10.254.77.11", "verdict": "busy"}]}'
    cleaner, _ = run(f"echo '{output}'")

    assert cleaner.verdicts == {"released": cleaner.codes[0], "busy": cleaner.codes[0]}


def test_a_daemon_that_ends_by_itself_ends_the_stress(workspace: Workspace) -> None:
    state = RunState()
    daemon = Daemon(Command("mine", "echo no, thanks >&2"), workspace, 0, state)
    daemon.start()
    for _ in range(1000):
        if not state.over.wait(0.01):
            daemon.watch()

    assert "exited on its own with 0" in state.failures[0]
    assert "no, thanks" in state.failures[0]


def test_a_running_daemon_is_terminated(workspace: Workspace) -> None:
    state = RunState()
    daemon = Daemon(
        Command("mine", "trap 'exit 5' TERM; echo > $STRESS_STATE/up; while :; do sleep 0.01; done"),
        workspace,
        0,
        state,
    )
    daemon.start()
    while not (workspace.state / "up").exists():
        daemon.watch()
    daemon.end()

    assert daemon.codes == {5: 1}
    assert state.failures == ()

"""How cleaner commands end a run, and what is kept of them."""

import os
from pathlib import Path

from tests.stress.cleaners import Daemon, Loop
from tests.stress.run import RunState
from tests.wire import until


def test_a_cleaner_runs_in_a_loop_until_the_run_is_over(tmp_path: Path) -> None:
    state = RunState()
    cleaner = Loop(
        "mine",
        "echo . >> $RUNS; exit 3",
        os.environ | {"RUNS": str(tmp_path / "runs")},
        _logs(tmp_path),
        state,
    )
    cleaner.start()
    until(lambda: cleaner.codes[3] > 1, "it has run twice")
    cleaner.end()
    assert cleaner.codes == {3: len((tmp_path / "runs").read_text().splitlines())}
    assert state.failures == ()


def test_a_fatal_exit_code_ends_the_run_with_its_stderr(tmp_path: Path) -> None:
    for code in (2, 70, 127):
        state = RunState()
        cleaner = Loop(
            "mine",
            f"echo this is why >&2; exit {code}",
            os.environ,
            _logs(tmp_path / str(code)),
            state,
        )
        cleaner.start()
        assert state.over.wait(20)
        cleaner.end()
        assert cleaner.codes == {code: 1}
        assert "this is why" in state.failures[0]


def test_a_daemon_is_terminated_and_must_not_end_by_itself(tmp_path: Path) -> None:
    state = RunState()
    up = tmp_path / "up"
    shell = f"trap 'exit 5' TERM; touch {up}; while :; do sleep 0.01; done"
    daemon = Daemon("mine", shell, os.environ, _logs(tmp_path / "one"), state)
    daemon.start()
    until(up.exists, "it runs")
    daemon.watch()
    daemon.end()
    assert (daemon.codes, state.failures) == ({5: 1}, ())
    daemon = Daemon("mine", "echo no, thanks >&2", os.environ, _logs(tmp_path / "two"), state)
    daemon.start()

    def ended() -> bool:
        daemon.watch()
        return state.over.is_set()

    until(ended, "it has ended")
    assert "exited on its own with 0" in state.failures[0]
    assert "no, thanks" in state.failures[0]


def _logs(directory: Path) -> Path:
    (directory / "logs").mkdir(parents=True)
    return directory / "logs"

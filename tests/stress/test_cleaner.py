"""A cleaner is a command: what its exit code and its output say of it, and how the torture ends with it."""

from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from tests.stress.cleaner import Cleaner
from tests.stress.command import Command
from tests.stress.course import Course
from tests.stress.ledger import Ledger
from tests.stress.place import Place
from tests.stress.resident import Resident

Run = Callable[[str], tuple[Cleaner, Course]]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path / "torture")
    place.make()
    return place


@pytest.fixture
def run(place: Place) -> Run:
    def run_until_something_happens(shell: str) -> tuple[Cleaner, Course]:
        history = Course()
        cleaner = Cleaner(Command("mine", shell), place, 0, history, Ledger(), pause=0)
        thread = Thread(target=cleaner.work)
        thread.start()
        history.over.wait(1)
        history.end()
        thread.join()
        return cleaner, history

    return run_until_something_happens


def test_it_is_run_again_and_again_and_its_exit_codes_are_counted(run: Run, place: Place) -> None:
    cleaner, history = run("ls $TORTURE_STORE && echo . >> $TORTURE_STATE/runs; exit 3")

    assert cleaner.codes == {3: len((place.state / "runs").read_text().splitlines())}
    assert cleaner.codes[3] > 1
    assert history.failures == ()


@pytest.mark.parametrize("code", [2, 70, 127])
def test_a_cleaner_that_cannot_clean_ends_the_torture_with_what_it_said(run: Run, code: int) -> None:
    cleaner, history = run(f"echo this is why >&2; exit {code}")

    assert cleaner.codes == {code: 1}
    assert "this is why" in history.failures[0]


def test_verdicts_are_counted_where_it_speaks_json(run: Run) -> None:
    told = '{"releases": [{"ip": "10.254.77.10", "verdict": "released"}, {"ip": "10.254.77.11", "verdict": "busy"}]}'
    cleaner, _ = run(f"echo '{told}'")

    assert cleaner.verdicts == {"released": cleaner.codes[0], "busy": cleaner.codes[0]}


def test_a_daemon_that_ends_by_itself_ends_the_torture(place: Place) -> None:
    history = Course()
    daemon = Resident(Command("mine", "echo no, thanks >&2"), place, 0, history)
    daemon.start()
    for _ in range(1000):
        if not history.over.wait(0.01):
            daemon.watch()

    assert "ended by itself with 0" in history.failures[0]
    assert "no, thanks" in history.failures[0]


def test_a_daemon_that_stays_is_told_to_end(place: Place) -> None:
    history = Course()
    daemon = Resident(
        Command("mine", "trap 'exit 5' TERM; echo > $TORTURE_STATE/up; while :; do sleep 0.01; done"), place, 0, history
    )
    daemon.start()
    while not (place.state / "up").exists():
        daemon.watch()
    daemon.end()

    assert daemon.codes == {5: 1}
    assert history.failures == ()

"""The sample outputs in README.md are what the commands print for the recorded incident."""

import re
from pathlib import Path

import pytest

from agent.checks import engine
from agent.cleanup.cleaner import DryRunCleaner
from agent.cleanup.session import Budget, CleanupSession
from agent.exporters.text import clean, scan
from agent.model.recording import Recording, loads
from tests.builders import make_limits
from tests.cleanup.file_operations import InMemoryJournal

ROOT = Path(__file__).parents[1]


@pytest.fixture
def recording() -> Recording:
    return loads((ROOT / "tests" / "nodes" / "incident.json").read_text())


def sample(command: str) -> str:
    readme = (ROOT / "README.md").read_text()
    (text,) = re.findall(rf"^```\n\$ nodeleak {command}\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    return str(text)


def test_the_sample_of_scan_is_its_output(recording: Recording) -> None:
    report = engine.replay(recording.snapshots, grace=recording.grace, confirm_after=recording.confirm_after)
    assert sample("scan") == scan.scan_table(report)


def test_the_sample_of_clean_is_its_output(recording: Recording) -> None:
    report = engine.replay(recording.snapshots, grace=recording.grace, confirm_after=recording.confirm_after)
    session = CleanupSession(make_limits(), Budget(), InMemoryJournal(), "clean")
    assert sample("clean") == clean.clean_table(DryRunCleaner(session).after_snapshot(recording.snapshots, report))

"""Cleaners under stress with real docker and host-local: nodeleak takes no address from its holder, the one-liner does.

Of the real node it needs only docker; it has its own store.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.processes import environment

from .node import run

pytestmark = pytest.mark.e2e

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class StressRun:
    """The result of one run."""

    code: int
    output: str
    report: dict[str, Any]

    @property
    def kinds(self) -> set[str]:
        return {one["kind"] for one in self.report["violations"]}

    @property
    def codes(self) -> set[str]:
        """The exit codes of all cleaners and daemons."""
        return {code for one in self.report["cleaners"] for code in one["codes"]}


def _stress(report: Path, *options: str) -> StressRun:
    run(_ROOT / "hack" / "cluster", "start", "docker")
    command: list[str | Path] = [sys.executable, "-m", "tests.stress", f"--report={report}", *options]
    done = run(*command, codes=(0, 1), env=environment(), cwd=_ROOT, seconds=300)
    return StressRun(done.returncode, done.stdout + done.stderr, json.loads(report.read_text()))


def test_nodeleak_reclaims_every_leak_and_takes_no_address_from_its_holder(tmp_path: Path) -> None:
    played = _stress(tmp_path / "report.json", "--cleaner=nodeleak", "--daemon=nodeleak", "--seconds=60")
    counts = played.report["counts"]

    assert played.code == 0, played.output
    assert played.report["violations"] == []
    assert "2" not in played.codes
    # Otherwise the run put no stress on anything.
    assert min(counts[what] for what in ("allocations", "exhausted", "half_added")) > 0, played.output
    assert counts["leaked"] == counts["reclaimed"] > 0, played.output


def test_restorations_that_are_killed_lose_no_address_and_halt_nothing(tmp_path: Path) -> None:
    """A cleanup that halts reclaims nothing more."""
    commands = ("--cleaner=nodeleak", "--cleaner=restore", "--daemon=nodeleak")
    played = _stress(tmp_path / "report.json", *commands, "--seconds=40")
    (codes,) = (one["codes"] for one in played.report["cleaners"] if one["name"] == "restore")

    assert played.code == 0, played.output
    assert played.report["violations"] == []
    assert codes.keys() >= {"0", "137"}, played.output


def test_the_common_one_liner_releases_addresses_in_use(tmp_path: Path) -> None:
    for _ in range(5):  # a race, which a busy machine may not show at once
        played = _stress(tmp_path / "report.json", "--cleaner=one-liner", "--seconds=20")
        if "taken from its holder" in played.kinds:
            break

    assert played.code == 1, played.output
    assert "taken from its holder" in played.kinds, played.output

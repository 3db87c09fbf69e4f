"""Cleaners under stress with real docker and host-local: nodeleak takes no address from its holder, the one-liner does.

Of the real node it needs only docker; it has its own store.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.processes import environment

from .node import run

pytestmark = pytest.mark.e2e

_ROOT = Path(__file__).parents[2]


def _stress(report: Path, *options: str) -> tuple[int, str, dict[str, Any]]:
    run(_ROOT / "hack" / "cluster", "start", "docker")
    command: list[str | Path] = [sys.executable, "-m", "tests.stress", f"--report={report}", *options]
    done = run(*command, codes=(0, 1), env=environment(), cwd=_ROOT, seconds=300)
    return done.returncode, done.stdout + done.stderr, json.loads(report.read_text())


def test_nodeleak_reclaims_every_leak_and_takes_no_address_from_its_holder(tmp_path: Path) -> None:
    code, output, report = _stress(tmp_path / "r.json", "--cleaner=nodeleak", "--daemon=nodeleak", "--seconds=60")
    counts = report["counts"]

    assert code == 0, output
    assert report["violations"] == []
    assert "2" not in {code for one in report["cleaners"] for code in one["codes"]}, output
    # Otherwise the run put no stress on anything.
    assert min(counts[what] for what in ("allocations", "exhausted", "half_added")) > 0, output
    assert counts["leaked"] == counts["reclaimed"] > 0, output


def test_restorations_that_are_killed_lose_no_address_and_halt_nothing(tmp_path: Path) -> None:
    """A cleanup that halts reclaims nothing more."""
    commands = ("--cleaner=nodeleak", "--cleaner=restore", "--daemon=nodeleak")
    code, output, report = _stress(tmp_path / "report.json", *commands, "--seconds=40")
    (codes,) = (one["codes"] for one in report["cleaners"] if one["name"] == "restore")

    assert code == 0, output
    assert report["violations"] == []
    assert codes.keys() >= {"0", "137"}, output


def test_the_common_one_liner_releases_addresses_in_use(tmp_path: Path) -> None:
    for _ in range(5):  # a race, which a busy machine may not show at once
        code, output, report = _stress(tmp_path / "report.json", "--cleaner=one-liner", "--seconds=20")
        kinds = {violation["kind"] for violation in report["violations"]}
        if "taken from its holder" in kinds:
            break

    assert code == 1, output
    assert "taken from its holder" in kinds, output

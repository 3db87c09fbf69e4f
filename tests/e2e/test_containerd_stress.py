"""Cleaners under stress with real containerd: nodeleak takes no address in use, what people copy does. No cluster."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.processes import environment
from tests.wire import needs

from .node import run

pytestmark = pytest.mark.e2e

_ROOT = Path(__file__).parents[2]


def _stress(report: Path, *options: str) -> tuple[str, dict[str, Any]]:
    command = (sys.executable, "-m", "tests.stress", "--runtime=containerd", f"--report={report}", *options)
    done = run(*command, codes=(0, 1), env=environment(), cwd=_ROOT, seconds=200)
    output = done.stdout + done.stderr
    needs("DID NOT RUN" not in output, output.partition("it needs ")[2])
    result: dict[str, Any] = json.loads(report.read_text())
    assert done.returncode == (1 if result["violations"] or result["failures"] else 0), output
    return output, result


def test_nodeleak_reclaims_every_leak_of_a_containerd_that_is_killed(tmp_path: Path) -> None:
    output, result = _stress(tmp_path / "report.json", "--version=1.7", "--seconds=25")
    counts, kills = result["counts"], result["kills"]

    assert result["violations"] == result["failures"] == [], output
    assert counts["leaked"] == counts["reclaimed"] > 0, output
    # Otherwise the run put no stress on anything.
    assert counts["allocations"] > 1, output
    assert kills["containerd"] > 0, output
    assert kills["plugins"] > 0, output


def test_the_common_script_deletes_addresses_of_pods_that_are_being_created(tmp_path: Path) -> None:
    for _ in range(5):  # a race, which a busy machine may not show at once
        output, result = _stress(tmp_path / "report.json", "--version=2", "--seconds=10", "--cleaner=one-liner")
        kinds = {violation["kind"] for violation in result["violations"]}
        if "taken from its holder" in kinds:
            break

    assert "taken from its holder" in kinds, output

"""A minute of stress on the node: nodeleak reclaims every leak, and no live process loses its address."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.node import run
from tests.stress.whole_node import RUNTIMES
from tests.wire import only_with

from .node import ModernNode

pytestmark = pytest.mark.e2e
_ROOT = Path(__file__).parents[3]


def _stress(node: ModernNode, report: Path, *options: str) -> tuple[str, dict[str, Any]]:
    only_with(node.profile in RUNTIMES, f"a stress test for {node.profile}")
    command = (sys.executable, "-m", "tests.stress", f"--profile={node.profile}", f"--report={report}", *options)
    done = run(*command, codes=(0, 1), cwd=_ROOT, seconds=580)
    output = done.stdout + done.stderr
    assert report.exists(), output
    result: dict[str, Any] = json.loads(report.read_text())
    return output, result


def test_nodeleak_reclaims_every_leak_while_runtime_and_kubelet_die(node: ModernNode, tmp_path: Path) -> None:
    output, result = _stress(node, tmp_path / "report.json", "--seconds=60", "--seed=16")

    assert result["violations"] == result["false findings"] == result["failures"] == [], output
    assert result["planted"]["leaks"] == result["planted"]["reclaimed"] > 5, output
    # Otherwise the run put no stress on anything.
    assert result["pods"]["deleted"] > 5, output
    assert result["counts"]["allocations"] > 5, output
    assert result["kills"].keys() == {RUNTIMES[node.profile], "kubelet"}, output


def test_a_reservation_that_is_removed_by_hand_is_noticed(node: ModernNode, tmp_path: Path) -> None:
    output, result = _stress(node, tmp_path / "report.json", "--seconds=15", "--release=4", "--seed=2")

    assert "taken from its holder" in {violation["kind"] for violation in result["violations"]}, output

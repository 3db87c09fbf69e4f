"""A minute of stress on the node: nodeleak reclaims every leak, and no live process loses its address."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.node import stress
from tests.stress.whole_node import RUNTIMES
from tests.wire import only_with

from .node import ModernNode

pytestmark = pytest.mark.e2e
_ADDRESSES = 16


@pytest.mark.every_runtime
def test_nodeleak_reclaims_every_leak_while_runtime_kubelet_and_plugins_die(
    node: ModernNode, tmp_path: Path
) -> None:
    only_with(node.profile in RUNTIMES, f"a stress test for {node.profile}")
    for seconds in (60, 240):  # a busy machine may do too little in a minute
        options = (
            f"--profile={node.profile}",
            f"--seconds={seconds}",
            "--seed=16",
            f"--addresses={_ADDRESSES}",
        )
        _, output, result = stress(tmp_path / "report.json", *options)
        output = (
            f"{ {name: found for name, found in result.items() if name != 'cleaners'} }\n{output}"
        )
        assert result["violations"] == result["false findings"] == result["failures"] == [], output
        assert result["planted"]["leaks"] == result["planted"]["reclaimed"], output
        if _was_stress(result, RUNTIMES[node.profile]):
            return
    pytest.fail(f"too little stress: {output}")


def _was_stress(result: dict[str, Any], runtime: str) -> bool:
    """Return whether pods came and went, addresses leaked and were given out again, and each program was killed."""
    leaks, allocations = result["planted"]["leaks"], result["counts"]["allocations"]
    enough = (
        min(leaks, result["pods"]["deleted"], allocations) > 5 and leaks + allocations > _ADDRESSES
    )
    return bool(enough) and set(result["kills"]) == {runtime, "kubelet", "plugins"}


def test_a_reservation_that_is_removed_by_hand_is_noticed(node: ModernNode, tmp_path: Path) -> None:
    only_with(node.profile in RUNTIMES, f"a stress test for {node.profile}")
    options = (f"--profile={node.profile}", "--seconds=15", "--release=4", "--seed=2")
    _, output, result = stress(tmp_path / "report.json", *options)

    assert "taken from its holder" in {violation["kind"] for violation in result["violations"]}, (
        output
    )

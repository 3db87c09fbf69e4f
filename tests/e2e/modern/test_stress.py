"""A minute of stress on the node: nodeleak reclaims every leak, and no live process loses its address."""

from pathlib import Path

import pytest

from tests.e2e.node import stress
from tests.stress.whole_node import RUNTIMES
from tests.wire import only_with

from .node import ModernNode

pytestmark = pytest.mark.e2e


@pytest.mark.every_runtime
def test_nodeleak_reclaims_every_leak_while_runtime_kubelet_and_plugins_die(node: ModernNode, tmp_path: Path) -> None:
    only_with(node.profile in RUNTIMES, f"a stress test for {node.profile}")
    options = (f"--profile={node.profile}", "--seconds=60", "--seed=16", "--addresses=16")
    _, output, result = stress(tmp_path / "report.json", *options)

    assert result["violations"] == result["false findings"] == result["failures"] == [], output
    assert result["planted"]["leaks"] == result["planted"]["reclaimed"] > 5, output
    # Otherwise the run put no stress on anything.
    assert result["pods"]["deleted"] > 5, output
    assert result["counts"]["allocations"] > 5, output
    given = result["counts"]["allocations"] + result["planted"]["leaks"]
    assert given > 16, f"of 16 addresses, some were given out again\n{output}"
    assert result["kills"].keys() == {RUNTIMES[node.profile], "kubelet", "plugins"}, output


def test_a_reservation_that_is_removed_by_hand_is_noticed(node: ModernNode, tmp_path: Path) -> None:
    only_with(node.profile in RUNTIMES, f"a stress test for {node.profile}")
    options = (f"--profile={node.profile}", "--seconds=15", "--release=4", "--seed=2")
    _, output, result = stress(tmp_path / "report.json", *options)

    assert "taken from its holder" in {violation["kind"] for violation in result["violations"]}, output

"""A real Prometheus misses no scrape of a node while another address attacks the agent's port."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.node import ROOT, eventually, run
from tests.e2e.prometheus import Prometheus, running_prometheus
from tests.wire import only_with

from .node import ModernNode

pytestmark = pytest.mark.e2e
_ATTACK: Final = ROOT / "tests/stress/attack.py"
_SECONDS: Final = 60
_JOB: Final = "nodeleak"


@contextmanager
def _another_address(address: str, bridge: str = "nodeleak0") -> Iterator[None]:
    """Have another address in the nodes' network, as another machine has.

    It is not a namespace on the bridge: docker's firewall drops what goes from one port to another.
    """
    run("ip", "address", "replace", f"{address}/24", "dev", bridge)
    try:
        yield
    finally:
        run("ip", "address", "delete", f"{address}/24", "dev", bridge)


def _scrapes(prometheus: Prometheus, expression: str) -> float:
    found = prometheus.get(f"/api/v1/query?query={expression}")["result"]
    assert found, expression
    return float(found[0]["value"][1])


def test_no_scrape_is_missed_while_another_address_attacks_the_port(
    node: ModernNode, tmp_path: Path
) -> None:
    only_with(node.profile == "containerd", "one runtime, which makes no difference here")
    node.pods(2)
    node.reserve(3)
    address = f"{node.env['NODE_IP'].rpartition('.')[0]}.250"
    with (
        node.daemon("--interval=1s", "--confirm-after=1s", "--grace=0s") as daemon,
        running_prometheus(
            tmp_path / "prometheus",
            "groups: []",
            "1s",
            _JOB,
            [{"targets": [f"{daemon.address}:{daemon.port}"]}],
        ) as prometheus,
        _another_address(address),
    ):
        eventually(
            lambda: _scrapes(prometheus, f"count_over_time(up{{job='{_JOB}'}}[1h])") > 3, equal=True
        )
        command = (
            sys.executable,
            str(_ATTACK),
            daemon.address,
            str(daemon.port),
            str(_SECONDS),
            address,
        )
        made = int(run(*command, seconds=_SECONDS + 180).stdout)
        assert made > 100
        missed = f"count_over_time(up{{job='{_JOB}'}}[1h])-sum_over_time(up{{job='{_JOB}'}}[1h])"
        assert _scrapes(prometheus, missed) == 0
        assert _scrapes(prometheus, f"sum_over_time(up{{job='{_JOB}'}}[1h])") > _SECONDS
        assert daemon.metrics().get("reservations", network=node.network, state="leaked") == 3
        assert len(daemon.events("agent.started")) == 1

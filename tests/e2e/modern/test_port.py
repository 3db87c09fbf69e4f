"""A real Prometheus misses no scrape of a node while another machine attacks the agent's port."""

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
def _other_machine(address: str, bridge: str = "nodeleak0") -> Iterator[tuple[str, ...]]:
    """Yield what runs a command on another machine of the nodes' network: a namespace."""
    name, link = "nodeleak-e2e-other", "nl-e2e-other"
    run("ip", "netns", "delete", name, codes=(0, 1))  # of a run that was killed
    run("ip", "netns", "add", name)
    try:
        run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "link", "set", link, "master", bridge, "up")
        inside = ("ip", "netns", "exec", name)
        run(*inside, "ip", "address", "add", f"{address}/24", "dev", "eth0")
        run(*inside, "ip", "link", "set", "eth0", "up")
        yield inside
    finally:
        run("ip", "netns", "delete", name)


def _scrapes(prometheus: Prometheus, expression: str) -> float:
    found = prometheus.get(f"/api/v1/query?query={expression}")["result"]
    assert found, expression
    return float(found[0]["value"][1])


def test_no_scrape_is_missed_while_another_machine_attacks_the_port(
    node: ModernNode, tmp_path: Path
) -> None:
    only_with(node.profile == "containerd", "one runtime, which makes no difference here")
    node.pods(2)
    leaked = node.reserve(3)
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
        _other_machine(address) as inside,
    ):
        eventually(
            lambda: _scrapes(prometheus, f"count_over_time(up{{job='{_JOB}'}}[1h])") > 3, equal=True
        )
        command = (
            *inside,
            sys.executable,
            str(_ATTACK),
            daemon.address,
            str(daemon.port),
            str(_SECONDS),
        )
        made = int(run(*command, seconds=_SECONDS + 180).stdout)
        assert made > 100
        missed = f"count_over_time(up{{job='{_JOB}'}}[1h])-sum_over_time(up{{job='{_JOB}'}}[1h])"
        assert _scrapes(prometheus, missed) == 0
        assert _scrapes(prometheus, f"sum_over_time(up{{job='{_JOB}'}}[1h])") > _SECONDS
        assert daemon.report().having("leaked") == set(leaked)
        assert len(daemon.events("agent.started")) == 1

"""Alerts, from the node to Prometheus: a leak and an unavailable source fire, and resolve afterwards.

The rules are those of deploy/, with every `for` reduced to two seconds (`prometheus.with_short_for`).
"""

from pathlib import Path
from typing import Any

import pytest

from .agent import BOLD, Daemon, Nodeleak
from .docker_without_containers import docker_without_containers
from .node import Cluster, Pods, eventually, throughout
from .prometheus import Prometheus, prometheus_of

pytestmark = pytest.mark.e2e

QUICK = ("--interval=1s", "--confirm-after=1s", "--grace=1s", "--docker-timeout=2s")
DOCKER = Path("/var/run/docker.sock")


def test_a_leak_fires_until_it_is_released(cluster: Cluster, pods: Pods, nodeleak: Nodeleak, tmp_path: Path) -> None:
    pods(1)
    with (
        nodeleak.running(*QUICK) as daemon,
        prometheus_of(_port(daemon), cluster.node, tmp_path / "prometheus") as prometheus,
    ):
        eventually(lambda: _fires_nothing(prometheus), 20)  # before the first scrape, the agent is absent
        throughout(lambda: _fires_nothing(prometheus), 4)

        leaked = cluster.reserve(3)
        (alert,) = eventually(lambda: _fires_alone(prometheus, "NodeleakLeakedAddresses"))
        assert alert["labels"] == {
            "alertname": "NodeleakLeakedAddresses",
            "severity": "info",
            "network": "kubenet",
            "job": "nodeleak",
            "instance": f"127.0.0.1:{_port(daemon)}",
            "node": cluster.node,
        }
        summary = f"{len(leaked)} leaked pod addresses on {cluster.node} (network kubenet)"
        assert alert["annotations"]["summary"] == summary

        assert nodeleak.clean("--apply", *BOLD).verdicts == dict.fromkeys(leaked, "released")
        eventually(lambda: _fires_nothing(prometheus), 20)
        throughout(lambda: _fires_nothing(prometheus), 3)


def test_an_unavailable_source_fires_until_it_was_read_long_enough(
    cluster: Cluster, pods: Pods, nodeleak: Nodeleak, tmp_path: Path
) -> None:
    pods(1)
    leaked = cluster.reserve(1)
    path = tmp_path / "docker.sock"
    with (
        docker_without_containers(path) as url,  # it lists nothing while a pod runs, so it is rejected
        nodeleak.running(*QUICK, f"--docker-host={url}") as daemon,
        prometheus_of(_port(daemon), cluster.node, tmp_path / "prometheus") as prometheus,
    ):
        (alert,) = eventually(lambda: _fires_alone(prometheus, "NodeleakSourceDown"))
        assert (alert["labels"]["source"], alert["labels"]["node"]) == ("containers", cluster.node)

        path.unlink()
        path.symlink_to(DOCKER)
        # The leak existed all the time, but could not be seen.
        eventually(lambda: _fires_alone(prometheus, "NodeleakLeakedAddresses"), 40)
        assert nodeleak.clean("--apply", *BOLD).verdicts == dict.fromkeys(leaked, "released")
        eventually(lambda: _fires_nothing(prometheus), 20)


def _port(daemon: Daemon) -> int:
    (started,) = daemon.events("agent.started")
    return int(started["port"])


def _fires_nothing(prometheus: Prometheus) -> None:
    assert prometheus.firing() == {}


def _fires_alone(prometheus: Prometheus, name: str) -> list[dict[str, Any]]:
    firing = prometheus.firing()
    assert firing.keys() == {name}, firing
    return firing[name]

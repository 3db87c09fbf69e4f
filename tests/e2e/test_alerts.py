"""Alerts, from the node to Prometheus: an unavailable source and a leak fire, and resolve afterwards."""

from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from .docker_without_containers import docker_without_containers
from .node import Cluster, Pods, eventually, throughout
from .nodeleak import BOLD, Nodeleak
from .prometheus import RULES, running_prometheus

pytestmark = pytest.mark.e2e

QUICK = ("--interval=1s", "--confirm-after=1s", "--grace=1s", "--docker-timeout=2s")


def test_a_source_and_a_leak_fire_until_they_are_seen_and_released(
    cluster: Cluster, pods: Pods, nodeleak: Nodeleak, tmp_path: Path
) -> None:
    pods(1)
    rules = yaml.safe_load(RULES.read_text())
    for rule in (rule for group in rules["groups"] for rule in group["rules"] if "alert" in rule):
        rule["for"] = "2s"  # and nothing else of them is changed
    path = tmp_path / "docker.sock"
    with (
        docker_without_containers(
            path
        ) as url,  # it lists nothing while a pod runs, so it is rejected
        nodeleak.running(*QUICK, f"--docker-host={url}") as daemon,
        running_prometheus(
            tmp_path / "prometheus",
            yaml.safe_dump(rules),
            "1s",
            "nodeleak",
            [{"targets": [f"127.0.0.1:{daemon.port}"], "labels": {"node": cluster.node}}],
        ) as prometheus,
    ):

        def fires(name: str) -> dict[str, Any]:
            firing = prometheus.firing()
            assert firing.keys() == {name}, firing
            (alert,) = firing[name]
            return alert

        alert = eventually(lambda: fires("NodeleakSourceDown"))
        assert (alert["labels"]["source"], alert["labels"]["node"]) == ("containers", cluster.node)

        path.unlink()
        path.symlink_to("/var/run/docker.sock")
        eventually(prometheus.firing, equal={})
        throughout(prometheus.firing, 4, equal={})

        leaked = cluster.reserve(3)
        summary = f"3 leaked pod addresses on {cluster.node} (network kubenet)"

        def tells_of_all() -> dict[str, Any]:
            """A snapshot may fall between two of them."""
            alert = fires("NodeleakLeakedAddresses")
            assert alert["annotations"]["summary"] == summary
            return alert

        assert eventually(tells_of_all)["labels"] == {
            "alertname": "NodeleakLeakedAddresses",
            "severity": "info",
            "network": "kubenet",
            "job": "nodeleak",
            "instance": f"127.0.0.1:{daemon.port}",
            "node": cluster.node,
        }
        assert nodeleak.clean("--apply", *BOLD).verdicts == dict.fromkeys(leaked, "released")
        eventually(prometheus.firing, equal={})

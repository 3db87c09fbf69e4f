"""`kubectl nodeleak` on the real cluster: its kubectl, its API server, and the deployed agent."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from .deployment import Deployment, build_image
from .node import Cluster, Pods, eventually, forget_sandboxes, reservations
from .nodeleak import BOLD, Cleaned, release
from .plugin import HASTY, Plugin, follow

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def agent(whole_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    build_image()
    deployment = Deployment(whole_cluster, tmp_path_factory.mktemp("deploy"), docker=True)
    yield deployment
    deployment.delete()
    shutil.rmtree("/var/lib/nodeleak", ignore_errors=True)  # the journal of these tests is nobody's


@pytest.fixture
def plugin(cluster: Cluster, tmp_path: Path) -> Plugin:
    return Plugin(cluster, tmp_path)


def test_status_shows_the_node_with_its_leaks(
    cluster: Cluster, pods: Pods, agent: Deployment, plugin: Plugin
) -> None:
    pods(1)
    agent.apply("base", NODELEAK_GRACE="0s", NODELEAK_CONFIRM_AFTER="0s", NODELEAK_INTERVAL="1s")
    assert cluster.node in plugin("status", codes=[0, 3]).stdout  # its first sync may be incomplete
    cluster.reserve(3)

    def shown() -> tuple[str, int, str, list[int]]:
        node = plugin.run_json("status", cluster.node)
        leaked = [network["leaked"] for network in node["document"]["networks"]]
        return node["node"], node["exit_code"], node["document"]["schema"], leaked

    eventually(shown, equal=(cluster.node, 0, "nodeleak.status/v1", [3]))
    eventually(
        lambda: "warning: 3 leaked_reservation" in plugin("status", "-o", "wide").stdout, equal=True
    )
    plugin("status", "--exit-code", codes=[1])


def test_commands_run_on_the_node(cluster: Cluster, agent: Deployment, plugin: Plugin) -> None:
    agent.present()
    assert plugin("scan", cluster.node).stdout.startswith(f"Node {cluster.node}, ")
    assert plugin.run_json("scan", "--all")["document"]["schema"] == "nodeleak.scan/v1"
    assert plugin.run_json("journal", "--all")["document"]["schema"] == "nodeleak.journal/v1"
    assert plugin("timeline", cluster.node, "--", "--since", "1h").stdout.startswith(
        f"Node {cluster.node}, "
    )
    plugin("scan", cluster.node, "--", "--no-such-option", codes=[2])


def test_a_read_only_agent_stops_a_cleanup_and_the_overlay_makes_it_possible(
    cluster: Cluster, pods: Pods, agent: Deployment, plugin: Plugin
) -> None:
    healthy = pods(1)
    leaked = cluster.reserve(3)
    agent.apply("base")
    stopped = plugin("clean", cluster.node, "--apply", "--yes", codes=[4])
    assert f"unexpected results on {cluster.node}: inspect them first" in stopped.stderr
    assert set(leaked) <= reservations().keys()

    agent.apply("overlays/cleanup-exec")

    def clean() -> Cleaned:
        node = plugin.run_json("clean", cluster.node, "--apply", "--yes", "--", *BOLD)
        return Cleaned(0, node["document"])

    release(clean, leaked)
    assert reservations().keys() == healthy.keys()
    plugin("restore", cluster.node, "--", "--last")


def test_a_job_releases_beside_a_read_only_daemon_set(
    cluster: Cluster, pods: Pods, agent: Deployment, plugin: Plugin
) -> None:
    healthy = pods(1)
    leaked = cluster.reserve(2)
    agent.apply("base")
    printed = plugin("clean-job", cluster.node, "--apply", "--", *BOLD).stdout
    (container,) = yaml.safe_load(printed)["spec"]["template"]["spec"]["containers"]
    assert container["imagePullPolicy"] == "Never"
    job = cluster.kubectl("create", "-f", "-", "-o", "name", text=printed).strip()
    try:
        cluster.kubectl(
            "-n", "kube-system", "wait", job, "--for=condition=complete", "--timeout=120s"
        )
        assert not reservations().keys() & set(leaked)
        assert healthy.keys() <= reservations().keys()
        assert agent.released() >= {(ip, "clean") for ip in leaked}
    finally:
        cluster.kubectl("-n", "kube-system", "delete", job, "--wait=true", "--timeout=60s")
    assert agent.restarts() == 0


def test_the_runbook_leads_from_the_alert_to_the_fix(
    cluster: Cluster, pods: Pods, agent: Deployment, tmp_path: Path
) -> None:
    leaked = pods(3)
    agent.apply("base", **HASTY)
    forget_sandboxes(cluster, leaked.values())
    healthy = pods.running()
    follow(cluster, tmp_path, 3)
    assert reservations().keys() == healthy.keys()

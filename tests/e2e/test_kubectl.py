"""`kubectl nodeleak` on the real cluster: its kubectl, its API server, and the deployed agent."""

import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from .agent import BOLD
from .deployment import ROOT, Deployment, build_image
from .node import Cluster, Pods, environment, eventually, reservations, run

pytestmark = pytest.mark.e2e

STATE_DIR = Path("/var/lib/nodeleak")


class Plugin:
    """The console script on PATH, as on an operator's machine."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._cluster, self._directory = cluster, directory
        program = directory / "kubectl-nodeleak"
        program.write_text(f"#!{sys.executable}\nimport sys\nfrom agent.fleet.command import main\nsys.exit(main())\n")
        program.chmod(0o755)

    def __call__(self, *arguments: str, codes: Sequence[int] = (0,)) -> "CompletedProcess[str]":
        path = f"{self._directory}{os.pathsep}{os.environ['PATH']}"
        env = environment(PATH=path, KUBECONFIG=str(self._cluster.admin), PYTHONPATH=str(ROOT))
        return run("kubectl", "nodeleak", *arguments, codes=codes, env=env, cwd=self._directory)

    def run_json(self, command: str, *arguments: str) -> dict[str, Any]:
        """Return the only node of the merged document."""
        tree = json.loads(self(command, "-o", "json", *arguments).stdout)
        assert tree["schema"] == "nodeleak.fleet/v1"
        (node,) = tree["nodes"]
        found: dict[str, Any] = node
        return found

    def last_report(self) -> dict[str, str]:
        """Return the state of each node in the newest report of a cleanup."""
        path = max(self._directory.glob("*.json"), key=lambda one: one.stat().st_mtime_ns)
        return {one["node"]: one["state"] for one in json.loads(path.read_text())["nodes"]}


@pytest.fixture(scope="module")
def agent(whole_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    build_image()
    deployment = Deployment(whole_cluster, tmp_path_factory.mktemp("deploy"))
    yield deployment
    deployment.delete()
    shutil.rmtree(STATE_DIR, ignore_errors=True)  # the journal of these tests is nobody's


@pytest.fixture
def plugin(cluster: Cluster, tmp_path: Path) -> Plugin:
    return Plugin(cluster, tmp_path)


def test_status_shows_the_node_with_its_leaks(cluster: Cluster, pods: Pods, agent: Deployment, plugin: Plugin) -> None:
    pods(1)
    agent.apply("base", NODELEAK_GRACE="0s", NODELEAK_CONFIRM_AFTER="0s", NODELEAK_INTERVAL="1s")
    assert cluster.node in plugin("status", codes=[0, 3]).stdout  # its first sync may be incomplete
    cluster.reserve(3)

    def shows_leaks() -> None:
        node = plugin.run_json("status", cluster.node)
        assert (node["node"], node["exit_code"]) == (cluster.node, 0)
        assert node["document"]["schema"] == "nodeleak.status/v1"
        assert [one["leaked"] for one in node["document"]["networks"]] == [3]

    eventually(shows_leaks, 60)
    assert "warning: 3 leaked_reservation" in plugin("status", "-o", "wide").stdout
    plugin("status", "--exit-code", codes=[1])


def test_commands_run_on_the_node(cluster: Cluster, agent: Deployment, plugin: Plugin) -> None:
    agent.present()
    assert plugin("scan", cluster.node).stdout.startswith(f"Node {cluster.node}, ")
    assert plugin.run_json("scan", "--all")["document"]["schema"] == "nodeleak.scan/v1"
    assert plugin.run_json("journal", "--all")["document"]["schema"] == "nodeleak.journal/v1"
    assert plugin("timeline", cluster.node, "--", "--since", "1h").stdout.startswith(f"Node {cluster.node}, ")
    plugin("scan", cluster.node, "--", "--no-such-option", codes=[2])


def test_a_read_only_agent_stops_a_cleanup_and_the_overlay_makes_it_possible(
    cluster: Cluster, pods: Pods, agent: Deployment, plugin: Plugin
) -> None:
    healthy = pods(1)
    leaked = cluster.reserve(3)
    agent.apply("base")
    stopped = plugin("clean", cluster.node, "--apply", "--yes", codes=[4])
    assert f"no expected result: look at {cluster.node} first" in stopped.stderr
    assert set(leaked) <= reservations().keys()

    agent.apply("overlays/cleanup-exec")

    def cleans() -> None:
        node = plugin.run_json("clean", cluster.node, "--apply", "--yes", "--", *BOLD)
        assert {one["ip"] for one in node["document"]["addresses"] if one["verdict"] == "released"} >= set(leaked)

    eventually(cleans, 60)
    assert reservations().keys() == healthy.keys()
    assert plugin.last_report() == {cluster.node: "done"}
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
        cluster.kubectl("-n", "kube-system", "wait", job, "--for=condition=complete", "--timeout=120s")
        assert not reservations().keys() & set(leaked)
        assert healthy.keys() <= reservations().keys()
        entries = agent.run_json("journal")["entries"]
        assert {ip for one in entries for ip in one["addresses"]} >= set(leaked)
    finally:
        cluster.kubectl("-n", "kube-system", "delete", job, "--wait=true", "--timeout=60s")
    assert agent.restarts() == 0

"""The deployed agent on a real node with containerd: the image and the manifests are those of every other node."""

import json
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest

from .agent import BOLD, Report
from .alert_to_fix import HASTY, follow
from .containerd_node import NODE, ContainerdNode
from .deployment import IMAGE, TAGS, Deployment, build_image, get, metrics
from .node import eventually

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def node_with_image(running_node: ContainerdNode) -> ContainerdNode:
    build_image()
    running_node.load(f"{IMAGE}:{TAGS[0]}")
    return running_node


@pytest.fixture
def agent(node: ContainerdNode, node_with_image: ContainerdNode, tmp_path: Path) -> Iterator[Deployment]:
    deployment = Deployment(node_with_image.cluster, tmp_path)
    yield deployment
    deployment.stop()
    node.clear()  # the kubelet would take a minute to collect the pod's first sandbox
    deployment.delete()
    node.run("find", "/var/lib/nodeleak", "-mindepth", "1", "-delete")


def test_on_a_healthy_node_the_base_finds_runtime_and_network_by_itself(
    node: ContainerdNode, agent: Deployment
) -> None:
    addresses = node.pods(2)
    agent.apply("base")
    assert agent.restarts() == 0
    shown = metrics()
    up = shown.by("source", "source_up")
    assert up.keys() >= {"containers", "networks", "reservations", "runtimes"}
    assert set(up.values()) == {1.0}
    assert "leaked_reservation" in shown.by("detector", "findings")
    assert shown.total("findings") == 0
    assert _states() == dict.fromkeys(addresses, "in_use")
    assert "OK: no findings" in _page()

    table = agent.execute("nodeleak", "scan").stdout
    assert "OK: no findings" in table
    assert re.search(r"^cbr0 +10\.253\.7\.1-10\.253\.7\.126 +125 +2 +123 +2 in_use$", table, re.MULTILINE), table
    dry = agent.run_json("clean", "--dry-run", *BOLD, codes=[6])
    assert (dry["addresses"], {one["by"] for one in dry["blockers"]}) == (
        [],
        {"no_cleanup_network", "network_unwritable"},
    )


def test_a_leak_is_reported_and_a_person_releases_it_with_the_overlay(node: ContainerdNode, agent: Deployment) -> None:
    leaked = set(node.pods(3))
    agent.apply("overlays/cleanup-exec", **HASTY)
    node.lose_runtime_state(namespaces=True)  # and the agent's own container with it
    eventually(lambda: _reports_leaks(leaked), 90)
    page = _page()
    assert f"Warning: {len(leaked)} leaked pod addresses on {NODE}" in page
    assert all(ip in page for ip in leaked)

    dry = agent.run_json("clean", "--dry-run", *BOLD)
    assert {one["ip"] for one in dry["addresses"]} == leaked
    assert leaked <= node.reserved.keys()
    done = agent.run_json("clean", "--apply", *BOLD)
    assert {one["ip"]: one["verdict"] for one in done["addresses"]} == dict.fromkeys(leaked, "released")
    assert not leaked & node.reserved.keys()
    assert {ip for one in agent.run_json("journal")["entries"] for ip in one["addresses"]} == leaked
    eventually(_is_healthy, 30)


def test_the_runbook_leads_from_the_alert_to_the_fix(node: ContainerdNode, agent: Deployment, tmp_path: Path) -> None:
    leaked = set(node.pods(3))
    agent.apply("base", **HASTY)
    node.remove_pods_with_ctr()
    eventually(lambda: _reports_leaks(leaked), 90)
    follow(node.cluster, tmp_path, 3)
    assert not leaked & node.reserved.keys()


def _states() -> dict[str, str]:
    return Report(0, json.loads(get("/api/v1/report"))).states


def _page() -> str:
    return unescape(get("/"))


def _reports_leaks(leaked: set[str]) -> None:
    """Check that the agent is back, and that every pod has a new address."""
    states = _states()
    assert {ip for ip, state in states.items() if state == "leaked"} == leaked
    assert [state for state in states.values() if state != "leaked"] == ["in_use"] * len(leaked)
    shown, confirmed = metrics(), {"detector": "leaked_reservation", "severity": "warning", "phase": "confirmed"}
    assert shown.get("reservations", network="cbr0", state="leaked") == len(leaked)
    assert shown.get("findings", **confirmed) == shown.total("findings") == len(leaked)


def _is_healthy() -> None:
    assert set(_states().values()) == {"in_use"}
    assert metrics().total("findings") == 0
    assert "OK: no findings" in _page()

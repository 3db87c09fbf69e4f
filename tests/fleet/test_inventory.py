"""Nodes and their agents, from what kubectl prints."""

import json
from typing import Any

from agent.fleet.inventory import Agent, Target, addresses, agents_in, natural, targets
from tests.fleet.kubectl import agent_pod

NODES = "worker-1   Ready   <none>   3d   v1.20.2\nworker-2   NotReady,SchedulingDisabled   <none>   3d   v1.20.2\n"


def of(*pods: dict[str, Any]) -> dict[str, Target]:
    return {target.node: target for target in targets(NODES, agents_in(json.dumps({"items": pods})))}


def agent(*pods: dict[str, Any]) -> Agent:
    found = of(*pods)["worker-1"].agent
    assert found is not None
    return found


def test_an_address_of_two_nodes_is_of_neither() -> None:
    """A node that was replaced may still have its object."""
    lines = (
        f"{name} Ready <none> 3d v1.20.2 {ip} <none>\n"
        for name, ip in (("a", "10.0.0.1"), ("b", "10.0.0.2"), ("c", "10.0.0.1"))
    )
    assert addresses("".join(lines)) == {"10.0.0.2": "b"}


def test_a_node_has_its_status_and_its_agent() -> None:
    found = of(agent_pod("worker-1"))
    assert agent(agent_pod("worker-1")).name == "kube-system/nodeleak-worker-1"
    assert (found["worker-1"].status, found["worker-1"].unreachable) == ("Ready", "")
    assert found["worker-2"].status == "NotReady,SchedulingDisabled"
    assert found["worker-2"].unreachable == "no agent pod on this node"


def test_an_agent_that_does_not_run_cannot_be_asked() -> None:
    for pod, why in (
        (agent_pod("worker-1", phase="Pending", ready="", waiting="ImagePullBackOff"), "ImagePullBackOff"),
        (agent_pod("worker-1", waiting="CrashLoopBackOff", ready="False"), "CrashLoopBackOff"),
        (agent_pod("worker-1", phase="Failed", ready=""), "Failed"),
        (agent_pod("worker-1", phase="", ready=""), "no status yet"),
    ):
        what = "agent pod kube-system/nodeleak-worker-1 is not running"
        assert of(pod)["worker-1"].unreachable == f"{what}: {why}"


def test_a_sidecar_that_waits_does_not_hide_an_agent_that_runs() -> None:
    pod = agent_pod("worker-1", ready="False", containers=["nodeleak", "mesh"])
    pod["status"]["phase"] = "Pending"
    pod["status"]["containerStatuses"][1]["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
    assert of(pod)["worker-1"].unreachable == ""
    assert not agent(pod).ready


def test_of_two_agents_the_one_that_runs_is_asked() -> None:
    for other in (
        agent_pod("worker-1", pod="nodeleak-old", phase="Failed", ready="", created="2026-03-27T00:00:00Z"),
        agent_pod("worker-1", pod="nodeleak-old", deleted="2026-03-27T00:00:00Z", created="2026-03-27T00:00:00Z"),
        agent_pod("worker-1", pod="nodeleak-old", ready="False", created="2026-03-27T00:00:00Z"),
        agent_pod("worker-1", pod="nodeleak-old", created="2026-03-20T00:00:00Z"),
    ):
        assert agent(other, agent_pod("worker-1")).pod == "nodeleak-worker-1"
        assert agent(agent_pod("worker-1"), other).pod == "nodeleak-worker-1"


def test_the_container_of_the_agent_is_asked() -> None:
    for containers, asked in (
        (["istio-proxy", "nodeleak"], "nodeleak"),
        (["agent"], "agent"),
        (["agent", "sidecar"], "agent"),
    ):
        assert agent(agent_pod("worker-1", containers=containers)).container == asked


def test_names_are_sorted_by_their_numbers() -> None:
    names = ["worker-10", "10.0.0.9", "worker-2", "worker", "10.0.0.10"]
    assert sorted(names, key=natural) == ["worker", "worker-2", "worker-10", "10.0.0.9", "10.0.0.10"]

"""Nodes and their agents, from the lines that kubectl prints."""

import pytest

from agent.fleet.inventory import Target, Untrusted, addresses, agents_in, natural, only, targets
from tests.fleet.kubectl import pod_line

NODES = "worker-1   Ready   <none>   3d   v1.20.2\nworker-2   NotReady,SchedulingDisabled   <none>   3d   v1.20.2\n"


def of(*pods: str) -> dict[str, Target]:
    names = " ".join(line.split("\t")[2] for line in pods)
    found = agents_in("".join(f"{line}\n" for line in (*pods, names)))
    return {one.node: one for one in targets(NODES, found)}


def test_an_address_of_two_nodes_is_of_neither() -> None:
    """A node that was replaced may still have its object."""
    lines = (
        f"{name} Ready <none> 3d v1.20.2 {ip} <none>\n"
        for name, ip in (("a", "10.0.0.1"), ("b", "10.0.0.2"), ("c", "10.0.0.1"))
    )
    assert addresses("".join(lines)) == {"10.0.0.2": "b"}


def test_a_node_has_its_status_and_its_agent() -> None:
    found = of(pod_line("worker-1"))
    assert found["worker-1"].agent is not None
    assert found["worker-1"].agent.name == "kube-system/nodeleak-worker-1"
    assert (found["worker-1"].status, found["worker-1"].unreachable) == ("Ready", "")
    assert found["worker-2"].status == "NotReady,SchedulingDisabled"
    assert found["worker-2"].unreachable == "no agent pod on this node"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (pod_line("worker-1", phase="Pending", ready="", waiting="ImagePullBackOff"), "ImagePullBackOff"),
        (pod_line("worker-1", waiting="CrashLoopBackOff", ready="False"), "CrashLoopBackOff"),
        (pod_line("worker-1", phase="Failed", ready=""), "Failed"),
        (pod_line("worker-1", phase="", ready=""), "no status yet"),
    ],
)
def test_an_agent_that_does_not_run_cannot_be_asked(line: str, why: str) -> None:
    pod = "agent pod kube-system/nodeleak-worker-1 is not running"
    assert of(line)["worker-1"].unreachable == f"{pod}: {why}"


def test_a_sidecar_that_waits_does_not_hide_an_agent_that_runs() -> None:
    line = pod_line("worker-1", phase="Pending", ready="False", running="2026-03-26T20:00:00Z")
    assert of(line)["worker-1"].unreachable == ""


def test_an_agent_that_is_not_ready_can_be_asked() -> None:
    found = of(pod_line("worker-1", ready="False"))["worker-1"]
    assert found.agent is not None
    assert (found.agent.ready, found.unreachable) == (False, "")


@pytest.mark.parametrize(
    "other",
    [
        pod_line("worker-1", pod="nodeleak-old", phase="Failed", ready="", created="2026-03-27T00:00:00Z"),
        pod_line("worker-1", pod="nodeleak-old", deleted="2026-03-27T00:00:00Z", created="2026-03-27T00:00:00Z"),
        pod_line("worker-1", pod="nodeleak-old", ready="False", created="2026-03-27T00:00:00Z"),
        pod_line("worker-1", pod="nodeleak-old", created="2026-03-20T00:00:00Z"),
    ],
)
def test_of_two_agents_the_one_that_runs_is_asked(other: str) -> None:
    for lines in ([other, pod_line("worker-1")], [pod_line("worker-1"), other]):
        agent = of(*lines)["worker-1"].agent
        assert agent is not None
        assert agent.pod == "nodeleak-worker-1"


@pytest.mark.parametrize(
    ("containers", "asked"), [("istio-proxy nodeleak", "nodeleak"), ("agent", "agent"), ("agent sidecar", "agent")]
)
def test_the_container_of_the_agent_is_asked(containers: str, asked: str) -> None:
    agent = of(pod_line("worker-1", containers=containers))["worker-1"].agent
    assert agent is not None
    assert agent.container == asked


def test_named_nodes_are_chosen_once_and_unknown_names_are_returned() -> None:
    found = list(of().values())
    chosen, unknown = only(found, ["worker-2", "worker-9", "worker-2"])
    assert ([one.node for one in chosen], unknown) == (["worker-2"], ["worker-9"])
    assert only(found, []) == (found, [])


def test_names_are_sorted_by_their_numbers() -> None:
    names = ["worker-10", "10.0.0.9", "worker-2", "worker", "10.0.0.10"]
    assert sorted(names, key=natural) == ["worker", "worker-2", "worker-10", "10.0.0.9", "10.0.0.10"]


@pytest.mark.parametrize("end", ["\t", "\n", "\u2028", f"\n{pod_line('worker-2', pod='other')}"])
def test_a_kubelet_cannot_write_lines_of_other_nodes(end: str) -> None:
    with pytest.raises(Untrusted, match="line break or tab"):
        of(pod_line("worker-1", waiting=f"ErrImagePull{end}"))


def test_without_pods_there_is_no_agent() -> None:
    assert [one.agent for one in of().values()] == [None, None]
    assert agents_in("") == []

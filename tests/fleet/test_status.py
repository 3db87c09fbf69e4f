"""`status`: what it says of each node, which one is worst, and the table."""

import json
import re
from typing import Any

from tests.cli.commands import Done
from tests.fleet.kubectl import FakeKubectl, agent_pod, finding, status

SCHEMA = "nodeleak.status/v1"
CRITICAL, LEAKS = (
    finding("critical", "exhausted_range"),
    finding("warning", "leaked_reservation", 7),
)
INFO = finding("info", "left_over_network")


def rows(done: Done) -> dict[str, dict[str, str]]:
    """Return the cells of each node, by their heads; of several networks, those of the last."""
    _, table = done.out.split("\n\n")
    heads, *lines = (re.split(" {2,}", line) for line in table.splitlines())
    return {line[0]: dict(zip(heads, line, strict=True)) for line in lines}


def network(name: str = "cbr0", **counts: int | None) -> dict[str, Any]:
    return {
        "name": name,
        "usable": 253,
        "free": 12,
        "leaked": 0,
        "unknown": 0,
        "releasable": None,
    } | counts


def test_a_document_has_a_rank_and_a_text(kubectl: FakeKubectl) -> None:
    """The worst first; of the same rank, that with the fewest free addresses and the most leaks."""
    pods = {"source": "pods", "why": "timed out"}
    halted = status()["cleanup"] | {"halted": "a container reappeared"}
    old = {"taken_at": "", "age_seconds": 400.0, "interval_seconds": 15}
    warning = {"state": "findings", "findings": [LEAKS]}
    no_reason = "incomplete: the agent gives no reason"
    cases: dict[str, tuple[dict[str, Any], str]] = {
        "both": (
            {"state": "findings", "findings": [CRITICAL, LEAKS]},
            "critical: exhausted_range; warning: 7 leaked_reservation",
        ),
        "halted": (
            {"state": "findings", "cleanup": halted},
            "critical: cleanup halted: a container reappeared",
        ),
        "incomplete-1": (
            {"state": "incomplete", "findings": [CRITICAL]},
            f"{no_reason}; critical: exhausted_range",
        ),
        "fatal": ({"state": "findings", "findings": [finding("fatal", "x")]}, "fatal: x"),
        "incomplete-2": (
            {"state": "incomplete", "unavailable": [pods]},
            "incomplete: pods unavailable: timed out",
        ),
        "incomplete-3": ({"state": "incomplete"}, no_reason),
        "incomplete-4": (
            warning | {"unavailable": [pods]},
            "pods unavailable: timed out; warning: 7 leaked_reservation",
        ),
        "no-finding": ({"state": "findings"}, "none"),
        "stalled": ({"state": "stalled", "report": old}, "stalled: the last report is 6m40s old"),
        "least-free": (warning | {"networks": [network(free=3)]}, "warning: 7 leaked_reservation"),
        "more-leaks": (
            warning | {"networks": [network(leaked=2)]},
            "warning: 7 leaked_reservation",
        ),
        "leaks": (warning, "warning: 7 leaked_reservation"),
        "info": ({"findings": [INFO]}, "info: left_over_network"),
        "waiting": (
            {"state": "waiting", "headline": "Unconfirmed: pod a/b has waited for 1m"},
            "Unconfirmed: pod a/b has waited for 1m",
        ),
        "worker-9": ({}, "none"),
        "worker-10": ({}, "none"),
        "no-range": ({"networks": [network(usable=None, free=None)]}, "none"),
    }
    for node, (changes, _) in reversed(cases.items()):
        kubectl.node(node, output=json.dumps(status(node, **changes)))
    done = kubectl.run("status")
    assert done.out.splitlines()[0] == "17 nodes: 3 critical, 6 unknown, 3 warning, 2 info, 3 ok"
    found = [(node, row["FINDINGS"]) for node, row in rows(done).items()]
    assert found == [(node, text) for node, (_, text) in cases.items()]
    assert {row["AGENT"] for row in rows(done).values()} == {"0.1.0"}
    incomplete = [node for node in cases if node.startswith(("incomplete", "stalled"))]
    assert [kubectl.run("status", node).code for node in incomplete] == [3] * len(incomplete)
    assert kubectl.run("status", *[node for node in cases if node not in incomplete]).code == 0


def test_a_node_without_a_usable_answer_is_unknown(kubectl: FakeKubectl) -> None:
    forbidden = 'Error from server (Forbidden): pods "x" is forbidden'
    no_report = {"schema": SCHEMA, "state": "no_report", "why": "starting"}
    no_json = "its output is not the expected document"
    unreadable = f"cannot read its {SCHEMA}"
    answers: dict[str, tuple[dict[str, Any], str, str]] = {
        "forbidden": ({"own_code": 1, "error": f"{forbidden}\n"}, "no answer", forbidden),
        "text": ({"output": "OK\n"}, "no answer", no_json),
        "starting": (
            {"output": json.dumps(no_report), "code": 69},
            "no report",
            "no report: starting",
        ),
        "away": ({"status": "NotReady", "output": "OK"}, "no answer", f"{no_json} (node NotReady)"),
    }
    documents: dict[str, tuple[dict[str, Any], str, str]] = {
        "nan": ({"x": float("nan")}, "no answer", "kubectl exec ended without the whole output"),
        "newer": (
            {"schema": "nodeleak.status/v2"},
            "unknown schema",
            f'answers with schema "nodeleak.status/v2", this command reads {SCHEMA}: use one version',
        ),
        "null": ({"schema": None}, "unknown schema", 'with schema "None"'),
        "state": ({"state": "resting"}, "unreadable", unreadable),
        "findings": ({"findings": [1]}, "unreadable", unreadable),
        "age": ({"report": {"age_seconds": 1e99}}, "unreadable", unreadable),
    }
    for node, (changes, agent, text) in documents.items():
        answers[node] = ({"output": json.dumps(status(node, **changes))}, agent, text)
    for node, (answer, _, _) in answers.items():
        kubectl.node(node, **answer)
    done = kubectl.run("status", "-o", "wide")
    assert (done.code, done.out.splitlines()[0]) == (3, "10 nodes: 10 unknown")
    for node, (_, agent, text) in answers.items():
        assert (rows(done)[node]["AGENT"], text in rows(done)[node]["FINDINGS"]) == (agent, True), (
            node
        )
    kubectl.clear()
    pods = {
        "pending": (
            agent_pod("pending", phase="Pending", ready="", waiting="ImagePullBackOff"),
            "ImagePullBackOff",
        ),
        "waiting": (
            agent_pod("waiting", waiting="CrashLoopBackOff", ready="False"),
            "CrashLoopBackOff",
        ),
        "failed": (agent_pod("failed", phase="Failed", ready=""), "Failed"),
        "new": (agent_pod("new", phase="", ready=""), "no status yet"),
    }
    for node, (pod, _) in pods.items():
        kubectl.node(node, pods=[pod])
    kubectl.node("worker-1", pods=[])
    found = rows(kubectl.run("status", "-o", "wide"))
    assert (found["worker-1"]["AGENT"], found["worker-1"]["FINDINGS"]) == (
        "missing",
        "no agent pod on this node",
    )
    for node, (_, why) in pods.items():
        text = f"agent pod kube-system/nodeleak-{node} is not running: {why}"
        assert (found[node]["AGENT"], found[node]["FINDINGS"]) == ("not running", text)
    assert kubectl.asked() == [], "who does not run is not asked"


def test_the_container_of_the_agent_that_runs_is_asked(kubectl: FakeKubectl) -> None:
    containers = {"a": ["istio-proxy", "nodeleak"], "b": ["agent"], "c": ["agent", "sidecar"]}
    for node, names in containers.items():
        kubectl.node(
            node, pods=[agent_pod(node, containers=names)], output=json.dumps(status(node))
        )
    sidecar_waits = agent_pod("d", ready="False", containers=["nodeleak", "mesh"])
    sidecar_waits["status"]["phase"] = "Pending"
    sidecar_waits["status"]["containerStatuses"][1]["state"] = {
        "waiting": {"reason": "CrashLoopBackOff"}
    }
    kubectl.node("d", pods=[sidecar_waits], output=json.dumps(status("d")))
    found = rows(kubectl.run("status", "--parallel=1"))
    asked = [call[call.index("--container") + 1] for call in kubectl.calls("exec")]
    assert asked == ["nodeleak", "agent", "agent", "nodeleak"]
    assert [row["AGENT"] for row in found.values()] == [
        "0.1.0",
        "0.1.0",
        "0.1.0",
        "0.1.0 not ready",
    ]
    kubectl.clear()
    newer = {"created": "2026-03-27T00:00:00Z"}
    others: list[dict[str, Any]] = [
        {"phase": "Failed", "ready": "", **newer},
        {"deleted": "2026-03-27T00:00:00Z", **newer},
        {"ready": "False", **newer},
        {"created": "2026-03-20T00:00:00Z"},
    ]
    for number, other in enumerate(others):
        for order in (1, -1):
            node = f"worker-{number}{order}"
            pods = [agent_pod(node, pod=f"nodeleak-old-{node}", **other), agent_pod(node)]
            kubectl.node(node, pods=pods[::order], output=json.dumps(status(node)))
    assert kubectl.run("status").out.splitlines()[0] == "8 nodes: 8 ok"
    assert not any("old" in node for node in kubectl.asked())


def test_the_table_has_a_row_for_each_network_and_the_versions_and_json_the_documents(
    kubectl: FakeKubectl,
) -> None:
    storage, no_report = (
        network("storage", usable=None, free=None, leaked=None, unknown=3),
        {"schema": SCHEMA},
    )
    no_report |= {"state": "no_report", "why": "x"}
    kubectl.node(
        "worker-1", output=json.dumps(status(networks=[network(leaked=7, releasable=5), storage]))
    )
    kubectl.node("worker-2", pods=[])
    kubectl.node("worker-3", output=json.dumps(status(version="0.2.0")))
    kubectl.node("worker-4", code=69, output=json.dumps(no_report))
    assert kubectl.run("status").out == (
        "4 nodes: 2 unknown, 2 ok\n"
        "The agents have different versions: 0.1.0 (1), 0.2.0 (1)\n"
        "\n"
        "NODE      AGENT      NETWORK  FREE    LEAKED  RELEASABLE  AGE  FINDINGS\n"
        "worker-2  missing    -        -       -       -           -    no agent pod on this node\n"
        "worker-4  no report  -        -       -       -           -    no report: x\n"
        "worker-1  0.1.0      cbr0     12/253  7       5           12s  none\n"
        "worker-1  0.1.0      storage  ?/?     ?       -           12s  none\n"
        "worker-3  0.2.0      cbr0     12/253  0       -           12s  none\n"
    )
    done = kubectl.run("status", "-o", "json")
    assert (done.code, json.loads(done.out)) == (3, {"schema": "nodeleak.fleet/v1", "command": "status", "nodes": [
        {"node": "worker-2", "exit_code": None, "error": "no agent pod on this node"},
        {"node": "worker-4", "exit_code": 69, "document": no_report},
        {"node": "worker-1", "exit_code": 0, "document": status(networks=[network(leaked=7, releasable=5), storage])},
        {"node": "worker-3", "exit_code": 0, "document": status(version="0.2.0")},
    ]})  # fmt: skip


def test_the_wide_table_shows_pods_cleanup_and_long_texts(kubectl: FakeKubectl) -> None:
    why = f"\x1b[2J{'x' * 150}"
    unavailable: dict[str, Any] = {
        "state": "incomplete",
        "unavailable": [{"source": "pods", "why": why}],
    }
    auto = status()["cleanup"] | {"mode": "auto", "why_not": []}
    kubectl.node("worker-1", output=json.dumps(status(**unavailable)))
    kubectl.node("worker-2", output=json.dumps(status(cleanup=auto | {"release_possible": True})))
    kubectl.node("worker-3", output=json.dumps(status(cleanup=auto | {"release_possible": None})))
    assert "x" * 150 not in kubectl.run("status").out
    done = kubectl.run("status", "-o", "wide")
    assert "\x1b" not in done.out
    first, *others = rows(done).values()
    assert (first["POD"], "x" * 150 in first["FINDINGS"]) == ("kube-system/nodeleak-worker-1", True)
    assert first["CLEANUP"] == "off, cannot release: read-only mount"
    assert [row["CLEANUP"] for row in others] == ["auto, can release", "auto, unknown"]
    long = status(version="v" * 10_000, networks=[network("n" * 10_000)])
    kubectl.node("worker-4", output=json.dumps(long))
    assert max(map(len, kubectl.run("status", "-o", "wide").out.splitlines())) < 1000, (
        "nor do the longest names widen it"
    )


def test_status_asks_each_agent_once_in_its_pod(kubectl: FakeKubectl) -> None:
    kubectl.node("worker-1", output=json.dumps(status()))
    done = kubectl.run(
        "status", "--context=staging", "--kubeconfig=/k", "-n", "agents", "-l", "pool=web"
    )
    assert done.code == 0
    (call,) = kubectl.calls("exec")
    assert call == [
        *(
            "exec",
            "--context=staging",
            "--kubeconfig=/k",
            "--namespace",
            "kube-system",
            "nodeleak-worker-1",
        ),
        *("--container", "nodeleak", "--", "nodeleak", "status", "-o", "json"),
    ]
    nodes, pods = kubectl.calls("get")
    assert nodes[:4] == ["get", "--context=staging", "--kubeconfig=/k", "nodes"]
    assert "--selector=pool=web,kubernetes.io/os!=windows,type!=virtual-kubelet" in nodes
    assert "--namespace=agents" in pods


def test_the_exit_code_says_on_request_whether_there_are_findings(kubectl: FakeKubectl) -> None:
    for severity, code in (("critical", 1), ("warning", 1), ("info", 0)):
        kubectl.node(severity, output=json.dumps(status(findings=[finding(severity, "x")])))
        assert [kubectl.run("status", severity, *more).code for more in ((), ("--exit-code",))] == [
            0,
            code,
        ]


def test_an_output_that_kubectl_lost_is_requested_again_once(kubectl: FakeKubectl) -> None:
    for kept in (0, 30):
        for lost in (1, 2):
            kubectl.node(f"worker-{lost}-{kept}", output=json.dumps(status()), lost=lost, kept=kept)
    done = kubectl.run("status", "--parallel=1")
    assert (done.code, done.out.splitlines()[0]) == (3, "4 nodes: 2 unknown, 2 ok")
    for node in ("worker-2-0", "worker-2-30"):
        assert rows(done)[node]["FINDINGS"].startswith(
            "kubectl exec ended without the whole output"
        )
    assert sorted(kubectl.asked()) == sorted(
        2 * [f"worker-{lost}-{kept}" for lost in (1, 2) for kept in (0, 30)]
    )

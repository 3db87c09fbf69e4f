"""The deployed agent in the newest Kubernetes: image, manifests, rights, and what kubectl shows."""

import base64
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.deployment import MODERN_TAG, Deployment
from tests.e2e.node import ROOT, eventually, run
from tests.e2e.nodeleak import BOLD, Cleaned, release
from tests.e2e.plugin import HASTY, Plugin, follow

from .node import ModernNode

pytestmark = pytest.mark.e2e
_OWN_NAMESPACE = "nodeleak"
_AN_HOUR = 3607  # Seconds that kubelets ask for
_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105 (a path)


@pytest.fixture(scope="module")
def agent(
    node_with_image: ModernNode, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    """The agent in kube-system, applied by each test as it needs it, deleted after the last one."""
    with _deployed(node_with_image, tmp_path_factory.mktemp("deploy")) as deployment:
        yield deployment


@contextmanager
def _deployed(
    node: ModernNode, directory: Path, namespace: str = "kube-system"
) -> Iterator[Deployment]:
    docker = node.profile == "cri-dockerd"
    deployment = Deployment(
        node.cluster, directory, namespace, {}, MODERN_TAG, node.inside, docker=docker
    )
    try:
        yield deployment
    finally:
        deployment.delete()
        node.run("sh", "-c", "rm -rf /var/lib/nodeleak/*")


@pytest.fixture
def policy(node: ModernNode) -> Iterator[None]:
    overlay = str(ROOT / "deploy/overlays/admission-policy")
    node.kubectl("apply", "-k", overlay)
    try:
        yield
    finally:
        node.kubectl("delete", "-k", overlay)


@pytest.mark.k3s
def test_before_the_first_pod_and_after_it_the_base_finds_nothing_wrong(
    node: ModernNode, agent: Deployment
) -> None:
    node.run("rm", "-rf", "/var/lib/cni/networks", "/var/lib/cni/cache", "/var/lib/cni/results")
    pod = agent.apply("base", **HASTY)
    assert agent.execute("nodeleak", "scan").stdout.splitlines()[1] == "OK: no findings"
    _check_token(agent.execute("cat", _TOKEN).stdout, pod)

    addresses = node.pods(2)
    eventually(lambda: agent.scan().states, equal=dict.fromkeys(addresses, "in_use"))
    report = agent.scan()
    network = report.network
    assert (network["name"], network["usable"], network["free"]) == (node.network, 125, 123)
    eventually(agent.sources_up, equal={1.0})
    assert "OK: no findings" in agent.get("/")
    dry = agent.clean("--dry-run", *BOLD, codes=[6]).document
    assert {blocker["by"] for blocker in dry["blockers"]} == {
        "no_cleanup_network",
        "network_unwritable",
    }
    assert agent.restarts() == 0


def test_one_pod_with_an_imported_image_reports_until_the_daemonset_replaces_it(
    node: ModernNode, agent: Deployment
) -> None:
    agent.stop()
    agent.kubectl(
        "wait", "pods", "-l", "app.kubernetes.io/name=nodeleak", "--for=delete", "--timeout=60s"
    )
    node.kubectl("apply", "-f", str(ROOT / "deploy/base/rbac.yaml"))
    text = (ROOT / "deploy/one-node.yaml").read_text().replace("NODE_NAME", node.cluster.node)
    node.kubectl("apply", "-f", "-", text=re.sub(r"(image: \S+):\S+", rf"\1:{MODERN_TAG}", text))
    agent.kubectl(
        "wait", f"pod/nodeleak-{node.cluster.node}", "--for=condition=Ready", "--timeout=60s"
    )
    addresses = node.pods(2)
    eventually(lambda: agent.scan().states, equal=dict.fromkeys(addresses, "in_use"))
    assert agent.apply("base", **HASTY)["metadata"]["name"] != f"nodeleak-{node.cluster.node}"


@pytest.mark.k3s
def test_a_job_releases_beside_the_read_only_agent(node: ModernNode, agent: Deployment) -> None:
    agent.apply("base", **HASTY)
    healthy, leaked = node.pods(2), node.reserve(3)
    output = agent.clean_once("--dry-run", **HASTY)
    listed = [line for line in output.splitlines() if "would release" in line]
    assert [sum(ip in line.split() for line in listed) for ip in leaked] == [1, 1, 1], output
    assert node.reserved().keys() == {*healthy, *leaked}

    output = agent.clean_once("--apply", **HASTY)
    assert node.reserved().keys() == healthy.keys(), output
    assert all(ip in output for ip in leaked), output
    assert agent.released() >= {(ip, "clean") for ip in leaked}
    assert agent.restarts() == 0
    eventually(lambda: agent.report().having("leaked"), equal=set())


def test_the_runbook_leads_from_the_alert_to_the_fix(
    node: ModernNode, agent: Deployment, tmp_path: Path
) -> None:
    healthy = node.pods(2)
    agent.apply("base", **HASTY)
    node.reserve(3)
    follow(node.cluster, tmp_path, 3, f"{node.env['NODE_IP']}:9747")
    assert node.reserved().keys() == healthy.keys()


@pytest.mark.usefixtures("policy")
def test_leaks_are_findings_metrics_events_and_a_condition(
    node: ModernNode, agent: Deployment
) -> None:
    node.pods(1)
    leaked = node.reserve(124)
    _forget_events(node)
    agent.apply("overlays/node-condition", **HASTY)
    eventually(lambda: agent.report().having("leaked"), equal=set(leaked))
    leaks = {"network": node.network, "state": "leaked"}
    eventually(lambda: agent.metrics().get("reservations", **leaks), equal=124)
    eventually(lambda: _reasons(node) >= {"LeakedReservation", "ExhaustedRange"}, equal=True)
    eventually(lambda: _conditions(node)["CNIAddressPressure"], equal="True")
    assert "CNIAddressPressure" in node.kubectl("describe", "node", node.cluster.node)
    eventually(
        partial(_refuses, node, agent.execute("cat", _TOKEN).stdout)
    )  # a policy takes effect within seconds
    assert agent.metrics().by("cause", "events_dropped_total") == {}


def test_a_person_releases_with_the_overlay(
    node: ModernNode, agent: Deployment, plugin: Plugin
) -> None:
    agent.apply("overlays/cleanup-exec", **HASTY)
    healthy, leaked = node.pods(2), node.reserve(3)
    release(lambda: agent.clean("--apply", *BOLD), leaked)
    assert node.reserved().keys() == healthy.keys()

    leaked = node.reserve(2)
    eventually(lambda: agent.report().having("leaked"), equal=set(leaked))
    assert "2 leaked_reservation" in plugin("status", node.cluster.node, "-o", "wide").stdout

    def clean() -> Cleaned:
        answer = plugin.run_json("clean", node.cluster.node, "--apply", "--yes", "--", *BOLD)
        return Cleaned(0, answer["document"])

    release(clean, leaked)
    assert node.reserved().keys() == healthy.keys()


def test_the_daemon_releases_by_itself_with_the_overlay(
    node: ModernNode, agent: Deployment
) -> None:
    healthy, leaked = node.pods(2), node.reserve(3)
    agent.apply("overlays/cleanup", **HASTY)
    eventually(lambda: node.reserved().keys(), equal=healthy.keys())
    assert agent.released() >= {(ip, "run") for ip in leaked}


def test_the_brake_stops_the_daemon_and_a_person_until_it_ends(
    node: ModernNode, agent: Deployment, plugin: Plugin
) -> None:
    def refused(**labels: str) -> float | None:
        return agent.metrics().get("releases_refused_total", **labels)

    healthy = node.pods(2)
    agent.apply("overlays/cleanup", **HASTY)
    eventually(lambda: agent.metrics().get("brake"), equal=0)
    plugin("brake", "on", "--reason=e2e")
    try:
        plugin("brake", codes=[1])
        eventually(lambda: agent.metrics().get("brake"), equal=1)
        leaked = node.reserve(3)
        eventually(lambda: agent.report().having("leaked"), equal=set(leaked))
        braked = {"network": node.network, "reason": "brake_on"}
        eventually(lambda: (refused(**braked) or 0) >= 3, equal=True)
        reasons = {row["reason"] for row in agent.clean("--apply", *BOLD).document["addresses"]}
        assert reasons == {"brake_on"}
        assert node.reserved().keys() == {*healthy, *leaked}

        # Without the right to read it, it is not known to be off.
        agent.kubectl("delete", "rolebinding", "nodeleak")
        eventually(lambda: _may_read_the_brake(agent), equal="no")
        agent.kubectl("delete", "configmap", "nodeleak-brake")
        unread = {"network": node.network, "reason": "source_unavailable"}
        eventually(lambda: (refused(**unread) or 0) >= 3, equal=True)
        assert node.reserved().keys() == {*healthy, *leaked}
        agent.apply("overlays/cleanup", **HASTY)
    finally:
        plugin("brake", "off")
    eventually(lambda: node.reserved().keys(), equal=healthy.keys())


def _may_read_the_brake(agent: Deployment) -> str:
    """Return `yes` or `no`: the API server takes a moment to notice that a right has gone."""
    account = "--as=system:serviceaccount:kube-system:nodeleak"
    words = ("auth", "can-i", "list", "configmaps/nodeleak-brake", account)
    return agent.kubectl(*words, codes=(0, 1)).strip()


@pytest.mark.usefixtures("policy")
def test_in_its_own_namespace_it_needs_the_level_privileged(
    node: ModernNode, agent: Deployment, plugin: Plugin, tmp_path: Path
) -> None:
    agent.stop()
    healthy, leaked = node.pods(2), node.reserve(3)
    _forget_events(node)
    with (
        _namespace(node, _OWN_NAMESPACE, "baseline"),
        _deployed(node, tmp_path, _OWN_NAMESPACE) as own,
    ):
        kustomization = own.written("overlays/node-condition", settings=HASTY)
        refused = run(
            node.cluster.program, "--kubeconfig", node.cluster.admin, "apply", "-k", kustomization
        )
        assert 'would violate PodSecurity "baseline' in refused.stderr
        events = ("get", "events", "--field-selector=reason=FailedCreate")
        eventually(lambda: "violates PodSecurity" in own.kubectl(*events), equal=True)

        level = "pod-security.kubernetes.io/enforce=privileged"
        node.kubectl("label", "namespace", _OWN_NAMESPACE, "--overwrite", level)
        own.kubectl("rollout", "restart", "daemonset/nodeleak")
        own.apply("overlays/node-condition", **HASTY)
        eventually(lambda: "LeakedReservation" in _reasons(node), equal=True)
        eventually(partial(_refuses, node, own.execute("cat", _TOKEN).stdout))

        output = plugin("clean-job", node.cluster.node, "--apply", "--run", "--", *BOLD).stdout
        assert node.reserved().keys() == healthy.keys(), output
        assert all(ip in output for ip in leaked), output


@pytest.fixture
def plugin(node: ModernNode, tmp_path: Path) -> Plugin:
    return Plugin(node.cluster, tmp_path)


def _check_token(token: str, pod: dict[str, Any]) -> None:
    """Check that a token is bound to the pod, and that the kubelet replaces it."""
    claims = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "==="))
    bound = claims["kubernetes.io"]
    assert (bound["pod"]["uid"], bound["node"]["name"]) == (
        pod["metadata"]["uid"],
        pod["spec"]["nodeName"],
    )
    assert bound["warnafter"] - claims["iat"] <= _AN_HOUR


@contextmanager
def _namespace(node: ModernNode, name: str, level: str) -> Iterator[None]:
    """Have a namespace with a level of Pod Security during the block."""
    labels = {f"pod-security.kubernetes.io/{mode}": level for mode in ("enforce", "warn")}
    node.cluster.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    )
    try:
        yield
    finally:
        node.kubectl("delete", "namespace", name, "--timeout=60s")


def _refuses(node: ModernNode, token: str) -> None:
    """Check that the API server admits with the agent's token what is about its node, and nothing else."""
    own = {"component": "nodeleak", "host": node.cluster.node}
    assert _written(node, token, own, node.cluster.node) == ""
    message = "ValidatingAdmissionPolicy 'nodeleak-own-node'"
    assert message in _written(node, token, own, "another-node")
    assert message in _written(node, token, own | {"component": "kubelet"}, node.cluster.node)


def _written(node: ModernNode, token: str, source: dict[str, str], about: str) -> str:
    """Create an Event with the agent's token; return why it is refused."""
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": "nodeleak-e2e-", "namespace": "default"},
        "involvedObject": {"kind": "Node", "name": about},
        "source": source,
        "reportingComponent": "nodeleak",
        "reportingInstance": node.cluster.node,
        "reason": "Test",
        "message": "a test",
        "type": "Normal",
    }
    # kubectl with nothing but the address of the API server
    server = node.kubectl(
        "config", "view", "-o", "jsonpath={.clusters[0].cluster.server}", "--minify"
    )
    kubectl = (
        node.cluster.program,
        "--kubeconfig=/dev/null",
        "--server",
        server,
        "--insecure-skip-tls-verify",
    )
    return run(
        *kubectl, "--token", token, "create", "-f", "-", text=json.dumps(event), codes=(0, 1)
    ).stderr


def _events(node: ModernNode) -> list[dict[str, Any]]:
    about = f"involvedObject.kind=Node,involvedObject.name={node.cluster.node}"
    found = node.cluster.get("events", "--field-selector", about)["items"]
    return [event for event in found if event["source"].get("component") == "nodeleak"]


def _forget_events(node: ModernNode) -> None:
    for event in _events(node):
        node.kubectl("delete", "event", event["metadata"]["name"])


def _reasons(node: ModernNode) -> set[str]:
    return {event["reason"] for event in _events(node)}


def _conditions(node: ModernNode) -> dict[str, str]:
    found = node.cluster.described_node()["status"]["conditions"]
    return {condition["type"]: condition["status"] for condition in found}

"""The deployed agent in the newest Kubernetes: image, manifests, rights, and what kubectl shows."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.agent import BOLD, Metrics
from tests.e2e.alert_to_fix import HASTY
from tests.e2e.deployment import MODERN_TAG, ROOT, Deployment
from tests.e2e.node import eventually, run
from tests.e2e.plugin import Plugin

from .node import ModernNode

pytestmark = pytest.mark.e2e
_OWN_NAMESPACE = "nodeleak"
_AN_HOUR = 3607
"""Seconds that kubelets ask for."""
_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105 (a path)


@pytest.fixture(scope="module")
def agent(node_with_image: ModernNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """The agent in kube-system, applied by each test as it needs it, deleted after the last one."""
    with _deployed(node_with_image, tmp_path_factory.mktemp("deploy")) as deployment:
        yield deployment


@contextmanager
def _deployed(node: ModernNode, directory: Path, namespace: str = "kube-system") -> Iterator[Deployment]:
    docker = node.profile == "cri-dockerd"
    deployment = Deployment(node.cluster, directory, node.kubectl_program, namespace, {}, MODERN_TAG, docker=docker)
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


def test_before_the_first_pod_and_after_it_the_base_finds_nothing_wrong(node: ModernNode, agent: Deployment) -> None:
    node.run("rm", "-rf", "/var/lib/cni/networks", "/var/lib/cni/cache", "/var/lib/cni/results")
    pod = agent.apply("base", **HASTY)
    assert agent.execute("nodeleak", "scan").stdout.splitlines()[1] == "OK: no findings"
    _check_token(agent.execute("cat", _TOKEN).stdout, pod)

    addresses = node.pods(2)
    report = agent.run_json("scan")
    assert {item["ip"]: item["state"] for item in report["reservations"]} == dict.fromkeys(addresses, "in_use")
    (network,) = report["networks"]
    assert (network["name"], network["usable"], network["free"]) == (node.network, 125, 123)
    eventually(lambda: _is_up(node), 30)
    assert "OK: no findings" in _get(node, "/")
    dry = agent.run_json("clean", "--dry-run", *BOLD, codes=[6])
    assert {blocker["by"] for blocker in dry["blockers"]} == {"no_cleanup_network", "network_unwritable"}
    assert agent.restarts() == 0


def test_one_pod_with_an_imported_image_reports_until_the_daemonset_replaces_it(
    node: ModernNode, agent: Deployment
) -> None:
    agent.stop()
    agent.kubectl("wait", "pods", "-l", "app.kubernetes.io/name=nodeleak", "--for=delete", "--timeout=60s")
    node.kubectl("apply", "-f", str(ROOT / "deploy/base/rbac.yaml"))
    text = (ROOT / "deploy/one-node.yaml").read_text().replace("NODE_NAME", node.cluster.node)
    node.kubectl("apply", "-f", "-", text=text.replace(":0.1.0\n", f":{MODERN_TAG}\n"))
    agent.kubectl("wait", f"pod/nodeleak-{node.cluster.node}", "--for=condition=Ready", "--timeout=60s")
    addresses = node.pods(2)
    reservations = agent.run_json("scan")["reservations"]
    assert {item["ip"]: item["state"] for item in reservations} == dict.fromkeys(addresses, "in_use")
    assert agent.apply("base", **HASTY)["metadata"]["name"] != f"nodeleak-{node.cluster.node}"


def test_a_job_releases_beside_the_read_only_agent(node: ModernNode, agent: Deployment) -> None:
    agent.apply("base", **HASTY)
    healthy, leaked = node.pods(2), node.reserve(3)
    output = agent.clean_once("--apply", **HASTY)
    assert node.reserved().keys() == healthy.keys(), output
    assert all(ip in output for ip in leaked), output
    assert agent.restarts() == 0


@pytest.mark.usefixtures("policy")
def test_leaks_are_findings_metrics_events_and_a_condition(node: ModernNode, agent: Deployment) -> None:
    node.pods(1)
    leaked = node.reserve(124)
    _forget_events(node)
    agent.apply("overlays/node-condition", **HASTY)
    eventually(lambda: _counts_leaks(node, 124), 30)
    assert {item["ip"] for item in _report(node)["reservations"] if item["state"] == "leaked"} == set(leaked)
    eventually(lambda: _tells(node, "LeakedReservation", "ExhaustedRange"), 30)
    eventually(lambda: _is_under_pressure(node), 30)
    assert "CNIAddressPressure" in node.kubectl("describe", "node", node.cluster.node)
    eventually(partial(_refuses, node, agent.execute("cat", _TOKEN).stdout), 30)  # a policy takes effect within seconds
    assert _metrics(node).by("cause", "events_dropped_total") == {}


def test_a_person_releases_with_the_overlay(node: ModernNode, agent: Deployment, plugin: Plugin) -> None:
    agent.apply("overlays/cleanup-exec", **HASTY)
    healthy, leaked = node.pods(2), node.reserve(3)
    done = agent.run_json("clean", "--apply", *BOLD)
    assert {item["ip"]: item["verdict"] for item in done["addresses"]} == dict.fromkeys(leaked, "released")
    assert node.reserved().keys() == healthy.keys()

    leaked = node.reserve(2)
    eventually(lambda: _counts_leaks(node, 2), 30)
    assert "2 leaked_reservation" in plugin("status", node.cluster.node, "-o", "wide").stdout
    document = plugin.run_json("clean", node.cluster.node, "--apply", "--yes", "--", *BOLD)["document"]
    assert {item["ip"] for item in document["addresses"] if item["verdict"] == "released"} == set(leaked)
    assert node.reserved().keys() == healthy.keys()


def test_the_daemon_releases_by_itself_with_the_overlay(node: ModernNode, agent: Deployment) -> None:
    healthy, leaked = node.pods(2), node.reserve(3)
    agent.apply("overlays/cleanup", **HASTY)
    eventually(lambda: _holds(node, healthy), 30)
    entries = agent.run_json("journal")["entries"]
    assert {(ip, entry["by"]) for entry in entries for ip in entry["addresses"]} >= {(ip, "run") for ip in leaked}


@pytest.mark.usefixtures("policy")
def test_in_its_own_namespace_it_needs_the_level_privileged(
    node: ModernNode, agent: Deployment, plugin: Plugin, tmp_path: Path
) -> None:
    agent.stop()
    healthy, leaked = node.pods(2), node.reserve(3)
    _forget_events(node)
    with _namespace(node, _OWN_NAMESPACE, "baseline"), _deployed(node, tmp_path, _OWN_NAMESPACE) as own:
        kustomization = own.written("overlays/node-condition", settings=HASTY)
        refused = run(node.kubectl_program, "--kubeconfig", node.cluster.admin, "apply", "-k", kustomization)
        assert 'would violate PodSecurity "baseline' in refused.stderr
        eventually(partial(_is_refused, own), 30)

        level = "pod-security.kubernetes.io/enforce=privileged"
        node.kubectl("label", "namespace", _OWN_NAMESPACE, "--overwrite", level)
        own.kubectl("rollout", "restart", "daemonset/nodeleak")
        own.apply("overlays/node-condition", **HASTY)
        eventually(lambda: _tells(node, "LeakedReservation"), 30)
        eventually(partial(_refuses, node, own.execute("cat", _TOKEN).stdout), 30)

        output = plugin("clean-job", node.cluster.node, "--apply", "--run", "--", *BOLD).stdout
        assert node.reserved().keys() == healthy.keys(), output
        assert all(ip in output for ip in leaked), output


@pytest.fixture
def plugin(node: ModernNode, tmp_path: Path) -> Plugin:
    return Plugin(node.cluster, tmp_path, node.kubectl_program)


def _check_token(token: str, pod: dict[str, Any]) -> None:
    """Check that a token is bound to the pod, and that the kubelet replaces it."""
    claims = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "==="))
    bound = claims["kubernetes.io"]
    assert (bound["pod"]["uid"], bound["node"]["name"]) == (pod["metadata"]["uid"], pod["spec"]["nodeName"])
    assert bound["warnafter"] - claims["iat"] <= _AN_HOUR


@contextmanager
def _namespace(node: ModernNode, name: str, level: str) -> Iterator[None]:
    """Have a namespace with a level of Pod Security during the block."""
    labels = {f"pod-security.kubernetes.io/{mode}": level for mode in ("enforce", "warn")}
    metadata = {"name": name, "labels": labels}
    node.kubectl("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}))
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
    command = ("--token", token, "create", "-f", "-")
    return run(*_without_credentials(node), *command, text=json.dumps(event), codes=(0, 1)).stderr


def _without_credentials(node: ModernNode) -> tuple[str | Path, ...]:
    """Return kubectl with nothing but the address of the API server."""
    config = json.loads(node.kubectl("config", "view", "-o", "json", "--minify"))
    cluster = config["clusters"][0]["cluster"]
    return (node.kubectl_program, "--kubeconfig=/dev/null", "--server", cluster["server"], "--insecure-skip-tls-verify")


def _get(node: ModernNode, path: str) -> str:
    return node.run("curl", "--silent", "--fail", "--noproxy", "*", f"http://127.0.0.1:9747{path}")


def _metrics(node: ModernNode) -> Metrics:
    return Metrics(_get(node, "/metrics"))


def _report(node: ModernNode) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(_get(node, "/api/v1/report"))
    return report


def _is_up(node: ModernNode) -> None:
    assert set(_metrics(node).by("source", "source_up").values()) == {1.0}


def _counts_leaks(node: ModernNode, count: int) -> None:
    assert _metrics(node).get("reservations", network=node.network, state="leaked") == count


def _holds(node: ModernNode, ips: dict[str, str]) -> None:
    assert node.reserved().keys() == ips.keys()


def _node(node: ModernNode) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(node.kubectl("get", "node", node.cluster.node, "-o", "json"))
    return found


def _events(node: ModernNode) -> list[dict[str, Any]]:
    found = json.loads(node.kubectl("get", "events", "-o", "json", *_of_node(node)))["items"]
    return [event for event in found if event["source"].get("component") == "nodeleak"]


def _of_node(node: ModernNode) -> tuple[str, ...]:
    return ("--field-selector", f"involvedObject.kind=Node,involvedObject.name={node.cluster.node}")


def _forget_events(node: ModernNode) -> None:
    for event in _events(node):
        node.kubectl("delete", "event", event["metadata"]["name"])


def _tells(node: ModernNode, *reasons: str) -> None:
    assert {*reasons} <= {event["reason"] for event in _events(node)}


def _is_under_pressure(node: ModernNode) -> None:
    conditions = {condition["type"]: condition["status"] for condition in _node(node)["status"]["conditions"]}
    assert conditions["CNIAddressPressure"] == "True"


def _is_refused(agent: Deployment) -> None:
    assert "violates PodSecurity" in agent.kubectl("get", "events", "--field-selector=reason=FailedCreate")

"""Events and the node condition in a real API server, as kubectl shows them."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from agent.kube_events.delivery import DeliveryMetrics, DeliveryQueue
from agent.kube_events.events import EventExporter
from agent.kube_events.writer import Writer
from agent.model.finding import Finding
from agent.model.snapshot import Pod
from tests.kube_events.syncs import confirmed, leak

from .agent import Daemon, Nodeleak
from .node import Cluster, Pods, applied, eventually, run

pytestmark = pytest.mark.e2e

QUICK = ("--interval=500ms", "--confirm-after=0s", "--grace=0s")
NAME = "nodeleak-e2e-events"


@pytest.fixture
def silence(cluster: Cluster) -> Iterator[None]:
    """No Events of nodeleak before and after the test."""
    forget(cluster)
    yield
    forget(cluster)


@pytest.fixture
def modest(cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    """Credentials that may read pods and nodes, and create and patch events: those of the base deployment."""
    rules = [
        {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
    ]
    rbac = "rbac.authorization.k8s.io"
    account = {"kind": "ServiceAccount", "name": NAME, "namespace": "default"}
    applied(
        cluster,
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": NAME, "namespace": "default"}},
        {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": {"name": NAME}, "rules": rules},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": NAME},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": NAME},
            "subjects": [account],
        },
    )
    try:
        yield credentials(cluster, eventually(lambda: token(cluster), 20), tmp_path / "modest.conf")
    finally:
        cluster.kubectl("delete", f"serviceaccount/{NAME}", f"clusterrole/{NAME}", f"clusterrolebinding/{NAME}")


def token(cluster: Cluster) -> str:
    """Return the account's token: up to 1.23 a controller creates a secret for it."""
    account = json.loads(cluster.kubectl("get", "serviceaccount", NAME, "-o", "json"))
    assert account.get("secrets"), "its token is not made yet"
    secret = json.loads(cluster.kubectl("get", "secret", account["secrets"][0]["name"], "-o", "json"))
    return base64.b64decode(secret["data"]["token"]).decode()


def credentials(cluster: Cluster, bearer: str, at: Path) -> Path:
    """Write a copy of the admin's kubeconfig with another token."""
    config = json.loads(cluster.kubectl("config", "view", "--raw", "--minify", "-o", "json"))
    config["users"][0]["user"] = {"token": bearer}
    at.write_text(json.dumps(config))
    return at


def events(cluster: Cluster, reason: str = "") -> list[dict[str, Any]]:
    """Return all Events of nodeleak."""
    found = json.loads(cluster.kubectl("get", "events", "--all-namespaces", "-o", "json"))["items"]
    ours = [one for one in found if one.get("source", {}).get("component") == "nodeleak"]
    return [one for one in ours if one["reason"] == reason or not reason]


def forget(cluster: Cluster) -> None:
    for one in events(cluster):
        cluster.kubectl("delete", "event", "-n", one["metadata"]["namespace"], one["metadata"]["name"])


def condition(cluster: Cluster) -> dict[str, Any]:
    node = json.loads(cluster.kubectl("get", "node", cluster.node, "-o", "json"))
    return next((one for one in node["status"]["conditions"] if one["type"] == "CNIAddressPressure"), {})


def remove_condition(cluster: Cluster) -> None:
    """As docs/reference.md says."""
    patch = {"status": {"conditions": [{"$patch": "delete", "type": "CNIAddressPressure"}]}}
    cluster.kubectl("patch", "node", cluster.node, "--subresource=status", "-p", json.dumps(patch))


@pytest.mark.usefixtures("silence")
def test_describe_node_shows_the_leak_and_its_release_with_create_and_patch_only(
    cluster: Cluster, pods: Pods, nodeleak: Nodeleak, modest: Path
) -> None:
    old = pods(2)
    with nodeleak.running(*QUICK, f"--kubeconfig={modest}", "--node-condition=on") as daemon:
        cluster.leak()
        pods.running()
        leaked = eventually(lambda: _one(cluster, "LeakedReservation"))
        shown = eventually(lambda: _described(cluster, "LeakedReservation"))
        metrics = daemon.metrics()
        eventually(lambda: _counts(daemon, "delivery.failed", 1), 10)
        (refused,) = daemon.events("delivery.failed")

    assert "Warning" in shown
    assert any(ip in shown for ip in old)
    assert leaked["metadata"]["namespace"] == "default"
    assert _found_by_describe_of_1_20(cluster, "LeakedReservation")
    assert metrics.by("reason", "events_sent_total")["LeakedReservation"] >= 1
    assert metrics.total("events_dropped_total") == 0
    assert (refused["what"], refused["cause"]) == ("condition", "refused")
    assert "nodes/status" in refused["why"] or "cannot patch" in refused["why"]

    # A restarted agent continues the existing Event; then it cleans, which also creates an Event.
    with nodeleak.running(*QUICK, f"--kubeconfig={modest}") as daemon:
        eventually(lambda: _is_later(cluster, "LeakedReservation", leaked["lastTimestamp"]), 20)
        assert daemon.metrics().total("events_dropped_total") == 0
    again = _one(cluster, "LeakedReservation")
    assert (again["count"], again["firstTimestamp"]) == (leaked["count"], leaked["firstTimestamp"])
    assert all(ip in again["message"] for ip in old)

    with nodeleak.running(*QUICK, "--cleanup=auto", "--settle=0s", f"--kubeconfig={modest}"):
        released = eventually(lambda: _one(cluster, "ReleasedReservation"))
        shown = eventually(lambda: _described(cluster, "ReleasedReservation"))
    assert "Normal" in shown
    assert any(ip in released["message"] for ip in old)
    _one(cluster, "LeakedReservation")


@pytest.mark.usefixtures("silence")
def test_a_lasting_event_is_patched_and_an_expired_one_is_created_again(cluster: Cluster, pods: Pods) -> None:
    pods(1)
    (item,) = pods.now()
    name, uid = item["metadata"]["name"], item["metadata"]["uid"]
    pod = Pod(f"default/{name}", uid, "Running", host_network=False, deleting=False, ips=())
    found = Finding("unreserved_pod_ip", "10.0.0.1", "not reserved", identity=(uid,))
    with exporter_to(cluster) as exporter:

        def export(minutes: int) -> None:
            report = confirmed(found, leak(9), pods=(pod,), later=timedelta(minutes=minutes))
            exporter.export(report, 0.1)

        def says(count: int) -> list[dict[str, Any]]:
            listed = events(cluster)
            assert [one["count"] for one in listed] == [count] * 3
            return listed

        for count in (1, 2, 3):
            export(5 * count)
            listed = eventually(lambda count=count: says(count), 10)  # type: ignore[misc]
        assert sorted((one["involvedObject"]["kind"], one["reason"]) for one in listed) == [
            ("Node", "LeakedReservation"), ("Node", "UnreservedPodIp"), ("Pod", "UnreservedPodIp")
        ]  # fmt: skip
        assert "UnreservedPodIp" in cluster.kubectl("describe", "pod", name)
        forget(cluster)
        export(20)
        eventually(lambda: says(1), 10)


@contextmanager
def exporter_to(cluster: Cluster) -> Iterator[EventExporter]:
    """Write to this API server with the kubelet's credentials."""
    metrics, lost = DeliveryMetrics(CollectorRegistry()), list[object]()
    delivery = DeliveryQueue(Writer(cluster.kubelet, 5), metrics, lambda *expected: lost.append(expected))
    thread = threading.Thread(target=delivery.run)
    thread.start()
    try:
        yield EventExporter(delivery)
    finally:
        delivery.stop()
        thread.join(10)
    assert lost == []


@pytest.mark.usefixtures("silence")
def test_the_condition_is_true_while_addresses_are_scarce_and_survives_a_restart(
    cluster: Cluster, nodeleak: Nodeleak
) -> None:
    remove_condition(cluster)
    try:
        with nodeleak.running(*QUICK, "--events=off", "--node-condition=on") as daemon:
            calm = eventually(lambda: _has(cluster, "False", "CNIAddressesAvailable"), 20)
            free = nodeleak.scan().network["free"]
            room = int(cluster.kubectl("get", "node", cluster.node, "-o", "jsonpath={.status.allocatable.pods}"))
            cluster.reserve(free - room + 1)
            scarce = eventually(lambda: _has(cluster, "True", "CNIAddressesScarce"), 20)
            assert daemon.metrics().get("node_condition_patches_total", result="sent") == 2
            eventually(lambda: _counts(daemon, "finding.opened", free - room + 2), 10)
            assert events(cluster) == []
        assert scarce["lastTransitionTime"] > calm["lastTransitionTime"]
        assert f"{room - 1} free addresses for {room} more pods" in scarce["message"]

        with nodeleak.running(*QUICK, "--node-condition=on"):
            eventually(lambda: _beats(cluster, scarce["lastHeartbeatTime"]), 20)
            assert condition(cluster)["lastTransitionTime"] == scarce["lastTransitionTime"]
            cluster.release_ownerless()
            eventually(lambda: _has(cluster, "False", "CNIAddressesAvailable"), 20)
    finally:
        remove_condition(cluster)
    assert condition(cluster) == {}
    assert run("kubectl", "--kubeconfig", cluster.admin, "wait", "node", cluster.node, "--for=condition=Ready").stdout


def _one(cluster: Cluster, reason: str) -> dict[str, Any]:
    (one,) = events(cluster, reason) or [{}]
    assert one, f"no Event {reason}"
    return one


def _described(cluster: Cluster, reason: str) -> str:
    lines = [line for line in cluster.kubectl("describe", "node", cluster.node).splitlines() if reason in line]
    assert len(lines) == 1
    return lines[0]


def _found_by_describe_of_1_20(cluster: Cluster, reason: str) -> bool:
    """Ask as that version does, which takes the node's name for its uid."""
    about = {"kind": "Node", "name": cluster.node, "namespace": "", "uid": cluster.node}
    selector = ",".join(f"involvedObject.{field}={value}" for field, value in about.items())
    return reason in cluster.kubectl("get", "events", "--all-namespaces", f"--field-selector={selector}")


def _is_later(cluster: Cluster, reason: str, moment: str) -> None:
    assert _one(cluster, reason)["lastTimestamp"] > moment


def _has(cluster: Cluster, status: str, reason: str) -> dict[str, Any]:
    now = condition(cluster)
    assert (now.get("status"), now.get("reason")) == (status, reason)
    return now


def _beats(cluster: Cluster, moment: str) -> None:
    assert condition(cluster)["lastHeartbeatTime"] > moment


def _counts(daemon: Daemon, event: str, times: int) -> None:
    assert len(daemon.events(event)) == times

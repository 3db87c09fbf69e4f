"""The cluster forgets the node: its Node object deleted under a running kubelet, tainted, and without a provider ID."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from .node import Cluster, Pods, eventually, reservations, throughout
from .nodeleak import Daemon, Nodeleak

pytestmark = pytest.mark.e2e

QUICK = ("--interval=500ms", "--confirm-after=1s", "--stale-after=10s")
DETECTOR = "unregistered_node"
OTHER = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "nodeleak-e2e-other"},
    "spec": {"providerID": "lab:///i-other"},
}
STATUS = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "cluster-autoscaler-status", "namespace": "kube-system"},
    "data": {
        "status": "autoscalerStatus: Running\nclusterWide:\n  health:\n    nodeCounts:\n      longUnregistered: 1\n"
        "      unregistered: 2\ntime: 2026-09-15 04:05:52.354884346 +0000 UTC\n"
    },
}


def test_a_node_without_a_provider_id_is_a_finding_if_others_have_one(
    cluster: Cluster, nodeleak: Nodeleak
) -> None:
    subject = f"provider ID of {cluster.node}"

    assert nodeleak.scan("--exit-code").subjects(DETECTOR) == {}, "bare metal"
    required = nodeleak.scan("--provider-id=required", "--exit-code", codes=[1]).subjects(DETECTOR)[
        subject
    ]
    assert (
        "no permission to get configmap kube-system/cluster-autoscaler-status"
        in required["message"]
    )

    def finding(*options: str) -> dict[str, Any]:
        found = nodeleak.scan("--exit-code", *options, codes=[1]).subjects(DETECTOR)
        assert "1 of 1 other nodes have one" in found[subject]["message"]
        return found[subject]

    with _made(cluster, OTHER), _made(cluster, STATUS):
        # The kubelet may list nodes but not read configmaps; the administrator may do both.
        found = eventually(finding)
        message = eventually(lambda: finding(f"--kubeconfig={cluster.admin}"))
        assert nodeleak.scan("--provider-id=ignored", "--exit-code").subjects(DETECTOR) == {}
    for one in (required, found, message):
        assert one["severity"] in {"warning", "critical"}, "by the age of the Node"
    assert (
        "2 nodes unregistered, 1 for so long that it deletes them (whole cluster)"
        in message["message"]
    )
    eventually(lambda: nodeleak.scan("--exit-code").subjects(DETECTOR), equal={})


def test_a_deleted_node_and_another_provider_id_are_reported_and_prevent_releases(
    cluster: Cluster, pods: Pods, nodeleak: Nodeleak
) -> None:
    pods(1)
    (leak,) = cluster.reserve(1)
    with _registered_afterwards(cluster):
        _give_id(cluster, "lab:///i-1")
        # It has seen the Node before, as a running agent has, and releases nothing.
        with nodeleak.running(*QUICK) as before:
            eventually(before.unavailable, equal=set())
            kept = nodeleak.state_dir / "node.json"
            eventually(lambda: json.loads(kept.read_text())["provider_id"], equal="lab:///i-1")

        cluster.kubectl("delete", "node", cluster.node)
        # All other refusals are overridden, so that only the missing Node prevents the release.
        with nodeleak.running(*QUICK, "--cleanup=auto", "--grace=0s", "--settle=0s") as daemon:
            (found,) = eventually(lambda: _gone(daemon, cluster))
            assert "the Node was last seen at" in found["message"]
            assert "systemctl restart kubelet" in found["message"]
            throughout(lambda: _no_address_is_touched(daemon, cluster, leak), 5)

            with cluster.stopped("kubelet"):
                pass
            eventually(
                lambda: (daemon.unavailable(), daemon.report().subjects(DETECTOR)),
                equal=(set(), {}),
            )
            assert DETECTOR in [line["detector"] for line in daemon.events("finding.closed")]
            eventually(lambda: leak in reservations(), equal=False)

            _give_id(cluster, "lab:///i-2")
            (changed,) = eventually(
                lambda: _found(daemon, f"changed provider ID of {cluster.node}")
            )
            assert changed["severity"] == "warning"
            assert "has the provider ID lab:///i-2, and had lab:///i-1 before" in changed["message"]


def test_without_evidence_for_the_node_name_it_is_reported_as_wrong(
    cluster: Cluster, nodeleak: Nodeleak
) -> None:
    scan = nodeleak.scan("--node=nodeleak-e2e-nobody", codes=[3])
    assert scan.subjects(DETECTOR) == {}
    (reason,) = [
        one["why"] for one in scan.document["insufficient_data"] if one["detector"] == DETECTOR
    ]
    assert "no Node named nodeleak-e2e-nobody" in reason
    assert f"the kubelet here uses the name {cluster.node}" in reason


def test_the_taints_of_the_autoscaler_are_informational(
    cluster: Cluster, nodeleak: Nodeleak
) -> None:
    keys = ("ToBeDeletedByClusterAutoscaler", "DeletionCandidateOfClusterAutoscaler")
    cluster.kubectl(
        "taint", "node", cluster.node, f"{keys[1]}=1774555200:PreferNoSchedule", "--overwrite"
    )
    cluster.kubectl(
        "taint", "node", cluster.node, f"{keys[0]}=1774555260:NoSchedule", "--overwrite"
    )
    try:

        def both() -> dict[str, dict[str, Any]]:
            found = nodeleak.scan("--exit-code").subjects(DETECTOR)
            assert len(found) == len(keys), found
            return found

        found = eventually(both)
    finally:
        cluster.kubectl("taint", "node", cluster.node, *(f"{key}-" for key in keys))
    assert {subject: (one["severity"], one["since"]) for subject, one in found.items()} == {
        f"{keys[0]} of {cluster.node}": ("info", "2026-03-26T20:01:00Z"),
        f"{keys[1]} of {cluster.node}": ("info", "2026-03-26T20:00:00Z"),
    }
    eventually(lambda: nodeleak.scan("--exit-code").subjects(DETECTOR), equal={})


@contextmanager
def _registered_afterwards(cluster: Cluster) -> Iterator[None]:
    """Always leave a registered Node without a provider ID, as before."""
    cluster.pid("kubelet")
    try:
        yield
    finally:
        # A provider ID cannot be removed: only a new Node is without one.
        if _provider_id(cluster) != "":
            with cluster.stopped("kubelet"):
                cluster.kubectl("delete", "node", cluster.node, "--ignore-not-found")


def _provider_id(cluster: Cluster) -> str | None:
    """Return the Node's provider ID; None without a Node."""
    found = cluster.kubectl("get", "node", cluster.node, "--ignore-not-found", "-o", "json")
    return str(json.loads(found)["spec"].get("providerID", "")) if found else None


def _give_id(cluster: Cluster, provider_id: str) -> None:
    cluster.kubectl(
        "patch", "node", cluster.node, "-p", json.dumps({"spec": {"providerID": provider_id}})
    )


@contextmanager
def _made(cluster: Cluster, made: dict[str, Any]) -> Iterator[None]:
    cluster.kubectl("create", "-f", "-", text=json.dumps(made))
    try:
        yield
    finally:
        where = (
            [f"--namespace={made['metadata']['namespace']}"]
            if "namespace" in made["metadata"]
            else []
        )
        cluster.kubectl("delete", made["kind"].lower(), made["metadata"]["name"], *where)


def _found(daemon: Daemon, subject: str) -> list[dict[str, Any]]:
    found = list(daemon.report().subjects(DETECTOR).values())
    assert [(one["subject"], one["confirmed"]) for one in found] == [(subject, True)]
    assert subject in daemon.opened(DETECTOR)
    return found


def _gone(daemon: Daemon, cluster: Cluster) -> list[dict[str, Any]]:
    found = _found(daemon, f"Node {cluster.node}")
    metrics = daemon.metrics()
    assert metrics.get("findings", detector=DETECTOR, severity="critical", phase="confirmed") == 1
    assert metrics.up("pods") == 0
    return found


def _no_address_is_touched(daemon: Daemon, cluster: Cluster, leak: str) -> None:
    _gone(daemon, cluster)
    assert leak in reservations()
    assert daemon.metrics().total("releases_total") == 0
    assert "leaked" not in daemon.report().states.values()

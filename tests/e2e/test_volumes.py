"""Real controllers lose two disks from the node's status: what the agent says of them, and of one that is only slow.

Only the times of two pods are not real: while the kubelet stands still, the API server is told that they were scheduled
eleven minutes ago, because the test does not wait that long.
"""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.model.volumes import Mount
from agent.sources.host import mounts

from .agent import Daemon, Nodeleak, Report
from .disks import CSI_DISK, Disks, flex_disk
from .node import Cluster, applied, eventually, run

pytestmark = pytest.mark.e2e

OFTEN = ("--interval=500ms", "--confirm-after=1s")
TRIES = 3
SLOW = 60
"""Seconds until one disk is attached."""


@pytest.fixture
def disks(cluster: Cluster) -> Iterator[Disks]:
    disks = Disks(cluster)
    with disks.claim():
        yield disks
        cluster.kubectl("delete", "pods", "-l", "app=nodeleak-e2e", "--timeout=60s")
        disks.gone(flex_disk("e2e-lost"), flex_disk("e2e-slow"), CSI_DISK)


def _wait_till_the_kubelet_has_settled(cluster: Cluster) -> None:
    """Wait: volumes are not checked in the first two minutes after a kubelet start."""

    def check() -> None:
        assert int(run("ps", "-o", "etimes=", "-p", str(cluster.pid("kubelet"))).stdout) > 125

    eventually(check, 130)


def _findings(report: Report) -> dict[str, dict[str, Any]]:
    return {one["subject"]: one for one in report.findings if one["detector"] == "detached_volume"}


def _lose_both(disks: Disks) -> None:
    """Delete both pods while detaching fails, and recreate them before the controller's next attempt."""
    for _ in range(TRIES):
        before = disks.refused("e2e-lost")
        with disks.detaching_fails():
            disks.delete("e2e-lost", "e2e-claim")

            def check(before: int = before) -> None:
                assert disks.refused("e2e-lost") >= before + 3
                assert CSI_DISK not in disks.lists()[1]

            eventually(check, 30)
            disks.make("e2e-lost")
            disks.make_with_claim("e2e-claim")

            def in_use() -> None:
                assert {flex_disk("e2e-lost"), CSI_DISK} <= disks.lists()[0]

            eventually(in_use, 30)
        if disks.lost(flex_disk("e2e-lost"), CSI_DISK):
            return
    pytest.fail("the controller-manager put the disks back each time")


def _account_without_rights(cluster: Cluster, at: Path) -> Path:
    """Write a kubeconfig of an account that may only read pods and nodes."""
    name = "e2e-volumes"
    subject = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": name, "namespace": "default"}}
    rule = {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]}
    applied(
        cluster,
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": "default"}},
        {**rbac, "kind": "ClusterRole", "rules": [rule]},
        {
            **rbac,
            "kind": "ClusterRoleBinding",
            "subjects": [subject],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        },
    )

    def token() -> str:
        secrets = json.loads(cluster.kubectl("get", "secrets", "-o", "json"))["items"]
        mine = [
            one for one in secrets if one["metadata"]["annotations"].get("kubernetes.io/service-account.name") == name
        ]
        assert mine
        return base64.b64decode(mine[0]["data"]["token"]).decode()

    secret = eventually(token)
    at.write_text(cluster.admin.read_text())
    at.chmod(0o600)
    for words in (("set-credentials", name, f"--token={secret}"), ("set-context", "--current", f"--user={name}")):
        run("kubectl", "config", "--kubeconfig", at, *words)
    return at


@pytest.fixture
def stranger(cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    yield _account_without_rights(cluster, tmp_path / "stranger.conf")
    for kind in ("clusterrolebinding", "clusterrole", "serviceaccount"):
        cluster.kubectl("delete", kind, "e2e-volumes")


def _confirmed(daemon: Daemon, volume: str) -> dict[str, Any]:
    def check() -> dict[str, Any]:
        found = _findings(daemon.report()).get(f"volume {volume}")
        assert found is not None
        assert found["confirmed"]
        return found

    return eventually(check, 20)


def test_a_disk_lost_by_a_failed_detach_is_reported_until_its_pod_is_recreated(
    cluster: Cluster, disks: Disks, nodeleak: Nodeleak, stranger: Path
) -> None:
    disks.make("e2e-lost")
    disks.make_with_claim("e2e-claim")
    disks.make("e2e-slow", attach_seconds=SLOW)
    with nodeleak.running(*OFTEN) as daemon:
        disks.attach_by_csi()
        disks.runs("e2e-lost")
        disks.attached(CSI_DISK)
        _mounts_are_read(disks)
        # Before the loss: the longer a disk is missing, the less often the kubelet checks, down to every two minutes.
        _wait_till_the_kubelet_has_settled(cluster)
        _lose_both(disks)

        with cluster.frozen("kubelet"):
            disks.looks_old("e2e-lost", "e2e-claim")
            probable, confirmed = _confirmed(daemon, flex_disk("e2e-lost")), _confirmed(daemon, CSI_DISK)
            scanned = nodeleak.scan("--kubeconfig", cluster.admin)
            without = nodeleak.scan("--kubeconfig", stranger)
        assert (probable["strength"], probable["severity"], probable["pod"]) == (
            "probable",
            "warning",
            "default/e2e-lost",
        )
        assert (confirmed["strength"], confirmed["severity"], confirmed["pod"]) == (
            "confirmed",
            "critical",
            "default/e2e-claim",
        )
        # The kubelet's account may read what its pods need, but no events.
        assert confirmed["message"].endswith("; nodeleak may not list events, so this is less certain")
        found = _findings(scanned)
        assert {one["strength"] for one in found.values()} == {"probable", "confirmed"}
        assert not [one for one in found.values() if "nodeleak may not" in one["message"]]
        lacking = _findings(without)[f"volume {CSI_DISK}"]
        assert (lacking["strength"], without.unavailable) == ("probable", set())
        assert "waiting pods with a claim: default/e2e-claim since" in lacking["message"]
        assert lacking["message"].endswith(
            "; nodeleak may not get persistentvolumeclaims, get volumeattachments, list events, so this is less certain"
        )

        # The remedy.
        disks.delete("e2e-lost", "e2e-claim")
        disks.gone(flex_disk("e2e-lost"), CSI_DISK)
        disks.make("e2e-lost")
        disks.runs("e2e-lost")

        def closed() -> None:
            assert _findings(daemon.report()) == {}

        eventually(closed)
        # The disk that takes a minute to attach was never reported.
        disks.runs("e2e-slow", SLOW + 30)
        assert {*daemon.opened("detached_volume")} == {f"volume {flex_disk('e2e-lost')}", f"volume {CSI_DISK}"}


def _mounts_are_read(disks: Disks) -> None:
    pod = disks.get("/api/v1/namespaces/default/pods/e2e-lost")["metadata"]["uid"]
    found = mounts.read_mounts(Path("/proc"), Path("/var/lib/kubelet"))
    assert {Mount(flex_disk("e2e-lost")), Mount(flex_disk("e2e-lost"), pod)} <= {*found}

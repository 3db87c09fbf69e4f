"""Real controllers lose two disks from the node's status: what the agent says of them, and of one that is only slow.

Only the times of two pods are not real: while the kubelet stands still, the API server is told that they were scheduled
eleven minutes ago, because the test does not wait that long.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.sources.host import mounts

from .disks import CSI_DISK, Disks, flex_disk
from .node import Cluster, eventually, run
from .nodeleak import Daemon, Nodeleak

pytestmark = pytest.mark.e2e

DETECTOR = "detached_volume"
OFTEN = ("--interval=500ms", "--confirm-after=1s")
TRIES = 3
SLOW = 60  # Seconds until one disk is attached


@pytest.fixture
def disks(cluster: Cluster) -> Iterator[Disks]:
    disks = Disks(cluster)
    with disks.claim():
        yield disks
        cluster.kubectl("delete", "pods", "-l", "app=nodeleak-e2e", "--timeout=60s")
        disks.gone(flex_disk("e2e-lost"), flex_disk("e2e-slow"), CSI_DISK)


def _lose_both(disks: Disks) -> None:
    """Delete both pods while detaching fails, and recreate them before the controller's next attempt."""
    for _ in range(TRIES):
        before = disks.refused("e2e-lost")
        with disks.detaching_fails():
            disks.delete("e2e-lost", "e2e-claim")

            def check(before: int = before) -> None:
                assert disks.refused("e2e-lost") >= max(
                    before + 1, 3
                )  # its next attempt is seconds away
                assert CSI_DISK not in disks.lists()[1]

            eventually(
                check
            )  # as long as the controller waits at most, after the failures of another try
            disks.make("e2e-lost")
            disks.make_with_claim("e2e-claim")
            eventually(lambda: {flex_disk("e2e-lost"), CSI_DISK} - disks.lists()[0], equal=set())
        if disks.lost(flex_disk("e2e-lost"), CSI_DISK):
            return
    pytest.fail("the controller-manager put the disks back each time")


@pytest.fixture
def stranger(cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    """Credentials that may only read pods and nodes."""
    rule = {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["list", "watch"]}
    with cluster.account("e2e-volumes", [rule], tmp_path / "stranger.conf") as config:
        yield config


def _confirmed(daemon: Daemon, volume: str) -> dict[str, Any]:
    def check() -> dict[str, Any]:
        found = daemon.report().subjects(DETECTOR).get(f"volume {volume}")
        assert found is not None
        assert found["confirmed"]
        return found

    return eventually(check)


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
        pod, volume = (
            disks.get("/api/v1/namespaces/default/pods/e2e-lost")["metadata"]["uid"],
            flex_disk("e2e-lost"),
        )
        # The agent itself reads them only while a volume is missing.
        found = mounts.read_mounts(Path("/proc"), Path("/var/lib/kubelet"))
        assert {(volume, ""), (volume, pod)} <= {(mount.volume, mount.pod_uid) for mount in found}
        # Before the loss: the longer a disk is missing, the less often the kubelet checks, down to every two minutes.
        # Volumes are not checked in the first two minutes after a kubelet start.
        age = ("ps", "-o", "etimes=", "-p", str(cluster.pid("kubelet")))
        eventually(lambda: int(run(*age).stdout) > 125, equal=True)
        _lose_both(disks)

        with cluster.frozen("kubelet"):
            disks.looks_old("e2e-lost", "e2e-claim")
            probable, confirmed = (
                _confirmed(daemon, flex_disk("e2e-lost")),
                _confirmed(daemon, CSI_DISK),
            )
            scanned = nodeleak.scan("--kubeconfig", cluster.admin)
            without = nodeleak.scan("--kubeconfig", stranger)
        for finding, expected in (
            (probable, ("probable", "warning", "default/e2e-lost")),
            (confirmed, ("confirmed", "critical", "default/e2e-claim")),
        ):
            assert (finding["strength"], finding["severity"], finding["pod"]) == expected
        # The kubelet's account may read what its pods need, but no events.
        assert confirmed["message"].endswith(
            "; nodeleak may not list events, so this is less certain"
        )
        certain = scanned.subjects(DETECTOR).values()
        assert {finding["strength"] for finding in certain} == {"probable", "confirmed"}
        assert not [finding for finding in certain if "nodeleak may not" in finding["message"]]
        lacking = without.subjects(DETECTOR)[f"volume {CSI_DISK}"]
        assert (lacking["strength"], without.unavailable) == ("probable", set())
        assert "waiting pods with a claim: default/e2e-claim since" in lacking["message"]
        assert lacking["message"].endswith(
            "; nodeleak may not get csinodes, get persistentvolumeclaims, get volumeattachments, list events, "
            "so this is less certain"
        )

        # The remedy.
        disks.delete("e2e-lost", "e2e-claim")
        disks.gone(flex_disk("e2e-lost"), CSI_DISK)
        disks.make("e2e-lost")
        disks.runs("e2e-lost")
        eventually(lambda: daemon.report().subjects(DETECTOR), equal={})
        # The disk that takes a minute to attach was never reported.
        disks.runs("e2e-slow", SLOW + 30)
        assert {*daemon.opened(DETECTOR)} == {
            f"volume {flex_disk('e2e-lost')}",
            f"volume {CSI_DISK}",
        }

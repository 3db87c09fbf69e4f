"""A volume that cannot be detached: a controller of today loses no entry for ever, and attaches the volume again."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.e2e.disks import CSI_DISK, Disks
from tests.e2e.node import eventually

from .node import ModernNode

pytestmark = [pytest.mark.e2e, pytest.mark.any_runtime]
_POD = "e2e-claim"
_DETECTOR = "detached_volume"
_ADMIN = "/run/e2e-admin.conf"


def test_a_volume_whose_detach_fails_is_not_reported_as_lost(node: ModernNode) -> None:
    server = node.kubectl("config", "view", "-o", "jsonpath={.clusters[0].cluster.server}")
    kubelet = node.run("cat", str(node.cluster.kubelet))
    (reached,) = [
        line.split()[-1] for line in kubelet.splitlines() if line.strip().startswith("server:")
    ]
    node.write(_ADMIN, node.cluster.admin.read_text().replace(server, reached))
    disks = Disks(node.cluster)
    with disks.claim():
        try:
            disks.make_with_claim(_POD)
            disks.attach_by_csi()
            disks.attached(CSI_DISK)
            assert _subjects(node) == {}

            _refuse_to_detach(node)
            disks.delete(_POD)
            eventually(
                lambda: [CSI_DISK in volumes for volumes in disks.lists()], equal=[False, False]
            )
            disks.make_with_claim(_POD)
            eventually(
                lambda: [CSI_DISK in volumes for volumes in disks.lists()], equal=[True, False]
            )
            # Volumes are not checked in the first two minutes after a kubelet start.
            age = ("ps", "-C", "kubelet", "-o", "etimes=")
            eventually(lambda: int(node.run(*age).split()[0]) > 125, equal=True)
            eventually(
                lambda: _says_why(node)
            )  # the controller tries again after two minutes at the latest
            with _frozen_kubelet(node):
                disks.looks_old(_POD)
                # The VolumeAttachment says why, which the kubelet's account may read as well.
                for kubeconfig in (_ADMIN, str(node.cluster.kubelet)):
                    (found,) = _subjects(node, kubeconfig).values()
                    assert (found["strength"], found["severity"]) == ("failing", "info"), found
                    assert "e2e: it cannot be detached" in found["message"]
                assert found["message"].endswith(
                    "nodeleak may not list events, so this is less certain"
                )

            _detach(node)
            disks.attach_by_csi()
            disks.attached(CSI_DISK)
        finally:
            node.kubectl("delete", "pod", _POD, "--ignore-not-found", "--timeout=60s")
            if _attachments(node):
                _detach(node)
            eventually(lambda: _attachments(node), equal=[])


def _subjects(node: ModernNode, kubeconfig: str = _ADMIN) -> dict[str, Any]:
    report = node.scan("--kubeconfig", kubeconfig, codes=(0, 1, 2))
    assert _DETECTOR not in report.insufficient_data
    return report.subjects(_DETECTOR)


def _refuse_to_detach(node: ModernNode) -> None:
    """Fail detaching as an external attacher does: keep the VolumeAttachment, and say why."""
    _patch(node, {"metadata": {"finalizers": ["external-attacher/disk-nodeleak-example"]}})
    _patch(
        node,
        {"status": {"detachError": {"message": "e2e: it cannot be detached"}}},
        "--subresource=status",
    )


def _detach(node: ModernNode) -> None:
    _patch(node, {"metadata": {"finalizers": None}})


def _patch(node: ModernNode, change: dict[str, Any], *options: str) -> None:
    (name,) = _attachments(node)
    node.kubectl(
        "patch", "volumeattachment", name, "--type=merge", "-p", json.dumps(change), *options
    )


def _attachments(node: ModernNode) -> list[str]:
    found = node.cluster.get("volumeattachments")["items"]
    return [
        item["metadata"]["name"] for item in found if item["spec"]["nodeName"] == node.cluster.node
    ]


def _says_why(node: ModernNode) -> None:
    of_pod = f"involvedObject.name={_POD},reason=FailedAttachVolume"
    found = node.cluster.get("events", f"--field-selector={of_pod}")["items"]
    pod = node.pod(_POD)["metadata"]["uid"]
    assert pod in {event["involvedObject"]["uid"] for event in found}


@contextmanager
def _frozen_kubelet(node: ModernNode) -> Iterator[None]:
    node.run("pkill", "-STOP", "-x", "kubelet")
    try:
        yield
    finally:
        node.run("pkill", "-CONT", "-x", "kubelet")

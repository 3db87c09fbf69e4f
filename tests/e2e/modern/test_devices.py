"""A kubelet of today still rejects pods whose device plugin registers late, but no pod that already runs."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.device_plugin import RESOURCE, DevicePlugin
from tests.e2e.node import eventually, forget_resource, pod_with

from .node import ModernNode

pytestmark = pytest.mark.e2e


def test_a_kubelet_restart_rejects_new_pods_only(node: ModernNode, tmp_path: Path) -> None:
    try:
        with DevicePlugin(tmp_path / "plugin.log", node.inside) as plugin:
            eventually(
                lambda: node.cluster.described_node()["status"]["allocatable"].get(RESOURCE),
                equal="3",
            )
            _ask(node, "e2e-device-old")
            node.ready(["e2e-device-old"])
            before = node.pod("e2e-device-old")
            assert node.scan().findings == []

            node.restart_kubelet()
            _ask(node, "e2e-device-new")
            eventually(lambda: _rejected(node, "e2e-device-new"))
            kept = node.pod("e2e-device-old")
            assert kept["status"]["phase"] == "Running"
            assert _containers(kept) == _containers(before), "not started again"

            plugin.kill()
            plugin.start()
            eventually(
                lambda: node.cluster.described_node()["status"]["allocatable"].get(RESOURCE),
                equal="3",
            )
            eventually(lambda: _is_told(node, "default/e2e-device-new"))
    finally:
        with node.stopped("kubelet"):
            node.run("rm", "-f", "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint")
        forget_resource(node.cluster, RESOURCE)


def _is_told(node: ModernNode, pod: str) -> None:
    (found,) = node.scan(codes=(0, 1, 2)).findings
    assert (found["detector"], found.get("pod")) == ("rejected_pod", pod)
    assert RESOURCE in found["message"]


def _ask(node: ModernNode, name: str) -> None:
    node.cluster.apply(pod_with(node.cluster, name, {RESOURCE: 1}))


def _rejected(node: ModernNode, name: str) -> None:
    status = node.pod(name)["status"]
    assert (status["phase"], status.get("reason")) == ("Failed", "UnexpectedAdmissionError")
    assert (
        f"no healthy devices present; cannot allocate unhealthy devices {RESOURCE}"
        in status["message"]
    )


def _containers(pod: dict[str, Any]) -> list[str]:
    return [container["containerID"] for container in pod["status"]["containerStatuses"]]

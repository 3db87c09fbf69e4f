"""A Node object that is deleted under a running kubelet of today stays away until the kubelet restarts."""

import pytest

from tests.e2e.node import eventually

from .node import ModernNode

pytestmark = [pytest.mark.e2e, pytest.mark.any_runtime]
DETECTOR = "unregistered_node"


def test_a_deleted_node_is_reported_until_the_kubelet_restarts(node: ModernNode) -> None:
    assert node.scan().subjects(DETECTOR) == {}
    with node.daemon("--interval=500ms", "--confirm-after=1s", "--stale-after=10s") as daemon:
        eventually(lambda: (daemon.metrics().up("node"), daemon.metrics().up("pods")), equal=(1, 1))
        node.kubectl("delete", "node", node.cluster.node)
        try:
            eventually(lambda: daemon.opened(DETECTOR).keys(), equal={f"Node {node.cluster.node}"})
            confirmed = {"detector": DETECTOR, "severity": "critical", "phase": "confirmed"}
            eventually(lambda: daemon.metrics().get("findings", **confirmed), equal=1)
        finally:
            node.restart_kubelet()
        eventually(
            lambda: DETECTOR in [line["detector"] for line in daemon.events("finding.closed")],
            equal=True,
        )

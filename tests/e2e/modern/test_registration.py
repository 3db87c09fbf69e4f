"""A Node object that is deleted under a running kubelet of today stays away until the kubelet restarts."""

import pytest

from tests.e2e.agent import Daemon
from tests.e2e.node import eventually

from .node import ModernNode

pytestmark = pytest.mark.e2e
DETECTOR = "unregistered_node"


def test_a_deleted_node_is_reported_until_the_kubelet_restarts(node: ModernNode) -> None:
    assert node.scan().subjects(DETECTOR) == {}
    with node.daemon("--interval=500ms", "--confirm-after=1s", "--stale-after=10s") as daemon:
        eventually(lambda: _all_read(daemon), 20)
        node.kubectl("delete", "node", node.cluster.node)
        try:
            eventually(lambda: _gone(daemon, node.cluster.node), 20)
        finally:
            with node.stopped("kubelet"):
                pass
        eventually(lambda: _closed(daemon), 30)


def _all_read(daemon: Daemon) -> None:
    assert (daemon.metrics().up("node"), daemon.metrics().up("pods")) == (1, 1)


def _gone(daemon: Daemon, name: str) -> None:
    assert f"Node {name}" in daemon.opened(DETECTOR)
    assert daemon.metrics().get("findings", detector=DETECTOR, severity="critical", phase="confirmed") == 1


def _closed(daemon: Daemon) -> None:
    assert DETECTOR in [event["detector"] for event in daemon.events("finding.closed")]

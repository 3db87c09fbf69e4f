"""No findings about replayed watches with a real API server, whose deletions have their own versions."""

import pytest

from .node import Cluster, eventually, pod_with
from .nodeleak import Daemon, Nodeleak

pytestmark = pytest.mark.e2e

VERSION = "v1.20.2"
RESOURCES = ("pods", "node")


def test_a_real_api_server_gives_no_evidence_while_pods_come_and_go(
    cluster: Cluster, nodeleak: Nodeleak
) -> None:
    # Watches of one or two seconds, so that they restart during the deletions.
    with nodeleak.running("--interval=200ms", "--confirm-after=0s", "--stale-after=3s") as daemon:
        eventually(lambda: daemon.report().document["server_version"], equal=VERSION)
        eventually(
            lambda: (daemon.metrics().up("pods"), daemon.metrics().up("watches")), equal=(1, 1)
        )
        for batch in range(4):
            pods = [pod_with(cluster, f"e2e-replay-{batch}-{number}") for number in range(10)]
            for pod in pods:
                pod["spec"]["nodeSelector"] = {"nodeleak": "another-node"}  # the kubelet rejects it
            cluster.apply(*pods)
            # Oldest last, as in the incident.
            names = [pod["metadata"]["name"] for pod in reversed(pods)]
            cluster.kubectl("delete", "pods", *names, "--grace-period=0", "--force")
        eventually(lambda: _ended(daemon), equal=[True, True])
        report, metrics = daemon.report(), daemon.metrics()
        assert report.subjects("replayed_watch") == {}
        assert "replayed_watch" not in report.insufficient_data, "the detector must run"
        assert (
            metrics.get(
                "findings", detector="replayed_watch", severity="warning", phase="confirmed"
            )
            == 0
        )
        assert [
            metrics.get("watch_regressions_total", resource=resource) for resource in RESOURCES
        ] == [0, 0]
        assert daemon.events("watch.reset") == daemon.events("watch.lagging") == []


def _ended(daemon: Daemon) -> list[bool]:
    """Return of which resources three watches have ended."""
    metrics = daemon.metrics()
    times = [
        metrics.get("watch_restarts_total", resource=resource, cause="ended")
        for resource in RESOURCES
    ]
    return [(count or 0) >= 3 for count in times]

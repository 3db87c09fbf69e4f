"""No findings about replayed watches with a real API server, whose deletions have their own versions."""

import json
from typing import Any

import pytest

from .agent import Daemon, Nodeleak
from .node import Cluster, Pods, applied, eventually, pod_with

pytestmark = pytest.mark.e2e

VERSION = "v1.20.2"


def test_a_real_api_server_gives_no_evidence_while_pods_come_and_go(cluster: Cluster, nodeleak: Nodeleak) -> None:
    # Watches of one or two seconds, so that they restart during the deletions.
    with nodeleak.running("--interval=200ms", "--confirm-after=0s", "--stale-after=3s") as daemon:
        eventually(lambda: _hears(daemon))
        for batch in range(4):
            names = [f"e2e-replay-{batch}-{number}" for number in range(10)]
            applied(cluster, *(_unwanted(cluster, name) for name in names))
            # Oldest last, as in the incident.
            cluster.kubectl("delete", "pods", *reversed(names), "--grace-period=0", "--force")
        eventually(lambda: _is_done(daemon))
        report = daemon.report()
        assert (report.subjects("replayed_watch"), report.document["server_version"]) == ({}, VERSION)
        assert "replayed_watch" not in report.insufficient_data, "the detector must run"
        metrics = daemon.metrics()
        assert metrics.get("findings", detector="replayed_watch", severity="warning", phase="confirmed") == 0
        for resource in ("pods", "node"):
            assert metrics.get("watch_regressions_total", resource=resource) == 0
        assert daemon.events("watch.reset") == daemon.events("watch.lagging") == []


def test_a_recording_has_the_server_version_and_one_snapshot_needs_no_watch(pods: Pods, nodeleak: Nodeleak) -> None:
    assert pods.now() == []
    (snapshot, *_) = json.loads(nodeleak.record())["snapshots"]
    assert snapshot["server_version"] == VERSION
    assert snapshot["watches"] == {"not_requested": {"source": "watches", "why": "a single command watches nothing"}}


def _unwanted(cluster: Cluster, name: str) -> dict[str, Any]:
    """Return a pod that the kubelet rejects, because its node selector names another node."""
    pod = pod_with(cluster, name, {})
    pod["spec"]["nodeSelector"] = {"nodeleak": "another-node"}
    return pod


def _hears(daemon: Daemon) -> None:
    assert daemon.report().document["server_version"] == VERSION
    assert (daemon.metrics().up("pods"), daemon.metrics().up("watches")) == (1, 1)


def _is_done(daemon: Daemon) -> None:
    metrics = daemon.metrics()
    for resource in ("pods", "node"):
        assert (metrics.get("watch_restarts_total", resource=resource, cause="ended") or 0) >= 3

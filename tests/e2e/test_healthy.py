"""A healthy node."""

import pytest

from .agent import DROPPED, READ_ONLY, Daemon, Nodeleak
from .node import Cluster, Pods, eventually

pytestmark = pytest.mark.e2e

WITHOUT_DATA = {"replayed_watch"}
"""Detectors without data on this node."""


def test_on_a_healthy_node_every_reservation_is_in_use_without_findings(pods: Pods, nodeleak: Nodeleak) -> None:
    owners = pods(3)

    report = nodeleak.scan("--exit-code", "--grace=0s")

    assert report.code == 0
    assert report.states == dict.fromkeys(owners, "in_use")
    assert report.pods == owners
    assert (report.findings, report.unavailable, report.insufficient_data) == ([], set(), WITHOUT_DATA)
    assert report.document["server_version"] == "v1.20.2"
    assert report.network["reserved"] == len(owners)
    assert report.network["free"] == report.network["usable"] - len(owners)


def test_on_a_healthy_node_the_daemon_logs_start_and_stop_and_stops_at_once(pods: Pods, nodeleak: Nodeleak) -> None:
    pods(2)
    with nodeleak.running("--interval=200ms", "--confirm-after=0s", "--grace=0s") as daemon:
        eventually(lambda: _rounds(daemon, 5))
        daemon.process.terminate()
        assert daemon.process.wait(2) == 0
        assert [line["event"] for line in daemon.lines()] == ["agent.started", "agent.stopped"]


@pytest.mark.parametrize("wrapped", [DROPPED, READ_ONLY], ids=["without-capabilities", "read-only"])
def test_every_source_can_be_read_with_minimal_permissions(
    wrapped: tuple[str, ...], cluster: Cluster, pods: Pods, nodeleak: Nodeleak
) -> None:
    owners = pods(2)
    (ownerless,) = cluster.reserve(1)  # so that the namespaces of processes are looked into too

    report = nodeleak.scan("--grace=0s", wrapped=wrapped)

    assert report.states == {**dict.fromkeys(owners, "in_use"), ownerless: "leaked"}
    assert (report.unavailable, report.insufficient_data) == (set(), WITHOUT_DATA)
    assert report.verdicts == nodeleak.scan("--grace=0s").verdicts


def test_without_the_api_server_a_scan_has_the_same_result(cluster: Cluster, pods: Pods, nodeleak: Nodeleak) -> None:
    pods(2)
    cluster.leak()
    pods.running()
    cluster.reserve(1)

    alone = nodeleak.scan("--grace=0s", "--api=off")

    assert sorted(set(alone.states.values())) == ["in_use", "leaked"]
    assert alone.verdicts == nodeleak.scan("--grace=0s").verdicts
    assert alone.unavailable == set()


def test_the_api_server_survives_a_person_who_asks_for_indented_json(cluster: Cluster) -> None:
    assert '"name": "default"' in cluster.kubectl("get", "--raw", "/api/v1/namespaces/default?pretty=1")
    assert cluster.kubectl("get", "--raw", "/healthz") == "ok"


def _rounds(daemon: Daemon, number: int) -> None:
    assert daemon.metrics().total("sync_seconds_count") >= number

"""A healthy node."""

import pytest

from .node import Cluster, Pods, eventually
from .nodeleak import DROPPED, READ_ONLY, Nodeleak, Report

pytestmark = pytest.mark.e2e

WITHOUT_DATA = {
    "replayed_watch"
}  # Detectors without data on this node: a single command watches nothing


def test_on_a_healthy_node_every_reservation_is_in_use_without_findings(
    pods: Pods, nodeleak: Nodeleak
) -> None:
    owners = pods(3)
    report = nodeleak.scan("--exit-code", "--grace=0s")
    assert report.code == 0
    assert report.states == dict.fromkeys(owners, "in_use")
    assert report.pods == owners
    assert (report.findings, report.unavailable, report.insufficient_data) == (
        [],
        set(),
        WITHOUT_DATA,
    )
    assert report.document["server_version"] == "v1.20.2"
    assert report.network["reserved"] == len(owners)
    assert report.network["free"] == report.network["usable"] - len(owners)

    with nodeleak.running("--interval=200ms", "--confirm-after=0s", "--grace=0s") as daemon:
        eventually(lambda: daemon.syncs() >= 5, equal=True)
        daemon.process.terminate()
        assert daemon.process.wait() == 0
        assert [line["event"] for line in daemon.lines()] == ["agent.started", "agent.stopped"]


def test_every_source_can_be_read_with_minimal_permissions_and_without_the_api_server(
    cluster: Cluster, pods: Pods, nodeleak: Nodeleak
) -> None:
    pods(2)
    cluster.leak()
    owners = pods.running()
    cluster.reserve(1)

    def usual_report() -> Report:
        usual = nodeleak.scan("--grace=0s")
        assert usual.having("in_use") == owners.keys()
        # So that the namespaces of processes are looked into too
        assert len(usual.having("leaked")) == 3
        return usual

    usual = eventually(usual_report)
    for wrapped in (DROPPED, READ_ONLY):
        report = nodeleak.scan("--grace=0s", wrapped=wrapped)
        assert (report.unavailable, report.insufficient_data) == (set(), WITHOUT_DATA)
        assert report.verdicts == usual.verdicts
    alone = nodeleak.scan("--grace=0s", "--api=off")
    assert (alone.verdicts, alone.unavailable) == (usual.verdicts, set())


def test_the_api_server_survives_a_person_who_asks_for_indented_json(cluster: Cluster) -> None:
    assert '"name": "default"' in cluster.kubectl(
        "get", "--raw", "/api/v1/namespaces/default?pretty=1"
    )
    assert cluster.kubectl("get", "--raw", "/healthz") == "ok"

"""Pods come and go during continuous snapshots: races must not be reported as leaks."""

import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from .agent import Nodeleak, Report
from .node import Cluster, Pods, docker, eventually, host_local, reservations

pytestmark = pytest.mark.e2e


def test_fifty_pods_that_come_and_go_are_never_leaked_or_a_finding(pods: Pods, nodeleak: Nodeleak) -> None:
    def come_and_go() -> None:
        coming = pods.ask_for(10)
        for _ in range(3):
            going, coming = coming, pods.ask_for(8)
            pods.wait_for(going, "condition=Ready")
            pods.delete(going)
        pods.delete([*coming, *pods.ask_for(8)])  # the last of them before they have come
        eventually(lambda: _nobody(pods), 120)

    report = _reports_during(come_and_go, nodeleak)

    assert "in_use" in {state for one in report for state in one.states.values()}
    assert not reservations()


def test_containers_that_come_and_go_faster_than_any_pod_are_never_a_finding(
    cluster: Cluster, nodeleak: Nodeleak
) -> None:
    def come_and_go() -> None:
        for _ in range(150):
            # dockershim's order: the container exists before its reservation, and is removed after it.
            name = f"nodeleak-e2e-{secrets.token_hex(4)}"
            container_id = docker("create", "--name", name, "--network=none", "nodeleak/busybox:1").strip()
            host_local("ADD", container_id, [cluster.pod_cidr])
            Event().wait(0.05)  # so that some snapshot sees it
            host_local("DEL", container_id, [cluster.pod_cidr])
            docker("rm", name)

    report = _reports_during(come_and_go, nodeleak)

    assert "not_ready" in {state for one in report for state in one.states.values()}


def _nobody(pods: Pods) -> None:
    assert pods.now() == []


def _reports_during(come_and_go: Callable[[], None], nodeleak: Nodeleak) -> list[Report]:
    """Scan with the shortest intervals and with the defaults, and return all reports."""
    over = Event()

    def without_pause() -> list[Report]:
        report = []
        while not over.is_set():
            report += [nodeleak.scan("--grace=0s"), nodeleak.scan()]
        return report

    with (
        nodeleak.running("--interval=100ms", "--confirm-after=0s", "--grace=0s") as daemon,
        ThreadPoolExecutor() as pool,
    ):
        snapshots = pool.submit(without_pause)
        try:
            come_and_go()
        finally:
            over.set()
        report = snapshots.result()
        metrics, opened = daemon.metrics(), daemon.events("finding.opened")

    assert len(report) > 10
    assert [one.document for one in report if one.findings or "leaked" in one.states.values()] == []
    assert (opened, metrics.leaks_confirmed) == ([], {})
    assert metrics.total("sync_seconds_count") > len(report)
    return report

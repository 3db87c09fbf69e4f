"""Pods come and go during continuous snapshots: races must not be reported as leaks."""

import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from .node import (
    Cluster,
    Pods,
    docker,
    eventually,
    host_local,
    reservations,
    running_sandboxes,
    throughout,
)
from .nodeleak import Nodeleak

pytestmark = pytest.mark.e2e


def test_fifty_pods_that_come_and_go_are_never_leaked_or_a_finding(
    pods: Pods, nodeleak: Nodeleak
) -> None:
    def come_and_go() -> None:
        coming = pods.ask_for(10)
        for _ in range(3):
            going, coming = coming, pods.ask_for(8)
            pods.wait_for(going, "condition=Ready")
            pods.delete(going)
        pods.delete([*coming, *pods.ask_for(8)])  # the last of them before they have come
        eventually(pods.now, equal=[])

    _look_during(come_and_go, nodeleak, until="in_use")

    # The kubelet frees the address of a pod after the pod is gone. It may even begin with the sandboxes of
    # pods that were deleted before they had come: the next test would take those for its own.
    def is_over() -> None:
        throughout(lambda: (running_sandboxes(), reservations()), 5, equal=({}, {}))

    eventually(is_over)


def test_containers_that_come_and_go_faster_than_any_pod_are_never_a_finding(
    cluster: Cluster, nodeleak: Nodeleak
) -> None:
    def come_and_go() -> None:
        for _ in range(150):
            # dockershim's order: the container exists before its reservation, and is removed after it.
            name = f"nodeleak-e2e-{secrets.token_hex(4)}"
            container_id = docker(
                "create", "--name", name, "--network=none", "nodeleak/busybox:1"
            ).strip()
            host_local("ADD", container_id, [cluster.pod_cidr])
            time.sleep(0.05)  # noqa: TID251 (so that some snapshot sees it)
            host_local("DEL", container_id, [cluster.pod_cidr])
            docker("rm", name)

    _look_during(come_and_go, nodeleak, until="not_ready")


def _look_during(come_and_go: Callable[[], None], nodeleak: Nodeleak, *, until: str) -> None:
    """Scan with the shortest intervals and with the defaults: no state is a leak. A slow machine needs some turns."""
    over = Event()
    states: list[set[str]] = []

    def without_pause() -> None:
        while not over.is_set():
            for report in (nodeleak.scan("--grace=0s"), nodeleak.scan()):
                states.append({*report.states.values()})
                wrong = [found for found in report.findings if not _is_slow_start(found)]
                assert not wrong, [found["message"] for found in wrong]
                assert "leaked" not in states[-1], report.document

    with (
        nodeleak.running("--interval=100ms", "--confirm-after=0s", "--grace=0s") as daemon,
        ThreadPoolExecutor() as pool,
    ):
        snapshots = pool.submit(without_pause)
        try:
            for _ in range(5):
                come_and_go()
                if len(states) > 10 and until in set().union(*states):
                    break
        finally:
            over.set()
        snapshots.result()
        assert until in set().union(*states)
        opened = [event for event in daemon.events("finding.opened") if not _is_slow_start(event)]
        assert (opened, daemon.metrics().leaks_confirmed) == ([], {})
        assert min(daemon.syncs(), len(states)) > 10


def _is_slow_start(finding: Mapping[str, object]) -> bool:
    """Return whether it says that pods have waited for minutes: on a slow machine, many do."""
    return finding["detector"] == "waiting_pods" and finding["severity"] != "critical"

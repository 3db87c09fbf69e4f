"""Pods come and go while the node is looked at without pause: haste must not make a leak of any of them."""

import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from .agent import Nodeleak, Said
from .node import Cluster, Pods, docker, eventually, host_local, reservations

pytestmark = pytest.mark.e2e


def test_fifty_pods_that_come_and_go_are_never_leaked_and_never_a_finding(pods: Pods, nodeleak: Nodeleak) -> None:
    def come_and_go() -> None:
        coming = pods.ask_for(10)
        for _ in range(3):
            going, coming = coming, pods.ask_for(8)
            pods.wait_for(going, "condition=Ready")
            pods.delete(going)
        pods.delete([*coming, *pods.ask_for(8)])  # the last of them before they have come
        eventually(lambda: _nobody(pods), 120)

    said = _looks_during(come_and_go, nodeleak)

    assert "in_use" in {state for one in said for state in one.states.values()}
    assert not reservations()


def test_containers_that_come_and_go_faster_than_any_pod_are_never_a_finding(
    cluster: Cluster, nodeleak: Nodeleak
) -> None:
    def come_and_go() -> None:
        for _ in range(150):
            # In the order of dockershim: the container is there before its address, and goes after it.
            name = f"nodeleak-e2e-{secrets.token_hex(4)}"
            container_id = docker("create", "--name", name, "--network=none", "nodeleak/busybox:1").strip()
            host_local("ADD", container_id, [cluster.pod_cidr])
            Event().wait(0.05)  # so that some look meets it
            host_local("DEL", container_id, [cluster.pod_cidr])
            docker("rm", name)

    said = _looks_during(come_and_go, nodeleak)

    assert "not_ready" in {state for one in said for state in one.states.values()}


def _nobody(pods: Pods) -> None:
    assert pods.now() == []


def _looks_during(come_and_go: Callable[[], None], nodeleak: Nodeleak) -> list[Said]:
    """Look as hastily as can be asked for, and as patiently as by default; return all that was said."""
    over = Event()

    def without_pause() -> list[Said]:
        said = []
        while not over.is_set():
            said += [nodeleak.scan("--grace=0s"), nodeleak.scan()]
        return said

    with (
        nodeleak.running("--interval=100ms", "--confirm-after=0s", "--grace=0s") as daemon,
        ThreadPoolExecutor() as pool,
    ):
        snapshots = pool.submit(without_pause)
        try:
            come_and_go()
        finally:
            over.set()
        said = snapshots.result()
        metrics, opened = daemon.metrics(), daemon.events("finding.opened")

    assert len(said) > 10
    assert [one.document for one in said if one.findings or "leaked" in one.states.values()] == []
    assert (opened, metrics.leaks_confirmed) == ([], {})
    assert metrics.total("sync_seconds_count") > len(said)
    return said

"""The load on the API server: one list and one watch of each resource, and no second list."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .agent import Daemon, Nodeleak
from .node import STORE, Cluster, Pods, eventually, moved_away, throughout
from .relay import Relay, relay_to_the_api_server

pytestmark = pytest.mark.e2e

RESOURCES = ("/api/v1/pods", "/api/v1/nodes")
SHORTEST_PAUSE = 30.0
"""Seconds between two questions whether etcd was restored: half of a minute, because it is jittered."""


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    return tmp_path / "relay.conf"


@pytest.fixture
def relay(cluster: Cluster, kubeconfig: Path) -> Iterator[Relay]:
    with relay_to_the_api_server(cluster, kubeconfig) as relay:
        yield relay


def test_the_daemon_lists_once_and_watches_once(pods: Pods, nodeleak: Nodeleak, relay: Relay, kubeconfig: Path) -> None:
    def one_of_each() -> None:
        assert daemon.report().unavailable == set()
        for resource in RESOURCES:
            lists, watches = _of_this_node(relay, resource)
            assert (len(lists), len(watches)) == (1, 1), (lists, watches)

    with nodeleak.running("--interval=500ms", f"--kubeconfig={kubeconfig}") as daemon:
        eventually(one_of_each)
        pods(2)
        throughout(one_of_each, 8)

    # This node has no provider ID, so the agent asks once in ten minutes whether other nodes have one.
    assert _questions(relay) == []
    assert [one for one in relay.requests("/api/v1/nodes")[0] if "fieldSelector" not in one] == [{"limit": "50"}]
    (listed,), (watched,) = relay.requests("/api/v1/pods")
    assert listed["fieldSelector"].startswith("spec.nodeName=")
    assert (listed["resourceVersion"], watched["allowWatchBookmarks"]) == ("0", "true")


def test_an_interrupted_watch_resumes_without_a_new_list(
    pods: Pods, nodeleak: Nodeleak, relay: Relay, kubeconfig: Path
) -> None:
    with nodeleak.running("--interval=500ms", "--confirm-after=1s", f"--kubeconfig={kubeconfig}") as daemon:
        began = time.perf_counter()
        for times in range(1, 4):
            eventually(lambda times=times: _watches_begun(relay, times))  # type: ignore[misc]
            pods(1)
            assert relay.cut() >= len(RESOURCES)
        eventually(lambda: _watches_begun(relay, 4))
        _hears_of_a_new_pod(daemon, pods)

    # On a busy node the failures last longer than the agent waits until it asks again.
    most = len(RESOURCES) * (1 + int((time.perf_counter() - began) / SHORTEST_PAUSE))
    assert 1 <= len(_questions(relay)) <= most, "whether etcd was restored: once a watch for all of these failures"
    for resource in RESOURCES:
        lists, watches = _of_this_node(relay, resource)
        assert len(lists) == 1
        versions = [int(one["resourceVersion"]) for one in watches]
        assert versions == sorted(versions)
    assert daemon.events("source.unavailable") == []


def _of_this_node(relay: Relay, resource: str) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    lists, watches = relay.requests(resource)
    return [one for one in lists if "fieldSelector" in one and "resourceVersion" in one], watches


def _questions(relay: Relay) -> list[dict[str, str]]:
    """Return the lists of the own Node that were read through to etcd."""
    lists, _ = relay.requests("/api/v1/nodes")
    return [one for one in lists if "fieldSelector" in one and "resourceVersion" not in one]


def _watches_begun(relay: Relay, times: int) -> None:
    assert all(len(relay.requests(resource)[1]) >= times for resource in RESOURCES)


def _hears_of_a_new_pod(daemon: Daemon, pods: Pods) -> None:
    """The finding needs the new pod from the watch."""
    before = pods.now()
    ip, pod = next((ip, name) for ip, name in pods(1).items() if ip not in {one["status"]["podIP"] for one in before})

    def check() -> None:
        assert {line["pod"] for line in daemon.opened("unreserved_pod_ip").values()} == {pod}

    with moved_away(STORE / ip):
        eventually(check, 20)

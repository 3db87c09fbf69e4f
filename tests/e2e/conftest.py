"""The node that every test finds: up, ready, without pods and without leaks, and left so."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from .agent import Nodeleak
from .node import Cluster, Pods, eventually, reservations


@pytest.fixture(scope="session")
def whole_cluster() -> Cluster:
    cluster = Cluster.up()
    Pods(cluster).delete()
    others = cluster.kubectl("get", "pods", "--all-namespaces", "--no-headers")
    if others:
        pytest.exit(
            f"the node has pods that are not of these tests; delete them first (hack/cluster kubectl):\n{others}"
        )
    return cluster


@pytest.fixture
def cluster(whole_cluster: Cluster) -> Iterator[Cluster]:
    whole_cluster.release_ownerless()
    yield whole_cluster
    whole_cluster.start()
    Pods(whole_cluster).delete()

    def check() -> None:
        whole_cluster.release_ownerless()
        assert not reservations()

    eventually(check, 60)


@pytest.fixture
def pods(cluster: Cluster) -> Pods:
    return Pods(cluster)


@pytest.fixture
def nodeleak(cluster: Cluster, tmp_path: Path) -> Nodeleak:
    logs = tmp_path / "logs"
    logs.mkdir()
    return Nodeleak(cluster, logs)

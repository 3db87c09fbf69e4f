"""Every test starts on a ready node without pods and leaks, and leaves it like that."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from .node import Cluster, Pods, remove_left_containers
from .nodeleak import Nodeleak


@pytest.fixture(scope="session")
def whole_cluster() -> Cluster:
    cluster = Cluster.up()
    others = cluster.kubectl(
        "get", "pods", "--all-namespaces", "--selector=app!=nodeleak-e2e", "--no-headers"
    )
    if others:
        pytest.exit(f"delete the node's other pods first (hack/cluster kubectl):\n{others}")
    remove_left_containers()
    Pods(cluster).clear()
    return cluster


@pytest.fixture
def cluster(whole_cluster: Cluster) -> Iterator[Cluster]:
    yield whole_cluster
    whole_cluster.start()
    Pods(whole_cluster).clear()


@pytest.fixture
def pods(cluster: Cluster) -> Pods:
    return Pods(cluster)


@pytest.fixture
def nodeleak(cluster: Cluster, tmp_path: Path) -> Nodeleak:
    logs = tmp_path / "logs"
    logs.mkdir()
    return Nodeleak(cluster, logs)

"""Every test starts on a ready node without pods and leaks, and leaves it like that."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from .agent import Nodeleak
from .containerd_node import ContainerdNode
from .node import Cluster, Pods, remove_left_containers


@pytest.fixture(scope="session")
def whole_cluster() -> Cluster:
    cluster = Cluster.up()
    others = cluster.kubectl("get", "pods", "--all-namespaces", "--selector=app!=nodeleak-e2e", "--no-headers")
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


@pytest.fixture(scope="module")
def running_node(whole_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerdNode]:
    logs = tmp_path_factory.mktemp("containerd") / "logs"
    logs.mkdir()
    containerd = ContainerdNode.up(whole_cluster, logs)
    yield containerd
    whole_cluster.stop("containerd")
    whole_cluster.kubectl("delete", "node", containerd.cluster.node)


@pytest.fixture
def node(running_node: ContainerdNode) -> Iterator[ContainerdNode]:
    """The second node of the cluster, with containerd."""
    running_node.clear()
    yield running_node
    running_node.clear()

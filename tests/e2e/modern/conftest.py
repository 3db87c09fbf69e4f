"""Every test starts on a ready node without pods and leaks, and leaves it like that."""

from collections.abc import Iterator

import pytest

from .node import ModernNode


@pytest.fixture(scope="session")
def running_node(tmp_path_factory: pytest.TempPathFactory) -> ModernNode:
    logs = tmp_path_factory.mktemp("modern") / "logs"
    logs.mkdir()
    return ModernNode.up(logs)


@pytest.fixture
def node(running_node: ModernNode) -> Iterator[ModernNode]:
    """The node of the profile."""
    running_node.clear()
    yield running_node
    running_node.start()
    running_node.clear()

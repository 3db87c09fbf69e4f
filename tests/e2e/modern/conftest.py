"""Every test starts on a ready node without pods and leaks, and leaves it like that."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.deployment import IMAGE, MODERN_TAG, build_image
from tests.e2e.node import docker, eventually

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


@pytest.fixture(scope="session")
def image_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    archive = tmp_path_factory.mktemp("image") / "nodeleak.tar"

    def build_and_save() -> None:
        build_image(MODERN_TAG)
        docker("save", f"--output={archive}", f"{IMAGE}:{MODERN_TAG}")

    eventually(build_and_save)  # the tests of profile legacy stop docker now and then
    return archive


@pytest.fixture(scope="module")
def node_with_image(running_node: ModernNode, image_archive: Path) -> Iterator[ModernNode]:
    running_node.load(image_archive)
    yield running_node
    # Other tests lose images, and would wait for this one.
    Path(running_node.env["NODE_STATE"], "images", image_archive.name).unlink()

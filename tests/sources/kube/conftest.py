"""Objects of the API server, as a command reads them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sources.kube.connections import read, sources_of_command
from tests.sources.kube.old_server import listed
from tests.wire import FakeServer, http, kubeconfig


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Return what reads a list of pods: each has a name, a uid of its own, and whatever is given."""
    named, usual = {"name": "web-0", "namespace": "shop"}, {"status": {"phase": "Running"}}
    with FakeServer(lambda _: []) as server:
        sources = sources_of_command(kubeconfig(tmp_path / "kubeconfig", server.url))

        def read_list(*given: dict[str, Any]) -> Any:
            items = [
                usual | item | {"metadata": named | {"uid": f"u-{number}"} | item.get("metadata", {})}
                for number, item in enumerate(given)
            ]
            server.answers = lambda _: [http(listed("PodList", 40, *items))]
            return read(sources, "pods").known()

        yield read_list


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Return what reads the Node, which has a name, a uid, and whatever is given."""
    named = {"name": "worker-1", "uid": "u-1"}
    with FakeServer(lambda _: []) as server:
        sources = sources_of_command(kubeconfig(tmp_path / "kubeconfig", server.url))

        def read_node(given: dict[str, Any]) -> Any:
            item = given | {"metadata": named | given.get("metadata", {})}
            server.answers = lambda _: [http(listed("NodeList", 40, item))]
            return read(sources, "node").known()

        yield read_node

"""Objects of the API server, as a command reads them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sources.kube.connections import read, sources_of_command
from tests.sources.kube.old_server import listed
from tests.wire import FakeServer, http, kubeconfig


@pytest.fixture
def parse(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Return what reads a source from a list of objects: each has a name and a uid of its own, if none is given."""
    with FakeServer(lambda _: []) as server:
        sources = sources_of_command(kubeconfig(tmp_path / "kubeconfig", server.url))

        def read_list(source: str, name: str, *given: dict[str, Any]) -> Any:
            items = [
                item
                | {"metadata": {"name": name, "namespace": "shop", "uid": f"u-{number}"} | item.get("metadata", {})}
                for number, item in enumerate(given)
            ]
            server.answers = lambda _: [http(listed("List", 40, *items))]
            return read(sources, source).known()

        yield read_list


@pytest.fixture
def pods(parse: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given: parse("pods", "web-0", *({"status": {"phase": "Running"}} | item for item in given))


@pytest.fixture
def nodes(parse: Callable[..., Any]) -> Callable[..., Any]:
    return lambda given: parse("node", "worker-1", given)

"""Objects of the API server, as a command reads them."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.app import loop
from agent.model.snapshot import Snapshot
from agent.sources.source import Sources
from tests.sources.kube.connections import sources_of_command
from tests.sources.kube.old_server import listed
from tests.sources.reading import read
from tests.wire import Answer, FakeServer, Request, hang, http, kubeconfig


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    state = random.getstate()
    random.seed(7)  # so that few waits are enough
    yield
    random.setstate(state)


@pytest.fixture
def parse(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Return what reads a source from a list of objects: each has a name and a uid of its own, if none is given."""
    with FakeServer(lambda _: []) as server:
        sources = sources_of_command(kubeconfig(tmp_path / "kubeconfig", server.url))

        def read_list(source: str, name: str, *given: dict[str, Any]) -> Any:
            items = [
                item
                | {
                    "metadata": {"name": name, "namespace": "shop", "uid": f"u-{number}"}
                    | item.get("metadata", {})
                }
                for number, item in enumerate(given)
            ]
            server.answers = lambda _: [http(listed("List", 40, *items))]
            return read(sources, source).known()

        yield read_list


@pytest.fixture
def pods(parse: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given: parse(
        "pods", "web-0", *({"status": {"phase": "Running"}} | item for item in given)
    )


@pytest.fixture
def nodes(parse: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given: [parse("node", "worker-1", item) for item in given]


class Cluster:
    """A fake API server whose answers are written down by their paths, its clock, and what a command reads from it."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds, self.answers = 0.0, dict[str, bytes]()
        monkeypatch.setattr(loop, "clock", lambda: self.seconds)
        self.server = FakeServer(self._answer)
        self._config = directory / "kubeconfig"
        self._sources: Sources = ()

    def _answer(self, request: Request) -> Answer:
        answer = self.answers.get(request.path, http('{"message": "not found"}', "404 Not Found"))
        return [answer] if answer else hang(self.server)

    def forget(self) -> None:
        """Read with a command that has asked nothing yet, and forget what was requested."""
        self._sources = sources_of_command(
            kubeconfig(self._config, self.server.url), api_timeout="1s"
        )
        self.server.requests.clear()

    def read(self, source: str, snapshot: Snapshot) -> Any:
        return read(self._sources, source, snapshot)

    @property
    def asked(self) -> list[str]:
        return [request.path for request in self.server.requests]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    made = Cluster(tmp_path, monkeypatch)
    with made.server:
        yield made

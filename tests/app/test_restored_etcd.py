"""The daemon's report after etcd was restored from a backup and all API servers were restarted."""

import gc
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from agent.app import api_server, loop
from agent.app.sources import node_sources
from agent.checks import engine
from agent.config import load
from agent.model.report import Report
from agent.model.snapshot import Known
from agent.model.state_files import StoredHistory
from agent.sources.kube import list_watch
from tests.sources.kube.old_server import NODE, bookmark, listed
from tests.wire import CHUNKED, LAST_CHUNK, Answer, FakeServer, Request, chunk, http, kubeconfig, until

# The docker package forgets the socket of a client that could not be made; the collector finds it.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

BEFORE, BACKUP = 5000, 4000
WATCHED = {"/api/v1/nodes", "/api/v1/pods"}
LISTS = ["/api/v1/nodes cache", "/api/v1/pods cache"]


@dataclass
class ApiServer:
    """Byte for byte what a 1.20.2 answers: a watch from a version that it does not have is silent, and ends on time."""

    revision: int = BEFORE
    pod: str = "web-after-backup"
    running: bool = True
    watched: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    requests: list[str] = field(default_factory=list)
    """The lists that were asked for, and whether from the server's cache or read through to etcd."""

    def answer(self, request: Request) -> Answer:
        if not self.running:
            self.refused.add(request.path)
            return []
        query = {name: values[0] for name, values in parse_qs(urlsplit(request.target).query).items()}
        version = int(query.get("resourceVersion", "0"))
        if request.path == "/version":
            return [http('{"gitVersion": "v1.20.2"}')]
        if request.watches:
            self.watched.add(request.path)
            self.revision += 1  # something changes all the time
            return [CHUNKED, *([chunk(bookmark(self.revision))] if self.revision > version else []), LAST_CHUNK]
        read_from = "cache" if "resourceVersion" in query else "etcd"
        self.requests.append(f"{request.path} {read_from}")
        if version > self.revision:
            return [http('{"kind":"Status","code":504,"message":"Too large resource version"}', "504 Gateway Timeout")]
        items = (
            [rejected(self.pod)]
            if request.path == "/api/v1/pods"
            else [NODE | {"spec": {"providerID": "fake:///worker-1"}}]
        )
        return [http(listed("List", self.revision, *items))]


def rejected(name: str) -> dict[str, Any]:
    message = (
        "Allocate failed due to requested number of devices unavailable for fake.io/gpu. Requested: 1, Available: 0"
    )
    return {
        "metadata": {"name": name, "namespace": "shop", "uid": f"uid-of-{name}", "resourceVersion": "7"},
        "spec": {"nodeName": "worker-1"},
        "status": {
            "phase": "Failed",
            "reason": "UnexpectedAdmissionError",
            "message": message,
        },
    }


@dataclass
class Daemon:
    """What the daemon is wired from, without its loop."""

    server: ApiServer
    sources: Any

    def report(self) -> Report:
        snapshot = loop.snapshot_node(self.sources.snapshot, "worker-1")
        report, _ = engine.run(snapshot, None, grace=timedelta(0), confirm_after=timedelta(0))
        return report

    def rejected(self) -> set[str]:
        """Return the pods that the report says were rejected; none while the pods are unavailable."""
        return {one.finding.pod or "" for one in self.report().findings if one.finding.detector == "rejected_pod"}


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    monkeypatch.setattr(list_watch, "_BACKOFF", (0.01, 0.05))
    monkeypatch.setattr(list_watch, "_SPREAD", 0.5)
    (tmp_path / "plugins").mkdir()
    (tmp_path / "proc").mkdir()
    server, stop = ApiServer(), threading.Event()
    with FakeServer(server.answer) as wire:
        given = {
            "node": "worker-1",
            "kubeconfig": str(kubeconfig(tmp_path / "kubeconfig", wire.url)),
            "proc": f"{tmp_path}/proc",
            "docker_host": f"unix://{tmp_path}/docker.sock",
            "device_plugins_dir": f"{tmp_path}/plugins",
            "state_dir": f"{tmp_path}/state",
        }
        config = load("run", given, {})
        readers, reflectors = api_server.watched(config)
        threads = [threading.Thread(target=one.run, args=(stop,)) for one in reflectors]
        for one in threads:
            one.start()
        try:
            yield Daemon(server, node_sources(config, readers, StoredHistory))
        finally:
            stop.set()
    for one in threads:
        one.join(20)
        assert not one.is_alive()
    gc.collect()


def until_both_watch(server: ApiServer) -> None:
    server.watched.clear()
    until(lambda: server.watched >= WATCHED, "both watches are answered", 60)


def stop(server: ApiServer) -> None:
    server.running = False
    until(lambda: server.refused >= WATCHED, "both watches notice", 60)


def test_a_pod_that_was_replaced_by_the_restore_is_reported_as_it_is(daemon: Daemon) -> None:
    server = daemon.server
    until_both_watch(server)
    until(lambda: daemon.rejected() == {"shop/web-after-backup"}, "the pod is known")
    stop(server)
    server.revision, server.pod = BACKUP, "web-of-backup"
    server.running = True
    until(lambda: daemon.rejected() == {"shop/web-of-backup"}, "the daemon asks, and lists everything again", 60)
    wanted = [*LISTS, *LISTS, "/api/v1/nodes etcd"]
    until(lambda: len(server.requests) >= len(wanted), "so does the other watch", 60)
    until(lambda: isinstance(daemon.report().assessment.snapshot.node, Known), "the node is known again", 60)
    snapshot = daemon.report().assessment.snapshot
    assert {one.evidence.value for one in snapshot.watches.known()} == {"rv_reset"}
    assert sorted(server.requests) == sorted(wanted)


def test_restarted_api_servers_alone_change_nothing(daemon: Daemon) -> None:
    server = daemon.server
    until_both_watch(server)
    stop(server)
    server.running = True
    until_both_watch(server)
    until_both_watch(server)
    assert daemon.rejected() == {"shop/web-after-backup"}
    # Whoever is answered first asks etcd, unless the other one has received something new by then.
    assert sorted(set(server.requests) - {"/api/v1/nodes etcd"}) == LISTS
    assert len(server.requests) <= len(LISTS) + 1

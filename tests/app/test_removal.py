"""A node that is drained and deleted between two snapshots of the daemon, which watches a fake API server."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent.app.api_server import watched
from agent.app.sources import node_sources
from agent.config import Config, load
from agent.model.documents import StoredHistory
from agent.model.registration import LastSeen, Removal
from agent.model.snapshot import Known, Snapshot
from agent.sources.collector import Moment, take_snapshot
from tests.builders import NOW, UPTIME
from tests.wire import CHUNKED, Answer, FakeServer, Request, chunk, http, kubeconfig, until


def node_object(version: int, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "worker-1", "uid": "u-1", "resourceVersion": str(version)}, "spec": spec}


class FakeCluster:
    """One node without pods; `removed` cordons it and deletes it at once, `closed` ends every watch."""

    def __init__(self) -> None:
        self.removed, self.closed = threading.Event(), threading.Event()

    def __call__(self, request: Request) -> Answer:
        of_nodes = request.path == "/api/v1/nodes"
        if request.watches:
            yield CHUNKED
            self.removed.wait(8)
            for kind, one in (
                ("MODIFIED", node_object(8, unschedulable=True)),
                ("DELETED", node_object(9, unschedulable=True)),
            ):
                if of_nodes:
                    yield chunk(json.dumps({"type": kind, "object": one}) + "\n")
            self.closed.wait(8)
        else:
            items = [node_object(7)] if of_nodes and not self.removed.is_set() else []
            yield http(json.dumps({"metadata": {"resourceVersion": "7"}, "items": items}))


def configured(tmp_path: Path, url: str) -> Config:
    given = {
        "node": "worker-1",
        "kubeconfig": str(kubeconfig(tmp_path / "kubeconfig", url)),
        "proc": f"{tmp_path}/proc",
        "docker_host": f"unix://{tmp_path}/docker.sock",
        "device_plugins_dir": "off",
        "kubelet_dir": "off",
        "state_dir": f"{tmp_path}/state",
        "cleanup": "off",
    }
    return load("run", given, {})


@contextmanager
def watching(config: Config, cluster: FakeCluster) -> Iterator[Callable[[], Snapshot]]:
    """Run the watches, and yield what takes a snapshot."""
    api, reflectors = watched(config)
    sources, stop = node_sources(config, api, StoredHistory).snapshot, threading.Event()
    threads = [threading.Thread(target=one.run, args=(stop,), daemon=True) for one in reflectors]
    for thread in threads:
        thread.start()
    try:
        yield lambda: take_snapshot(sources, "worker-1", Moment(NOW, UPTIME), lambda: 0.0)
    finally:
        stop.set()
        cluster.closed.set()
        for thread in threads:
            thread.join()


def last_seen(snapshot: Snapshot) -> LastSeen:
    last = snapshot.registration.known().last
    assert last is not None
    return last


def test_a_node_drained_and_deleted_between_two_snapshots_was_removed_on_purpose(tmp_path: Path) -> None:
    cluster = FakeCluster()
    with FakeServer(cluster) as server, watching(configured(tmp_path, server.url), cluster) as snapshot:
        until(lambda: server.requested("watch=1") and isinstance(snapshot().node, Known), "the Node")
        assert last_seen(snapshot()).removal is Removal.NONE
        cluster.removed.set()
        until(lambda: snapshot().node.known() is None, "the deletion")
        assert last_seen(snapshot()).removal is Removal.DRAINED

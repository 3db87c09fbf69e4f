"""A node that is drained and deleted between two syncs of the daemon, which watches a fake API server."""

import json
import threading
from pathlib import Path
from typing import Any

from tests.cli.commands import SmallNode, api_server, engine, running
from tests.wire import CHUNKED, Answer, FakeServer, Request, chunk, http, until


def node_object(version: int, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "worker-1", "uid": "u-1", "resourceVersion": str(version)}, "spec": spec}


class FakeCluster:
    """One node without pods; `removed` cordons it and deletes it at once."""

    def __init__(self) -> None:
        self.removed, self.closed = threading.Event(), threading.Event()

    def __call__(self, request: Request) -> Answer:
        of_nodes = request.path == "/api/v1/nodes"
        if request.watches:
            yield CHUNKED
            self.removed.wait(30)
            cordoned = node_object(8, unschedulable=True), node_object(9, unschedulable=True)
            for kind, one in zip(("MODIFIED", "DELETED"), cordoned, strict=True):
                if of_nodes:
                    yield chunk(json.dumps({"type": kind, "object": one}) + "\n")
            self.closed.wait(30)
        else:
            items = [node_object(7)] if of_nodes and not self.removed.is_set() else []
            yield http(json.dumps({"metadata": {"resourceVersion": "7"}, "items": items}))


def test_a_node_drained_and_deleted_between_two_syncs_was_removed_on_purpose(tmp_path: Path) -> None:
    cluster, state = FakeCluster(), tmp_path / "state/node.json"

    def stored() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(state.read_text()) if state.exists() else {}
        return found

    with FakeServer(engine, at=tmp_path / "docker.sock") as docker, api_server(tmp_path, cluster) as options:
        node = SmallNode(tmp_path, docker)
        try:
            with running(*options, *node.options, "--listen=127.0.0.1:0", "--interval=200ms"):
                until(lambda: stored().get("removal") == "none", "the Node is stored")
                cluster.removed.set()
                until(lambda: stored().get("gone"), "the deletion is stored")
        finally:
            cluster.closed.set()
    assert stored()["removal"] == "drained"

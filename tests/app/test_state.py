"""What the daemon keeps in its state directory: of a Node deleted between two syncs, and while the disk is full."""

import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import Daemon, SmallNode, api_server, engine, running, served, syncs
from tests.wire import CHUNKED, Answer, FakeServer, Request, chunk, http, needs, until


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SmallNode]:
    with FakeServer(engine, at=tmp_path / "docker.sock") as docker:
        yield SmallNode(tmp_path, docker)


def node_object(version: int, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "worker-1", "uid": "u-1", "resourceVersion": str(version)},
        "spec": spec,
    }


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


def test_a_node_drained_and_deleted_between_two_syncs_was_removed_on_purpose(
    node: SmallNode,
) -> None:
    cluster, state = FakeCluster(), node.home / "state/node.json"

    def stored() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(state.read_text()) if state.exists() else {}
        return found

    with api_server(node.home, cluster) as options:
        try:
            with running(*options, *node.options, "--listen=127.0.0.1:0", "--interval=200ms"):
                until(lambda: stored().get("removal") == "none", "the Node is stored")
                cluster.removed.set()
                until(lambda: stored().get("gone"), "the deletion is stored")
        finally:
            cluster.closed.set()
    assert stored()["removal"] == "drained"


FULL = 'mount -t tmpfs -o size=64k state "$0" && { cat /dev/zero >"$0/filled" 2>&-; exec "$@"; }'


def unavailable(port: int) -> dict[str, str]:
    code, body = served(port, "/api/v1/status")
    return (
        {one["source"]: one["why"] for one in json.loads(body)["unavailable"]}
        if code == 200
        else {"status": body}
    )


def logged(agent: Daemon, event: str, field: str) -> list[str]:
    """Return this field of the log's events, which may come later than what HTTP serves."""
    return [one[field] for one in agent.events if one["event"] == event]


def test_a_full_disk_is_reported_and_everything_else_goes_on(node: SmallNode) -> None:
    needs(
        os.geteuid() == 0 and shutil.which("unshare") is not None,
        "root and util-linux, to mount disks",
    )
    state, why = node.home / "state", f"{node.home}/state: no space left on device"
    state.mkdir()
    (node.home / "device-plugins").mkdir()
    prefix = ("unshare", "--mount", "--propagation=private", "sh", "-c", FULL, str(state))
    quick = ("--api=off", "--listen=127.0.0.1:0", "--interval=200ms", "--confirm-after=100ms")
    with running(*node.options, *quick, prefix=prefix) as agent:
        port = agent.log_event("agent.started")["port"]
        until(
            lambda: unavailable(port).get("state") == why,
            f"the status says {why}, not {unavailable(port)}",
        )
        until(lambda: why in logged(agent, "source.unavailable", "why"), "the log says so")
        until(
            lambda: 'nodeleak_source_up{source="state"} 0.0' in served(port, "/metrics")[1],
            "the metrics say so",
        )
        before = syncs(port)
        until(lambda: syncs(port) > before + 5, "syncs go on")
        assert served(port, "/healthz")[0] == 200
        assert "10.244.1.9" in served(port, "/")[1]
        assert (
            'nodeleak_reservations{network="kubenet",state="leaked"} 1.0'
            in served(port, "/metrics")[1]
        )
        Path(f"/proc/{agent.process.pid}/root{state}/filled").unlink()
        until(lambda: "state" not in unavailable(port), "the source is available again")
        until(lambda: "state" in logged(agent, "source.recovered", "source"), "the log says so")

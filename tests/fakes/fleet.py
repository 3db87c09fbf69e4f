"""A fake API server for the agents of many nodes, whose objects change and whose watchers see it.

It serves what `tests/fakes/apiserver.py` has of each node, and the ConfigMaps of `kube-system`.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from http.server import HTTPServer
from threading import Condition
from typing import Any, Final
from urllib.parse import SplitResult, parse_qs

from tests.fakes.apiserver import Tree, matches, node_object, pod_object
from tests.fakes.nodes import FakeNode, PodSandbox, healthy
from tests.fakes.serving import Handler, Threads, compact, serving

CONFIGMAPS: Final = "namespaces/kube-system/configmaps"
_FIRST_VERSION: Final = 1000
_LONGEST_SILENCE: Final = 1.0
"""Seconds between two looks of a watch at whether it has to end."""


class FakeFleet:
    """The objects of all nodes. Thread-safe."""

    def __init__(self, *nodes: FakeNode) -> None:
        self.changed = Condition()
        self.version = _FIRST_VERSION
        self.is_away = False
        """Whether every request fails, and every watch has ended."""
        self.events: list[tuple[int, str, Tree]] = []
        """The version, the resource and the event of each change, in order."""
        self.objects: dict[str, dict[str, Tree]] = {"pods": {}, "nodes": {}, CONFIGMAPS: {}}
        for node in nodes:
            self.objects["nodes"][node.name] = node_object(node)
            for sandbox in node.running:
                pod = pod_object(node, sandbox, 0)
                self.objects["pods"][pod["metadata"]["uid"]] = pod

    def set_brake(self, reason: str) -> None:
        metadata = {
            "name": "nodeleak-brake",
            "namespace": "kube-system",
            "uid": f"brake-{self.version}",
            "creationTimestamp": "2026-03-26T20:00:00Z",
        }
        brake = {"metadata": metadata, "data": {"reason": reason}}
        self._change("ADDED", CONFIGMAPS, "nodeleak-brake", brake)

    def end_brake(self) -> None:
        brake = self.objects[CONFIGMAPS]["nodeleak-brake"]
        self._change("DELETED", CONFIGMAPS, "nodeleak-brake", brake)

    def label(self, node: str, **labels: str) -> None:
        item = self.objects["nodes"][node]
        metadata = item["metadata"] | {"labels": labels}
        self._change("MODIFIED", "nodes", node, item | {"metadata": metadata})

    def go_away(self, *, away: bool) -> None:
        with self.changed:
            self.is_away = away
            self.changed.notify_all()

    def _change(self, kind: str, resource: str, key: str, item: Tree) -> None:
        with self.changed:
            self.version += 1
            versioned = item["metadata"] | {"resourceVersion": str(self.version)}
            after = item | {"metadata": versioned}
            self.objects[resource].pop(key, None)
            if kind != "DELETED":
                self.objects[resource][key] = after
            self.events.append((self.version, resource, {"type": kind, "object": after}))
            self.changed.notify_all()

    @contextmanager
    def serve(self) -> Iterator[str]:
        """Serve while the block runs, and give the server's URL."""
        server = _Server(self)
        with serving(server):
            try:
                yield f"http://127.0.0.1:{server.server_address[1]}"
            finally:
                self.go_away(away=True)


class _Server(Threads, HTTPServer):
    request_queue_size = 128

    def __init__(self, fleet: FakeFleet) -> None:
        self.fleet = fleet
        super().__init__(("127.0.0.1", 0), _FleetHandler)


class _FleetHandler(Handler):
    server: _Server
    disable_nagle_algorithm = True

    def answer(self, url: SplitResult) -> None:
        fleet = self.server.fleet
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        resource = url.path.removeprefix("/api/v1/")
        if fleet.is_away:
            self.close_connection = True
            self.send_tree({"message": "away", "code": 503}, HTTPStatus.SERVICE_UNAVAILABLE)
        elif url.path == "/version":
            self.send_tree({"major": "1", "minor": "30", "gitVersion": "v1.30.2"})
        elif resource not in fleet.objects:
            self.send_tree({"message": f"no {url.path}", "code": 404}, HTTPStatus.NOT_FOUND)
        elif query.get("watch") == "1":
            self._watch(resource, query)
        else:
            self._list(resource, query)

    def _list(self, resource: str, query: Mapping[str, str]) -> None:
        fleet = self.server.fleet
        with fleet.changed:
            items = [item for item in fleet.objects[resource].values() if matches(item, query)]
            metadata = {"resourceVersion": str(fleet.version)}
        self.send_tree({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items})

    def _watch(self, resource: str, query: Mapping[str, str]) -> None:
        fleet = self.server.fleet
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        version = int(query["resourceVersion"])
        left = float(query["timeoutSeconds"])
        while left > 0 and not fleet.is_away:
            with fleet.changed:
                if fleet.version == version:
                    fleet.changed.wait(_LONGEST_SILENCE)
                    left -= _LONGEST_SILENCE
                new = [event for event in fleet.events if event[0] > version]
                version = fleet.version
            for _, changed, event in new:
                if changed == resource and matches(event["object"], query):
                    self._event(event)
            self._event(_bookmark(version))
        if fleet.is_away:
            self.close_connection = True
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, event: Mapping[str, Any]) -> None:
        line = compact(event)
        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        self.wfile.flush()


def leaking(name: str, leaked: Iterable[str]) -> FakeNode:
    """Return a node with five pods, and these leaked addresses of 10.244.1.0/24."""
    node = healthy(datetime.now(UTC), 5, "10.244.1.0/24")
    return replace(node, name=name, leaked=tuple(map(leak, leaked)))


def leak(ip: str) -> PodSandbox:
    """Return a sandbox that is gone, and reserved an address two hours ago."""
    number = int(ip.rpartition(".")[2])
    made = datetime.now(UTC) - timedelta(hours=2)
    return PodSandbox(f"{number:064x}", "shop", f"gone-{number}", ip, made)


def _bookmark(version: int) -> Tree:
    return {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(version)}}}

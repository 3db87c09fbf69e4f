"""A fake docker engine API (dockerd 20.10, API 1.41) on a unix socket.

It answers the requests of docker's own clients: `/_ping`, `/version`, `/containers/json` and `/containers/<id>/json`,
with or without a version prefix. Everything else is 404.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from socketserver import UnixStreamServer
from typing import Any
from urllib.parse import SplitResult, parse_qs

from tests.fakes.nodes import EXITED_BYTES, FakeNode, PodSandbox
from tests.fakes.serving import Handler, Threads, compact, filled, serving

_API_VERSION = "1.41"
_LONGEST_SOCKET = 107  # Bytes of a unix socket's path: unix(7)

Tree = dict[str, Any]


@contextmanager
def engine(socket: Path, node: FakeNode, *, keep_alive: bool = True) -> Iterator[None]:
    """Serve the containers of a node while the block runs. Raises OSError.

    Without `keep_alive`, another engine can take over the socket's path: the next request is a new connection.
    """
    if len(str(socket).encode()) > _LONGEST_SOCKET:
        raise OSError(f"{socket} is too long for a socket's path: set TMPDIR to a shorter path")
    running = [tree for sandbox in node.running for tree in _containers(sandbox)]
    containers = [*running, *(_exited(sandbox) for sandbox in node.exited_sandboxes)]
    with serving(_Server(socket, containers, _EngineHandler if keep_alive else _ClosingHandler)):
        yield


class _Server(Threads, UnixStreamServer):
    request_queue_size = 64

    def __init__(
        self, socket: Path, containers: list[Tree], handler: "type[_EngineHandler]"
    ) -> None:
        # Newest first, as docker lists them; serialized once, because benchmarks do not measure the engine.
        newest = sorted(containers, key=lambda container: -container["Created"])
        self.all = compact(newest)
        self.running = compact(
            [container for container in newest if container["State"] == "running"]
        )
        self.inspected = {container["Id"]: compact(_inspected(container)) for container in newest}
        super().__init__(str(socket), handler)


class _EngineHandler(Handler):
    server: _Server

    def answer(self, url: SplitResult) -> None:
        path = re.sub(r"^/v1\.\d+/", "/", url.path)
        if path == "/_ping":
            self.send(b"OK", "text/plain; charset=utf-8")
        elif path == "/version":
            self.send_tree(_VERSION)
        elif path == "/containers/json":
            every = parse_qs(url.query).get("all", ["0"])[0] in {"1", "true", "True"}
            self.send(self.server.all if every else self.server.running)
        elif matched := re.fullmatch(r"/containers/([^/]+)/json", path):
            self._inspect(matched[1])
        else:
            self.send_tree({"message": "page not found"}, HTTPStatus.NOT_FOUND)

    def _inspect(self, container_id: str) -> None:
        if found := self.server.inspected.get(container_id):
            self.send(found)
        else:
            self.send_tree({"message": f"No such container: {container_id}"}, HTTPStatus.NOT_FOUND)

    def end_headers(self) -> None:
        self.send_header("Api-Version", _API_VERSION)
        self.send_header("Ostype", "linux")
        super().end_headers()


class _ClosingHandler(_EngineHandler):
    protocol_version = "HTTP/1.0"


_VERSION = {
    "Version": "20.10.24",
    "ApiVersion": _API_VERSION,
    "MinAPIVersion": "1.12",
    "Os": "linux",
    "Arch": "amd64",
}


def _containers(sandbox: PodSandbox) -> Iterator[Tree]:
    """Summarise a pod's sandbox and its container, as dockershim labels them."""
    created = int(sandbox.made.timestamp())
    names = {
        "id": sandbox.id,
        "pod": sandbox.pod,
        "namespace": sandbox.namespace,
        "uid": sandbox.uid,
    }
    names["restarts"] = str(sandbox.restarts)
    network = "none" if sandbox.ip else "host"
    yield filled("docker-sandbox", **names, image=sandbox.id[::-1], network=network) | {
        "Created": created
    }
    if not sandbox.starting:
        container_id = sandbox.container_id
        container = filled(
            "docker-container", **names, container=container_id, image=container_id[::-1]
        )
        yield container | {"Created": created + 1}


def _exited(sandbox: PodSandbox) -> Tree:
    note = {"annotation.example.com/injected": "x" * EXITED_BYTES}
    summary = next(_containers(sandbox))
    return summary | {
        "State": "exited",
        "Status": "Exited (0) 2 days ago",
        "Labels": summary["Labels"] | note,
    }


def _inspected(container: Tree) -> Tree:
    created = datetime.fromtimestamp(container["Created"], UTC).isoformat()
    state = {
        "Status": container["State"],
        "Running": True,
        "Paused": False,
        "Pid": 4711,
        "StartedAt": created,
    }
    labels = {"Config": {"Image": container["Image"], "Labels": container["Labels"]}}
    return {
        "Id": container["Id"],
        "Created": created,
        "Name": container["Names"][0],
        "State": state,
        **labels,
    }

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
from tests.fakes.serving import Handler, Threads, compact, serving

_API_VERSION = "1.41"
_LONGEST_SOCKET = 107
"""Bytes of a unix socket's path: unix(7)."""

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

    def __init__(self, socket: Path, containers: list[Tree], handler: "type[_EngineHandler]") -> None:
        # Newest first, as docker lists them; serialized once, because benchmarks do not measure the engine.
        newest = sorted(containers, key=lambda container: -container["Created"])
        self.all = compact(newest)
        self.running = compact([container for container in newest if container["State"] == "running"])
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
    "Platform": {"Name": "fake of nodeleak's demo"},
    "Version": "20.10.24",
    "ApiVersion": _API_VERSION,
    "MinAPIVersion": "1.12",
    "GitCommit": "0000000",
    "GoVersion": "none",
    "Os": "linux",
    "Arch": "amd64",
}


def _containers(sandbox: PodSandbox) -> Iterator[Tree]:
    """Summarise a pod's sandbox and its container, as dockershim labels them."""
    about = {
        "io.kubernetes.pod.name": sandbox.pod,
        "io.kubernetes.pod.namespace": sandbox.namespace,
        "io.kubernetes.pod.uid": sandbox.uid,
    }
    created = int(sandbox.made.timestamp())
    names = f"{sandbox.pod}_{sandbox.namespace}_{sandbox.uid}_{sandbox.restarts}"
    yield _summary(
        sandbox.id,
        f"/k8s_POD_{names}",
        "k8s.gcr.io/pause:3.2",
        "/pause",
        created,
        {"annotation.kubernetes.io/config.source": "api", "io.kubernetes.docker.type": "podsandbox", **about},
        "none" if sandbox.ip else "host",
    )
    if sandbox.starting:
        return
    yield _summary(
        sandbox.container_id,
        f"/k8s_app_{names}",
        f"sha256:{sandbox.container_id[::-1]}",
        "catalina.sh run",
        created + 1,
        {
            "annotation.io.kubernetes.container.hash": sandbox.id[:8],
            "annotation.io.kubernetes.container.restartCount": str(sandbox.restarts),
            "annotation.io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
            "annotation.io.kubernetes.container.terminationMessagePolicy": "File",
            "annotation.io.kubernetes.pod.terminationGracePeriod": "30",
            "io.kubernetes.container.logpath": f"/var/log/pods/{names}/app/0.log",
            "io.kubernetes.container.name": "app",
            "io.kubernetes.docker.type": "container",
            "io.kubernetes.sandbox.id": sandbox.id,
            **about,
        },
        f"container:{sandbox.id}",
    )


def _exited(sandbox: PodSandbox) -> Tree:
    note = {"annotation.example.com/injected": "x" * EXITED_BYTES}
    summary = next(_containers(sandbox))
    return summary | {"State": "exited", "Status": "Exited (0) 2 days ago", "Labels": summary["Labels"] | note}


def _summary(
    container_id: str, name: str, image: str, command: str, created: int, labels: Tree, network_mode: str
) -> Tree:
    return {
        "Id": container_id,
        "Names": [name],
        "Image": image,
        "ImageID": f"sha256:{container_id[::-1]}",
        "Command": command,
        "Created": created,
        "Ports": [],
        "Labels": labels,
        "State": "running",
        "Status": "Up 8 hours",
        "HostConfig": {"NetworkMode": network_mode},
        "NetworkSettings": {"Networks": {}},
        "Mounts": [
            {
                "Type": "bind",
                "Source": f"/var/lib/kubelet/pods/{name}/{what}",
                "Destination": to,
                "Mode": "",
                "RW": True,
            }
            for what, to in (("etc-hosts", "/etc/hosts"), ("token", "/var/run/secrets/kubernetes.io/serviceaccount"))
            if network_mode.startswith("container:")
        ],
    }


def _inspected(container: Tree) -> Tree:
    """Say at length what the summary says in short: clients that list by inspecting each ask for this."""
    created = datetime.fromtimestamp(container["Created"], UTC).isoformat()
    environment = [f"SERVICE_{number:02}_PORT=tcp://10.254.0.{number}:8080" for number in range(60)]
    return {
        "Id": container["Id"],
        "Created": created,
        "Path": container["Command"].split()[0],
        "Args": container["Command"].split()[1:],
        "State": {"Status": container["State"], "Running": True, "Paused": False, "Pid": 4711, "StartedAt": created},
        "Image": container["ImageID"],
        "Name": container["Names"][0],
        "RestartCount": 0,
        "Driver": "overlay2",
        "HostConfig": {
            **container["HostConfig"],
            "ConfirmationState": 0,
            "CpuShares": 2,
            "OomScoreAdj": 1000,
            "Privileged": False,
        },
        "Mounts": container["Mounts"],
        "Config": {
            "Hostname": container["Id"][:12],
            "Env": environment,
            "Image": container["Image"],
            "Labels": container["Labels"],
        },
        "NetworkSettings": container["NetworkSettings"],
    }

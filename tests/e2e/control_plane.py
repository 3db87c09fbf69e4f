"""A control plane of a test's own, without a kubelet: an API server, and an etcd that can be restored."""

import json
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.wire import kubeconfig, self_signed

from .node import environment, eventually, run

_BINARIES = Path("/var/cache/nodeleak-cluster/bin")


class ControlPlane:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._api, self._etcd, self._peer = (_free_port() for _ in range(3))
        self._running: list[subprocess.Popen[bytes]] = []
        self._data = directory / "etcd"
        _, certificate = self_signed(directory)
        (directory / "tokens.csv").write_text("secret,admin,1,system:masters\n")
        run("openssl", "genrsa", "-out", directory / "sa.key", "2048")
        self.kubeconfig = kubeconfig(
            directory / "admin.conf",
            f"https://127.0.0.1:{self._api}",
            user="{token: secret}",
            cluster=f'certificate-authority: "{certificate}"',
        )

    def start(self) -> None:
        etcd, peer = (f"http://127.0.0.1:{port}" for port in (self._etcd, self._peer))
        self._spawn(
            "etcd",
            *("--data-dir", self._data, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"default={peer}"),
            *("--listen-client-urls", etcd, "--advertise-client-urls", etcd),
        )
        eventually(lambda: self._etcdctl("endpoint", "health"))
        key = self._directory / "sa.key"
        self._spawn(
            _BINARIES / "kube-apiserver",
            *(f"--etcd-servers={etcd}", "--bind-address=127.0.0.1", f"--secure-port={self._api}"),
            *("--advertise-address=192.0.2.1", "--endpoint-reconciler-type=none", "--authorization-mode=RBAC"),
            f"--tls-cert-file={self._directory / 'server.crt'}",
            f"--tls-private-key-file={self._directory / 'server.key'}",
            f"--token-auth-file={self._directory / 'tokens.csv'}",
            *("--service-account-issuer=https://here", f"--service-account-key-file={key}"),
            *(f"--service-account-signing-key-file={key}", "--disable-admission-plugins=ServiceAccount"),
            "--service-cluster-ip-range=10.97.0.0/24",
        )
        eventually(lambda: self.kubectl("get", "--raw", "/readyz"))

    def stop(self) -> None:
        """Stop the API server, then etcd. An API server waits a minute for the watches of its clients."""
        while self._running:
            process = self._running.pop()
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def back_up(self) -> None:
        self._etcdctl("snapshot", "save", self._directory / "snapshot.db")

    def restore(self) -> None:
        """Restore the snapshot while everything is stopped."""
        self._data = self._directory / "etcd-restored"
        peer = f"http://127.0.0.1:{self._peer}"
        self._etcdctl(
            *("snapshot", "restore", self._directory / "snapshot.db", "--data-dir", self._data),
            *("--initial-cluster", f"default={peer}", "--initial-advertise-peer-urls", peer),
        )

    def write(self, count: int) -> None:
        """Raise etcd's revision, as changes of other objects do."""
        for number in range(count):
            self._etcdctl("put", "/elsewhere", str(number))

    def kubectl(self, *arguments: str, text: str = "") -> str:
        return run("kubectl", "--kubeconfig", self.kubeconfig, "--request-timeout=10s", *arguments, text=text).stdout

    def create(self, item: dict[str, Any]) -> None:
        """Create an object with its status."""
        kind, namespace = item["kind"].lower() + "s", item["metadata"].get("namespace")
        created = json.loads(self.kubectl("create", "-f", "-", "-o", "json", text=json.dumps(item)))
        if "status" in item:
            created["status"] = item["status"]
            path = f"/api/v1/{f'namespaces/{namespace}/' if namespace else ''}{kind}/{item['metadata']['name']}/status"
            self.kubectl("replace", "--raw", path, "-f", "-", text=json.dumps(created))

    def _spawn(self, *command: str | Path) -> None:
        log = self._directory / f"{Path(command[0]).name}.log"
        with log.open("ab") as output:
            self._running.append(
                subprocess.Popen(  # noqa: S603 (spelled out above)
                    [str(one) for one in command], stdout=output, stderr=output, env=environment()
                )
            )

    def _etcdctl(self, *arguments: str | Path) -> None:
        environ = environment(ETCDCTL_API="3")
        run("etcdctl", f"--endpoints=http://127.0.0.1:{self._etcd}", *arguments, env=environ, seconds=30)


def needs_binaries(names: Sequence[str] = ("kube-apiserver",)) -> None:
    missing = [name for name in names if not (_BINARIES / name).exists()]
    if missing:
        pytest.skip(f"DID NOT RUN: no {', '.join(missing)} in {_BINARIES}: run hack/cluster build")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port

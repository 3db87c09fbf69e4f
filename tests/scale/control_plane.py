"""A real etcd and kube-apiserver on ports of their own, without a kubelet; their data are in memory."""

import base64
import json
import os
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from http import HTTPStatus
from http.client import HTTPConnection, HTTPSConnection
from itertools import islice
from pathlib import Path
from typing import Any, Final

from tests import processes
from tests.wire import kubeconfig, self_signed

API_SERVER: Final = Path("/var/cache/nodeleak-cluster/bin/kube-apiserver")
ETCD: Final = Path("/usr/bin/etcd")
ADMIN: Final = "secret-of-admin"
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 (a private directory is made in it)
_IN_A_TRANSACTION: Final = 100
_LONGEST_START: Final = 300
_AUDIT: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["ResponseStarted", "ResponseComplete"],
    "rules": [
        {"level": "Metadata", "verbs": ["list", "watch"], "resources": [{"group": "", "resources": ["pods", "nodes"]}]},
        {"level": "None"},
    ],
}


def missing() -> list[str]:
    """Return the programs that are not installed."""
    return [str(one) for one in (API_SERVER, ETCD) if not os.access(one, os.X_OK)]


def token_of(node: str) -> str:
    return f"secret-of-{node}"


class ControlPlane:
    """Authorizes as kubeadm configures it: the Node authorizer for kubelets, RBAC for everybody else."""

    def __init__(self, directory: Path, nodes: Sequence[str]) -> None:
        self.directory = directory
        self.port, self._etcd_port, self._peer_port = (_free_port() for _ in range(3))
        self.audit_log = directory / "audit.log"
        _, self.certificate = self_signed(directory)
        rows = [f'{token_of(node)},system:node:{node},{node},"system:nodes"' for node in nodes]
        (directory / "tokens.csv").write_text("\n".join([f'{ADMIN},admin,admin,"system:masters"', *rows]) + "\n")
        (directory / "audit.yaml").write_text(json.dumps(_AUDIT))
        subprocess.run(["openssl", "genrsa", "-out", directory / "sa.key", "2048"], capture_output=True, check=True)  # noqa: S607
        self.pid = 0
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def start_etcd(self) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self._etcd_port, self._peer_port))
        self._spawn(
            ETCD,
            *("--data-dir", str(self.directory / "etcd"), "--quota-backend-bytes", str(8 * 1024**3)),
            *(
                "--listen-peer-urls",
                peer,
                "--initial-advertise-peer-urls",
                peer,
                "--initial-cluster",
                f"default={peer}",
            ),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
        )
        self._until("etcd", self._etcd_answers)

    def start_api_server(self, *, audit: bool = False) -> float:
        """Start it, and return the time of its first answer. `audit`: log every list and watch of pods and Nodes."""
        key = self.directory / "sa.key"
        to_audit = (f"--audit-policy-file={self.directory / 'audit.yaml'}", f"--audit-log-path={self.audit_log}")
        self.pid = self._spawn(
            API_SERVER,
            *(f"--etcd-servers=http://127.0.0.1:{self._etcd_port}", f"--secure-port={self.port}"),
            *("--bind-address=127.0.0.1", "--advertise-address=192.0.2.1", "--endpoint-reconciler-type=none"),
            *("--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"),
            f"--tls-cert-file={self.directory / 'server.crt'}",
            f"--tls-private-key-file={self.directory / 'server.key'}",
            f"--token-auth-file={self.directory / 'tokens.csv'}",
            *("--service-account-issuer=https://here", f"--service-account-key-file={key}"),
            *(f"--service-account-signing-key-file={key}", "--service-cluster-ip-range=10.96.0.0/16"),
            *(to_audit if audit else ()),
        )
        # It accepts connections seconds before it answers on them.
        self._until("kube-apiserver", self._answers)
        answered_at = time.time()
        self._until("kube-apiserver", lambda: self.get("/readyz") == b"ok")
        return answered_at

    def kill_api_server(self) -> None:
        """End it as a crash does: it would wait a minute for its watches."""
        child = self._children.pop(API_SERVER.name)
        child.kill()
        child.wait()

    def stop(self) -> None:
        while self._children:
            _, child = self._children.popitem()
            processes.stop(child, 2)

    def request(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> bytes:
        """Send one request as the administrator and return the body; raises OSError."""
        headers = {"Authorization": f"Bearer {ADMIN}", "Content-Type": kind}
        with closing(self.connection()) as connection:
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            content = answer.read()
        if answer.status >= 300:
            raise OSError(f"{method} {path}: {answer.status} {content[:300]!r}")
        return content

    def get(self, path: str) -> bytes:
        return self.request("GET", path)

    def connection(self) -> HTTPSConnection:
        context = ssl.create_default_context(cafile=str(self.certificate))
        return HTTPSConnection("127.0.0.1", self.port, timeout=60, context=context)

    def store(self, objects: Iterable[tuple[str, dict[str, Any]]]) -> None:
        """Write objects to etcd directly, as JSON, under their keys: the API server would need minutes for them."""
        puts = ({"requestPut": {"key": _coded(key), "value": _coded(json.dumps(one))}} for key, one in objects)
        with closing(HTTPConnection("127.0.0.1", self._etcd_port, timeout=60)) as connection:
            while some := list(islice(puts, _IN_A_TRANSACTION)):
                connection.request("POST", "/v3/kv/txn", json.dumps({"success": some}))
                answer = connection.getresponse()
                content = answer.read()
                if answer.status != HTTPStatus.OK:
                    raise OSError(f"etcd: {answer.status} {content[:300]!r}")

    def kubeconfig_for(self, token: str) -> Path:
        return kubeconfig(
            self.directory / "agent.conf",
            f"https://127.0.0.1:{self.port}",
            user=f"{{token: {token}}}",
            cluster=f'certificate-authority: "{self.certificate}"',
        )

    def _spawn(self, program: Path, *arguments: str) -> int:
        with (self.directory / f"{program.name}.log").open("ab") as log:
            child = subprocess.Popen([program, *arguments], stdout=log, stderr=log, env=processes.environment())
        self._children[program.name] = child
        return child.pid

    def _until(self, name: str, check: Any) -> None:
        for _ in processes.until(time.monotonic() + _LONGEST_START):
            if self._children[name].poll() is not None:
                raise OSError(f"{name} exited: {(self.directory / f'{name}.log').read_text()[-2000:]}")
            try:
                if check():
                    return
            except OSError:
                continue
        raise OSError(f"{name} did not answer within {_LONGEST_START} s")

    def _answers(self) -> bool:
        with closing(self.connection()) as connection:
            connection.request("GET", "/livez")
            return bool(connection.getresponse().read())

    def _etcd_answers(self) -> bool:
        with closing(HTTPConnection("127.0.0.1", self._etcd_port, timeout=5)) as connection:
            connection.request("GET", "/health")
            return b"true" in connection.getresponse().read()


@contextmanager
def control_plane(nodes: Sequence[str]) -> Iterator[ControlPlane]:
    """Run etcd during the block, and what the block starts. `nodes`: the names of those that may be kubelets."""
    with tempfile.TemporaryDirectory(prefix="nodeleak-scale-", dir=_MEMORY if _MEMORY.is_dir() else None) as directory:
        started = ControlPlane(Path(directory), nodes)
        try:
            started.start_etcd()
            yield started
        finally:
            started.stop()


def _coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port

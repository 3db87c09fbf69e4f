"""A real etcd and kube-apiserver on ports of their own, without a kubelet: killed, restored and filled at will."""

import base64
import json
import os
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import partial
from http.client import HTTPSConnection
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests import processes
from tests.wire import kubeconfig, run, self_signed

_CACHE: Final = Path("/var/cache/nodeleak-cluster")
_DIGEST: Final = "[0-9a-f]" * 12
_ADMIN: Final = "secret-of-admin"
_LONGEST_START: Final = 300
_IN_A_TRANSACTION: Final = 100
_AUDIT: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["ResponseStarted", "ResponseComplete"],
    "rules": [
        {
            "level": "Metadata",
            "verbs": ["list", "watch"],
            "resources": [{"group": "", "resources": ["pods", "nodes", "configmaps"]}],
        },
        {"level": "Metadata", "verbs": ["get"], "nonResourceURLs": ["/version"]},
        {"level": "None"},
    ],
}


class Programs(NamedTuple):
    """The programs of a control plane: by default, those of the profile `legacy`."""

    api_server: Path = _CACHE / "bin/kube-apiserver"
    etcd: Path = Path("/usr/bin/etcd")

    def missing(self) -> list[str]:
        """Return those that are not installed."""
        return [str(program) for program in self if not os.access(program, os.X_OK)]


LEGACY: Final = Programs()


def newest() -> Programs:
    """Return the programs of the other profiles, which are built from Go modules."""

    def built(module: str, program: str) -> Path:
        found = (_CACHE / "modules").glob(f"{module}-{_DIGEST}/{program}")
        by_age = sorted(found, key=lambda path: path.stat().st_mtime)
        return by_age[-1] if by_age else _CACHE / "modules" / module / program

    return Programs(built("kubernetes", "kube-apiserver"), built("etcd", "etcd"))


class ControlPlane:
    """Authorizes by RBAC. `directory`: its data, logs and certificate; it exists."""

    def __init__(self, directory: Path, programs: Programs = LEGACY) -> None:
        self.directory = directory
        self._programs = programs
        self.port, self._etcd_port, self._peer_port = free_ports(3)
        self.audit_log = directory / "audit.log"
        self.api_server = 0  # Its process
        self._data = directory / "etcd"
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        _, self.certificate = self_signed(directory)
        (directory / "tokens.csv").write_text(f'{_ADMIN},admin,admin,"system:masters"\n')
        (directory / "audit.yaml").write_text(json.dumps(_AUDIT))
        run("openssl", "genrsa", "-out", str(directory / "sa.key"), "2048")
        self.kubeconfig = self.kubeconfig_for(_ADMIN, "admin.conf")

    def start(self) -> None:
        self.start_etcd()
        self.start_api_server()

    def stop(self) -> None:
        """Stop the API server, which would wait a minute for its watches, then etcd."""
        while self._children:
            _, child = self._children.popitem()
            processes.stop(child, 5)

    def start_etcd(self) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self._etcd_port, self._peer_port))
        self._spawn(
            *(
                self._programs.etcd,
                "--data-dir",
                self._data,
                "--quota-backend-bytes",
                str(8 * 1024**3),
            ),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"default={peer}"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
        )
        self._until("etcd", lambda: self.etcdctl("endpoint", "health"))

    def start_api_server(self, *, audit: bool = False) -> float:
        """Start it, and return the time of its first answer.

        `audit`: log every list and watch of what agents read, and who requests its version.
        """
        key = self.directory / "sa.key"
        to_audit = (
            f"--audit-policy-file={self.directory / 'audit.yaml'}",
            f"--audit-log-path={self.audit_log}",
        )
        self.api_server = self._spawn(
            self._programs.api_server,
            *(f"--etcd-servers=http://127.0.0.1:{self._etcd_port}", f"--secure-port={self.port}"),
            *(
                "--bind-address=127.0.0.1",
                "--advertise-address=192.0.2.1",
                "--endpoint-reconciler-type=none",
            ),
            *("--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount"),
            f"--tls-cert-file={self.directory / 'server.crt'}",
            f"--tls-private-key-file={self.directory / 'server.key'}",
            f"--token-auth-file={self.directory / 'tokens.csv'}",
            *("--service-account-issuer=https://here", f"--service-account-key-file={key}"),
            *(
                f"--service-account-signing-key-file={key}",
                "--service-cluster-ip-range=10.97.0.0/16",
            ),
            *(to_audit if audit else ()),
        )
        # It accepts connections seconds before it answers on them.
        self._until(self._programs.api_server.name, self._answers)
        answered_at = time.time()
        for path in (
            "/readyz",
            "/api/v1/namespaces/default",
        ):  # it is ready before it has made the namespace
            self._until(self._programs.api_server.name, partial(self.request, "GET", path))
        return answered_at

    def kill_api_server(self) -> None:
        child = self._children.pop(self._programs.api_server.name)
        child.kill()
        child.wait()

    def back_up(self) -> None:
        self.etcdctl("snapshot", "save", str(self.directory / "snapshot.db"))

    def restore(self) -> None:
        """Restore the snapshot while everything is stopped."""
        self._data = self.directory / "etcd-restored"
        peer = f"http://127.0.0.1:{self._peer_port}"
        self.etcdctl(
            *(
                "snapshot",
                "restore",
                str(self.directory / "snapshot.db"),
                "--data-dir",
                str(self._data),
            ),
            *("--initial-cluster", f"default={peer}", "--initial-advertise-peer-urls", peer),
        )

    def etcdctl(self, *arguments: str) -> None:
        environment = processes.environment(ETCDCTL_API="3")
        run(
            "etcdctl",
            f"--endpoints=http://127.0.0.1:{self._etcd_port}",
            *arguments,
            environment=environment,
        )

    def kubectl(self, *arguments: str, text: str = "") -> str:
        return run(
            "kubectl",
            f"--kubeconfig={self.kubeconfig}",
            "--request-timeout=10s",
            *arguments,
            given=text,
        )

    def create(self, item: dict[str, Any]) -> None:
        """Create a pod or a Node with its status."""
        path = (
            "/api/v1/nodes"
            if item["kind"] == "Node"
            else f"/api/v1/namespaces/{item['metadata']['namespace']}/pods"
        )
        created = json.loads(self.request("POST", path, item))
        if "status" in item:
            status = created | {"status": item["status"]}
            self.request("PUT", f"{path}/{item['metadata']['name']}/status", status)

    def store(self, objects: Iterable[tuple[str, dict[str, Any]]]) -> None:
        """Write objects to etcd directly, as JSON, under their keys: the API server would need minutes for them."""
        puts = (
            {"requestPut": {"key": _coded(f"/registry/{key}"), "value": _coded(json.dumps(item))}}
            for key, item in objects
        )
        url = f"http://127.0.0.1:{self._etcd_port}/v3/kv/txn"
        while batch := list(islice(puts, _IN_A_TRANSACTION)):
            run(
                "curl",
                "-sSf",
                "--noproxy",
                "*",
                "--data-binary",
                "@-",
                url,
                given=json.dumps({"success": batch}),
            )

    def request(
        self, method: str, path: str, body: Any = None, kind: str = "application/json"
    ) -> bytes:
        """Send one request as the administrator and return the body; raises OSError."""
        headers = {"Authorization": f"Bearer {_ADMIN}", "Content-Type": kind}
        with closing(self._connection()) as connection:
            connection.request(
                method, path, json.dumps(body) if body is not None else None, headers
            )
            answer = connection.getresponse()
            content = answer.read()
        if answer.status >= 300:
            raise OSError(f"{method} {path}: {answer.status} {content[:300]!r}")
        return content

    def kubeconfig_for(self, token: str, name: str) -> Path:
        return kubeconfig(
            self.directory / name,
            f"https://127.0.0.1:{self.port}",
            user=f"{{token: {token}}}",
            cluster=f'certificate-authority: "{self.certificate}"',
        )

    def _connection(self) -> HTTPSConnection:
        context = ssl.create_default_context(cafile=str(self.certificate))
        return HTTPSConnection("127.0.0.1", self.port, timeout=60, context=context)

    def _answers(self) -> None:
        with closing(self._connection()) as connection:
            connection.request("GET", "/livez")
            connection.getresponse().read()

    def _spawn(self, program: Path, *arguments: str | Path) -> int:
        with (self.directory / f"{program.name}.log").open("ab") as log:
            command = [str(word) for word in (program, *arguments)]
            child = subprocess.Popen(command, stdout=log, stderr=log, env=processes.environment())
        self._children[program.name] = child
        return child.pid

    def _until(self, name: str, attempt: Callable[[], object]) -> None:
        """Wait until the attempt raises nothing."""
        last: Exception | None = None
        for _ in processes.until(time.monotonic() + _LONGEST_START):
            if self._children[name].poll() is not None:
                break
            try:
                attempt()
            except (OSError, AssertionError) as error:
                last = error
            else:
                return
        raise OSError(
            f"{name} does not answer ({last}): {(self.directory / f'{name}.log').read_text()[-2000:]}"
        )


def _coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def free_ports(count: int) -> Sequence[int]:
    """Return ports that are free now; all are held until the last one is known."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports

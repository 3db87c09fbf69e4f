"""The real node: commands that change it, its pods and reservations, and waiting for conditions."""

import base64
import contextlib
import itertools
import json
import os
import re
import secrets
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

from tests.processes import environment
from tests.wire import needs

from .slow import pause, undisturbed

T = TypeVar("T")

NETWORK: Final = "kubenet"
STORE: Final = Path("/var/lib/cni/networks") / NETWORK
CNI_CACHE: Final = Path("/var/lib/cni/cache/results")
CHECKPOINTS: Final = Path("/var/lib/dockershim/sandbox")
BRIDGE_PORTS: Final = Path("/sys/class/net/cbr0/brif")
HOST_LOCAL: Final = Path("/usr/lib/cni/host-local")
ROOT: Final = Path(__file__).parents[2]
_SCRIPT: Final = ROOT / "hack" / "cluster"
_LABEL: Final = "nodeleak-e2e"
_ANYTHING: Final = object()


def _cluster(*arguments: str, seconds: float = 180) -> str:
    """Run hack/cluster with its own settings."""
    own = {
        name: value
        for name, value in os.environ.items()
        if "CLUSTER" in name or name == "KUBELET_EXTRA"
    }
    return run(_SCRIPT, *arguments, env=environment(**own), seconds=seconds).stdout


def run(
    *command: str | Path,
    codes: Iterable[int] = (0,),
    text: str = "",
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    seconds: float = 180,
) -> subprocess.CompletedProcess[str]:
    """Run a command; fail with its output if its exit code is not in `codes`."""
    pause()
    done = subprocess.run(  # noqa: S603 (every command is spelled out in a test)
        [str(argument) for argument in command],
        input=text,
        capture_output=True,
        text=True,
        env=environment() if env is None else env,
        cwd=cwd,
        timeout=seconds,
        check=False,
    )
    assert done.returncode in codes, (
        f"{' '.join(done.args)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    )
    pause()
    return done


def eventually(check: Callable[[], T], seconds: float = 180, equal: object = _ANYTHING) -> T:
    """Repeat `check` until it passes, and returns `equal` if that is given; after `seconds`, raise its last failure.

    What it looks up or unpacks may not be there yet.
    """
    deadline = time.monotonic() + seconds  # noqa: TID251 (a real node takes real time)
    while True:
        try:
            return _checked(check, equal)
        except (AssertionError, OSError, LookupError, ValueError):
            if time.monotonic() > deadline:  # noqa: TID251
                raise
        time.sleep(0.2)  # noqa: TID251


def throughout(check: Callable[[], object], seconds: float, equal: object = _ANYTHING) -> None:
    """Repeat `check` for some time; it must always pass, and return `equal` if that is given."""
    deadline = time.monotonic() + seconds  # noqa: TID251 (as above)
    while time.monotonic() < deadline:  # noqa: TID251
        _checked(check, equal)
        time.sleep(0.2)  # noqa: TID251


def _checked(check: Callable[[], T], equal: object) -> T:
    found = check()
    assert equal is _ANYTHING or found == equal, f"{found!r}, and not {equal!r}"
    return found


def stress(report: Path, *options: str) -> tuple[int, str, dict[str, Any]]:
    """Run the stress test; return its exit code, what it printed, and its report."""
    # SIGTERM first: it puts back what it has changed on the node.
    ended = ("timeout", "--kill-after=90", "1500")
    done = run(
        *ended,
        sys.executable,
        "-m",
        "tests.stress",
        f"--report={report}",
        *options,
        codes=(0, 1),
        cwd=ROOT,
        seconds=1600,
    )
    output = done.stdout + done.stderr
    assert report.exists(), output
    return done.returncode, output, json.loads(report.read_text())


def reservations(store: Path = STORE) -> dict[str, str]:
    """Read host-local's directory without the agent's code: container id by address."""
    found = {}
    for file in store.iterdir() if store.is_dir() else ():
        if file.name != "lock" and not file.name.startswith("last_reserved_ip"):
            with contextlib.suppress(FileNotFoundError):
                found[file.name] = file.read_text().partition("\n")[0]
    return found


def host_local(
    verb: str,
    container_id: str,
    ranges: Iterable[str],
    network: str = NETWORK,
    store: Path = STORE,
    program: Path = HOST_LOCAL,
) -> Any:
    """Run ADD or DEL of the real host-local for a container; return the result of ADD."""
    ipam = {
        "type": "host-local",
        "ranges": [[{"subnet": one}] for one in ranges],
        "dataDir": str(store.parent),
    }
    done = run(
        program,
        text=json.dumps({"cniVersion": "0.3.1", "name": network, "ipam": ipam}),
        env=environment(
            CNI_COMMAND=verb,
            CNI_CONTAINERID=container_id,
            CNI_NETNS="/proc/self/ns/net",
            CNI_NETNS_OVERRIDE="1",  # newer plugins refuse their own
            CNI_IFNAME="eth0",
            CNI_PATH=str(program.parent),
        ),
    )
    return json.loads(done.stdout or "null")


@dataclass(frozen=True)
class Cluster:
    """The one-node cluster of hack/cluster."""

    node: str
    admin: Path  # The kubeconfig of its administrator
    kubelet: Path  # The kubelet's kubeconfig, which an agent on the node can use
    pod_cidr: str
    program: str | Path = "kubectl"

    @classmethod
    def up(cls) -> "Cluster":
        """Start all parts and wait until the node is ready."""
        _cluster("start", seconds=300)
        values = dict(re.findall(r"^export (\w+)=(.*)$", _cluster("env"), re.MULTILINE))
        admin = Path(values["KUBECONFIG"])
        cluster = cls(values["NODE_NAME"], admin, admin.with_name("kubelet.conf"), "")
        return replace(cluster, pod_cidr=cluster.described_node()["spec"]["podCIDR"])

    def start(self, *parts: str) -> None:
        _cluster("start", *parts)

    def stop(self, *parts: str) -> None:
        _cluster("stop", *parts)

    def pid(self, part: str) -> int:
        """Return the pid of a part, which the cluster has to have started."""
        (line,) = [
            line.split() for line in _cluster("status").splitlines() if line.startswith(f"{part} ")
        ]
        needs(line[1].isdecimal(), f"a {part} that hack/cluster started, and may stop")
        return int(line[1])

    @contextlib.contextmanager
    def stopped(self, part: str) -> Iterator[None]:
        """Stop a part during the block."""
        self.pid(part)
        self.stop(part)
        try:
            yield
        finally:
            self.start(part)

    @contextlib.contextmanager
    def frozen(self, part: str) -> Iterator[None]:
        """Suspend a part (SIGSTOP) during the block."""
        pid = self.pid(part)
        with undisturbed():
            os.kill(pid, signal.SIGSTOP)
            try:
                yield
            finally:
                os.kill(pid, signal.SIGCONT)

    def leak(self) -> None:
        """Cause leaks: restart the kubelet without the containers of the pods and their checkpoints."""
        _cluster("leak")

    def kubectl(self, *arguments: str, text: str = "") -> str:
        """Run kubectl as administrator."""
        return run(self.program, "--kubeconfig", self.admin, *arguments, text=text).stdout

    def get(self, *what: str) -> Any:
        """Return objects as the API server has them."""
        return json.loads(self.kubectl("get", "-o", "json", *what))

    def described_node(self) -> Any:
        """Return the Node object."""
        return self.get("node", self.node)

    def apply(self, *objects: dict[str, Any]) -> None:
        """Create objects in the API server, or change them."""
        self.kubectl(
            "apply",
            "-f",
            "-",
            text=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}),
        )

    @contextlib.contextmanager
    def may(
        self, name: str, rules: Iterable[dict[str, Any]], subject: dict[str, str]
    ) -> Iterator[None]:
        """Bind a role of these rules to a subject during the block."""
        group = "rbac.authorization.k8s.io"
        common = {"apiVersion": f"{group}/v1", "metadata": {"name": name}}
        role = {"apiGroup": group, "kind": "ClusterRole", "name": name}
        self.apply(
            {**common, "kind": "ClusterRole", "rules": list(rules)},
            {**common, "kind": "ClusterRoleBinding", "roleRef": role, "subjects": [subject]},
        )
        try:
            yield
        finally:
            self.kubectl("delete", "clusterrole,clusterrolebinding", name)

    @contextlib.contextmanager
    def account(self, name: str, rules: Iterable[dict[str, Any]], config: Path) -> Iterator[Path]:
        """Have a service account with these rights during the block, and write its kubeconfig."""
        account = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
        self.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})

        def token() -> str:
            """Up to 1.23, a controller creates a secret for it."""
            secrets = self.get("serviceaccount", name).get("secrets")
            assert secrets, "its token is not made yet"
            return base64.b64decode(
                self.get("secret", secrets[0]["name"])["data"]["token"]
            ).decode()

        try:
            tree = json.loads(self.kubectl("config", "view", "--raw", "--minify", "-o", "json"))
            tree["users"][0]["user"] = {"token": eventually(token)}
            config.write_text(json.dumps(tree))
            with self.may(name, rules, account):
                yield config
        finally:
            self.kubectl("delete", "serviceaccount", name)

    def reserve(self, count: int) -> list[str]:
        """Create leaks: reserve addresses with the real host-local for containers that do not exist."""
        return [
            host_local("ADD", secrets.token_hex(32), [self.pod_cidr])["ips"][0][
                "address"
            ].partition("/")[0]
            for _ in range(count)
        ]

    def release_ownerless(self) -> None:
        """Release addresses without a container with host-local's DEL, as an operator would."""
        reserved_before = reservations()
        known = set(docker("ps", "--all", "--quiet", "--no-trunc").split())
        for container_id in set(reserved_before.values()) - known:
            host_local("DEL", container_id, [self.pod_cidr])
            for cached in CNI_CACHE.glob(f"*-{container_id}-*"):
                cached.unlink()


class Pods:
    """Pods with one container on the node, created and removed through the API server."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        family = secrets.token_hex(2)
        self._names = (f"e2e-{family}-{number}" for number in itertools.count())

    def __call__(self, count: int) -> dict[str, str]:
        """Create pods and wait until all run; return `namespace/name` by address."""
        self.ask_for(count)
        return self.running()

    def ask_for(self, count: int) -> list[str]:
        """Create pods without waiting, and return their names."""
        names = list(itertools.islice(self._names, count))
        self._cluster.apply(*(pod_with(self._cluster, name) for name in names))
        return names

    def running(self) -> dict[str, str]:
        """Wait until every pod runs in a running sandbox with the address that the API server shows."""

        def check() -> dict[str, str]:
            pods = self.now()
            waiting = {pod["metadata"]["name"]: pod["status"] for pod in pods if not is_ready(pod)}
            assert not waiting
            owners = {
                f"{pod['metadata']['namespace']}/{pod['metadata']['name']}": pod["status"]["podIP"]
                for pod in pods
            }
            reserved_before, sandboxes = reservations(), running_sandboxes()
            assert {name: reserved_before.get(ip) for name, ip in owners.items()} == sandboxes
            return {ip: name for name, ip in owners.items()}

        return eventually(check)

    def now(self) -> list[dict[str, Any]]:
        """Return the pods as the API server has them."""
        items: list[dict[str, Any]] = self._cluster.get("pods", "-l", f"app={_LABEL}")["items"]
        return items

    def phases(self, start: str) -> set[str]:
        """Return the phases of the pods whose names begin like this."""
        return {
            pod["status"]["phase"]
            for pod in self.now()
            if pod["metadata"]["name"].startswith(start)
        }

    def wait_for(self, names: Iterable[str], what: str) -> None:
        """Wait for a condition of `kubectl wait`."""
        self._cluster.kubectl("wait", "pods", *names, f"--for={what}", "--timeout=120s")

    def delete(self, names: Iterable[str]) -> None:
        """Delete pods without waiting."""
        self._cluster.kubectl("delete", "pods", *names, "--grace-period=1", "--wait=false")

    def clear(self) -> None:
        """Force-delete all pods of these tests and wait until the kubelet has stopped them."""
        self._cluster.kubectl(
            "delete", "pods", "-l", f"app={_LABEL}", "--grace-period=0", "--force"
        )

        def left() -> tuple[dict[str, str], dict[str, str]]:
            if not (sandboxes := running_sandboxes()):
                self._cluster.release_ownerless()
            return sandboxes, reservations()

        eventually(left, equal=({}, {}))


@dataclass(frozen=True)
class Trace:
    """The metadata and content that show a change of a file or directory."""

    inode: int
    mode: int
    owner: tuple[int, int]
    mtime_ns: int
    content: bytes | None  # None for a directory


def traces(*directories: Path) -> dict[Path, Trace]:
    """Return the traces of directories and their content."""
    return {path: _trace(path) for one in directories for path in (one, *one.rglob("*"))}


def _trace(path: Path) -> Trace:
    at = path.lstat()
    content = None if stat.S_ISDIR(at.st_mode) else path.read_bytes()
    return Trace(at.st_ino, at.st_mode, (at.st_uid, at.st_gid), at.st_mtime_ns, content)


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = {one["type"]: one["status"] for one in pod["status"].get("conditions", ())}
    return conditions.get("Ready") == "True" and bool(pod["status"].get("podIP"))


def docker(*arguments: str) -> str:
    return run("docker", *arguments).stdout


def running_sandboxes() -> dict[str, str]:
    """Return the id of the running sandbox of each pod of these tests by `namespace/name`, as docker has it."""
    shown = docker(
        "ps",
        "--no-trunc",
        "--filter=label=io.kubernetes.docker.type=podsandbox",
        "--filter=label=io.kubernetes.pod.namespace=default",
        '--format={{.Label "io.kubernetes.pod.namespace"}}/{{.Label "io.kubernetes.pod.name"}} {{.ID}}',
    )
    return dict(line.split() for line in shown.splitlines())


def remove_left_containers() -> None:
    """Remove the containers, beside those of pods, that tests left when they were interrupted."""
    if left := docker("ps", "--all", "--quiet", f"--filter=name={_LABEL}").split():
        docker("rm", "--force", *left)


def remove_pod_containers(pods: Iterable[str]) -> None:
    """Remove the containers of pods (`namespace/name`) with docker rm -f."""
    for pod in pods:
        namespace, name = pod.split("/")
        filters = (
            f"--filter=label=io.kubernetes.pod.{key}={value}"
            for key, value in (("namespace", namespace), ("name", name))
        )
        docker("rm", "-f", *docker("ps", "-aq", *filters).split())


def forget_sandboxes(cluster: Cluster, pods: Iterable[str]) -> None:
    """Restart the kubelet without the containers of pods (`namespace/name`) and without their checkpoints: it leaks."""
    pods, sandboxes = list(pods), running_sandboxes()
    with cluster.stopped("kubelet"):
        remove_pod_containers(pods)
        for pod in pods:
            (CHECKPOINTS / sandboxes[pod]).unlink()


@contextlib.contextmanager
def process_in_the_namespace_of(sandbox: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `sleep` where a container's network is: the namespace, its veth and its address live as long as it does."""
    pid = docker("inspect", "--format={{.State.Pid}}", sandbox).strip()
    command = ["nsenter", f"--target={pid}", "--net", "sleep", "600"]
    with subprocess.Popen(command) as process:  # noqa: S603 (spelled out above)
        try:
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def moved_away(path: Path) -> Iterator[None]:
    """Rename a file or directory of the node during the block."""
    away = path.parent.parent / f"nodeleak-e2e-{path.name}"
    path.rename(away)
    try:
        yield
    finally:
        away.rename(path)


def pod_with(
    cluster: Cluster,
    name: str,
    limits: Mapping[str, int] = MappingProxyType({}),
    finalizers: Iterable[str] = (),
) -> dict[str, Any]:
    """Return a pod for the node; it is sent there past the scheduler. `limits`: what its container asks for."""
    resources = {"limits": {what: str(count) for what, count in limits.items()}}
    container = {
        "name": "main",
        "image": "nodeleak/busybox:1",
        "imagePullPolicy": "Never",
        "resources": resources,
    }
    metadata = {
        "name": name,
        "namespace": "default",
        "labels": {"app": _LABEL},
        "finalizers": list(finalizers),
    }
    spec = {
        "nodeName": cluster.node,
        "automountServiceAccountToken": False,
        "containers": [container],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def deployment_of(pod: dict[str, Any]) -> dict[str, Any]:
    """Return a Deployment of one pod like this, which the scheduler sends where it wants."""
    name = pod["metadata"]["name"]
    labels = pod["metadata"]["labels"] | {"deployment": name}
    spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"deployment": name}},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def forget_resource(cluster: Cluster, resource: str) -> None:
    """Remove a resource from the node's status, where the kubelet keeps it forever."""
    path = f"/api/v1/nodes/{cluster.node}"

    def check() -> None:
        node = cluster.described_node()
        for values in (node["status"]["capacity"], node["status"]["allocatable"]):
            values.pop(resource, None)
        cluster.kubectl("replace", "--raw", f"{path}/status", "-f", "-", text=json.dumps(node))

    eventually(check)  # the kubelet may write it in between

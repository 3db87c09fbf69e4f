"""A node of today (hack/cluster --profile), in namespaces of its own, seen from outside."""

import contextlib
import json
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agent.sources.source_error import SourceError
from tests.containerd.client import Kubelet
from tests.e2e.node import (
    ROOT,
    Cluster,
    eventually,
    host_local,
    is_ready,
    pod_with,
    reservations,
    run,
)
from tests.e2e.nodeleak import BOLD, Cleaned, Daemon, Nodeleak, Report
from tests.processes import environment
from tests.wire import needs

_SCRIPT: Final = ROOT / "hack" / "cluster"
_CANNOT_RUN: Final = (
    3  # The exit code of hack/cluster if this machine cannot have what the profile needs
)
_KUBECONFIG: Final = Path("/etc/kubernetes/kubelet.conf")  # The kubelet's, on the node


@dataclass(frozen=True)
class ModernNode:
    profile: str
    env: Mapping[str, str]  # What `hack/cluster env` prints
    cluster: Cluster  # With the name and credentials of this node
    nodeleak: Nodeleak

    @classmethod
    def up(cls, logs: Path) -> "ModernNode":
        """Start the node of CLUSTER_PROFILE, unless it runs; skip the test if this machine cannot have it."""
        profile = os.environ.get("CLUSTER_PROFILE", "containerd")
        started = subprocess.run(  # noqa: S603 (our own script)
            [_SCRIPT, "start", f"--profile={profile}"],
            capture_output=True,
            text=True,
            env=environment(),
            timeout=600,
            check=False,
        )
        needs(started.returncode != _CANNOT_RUN, started.stderr.strip())
        assert started.returncode == 0, started.stdout + started.stderr
        env = dict(re.findall(r"^export (\w+)=(.*)$", _cluster(profile, "env"), re.MULTILINE))
        kubectl = Path(env["CLUSTER_KUBERNETES_BIN"]) / "kubectl"
        cluster = Cluster(
            env["NODE_NAME"], Path(env["KUBECONFIG"]), _KUBECONFIG, env["NODE_POD_CIDR"], kubectl
        )
        return cls(profile, env, cluster, Nodeleak(cluster, logs))

    # The node as a whole

    def start(self) -> None:
        """Start what does not run, and wait until the node is ready."""
        _cluster(self.profile, "start")

    def leak(self, how: str = "wipe") -> None:
        """Let the runtime forget its pods: `wipe`, `ghosts` or `records` (hack/cluster --help)."""
        _cluster(self.profile, "leak", f"--how={how}")

    def reboot(self) -> None:
        """Lose every process and what is below /run, keep /var, and start again."""
        _cluster(self.profile, "reboot")

    def load(self, archive: Path) -> None:
        """Load an image, as docker save writes it, now and whenever the node has lost its images."""
        _cluster(self.profile, "load", str(archive))

    @contextlib.contextmanager
    def stopped(self, *units: str) -> Iterator[None]:
        """Stop the kubelet or the runtime during the block."""
        _cluster(self.profile, "stop", *units)
        try:
            yield
        finally:
            _cluster(self.profile, "start", *units)

    def restart_kubelet(self) -> None:
        with self.stopped("kubelet"):
            pass

    @property
    def inside(self) -> tuple[str, ...]:
        """Command prefix: run on the node."""
        return (str(_SCRIPT), "in", f"--profile={self.profile}")

    def run(self, *command: str, codes: tuple[int, ...] = (0,)) -> str:
        return run(*self.inside, *command, codes=codes).stdout

    def kubectl(self, *arguments: str, text: str = "") -> str:
        return self.cluster.kubectl(*arguments, text=text)

    @contextlib.contextmanager
    def replaced_plugin(self, name: str, script: str) -> Iterator[None]:
        """Put a script in place of a CNI plugin, which it finds as `"$0.real"`.

        The plugin is never missing: CRI-O would drop the network, and not look again.
        """
        plugin = self.plugins / name
        real = Path(shutil.copy2(plugin, self.plugins / f"{name}.real"))
        new = self.plugins / f"{name}.new"
        new.write_text(script)
        new.chmod(0o755)
        new.replace(plugin)
        try:
            yield
        finally:
            real.replace(plugin)

    # Its files, from outside

    @property
    def net_d(self) -> Path:
        """Its /etc/cni/net.d."""
        return Path(self.env["NODE_NET_D"])

    @property
    def plugins(self) -> Path:
        """Its /opt/cni/bin."""
        return Path(self.env["NODE_CNI_BIN"])

    @property
    def number(self) -> str:
        """The last part of its address, which its networks have in theirs."""
        return self.env["NODE_IP"].rpartition(".")[2]

    def write(self, path: str, content: str) -> None:
        """Write a file of the node."""
        run(*self.inside, "sh", "-c", 'mkdir -p "${0%/*}" && cat >"$0"', path, text=content)

    @property
    def networks(self) -> Path:
        """Its /var/lib/cni/networks."""
        return Path(self.env["NODE_STATE"], "lib/cni/networks")

    def reserved(self, network: str = "") -> dict[str, str]:
        """The container ids by address, read without the agent's code. `network`: default: all of them."""
        stores = [self.networks / network] if network else list(self.networks.glob("*"))
        return {ip: owner.strip() for store in stores for ip, owner in reservations(store).items()}

    @property
    def network(self) -> str:
        """The name of the default network."""
        (configuration,) = self.net_d.glob("*.conflist")
        name: str = json.loads(configuration.read_text())["name"]
        return name

    def reserve(self, count: int, cidr: str = "") -> list[str]:
        """Create leaks: reserve addresses with the real host-local for containers that do not exist.

        `cidr`: the network's range; empty: the node's pod CIDR.
        """
        program, store = Path(self.env["NODE_CNI_BIN"]) / "host-local", self.networks / self.network
        ranges = [cidr or self.cluster.pod_cidr]
        results = [
            host_local("ADD", secrets.token_hex(32), ranges, self.network, store, program)
            for _ in range(count)
        ]
        return [result["ips"][0]["address"].partition("/")[0] for result in results]

    # The agent

    def scan(self, *options: str, codes: tuple[int, ...] = (0,)) -> Report:
        return self.nodeleak.scan(*options, codes=codes, wrapped=self.inside)

    def screen(self, *options: str) -> str:
        """Return what `nodeleak scan` prints for a person."""
        return self.nodeleak.screen(*options, wrapped=self.inside)

    def clean(self, *options: str, codes: tuple[int, ...] = (0,)) -> Cleaned:
        return self.nodeleak.clean(*BOLD, *options, codes=codes, wrapped=self.inside)

    def daemon(self, *options: str) -> contextlib.AbstractContextManager[Daemon]:
        """Run the daemon on the node; it listens at the node's address."""
        return self.nodeleak.running(*options, wrapped=self.inside, address=self.env["NODE_IP"])

    # Pods

    def pods(self, count: int) -> dict[str, str]:
        """Create pods and wait until all run; return their names by address."""
        names = self.ask_for(count)
        self.ready(names)
        return eventually(lambda: {self.address(name): name for name in names})

    def ask_for(self, count: int) -> list[str]:
        """Create pods without waiting, and return their names."""
        names = [f"e2e-{self.profile}-{secrets.token_hex(3)}" for _ in range(count)]
        self.cluster.apply(*(pod_with(self.cluster, name) for name in names))
        return names

    def ready(self, names: Iterable[str]) -> None:
        """Wait until pods run."""
        self.kubectl("wait", "pods", *names, "--for=condition=Ready", "--timeout=120s")

    def is_ready(self, name: str) -> bool:
        return is_ready(self.pod(name))

    def pod(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.get("pod", name)
        return found

    def address(self, name: str) -> str:
        """Its address; it has none for a moment while its sandbox is made again, though it is still ready."""
        status = self.pod(name)["status"]
        assert "podIP" in status, status
        return str(status["podIP"])

    def recreated(self, pods: Mapping[str, str]) -> dict[str, str]:
        """Wait until pods (names by address) run with other addresses, and return these."""

        def check() -> dict[str, str]:
            self.ready(pods.values())
            now = {self.address(name): name for name in pods.values()}
            assert not now.keys() & pods.keys()
            return now

        return eventually(check)

    @property
    def first(self) -> int:
        """Its first process, as it is seen from outside."""
        (line,) = [
            line.split()
            for line in _cluster(self.profile, "status").splitlines()
            if line.startswith("node ")
        ]
        return int(line[1])

    @property
    def own_pods(self) -> tuple[str, ...]:
        """Options of kubectl: the pods of tests on this node. Other nodes share its control plane."""
        return ("-l", "app=nodeleak-e2e", f"--field-selector=spec.nodeName={self.cluster.node}")

    @property
    def kubelet(self) -> Kubelet:
        """Asks the runtime as the kubelet does."""
        return Kubelet(Path(f"/proc/{self.first}/root{self.env['NODE_CRI_SOCKET']}"), "", "")

    def clear(self) -> None:
        """Delete all pods of tests, remove what is left of them, and release every address."""
        self.kubectl("delete", "pods", *self.own_pods, "--grace-period=0", "--force")
        kubelet = self.kubelet
        eventually(lambda: _collect(kubelet))
        for network in self.networks.glob("*"):
            for ip in reservations(network):
                (network / ip).unlink()


def _collect(kubelet: Kubelet) -> None:
    """Remove what is left of the sandboxes of tests, as the kubelet does once a minute."""
    try:
        for sandbox in kubelet.sandboxes("default"):
            kubelet.stop(sandbox)
            kubelet.remove(sandbox)
        left = kubelet.sandboxes("default")
    except SourceError as error:  # the kubelet does the same at the same time
        raise AssertionError(str(error)) from error
    assert not left


def _cluster(profile: str, command: str, *arguments: str) -> str:
    return run(
        _SCRIPT, command, f"--profile={profile}", *arguments, env=environment(), seconds=600
    ).stdout

"""The second node: a real kubelet on a real containerd, with bridge and host-local in network cbr0."""

import contextlib
import json
import os
import secrets
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from agent.sources.source_error import SourceError
from tests.containerd.client import Kubelet

from .agent import BOLD, Cleaned, Daemon, Nodeleak, Report
from .node import Cluster, docker, eventually, pod_with, reservations, run

NODE: Final = "nodeleak-containerd"
_IMAGES: Final = ("nodeleak/pause:1", "nodeleak/busybox:1")
_CTR: Final = ("ctr", "-n", "k8s.io")


@dataclass(frozen=True)
class ContainerdNode:
    cluster: Cluster
    """With the name and credentials of this node."""
    nodeleak: Nodeleak
    state: Path
    """The directories that are its /var/lib/cni and so on."""

    @classmethod
    def up(cls, cluster: Cluster, logs: Path) -> "ContainerdNode":
        """Start it, unless it runs, and wait until it is ready."""
        cluster.start("containerd")
        state = cluster.admin.with_name("containerd")
        own = replace(cluster, node=NODE, kubelet=cluster.admin.with_name("containerd.conf"))
        return cls(own, Nodeleak(own, logs), state)

    @property
    def store(self) -> Path:
        return self.state / "cni/networks/cbr0"

    @property
    def first(self) -> int:
        """Return its first process, as it is seen from outside."""
        unshare = int(self.cluster.admin.parent.joinpath("run/containerd").read_text().split()[0])
        return int(run("pgrep", "-P", str(unshare)).stdout)

    @property
    def inside(self) -> tuple[str, ...]:
        """Command prefix: run in the node's mount and PID namespaces."""
        # nsenter forks: its child must end with it.
        return ("nsenter", f"--target={self.first}", "--mount", "--pid", "setpriv", "--pdeathsig=TERM", "--")

    def run(self, *command: str, codes: tuple[int, ...] = (0,)) -> str:
        return run(*self.inside, *command, codes=codes).stdout

    def scan(self, *options: str, codes: tuple[int, ...] = (0,)) -> Report:
        return self.nodeleak.scan(*options, codes=codes, wrapped=self.inside)

    def clean(self, *options: str, codes: tuple[int, ...] = (0,)) -> Cleaned:
        return self.nodeleak.clean(*BOLD, *options, codes=codes, wrapped=self.inside)

    def daemon(self, *options: str) -> contextlib.AbstractContextManager[Daemon]:
        return self.nodeleak.running(*options, wrapped=self.inside)

    def load(self, image: str) -> None:
        """Import an image of docker, now and whenever the node has lost its images."""
        archive = self.state / "images.tar"
        docker("save", *_IMAGES, image, "-o", str(archive))
        self.run(*_CTR, "images", "import", str(archive))

    @property
    def reserved(self) -> dict[str, str]:
        """The container ids by address, read without the agent's code."""
        return {ip: container_id.strip() for ip, container_id in reservations(self.store).items()}

    def pods(self, count: int) -> list[str]:
        """Create pods and wait until all run; return their addresses."""
        names = self.ask_for(count)
        self.cluster.kubectl("wait", "pods", *names, "--for=condition=Ready", "--timeout=120s")
        return [self.pod(name)["status"]["podIP"] for name in names]

    def ask_for(self, count: int) -> list[str]:
        names = [f"e2e-containerd-{secrets.token_hex(3)}" for _ in range(count)]
        pods = [pod_with(self.cluster, name, {}) for name in names]
        self.cluster.kubectl("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": pods}))
        return names

    def pod(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.cluster.kubectl("get", "pod", name, "-o", "json"))
        return found

    def clear(self) -> None:
        """Delete all pods, remove what is left of them, and release every address."""
        self.cluster.kubectl("delete", "pods", "-l", "app=nodeleak-e2e", "--grace-period=0", "--force")
        eventually(lambda: _empty(self.tasks()), 90)
        eventually(self._collect, 90)
        for ip in self.reserved:
            (self.store / ip).unlink()

    def _collect(self) -> None:
        """Remove what is left of sandboxes, as the kubelet does once a minute."""
        try:
            for sandbox in self.kubelet.sandboxes():
                self.kubelet.stop(sandbox)
                self.kubelet.remove(sandbox)
        except SourceError as error:  # the kubelet does the same at the same time
            raise AssertionError(str(error)) from error
        _empty(self.records())

    @property
    def kubelet(self) -> Kubelet:
        """Asks containerd as the kubelet does."""
        return Kubelet(Path(f"/proc/{self.first}/root/run/containerd/containerd.sock"), "", "")

    def tasks(self) -> list[str]:
        return self.run(*_CTR, "tasks", "ls", "-q").split()

    def records(self) -> list[str]:
        return self.run(*_CTR, "containers", "ls", "-q").split()

    def pid(self, command: str) -> int:
        """Return a process of the node, as it is seen from outside."""
        (pid,) = run("pgrep", "-x", "--ns", str(self.first), "--nslist", "pid", "-o", command).stdout.split()
        return int(pid)

    def kill(self, command: str) -> None:
        """Kill a process, which the node starts again."""
        os.kill(self.pid(command), signal.SIGKILL)

    @contextlib.contextmanager
    def held(self, *commands: str) -> Iterator[None]:
        """Stop containerd or the kubelet during the block."""
        for command in commands:
            (self.state / f"hold-{command}").touch()
            eventually(lambda command=command: _gone(self, command), 30)  # type: ignore[misc]
        try:
            yield
        finally:
            for command in commands:
                (self.state / f"hold-{command}").unlink()
            if not any(self.state.glob("hold-*")):
                self.cluster.start("containerd")

    def lose_runtime_state(self, *, namespaces: bool) -> None:
        """Lose every container with all records, as a reinstallation does, and keep /var/lib/cni.

        `namespaces`: whether the network namespaces are removed too; otherwise their addresses still answer.
        """
        with self.held("kubelet"):
            for task in self.tasks():
                self.run(*_CTR, "tasks", "kill", "-s", "KILL", task, codes=(0, 1))
            with self.held("containerd"):
                self.run("sh", "-c", _LOSE_STATE)
                if namespaces:
                    self.run("sh", "-c", _DELETE_NAMESPACES)

    def remove_pods_with_ctr(self) -> None:
        """Remove the tests' sandboxes and containers as a script with `ctr` does: nobody runs CNI DEL for them."""
        with self.held("kubelet"):
            for one in self.run(*_CTR, "containers", "ls", "-q", _OF_TESTS).split():
                self.run(*_CTR, "tasks", "rm", "--force", one, codes=(0, 1))
                self.run(*_CTR, "containers", "rm", one)
            with self.held("containerd"):  # it remembers them until it restarts
                self.run("sh", "-c", _DELETE_NAMESPACES)

    def forget_results(self) -> None:
        """Remove libcni's cached results of sandboxes that no longer have a record."""
        records = set(self.records())
        for path in (self.state / "cni/results").iterdir():
            if not any(record in path.name for record in records):
                path.unlink()


_OF_TESTS: Final = 'labels."io.kubernetes.pod.namespace"==default'
_DELETE_NAMESPACES: Final = "for one in /run/netns/cni-*; do umount $one && rm $one; done"
_LOSE_STATE: Final = """
pkill -KILL -x containerd-shim
awk '$2 ~ "^/run/containerd/|^/var/lib/containerd/" {print $2}' /proc/mounts | tac | xargs -r umount -l
rm -rf /run/containerd/* /var/lib/containerd/*
"""


def _empty(found: list[str]) -> None:
    assert not found


def _gone(node: ContainerdNode, command: str) -> None:
    assert run("pgrep", "-x", "--ns", str(node.first), "--nslist", "pid", command, codes=(0, 1)).returncode == 1

"""A whole node of today (hack/cluster --profile): pods come and go; runtime, kubelet and slowed CNI plugins are killed.

`nodeleak run --cleanup=auto` cleans without waiting periods. The kernel alone says who has which address (`kernel.py`,
`oracle.py`): no live process may lose its reservation, and no address may be in two network namespaces.
"""

import contextlib
import io
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from ipaddress import IPv4Network
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from agent.sources.source_error import SourceError
from tests import processes
from tests.containerd.client import Kubelet
from tests.e2e.modern.node import ModernNode
from tests.e2e.node import run
from tests.e2e.nodeleak import Daemon
from tests.stress.checker import KEPT, Action
from tests.stress.cleaners import AT_ONCE, WITHOUT_CAPS
from tests.stress.kernel import Kernel
from tests.stress.ledger import Store
from tests.stress.oracle import Oracle
from tests.stress.run import Cleaner, Context

RUNTIMES: Final = {
    "containerd": "containerd",
    "crio": "crio",
}  # The program of the runtime by profile
_CLEANUP: Final = (
    "--cleanup=auto",
    "--cleanup-network=auto",
    "--release-host-ports=on",
    *AT_ONCE,
    *WITHOUT_CAPS,
)
"""No pod here has host ports, and of planted leaks nothing says so: with CRI-O, the daemon would refuse all of them."""
_SETTINGS: Final = ("--interval=500ms", "--listen=:0", *_CLEANUP)
_EVERY_KILL, _EVERY_LEAK, _EVERY_CHANGE = (1.0, 5.0), (0.5, 4.0), (0.5, 3.0)
_EVERY_LOOK: Final = 0.3
_PLUGINS: Final = ("host-local", "bridge")
_SLOW: Final = """#!/bin/sh
sleep 0.1
"$0.real"
code=$?
sleep 0.1
exit $code
"""
"""In place of host-local: a pod is in the middle of being created or removed for longer than a snapshot takes."""
_SETTLES: Final = 8.0  # Seconds until pods that somebody else runs here have started again, after the node was cleared
_LONGEST_UNSTARTED, _LONGEST_WAIT, _WIND_DOWN = 20.0, 15.0, 120.0
_BATCH: Final = 4


class _DeployedDaemon(Cleaner):
    """The daemon on the node."""

    def __init__(self, node: ModernNode) -> None:
        self._node = node
        self._ends = contextlib.ExitStack()
        self._daemon: Daemon | None = None
        self._lines: list[dict[str, Any]] = []
        """The log of those that have ended."""

    def start(self) -> None:
        self._daemon = self._ends.enter_context(self._node.daemon(*_SETTINGS))

    def start_afresh(self) -> None:
        """Start another one, which has not paused any address for ten minutes."""
        self.end()
        self.start()

    def end(self) -> None:
        ended, self._daemon = self._daemon, None
        with contextlib.redirect_stdout(io.StringIO()):  # it shows its log, which is long
            self._ends.close()
        self._lines += ended.lines() if ended else []

    def lines(self) -> list[dict[str, Any]]:
        return self._lines + (self._daemon.lines() if self._daemon else [])

    @property
    def port(self) -> int | None:
        """Where it serves HTTP; None: it does not run now. Another thread may be ending it."""
        daemon = self._daemon
        return daemon.port if daemon else None

    def result(self) -> dict[str, Any]:
        events = Counter(line["event"] for line in self.lines())
        return {"name": "nodeleak run", "codes": {}, "events": dict(events.most_common())}


class WholeNode:
    """The node, its pods and everything that happens to them."""

    def __init__(self, context: Context, node: ModernNode) -> None:
        self._context, self._options, self._state = context, context.options, context.state
        self._ledger, self._node = context.ledger, node
        self._kernel = Kernel(node.first, node.env["NODE_POD_CIDR"], node.env["NODE_STATE"])
        self._plugin = _first_plugin(node)
        addresses = [str(ip) for ip in IPv4Network(node.env["NODE_POD_CIDR"]).hosts()]
        self.store = Store(node.networks / self._plugin["name"], addresses, context.ledger)
        self.journal = node.nodeleak.state_dir / "journal"
        self._daemon = _DeployedDaemon(node)
        self.cleaners = [self._daemon]
        self._ending: set[str] = set()
        self._oracle = Oracle(
            self._kernel.namespaces, self.store, context.ledger, self._released, self._ending
        )
        self._kills: Counter[str] = Counter()
        self._created = self._deleted = 0
        self._planted: set[str] = set()
        self._containers_lost = 0  # Containers that a killed runtime had made and not started
        self._left_behind = 0  # Network namespaces that the runtime forgot

    @contextlib.contextmanager
    def stays(self) -> Iterator[None]:
        """Pods of others stay."""
        for _ in processes.until(time.monotonic() + _SETTLES, every=0.5):
            self._oracle.tolerate()
        yield
        self._oracle.look()

    def watchers(self) -> Sequence[Callable[[], None]]:
        return [self._look, self._listen, self._remove_lost]

    def churn(self) -> Sequence[Callable[[], None]]:
        by_hand = [] if self._options.release is None else [self._release_by_hand]
        return [self._come_and_go, self._kill, self._kill_plugins, self._leak, *by_hand]

    def left(self) -> dict[str, str]:
        """Return the files in the store, without the reservations of pods that somebody else runs here."""
        alive = self._alive()
        return {name: found for name, found in self.store.left().items() if found not in alive}

    def release_by_name(self, addresses: Sequence[str]) -> None:
        with contextlib.suppress(AssertionError):  # another exit code: it is tried again
            self._node.clean("--apply", *(f"--ip={ip}" for ip in addresses))

    def result(self) -> dict[str, Any]:
        reclaimed = len(self._planted - set(self.store.left().values()))
        if self._oracle.false_findings:
            self._state.fail(
                f"called leaked, and alive: {', '.join(sorted(self._oracle.false_findings))}"
            )
        return {
            "pods": {"created": self._created, "deleted": self._deleted},
            "looks": self._oracle.looks,
            "kills": dict(self._kills),
            "planted": {"leaks": len(self._planted), "reclaimed": reclaimed},
            "containers lost": self._containers_lost,
            "namespaces left behind": self._left_behind,
            "false findings": sorted(self._oracle.false_findings),
            "left": self._explained(self.left().keys() - KEPT),
        }

    def _explained(self, addresses: AbstractSet[str]) -> dict[str, Any]:
        """Return what the daemon logged last of addresses that nobody has released."""
        return {
            ip: [line for line in self._daemon.lines() if line.get("ip") == ip][-3:]
            for ip in sorted(addresses)
        }

    # Threads

    def _look(self) -> None:
        while not self._state.over.wait(_EVERY_LOOK):
            self._oracle.look()

    def _listen(self) -> None:
        """Take what the agent calls leaked."""
        while not self._state.over.wait(1.0):
            if (port := self._daemon.port) is None:
                continue
            with contextlib.suppress(AssertionError):  # it is busy, or starts afresh
                url = f"http://127.0.0.1:{port}/api/v1/report"
                document = json.loads(self._node.run("curl", "-sSf", url))
                self._oracle.called_leaked(
                    {
                        found["container_id"]
                        for found in document["reservations"]
                        if found["state"] == "leaked"
                    }
                )

    def _come_and_go(self) -> None:
        """Create and delete some pods at a time; a pod that was asked for may be deleted before it has come."""
        chance = self._context.another_chance()
        while not self._state.stopping.wait(chance.uniform(*_EVERY_CHANGE)):
            with contextlib.suppress(
                AssertionError
            ):  # the API server is slow while everything dies
                pods = self._pods()
                staying = sorted(name for name, uid in pods.items() if uid not in self._ending)
                if len(staying) > self._options.workers // 2:
                    self._delete(chance.sample(staying, chance.randint(1, _BATCH)), pods)
                coming = min(chance.randint(1, _BATCH), self._options.workers - len(pods))
                self._created += len(self._node.ask_for(coming)) if coming > 0 else 0

    def _pods(self) -> dict[str, str]:
        """Return the UIDs of all pods by name, also of those that are ending."""
        listed = self._node.cluster.get("pods", *self._node.own_pods)
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in listed["items"]}

    def _delete(self, names: list[str], uids: dict[str, str]) -> None:
        self._ending |= {uids[name] for name in names}
        self._node.kubectl(
            "delete", "pods", *names, "--grace-period=1", "--wait=false", "--ignore-not-found"
        )
        self._deleted += len(names)

    def _kill(self) -> None:
        chance = self._context.another_chance()
        runtime = RUNTIMES[self._node.profile]
        while not self._state.stopping.wait(chance.uniform(*_EVERY_KILL)):
            self._wait_for_a_pod()
            program = chance.choice((runtime, runtime, "kubelet"))
            for pid in self._kernel.running({program}):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    self._kills[program] += 1

    def _kill_plugins(self) -> None:
        """Kill a plugin now and then; what it started goes on without it."""
        chance = self._context.another_chance()
        while not self._state.stopping.wait(chance.uniform(0.5, 3.0)):
            with contextlib.suppress(ProcessLookupError, IndexError):
                os.kill(chance.choice(self._kernel.running(_PLUGINS)), signal.SIGKILL)
                self._kills["plugins"] += 1

    def _wait_for_a_pod(self) -> None:
        """Wait until another pod has come: a node that is killed too often starts none."""
        before = self._ledger.counts()["allocations"]
        for _ in processes.until(time.monotonic() + _LONGEST_WAIT):
            if self._state.stopping.is_set() or self._ledger.counts()["allocations"] > before:
                return

    def _remove_lost(self) -> None:
        """Kill what a killed CRI-O has forgotten for good: each one delays the start of the kubelet by 3 s."""
        since: dict[int, float] = {}
        while not self._state.over.wait(1.0):
            now = time.monotonic()
            since = {pid: since.get(pid, now) for pid in self._kernel.unstarted()}
            for pid in [pid for pid, first in since.items() if now - first > _LONGEST_UNSTARTED]:
                groups = self._kernel.control_groups(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    self._containers_lost += 1
                self._state.over.wait(0.1)
                for group in groups:
                    with contextlib.suppress(OSError):
                        group.rmdir()

    def _leak(self) -> None:
        """Let the node's host-local reserve an address for a sandbox that never was."""
        chance = self._context.another_chance()
        while not self._state.stopping.wait(chance.uniform(*_EVERY_LEAK)):
            sandbox = f"{chance.getrandbits(256):064x}"
            self._ledger.action(Action.CREATED, sandbox)
            self._ledger.action(Action.RM_CALLED, sandbox)
            words = (
                f"CNI_COMMAND=ADD CNI_CONTAINERID={sandbox} CNI_NETNS=/proc/self/ns/net CNI_NETNS_OVERRIDE=1 "
                "CNI_IFNAME=eth0 CNI_PATH=/opt/cni/bin /opt/cni/bin/host-local.real"
            )
            done = run(
                *self._node.inside,
                "env",
                *words.split(),
                text=json.dumps(self._plugin),
                codes=(0, 1),
            )
            if done.returncode == 0:  # otherwise the range is full
                self._planted.add(sandbox)

    def _release_by_hand(self) -> None:
        """Remove the reservation of a pod that runs and is to go on, which must be noticed."""
        self._state.stopping.wait(self._options.release)
        while not self._state.stopping.wait(1.0):
            reserved = self.store.left()
            for namespace in self._kernel.namespaces():
                for ip in namespace.ips:
                    if (
                        namespace.pod
                        and namespace.pod not in self._ending
                        and reserved.get(ip) == namespace.sandbox
                    ):
                        print(f"released by hand: {ip} of {namespace.sandbox[:12]}", flush=True)
                        (self.store.directory / ip).unlink()
                        return

    # The end

    def wind_down(self) -> None:
        """Delete all pods and what the runtime has lost of them."""
        self._ending |= set(self._pods().values())
        self._node.kubectl(
            "delete", "pods", *self._node.own_pods, "--grace-period=1", "--timeout=90s"
        )
        kubelet = self._node.kubelet
        for _ in processes.until(time.monotonic() + _WIND_DOWN, every=0.5):
            with contextlib.suppress(SourceError):
                if not self._collected(kubelet):
                    break
        for namespace in self._kernel.namespaces():
            if not namespace.sandbox:
                self._left_behind += 1
                self._node.run("ip", "netns", "delete", namespace.name, codes=(0, 1))
        # The kernel would believe for up to a minute that they are still there.
        self._node.run("ip", "neigh", "flush", "dev", "cni0", codes=(0, 1, 2, 255))

    def _collected(self, kubelet: Kubelet) -> int:
        """Remove sandboxes as the kubelet does once a minute, and return how many there were."""
        sandboxes = kubelet.sandboxes().keys() - self._alive()
        for sandbox in sandboxes:
            kubelet.stop(sandbox)
            kubelet.remove(sandbox)
        return len(sandboxes)

    def _alive(self) -> set[str]:
        """Return the sandboxes with a live process."""
        return {namespace.sandbox for namespace in self._kernel.namespaces()}

    def _released(self) -> AbstractSet[str]:
        """Return the sandboxes of all releases, also of those that have not ended."""
        entries = (json.loads(file.read_text()) for file in self.journal.glob("*.json"))
        return {
            entry["container_id"] for entry in entries if entry.get("outcome") in {None, "released"}
        }


def _first_plugin(node: ModernNode) -> dict[str, Any]:
    """Return the first plugin of the default network, with the network's name."""
    conflist = json.loads(min(node.net_d.glob("*.conflist")).read_text())
    return {key: conflist[key] for key in ("cniVersion", "name")} | dict(conflist["plugins"][0])


@contextlib.contextmanager
def _small_range(node: ModernNode, addresses: int) -> Iterator[None]:
    """Let the node's network have only so many addresses, so that those that were released are given out again."""
    file = min(node.net_d.glob("*.conflist"))
    text = file.read_text()
    conflist = json.loads(text)
    first, *_ = hosts = list(IPv4Network(node.env["NODE_POD_CIDR"]).hosts())[10 : 10 + addresses]
    conflist["plugins"][0]["ipam"]["ranges"][0][0] |= {
        "rangeStart": str(first),
        "rangeEnd": str(hosts[-1]),
    }
    file.write_text(json.dumps(conflist))
    try:
        yield
    finally:
        file.write_text(text)


@contextlib.contextmanager
def prepared(context: Context) -> Iterator[WholeNode]:
    """Return the node; it is left running, without pods and leaks."""
    os.environ["CLUSTER_PROFILE"] = context.options.profile
    with TemporaryDirectory(prefix="nodeleak-stress-") as home:
        logs = Path(home) / "logs"
        logs.mkdir()
        node = ModernNode.up(logs)
        node.clear()
        stack = contextlib.ExitStack()
        try:
            stack.enter_context(_small_range(node, context.options.addresses))
            stack.enter_context(node.replaced_plugin("host-local", _SLOW))
            yield WholeNode(context, node)
        finally:
            stack.close()
            node.start()
            node.clear()

"""One stress run on a real node of today: churn, wind down, reclaim, check."""

import contextlib
import io
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

from agent.sources.source_error import SourceError
from tests import processes
from tests.containerd.client import Kubelet
from tests.e2e.agent import Daemon
from tests.e2e.modern.node import ModernNode
from tests.e2e.node import run
from tests.stress.checker import KEPT
from tests.stress.command import AT_ONCE, WITHOUT_CAPS
from tests.stress.events import Action
from tests.stress.ledger import Ledger
from tests.stress.modern.kernel import Kernel
from tests.stress.modern.oracle import Oracle
from tests.stress.run_state import RunState, Threads
from tests.stress.store import Store

RUNTIMES: Final = {"containerd": "containerd", "crio": "crio"}
"""The program of the runtime by profile."""
_SETTINGS: Final = ("--cleanup=auto", "--interval=500ms", "--listen=:0", *AT_ONCE, *WITHOUT_CAPS)
_EVERY_KILL: Final = (1.0, 5.0)
_SETTLES: Final = 8.0
"""Seconds until pods that somebody else runs here have started again, after the node was cleared."""
_LONGEST_UNSTARTED: Final = 20.0
_LONGEST_WAIT: Final = 15.0
_EVERY_LEAK: Final = (0.5, 4.0)
_EVERY_LOOK: Final = 0.3
_BATCH: Final = 4
_PROGRESS: Final = 10.0
_WIND_DOWN: Final = 120.0


@dataclass(frozen=True, slots=True)
class Options:
    profile: str
    seconds: float
    pods: int
    seed: int
    reclaim: float
    release: float | None
    """When a reservation in use is removed by hand, in seconds."""
    report: Path | None


class ModernRun:
    """All parts of a run and its phases."""

    def __init__(self, options: Options, node: ModernNode, daemon: Daemon) -> None:
        self.options, self.node, self.daemon = options, node, daemon
        self.state, self.ledger = RunState(), Ledger()
        self.kernel = Kernel(node.first, node.env["NODE_POD_CIDR"], node.env["NODE_STATE"])
        self._plugin = _first_plugin(node)
        self.store = Store(
            node.networks / self._plugin["name"],
            [str(ip) for ip in IPv4Network(node.env["NODE_POD_CIDR"]).hosts()],
            self.ledger,
        )
        self._ending: set[str] = set()
        self.oracle = Oracle(self.kernel.namespaces, self.store, self.ledger, self._released, self._ending)
        self.kills: Counter[str] = Counter()
        self.created = self.deleted = 0
        self.planted: set[str] = set()
        self.lost = 0
        """Containers that a killed runtime had made and not started."""
        self.left_behind = 0
        """Network namespaces that the runtime forgot."""
        self.seconds = 0.0
        """How long the churn took."""
        self.events: Counter[str] = Counter()
        """The lines of the agent's log."""
        chance = Random(options.seed)  # noqa: S311 (chance, not secrecy)
        self._chances = [Random(chance.random()) for _ in range(4)]  # noqa: S311
        self._threads = Threads(self.state)

    @property
    def failed(self) -> bool:
        """Whether anything was released wrongly, told wrongly, or not reclaimed."""
        return bool(
            self.ledger.violations()
            or self.state.failures
            or self.oracle.false_findings
            or self.reclaimed < len(self.planted)
        )

    @property
    def reclaimed(self) -> int:
        """Planted leaks that are gone."""
        return len(self.planted - set(self.store.left().values()))

    def execute(self) -> None:
        """Run all phases; no thread is left behind, whatever happens."""
        try:
            for _ in processes.until(time.monotonic() + _SETTLES, every=0.5):
                self.oracle.tolerate()
            self._churn()
            if not self.state.failures:
                self._wind_down()
        except BaseException:
            self.state.abort()
            raise
        finally:
            self.state.end()
            self._threads.join()
        self.events = Counter(line["event"] for line in self.daemon.lines())
        if not self.state.failures:
            self.ledger.finish(self._left())

    def _churn(self) -> None:
        began = time.monotonic()
        for work in (self._look, self._listen, self._remove_lost):
            self._threads.start(work)
        churning = [self._threads.start(work) for work in (self._come_and_go, self._kill, self._leak)]
        next_progress, release = began, self.options.release
        for _ in processes.until(began + self.options.seconds):
            self._age_journal()
            if self.state.stopping.is_set():
                break
            now = time.monotonic()
            if now >= next_progress:
                next_progress = now + _PROGRESS
                print(f"{now - began:5.0f} s  {self}", flush=True)
            if release is not None and now >= began + release:
                release = self._release_by_hand(release)
        self.state.stopping.set()
        for thread in churning:
            thread.join()
        self.seconds = time.monotonic() - began

    def __str__(self) -> str:
        counts = self.ledger.counts()
        return (
            f"{self.created} pods created, {self.deleted} deleted, {counts.allocations} addresses seen in use, "
            f"{sum(self.kills.values())} kills, {len(self.planted)} leaks planted, {self.reclaimed} reclaimed, "
            f"{counts.violations} violations, {len(self.oracle.false_findings)} false findings"
        )

    # Threads

    def _look(self) -> None:
        while not self.state.over.wait(_EVERY_LOOK):
            self.oracle.look()

    def _listen(self) -> None:
        """Take what the agent calls leaked."""
        while not self.state.over.wait(1.0):
            with contextlib.suppress(AssertionError):  # it is busy
                url = f"http://127.0.0.1:{self.daemon.port}/api/v1/report"
                document = json.loads(self.node.run("curl", "-sSf", url))
                self.oracle.called_leaked(
                    {found["container_id"] for found in document["reservations"] if found["state"] == "leaked"}
                )

    def _come_and_go(self) -> None:
        """Create and delete some pods at a time; a pod that was asked for may be deleted before it has come."""
        chance = self._chances[0]
        while not self.state.stopping.wait(chance.uniform(0.5, 3.0)):
            with contextlib.suppress(AssertionError):  # the API server is slow while everything dies
                pods = self._pods()
                staying = sorted(name for name, uid in pods.items() if uid not in self._ending)
                if len(staying) > self.options.pods // 2:
                    self._delete(chance.sample(staying, chance.randint(1, _BATCH)), pods)
                coming = min(chance.randint(1, _BATCH), self.options.pods - len(pods))
                self.created += len(self.node.ask_for(coming)) if coming > 0 else 0

    def _pods(self) -> dict[str, str]:
        """Return the UIDs of all pods by name, also of those that are ending."""
        listed = json.loads(self.node.kubectl("get", "pods", *self.node.own_pods, "-o", "json"))
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in listed["items"]}

    def _delete(self, names: list[str], uids: dict[str, str]) -> None:
        self._ending |= {uids[name] for name in names}
        self.node.kubectl("delete", "pods", *names, "--grace-period=1", "--wait=false", "--ignore-not-found")
        self.deleted += len(names)

    def _kill(self) -> None:
        chance = self._chances[1]
        runtime = RUNTIMES[self.options.profile]
        while not self.state.stopping.wait(chance.uniform(*_EVERY_KILL)):
            self._wait_for_a_pod()
            program = chance.choice((runtime, runtime, "kubelet"))
            for pid in self.kernel.running({program}):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    self.kills[program] += 1

    def _remove_lost(self) -> None:
        """Kill what a killed CRI-O has forgotten for good: each one delays the start of the kubelet by 3 s."""
        since: dict[int, float] = {}
        while not self.state.over.wait(1.0):
            now = time.monotonic()
            since = {pid: since.get(pid, now) for pid in self.kernel.unstarted()}
            for pid in [pid for pid, first in since.items() if now - first > _LONGEST_UNSTARTED]:
                groups = self.kernel.control_groups(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    self.lost += 1
                self.state.over.wait(0.1)
                for group in groups:
                    with contextlib.suppress(OSError):
                        group.rmdir()

    def _wait_for_a_pod(self) -> None:
        """Wait until another pod has come: a node that is killed too often starts none."""
        before = self.ledger.counts().allocations
        for _ in processes.until(time.monotonic() + _LONGEST_WAIT):
            if self.state.stopping.is_set() or self.ledger.counts().allocations > before:
                return

    def _leak(self) -> None:
        """Let the node's host-local reserve an address for a sandbox that never was."""
        chance = self._chances[2]
        while not self.state.stopping.wait(chance.uniform(*_EVERY_LEAK)):
            sandbox = f"{chance.getrandbits(256):064x}"
            self.ledger.action(Action.CREATED, sandbox)
            self.ledger.action(Action.RM_CALLED, sandbox)
            variables = {
                "CNI_COMMAND": "ADD",
                "CNI_CONTAINERID": sandbox,
                "CNI_NETNS": "/proc/self/ns/net",
                "CNI_NETNS_OVERRIDE": "1",
                "CNI_IFNAME": "eth0",
                "CNI_PATH": "/opt/cni/bin",
            }
            words = [f"{name}={value}" for name, value in variables.items()]
            run(*self.node.inside, "env", *words, "/opt/cni/bin/host-local", text=json.dumps(self._plugin))
            self.planted.add(sandbox)

    # Phases

    def _release_by_hand(self, at: float) -> float | None:
        """Remove the reservation of a pod that runs and is to go on; return when to try again if there is none."""
        reserved = self.store.left()
        for namespace in self.kernel.namespaces():
            for ip in namespace.ips:
                if namespace.pod and namespace.pod not in self._ending and reserved.get(ip) == namespace.sandbox:
                    print(f"released by hand: {ip} of {namespace.sandbox[:12]}", flush=True)
                    (self.store.directory / ip).unlink()
                    return None
        return at + 1

    def _wind_down(self) -> None:
        """Delete all pods and what the runtime has lost of them, and let the agent reclaim the rest."""
        self._ending |= set(self._pods().values())
        self.node.kubectl("delete", "pods", *self.node.own_pods, "--grace-period=1", "--timeout=90s")
        kubelet = Kubelet(Path(f"/proc/{self.node.first}/root{self.node.env['NODE_CRI_SOCKET']}"), "", "")
        for _ in processes.until(time.monotonic() + _WIND_DOWN, every=0.5):
            with contextlib.suppress(SourceError):
                if not self._collected(kubelet):
                    break
        for namespace in self.kernel.namespaces():
            if not namespace.sandbox:
                self.left_behind += 1
                self.node.run("ip", "netns", "delete", namespace.name, codes=(0, 1))
        # The kernel would believe for up to a minute that they are still there.
        self.node.run("ip", "neigh", "flush", "dev", "cni0", codes=(0, 1, 2, 255))
        for _ in processes.until(time.monotonic() + self.options.reclaim):
            self._age_journal()
            if self.state.over.is_set() or not self._left().keys() - KEPT:
                break
        self.oracle.look()

    def _collected(self, kubelet: Kubelet) -> int:
        """Remove sandboxes as the kubelet does once a minute, and return how many there were."""
        sandboxes = kubelet.sandboxes().keys() - self._alive()
        for sandbox in sandboxes:
            kubelet.stop(sandbox)
            kubelet.remove(sandbox)
        return len(sandboxes)

    def _alive(self) -> set[str]:
        """Return the sandboxes with a live process."""
        return {namespace.sandbox for namespace in self.kernel.namespaces()}

    def _left(self) -> dict[str, str]:
        """Return the files in the store, without the reservations of pods that somebody else runs here."""
        alive = self._alive()
        return {name: found for name, found in self.store.left().items() if found not in alive}

    # The agent

    def _journals(self) -> list[Path]:
        return list((self.node.nodeleak.state_dir / "journal").glob("*.json"))

    def _age_journal(self) -> None:
        """Let the journal have room: a run can release more in an hour than a node does in a day."""
        for file in self._journals():
            with contextlib.suppress(FileNotFoundError):
                os.utime(file, (0, 0))

    def _released(self) -> AbstractSet[str]:
        """Return the sandboxes of all releases, also of those that have not ended."""
        entries = (json.loads(file.read_text()) for file in self._journals())
        return {one["container_id"] for one in entries if one.get("outcome") in {None, "released"}}


def _first_plugin(node: ModernNode) -> dict[str, Any]:
    """Return the first plugin of the default network, with the network's name."""
    conflist = json.loads(min(node.net_d.glob("*.conflist")).read_text())
    return {key: conflist[key] for key in ("cniVersion", "name")} | dict(conflist["plugins"][0])


@contextlib.contextmanager
def _prepared(options: Options) -> Iterator[tuple[ModernNode, Daemon]]:
    os.environ["CLUSTER_PROFILE"] = options.profile
    with TemporaryDirectory(prefix="nodeleak-stress-") as home:
        logs = Path(home) / "logs"
        logs.mkdir()
        node = ModernNode.up(logs)
        node.clear()
        stack = contextlib.ExitStack()
        try:
            yield node, stack.enter_context(node.daemon(*_SETTINGS))
        finally:
            with contextlib.redirect_stdout(io.StringIO()):  # it shows its log, which is long
                stack.close()
            node.start()
            node.clear()


def run_stress(options: Options) -> ModernRun:
    """Run the stress test and return its result; the node is left running, without pods and leaks."""
    with _prepared(options) as (node, daemon):
        stress_run = ModernRun(options, node, daemon)
        stress_run.execute()
        return stress_run

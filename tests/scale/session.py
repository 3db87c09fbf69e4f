"""One session: the same cluster without clients, with agents, and with kubelets, each on an API server just started."""

import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import yaml  # type: ignore[import-untyped]

from tests import processes
from tests.scale import objects
from tests.scale.control_plane import ControlPlane, control_plane
from tests.scale.metrics import Sample, sample

_ROOT: Final = Path(__file__).parents[2]
_RBAC: Final = _ROOT / "deploy/base/rbac.yaml"
_IN_A_PROCESS: Final = 125
POD_UPDATES: Final = 1 / 20
"""Patches of a pod's status a second, for each node: each pod's status changes every ten minutes."""
MOST_POD_UPDATES: Final = 25.0
"""Of all nodes together: more are not sent at a steady rate beside the clients of 1,000 nodes, on 2 cores."""
NODE_UPDATES: Final = 1 / 300
"""Likewise of the Node's: a kubelet reports an unchanged status every five minutes."""


@dataclass(frozen=True, slots=True)
class Plan:
    nodes: int
    order: Sequence[str] = ("none", "agents", "kubelets")
    pods: int = objects.PODS_PER_NODE
    spread: float = 20.0
    """Seconds within which all clients start."""
    settle: float = 10.0
    steady: float = 120.0
    """Seconds: two watches of an agent, which last a minute on average."""
    recovery: float = 60.0

    @property
    def pod_updates(self) -> float:
        """Patches of pods' statuses a second."""
        return min(POD_UPDATES * self.nodes, MOST_POD_UPDATES)


@dataclass(frozen=True, slots=True)
class Session:
    plan: Plan
    plane: ControlPlane
    names: list[str]
    log: Path
    said: set[str] = field(default_factory=set)

    def arm(self, kind: str) -> dict[str, Any]:
        """Measure one kind of clients on an API server that has just started."""
        self.plane.start_api_server()
        try:
            with self._child("updates", *self._at(), *map(str, self._rates()), *self.names):
                time.sleep(self.plan.settle)
                before = sample(self.plane, memory=True)
                with self.clients(kind):
                    time.sleep(self.plan.settle)
                    started = sample(self.plane, memory=False)
                    time.sleep(self.plan.steady)
                    ended = sample(self.plane, memory=False)
                    full = sample(self.plane, memory=True)
        finally:
            self.plane.kill_api_server()
        return {"kind": kind, "start": _between(before, started), "steady": _between(started, ended)} | {
            "live": full.live - before.live,
            "rss": full.rss - before.rss,
            "watches": full.watches - before.watches,
            "connections": full.connections - before.connections,
            "goroutines": full.goroutines - before.goroutines,
            "base_rss": before.rss,
        }

    @contextmanager
    def clients(self, kind: str) -> Iterator[list[subprocess.Popen[bytes]]]:
        """Run clients of all nodes during the block, which begins once all are ready."""
        some = [self.names[first : first + _IN_A_PROCESS] for first in range(0, len(self.names), _IN_A_PROCESS)]
        with ExitStack() as stack:
            children, spread = [], str(self.plan.spread)
            for nodes in some if kind != "none" else []:
                where = [str(self._kubeconfig())] if kind == "agents" else self._at()
                children.append(stack.enter_context(self._begun(kind, *where, spread, *nodes)))
            for child in children:
                _wait_until_ready(child, kind)
            if not children:
                time.sleep(self.plan.spread)
            yield children

    def restart(self) -> dict[str, Any]:
        """Kill the API server under the agents and start it again; then break all connections at once."""
        self.plane.start_api_server()
        try:
            with (
                self._child("updates", *self._at(), *map(str, self._rates()), *self.names),
                self.clients("agents") as all_,
            ):
                time.sleep(self.plan.settle)
                self.plane.kill_api_server()
                killed = time.time()
                answered = self.plane.start_api_server(audit=True)
                time.sleep(self.plan.recovery)
                before = sample(self.plane, memory=False)
                broken = time.time()
                for child in all_:
                    child.send_signal(signal.SIGUSR1)
                time.sleep(self.plan.recovery)
                after = sample(self.plane, memory=False)
        finally:
            self.plane.kill_api_server()
        found = arrivals(self.plane.audit_log)
        return {
            "down": answered - killed,
            "restart": since(found, answered - 1, answered, self.plan.recovery),
            "broken": since(found, broken, broken, self.plan.recovery),
            "too_many": before.codes["429"] + after.codes["429"],
        }

    def _begun(self, kind: str, *arguments: str) -> Any:
        # Elsewhere, clients have cores of their own: here they must not take those of a server that is starting.
        patient = () if kind == "updates" else ("nice", "-n", "9")
        return _running([*patient, sys.executable, "-m", f"tests.scale.{kind}", *arguments], self.log)

    @contextmanager
    def _child(self, kind: str, *arguments: str) -> Iterator[None]:
        with self._begun(kind, *arguments) as child:
            _wait_until_ready(child, kind)
            yield

    def _at(self) -> list[str]:
        return [str(self.plane.port), str(self.plane.certificate)]

    def _rates(self) -> tuple[float, float]:
        return self.plan.pod_updates, NODE_UPDATES * self.plan.nodes

    def _kubeconfig(self) -> Path:
        """Create the agents' service account with its deployed rights, and a token as the kubelet requests it."""
        for one in yaml.safe_load_all(_RBAC.read_text()):
            group = "/apis/" + one["apiVersion"] if "/" in one["apiVersion"] else "/api/v1/namespaces/kube-system"
            path = f"{group}/{one['kind'].lower()}s"
            if one["metadata"]["name"] not in self.plane.get(path).decode().split('"'):
                self.plane.request("POST", path, one)
        path = "/api/v1/namespaces/kube-system/serviceaccounts/nodeleak/token"
        wanted = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 36000},
        }
        token = json.loads(self.plane.request("POST", path, wanted))["status"]["token"]
        return self.plane.kubeconfig_for(token)


@contextmanager
def session(plan: Plan, log: Path) -> Iterator[Session]:
    """Run a simulated cluster of the planned size during the block. `log`: receives what its clients print."""
    names = objects.node_names(plan.nodes)
    with control_plane(names) as plane:
        plane.store(objects.cluster(names, plan.pods))
        yield Session(plan, plane, names, log)


def measure(plan: Plan, log: Path, *, restart: bool = True) -> dict[str, Any]:
    """Run a whole session, and return what docs/scale.md needs."""
    arms = []
    with session(plan, log) as running:
        for kind in plan.order:
            began = time.monotonic()
            arms.append(running.arm(kind))
            print(f"{plan.nodes} nodes, {kind}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        restarted = _restarted(running) if restart else None
    memory = int(Path("/proc/meminfo").read_text().split()[1]) / 1024**2
    where = f"{os.cpu_count()} cores, {memory:.0f} GiB, Linux {platform.release()}"
    return {
        "nodes": plan.nodes,
        "pods": plan.pods,
        "pod_updates": plan.pod_updates,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "where": where,
        "steady": plan.steady,
        "spread": plan.spread,
        "arms": arms,
        "restart": restarted,
    }


def _restarted(running: Session) -> dict[str, Any]:
    """A restart that fails does not lose what was measured before."""
    try:
        return running.restart()
    except OSError as error:
        print(f"{running.plan.nodes} nodes: the restart was NOT MEASURED: {error}", file=sys.stderr, flush=True)
        return {"failed": str(error)}


def arrivals(log: Path) -> list[tuple[float, str, str]]:
    """Return time, node and verb of every list and watch of an agent that an audit log has, in order."""
    found = []
    for line in log.read_text().splitlines():
        one = json.loads(line)
        if one["user"]["username"] != "system:serviceaccount:kube-system:nodeleak":
            continue
        selector = parse_qs(urlsplit(one["requestURI"]).query).get("fieldSelector", ["="])[0]
        at = datetime.fromisoformat(one["requestReceivedTimestamp"]).timestamp()
        found.append((at, selector.partition("=")[2], f"{one['verb']} {one['objectRef']['resource']}"))
    return sorted(found)


def since(found: Sequence[tuple[float, str, str]], earliest: float, begin: float, seconds: float) -> dict[str, Any]:
    """Return the first request and the first list of pods of each node, in seconds since `begin`, and all by kind."""
    first: dict[str, float] = {}
    lists: dict[str, float] = {}
    kinds, each_second = Counter[str](), Counter[int]()
    for at, node, kind in found:
        if node and earliest <= at < begin + seconds:
            since = round(max(0.0, at - begin), 3)
            first.setdefault(node, since)
            if kind == "list pods":
                lists.setdefault(node, since)
            kinds[kind] += 1
            each_second[int(since)] += 1
    return {
        "first": sorted(first.values()),
        "lists": sorted(lists.values()),
        "requests": dict(kinds),
        "each_second": [each_second[one] for one in range(int(seconds))],
    }


def _between(before: Sample, after: Sample) -> dict[str, Any]:
    return {
        "seconds": after.at - before.at,
        "cpu": after.cpu - before.cpu,
        "written": after.written - before.written,
        "events": after.events - before.events,
        "requests": dict(after.requests - before.requests),
        "codes": dict(after.codes - before.codes),
    }


@contextmanager
def _running(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            env=processes.environment(PYTHONPATH=str(_ROOT)),
            start_new_session=True,
        )
    try:
        yield child
    finally:
        processes.stop(child)
        if child.stdout is not None:
            child.stdout.close()


def _wait_until_ready(child: subprocess.Popen[bytes], kind: str) -> None:
    if child.stdout is None or child.stdout.readline() != b"ready\n":
        raise OSError(f"{kind}: a process of it ended before it was ready")

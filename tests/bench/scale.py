"""What 1,000 agents cost a real API server (1.20.2) on this machine, beyond what it costs without them.

Each agent runs the daemon's list and watch, with its default settings, its ServiceAccount and its ClusterRole. etcd
holds their nodes, with 30 pods each; of all nodes together, the status of 25 pods changes in a second. The cost of an
agent does not depend on the number of nodes, because it watches only its own. Then the API server is killed and started
again: by its audit log, these are the lists of all agents, which are spread over 15 s.
"""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from prometheus_client.parser import text_string_to_metric_families

from agent.app import api_server
from agent.config import load
from agent.model.snapshot import Known
from tests import processes
from tests.bench.measure import Figure, footprint
from tests.bench.surroundings import ROOT
from tests.control_plane import LEGACY, ControlPlane
from tests.fakes import apiserver, nodes
from tests.wire import established

_NODES, _PODS, _IN_A_PROCESS, _UPDATES = 500, 30, 125, 25.0
_SPREAD, _SETTLE, _STEADY, _RECOVERY = 20.0, 10.0, 120.0, 60.0
_POD_BYTES = 6_000
_STACK = 256 * 1024
_SWITCH = 0.1
"""Seconds. With the default of 5 ms, hundreds of threads that a restarted server answers at once take turns so often
that they get nothing else done."""
AGENT = "system:serviceaccount:kube-system:nodeleak"
_MEMORY = Path("/dev/shm")  # noqa: S108 (a private directory is made in it)


@dataclass(frozen=True, slots=True)
class Sample:
    """Counters up to `requests`; the others are what there is now."""

    at: float
    cpu: float  # Seconds
    sent: int  # Bytes, to all connections: those of the clients and that to etcd
    requests: int  # A watch counts when it ends
    watches: int
    connections: int
    memory: int  # Bytes in use: heap and stacks


def figures() -> Iterator[Figure]:
    if absent := LEGACY.missing():
        yield Figure(f"not measured: it needs {', '.join(absent)} (hack/cluster build)", "-")
        return
    names = [f"worker-{number:05}" for number in range(_NODES)]
    pods = [f"{name}-{number}" for number in range(_PODS) for name in names]
    paths = [f"/api/v1/namespaces/default/pods/{pod}" for pod in pods]
    with cluster(names) as plane, updates(plane, paths, _UPDATES):
        time.sleep(_SETTLE)
        idle = sample(plane)
        time.sleep(_STEADY / 2)
        before = sample(plane)
        with agents(plane, names, _SPREAD):
            time.sleep(_SETTLE)
            started = sample(plane)
            time.sleep(_STEADY)
            yield from _costs(idle, before, started, sample(plane))
            plane.kill_api_server()
            answered = plane.start_api_server(audit=True)
            time.sleep(_RECOVERY)
            events = map(json.loads, plane.audit_log.read_text().splitlines())
            mine = (
                one for one in events if one["verb"] == "list" and one["user"]["username"] == AGENT
            )
            listed = (
                datetime.fromisoformat(one["requestReceivedTimestamp"]).timestamp() for one in mine
            )
            times = [at - answered for at in listed if at >= answered]
            peak = max(Counter(map(int, times)).values(), default=0)
            yield Figure(
                f"after a restart of the API server: lists of {_NODES} agents", f"{len(times):,}"
            )
            last = f"{peak}; after {max(times, default=0):.0f} s"
            yield Figure("after a restart: at most in one second; the last one", last)


def _costs(idle: Sample, before: Sample, started: Sample, steady: Sample) -> Iterator[Figure]:
    each = 1000 / _NODES

    def rate(what: str, first: Sample, last: Sample) -> float:
        return float((getattr(last, what) - getattr(first, what)) / (last.at - first.at))

    def cost(what: str, first: Sample, last: Sample) -> float:
        """What agents cost per second, beyond what there is without them."""
        return (rate(what, first, last) - rate(what, idle, before)) * each

    yield Figure("CPU", f"{cost('cpu', started, steady):.3f} cores")
    yield Figure("requests", f"{cost('requests', started, steady):.0f} each second")
    yield Figure("sent", f"{cost('sent', started, steady) / 1000:.0f} KB each second")
    yield Figure("memory in use", f"{(steady.memory - before.memory) * each / 1024**2:.0f} MiB")
    yield Figure("watches", f"{(steady.watches - before.watches) * each:,.0f}")
    yield Figure("connections", f"{(steady.connections - before.connections) * each:,.0f}")
    seconds = started.at - before.at
    yield Figure(
        "CPU of the start of all agents", f"{cost('cpu', before, started) * seconds:.1f} s"
    )
    yield Figure(
        "sent at the start of all agents",
        f"{cost('sent', before, started) * seconds / 1024**2:.0f} MiB",
    )


@contextmanager
def cluster(names: Sequence[str]) -> Iterator[ControlPlane]:
    """Run a control plane that holds these nodes and their pods during the block."""
    with tempfile.TemporaryDirectory(
        prefix="nodeleak-bench-", dir=_MEMORY if _MEMORY.is_dir() else None
    ) as directory:
        plane = ControlPlane(Path(directory))
        try:
            plane.start_etcd()
            plane.store(_objects(names))
            plane.start_api_server()
            yield plane
        finally:
            plane.stop()


def _objects(names: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    model = nodes.healthy(datetime.now(UTC), _PODS, "10.244.0.0/24")
    pods = [apiserver.pod_object(model, sandbox, _POD_BYTES) for sandbox in model.running]
    node = apiserver.node_object(model)
    for name in names:
        yield f"minions/{name}", node | {"metadata": _metadata(node, name)}
        for number, pod in enumerate(pods):
            own = f"{name}-{number}"
            metadata = _metadata(pod, own) | {"namespace": "default"}
            yield (
                f"pods/default/{own}",
                pod | {"metadata": metadata, "spec": pod["spec"] | {"nodeName": name}},
            )


def _metadata(item: dict[str, Any], name: str) -> dict[str, Any]:
    kept = {key: value for key, value in item["metadata"].items() if key != "resourceVersion"}
    return kept | {"name": name, "uid": name}


@contextmanager
def agents(plane: ControlPlane, names: Sequence[str], spread: float) -> Iterator[None]:
    """Run the agents of these nodes during the block, which begins once all are ready."""
    kubeconfig = plane.kubeconfig_for(deploy_account(plane), "agent.conf")
    with ExitStack() as stack:
        children = []
        for first in range(0, len(names), _IN_A_PROCESS):
            # Elsewhere, clients have cores of their own: here they must not take those of the server.
            command = [
                "nice",
                "-n",
                "9",
                sys.executable,
                "-m",
                "tests.bench.scale",
                str(kubeconfig),
                str(spread),
            ]
            command += names[first : first + _IN_A_PROCESS]
            log = stack.enter_context((plane.directory / "agents.log").open("ab"))
            child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, cwd=ROOT)
            children.append(stack.enter_context(child))
            stack.callback(processes.stop, child)
        for child in children:
            if child.stdout is None or child.stdout.readline() != b"ready\n":
                raise OSError(
                    f"agents ended before they were ready:\n{(plane.directory / 'agents.log').read_text()}"
                )
        yield


def deploy_account(plane: ControlPlane) -> str:
    """Create the agents' service account with its deployed rights; return a token, as the kubelet requests it."""
    for item in yaml.safe_load_all((ROOT / "deploy/base/rbac.yaml").read_text()):
        version, namespace = item["apiVersion"], item["metadata"].get("namespace")
        group = f"/apis/{version}" if "/" in version else f"/api/{version}"
        scope = f"/namespaces/{namespace}" if namespace else ""
        plane.request("POST", f"{group}{scope}/{item['kind'].lower()}s", item)
    path = "/api/v1/namespaces/kube-system/serviceaccounts/nodeleak/token"
    wanted = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": 36000},
    }
    return str(json.loads(plane.request("POST", path, wanted))["status"]["token"])


@contextmanager
def updates(plane: ControlPlane, paths: Sequence[str], rate: float) -> Iterator[None]:
    """Change the statuses of these pods or Nodes in turn during the block. `rate`: so many a second."""
    over = threading.Event()
    begun = time.monotonic()

    def update() -> None:
        for number in itertools.count():
            condition = {"type": "Ready", "status": "True", "reason": f"Update{number}"}
            with contextlib.suppress(OSError, HTTPException):  # it is being restarted
                kind = "application/strategic-merge-patch+json"
                body = {"status": {"conditions": [condition]}}
                plane.request("PATCH", f"{paths[number % len(paths)]}/status", body, kind)
            # By the clock, whatever a request takes: otherwise runs under more load have fewer changes.
            if over.wait(max(0.0, begun + (number + 1) / rate - time.monotonic())):
                return

    thread = threading.Thread(target=update)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def sample(plane: ControlPlane) -> Sample:
    """Read what the API server has done and holds, after a garbage collection."""
    plane.request("GET", "/debug/pprof/heap?gc=1")
    # Before /metrics is written, which costs CPU too.
    at, cpu = time.monotonic(), footprint(plane.api_server).cpu_ms / 1000
    sent = dict(
        line.split(": ") for line in Path(f"/proc/{plane.api_server}/io").read_text().splitlines()
    )["wchar"]
    wanted = ("apiserver_request_total{", "apiserver_longrunning_", "go_memstats_")
    lines = [
        line
        for line in plane.request("GET", "/metrics").decode().splitlines()
        if line.startswith(wanted)
    ]
    totals = Counter[str]()
    for family in text_string_to_metric_families("\n".join([*lines, ""])):
        for series in family.samples:
            if series.labels.get("verb") != "PATCH":
                totals[series.name] += int(series.value)
    requests = totals["apiserver_request_total"]
    # Since 1.23 it has the second name.
    watches = totals["apiserver_longrunning_gauge"] + totals["apiserver_longrunning_requests"]
    memory = totals["go_memstats_heap_alloc_bytes"] + totals["go_memstats_stack_inuse_bytes"]
    return Sample(at, cpu, int(sent), requests, watches, len(established(plane.port)), memory)


def many_agents(kubeconfig: str, spread: float, names: Sequence[str]) -> None:
    """Be many agents: `python -m tests.bench.scale KUBECONFIG SPREAD NODE...`

    Each has the reflectors of the deployed daemon with their default settings, in threads of their own. They start
    within SPREAD seconds. It prints a line once every agent has its pods and its Node.
    """
    threading.stack_size(_STACK)
    sys.setswitchinterval(_SWITCH)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    reflectors = []
    for name in names:
        _, watches = api_server.watched(load("run", {"node": name, "kubeconfig": kubeconfig}, {}))
        for watch in watches:
            threading.Thread(target=watch.run, args=(stop,), daemon=True).start()
        reflectors += watches
        time.sleep(spread / len(names))
    for reflector in reflectors:
        while not isinstance(reading := reflector.reading(), Known):
            print(reading, file=sys.stderr, flush=True)
            time.sleep(1)
    print("ready", flush=True)
    stop.wait()
    os._exit(0)  # hundreds of threads wait for the server


if __name__ == "__main__":
    many_agents(sys.argv[1], float(sys.argv[2]), sys.argv[3:])

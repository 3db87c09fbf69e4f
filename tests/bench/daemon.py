"""The daemon on a healthy node with 110 pods of 12 KB and 220 containers, compared with a simple implementation.

The runtime and the API server are fakes in another process. The daemon runs as in a pod, and reaches the API server
over TLS. With a kubeconfig it needs more memory, because the package `kubernetes` reads it. It syncs continuously
instead of every 15 s. The baseline is `tests/bench/baseline.py`: `CoreV1Api` with its typed models, docker's
`containers.list(all=True)`, the same files, the same libraries for metrics and logs. It only reads.
"""

import json
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tests import processes
from tests.bench.measure import Figure, Footprint, at_most, footprint, get, values
from tests.bench.surroundings import ROOT, environment, fake_node
from tests.fakes.host import Host

_PODS, _POD_BYTES, _CIDR = 110, (7_700, 17_500), "10.64.0.0/15"
_DOCKER, _CONTAINERD = "docker://19.3.15", "containerd://1.7.24"
_SYNCS, _WARM, _BASELINE_SYNCS, _WORST_SYNCS = 2_000, 100, 60, 12
_FEW_SYNCS = 300
_PEAK_MIB, _GROWTH_MIB, _CPU_MS, _LEAKS_MIB = 75.0, 1.0, 15.0, 100.0
_STEADY_MIB = {"docker": 48.0, "containerd": 45.0}
_PATIENCE = "--docker-timeout=1m"  # Of 50 MB by HTTP/2 on a busy machine
_READS = {f"{verb} {what}": 1 for verb in ("LIST", "WATCH") for what in ("pods", "nodes")} | {
    "GET version": 2
}


@dataclass(frozen=True, slots=True)
class Measured:
    """Resource use of one process: after the first syncs, and at the end."""

    warm: Footprint
    end: Footprint
    syncs: int
    metrics: str

    @property
    def cpu_ms_per_sync(self) -> float:
        return (self.end.cpu_ms - self.warm.cpu_ms) / self.syncs


def figures(bin_: Path) -> Iterator[Figure]:
    with fake_node(_PODS, _CIDR, _POD_BYTES) as (host, url):
        agent = _daemon(bin_, host, _DOCKER)
        requests = json.loads(get(f"{url}/fake/requests"))
        arguments = (host.kubeconfig, f"unix://{host.docker_socket}", host.store, "worker-1", 0.02)
        command = [
            str(bin_ / "python"),
            str(ROOT / "tests/bench/baseline.py"),
            *map(str, arguments),
        ]
        baseline = _measure(command, "syncs", _BASELINE_SYNCS, lambda _: True)
    with fake_node(_PODS, _CIDR, _POD_BYTES, _CONTAINERD) as (host, _):
        yield from _use("docker", agent)
        yield from _use("containerd", _daemon(bin_, host, _CONTAINERD))
        by_file = _daemon(bin_, host, _CONTAINERD, _FEW_SYNCS, kubeconfig=host.kubeconfig)
    what = "containerd, with a kubeconfig: resident memory, steady"
    yield Figure(what, f"{by_file.end.rss_mib:.1f} MiB")
    shown = ", ".join(f"{count} {request}" for request, count in sorted(requests.items()))
    target = "one LIST and one WATCH each, and for each the version"
    yield Figure(
        f"requests to the API server in {agent.syncs:,} syncs", shown, target, requests == _READS
    )
    yield Figure("the baseline: resident memory, steady", f"{baseline.end.rss_mib:.1f} MiB")
    yield Figure("the baseline: CPU per sync", f"{baseline.cpu_ms_per_sync:.1f} ms")


def worst(bin_: Path) -> Iterator[Figure]:
    """The same daemon on nodes that hold far more than usual: its peak memory."""
    for what, runtime, more in (
        ("6,000 evicted pods of 12 KB in the API server's list", _DOCKER, {"evicted": 6_000}),
        ("1,000 exited sandboxes of 50 KB in docker's list", _DOCKER, {"exited": 1_000}),
        (
            "250 exited sandboxes of 50 KB in containerd's list",
            _CONTAINERD,
            {"exited": 250},
        ),  # of at most 16 MiB
        ("16,384 confirmed leaks", _DOCKER, {"ownerless": 16_384}),
    ):
        settings = (
            ("--confirm-after=0s", f"--max-reservations={16_384 + _PODS + 2}")
            if "ownerless" in more
            else ()
        )
        with fake_node(_PODS, _CIDR, _POD_BYTES, runtime, **more) as (host, _):
            measured = _daemon(bin_, host, runtime, _WORST_SYNCS, *settings)
        leaked = sum(values(measured.metrics, "nodeleak_reservations{", 'state="leaked"'))
        if leaked != more.get("ownerless", 0):
            raise OSError(f"{leaked:.0f} leaks are confirmed:\n{measured.metrics[-2000:]}")
        yield at_most(what, measured.end.peak_mib, "MiB", _LEAKS_MIB if settings else _PEAK_MIB)


def _use(runtime: str, measured: Measured) -> Iterator[Figure]:
    steady, limit = measured.end.rss_mib, _STEADY_MIB[runtime]
    yield at_most(f"{runtime}: resident memory, steady", steady, "MiB", limit)
    yield at_most(f"{runtime}: resident memory, peak", measured.end.peak_mib, "MiB", _PEAK_MIB)
    growth = measured.end.rss_mib - measured.warm.rss_mib
    yield at_most(f"{runtime}: growth over {measured.syncs:,} syncs", growth, "MiB", _GROWTH_MIB)
    yield at_most(f"{runtime}: CPU per sync", measured.cpu_ms_per_sync, "ms", _CPU_MS)


def _daemon(
    bin_: Path,
    host: Host,
    runtime: str,
    syncs: int = _SYNCS,
    *settings: str,
    kubeconfig: Path | None = None,
) -> Measured:
    """Measure the daemon, for whom every reservation of a pod must be in use."""
    command = [
        *(
            *(host.in_pod(bin_ / "python") if kubeconfig is None else [str(bin_ / "nodeleak")]),
            "run",
            "--node=worker-1",
            *([] if kubeconfig is None else [f"--kubeconfig={kubeconfig}"]),
            _PATIENCE,
            *settings,
        ),
        *(host.options if runtime == _DOCKER else host.options_without_docker),
        *(
            "--listen=127.0.0.1:0",
            "--log-format=json",
            "--interval=1ms",
            "--stale-after=1h",
        ),  # no watch ends
    ]
    in_use = "nodeleak_reservations{", 'state="in_use"'
    return _measure(
        command,
        "nodeleak_sync_seconds_count",
        syncs,
        lambda text: sum(values(text, *in_use)) == _PODS,
        host.pod_environment,
    )


def _measure(
    command: Sequence[str],
    counter: str,
    syncs: int,
    ready: Callable[[str], bool],
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Measured:
    """Run a command until its own metrics count this many syncs. `ready`: whether it has read everything."""
    with tempfile.TemporaryDirectory(prefix="nodeleak-bench-") as directory:
        log = Path(directory) / "log"
        with processes.running(command, log, environment(**variables)) as child:
            begun, _ = _wait(child, log, counter, min(_WARM, syncs // 3), ready)
            warm = footprint(child.pid)
            ended, metrics = _wait(child, log, counter, begun + syncs, ready)
            return Measured(warm, footprint(child.pid), ended - begun, metrics)


def _wait(
    child: "subprocess.Popen[bytes]",
    log: Path,
    counter: str,
    syncs: int,
    ready: Callable[[str], bool],
) -> tuple[int, str]:
    """Wait for a number of syncs; return their number and the metrics. Poll rarely: each scrape adds load."""
    for _ in processes.until(time.monotonic() + 300, every=0.5):
        text = log.read_text()
        if child.poll() is not None:
            break
        if port := re.search(r'"?port"?[:=] ?(\d+)', text):
            metrics = get(f"http://127.0.0.1:{port[1]}/metrics")
            if (now := int(sum(values(metrics, f"{counter} ")))) >= syncs and ready(metrics):
                return now, metrics
    raise OSError(
        f"the process ended, or {syncs} syncs were not reached in five minutes:\n{log.read_text()[-2000:]}"
    )

"""The daemon on a healthy node with 110 pods of 12 KB and 220 containers, compared with a simple implementation.

docker and the API server are fakes in another process, without TLS. The daemon syncs continuously instead of every
15 s. The baseline is `tests/bench/baseline.py`: `CoreV1Api` with its typed models, docker's
`containers.list(all=True)`, the same files, the same libraries for metrics and logs. It only reads.
"""

import json
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

from tests import processes
from tests.bench.measure import Figure, Footprint, footprint
from tests.bench.surroundings import ROOT, environment, fake_node
from tests.fakes.host import Host

PODS, POD_BYTES = 110, (7_700, 17_500)
_WARM, _SYNCS, _BASELINE_SYNCS = 100, 2_000, 60
CPU_MS, GROWTH_MIB = 15.0, 1.0
_STEADY_MIB, _PEAK_MIB, _AIM_MIB = 60.0, 75.0, 56.0


@dataclass(frozen=True, slots=True)
class Measured:
    """Resource use of one process: after `_WARM` syncs, and at the end."""

    warm: Footprint
    end: Footprint
    cpu_ms_per_sync: float
    syncs: int
    metrics: str
    """Its own, at the end."""

    @property
    def growth_mib(self) -> float:
        return self.end.rss_mib - self.warm.rss_mib


def figures(bin_: Path) -> Iterator[Figure]:
    with fake_node(PODS, "10.253.6.0/24", POD_BYTES) as (host, url):
        agent = daemon(bin_, [f"--kubeconfig={host.kubeconfig}", *host.options])
        requests = json.loads(_get(f"{url}/fake/requests"))
    with fake_node(PODS, "10.253.6.0/24", POD_BYTES) as (host, _):
        baseline = _baseline(bin_, host)
    yield at_most("resident memory, steady", agent.end.rss_mib, "MiB", _STEADY_MIB)
    yield at_most("resident memory, steady: the aim", agent.end.rss_mib, "MiB", _AIM_MIB)
    yield at_most("resident memory, peak", agent.end.peak_mib, "MiB", _PEAK_MIB)
    yield at_most(f"growth over {agent.syncs:,} syncs", agent.growth_mib, "MiB", GROWTH_MIB)
    yield at_most("CPU per sync", agent.cpu_ms_per_sync, "ms", CPU_MS)
    yield Figure(
        f"requests to the API server in {agent.syncs + _WARM:,} syncs",
        ", ".join(f"{count} {request}" for request, count in sorted(requests.items())),
        "one LIST and one WATCH each, and for each the version",
        requests
        == {f"{verb} {what}": 1 for verb in ("LIST", "WATCH") for what in ("pods", "nodes")} | {"GET version": 2},
    )
    yield Figure("the baseline: resident memory, steady", f"{baseline.end.rss_mib:.1f} MiB")
    yield Figure("the baseline: resident memory, peak", f"{baseline.end.peak_mib:.1f} MiB")
    yield Figure("the baseline: CPU per sync", f"{baseline.cpu_ms_per_sync:.1f} ms")
    yield Figure("memory, steady: the agent against the baseline", f"{agent.end.rss_mib / baseline.end.rss_mib:.2f}x")
    yield Figure(
        "CPU per sync: the agent against the baseline", f"{agent.cpu_ms_per_sync / baseline.cpu_ms_per_sync:.2f}x"
    )


def at_most(what: str, measured: float, unit: str, most: float) -> Figure:
    return Figure(what, f"{measured:.1f} {unit}", f"at most {most:g} {unit}", measured <= most)


def daemon(bin_: Path, options: Sequence[str], syncs: int = _SYNCS, log: Path | None = None, **env: str) -> Measured:
    """Measure the daemon, for whom every reservation must be in use. `log`: where its output goes."""
    port = free_port()
    command = [
        str(bin_ / "nodeleak"),
        "run",
        "--node=worker-1",
        *options,
        f"--listen=127.0.0.1:{port}",
        "--interval=1ms",
        "--stale-after=1h",  # so that no watch expires and restarts
    ]
    measured = _measure(command, port, "nodeleak_sync_seconds_count", syncs, log, env)
    if sum(values(measured.metrics, "nodeleak_reservations{", 'state="in_use"')) != PODS:
        raise OSError(f"not every address is in use on the node that was measured:\n{measured.metrics[-2000:]}")
    return measured


def _baseline(bin_: Path, host: Host) -> Measured:
    port = free_port()
    arguments = (host.kubeconfig, f"unix://{host.docker_socket}", host.store, "worker-1", port, 0.02, 10**6)
    command = [str(bin_ / "python"), str(ROOT / "tests/bench/baseline.py"), *map(str, arguments)]
    return _measure(command, port, "syncs", _BASELINE_SYNCS, None, {})


def _measure(
    command: Sequence[str], port: int, counter: str, syncs: int, log: Path | None, env: Mapping[str, str]
) -> Measured:
    """Run a command until its own metrics count this many syncs."""
    with tempfile.TemporaryDirectory(prefix="nodeleak-bench-") as directory:
        output = log or Path(directory) / "log"
        with processes.running(command, output, environment(**env)) as child:
            scrape = partial(_scrape, port)
            begun, _ = _wait(child.poll, scrape, counter, min(_WARM, syncs // 3), output)
            warm = footprint(child.pid)
            ended, metrics = _wait(child.poll, scrape, counter, begun + syncs, output)
            end = footprint(child.pid)
    return Measured(warm, end, (end.cpu_ms - warm.cpu_ms) / (ended - begun), ended - begun, metrics)


def _wait(
    poll: Callable[[], int | None], scrape: Callable[[], str], counter: str, syncs: int, log: Path
) -> tuple[int, str]:
    """Wait for a number of syncs; return their number and the metrics. Poll rarely: each scrape adds load."""
    for _ in processes.until(time.monotonic() + 300, every=0.5):
        if poll() is not None:
            raise OSError(f"the process exited on its own:\n{log.read_text()[-2000:]}")
        metrics = scrape()
        if (now := int(sum(values(metrics, f"{counter} ")))) >= syncs:
            return now, metrics
    raise OSError(f"{syncs} syncs were not reached in five minutes:\n{log.read_text()[-2000:]}")


def _scrape(port: int) -> str:
    try:
        return _get(f"http://127.0.0.1:{port}/metrics")
    except OSError:
        return ""


def values(metrics: str, start: str, label: str = "") -> list[float]:
    """Return the values of the lines that start like this and have the label."""
    lines = [line.rsplit(None, 1) for line in metrics.splitlines() if line.startswith(start)]
    return [float(value) for name, value in lines if label in name]


def _get(url: str) -> str:
    opener: Any = build_opener(ProxyHandler({}))
    with opener.open(url, timeout=5) as answer:
        return str(answer.read().decode())


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port

"""Real containerd of Debian 12 instead of docker, in namespaces of its own: the same commands and the same daemon.

The pods are real sandboxes with a real container each, by real bridge and host-local; the API server is the same fake.
`stand-in`: containerd is `tests/fakes/cri.py`, because a thousand real sandboxes take too much memory and time.
`leaked`: containerd has lost its records, and host-local kept its files. The one-liner is what people use with
`crictl pods -q`. Debian has no crictl: `tests/containerd/pods.py` asks the same on the same socket. It is Python and
starts more slowly, which flatters `scan`. Without its list of pods, the one-liner is faster than with any crictl: the
truth is between both rows. The daemon on docker is measured as above, right before the one on containerd. A proxy on
containerd's socket counts requests in a second, shorter run.
"""

import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from tests import processes
from tests.bench import resident
from tests.bench.inside import NODE_OPTIONS, Inside
from tests.bench.measure import Figure, ratio
from tests.bench.scan import OF_LEAKS, SIZES, WITHOUT_API, Case, compare
from tests.bench.surroundings import ROOT, fake_node
from tests.containerd.client import Pod
from tests.containerd.failure import CannotRun
from tests.containerd.node import NETWORK, SUBNET, ContainerdNode, containerd_node
from tests.containerd.packages import Packages, unpacked
from tests.fakes.host import build
from tests.fakes.nodes import PodSandbox, healthy

_FAMILY = "1.6"
_ONE_LINER = ROOT / "tests/stress/containerd/one_liner.sh"
_WIDE = "10.64.0.0/20"
"""More addresses than the largest size."""
_REAL = min(SIZES)
"""The size for which there are real sandboxes."""
_OWN_STORES = "/containerd.services."
_HERE = ("env", f"--chdir={ROOT}")
"""A node has another working directory."""


def figures(bin_: Path) -> Iterator[Figure]:
    try:
        packages = unpacked(_FAMILY)
        with containerd_node(packages) as node:
            _run_pods(node, healthy(datetime.now(UTC), resident.PODS, SUBNET).running)
            daemon = list(_daemon(bin_, node))
            _run_pods(node, healthy(datetime.now(UTC), _REAL, SUBNET).running[resident.PODS :])
            yield from _scan_in_use(bin_, node)
        yield from _scan_stand_in(bin_, packages)
        with containerd_node(packages, subnet=_WIDE) as node:
            yield from _scan_leaked(bin_, node)
        yield from daemon
    except CannotRun as error:
        yield Figure(f"not measured: this needs {error}", "-")


def _run_pods(node: ContainerdNode, pods: Sequence[PodSandbox]) -> None:
    """Run them one after the other, so that host-local assigns the addresses that the fake API server names."""
    for one in pods:
        app, template, _ = one.pod.rsplit("-", 2)
        pod = Pod(one.pod, one.namespace, one.uid, {"app": app, "pod-template-hash": template})
        sandbox = node.kubelet.run_sandbox(pod)
        node.kubelet.run_container(pod, sandbox)
        if (ip := node.kubelet.address(sandbox)) != one.ip:
            raise OSError(f"host-local assigned {ip} instead of {one.ip}")


# Scan


def _scan_in_use(bin_: Path, node: ContainerdNode) -> Iterator[Figure]:
    yield from compare(_case(bin_, node, f"{_REAL} in use", 0, {WITHOUT_API: ["--api=off"]}), *SIZES[_REAL])


def _scan_leaked(bin_: Path, node: ContainerdNode) -> Iterator[Figure]:
    for size, (rounds, most) in SIZES.items():
        _leave_leaks(node, size)
        yield from compare(_case(bin_, node, f"{size:,} leaked", size, OF_LEAKS), rounds, most)


def _case(bin_: Path, node: ContainerdNode, what: str, leaked: int, options: Mapping[str, Sequence[str]]) -> Case:
    scan = [str(bin_ / "nodeleak"), "scan", "--node=worker-1", *NODE_OPTIONS]
    pods = _pods(node.home / "run/containerd.sock")
    return Case(
        f"{what}, real containerd",
        leaked,
        node.enter(*_HERE, "bash", "-c", one_liner()),
        {shown: node.enter(*scan, *more) for shown, more in options.items()},
        _environment(node.store, pods),
        node.enter(*_HERE, *pods),
    )


def _scan_stand_in(bin_: Path, packages: Packages) -> Iterator[Figure]:
    for size, (rounds, most) in SIZES.items():
        if size == _REAL:
            continue
        with fake_node(size, _WIDE, runtime=f"containerd://{packages.version()}") as (host, _):
            scan = [str(bin_ / "nodeleak"), "scan", "--node=worker-1", *host.options_without_docker]
            pods = _pods(host.containerd_socket)
            case = Case(
                f"{size:,} in use, stand-in",
                0,
                [*_HERE, "bash", "-c", one_liner()],
                {WITHOUT_API: [*scan, "--api=off"], "with the API server": [*scan, f"--kubeconfig={host.kubeconfig}"]},
                _environment(host.networks / "cbr0", pods),
                [*_HERE, *pods],
            )
            yield from compare(case, rounds, most)


def _pods(socket: Path) -> list[str]:
    return [sys.executable, "-m", "tests.containerd.pods", str(socket)]


def _environment(store: Path, pods: Sequence[str]) -> dict[str, str]:
    return processes.environment(STRESS_STORE=str(store), STRESS_PODS=shlex.join(pods))


def one_liner() -> str:
    """Return the reading part of the one-liner: it lists what it would remove."""
    return _ONE_LINER.read_text().replace("rm -f $STRESS_STORE/$ip", "echo $ip")


def _leave_leaks(node: ContainerdNode, size: int) -> None:
    """Write reservations and cached results of sandboxes that containerd does not know."""
    with tempfile.TemporaryDirectory(prefix="nodeleak-bench-") as directory:
        host = build(Path(directory), replace(healthy(datetime.now(UTC), size, _WIDE), network=NETWORK))
        shutil.copytree(host.networks / NETWORK, node.store, dirs_exist_ok=True)
        shutil.copytree(host.cache, node.results, dirs_exist_ok=True)


# Daemon


def _daemon(bin_: Path, node: ContainerdNode) -> Iterator[Figure]:
    with fake_node(resident.PODS, "10.253.6.0/24", resident.POD_BYTES) as (host, _):
        docker = resident.daemon(bin_, [f"--kubeconfig={host.kubeconfig}", *host.options])
    found = _measure_inside(bin_, node)
    for which, mine, theirs in (
        ("steady", found.rss_mib, docker.end.rss_mib),
        ("peak", found.peak_mib, docker.end.peak_mib),
    ):
        what, on_docker = f"the daemon: resident memory, {which}", f"at most {theirs:.1f} MiB, as on docker"
        yield Figure(what, f"{mine:.1f} MiB", on_docker, round(mine, 1) <= round(theirs, 1))
    what = f"the daemon: growth over {found.syncs:,} syncs"
    yield resident.at_most(what, found.growth_mib, "MiB", resident.GROWTH_MIB)
    yield resident.at_most("the daemon: CPU per sync", found.cpu_ms_per_sync, "ms", resident.CPU_MS)
    yield ratio("the daemon: CPU per sync, against the daemon on docker", found.cpu_ms_per_sync, docker.cpu_ms_per_sync)
    yield from requests(found.calls, found.counted_syncs)
    yield imports(found.imported)


def _measure_inside(bin_: Path, node: ContainerdNode) -> Inside:
    program = (sys.executable, "-m", "tests.bench.inside", str(bin_), node.packages.version())
    done = subprocess.run(
        node.enter(*_HERE, *program), env=processes.environment(), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise OSError(f"the daemon on containerd could not be measured:\n{done.stderr[-3000:]}")
    return Inside(**json.loads(done.stdout))


def requests(calls: Mapping[str, int], syncs: int) -> Iterator[Figure]:
    """Tell requests by CRI from those to containerd's own stores, which only an address without an owner needs."""
    own = sum(count for method, count in calls.items() if method.startswith(_OWN_STORES))
    cri = {method.rpartition("/")[2]: count for method, count in calls.items() if not method.startswith(_OWN_STORES)}
    yield Figure(
        f"the daemon: requests by CRI, each in {syncs:,} syncs or a few more",
        ", ".join(f"{count} {method}" for method, count in sorted(cri.items())),
    )
    counted = cri.get("ListPodSandbox", 0) >= syncs
    yield Figure("the daemon: requests to containerd's own stores in these syncs", str(own), "0", own == 0 and counted)


def imports(packages: Collection[str]) -> Figure:
    """Tell whether docker's client is imported. That CRI's is shows that imports were recorded."""
    measured = "yes" if "docker" in packages else "no"
    return Figure("the daemon imports `docker`", measured, "no", measured == "no" and "h2" in packages)

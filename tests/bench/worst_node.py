"""The daemon on nodes that hold far more than usual: what the worst node of a fleet costs in memory.

Everything is as in the section of the daemon, except for what a row names. Several processes: the greatest sum of
their proportional set sizes (`Pss`), as their container is charged for it: a page that they share counts once.
"""

import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests import processes
from tests.bench import resident
from tests.bench.measure import Figure
from tests.bench.surroundings import environment, fake_node

_CIDR = "10.64.0.0/15"
_SYNCS, _SYNCS_OF_LEAKS = 12, 4
_EVICTED = (3_000, 6_000)
_EXITED = 1_000
_LEAKS = (4_096, 16_384)
"""Half of what --max-reservations allows by default, and almost a whole /16."""
_OWN_FILES = 2
"""Of host-local: its lock, and the last reserved address."""
_DOCKER, _CONTAINERD = "docker://19.3.15", "containerd://1.7.24"
_PATIENCE = "--docker-timeout=1m"
"""Of 50 MB by HTTP/2 on a busy machine."""
_ALL_FILES = f"--max-reservations={max(_LEAKS) + resident.PODS + _OWN_FILES}"
_MOST_MIB, _MOST_OF_LEAKS_MIB, _MOST_OF_CLEANS_MIB = 75.0, 100.0, 90.0
_DRY_RUN_ONLY = 6
"""The exit code of a dry run where nothing could be released: here the journal has no directory."""
_CLEANS, _FOUND = 2, 7
"""Commands at once, and what they find: as on the node of the incident."""


def figures(bin_: Path) -> Iterator[Figure]:
    exited = f"{_EXITED:,} exited sandboxes of 50 KB"
    for evicted in _EVICTED:
        yield _peak(bin_, f"{evicted:,} evicted pods of 12 KB in the API server's list", evicted=evicted)
    yield _peak(bin_, f"{exited} in docker's list", exited=_EXITED)
    yield _peak(bin_, f"{exited} in containerd's list", _CONTAINERD, exited=_EXITED)
    for leaks in _LEAKS:
        yield _leaky(bin_, leaks)
    yield _together(bin_)


def _peak(bin_: Path, what: str, runtime: str = _DOCKER, **more: int) -> Figure:
    return resident.at_most(what, _measured(bin_, runtime, (), _SYNCS, **more).end.peak_mib, "MiB", _MOST_MIB)


def _leaky(bin_: Path, leaks: int) -> Figure:
    measured = _measured(bin_, _DOCKER, ["--confirm-after=0s", _ALL_FILES], _SYNCS_OF_LEAKS, ownerless=leaks)
    confirmed = sum(resident.values(measured.metrics, "nodeleak_reservations{", 'state="leaked"'))
    if confirmed != leaks:
        raise OSError(f"{confirmed:.0f} of {leaks} leaks are confirmed:\n{measured.metrics[-2000:]}")
    return resident.at_most(f"{leaks:,} confirmed leaks", measured.end.peak_mib, "MiB", _MOST_OF_LEAKS_MIB)


def _measured(bin_: Path, runtime: str, settings: Sequence[str], syncs: int, **more: int) -> resident.Measured:
    with fake_node(resident.PODS, _CIDR, resident.POD_BYTES, runtime, **more) as (host, _):
        options = host.options if runtime == _DOCKER else host.options_without_docker
        return resident.daemon(bin_, [f"--kubeconfig={host.kubeconfig}", _PATIENCE, *settings, *options], syncs)


def _together(bin_: Path) -> Figure:
    """Measure commands that begin at once when the daemon has settled."""
    with (
        fake_node(resident.PODS, _CIDR, resident.POD_BYTES, ownerless=_FOUND) as (host, _),
        tempfile.TemporaryDirectory(prefix="nodeleak-bench-") as directory,
    ):
        node = ("--node=worker-1", f"--kubeconfig={host.kubeconfig}", _PATIENCE, *host.options)
        run = [str(bin_ / "nodeleak"), "run", *node, "--interval=1s", "--listen=127.0.0.1:0"]
        clean = [str(bin_ / "nodeleak"), "clean", *node, "--confirm-after=1s"]
        with processes.running(run, Path(directory) / "log", environment()) as daemon:
            _wait_until_steady(daemon.pid)
            most = _most_at_once(daemon, [clean] * _CLEANS)
    what = f"{_CLEANS} `nodeleak clean` at once beside the daemon, all three"
    return resident.at_most(what, most, "MiB", _MOST_OF_CLEANS_MIB)


def _most_at_once(daemon: subprocess.Popen[bytes], commands: Sequence[Sequence[str]]) -> float:
    quiet = subprocess.DEVNULL
    started = [subprocess.Popen(one, stdin=quiet, stdout=quiet, stderr=quiet, env=environment()) for one in commands]
    most = 0.0
    while any(one.poll() is None for one in started):
        most = max(most, sum(_pss_mib(one.pid) for one in (daemon, *started)))
        time.sleep(0.01)
    if daemon.poll() is not None or any(one.returncode not in {0, _DRY_RUN_ONLY} for one in started):
        raise OSError(f"the daemon ended, or a command failed: {[one.returncode for one in started]}")
    return most


def _wait_until_steady(pid: int) -> None:
    """Wait until the memory does not grow for three seconds: the daemon has everything, and syncs each second."""
    sizes: list[float] = []
    for _ in processes.until(time.monotonic() + 300, every=0.5):
        sizes.append(_pss_mib(pid))
        if len(sizes) > 6 and sizes[-1] > 40 and sizes[-1] - sizes[-6] < 0.1:
            return
    raise OSError("the daemon's memory did not become steady in five minutes")


def _pss_mib(pid: int) -> float:
    """Return the proportional set size; 0 of a process that ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0.0)

"""What a reading of the node's network namespaces costs, and how old it is when an address is removed.

The node is a network, mount and PID namespace: host processes, routes in their namespace, pods, and a thread that alone
has a namespace. The reading process has no capability, as in the image. Each release reads all namespaces again, which
is the last proof that no process uses the address. Its age counts from the start of the reading to the removal of the
file. In between, the journal is written to disk.
"""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median, quantiles

from agent.cleanup.journal import JournalStore
from agent.cleanup.recheck import Recheck
from agent.cleanup.unlink import LockedNetwork, NodeFiles, release
from agent.model.release import ReleaseRequest
from agent.sources.host.addresses import read_addresses
from agent.sources.host.cni_cache import CniResults
from agent.sources.host.reservations import read_reservations
from tests import processes
from tests.bench.measure import Figure
from tests.bench.resident import at_most
from tests.bench.surroundings import ROOT

_CPU_MS = 30.0
_NETWORK = "kubenet"
_PROC = Path("/proc")
_PRIVATE = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
_POWERLESS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
_CLONE_NEWNET = 0x40000000


@dataclass(frozen=True, slots=True)
class Size:
    """A node, and what is done on it."""

    processes: int = 300
    threads: int = 1
    """Of each."""
    routes: int = 2_000
    pods: int = 20
    pod_threads: int = 5
    readings: int = 21
    releases: int = 200

    def __str__(self) -> str:
        each = f" with {self.threads} threads each" if self.threads > 1 else ""
        return f"{self.processes:,} host processes{each}, {self.routes:,} routes, {self.pods} pods"


@dataclass(frozen=True, slots=True)
class Measured:
    cpu_ms: Sequence[float]
    """Of each reading."""
    release_ms: Sequence[float]
    """CPU of each release, the reading included."""
    age_ms: Sequence[float]
    """Of the reading at each removal."""


def figures() -> Iterator[Figure]:
    if os.geteuid() or not all(map(shutil.which, (_PRIVATE[0], _POWERLESS[0], "ip"))):
        yield Figure("not measured: it needs root, unshare, setpriv and ip", "-")
        return
    for size in (Size(), Size(threads=10)):
        measured = measure(size)
        of_reading, of_release = median(measured.cpu_ms), median(measured.release_ms)
        yield at_most(f"{size}: CPU of a reading", of_reading, "ms", _CPU_MS)
        yield at_most("the same: CPU of a release, with its reading", of_release, "ms", _CPU_MS)
        for percent in (50, 99):
            age = quantiles(measured.age_ms, n=100)[percent - 1]
            yield Figure(f"the same: age of the reading at the removal, p{percent}", f"{age:.1f} ms")


def measure(size: Size) -> Measured:
    """Measure on such a node; raises OSError."""
    return Measured(**json.loads(_run(*_PRIVATE, *_this("node", size))))


def _this(part: str, size: Size) -> tuple[str, ...]:
    return (sys.executable, "-m", "tests.bench.namespaces", part, json.dumps(asdict(size)))


def _run(*command: str, given: str = "") -> str:
    done = subprocess.run(
        command, cwd=ROOT, env=processes.environment(), input=given, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr}{done.stdout}")
    return done.stdout


def node(size: Size) -> str:
    """Make the node out of this process, and measure it in another one. At the end of this one, the kernel ends all."""
    for command in ("link set lo up", "link add host0 type veth peer name host1", "link set host0 up"):
        _run("ip", *command.split())
    for command in ("link set host1 up", "addr add 10.0.0.1/16 dev host0"):
        _run("ip", *command.split())
    routes = (f"route add 10.{1 + number // 256}.{number % 256}.0/24 via 10.0.0.9\n" for number in range(size.routes))
    _run("ip", "-batch", "-", given="".join(routes))
    for _ in range(size.processes):
        _fork(size.threads, lambda: None)
    for number in range(1, size.pods + 1):
        _fork(size.pod_threads, partial(_enter_namespace, number))
    _fork(2, lambda: None, lambda: _enter_namespace(0))
    return _run(*_POWERLESS, *_this("read", size))


def _fork(threads: int, first: Callable[[], None], second: Callable[[], None] = lambda: None) -> None:
    """Start a process, and return when it has all of its threads. `first`, `second`: what its threads do first."""
    ready, begun = os.pipe()
    if not os.fork():
        first()
        for number in range(1, threads):
            done = threading.Event()
            prepare = second if number == 1 else lambda: None
            threading.Thread(target=_live, args=(prepare, done), daemon=True).start()
            done.wait()
        os.write(begun, b"1")
        signal.pause()
    os.close(begun)
    with os.fdopen(ready) as started:
        if not started.read(1):
            raise OSError("a process of the node did not start")


def _live(prepare: Callable[[], None], done: threading.Event) -> None:
    prepare()
    done.set()
    while True:
        time.sleep(3600)


def _enter_namespace(number: int) -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "unshare")
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "addr", "add", f"{_pod_ip(number)}/32", "dev", "lo")


def _pod_ip(number: int) -> str:
    return f"10.244.0.{number + 1}"


def read(size: Size) -> Measured:
    """Measure the node that this process runs on."""
    expected = {"10.0.0.1", *map(_pod_ip, range(size.pods + 1))}
    if missing := expected - {one.ip for one in read_addresses(_PROC)}:
        raise OSError(f"not found: {', '.join(sorted(missing))}")
    cpu = [_cpu(lambda: read_addresses(_PROC)) for _ in range(size.readings)]
    with tempfile.TemporaryDirectory(prefix="nodeleak-bench-") as directory:
        releases = [(1000 * spent, 1000 * age) for spent, age in _released(Path(directory), size.releases)]
    return Measured([1000 * one for one in cpu], *map(list, zip(*releases, strict=True)))


def _cpu(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


@dataclass
class _TimedFiles(NodeFiles):
    removed: float = 0
    """When a file was removed last."""

    @contextmanager
    def locked(self, directories: Iterable[str]) -> Iterator[Mapping[str, LockedNetwork]]:
        with super().locked(directories) as networks:
            yield networks
            self.removed = time.perf_counter()


def _released(directory: Path, releases: int) -> Iterator[tuple[float, float]]:
    """Release addresses as one sync does; yield the CPU of each, and the age of the last reading at its removal."""
    store, cache = directory / "networks" / _NETWORK, directory / "results"
    for made in (store, cache):
        made.mkdir(parents=True)
    for number in range(releases):
        (store / f"10.245.{number // 250}.{number % 250}").write_text(f"{number:064x}\r\neth0")
    asked = 0.0

    def has_checkpoint(_container_id: str) -> bool:
        nonlocal asked
        asked = time.perf_counter()
        return False

    recheck = Recheck(lambda _: False, has_checkpoint, CniResults([cache]), _PROC, lambda *_: {})
    files, journal = _TimedFiles(store.parent, (cache,), 1.0, time.perf_counter), JournalStore(directory / "state")
    for reservation in read_reservations(store.parent, _NETWORK).reading.known():
        request, begun, at = ReleaseRequest((reservation,), ""), time.process_time(), datetime.now(UTC)
        release(request, (), recheck, files, journal, by="bench", at=at)
        yield time.process_time() - begun, files.removed - asked


if __name__ == "__main__":
    _size = Size(**json.loads(sys.argv[2]))
    print(node(_size) if sys.argv[1] == "node" else json.dumps(asdict(read(_size))))

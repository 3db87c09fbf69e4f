"""What a reading of the node's network namespaces costs: each release reads them again, right before it.

The node is a network, mount and PID namespace: host processes, routes in their namespace, and pods. The reading process
has no capability, as in the image.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

from agent.sources.host.addresses import read_addresses
from tests import processes
from tests.bench.measure import Figure, at_most
from tests.bench.surroundings import ROOT
from tests.wire import run

_CPU_MS = 30.0
_PROCESSES, _ROUTES, _PODS, _POD_THREADS, _READINGS = 300, 2_000, 20, 5, 21
_PRIVATE = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
_POWERLESS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
_IPS = [f"10.244.0.{number + 2}" for number in range(_PODS)]
_CLONE_NEWNET = 0x40000000


def figures() -> Iterator[Figure]:
    if os.geteuid() or not all(map(shutil.which, (_PRIVATE[0], _POWERLESS[0], "ip"))):
        yield Figure("not measured: it needs root, unshare, setpriv and ip", "-")
        return
    for threads in (1, 10):
        done = subprocess.run(
            [*_PRIVATE, *_this("node", threads)], cwd=ROOT, env=processes.environment(), capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        if done.returncode:
            raise OSError(f"the node could not be made:\n{done.stderr}")
        each = f" with {threads} threads each" if threads > 1 else ""
        what = f"{_PROCESSES:,} host processes{each}, {_ROUTES:,} routes, {_PODS} pods: CPU of a reading"
        yield at_most(what, float(done.stdout), "ms", _CPU_MS)


def _this(part: str, threads: int) -> tuple[str, ...]:
    return (sys.executable, "-m", "tests.bench.namespaces", part, str(threads))


def node(threads: int) -> str:
    """Make the node out of this process, and measure it in another one. At the end of this one, the kernel ends all."""
    for command in (
        "link set lo up",
        "link add host0 type veth peer name host1",
        "link set host0 up",
    ):
        run("ip", *command.split())
    for command in ("link set host1 up", "addr add 10.0.0.1/16 dev host0"):
        run("ip", *command.split())
    routes = (
        f"route add 10.{1 + number // 256}.{number % 256}.0/24 via 10.0.0.9\n"
        for number in range(_ROUTES)
    )
    run("ip", "-batch", "-", given="".join(routes))
    for _ in range(_PROCESSES):
        _fork(threads, lambda: None)
    for number in range(_PODS):
        _fork(_POD_THREADS, partial(_enter_namespace, number))
    return run(*_POWERLESS, *_this("read", threads))


def _fork(threads: int, first: Callable[[], None]) -> None:
    """Start a process, and return when it has all of its threads. `first`: what it does first."""
    ready, begun = os.pipe()
    if not os.fork():
        first()
        for _ in range(1, threads):
            threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
        os.write(begun, b"1")
        signal.pause()
    os.close(begun)
    with os.fdopen(ready) as started:
        if not started.read(1):
            raise OSError("a process of the node did not start")


def _enter_namespace(number: int) -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "unshare")
    run("ip", "link", "set", "lo", "up")
    run("ip", "addr", "add", f"{_IPS[number]}/32", "dev", "lo")


def read() -> float:
    """Return the CPU of a reading of the node that this process runs on, in milliseconds."""
    expected = {"10.0.0.1", *_IPS}
    if missing := expected - {address.ip for address in read_addresses(Path("/proc"))}:
        raise OSError(f"not found: {', '.join(sorted(missing))}")
    spent = []
    for _ in range(_READINGS):
        start = time.process_time()
        read_addresses(Path("/proc"))
        spent.append(1000 * (time.process_time() - start))
    return median(spent)


if __name__ == "__main__":
    print(node(int(sys.argv[2])) if sys.argv[1] == "node" else read())

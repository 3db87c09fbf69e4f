"""The daemon on the same node while clients ask it without pause, or hold connections and ask nothing.

Each figure is the CPU of the daemon beyond that of an idle run of the same length in the same session.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests import processes
from tests.bench.measure import Figure, footprint
from tests.bench.resident import POD_BYTES, PODS, free_port
from tests.bench.surroundings import ROOT, fake_node
from tests.network import network

CLIENTS, SECONDS = 5, 20.0
_PATHS = ("/metrics", "/healthz", "/api/v1/report", "/api/v1/status", "/")
_MOST_PERCENT, _MOST_FLOODED_PERCENT, _SLOW, _SCRAPES = 1.0, 2.5, 100, 10
_FROM_POD = """
import http.client, socket, sys, time

def ask(path):
    try:
        connection = http.client.HTTPConnection("10.244.1.1", 9747, timeout=15)
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except OSError:
        return False

begun = time.monotonic()
while not ask("/readyz") and time.monotonic() < begun + 60:
    time.sleep(0.2)
held = []
for number in range(2 * int(sys.argv[1])):
    source = ("10.244.1.11", "10.244.1.12")[number % 2]
    try:
        held.append(socket.create_connection(("10.244.1.1", 9747), 15, (source, 0)))
        held[-1].sendall(b"GET /metr")
    except OSError:  # another one took its place already
        pass
print(len(held), sum(ask("/metrics") for _ in range(int(sys.argv[2]))))
"""
"""Holds connections from two addresses, and asks from a third one."""


def figures(bin_: Path) -> Iterator[Figure]:
    with fake_node(PODS, "10.253.6.0/24", POD_BYTES) as (host, _):
        command = (str(bin_ / "nodeleak"), "run", "--node=worker-1", f"--kubeconfig={host.kubeconfig}", *host.options)
        with daemon(command) as (pid, port):
            yield from measured(pid, port, SECONDS, _PATHS)
            yield flooded(pid, port, SECONDS)
            with slow_clients(port, _SLOW):
                answered = sum(request(port, "/metrics") for _ in range(_SCRAPES))
            yield Figure(
                f"scrapes answered while {_SLOW} connections of the same client send nothing",
                f"{answered} of {_SCRAPES}",
                "all",
                answered == _SCRAPES,
            )
        yield beside_slow_addresses((str(bin_ / "nodeleak"), "run", "--node=worker-1", "--api=off", *host.options))


def beside_slow_addresses(command: Sequence[str], slow: int = _SLOW) -> Figure:
    """Count the answers to Prometheus while two other machines hold connections, in a network of their own."""
    if os.geteuid() or not all(map(shutil.which, ("ip", "unshare", "nsenter"))):
        return Figure("not measured: scrapes beside slow connections of two addresses need root and iproute2", "-")
    with network() as node, tempfile.TemporaryDirectory(prefix="nodeleak-bench-") as directory:
        node.pod("pod", 10)
        node.ip(*(f"-n pod addr add 10.244.1.{last}/24 dev eth0" for last in (11, 12)))
        server = node.enter(*command, "--listen=10.244.1.1:9747")
        with processes.running(server, Path(directory) / "log", processes.environment()):
            asked = node.run("ip", "netns", "exec", "pod", sys.executable, "-c", _FROM_POD, str(slow), str(_SCRAPES))
    held, answered = map(int, asked.split())
    return Figure(
        f"scrapes answered while two other addresses have opened {held} connections that send nothing",
        f"{answered} of {_SCRAPES}",
        "all",
        answered == _SCRAPES and held > slow,
    )


def measured(pid: int, port: int, seconds: float, paths: Sequence[str]) -> Iterator[Figure]:
    """Return the CPU that asking for each path costs, and how often it was answered."""
    for path in paths:  # what a first answer imports is no cost of the next ones
        request(port, path)
    idle = _cpu_ms(pid, seconds)
    for path in paths:
        with looping(port, path) as clients:
            busy = _cpu_ms(pid, seconds)
        percent, rate = (busy - idle) / seconds / 10, clients[0] / seconds
        yield Figure(
            f"CPU while {CLIENTS} clients ask for `{path}` without pause, answered {rate:.0f} times a second",
            f"{percent:.2f} % of a core",
            f"at most {_MOST_PERCENT:g} %",
            percent <= _MOST_PERCENT,
        )


def flooded(pid: int, port: int, seconds: float) -> Figure:
    """Return the CPU that connections without any request cost."""
    idle = _cpu_ms(pid, seconds)
    with looping(port, "") as clients:
        busy = _cpu_ms(pid, seconds)
    percent, rate = (busy - idle) / seconds / 10, clients[0] / seconds
    return Figure(
        f"CPU while {CLIENTS} clients connect {rate:.0f} times a second and ask nothing",
        f"{percent:.2f} % of a core",
        f"at most {_MOST_FLOODED_PERCENT:g} %",
        percent <= _MOST_FLOODED_PERCENT,
    )


@contextmanager
def daemon(command: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Run the daemon until the end of the block; yield its process and its port after the first sync."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="nodeleak-bench-") as directory:
        log = Path(directory) / "log"
        with processes.running((*command, f"--listen=127.0.0.1:{port}"), log, processes.environment()) as child:
            for _ in processes.until(time.monotonic() + 60, every=0.2):
                if child.poll() is not None:
                    raise OSError(f"the daemon exited on its own:\n{log.read_text()[-2000:]}")
                if request(port, "/readyz"):
                    break
            yield child.pid, port


def _cpu_ms(pid: int, seconds: float) -> float:
    before = footprint(pid).cpu_ms
    time.sleep(seconds)
    return footprint(pid).cpu_ms - before


def request(port: int, path: str) -> bool:
    """Ask once; return whether the answer was complete and good."""
    received = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            while more := connection.recv(1 << 20):
                received += more
    except OSError:
        return False
    return received.startswith(b"HTTP/1.0 200")


def connect(port: int) -> bool:
    """Connect and leave again; return whether there was a connection."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
    except OSError:
        return False
    return True


@contextmanager
def looping(port: int, path: str) -> Iterator[list[int]]:
    """Ask without pause during the block, from another process; the list has the number of answers after it.

    Without a path, connect and leave again; it has the number of connections.
    """
    counted: list[int] = []
    command = (sys.executable, "-m", __name__, str(port), path)
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            if child.stdout is None or child.stdout.readline() != "ready\n":
                raise OSError("the clients did not start")
            yield counted
        finally:
            out, _ = child.communicate("\n")
        counted.append(int(out))


@contextmanager
def slow_clients(port: int, count: int) -> Iterator[None]:
    """Hold connections that never complete a request."""
    with ExitStack() as stack:
        for _ in range(count):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            one.sendall(b"GET /metr")
        yield


def main(port: int, path: str) -> None:
    counts = [0] * CLIENTS
    ended = threading.Event()

    def loop(number: int) -> None:
        while not ended.is_set():
            counts[number] += request(port, path) if path else connect(port)

    threads = [threading.Thread(target=loop, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    print("ready", flush=True)
    sys.stdin.readline()
    ended.set()
    for thread in threads:
        thread.join()
    print(sum(counts))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])

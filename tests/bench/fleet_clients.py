"""The clients of the section `fleet`: agents on fake nodes, and minimal watchers of the same objects."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from tests import processes
from tests.bench.scale import deploy_account
from tests.bench.surroundings import environment, runtime
from tests.control_plane import ControlPlane
from tests.fakes.host import Host, build
from tests.fakes.nodes import FakeNode
from tests.fakes.runtime import runtime_of

_WATCHES: Final = 3
"""Of each client."""
_NICE: Final = ("nice", "-n", "9")
"""Elsewhere, clients have cores of their own: here they must not take those of the server."""
_AT_ONCE: Final = 4
"""Agents that start at the same time: each needs a core for a second."""
_IN_A_PROCESS: Final = 100
"""Watchers."""
_OTHERS: Final = 20
"""Watches of kwok and of the API server itself, by which their number may differ."""
_LONGEST_START: Final = 600.0


@dataclass(frozen=True, slots=True)
class Clients:
    pids: list[int] = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)


def mount_account(plane: ControlPlane) -> Path:
    """Return the directory of the agents' service account, as it is mounted in a pod."""
    directory = plane.directory / "account"
    directory.mkdir()
    (directory / "token").write_text(deploy_account(plane))
    (directory / "ca.crt").write_text(plane.certificate.read_text())
    (directory / "namespace").write_text("kube-system")
    (directory / "port").write_text(str(plane.port))
    return directory


@contextmanager
def host_of(plane: ControlPlane, account: Path, node: FakeNode) -> Iterator[Host]:
    """Run a fake node during the block."""
    host = build(plane.directory / node.name, node)
    host.account = account
    with runtime_of(host, node):
        yield host


@contextmanager
def watchers(plane: ControlPlane, account: Path, names: Sequence[str]) -> Iterator[Clients]:
    program = [*_NICE, sys.executable, "-m", "tests.bench.watchers", str(plane.port), str(account)]
    base = open_watches(plane)
    with ExitStack() as stack:
        clients = Clients()
        for first in range(0, len(names), _IN_A_PROCESS):
            log = plane.directory / f"watchers-{first}.log"
            command = [*program, *names[first : first + _IN_A_PROCESS]]
            child = stack.enter_context(processes.running(command, log, environment()))
            clients.pids.append(child.pid)
        _until_open(plane, base + _WATCHES * len(names))
        yield clients
    # Who counts next would count these too.
    _until(lambda: open_watches(plane) <= base + _OTHERS, "the watches are closed", every=1.0)


@contextmanager
def agents(plane: ControlPlane, hosts: Sequence[Host], names: Sequence[str]) -> Iterator[Clients]:
    python = runtime() / "python"
    base = open_watches(plane)
    with ExitStack() as stack:
        children: list[subprocess.Popen[bytes]] = []
        logs = [host.root / "log" for host in hosts]
        for number, (host, name) in enumerate(zip(hosts, names, strict=True)):
            if number >= _AT_ONCE:
                _until(partial(_has_started, logs[number - _AT_ONCE]), "an agent has started")
            command = [*_NICE, *host.in_pod(python), "run", f"--node={name}"]
            command += ["--brake=nodeleak-brake", "--docker-timeout=1m", "--log-format=json"]
            command += ["--listen=127.0.0.1:0", *host.options_without_docker]
            variables = environment(**host.pod_environment)
            running = processes.running(command, logs[number], variables)
            children.append(stack.enter_context(running))
        stack.callback(_terminate, children)
        _until_open(plane, base + _WATCHES * len(hosts))
        yield Clients([child.pid for child in children], logs)


def _terminate(children: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Let all end at the same time."""
    for child in children:
        child.terminate()


def _has_started(log: Path) -> bool:
    return "agent.started" in log.read_text()


def open_watches(plane: ControlPlane) -> int:
    """Return how many watches the API server has, of whomever."""
    return total(plane, "apiserver_longrunning_requests")


def total(plane: ControlPlane, name: str, *labels: str) -> int:
    """Return the sum of the API server's samples of this metric that have all these labels."""
    lines = plane.request("GET", "/metrics").decode().splitlines()
    of_metric = [line for line in lines if line.startswith(f"{name}{{")]
    wanted = [line for line in of_metric if all(label in line for label in labels)]
    return int(sum(float(line.rpartition(" ")[2]) for line in wanted))


def _until_open(plane: ControlPlane, watches: int) -> None:
    _until(lambda: open_watches(plane) >= watches, f"{watches} watches are open", every=1.0)


def _until(is_so: Callable[[], bool], what: str, every: float = 0.1) -> None:
    for _ in processes.until(time.monotonic() + _LONGEST_START, every):
        if is_so():
            return
    raise OSError(f"this did not happen within {_LONGEST_START:.0f} s: {what}")

"""`make demo`: find and release leaked addresses on a simulated node whose kubelet has no free address for a new pod.

docker and the API server are fakes (tests/fakes); the agent is the real one. Everything is written to one temporary
directory, which is removed at the end.
"""

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from tests import processes
from tests.bench.measure import get
from tests.fakes.apiserver import apiserver
from tests.fakes.engine import engine
from tests.fakes.host import Host, build, write_kubeconfig
from tests.fakes.nodes import FakeNode, the_incident

_LEAKED, _IN_USE, _USABLE = 7, 118, 125
_TIMEOUT = 20.0
"""Time limit for a command and for the daemon's first findings."""
_METRICS = (
    f'nodeleak_reservations{{network="kubenet",state="leaked"}} {_LEAKED}.0',
    f'nodeleak_reservations{{network="kubenet",state="in_use"}} {_IN_USE}.0',
    'nodeleak_range_free_addresses{network="kubenet"} 0.0',
    f'nodeleak_leaks_confirmed_total{{cause="kubelet_restart",network="kubenet"}} {_LEAKED}.0',
)
"""What the daemon serves of this node, among others."""


class DemoFailed(Exception):
    """The agent did not do what the demo shows."""


def main() -> int:
    """Run the demo and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.demo", description="Run nodeleak on a simulated node.")
    parser.add_argument("--keep", action="store_true", help="keep the daemon running until Ctrl-C")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _leave)
    started = time.monotonic()
    try:
        with ExitStack() as stack:
            _show(stack, keep=options.keep)
    except KeyboardInterrupt:
        print("\ninterrupted; everything was cleaned up")
        return 128 + signal.SIGINT
    except (DemoFailed, OSError, subprocess.SubprocessError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    _say("", f"Done in {time.monotonic() - started:.0f} s. The daemon is stopped and the simulated node removed.")
    return 0


def _leave(_signal: int, _frame: object) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Demo:
    """The simulated node, and the command on it."""

    node: FakeNode
    host: Host

    def command(self, *words: str) -> list[str]:
        beside = Path(sys.executable).with_name("nodeleak")
        nodeleak = str(beside) if beside.exists() else shutil.which("nodeleak")
        if nodeleak is None:
            raise DemoFailed("the command nodeleak is not installed in this environment: run `make demo`")
        api = () if words[0] == "restore" else (f"--node={self.node.name}", f"--kubeconfig={self.host.kubeconfig}")
        return [nodeleak, *words, *api, *(self.host.options if api else self.host.restore_options)]

    def run(self, *words: str) -> str:
        done = subprocess.run(
            self.command(*words),
            env=processes.environment(NODELEAK_PROBE="off"),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
        )
        if done.returncode != 0:
            raise DemoFailed(f"nodeleak exited with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def show(self, *words: str) -> None:
        _say("", f"$ nodeleak {' '.join(words)} …", self.run(*words).rstrip())

    @property
    def stored(self) -> dict[str, bytes]:
        """The content of host-local's files."""
        return {entry.name: entry.read_bytes() for entry in self.host.store.iterdir()}


def _show(stack: ExitStack, *, keep: bool) -> None:
    node = the_incident(datetime.now(UTC))
    demo = Demo(node, build(stack.enter_context(_directory()), node))
    stack.enter_context(engine(demo.host.docker_socket, node))
    write_kubeconfig(demo.host, stack.enter_context(apiserver(node)))
    _say(
        f"A kubenet node with {_USABLE} pod addresses in {node.cidr}, and a pod that cannot start:",
        f"  {', '.join(name for _, name in node.pending)}",
        "  failed to allocate for range 0: no IP addresses available in range set: 10.253.6.129-10.253.6.254",
        f"The node is simulated in {demo.host.root}: docker and the API server are fakes, the agent is real.",
    )
    demo.show("scan")
    _check_what_was_found(demo)
    daemon, port = _start_daemon(stack, demo)
    _clean(demo)
    if keep:
        _say("", f"Serving on http://127.0.0.1:{port} until Ctrl-C.")
        daemon.wait()
    if (code := processes.stop(daemon)) != 0:
        raise DemoFailed(f"nodeleak run exited with {code} after SIGTERM:\n{_log(demo)}")


@contextmanager
def _directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="nodeleak-demo-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _check_what_was_found(demo: Demo) -> None:
    document: Any = json.loads(demo.run("scan", "--output=json"))
    network = document["networks"][0]
    states = {state: count for state, count in network["states"].items() if count}
    counts = {"usable": network["usable"], "free": network["free"], **states}
    expected = {"usable": _USABLE, "free": 0, "in_use": _IN_USE, "leaked": _LEAKED}
    if counts != expected or document["unavailable"]:
        raise DemoFailed(f"expected {expected} and every source available, got {counts} and {document['unavailable']}")
    leaked = {(found["ip"], found["pod"]) for found in document["reservations"] if found["state"] == "leaked"}
    if leaked != {(sandbox.ip, f"{sandbox.namespace}/{sandbox.pod}") for sandbox in demo.node.leaked}:
        raise DemoFailed(f"expected the leaks of the simulated node, got {sorted(leaked)}")
    _say(
        "",
        "The pod names come from libcni's cache. On a real kubenet node the cache has none: there only a daemon that",
        "ran before the leak knows them.",
    )


def _start_daemon(stack: ExitStack, demo: Demo) -> tuple["subprocess.Popen[bytes]", int]:
    """Start the daemon with shorter intervals than its defaults, wait until the leaks are confirmed, and show them."""
    quick = ("run", "--interval=500ms", "--confirm-after=1s", "--listen=127.0.0.1:0", "--log-format=json")
    _say("", f"$ nodeleak {' '.join(quick)} …")
    log = demo.host.root / "run.log"
    daemon = stack.enter_context(processes.running(demo.command(*quick), log, processes.environment()))
    metrics: list[str] = []
    for _ in processes.until(time.monotonic() + _TIMEOUT):
        if daemon.poll() is not None:
            break
        if port := re.search(r'"port": ?(\d+)', log.read_text()):
            metrics = get(f"http://127.0.0.1:{port[1]}/metrics").splitlines()
            if set(_METRICS) <= set(metrics):
                _say(f"$ curl -s http://127.0.0.1:{port[1]}/metrics | grep …", *(f"  {line}" for line in _METRICS))
                opened = next(line for line in log.read_text().splitlines() if "finding.opened" in line)
                _say(
                    "",
                    "It also serves / (web page), /api/v1/report (JSON), /healthz and /readyz, and logs every change:",
                )
                _say(f"  {opened}")
                return daemon, int(port[1])
    raise DemoFailed("\n".join(["the daemon did not confirm the leaks:", *metrics, _log(demo)]))


def _clean(demo: Demo) -> None:
    """Show a dry run, release the leaks, restore one, and check that nothing else changed."""
    before = demo.stored
    demo.show("clean", "--confirm-after=500ms", "--cleanup-network=auto")
    if demo.stored != before:
        raise DemoFailed("the dry run changed files")
    demo.show("clean", "--confirm-after=500ms", "--cleanup-network=auto", "--apply")
    leaked = {sandbox.ip for sandbox in demo.node.leaked}
    left = {name: content for name, content in before.items() if name not in leaked}
    if demo.stored != left:
        raise DemoFailed(f"expected the {_LEAKED} leaks to be released and nothing else, got {sorted(demo.stored)}")
    demo.show("restore", "--last", "--apply")
    restored = {name: content for name, content in demo.stored.items() if name not in left}
    if len(restored) != 1 or not restored.items() <= before.items():
        raise DemoFailed(f"expected one release to be restored byte for byte, got {restored}")


def _log(demo: Demo) -> str:
    return "\n".join((demo.host.root / "run.log").read_text(errors="replace").splitlines()[-20:])


def _say(*lines: str) -> None:
    print(*lines, sep="\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())

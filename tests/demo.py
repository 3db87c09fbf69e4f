"""`make demo`: find and release leaked addresses on a simulated node whose kubelet has no free address for a new pod.

docker and the API server are fakes (tests/fakes); the agent is the real one. Everything is written to one temporary
directory, which is removed at the end.
"""

import argparse
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from tests import processes
from tests.bench.measure import get
from tests.fakes.apiserver import apiserver
from tests.fakes.engine import engine
from tests.fakes.host import Host, build, write_kubeconfig
from tests.fakes.nodes import FakeNode, the_incident

_LEAKED, _IN_USE, _USABLE = 7, 118, 125
_TIMEOUT = 300  # Time limit for a command and for the daemon's first findings
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
    parser = argparse.ArgumentParser(
        prog="python -m tests.demo", description="Run nodeleak on a simulated node."
    )
    text = "serve the page until Ctrl-C at the end (default: if it runs at a terminal)"
    parser.add_argument(
        "--keep", action=argparse.BooleanOptionalAction, default=sys.stdout.isatty(), help=text
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    started = time.monotonic()
    try:
        with TemporaryDirectory(prefix="nodeleak-demo-") as directory, ExitStack() as stack:
            _show(stack, Path(directory), keep=options.keep)
    except KeyboardInterrupt:
        print("\ninterrupted; everything was cleaned up")
        return 128 + signal.SIGINT
    except (DemoFailed, OSError, subprocess.SubprocessError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    _say(
        "",
        f"Done in {time.monotonic() - started:.0f} s. The daemon is stopped and the simulated node removed.",
    )
    return 0


@dataclass(frozen=True, slots=True)
class Demo:
    """The simulated node, and the command on it."""

    node: FakeNode
    host: Host

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "agent", *words]

    def environment(self, **more: str) -> dict[str, str]:
        """Return where the node is, as a pod gets it: the advised commands stay as they are on a node."""
        options = (
            *self.host.options,
            f"--node={self.node.name}",
            f"--kubeconfig={self.host.kubeconfig}",
        )
        pairs = (option.removeprefix("--").split("=", 1) for option in options)
        return processes.environment(
            **{f"NODELEAK_{name.replace('-', '_').upper()}": value for name, value in pairs}, **more
        )

    def show(self, *words: str) -> None:
        done = subprocess.run(
            self.command(*words),
            env=self.environment(NODELEAK_PROBE="off"),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
        )
        if done.returncode != 0:
            raise DemoFailed(f"nodeleak exited with {done.returncode}:\n{done.stdout}{done.stderr}")
        _say("", f"$ nodeleak {' '.join(words)}", done.stdout.rstrip())


def _show(stack: ExitStack, directory: Path, *, keep: bool) -> None:
    node = the_incident(datetime.now(UTC))
    demo = Demo(node, build(directory, node))
    stack.enter_context(engine(demo.host.docker_socket, node))
    write_kubeconfig(demo.host, stack.enter_context(apiserver(node)))
    _say(
        f"A kubenet node with {_USABLE} pod addresses in {node.cidr}, and a pod that cannot start:",
        f"  {', '.join(name for _, name in node.pending)}",
        "  failed to allocate for range 0: no IP addresses available in range set: 10.253.6.129-10.253.6.254",
        f"The node is simulated in {demo.host.root}: docker and the API server are fakes, the agent is real.",
    )
    demo.show("scan")
    _say(
        "",
        "The pod names come from libcni's cache. On a real kubenet node the cache has none: there only a daemon that",
        "ran before the leak knows them.",
    )
    daemon, port = _start_daemon(stack, demo)
    cleaning = ("clean", "--confirm-after=500ms", "--cleanup-network=auto")
    for words in (cleaning, (*cleaning, "--apply"), ("restore", "--last", "--apply")):
        demo.show(*words)
    if keep:
        _say("", f"The page of this node: http://127.0.0.1:{port}/ (until Ctrl-C)")
        daemon.wait()
    if (code := processes.stop(daemon)) != 0:
        raise DemoFailed(f"nodeleak run exited with {code} after SIGTERM")


def _start_daemon(stack: ExitStack, demo: Demo) -> tuple["subprocess.Popen[bytes]", int]:
    """Start the daemon with shorter intervals than its defaults, wait until the leaks are confirmed, and show them."""
    quick = (
        "run",
        "--interval=500ms",
        "--confirm-after=1s",
        "--listen=127.0.0.1:0",
        "--log-format=json",
    )
    _say("", f"$ nodeleak {' '.join(quick)}")
    log = demo.host.root / "run.log"
    daemon = stack.enter_context(processes.running(demo.command(*quick), log, demo.environment()))
    for _ in processes.until(time.monotonic() + _TIMEOUT):
        if daemon.poll() is not None:
            break
        port = re.search(r'"port": ?(\d+)', log.read_text())
        if port and set(_METRICS) <= set(get(f"http://127.0.0.1:{port[1]}/metrics").splitlines()):
            opened = next(line for line in log.read_text().splitlines() if "finding.opened" in line)
            _say(
                f"$ curl -s http://127.0.0.1:{port[1]}/metrics | grep …",
                *(f"  {line}" for line in _METRICS),
                "",
                f"It also serves a web page, http://127.0.0.1:{port[1]}/, and logs every change:",
                f"  {opened}",
            )
            return daemon, int(port[1])
    raise DemoFailed(f"the daemon did not confirm the leaks:\n{log.read_text()[-2000:]}")


def _say(*lines: str) -> None:
    print(*lines, sep="\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""`make demo`: find and release leaked addresses on a simulated node whose kubelet has no free address for a new pod.

docker and the API server are fakes (tests/fakes); the agent is the real one. Everything is written to one temporary
directory, which is removed at the end.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any, NoReturn
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from tests import processes
from tests.fakes.apiserver import apiserver
from tests.fakes.engine import engine
from tests.fakes.host import Host, build, write_kubeconfig
from tests.fakes.nodes import FakeNode, the_incident

_LEAKED, _IN_USE, _USABLE = 7, 118, 125
_TIMEOUT = 20.0
"""Time limit for a command and for the daemon's first findings."""
_SHOWN_METRICS = (
    "nodeleak_reservations{",
    "nodeleak_range_addresses{",
    "nodeleak_range_free_addresses{",
    "nodeleak_leaks_confirmed_total{",
    "nodeleak_source_up{",
)


class DemoFailed(Exception):
    """The agent did not do what the demo shows."""


def main() -> int:
    """Run the demo and return the exit code."""
    parser = argparse.ArgumentParser(prog="hack/demo", description="Run nodeleak on a simulated node.")
    parser.add_argument("--keep", action="store_true", help="keep the daemon running until Ctrl-C")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _leave)
    try:
        with ExitStack() as stack:
            _show(stack, keep=options.keep)
    except KeyboardInterrupt:
        print("\ninterrupted; everything was cleaned up")
        return 128 + signal.SIGINT
    except (DemoFailed, OSError, subprocess.SubprocessError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return 0


def _leave(_signal: int, _frame: object) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)


def _show(stack: ExitStack, *, keep: bool) -> None:
    started = time.monotonic()
    node = the_incident(datetime.now(UTC))
    host = build(stack.enter_context(_directory()), node)
    stack.enter_context(engine(host.docker_socket, node))
    write_kubeconfig(host, stack.enter_context(apiserver(node)))
    waiting = ", ".join(name for _, name in node.pending)
    _say(
        f"A kubenet node with {_USABLE} pod addresses in {node.cidr}, and a pod that cannot start:",
        f"  {waiting}",
        "  failed to allocate for range 0: no IP addresses available in range set: 10.253.6.129-10.253.6.254",
        f"The node is simulated in {host.root}: docker and the API server are fakes, the agent is real.",
    )

    _scan(host, node)
    _check_what_was_found(host, node)
    port = _free_port()
    daemon = _start(stack, host, node, port)
    _show_metrics(daemon, host, port)
    _say(
        "",
        f"The daemon serves http://127.0.0.1:{port}/ (web page), /metrics (Prometheus), /api/v1/report (JSON),",
        "/healthz and /readyz, and logs every change, for example:",
        f"  {_first_finding(host)}",
    )
    _clean(host, node)
    if keep:
        _say("", f"Serving on http://127.0.0.1:{port} until Ctrl-C.")
        while daemon.poll() is None:
            time.sleep(0.2)
        raise DemoFailed(f"nodeleak run exited on its own with {daemon.returncode}:\n{_log(host)}")
    code = processes.stop(daemon)
    if code != 0:
        raise DemoFailed(f"nodeleak run exited with {code} after SIGTERM:\n{_log(host)}")
    stack.close()
    _say("", f"Done in {time.monotonic() - started:.0f} s. The daemon is stopped and the simulated node removed.")


@contextmanager
def _directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="nodeleak-demo-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _command(host: Host, node: FakeNode, *words: str) -> list[str]:
    return [*_nodeleak(), *words, f"--node={node.name}", f"--kubeconfig={host.kubeconfig}", *host.options]


def _nodeleak() -> list[str]:
    beside = Path(sys.executable).with_name("nodeleak")
    nodeleak = str(beside) if beside.exists() else shutil.which("nodeleak")
    if nodeleak is None:
        raise DemoFailed("the command nodeleak is not installed in this environment: run `make demo`")
    return [nodeleak]


def _abbreviate(host: Host, command: Sequence[str]) -> str:
    """Format a command as one would type it, with the simulated node's directory as $NODE."""
    words = [word.replace(str(host.root), "$NODE") for word in command[1:]]
    return "$ nodeleak " + " \\\n    ".join([" ".join(words[:4]), " ".join(words[4:6]), " ".join(words[6:])])


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(
        command,
        env=processes.environment(NODELEAK_PROBE="off"),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
        check=False,
    )
    if done.returncode != 0:
        raise DemoFailed(f"nodeleak exited with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def _scan(host: Host, node: FakeNode) -> None:
    command = _command(host, node, "scan")
    _say("", _abbreviate(host, command))
    _say(_run(command).rstrip())


def _check_what_was_found(host: Host, node: FakeNode) -> None:
    document: Any = json.loads(_run(_command(host, node, "scan", "--output=json")))
    network = document["networks"][0]
    states = {state: count for state, count in network["states"].items() if count}
    counts = {"usable": network["usable"], "free": network["free"], **states}
    expected = {"usable": _USABLE, "free": 0, "in_use": _IN_USE, "leaked": _LEAKED}
    if counts != expected or document["unavailable"]:
        raise DemoFailed(f"expected {expected} and every source available, got {counts} and {document['unavailable']}")
    causes = {one["cause"] for one in document["findings"] if one["detector"] == "leaked_reservation"}
    if causes != {"kubelet_restart"}:
        raise DemoFailed(f"expected the cause kubelet_restart, got {causes}")
    leaked = [one for one in document["reservations"] if one["state"] == "leaked"]
    named = {(one["ip"], one["container_id"], one["pod"]) for one in leaked}
    if named != {(sandbox.ip, sandbox.id, f"{sandbox.namespace}/{sandbox.pod}") for sandbox in node.leaked}:
        raise DemoFailed(f"expected the leaks of the simulated node, got {sorted(named)}")
    _say(
        "",
        "The pod names come from libcni's cache. On a real kubenet node the cache has none: there only a daemon that",
        "ran before the leak knows them.",
    )


def _clean(host: Host, node: FakeNode) -> None:
    """Show a dry run, release the leaks, restore one, and check that nothing else changed."""
    before = _stored(host)
    _say("", "$ nodeleak clean …")
    _say(_run(_command(host, node, "clean", "--confirm-after=500ms", "--cleanup-network=auto")).rstrip())
    if _stored(host) != before:
        raise DemoFailed("the dry run changed files")
    _say("", "$ nodeleak clean --apply …")
    _say(_run(_command(host, node, "clean", "--confirm-after=500ms", "--cleanup-network=auto", "--apply")).rstrip())
    leaked = {sandbox.ip for sandbox in node.leaked}
    left = {name: content for name, content in before.items() if name not in leaked}
    if _stored(host) != left:
        raise DemoFailed(f"expected the {_LEAKED} leaks to be released and nothing else, got {sorted(_stored(host))}")
    _say("", "$ nodeleak restore --last --apply …")
    _say(_run([*_nodeleak(), "restore", "--last", "--apply", *host.restore_options]).rstrip())
    restored = {name: content for name, content in _stored(host).items() if name not in left}
    if len(restored) != 1 or not restored.items() <= before.items():
        raise DemoFailed(f"expected one release to be restored byte for byte, got {restored}")


def _stored(host: Host) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in host.store.iterdir()}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _start(stack: ExitStack, host: Host, node: FakeNode, port: int) -> "subprocess.Popen[bytes]":
    """Start the daemon with shorter intervals than its defaults, to keep the demo short."""
    quick = ("--interval=500ms", "--confirm-after=1s", f"--listen=127.0.0.1:{port}", "--log-format=json")
    command = _command(host, node, "run", *quick)
    _say("", f"$ nodeleak run {' '.join(quick)} …")
    return stack.enter_context(processes.running(command, host.root / "run.log", processes.environment()))


def _show_metrics(daemon: "subprocess.Popen[bytes]", host: Host, port: int) -> None:
    """Wait until the daemon is ready and the leaks are confirmed; show the relevant lines of /metrics."""
    metrics = ""
    for _ in processes.until(time.monotonic() + _TIMEOUT):
        if daemon.poll() is not None:
            raise DemoFailed(f"nodeleak run ended with {daemon.returncode}:\n{_log(host)}")
        if _get(port, "/readyz") is None:
            continue
        metrics = _get(port, "/metrics") or ""
        if f'nodeleak_reservations{{network="kubenet",state="leaked"}} {_LEAKED}.0' in metrics:
            break
    lines = [line for line in metrics.splitlines() if line.startswith(_SHOWN_METRICS) and _is_relevant(line)]
    if unavailable := [line for line in lines if line.startswith("nodeleak_source_up{") and line.endswith(" 0.0")]:
        raise DemoFailed("\n".join(["/metrics reports unavailable sources:", *unavailable, _log(host)]))
    for expected in (
        f'nodeleak_reservations{{network="kubenet",state="leaked"}} {_LEAKED}.0',
        f'nodeleak_reservations{{network="kubenet",state="in_use"}} {_IN_USE}.0',
        'nodeleak_range_free_addresses{network="kubenet"} 0.0',
        f'nodeleak_leaks_confirmed_total{{cause="kubelet_restart",network="kubenet"}} {_LEAKED}.0',
    ):
        if expected not in lines:
            raise DemoFailed(f"/metrics does not contain {expected!r}:\n" + "\n".join(lines) + f"\n{_log(host)}")
    _say(f"$ curl -s http://127.0.0.1:{port}/metrics | grep …")
    _say(*(f"  {line}" for line in lines))


def _is_relevant(line: str) -> bool:
    """Return whether to show a line: zeros of states and causes are left out."""
    return not line.endswith(" 0.0") or not line.startswith(("nodeleak_reservations{", "nodeleak_leaks_confirmed"))


def _get(port: int, path: str) -> str | None:
    try:
        with build_opener(ProxyHandler({})).open(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return str(answer.read().decode())
    except (URLError, HTTPException, OSError):
        return None


def _log(host: Host) -> str:
    return "\n".join((host.root / "run.log").read_text(errors="replace").splitlines()[-20:])


def _first_finding(host: Host) -> str:
    return next((line for line in _log(host).splitlines() if "finding.opened" in line), "(no finding was logged)")


def _say(*lines: str) -> None:
    print(*lines, sep=os.linesep, flush=True)


if __name__ == "__main__":
    sys.exit(main())

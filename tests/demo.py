"""`make demo`: the main job on a copy of the node of the incident, whose kubelet had no address left for a new pod.

docker and the API server are stand-ins (see standins/); the agent is the real one, run as anybody would run it.
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
from tests.fakes.nodes import StandinNode, the_incident

_LEAKED, _IN_USE, _USABLE = 7, 118, 125
_SECONDS = 20.0
"""How long a command, or the daemon's first finding, may take."""
_SHOWN_METRICS = (
    "nodeleak_reservations{",
    "nodeleak_range_addresses{",
    "nodeleak_range_free_addresses{",
    "nodeleak_leaks_confirmed_total{",
    "nodeleak_source_up{",
)


class Different(Exception):
    """The demo did not show what it is there to show."""


def main() -> int:
    """Show the main job; returns the exit code."""
    parser = argparse.ArgumentParser(prog="hack/demo", description="nodeleak on a copy of the node of the incident.")
    parser.add_argument("--keep", action="store_true", help="leave the daemon serving until Ctrl-C")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, _leave)
    try:
        with ExitStack() as stack:
            _show(stack, keep=given.keep)
    except KeyboardInterrupt:
        print("\nstopped; nothing is left behind")
        return 128 + signal.SIGINT
    except (Different, OSError, subprocess.SubprocessError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return 0


def _leave(_signal: int, _frame: object) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)


def _show(stack: ExitStack, *, keep: bool) -> None:
    begun = time.monotonic()
    node = the_incident(datetime.now(UTC))
    host = build(stack.enter_context(_directory()), node)
    stack.enter_context(engine(host.docker_socket, node))
    write_kubeconfig(host, stack.enter_context(apiserver(node)))
    waiting = ", ".join(name for _, name in node.pending)
    _say(
        f"A kubenet node: {_USABLE} addresses for pods in {node.cidr}, and a pod that cannot start:",
        f"  {waiting}",
        "  failed to allocate for range 0: no IP addresses available in range set: 10.253.6.129-10.253.6.254",
        f"It is a copy in {host.root}; docker and the API server are stand-ins, the agent is real.",
    )

    _scan(host, node)
    _check_what_was_found(host, node)
    port = _free_port()
    daemon = _start(stack, host, node, port)
    _show_metrics(daemon, host, port)
    _say(
        "",
        f"Where to look: http://127.0.0.1:{port}/ (a page), /metrics (Prometheus), /api/v1/report (the scan as JSON),",
        "/healthz and /readyz; its log tells changes, such as:",
        f"  {_first_finding(host)}",
    )
    _clean(host, node)
    if keep:
        _say("", f"Serving on http://127.0.0.1:{port} until Ctrl-C.")
        while daemon.poll() is None:
            time.sleep(0.2)
        raise Different(f"nodeleak run ended by itself, with {daemon.returncode}:\n{_log(host)}")
    code = processes.stop(daemon)
    if code != 0:
        raise Different(f"nodeleak run exited with {code} when told to stop:\n{_log(host)}")
    stack.close()
    _say("", f"Done in {time.monotonic() - begun:.0f} s; the daemon is stopped and the copy removed.")


@contextmanager
def _directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="nodeleak-demo-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _command(host: Host, node: StandinNode, *words: str) -> list[str]:
    return [*_nodeleak(), *words, f"--node={node.name}", f"--kubeconfig={host.kubeconfig}", *host.options]


def _nodeleak() -> list[str]:
    beside = Path(sys.executable).with_name("nodeleak")
    nodeleak = str(beside) if beside.exists() else shutil.which("nodeleak")
    if nodeleak is None:
        raise Different("the command nodeleak is not installed beside this Python: run `make demo`")
    return [nodeleak]


def _in_short(host: Host, command: Sequence[str]) -> str:
    """Write a command as one would type it, with the copy's directory as $NODE."""
    words = [word.replace(str(host.root), "$NODE") for word in command[1:]]
    return "$ nodeleak " + " \\\n    ".join([" ".join(words[:4]), " ".join(words[4:6]), " ".join(words[6:])])


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(
        command, env=processes.environment(), capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    if done.returncode != 0:
        raise Different(f"nodeleak exited with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def _scan(host: Host, node: StandinNode) -> None:
    command = _command(host, node, "scan")
    _say("", _in_short(host, command))
    _say(_run(command).rstrip())


def _check_what_was_found(host: Host, node: StandinNode) -> None:
    document: Any = json.loads(_run(_command(host, node, "scan", "--output=json")))
    network = document["networks"][0]
    states = {state: count for state, count in network["states"].items() if count}
    seen = {"usable": network["usable"], "free": network["free"], **states}
    expected = {"usable": _USABLE, "free": 0, "in_use": _IN_USE, "leaked": _LEAKED}
    if seen != expected or document["unavailable"]:
        raise Different(f"expected {expected} and nothing unread, saw {seen} and {document['unavailable']}")
    causes = {one["cause"] for one in document["findings"] if one["detector"] == "leaked_reservation"}
    if causes != {"kubelet_restart"}:
        raise Different(f"expected the cause kubelet_restart, saw {causes}")
    leaked = [one for one in document["reservations"] if one["state"] == "leaked"]
    named = {(one["ip"], one["container_id"], one["pod"]) for one in leaked}
    if named != {(sandbox.ip, sandbox.id, f"{sandbox.namespace}/{sandbox.pod}") for sandbox in node.leaked}:
        raise Different(f"expected the leaks of the incident, saw {sorted(named)}")
    _say(
        "",
        "Pods are named by libcni's cache here; kubenet itself leaves none there, and only a daemon that ran before",
        "the leak remembers them.",
    )


def _clean(host: Host, node: StandinNode) -> None:
    """Release the leaks, after saying what would be released; see that it was these and nothing else."""
    state = f"--state-dir={host.root}/state"
    before = _stored(host)
    _say("", f"$ nodeleak clean {state.replace(str(host.root), '$NODE')} …")
    _say(_run(_command(host, node, "clean", "--confirm-after=500ms", state)).rstrip())
    if _stored(host) != before:
        raise Different("a dry run changed something")
    _say("", "$ nodeleak clean --apply …")
    _say(_run(_command(host, node, "clean", "--confirm-after=500ms", "--apply", state)).rstrip())
    leaked = {sandbox.ip for sandbox in node.leaked}
    left = {name: content for name, content in before.items() if name not in leaked}
    if _stored(host) != left:
        raise Different(f"expected the {_LEAKED} leaks to be released and nothing else, saw {sorted(_stored(host))}")
    _say("", "$ nodeleak restore --last --apply …")
    _say(_run([*_nodeleak(), "restore", "--last", "--apply", *host.restoring, state]).rstrip())
    restored = {name: content for name, content in _stored(host).items() if name not in left}
    if len(restored) != 1 or not restored.items() <= before.items():
        raise Different(f"expected one release to be taken back byte for byte, saw {restored}")


def _stored(host: Host) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in host.store.iterdir()}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _start(stack: ExitStack, host: Host, node: StandinNode, port: int) -> "subprocess.Popen[bytes]":
    """Start the daemon, with shorter spans than its defaults: nobody watches a demo for minutes."""
    quick = ("--interval=500ms", "--confirm-after=1s", f"--listen=127.0.0.1:{port}", "--log-format=json")
    command = _command(host, node, "run", *quick)
    _say("", f"$ nodeleak run {' '.join(quick)} …")
    return stack.enter_context(processes.running(command, host.root / "run.log", processes.environment()))


def _show_metrics(daemon: "subprocess.Popen[bytes]", host: Host, port: int) -> None:
    """Wait until it is ready and its leaks are confirmed; show what matters of /metrics."""
    metrics = ""
    for _ in processes.until(time.monotonic() + _SECONDS):
        if daemon.poll() is not None:
            raise Different(f"nodeleak run ended with {daemon.returncode}:\n{_log(host)}")
        if _get(port, "/readyz") is None:
            continue
        metrics = _get(port, "/metrics") or ""
        if f'nodeleak_reservations{{network="kubenet",state="leaked"}} {_LEAKED}.0' in metrics:
            break
    lines = [line for line in metrics.splitlines() if line.startswith(_SHOWN_METRICS) and _matters(line)]
    if unavailable := [line for line in lines if line.startswith("nodeleak_source_up{") and line.endswith(" 0.0")]:
        raise Different("\n".join(["/metrics says that something was not read:", *unavailable, _log(host)]))
    for expected in (
        f'nodeleak_reservations{{network="kubenet",state="leaked"}} {_LEAKED}.0',
        f'nodeleak_reservations{{network="kubenet",state="in_use"}} {_IN_USE}.0',
        'nodeleak_range_free_addresses{network="kubenet"} 0.0',
        f'nodeleak_leaks_confirmed_total{{cause="kubelet_restart",network="kubenet"}} {_LEAKED}.0',
    ):
        if expected not in lines:
            raise Different(f"/metrics never said {expected!r}:\n" + "\n".join(lines) + f"\n{_log(host)}")
    _say(f"$ curl -s http://127.0.0.1:{port}/metrics | grep …")
    _say(*(f"  {line}" for line in lines))


def _matters(line: str) -> bool:
    """Leave out the zeros of closed lists, but for those that say something."""
    return not line.endswith(" 0.0") or not line.startswith(("nodeleak_reservations{", "nodeleak_leaks_confirmed"))


def _get(port: int, path: str) -> str | None:
    try:
        with build_opener(ProxyHandler({})).open(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return str(answer.read().decode())
    except (URLError, HTTPException, OSError):
        return None


def _log(host: Host) -> str:
    return (host.root / "run.log").read_text(errors="replace")[-2000:]


def _first_finding(host: Host) -> str:
    return next((line for line in _log(host).splitlines() if "finding.opened" in line), "(no finding was logged)")


def _say(*lines: str) -> None:
    print(*lines, sep=os.linesep, flush=True)


if __name__ == "__main__":
    sys.exit(main())

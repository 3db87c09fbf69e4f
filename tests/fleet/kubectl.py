"""A stand-in for kubectl on PATH: a program that prints what a test prepared, and records how it was called."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

from agent.fleet.command import main
from tests.cli.commands import Done
from tests.processes import environment
from tests.wire import Request

ROOT = Path(__file__).parents[2]
_MAIN = "import sys; from agent.fleet.command import main; sys.exit(main())"
_PROGRAM = """\
#!{python} -IS
import json, os, sys, time
from pathlib import Path
home = Path({home!r})
given = sys.argv[1:]
with (home / "calls").open("a") as calls:
    calls.write(json.dumps(given) + "\\n")
if given[0] == "config":
    print("staging")
    sys.exit()
if given[0] == "apply":
    (home / "configmaps").write_text(sys.stdin.read())
    print("configmap/nodeleak-brake")
    sys.exit()
if given[0] == "delete":
    print("configmap/nodeleak-brake" if (home / "configmaps").read_text() else "")
    (home / "configmaps").write_text("")
    sys.exit()
if given[0] == "create":
    (home / "created").write_text(sys.stdin.read())
    print("job.batch/nodeleak-clean-x1")
    sys.exit()
if given[0] == "logs":
    print((home / "log").read_text(), end="")
    sys.exit()
if "--selector=job-name=nodeleak-clean-x1" in given:
    looks = sum("job-name" in line for line in (home / "calls").read_text().splitlines())
    print(json.dumps({{"items": json.loads((home / "looks").read_text())[:looks][-1]}}))
    sys.exit()
if given[0] == "get":
    kind = next(word for word in given[1:] if not word.startswith("-"))
    names = given[given.index(kind) + 1:]
    names = [name for name in names if not name.startswith("-")]
    names += [word.rpartition("=")[2] for word in given if word.startswith("--field-selector=")]
    text = (home / kind).read_text()
    if kind == "nodes":
        found = [line for line in text.splitlines() if not names or line.split()[0] in names]
        if any(word.startswith("--selector=pool=nothing") for word in given):
            found = []
        text = "".join(f"{{line}}\\n" for line in found)
    elif kind == "pods":
        pods = [pod for pod in json.loads(text) if not names or pod["spec"]["nodeName"] in names]
        text = json.dumps({{"items": pods}})
    print(text, end="")
    sys.exit(0 if not (home / "fails").exists() else 1)
pod = next(word for word in given if word.startswith("nodeleak-"))
answer = json.loads((home / pod).read_text())
asked = sum(pod in call for call in (home / "calls").read_text().splitlines() if '"exec"' in call)
if asked <= answer.get("lost", 0):
    sys.stdout.write(answer.get("output", "")[: answer.get("kept", 0)])
    sys.exit(0)
if "child" in answer:
    if not os.fork():
        time.sleep(answer["child"])
        os._exit(0)
if "flag" in answer:
    Path(answer["flag"]).touch()
if "until" in answer:
    while not Path(answer["until"]).exists():
        time.sleep(0.01)
time.sleep(answer.get("seconds", 0))
sys.stdout.write(answer.get("output", ""))
sys.stderr.write(answer.get("error", ""))
code = answer.get("code", 0)
if code:
    sys.stderr.write(f"command terminated with exit code {{code}}\\n")
sys.exit(code or answer.get("own_code", 0))
"""

QUERIES = {
    "value": "nodeleak_(build_info|",
    "finding": "nodeleak_findings",
    "unavailable": "nodeleak_source_up{} == 0",
    "sources": "count without (source)",
    "failed": "nodeleak_sync_failures_total",
    "stalled": "changes(",
}
"""What `status --prometheus` asks: a part of each query that no other has."""


def query_of(request: Request) -> str:
    (name,) = (name for name, part in QUERIES.items() if part in unquote_plus(request.target))
    return name


@dataclass
class FakeKubectl:
    """A cluster as kubectl shows it."""

    home: Path
    nodes: list[str] = field(default_factory=list)
    pods: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        program = self.home / "kubectl"
        program.write_text(_PROGRAM.format(python=sys.executable, home=str(self.home)))
        program.chmod(0o755)
        self._save()

    def node(
        self,
        name: str,
        status: str = "Ready",
        *,
        pods: Sequence[dict[str, Any]] | None = None,
        address: str = "",
        **answer: Any,
    ) -> None:
        """Add a node. `pods`: of the agent; None: one that runs. `answer`: of every exec in its agent."""
        self.nodes.append(f"{name}   {status}   <none>   3d   v1.20.2   {address}".rstrip())
        self.pods += [agent_pod(name)] if pods is None else pods
        (self.home / f"nodeleak-{name}").write_text(json.dumps(answer))
        self._save()

    def clear(self) -> None:
        """Remove all nodes, and what was called."""
        self.nodes, self.pods = [], []
        (self.home / "calls").write_text("")

    def daemon_sets(self, *objects: dict[str, Any]) -> None:
        (self.home / "daemonsets").write_text(json.dumps({"items": objects}))

    def calls(self, verb: str) -> list[list[str]]:
        lines = (
            (self.home / "calls").read_text().splitlines() if (self.home / "calls").exists() else []
        )
        return [call for call in map(json.loads, lines) if call[0] == verb]

    def asked(self) -> list[str]:
        """Return the nodes whose agent was asked, in order."""
        return [
            next(word for word in call if word.startswith("nodeleak-")).removeprefix("nodeleak-")
            for call in self.calls("exec")
        ]

    def replace(self, script: str) -> None:
        """Run a shell script instead. It finds the former program as `kubectl-before`."""
        program = self.home / "kubectl"
        program.rename(self.home / "kubectl-before")
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    def start(
        self, *arguments: str, before: Sequence[str] = (), **popen: Any
    ) -> "subprocess.Popen[str]":
        """Run the program as a process. `before`: a command that starts it."""
        environ = environment(
            PATH=f"{self.home}{os.pathsep}{os.environ['PATH']}", PYTHONPATH=str(ROOT), COLUMNS="100"
        )
        return subprocess.Popen(  # noqa: S603 (ours)
            [*before, sys.executable, "-c", _MAIN, *arguments],
            stdin=popen.pop("stdin", subprocess.DEVNULL),
            stdout=popen.pop("stdout", subprocess.PIPE),
            stderr=subprocess.PIPE,
            text=True,
            env=environ,
            cwd=self.home,
            **popen,
        )

    def run(self, *arguments: str) -> Done:
        """Run the program in this process, which is faster than `start`."""
        out, err = StringIO(), StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = main(arguments)
        return Done(code, out.getvalue(), err.getvalue())

    def _save(self) -> None:
        (self.home / "nodes").write_text("".join(f"{line}\n" for line in self.nodes))
        (self.home / "pods").write_text(json.dumps(self.pods))


def agent_pod(
    node: str,
    *,
    phase: str = "Running",
    ready: str = "True",
    deleted: str = "",
    waiting: str = "",
    namespace: str = "kube-system",
    pod: str = "",
    containers: Sequence[str] = ("nodeleak",),
    created: str = "2026-03-26T19:00:00Z",
) -> dict[str, Any]:
    """Return the part of a pod that is read. `waiting`: why its first container waits."""
    metadata = {
        "namespace": namespace,
        "name": pod or f"nodeleak-{node}",
        "creationTimestamp": created,
    }
    state = (
        {"waiting": {"reason": waiting}}
        if waiting
        else {"running": {}}
        if phase == "Running"
        else {}
    )
    statuses = [
        {"name": name, "state": state if number == 0 else {}}
        for number, name in enumerate(containers)
    ]
    return {
        "metadata": metadata | ({"deletionTimestamp": deleted} if deleted else {}),
        "spec": {"nodeName": node, "containers": [{"name": name} for name in containers]},
        "status": {
            "phase": phase,
            "conditions": [{"type": "Ready", "status": ready}],
            "containerStatuses": statuses if phase else [],
        },
    }


def status(node: str = "worker-1", **changes: Any) -> dict[str, Any]:
    """Return a document of an agent without findings."""
    return {
        "schema": "nodeleak.status/v1",
        "version": "0.1.0",
        "node": node,
        "state": "ok",
        "headline": "OK: no findings",
        "report": {"taken_at": "2026-03-26T19:20:00Z", "age_seconds": 12.3, "interval_seconds": 15},
        "cleanup": {
            "mode": "off",
            "networks": [],
            "release_possible": False,
            "why_not": ["read-only mount"],
            "brake": "off",
            "halted": "",
        },
        "networks": [
            {
                "name": "cbr0",
                "usable": 253,
                "free": 12,
                "leaked": 0,
                "unknown": 0,
                "releasable": None,
            }
        ],
        "findings": [],
        "unavailable": [],
    } | changes


def finding(severity: str, detector: str, count: int = 1) -> dict[str, Any]:
    return {
        "severity": severity,
        "detector": detector,
        "count": count,
        "oldest": "2026-03-26T19:16:59Z",
    }


def clean(*verdicts: str, reason: str = "not_confirmed", **changes: Any) -> dict[str, Any]:
    """Return the document of `nodeleak clean --apply` with an address for each verdict."""
    addresses = [
        {
            "network": "cbr0",
            "ip": f"10.244.1.{number}",
            "verdict": verdict,
            "reason": reason if verdict == "refused" else None,
            "why": None if verdict == "released" else f"why {verdict}",
        }
        for number, verdict in enumerate(verdicts, 2)
    ]
    released = verdicts.count("released")
    return {
        "schema": "nodeleak.clean/v1",
        "applied": True,
        "networks": [{"network": "cbr0", "free_before": 0, "free_after": released}],
        "addresses": addresses,
        "verdicts": {"released": released, "refused": verdicts.count("refused")},
        "halted": "",
        "unavailable": [],
    } | changes

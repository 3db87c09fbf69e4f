"""An operator's machine: `kubectl nodeleak` with the real kubectl, and a runbook that is followed to the end."""

import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, Final

from tests.bench.measure import get
from tests.processes import environment

from .fleet import Monitoring, monitoring
from .node import ROOT, Cluster, eventually, run

RUNBOOKS: Final = ROOT / "docs" / "runbooks"
ALERT: Final = "NodeleakLeakedAddresses"
LONG: Final = 300
HASTY: Final = {
    "NODELEAK_GRACE": "0s",
    "NODELEAK_SETTLE": "0s",
    "NODELEAK_CONFIRM_AFTER": "0s",
    "NODELEAK_INTERVAL": "1s",
    "NODELEAK_RELEASE_HOST_PORTS": "on",
}
"""Settings of the deployed agent: a test's leaks are seconds old, no ADD made them, and its node has just restarted."""


class Plugin:
    """The console script on PATH, as on an operator's machine."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._cluster, self._directory = cluster, directory
        if cluster.program != "kubectl":  # another one than that of PATH
            (directory / "kubectl").symlink_to(cluster.program)
        program = directory / "kubectl-nodeleak"
        program.write_text(
            f"#!{sys.executable}\nimport sys\nfrom agent.fleet.command import main\nsys.exit(main())\n"
        )
        program.chmod(0o755)

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of an operator's shell."""
        path = f"{self._directory}{os.pathsep}{os.environ['PATH']}"
        return environment(
            PATH=path, KUBECONFIG=str(self._cluster.admin), PYTHONPATH=str(ROOT), **more
        )

    def __call__(self, *arguments: str, codes: Sequence[int] = (0,)) -> "CompletedProcess[str]":
        return run(
            "kubectl",
            "nodeleak",
            *arguments,
            codes=codes,
            env=self.environment(),
            cwd=self._directory,
        )

    def run_json(self, command: str, *arguments: str) -> dict[str, Any]:
        """Return the only node of the merged document."""
        tree = json.loads(self(command, "-o", "json", *arguments).stdout)
        assert tree["schema"] == "nodeleak.fleet/v1"
        (node,) = tree["nodes"]
        found: dict[str, Any] = node
        return found


def follow(cluster: Cluster, directory: Path, leaked: int, agent: str = "127.0.0.1:9747") -> None:
    """Run the commands on a node that has so many leaks and a deployed agent, from the alert until it has resolved.

    `agent`: its address.
    """
    target: dict[str, Any] = {"targets": [agent], "labels": {"node": cluster.node}}
    environment = Plugin(cluster, directory).environment()
    _, *find = commands("README.md", "Find the node and its agent")
    typed = [f"NODE={cluster.node}", *find, *commands("LeakedAddresses.md", ALERT), "true"]
    with monitoring([target], directory) as running:
        eventually(lambda: alerts(running), LONG, equal=1)
        try:
            printed = run(
                "bash", text="\n".join(typed), env=environment, cwd=directory, seconds=LONG
            ).stdout
            assert f"\n{leaked} released\n" in printed, printed
            eventually(lambda: alerts(running), LONG, equal=0)
        finally:
            jobs = (
                "-n",
                "kube-system",
                "delete",
                "jobs",
                "-l",
                "app.kubernetes.io/name=nodeleak-clean",
            )
            cluster.kubectl(*jobs, "--cascade=foreground", "--timeout=60s")


def commands(page: str, heading: str) -> list[str]:
    """Return the commands of a section for the operator's machine, not output nor what runs on the node."""
    section = (RUNBOOKS / page).read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    blocks = re.findall(
        r"^ *```\n( *(?:NODE=|JOB=|kubectl ).*?)^ *```", section, re.MULTILINE | re.DOTALL
    )
    return [line.strip() for block in blocks for line in block.splitlines()]


def alerts(running: Monitoring) -> int:
    found = json.loads(get(f"{running.alertmanager}/api/v2/alerts"))
    return [alert["labels"]["alertname"] for alert in found].count(ALERT)

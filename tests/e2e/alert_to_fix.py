"""The runbook of leaked addresses, followed on a real node from the alert to its end."""

import json
import re
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

from .deployment import ROOT
from .fleet import Monitoring, monitoring
from .node import Cluster, eventually, run
from .plugin import Plugin

RUNBOOKS: Final = ROOT / "docs" / "runbooks"
ALERT: Final = "NodeleakLeakedAddresses"
LONG: Final = 300
HASTY: Final = {
    "NODELEAK_GRACE": "0s",
    "NODELEAK_SETTLE": "0s",
    "NODELEAK_CONFIRM_AFTER": "0s",
    "NODELEAK_INTERVAL": "1s",
}
"""Settings of the deployed agent: the leaks of a test are seconds old, and its node has just restarted."""


def follow(cluster: Cluster, directory: Path, leaked: int) -> None:
    """Run the commands on a node that has so many leaks and a deployed agent, from the alert until it has resolved."""
    agent: dict[str, Any] = {"targets": ["127.0.0.1:9747"], "labels": {"node": cluster.node}}
    environment = Plugin(cluster, directory).environment()
    _, *find = commands("README.md", "Find the node and its agent")
    typed = [f"NODE={cluster.node}", *find, *commands("LeakedAddresses.md", ALERT), "true"]
    with monitoring([agent], directory) as running:
        eventually(lambda: alerts(running, 1), LONG)
        try:
            printed = run("bash", text="\n".join(typed), env=environment, cwd=directory, seconds=LONG).stdout
            assert f"\n{leaked} released\n" in printed, printed
            eventually(lambda: alerts(running, 0), LONG)
        finally:
            jobs = ("-n", "kube-system", "delete", "jobs", "-l", "app.kubernetes.io/name=nodeleak-clean")
            cluster.kubectl(*jobs, "--cascade=foreground", "--timeout=60s")


def commands(page: str, heading: str) -> list[str]:
    """Return the commands of a section for the operator's machine, not output nor what runs on the node."""
    section = (RUNBOOKS / page).read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^ *```\n( *(?:NODE=|JOB=|kubectl ).*?)^ *```", section, re.MULTILINE | re.DOTALL)
    return [line.strip() for block in blocks for line in block.splitlines()]


def alerts(running: Monitoring, count: int) -> None:
    with urlopen(f"{running.alertmanager}/api/v2/alerts", timeout=5) as answer:  # noqa: S310 (our own, on loopback)
        found = [one["labels"]["alertname"] for one in json.load(answer)]
    assert found.count(ALERT) == count, f"{found}; Prometheus has {running.prometheus.get('/api/v1/alerts')}"

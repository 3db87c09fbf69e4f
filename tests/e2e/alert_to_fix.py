"""docs/from-alert-to-fix.md: what an operator does from the alert to its end, played on a real node."""

import json
import re
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

from .deployment import ROOT
from .fleet import Monitoring, monitoring
from .node import Cluster, eventually, run
from .plugin import Plugin

DOCUMENT: Final = ROOT / "docs" / "from-alert-to-fix.md"
ALERT: Final = "NodeleakLeakedAddresses"
LONG: Final = 300
HASTY: Final = {
    "NODELEAK_GRACE": "0s",
    "NODELEAK_SETTLE": "0s",
    "NODELEAK_CONFIRM_AFTER": "0s",
    "NODELEAK_INTERVAL": "1s",
}
"""Settings of the deployed agent: the leaks of a test are seconds old, and its node has just restarted."""


def follow(section: str, cluster: Cluster, directory: Path) -> None:
    """Play a section on a node that has leaks and a deployed agent, from the alert until it has resolved."""
    agent: dict[str, Any] = {"targets": ["127.0.0.1:9747"], "labels": {"node": cluster.node}}
    environment = Plugin(cluster, directory).environment(HOME=str(directory))
    with monitoring([agent], directory) as running:
        for name in ("amtool/config.yml", "prometheus/amtool.yml"):  # the second is Debian's
            settings = directory / ".config" / name
            settings.parent.mkdir(parents=True)
            settings.write_text(f"alertmanager.url: {running.alertmanager}\n")

        eventually(lambda: alerts(running, 1), LONG)
        try:
            run("bash", text="\n".join(commands(section)), env=environment, cwd=directory, seconds=LONG)
            eventually(lambda: alerts(running, 0), LONG)
        finally:
            jobs = ("-n", "kube-system", "delete", "jobs", "-l", "app.kubernetes.io/name=nodeleak-clean")
            cluster.kubectl(*jobs, "--cascade=foreground", "--timeout=60s")


def commands(section: str) -> list[str]:
    """Return the commands of a section, which an operator types one after the other."""
    text = DOCUMENT.read_text().partition(f"## {section}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\$ (.*)$", text, re.MULTILINE)


def alerts(running: Monitoring, count: int) -> None:
    with urlopen(f"{running.alertmanager}/api/v2/alerts", timeout=5) as answer:  # noqa: S310 (our own, on loopback)
        found = [one["labels"]["alertname"] for one in json.load(answer)]
    assert found.count(ALERT) == count, f"{found}; Prometheus has {running.prometheus.get('/api/v1/alerts')}"

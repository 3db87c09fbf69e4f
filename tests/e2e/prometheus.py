"""A real Prometheus (Debian's package) that scrapes agents and evaluates the rules of deploy/."""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from tests import processes
from tests.bench.measure import get
from tests.control_plane import free_ports
from tests.wire import needs

from .node import eventually

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules.yaml"


class Prometheus:
    """A running Prometheus."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str) -> Any:
        return json.loads(get(f"{self.url}{path}"))["data"]

    def firing(self) -> dict[str, list[dict[str, Any]]]:
        """Return the firing alerts by name."""
        found: dict[str, list[dict[str, Any]]] = {}
        for alert in self.get("/api/v1/alerts")["alerts"]:
            if alert["state"] == "firing":
                found.setdefault(alert["labels"]["alertname"], []).append(alert)
        return found


def program(name: str) -> str:
    found = shutil.which(name)
    needs(found is not None, f"{name} (Debian: apt-get install {name}), to have alerts fire")
    return str(found)


@contextmanager
def running_prometheus(
    directory: Path,
    rules: str,
    interval: str,
    job: str,
    targets: Sequence[dict[str, Any]],
    **more: Any,
) -> Iterator[Prometheus]:
    """Run Prometheus in a new directory during the block. `more`: parts of its configuration."""
    binary, (port,) = program("prometheus"), free_ports(1)
    directory.mkdir()
    (directory / "rules.yaml").write_text(rules)
    configuration = {
        "global": {"scrape_interval": interval, "evaluation_interval": interval},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [{"job_name": job, "static_configs": list(targets)}],
        **more,
    }
    (directory / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    command = (
        *(
            binary,
            f"--config.file={directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={directory / 'data'}",
        ),
        *(
            f"--web.listen-address=127.0.0.1:{port}",
            "--query.lookback-delta=10s",
            "--rules.alert.resend-delay=2s",
        ),
    )
    with processes.running(command, directory / "log", processes.environment()):
        prometheus = Prometheus(port)
        eventually(lambda: prometheus.get("/api/v1/status/buildinfo"))
        yield prometheus

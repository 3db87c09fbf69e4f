"""A real Prometheus (Debian's package) that scrapes the agent every second and evaluates the rules of deploy/."""

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml  # type: ignore[import-untyped]

from .node import environment, eventually

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules.yaml"
AT_ONCE = "2s"


def with_short_for(rules: dict[str, Any]) -> dict[str, Any]:
    """Return the rules with every `for` reduced to two seconds, otherwise unchanged."""
    groups = [
        group | {"rules": [rule | {"for": AT_ONCE} if "alert" in rule else rule for rule in group["rules"]]}
        for group in rules["groups"]
    ]
    return {"groups": groups}


class Prometheus:
    """A running Prometheus."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def get(self, path: str) -> Any:
        with urlopen(f"{self._url}{path}", timeout=5) as answer:  # noqa: S310 (our own, on loopback)
            return json.load(answer)["data"]

    def firing(self) -> dict[str, list[dict[str, Any]]]:
        """Return the firing alerts by name."""
        found: dict[str, list[dict[str, Any]]] = {}
        for one in self.get("/api/v1/alerts")["alerts"]:
            if one["state"] == "firing":
                found.setdefault(one["labels"]["alertname"], []).append(one)
        return found

    def sees_its_targets(self) -> None:
        targets = self.get("/api/v1/targets?state=active")["activeTargets"]
        assert [one["health"] for one in targets] == ["up"]


@contextmanager
def prometheus_of(agent_port: int, node: str, directory: Path) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes one agent, as a job of its own name, with a label `node` as relabelling adds it."""
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("DID NOT RUN: it needs Prometheus (Debian: apt-get install prometheus), to have alerts fire")
    directory.mkdir()
    (directory / "rules.yaml").write_text(yaml.safe_dump(with_short_for(yaml.safe_load(RULES.read_text()))))
    target = {"targets": [f"127.0.0.1:{agent_port}"], "labels": {"node": node}}
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [{"job_name": "nodeleak", "static_configs": [target]}],
    }
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = directory / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 (Debian's)
            [
                *(binary, f"--config.file={directory / 'prometheus.yml'}", f"--storage.tsdb.path={directory / 'data'}"),
                *(f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"),
            ],
            stdin=subprocess.DEVNULL,
            stderr=output,
            env=environment(),
        )
    try:
        prometheus = Prometheus(port)
        eventually(prometheus.sees_its_targets, 20)
        yield prometheus
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
        print(log.read_text())  # noqa: T201 (pytest shows it where the test fails)

"""A fleet on one machine: a server of 200 agents' metrics, a real Prometheus, and a real Alertmanager that notifies.

Time runs 30 times as fast: all durations of the deployed rules and of the deployed configuration of Alertmanager are
divided by 30, and nothing else of them is changed.
"""

import json
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import yaml  # type: ignore[import-untyped]

from tests import processes
from tests.bench.measure import get
from tests.control_plane import free_ports

from .node import eventually
from .prometheus import RULES, Prometheus, program, running_prometheus

ALERTMANAGER = RULES.with_name("alertmanager.yaml")
SPEED = 30
SCRAPE_MS = 2000  # Of the fast time: a minute
_UNITS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def faster(text: str) -> str:
    """Divide every duration in a YAML file by `SPEED`."""
    bare = re.sub(r"^ *#.*\n", "", text, flags=re.MULTILINE)
    return re.sub(
        r"(?<![\w.])(\d+)([smhd])\b",
        lambda found: f"{int(found[1]) * _UNITS[found[2]] // SPEED}ms",
        bare,
    )


class _Server(ThreadingHTTPServer):
    request_queue_size = 512

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, body: str = "") -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())


class Agents(_Server):
    """Serves the same page for every agent. Each sync is new, as the agents' clocks go on."""

    def __init__(self, page: str) -> None:
        self.page = page
        served = self

        class Handler(_Handler):
            def do_GET(self) -> None:
                now = time.time()  # noqa: TID251 (agents have a clock)
                last = rf"\1 {now}"
                self.answer(
                    re.sub(r"(?m)^(nodeleak_last_sync_timestamp_seconds) .*$", last, served.page)
                )

        super().__init__(("127.0.0.1", 0), Handler)


class Notifications(_Server):
    """A receiver: the notifications that people would get."""

    def __init__(self) -> None:
        self.all: list[Any] = []
        told = self.all

        class Handler(_Handler):
            def do_POST(self) -> None:
                told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.answer()

        super().__init__(("127.0.0.1", 0), Handler)

    def summary(self) -> list[tuple[str, str, int]]:
        """Return of each notification its status, the kind of its alerts, and their number."""
        return [
            (one["status"], one["groupLabels"].get("alertname", ""), len(one["alerts"]))
            for one in self.all
        ]


def paths_of(address: str, nodes: int) -> list[dict[str, Any]]:
    """Return targets that take each path of one server for an agent."""
    return [
        {
            "targets": [address],
            "labels": {
                "__metrics_path__": f"/{n}",
                "instance": f"10.0.{n // 250}.{n % 250}:9747",
                "node": f"n{n}",
            },
        }
        for n in range(nodes)
    ]


@dataclass(frozen=True)
class Monitoring:
    """A running Prometheus, the Alertmanager that it tells, and whom that notifies."""

    prometheus: Prometheus
    alertmanager: str  # Its URL
    told: Notifications


@contextmanager
def monitoring(targets: Sequence[dict[str, Any]], directory: Path) -> Iterator[Monitoring]:
    """Run Prometheus and Alertmanager during the block. Behind each receiver that people would read is a webhook."""
    alertmanager, (port,) = program("prometheus-alertmanager"), free_ports(1)
    file, url = directory / "alertmanager.yml", f"http://127.0.0.1:{port}"
    alerting = {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}]}
    job = (faster(RULES.read_text()), f"{SCRAPE_MS}ms", "kube-system/nodeleak", targets)
    with (
        Notifications() as told,
        running_prometheus(directory / "prometheus", *job, alerting=alerting) as prometheus,
    ):
        deployed = yaml.safe_load(faster(ALERTMANAGER.read_text()))
        for receiver in deployed["receivers"]:
            if receiver["name"] != "nobody":
                receiver["webhook_configs"] = [
                    {"url": f"http://{told.address}/", "send_resolved": True}
                ]
        file.write_text(yaml.safe_dump(deployed))
        command = (
            *(
                alertmanager,
                f"--config.file={file}",
                f"--storage.path={directory / 'alertmanager'}",
            ),
            *("--cluster.listen-address=", f"--web.listen-address=127.0.0.1:{port}"),
        )
        with processes.running(command, directory / "alertmanager.log", processes.environment()):
            eventually(lambda: get(f"{url}/-/ready"))
            yield Monitoring(prometheus, url, told)

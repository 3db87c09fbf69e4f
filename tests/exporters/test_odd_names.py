"""Directories of networks with odd names: no output falls silent, and none has control characters."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from html import unescape
from pathlib import Path

import pytest
import structlog
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from agent.checks import engine
from agent.checks.confirm import ConfirmationState
from agent.exporters.json.scan import scan_document
from agent.exporters.json.status import status_document
from agent.exporters.log import LogExporter, configure
from agent.exporters.metrics import MetricsExporter
from agent.exporters.text.scan import scan_table
from agent.exporters.web.page import Page
from agent.kube_events.messages import event_specs
from agent.model.release import CleanupStatus
from agent.model.report import Report
from agent.model.runtime import RuntimeNetwork
from agent.model.snapshot import Known, NetworkStore
from agent.model.text import escape
from agent.sources.host.network_directories import read_all
from tests.builders import GRACE, NOW, OLD, node

NAMES = (b"a\nb", b"a\x1b[2Jb", b'{}"\\', "\u202e".encode(), b"-o", b"x" * 255)


@pytest.fixture(params=NAMES, ids=lambda name: repr(name[:8]))
def name(request: pytest.FixtureRequest) -> str:
    return os.fsdecode(request.param)


@pytest.fixture
def stores(tmp_path: Path, name: str) -> tuple[NetworkStore, ...]:
    """One network with a leak, beside an empty one."""
    (tmp_path / "cbr0").mkdir()
    (tmp_path / name).mkdir()
    file = tmp_path / name / "10.244.1.9"
    file.write_text("9" * 64)
    os.utime(file, ((NOW - OLD).timestamp(),) * 2)
    return read_all(["auto"], Known((RuntimeNetwork("cbr0", ("bridge",)),)), tmp_path, lambda path: path)


@pytest.fixture
def reports(stores: tuple[NetworkStore, ...]) -> tuple[Report, ...]:
    """Two syncs: the second one confirms the leak, if the directory is read."""

    def made() -> Iterator[Report]:
        memory: ConfirmationState | None = None
        for minutes in range(2):
            snapshot = replace(node(later=timedelta(minutes=minutes)), reservations=stores)
            report, memory = engine.run(snapshot, memory, grace=GRACE, confirm_after=timedelta(seconds=30))
            yield report

    return tuple(made())


def test_the_metrics_have_the_name_itself(reports: tuple[Report, ...], name: str) -> None:
    registry = CollectorRegistry()
    exporter = MetricsExporter(registry, (), "observe", ())
    for one in reports:
        exporter.export(one, 0)
    families = text_string_to_metric_families(generate_latest(registry).decode())
    found = {one.labels["network"] for family in families for one in family.samples if "network" in one.labels}
    assert {name, "cbr0"} <= found


def test_the_page_has_the_name_escaped(reports: tuple[Report, ...], name: str) -> None:
    shown = unescape(Page(lambda: ((), ())).render(reports[-1], alive=True, refreshing=False).decode())
    assert escape(name) in shown
    assert all(one.isprintable() or one == "\n" for one in shown)


def test_the_log_has_the_name(reports: tuple[Report, ...], name: str, capsys: pytest.CaptureFixture[str]) -> None:
    exporter = LogExporter(configure("json"))
    for one in reports:
        exporter.export(one, 0)
    structlog.reset_defaults()
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert f"{name}/10.244.1.9" in {line.get("subject") for line in lines}


def test_the_table_and_the_documents_have_the_name(reports: tuple[Report, ...], name: str) -> None:
    report = reports[-1]
    assert all(one.isprintable() or one == "\n" for one in scan_table(report, verbose=True))
    document = json.loads(json.dumps(scan_document(report)).encode())
    assert name in {one["name"] for one in document["networks"]}
    status = status_document(report, "", CleanupStatus(mode="off", networks=(), release_possible=None), alive=True)
    assert name in {one["name"] for one in json.loads(json.dumps(status).encode())["networks"]}


def test_events_have_the_name_escaped(reports: tuple[Report, ...]) -> None:
    specs = list(event_specs(reports[-1]))
    assert specs
    for one in specs:
        assert one.message.isprintable()
        json.dumps(one.event(NOW), ensure_ascii=False).encode()

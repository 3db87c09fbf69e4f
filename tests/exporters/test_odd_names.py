"""Directories of networks with odd names: no output falls silent, and none has control characters."""

import json
import os
from dataclasses import replace
from datetime import timedelta
from html import unescape
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agent.exporters.json.scan import scan_document
from agent.exporters.log import LogExporter, configure
from agent.exporters.text.scan import scan_table
from agent.exporters.web.page import Page
from agent.kube_events.messages import event_specs
from agent.model.report import Report
from agent.model.runtime import RuntimeNetwork
from agent.model.snapshot import Known
from agent.model.text import escape
from agent.sources.host.network_directories import read_all
from tests.builders import NOW, OLD, node, scanned
from tests.exporters.daemon import Daemon

NAMES = (b"a\nb", b"a\x1b[2Jb", b'{}"\\', "\u202e".encode(), b"-o", b"x" * 255)
"""The first one is no text."""


@pytest.fixture(params=NAMES, ids=lambda name: repr(name[:8]))
def name(request: pytest.FixtureRequest) -> str:
    return os.fsdecode(request.param)


@pytest.fixture
def report(tmp_path: Path, name: str) -> Report:
    """One network with a leak, beside an empty one."""
    (tmp_path / "cbr0").mkdir()
    (tmp_path / name).mkdir()
    file = tmp_path / name / "10.244.1.9"
    file.write_text("9" * 64)
    os.utime(file, ((NOW - OLD).timestamp(),) * 2)
    stores = read_all(["auto"], Known((RuntimeNetwork("cbr0", ("bridge",)),)), tmp_path, lambda path: path)
    return scanned(*(replace(node(later=timedelta(minutes=minutes)), reservations=stores) for minutes in range(2)))


def is_text(name: str) -> bool:
    return name != "\udcff"


def test_documents_metrics_and_log_have_the_name_itself(
    report: Report, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(json.dumps(scan_document(report)).encode())
    assert (name if is_text(name) else escape(name)) in {one["name"] for one in document["networks"]}
    families = text_string_to_metric_families(Daemon("cbr0").export(report).scrape())
    found = {one.labels["network"] for family in families for one in family.samples if "network" in one.labels}
    assert (name in found, "cbr0" in found) == (is_text(name), True)
    LogExporter(configure("json")).export(report, 0)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert f"{name}/10.244.1.9" in {line.get("subject") for line in lines}


def test_the_page_the_table_and_events_have_it_escaped(report: Report, name: str) -> None:
    shown = unescape(Page(lambda: ((), ())).render(report, alive=True, refreshing=False).decode())
    assert escape(name) in shown
    for text in (shown, scan_table(report, verbose=True)):
        assert all(one.isprintable() or one == "\n" for one in text)
    specs = list(event_specs(report))
    assert bool(specs) is is_text(name)
    for one in specs:
        assert one.message.isprintable()
        json.dumps(one.event(NOW), ensure_ascii=False).encode()

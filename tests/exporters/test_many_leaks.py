"""A node with more leaks than have a finding each: counts are those of all leaks, and all are listed somewhere."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import structlog
from prometheus_client import CollectorRegistry

from agent.checks import engine
from agent.checks.addresses import leaked_reservation
from agent.checks.confirm import ConfirmationState
from agent.cleanup import guards
from agent.exporters.headline import headline
from agent.exporters.json.scan import scan_document
from agent.exporters.json.status import status_document
from agent.exporters.log import LogExporter
from agent.exporters.metrics import MetricsExporter
from agent.exporters.text.addresses import TableView
from agent.exporters.text.map import map_table
from agent.exporters.text.scan import scan_names, scan_table
from agent.exporters.timeline import EventKind, build_timeline
from agent.exporters.web import page_map
from agent.exporters.web.page_view import build_view
from agent.kube_events.messages import event_specs
from agent.model.finding import total
from agent.model.release import CleanupStatus
from agent.model.report import Report
from agent.model.snapshot import Reservation, Snapshot
from tests.builders import GRACE, empty_file, guard_context, make_limits, node, processes, reservation, scanned, without

MOST = 30
LEAKS = [reservation(f"10.244.1.{n}", f"{n:064x}") for n in range(10, 110)]
STORAGE = [reservation(f"10.99.0.{n}", f"{n:064x}", network="storage") for n in range(10, 15)]
SETTLED = [processes(kubelet=timedelta(hours=1))]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaked_reservation, "MOST_LISTED", MOST)


def leaking(*leaks: Reservation) -> Snapshot:
    return node(*leaks, processes=SETTLED)


@pytest.fixture
def report() -> Report:
    return scanned(leaking(*reversed(LEAKS), *STORAGE))


def test_the_first_leaks_of_the_node_have_a_finding_and_one_stands_for_the_others(report: Report) -> None:
    alone = [one.finding for one in report.findings if one.finding.count == 1]
    (rest,) = (one.finding for one in report.findings if one.finding.count > 1)
    assert {one.subject for one in alone} == {str(one.key) for one in (*LEAKS[: MOST - len(STORAGE)], *STORAGE)}
    assert (rest.subject, rest.count, rest.since) == ("kubenet", 75, alone[0].since)
    assert rest.message == (
        "75 more addresses in kubenet leaked, likely cause: kubelet restart at 2026-03-26 19:00:00Z or earlier: "
        "`nodeleak scan --output=wide` lists them"
    )
    assert len({one.finding.key for one in report.findings}) == len(report.findings)


def test_of_a_network_without_a_listed_leak_all_are_counted() -> None:
    report = scanned(leaking(*LEAKS, *[replace(one, ip=one.ip.replace("10.99", "10.250")) for one in STORAGE]))
    messages = [one.finding.message for one in report.findings if one.finding.network == "storage"]
    assert [message.partition(",")[0] for message in messages] == ["5 addresses in storage leaked"]
    assert f"Warning: {len(LEAKS) + len(STORAGE)} leaked pod addresses" in scan_table(report)


def test_a_node_with_as_many_leaks_as_are_listed_has_no_such_finding() -> None:
    report = scanned(leaking(*LEAKS[:MOST]))
    assert [one.finding.count for one in report.findings] == [1] * MOST


def test_a_line_with_one_leak_more_than_are_listed_names_addresses_only() -> None:
    text = scan_table(scanned(leaking(*LEAKS[: MOST + 1])))
    (line,) = (one for one in text.splitlines() if f"{MOST + 1} addresses in kubenet leaked" in one)
    assert line.endswith("10.244.1.38, 10.244.1.39 and 1 more")
    assert ": 10.244.1.10, 10.244.1.11, " in line


def test_causes_are_counted_apart() -> None:
    empty = [replace(one, container_id="", ifname="", size=0) for one in LEAKS[:60]]
    report = scanned(leaking(*empty, *LEAKS[60:]))
    rest = {one.finding.cause: one.finding.count for one in report.findings if one.finding.count > 1}
    assert rest == {"empty_file": 30, "kubelet_restart": 40}
    text = scan_table(report)
    assert "60 addresses in kubenet leaked, likely cause: a crash or power cut at " in text
    assert "40 more addresses in kubenet leaked, likely cause: kubelet restart at 2026-03-26 19:00:00Z" in text


def test_counts_are_those_of_all_leaks(report: Report) -> None:
    every = len(LEAKS) + len(STORAGE)
    assert total(report.findings) == every
    assert headline(report) == f"Warning: {every} leaked pod addresses on worker-1"
    text = scan_table(report)
    assert f"\n{every} findings (for more" in text
    assert "100 addresses in kubenet leaked, likely cause: kubelet restart" in text
    assert "10.244.1.34 and 75 more\n" in text, "as many are named as are listed"
    assert f"{every} findings: run without --map" in map_table(report, color=False, unicode=False)
    status = status_document(report, "1", CleanupStatus(mode="off", networks=(), release_possible=None), alive=True)
    assert [(one["detector"], one["count"]) for one in status["findings"]] == [("leaked_reservation", every)]
    (group,) = build_view(report, build_timeline(report, ()), alive=True).findings
    assert group.count == every


def test_the_networks_of_the_page_share_its_rows(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_map, "MAX_LISTED", 40)
    networks = build_view(report, build_timeline(report, ()), alive=True).networks
    assert [(one.name, len(one.entries.rows)) for one in networks] == [("kubenet", 20), ("storage", len(STORAGE))]
    assert networks[0].entries.total > len(LEAKS)


def test_every_leak_is_in_the_tables_with_its_cause(report: Report) -> None:
    listed = {f"{one.network}/{one.ip}" for one in (*LEAKS, *STORAGE)}
    assert listed <= set(scan_names(report, TableView()).split())
    table = scan_table(report, view=TableView(wide=True))
    assert table.count(" kubelet_restart ") == len(listed)
    rows = [one for one in scan_document(report)["reservations"] if one["state"] == "leaked"]
    assert {f"{one['network']}/{one['ip']}" for one in rows} == listed
    assert {one["cause"] for one in rows} == {"kubelet_restart"}
    assert sum(one["count"] for one in scan_document(report)["findings"]) == len(listed)


def test_an_event_counts_all_leaks_of_its_network(report: Report) -> None:
    messages = {one.subject: one.message for one in event_specs(report)}
    assert messages["kubenet"].startswith("100 findings in kubenet: 10.244.1.10 is reserved for")
    assert messages["kubenet"].endswith(" | and 95 more")
    assert messages["storage"].startswith("5 findings in storage: ")


def test_the_timeline_has_one_event_for_the_others(report: Report) -> None:
    leaked = [one for one in build_timeline(report, ()).events if one.kind is EventKind.LEAKED]
    assert len(leaked) == MOST + 1
    assert [one.subject for one in leaked if "75 more addresses" in one.text] == ["kubenet"]


def test_cleanup_asks_about_every_leak() -> None:
    snapshot = node(*LEAKS)
    limits = make_limits(max_share=1.0, allowances=(("--max", 10_000),))
    decisions = guards.decide(guard_context(snapshot, snapshot, limits=limits))
    passed = [one.reservations[0].ip for one, refusals in decisions if not refusals]
    assert sorted(passed) == sorted(one.ip for one in LEAKS)


class Daemon:
    """Syncs with their metrics and log lines."""

    def __init__(self) -> None:
        self.registry, self._seconds = CollectorRegistry(), 0
        self._memory: ConfirmationState | None = None
        self._metrics = MetricsExporter(self.registry, ("kubenet",), "observe", [])
        self._log = LogExporter(structlog.get_logger())
        self.lines = structlog.testing.LogCapture()
        structlog.configure(processors=[self.lines])

    def sync(self, *leaks: Reservation, gap: str = "") -> list[dict[str, Any]]:
        self._seconds += 15
        snapshot = node(*leaks, processes=SETTLED, later=timedelta(seconds=self._seconds))
        snapshot = without(snapshot, gap) if gap else snapshot
        report, self._memory = engine.run(snapshot, self._memory, grace=GRACE, confirm_after=timedelta(0))
        before = len(self.lines.entries)
        for exporter in (self._metrics, self._log):
            exporter.export(report, 0.01)
        return [dict(one) for one in self.lines.entries[before:]]

    def get(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"nodeleak_{name}", labels)


@pytest.fixture
def daemon() -> Any:
    yield Daemon()
    structlog.reset_defaults()


def test_metrics_count_every_leak_once(daemon: Daemon) -> None:
    for _ in range(4):
        daemon.sync(*LEAKS)
    found = {"detector": "leaked_reservation", "severity": "warning", "phase": "confirmed"}
    assert daemon.get("findings", **found) == len(LEAKS)
    assert daemon.get("reservations", network="kubenet", state="leaked") == len(LEAKS)
    assert daemon.get("leaks_confirmed_total", network="kubenet", cause="kubelet_restart") == len(LEAKS)


def test_the_log_opens_what_is_listed_and_closes_only_what_is_gone(daemon: Daemon) -> None:
    daemon.sync(*LEAKS[50:])
    opened = daemon.sync(*LEAKS[50:])
    assert [one["event"] for one in opened] == ["finding.opened"] * (MOST + 1)
    assert [one["count"] for one in opened if "count" in one] == [20]
    # Newer leaks have lower addresses; they do not displace those that are listed.
    assert [daemon.sync(*LEAKS) for _ in range(2)] == [[], []]
    later = daemon.sync(*LEAKS[:50], *LEAKS[52:])
    assert [(one["event"], one["subject"]) for one in later] == [
        *(("finding.opened", str(one.key)) for one in LEAKS[80:82]),
        *(("finding.closed", str(one.key)) for one in LEAKS[50:52]),
    ]


def test_the_log_does_not_close_what_still_leaks(daemon: Daemon) -> None:
    empty = [empty_file(f"10.244.1.{number}") for number in range(200, 205)]
    for _ in range(3):
        daemon.sync(*LEAKS, *empty)
    # Sandboxes are unknown now, empty files are not: they are listed for a while.
    daemon.sync(*LEAKS, *empty, gap="containers")
    assert not [one for one in daemon.sync(*LEAKS, *empty) if one["event"] == "finding.closed"]
    gone = daemon.sync(*LEAKS)
    assert not daemon.sync(*LEAKS)
    assert {one["subject"] for one in gone if one["event"] == "finding.closed"} >= {
        f"kubenet/10.244.1.{number}" for number in range(200, 205)
    }

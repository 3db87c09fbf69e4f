"""A node with more leaks than have a finding each: counts are those of all leaks, and all are listed somewhere."""

from datetime import timedelta

import pytest

from agent.checks.addresses import leaked_reservation
from agent.exporters.finding_lines import finding_lines
from agent.exporters.headline import headline
from agent.exporters.json.scan import scan_document
from agent.exporters.text.addresses import TableView
from agent.exporters.text.scan import scan_names, scan_table
from agent.exporters.timeline import timeline_document
from agent.kube_events.messages import event_specs
from agent.model.finding import total
from agent.model.report import Report
from agent.model.snapshot import Reservation, Snapshot
from tests.builders import empty_file, node, processes, reservation, scanned, without
from tests.exporters.daemon import Daemon, Lines

MOST = 30
LEAKS = [reservation(f"10.244.1.{n}", f"{n:064x}") for n in range(10, 110)]
STORAGE = [reservation(f"10.99.0.{n}", f"{n:064x}", network="storage") for n in range(10, 15)]
SETTLED = [processes(kubelet=timedelta(hours=1))]
EVERY = len(LEAKS) + len(STORAGE)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaked_reservation, "MAX_LISTED", MOST)


def leaking(*leaks: Reservation) -> Snapshot:
    return node(*leaks, processes=SETTLED)


@pytest.fixture
def report() -> Report:
    return scanned(leaking(*reversed(LEAKS), *STORAGE))


def test_counts_are_those_of_all_leaks(report: Report) -> None:
    (rest,) = (tracked.finding for tracked in report.findings if tracked.finding.count > 1)
    assert (rest.subject, rest.count, total(report.findings)) == ("kubenet", 75, EVERY)
    assert headline(report) == f"Warning: {EVERY} leaked pod addresses on worker-1"
    text = scan_table(report)
    assert f"\n{EVERY} warnings: leaked pod addresses\n" in text
    assert "100 addresses in kubenet leaked, likely cause: kubelet restart" in text
    assert "10.244.1.34 and 75 more " in " ".join(text.split()), "as many are named as are listed"
    assert len(finding_lines(report)) == 2
    assert sum(one["count"] for one in scan_document(report)["findings"]) == EVERY
    messages = {one.subject: one.message for one in event_specs(report)}
    assert messages["kubenet"].startswith("100 findings in kubenet: 10.244.1.10 is reserved for")
    leaked = [event for event in timeline_document(report)["events"] if event["what"] == "leaked"]
    assert [len(leaked), sum("75 more addresses" in event["text"] for event in leaked)] == [MOST + 1, 1]


def test_every_leak_is_in_the_tables_with_its_cause(report: Report) -> None:
    listed = {f"{one.network}/{one.ip}" for one in (*LEAKS, *STORAGE)}
    assert listed <= set(scan_names(report, TableView()).split())
    assert scan_table(report, view=TableView(wide=True)).count(" kubelet_restart ") == EVERY
    rows = [one for one in scan_document(report)["reservations"] if one["state"] == "leaked"]
    assert {f"{one['network']}/{one['ip']}": one["cause"] for one in rows} == dict.fromkeys(listed, "kubelet_restart")


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


def sync(daemon: Daemon, *leaks: Reservation, gap: str = "") -> Lines:
    snapshot = leaking(*leaks)
    return daemon.sync(without(snapshot, gap) if gap else snapshot, confirm_after=timedelta(0)).lines


def test_metrics_count_every_leak_once(daemon: Daemon) -> None:
    for _ in range(4):
        sync(daemon, *LEAKS)
    found = {"detector": "leaked_reservation", "severity": "warning", "phase": "confirmed"}
    assert daemon.get("findings", **found) == len(LEAKS)
    assert daemon.get("reservations", network="kubenet", state="leaked") == len(LEAKS)
    assert daemon.get("leaks_confirmed_total", network="kubenet", cause="kubelet_restart") == len(LEAKS)


def test_the_log_opens_what_is_listed_and_closes_only_what_is_gone(daemon: Daemon) -> None:
    sync(daemon, *LEAKS[50:])
    opened = sync(daemon, *LEAKS[50:])
    assert [one["event"] for one in opened] == ["finding.opened"] * (MOST + 1)
    assert [one["count"] for one in opened if "count" in one] == [20]
    # Newer leaks have lower addresses; they do not displace those that are listed.
    assert [sync(daemon, *LEAKS) for _ in range(2)] == [[], []]
    later = sync(daemon, *LEAKS[:50], *LEAKS[52:])
    assert [(one["event"], one["subject"]) for one in later] == [
        *(("finding.opened", str(one.key)) for one in LEAKS[80:82]),
        *(("finding.closed", str(one.key)) for one in LEAKS[50:52]),
    ]


def test_the_log_does_not_close_what_still_leaks(daemon: Daemon) -> None:
    empty = [empty_file(f"10.244.1.{number}") for number in range(200, 205)]
    for _ in range(3):
        sync(daemon, *LEAKS, *empty)
    # Sandboxes are unknown now, empty files are not: they are listed for a while.
    sync(daemon, *LEAKS, *empty, gap="containers")
    assert not [one for one in sync(daemon, *LEAKS, *empty) if one["event"] == "finding.closed"]
    gone = {one["subject"] for one in sync(daemon, *LEAKS) if one["event"] == "finding.closed"}
    assert gone >= {f"kubenet/10.244.1.{number}" for number in range(200, 205)}

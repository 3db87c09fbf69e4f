"""The document `nodeleak.status/v1`: exactly these keys, and null for what is not known."""

import json
import sys
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from agent.checks import engine
from agent.exporters.json.status import StatusExporter, status_document
from agent.model.release import CleanupStatus
from agent.model.report import Report
from agent.model.snapshot import NetworkStore, NotRequested, Snapshot
from agent.model.status import checked
from tests.builders import GRACE, NOW, dark_node, node, reservation, scanned, without
from tests.exporters.cleanings import cleaning

CLEANUP = CleanupStatus(mode="off", networks=(), release_possible=True)
LEAKS = (reservation("10.244.1.9"), reservation("10.244.1.8", "8" * 64, age=timedelta(days=1)))
FULL = [reservation(f"10.244.1.{n}", f"{n:064x}") for n in range(4, 255)]
UNCONFIRMED, _ = engine.run(node(*FULL), None, grace=GRACE, confirm_after=timedelta(0))


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def exported(report: Report, cleanup: CleanupStatus = CLEANUP, *, alive: bool = True) -> Any:
    """Export a report, and read its document as `nodeleak status` does: nothing may be lost on the way."""
    clock = Clock()
    exporter = StatusExporter("0.1.0", 15.0, lambda _: cleanup, lambda: alive, clock)
    exporter.export(report, 0.5)
    clock.now += 2
    tree = json.loads(json.dumps(exporter.document(), allow_nan=False))
    assert checked(tree) == tree
    return tree


def test_a_healthy_node_has_every_key() -> None:
    assert exported(scanned(node())) == {
        "schema": "nodeleak.status/v1",
        "version": "0.1.0",
        "node": "worker-1",
        "state": "ok",
        "headline": "OK: no findings",
        "report": {"taken_at": "2026-03-26T20:00:00Z", "age_seconds": 2.5, "interval_seconds": 15.0},
        "cleanup": {"mode": "off", "networks": [], "release_possible": True, "why_not": [], "halted": ""},
        "networks": [{"name": "kubenet", "usable": 253, "free": 251, "leaked": 0, "unknown": 0}],
        "findings": [],
        "unavailable": [],
    }


def test_findings_are_counted_by_detector_the_worst_first() -> None:
    tree = exported(scanned(node(*FULL)))
    assert tree["state"] == "findings"
    assert [(one["severity"], one["detector"], one["count"]) for one in tree["findings"]] == [
        ("critical", "exhausted_range", 1),
        ("warning", "leaked_reservation", 251),
    ]
    assert tree["networks"] == [{"name": "kubenet", "usable": 253, "free": 0, "leaked": 251, "unknown": 0}]


def test_the_oldest_finding_of_a_detector_is_dated() -> None:
    (found,) = exported(scanned(node(*LEAKS)))["findings"]
    assert (found["count"], found["oldest"]) == (2, "2026-03-25T20:00:00Z")


def test_an_unconfirmed_finding_is_in_the_headline_only() -> None:
    tree = exported(UNCONFIRMED)
    assert (tree["state"], tree["findings"]) == ("ok", [])
    assert tree["headline"].startswith("Unconfirmed: no free pod addresses")


def test_what_is_unavailable_is_named_and_not_zero() -> None:
    tree = exported(scanned(dark_node()))
    assert tree["state"] == "incomplete"
    assert tree["networks"] == [{"name": "kubenet", "usable": None, "free": None, "leaked": None, "unknown": None}]
    assert {"source": "containers", "why": "it gave no word"} in tree["unavailable"]


def test_findings_beside_an_unavailable_source_are_findings() -> None:
    tree = exported(scanned(without(node(*LEAKS), "device_plugins")))
    assert (tree["state"], [one["source"] for one in tree["unavailable"]]) == ("findings", ["device_plugins"])


@pytest.mark.parametrize("snapshot", [node(), node(*LEAKS), dark_node()])
def test_a_daemon_that_stopped_checking_is_stalled_whatever_it_found(snapshot: Snapshot) -> None:
    assert exported(scanned(snapshot), alive=False)["state"] == "stalled"


def test_halted_cleanup_is_a_finding() -> None:
    report = replace(scanned(node()), cleaning=cleaning(halted="released container 950b reappeared"))
    tree = exported(report)
    assert tree["state"] == "findings"
    assert tree["headline"].startswith("Critical: cleanup halted")


def test_a_network_that_no_pod_uses_is_left_out() -> None:
    other = NetworkStore("podman", NotRequested("reservations", "it is podman's"))
    healthy = node()
    tree = exported(scanned(replace(healthy, reservations=(*healthy.reservations, other))))
    assert [one["name"] for one in tree["networks"]] == ["kubenet"]


@pytest.mark.parametrize("possible", [True, False, None])
def test_cleanup_is_what_the_daemon_says(possible: bool | None) -> None:
    cleanup = CleanupStatus(mode="auto", networks=("cbr0",), release_possible=possible, why_not=("read-only mount",))
    assert exported(scanned(node()), cleanup)["cleanup"] == {
        "mode": "auto", "networks": ["cbr0"], "release_possible": possible, "why_not": ["read-only mount"],
        "halted": "",
    }  # fmt: skip


def test_before_the_first_report_there_is_no_document() -> None:
    assert StatusExporter("0.1.0", 15.0, lambda _: CLEANUP, lambda: True, Clock()).document() is None


def test_the_document_keeps_no_report_but_the_last() -> None:
    clock = Clock()
    exporter = StatusExporter("0.1.0", 15.0, lambda _: CLEANUP, lambda: True, clock)
    first = scanned(node())
    references = sys.getrefcount(first)
    exporter.export(first, 0.0)
    exporter.document()
    clock.now += 15
    exporter.export(scanned(node()), 0.0)
    assert sys.getrefcount(first) == references


def test_the_document_without_times_is_of_the_report() -> None:
    report = scanned(node())
    assert report.assessment.snapshot.taken_at == NOW
    assert set(exported(report)) - set(status_document(report, "0.1.0", CLEANUP, alive=True)) == {"report"}

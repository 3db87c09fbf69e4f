"""JSON documents: null for what is not known, never 0; numbers and orders. Their shape is in the golden files."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

from agent.checks import engine
from agent.checks.registry import DETECTORS
from agent.exporters.json.clean import clean_document
from agent.exporters.json.scan import scan_document
from agent.exporters.json.status import status_document
from agent.model.release import CleanupStatus
from agent.model.report import Report
from agent.model.status import checked
from tests.builders import (
    GRACE,
    dark_node,
    node,
    reservation,
    scanned,
    without,
)
from tests.exporters.cleanings import cleaning

CLEANUP = CleanupStatus(mode="off", networks=(), release_possible=None)


def scan(report: Report) -> Any:
    return json.loads(json.dumps(scan_document(report), allow_nan=False))


def status(report: Report, *, alive: bool = True) -> Any:
    """Read the document as `nodeleak status` does: nothing may be lost on the way."""
    document = status_document(report, CLEANUP, "0.1.0", age=2.5, interval=15.0, alive=alive)
    document = json.loads(json.dumps(document, allow_nan=False))
    assert checked(document) == document
    return document


def test_without_data_nothing_is_zero() -> None:
    document = scan(scanned(dark_node()))
    (network,) = document["networks"]
    assert {value for key, value in network.items() if key != "name"} == {None}
    assert (document["reservations"], document["device_plugins"]) == ([], None)
    assert {one["source"] for one in document["unavailable"]} >= {"reservations", "containers", "pods"}
    assert {one["detector"] for one in document["insufficient_data"]} == {detector.NAME for detector in DETECTORS}
    document = status(scanned(dark_node()))
    assert document["state"] == "incomplete"
    assert document["networks"] == [{"name": "kubenet", "usable": None, "free": None, "leaked": None, "unknown": None}]
    document = clean_document(cleaning(free_before={"kubenet": None}, free_after={"kubenet": None}))
    assert document["networks"] == [{"network": "kubenet", "free_before": None, "free_after": None}]


def test_the_state_of_a_node_is_the_worst_that_is_known() -> None:
    leaking = node(reservation("10.244.1.9"), reservation("10.244.1.8", "8" * 64, age=timedelta(days=1)))
    (found,) = status(scanned(leaking))["findings"]
    assert (found["count"], found["oldest"]) == (2, "2026-03-25T20:00:00Z")
    document = status(scanned(without(leaking, "device_plugins")))
    assert (document["state"], [one["source"] for one in document["unavailable"]]) == ("findings", ["device_plugins"])
    for snapshot in (node(), leaking, dark_node()):
        assert status(scanned(snapshot), alive=False)["state"] == "stalled"
    halted = status(replace(scanned(node()), cleaning=cleaning(halted="released container 950b reappeared")))
    assert (halted["state"], halted["headline"][:24]) == ("findings", "Critical: cleanup halted")


def test_an_unconfirmed_finding_is_in_the_headline_only() -> None:
    full = node(*(reservation(f"10.244.1.{n}", f"{n:064x}") for n in range(4, 255)))
    report, _ = engine.run(full, None, grace=GRACE, confirm_after=timedelta(0))
    document = status(report)
    assert (document["state"], document["findings"]) == ("ok", [])
    assert document["headline"].startswith("Unconfirmed: no free pod addresses")

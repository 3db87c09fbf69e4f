"""The headline states the worst consequence."""

from dataclasses import replace

import pytest

from agent.checks.registry import DETECTORS
from agent.exporters.headline import Status, headline, status_of
from agent.model.finding import Finding, Severity, SkippedCheck, TrackedFinding
from agent.model.report import Report
from agent.model.snapshot import Node
from tests.builders import NOW, node, reservation, scanned, without
from tests.exporters.cleanings import cleaning


def report_with(*findings: Finding, confirmed: bool = True) -> Report:
    return replace(scanned(node()), findings=tuple(TrackedFinding(one, NOW, confirmed) for one in findings))


def leaks(count: int) -> list[Finding]:
    return [Finding("leaked_reservation", f"kubenet/10.244.1.{n}", "leaked", network="kubenet") for n in range(count)]


FULL = Finding("exhausted_range", "kubenet", "full", Severity.CRITICAL, "kubenet")


def test_a_healthy_node_is_ok() -> None:
    assert headline(scanned(node())) == "OK: no findings"
    info = replace(FULL, severity=Severity.INFO)
    assert headline(report_with(info)) == "OK: 1 informational finding"


def test_a_full_range_is_worse_than_its_leaks() -> None:
    taken = [reservation(f"10.244.1.{n}", f"{n:064x}") for n in range(4, 15)]
    range_of_13 = [Node("worker-1", ("10.244.1.0/28",), 5)]
    assert headline(scanned(node(*taken, node=range_of_13))) == "Critical: no free pod addresses (11 of 13 leaked)"
    scarce = headline(scanned(node(*taken[:-1], node=range_of_13)))
    assert scarce == "Warning: only 1 free pod address left (10 of 13 leaked)"


def test_leaks_are_counted_with_the_node() -> None:
    assert headline(report_with(*leaks(7))) == "Warning: 7 leaked pod addresses on worker-1"
    assert headline(scanned(node(reservation("10.244.1.9")))) == "Warning: 1 leaked pod address on worker-1"


def test_the_severity_comes_before_the_kind() -> None:
    lost = Finding("detached_volume", "v", "m", Severity.CRITICAL)
    assert headline(report_with(Finding("shared_ip", "a", "m"), lost)).startswith("Critical: 1 volume ")


@pytest.mark.parametrize(
    ("severity", "text"),
    [
        (
            Severity.CRITICAL,
            "Critical: this node is not registered correctly: the cluster-autoscaler may delete the instance",
        ),
        (Severity.WARNING, "Warning: this node is not registered correctly"),
        (Severity.INFO, "OK: 1 informational finding"),
    ],
)
def test_only_a_critical_registration_problem_announces_a_deletion(severity: Severity, text: str) -> None:
    assert headline(report_with(Finding("unregistered_node", "Node worker-1", "m", severity))) == text


@pytest.mark.parametrize("detector", [one.NAME for one in DETECTORS])
def test_every_detector_has_a_consequence(detector: str) -> None:
    text = headline(
        report_with(Finding(detector, "a", "m", network="kubenet"), Finding(detector, "b", "m", network="kubenet"))
    )
    assert text.startswith("Warning: ")
    assert "findings" not in text


def test_unconfirmed_findings_say_so() -> None:
    report = report_with(*leaks(2), confirmed=False)
    assert status_of(report) is Status.UNCONFIRMED
    assert headline(report) == "Unconfirmed: 2 leaked pod addresses on worker-1"


def test_checks_that_could_not_run_are_counted_with_the_reason() -> None:
    assert headline(scanned(without(node(), "reservations"))) == (
        "Incomplete: 9 of 16 checks could not run: it gave no word"
    )
    failed = replace(scanned(node()), gaps=(SkippedCheck("shared_ip", "KeyError", broken=True),))
    assert headline(failed) == "Incomplete: 1 of 16 checks could not run: shared_ip: KeyError"


def test_an_agent_that_stopped_scanning_is_not_ok() -> None:
    assert headline(scanned(node()), alive=False) == "Incomplete: the nodeleak agent is up but has stopped scanning"


def test_halted_cleanup_is_critical_but_less_than_a_critical_finding() -> None:
    halted = cleaning(halted="released container 950b reappeared")
    assert headline(replace(report_with(*leaks(1)), cleaning=halted)) == (
        "Critical: cleanup halted: released container 950b reappeared"
    )
    assert headline(replace(report_with(FULL), cleaning=halted)).startswith("Critical: ")
    assert "halted" not in headline(replace(report_with(FULL), cleaning=halted))

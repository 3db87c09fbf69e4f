"""Teardowns that the kubelet does not complete."""

from datetime import timedelta

import pytest

from agent.checks import engine
from agent.checks.addresses import stuck_teardown
from agent.model.finding import Severity
from agent.model.report import Report
from agent.model.snapshot import Checkpoint, InsufficientData, Snapshot
from tests.builders import GONE, GRACE, findings_of, node, reservation, without

LOST = reservation("10.244.1.9")
KEPT = Checkpoint(GONE, "shop/cart")
MINUTE = timedelta(minutes=1)


def pending(later: timedelta = timedelta(0), clock_set_by: timedelta = timedelta(0)) -> Snapshot:
    return node(LOST, KEPT, later=later, clock_set_by=clock_set_by)


def after(*snapshots: Snapshot) -> Report:
    state = None
    for snapshot in snapshots:
        report, state = engine.run(snapshot, state, grace=GRACE, confirm_after=timedelta(0))
    return report


def severities(report: Report) -> list[tuple[Severity, bool]]:
    found = (one for one in report.findings if one.finding.detector == stuck_teardown.NAME)
    return [(one.finding.severity, one.confirmed) for one in found]


def test_an_ordinary_teardown_is_no_finding() -> None:
    assert severities(after(pending(), pending(14 * MINUTE))) == []
    assert findings_of(stuck_teardown, pending()) == []


def test_a_late_teardown_is_for_information_and_a_stuck_one_a_warning() -> None:
    late = [pending(), pending(15 * MINUTE), pending(16 * MINUTE)]
    assert severities(after(*late)) == [(Severity.INFO, True)]
    assert severities(after(*late, pending(60 * MINUTE), pending(61 * MINUTE))) == [(Severity.WARNING, True)]


def test_the_finding_names_the_pod_and_the_time_since_when_it_is_pending() -> None:
    report = after(pending(), pending(60 * MINUTE))
    (finding,) = (one.finding for one in report.findings if one.finding.detector == stuck_teardown.NAME)
    assert finding.subject == "kubenet/10.244.1.9"
    assert finding.message == (
        "10.244.1.9 is reserved for container 999999999999 of pod shop/cart, which no longer exists; "
        "the kubelet has not completed its teardown since 2026-03-26 20:00:00Z"
    )
    assert (finding.pod, finding.since) == ("shop/cart", pending().taken_at)


def test_a_clock_that_is_set_is_no_time_that_passes() -> None:
    assert severities(after(pending(), pending(MINUTE, clock_set_by=timedelta(days=2)))) == []


@pytest.mark.parametrize("source", ["reservations", "containers", "checkpoints"])
def test_a_source_that_is_silent_for_a_moment_does_not_restart_the_time(source: str) -> None:
    silent = without(pending(30 * MINUTE), source)
    assert severities(after(pending(), silent, pending(60 * MINUTE))) == [(Severity.WARNING, False)]


def test_another_sandbox_with_the_address_starts_over() -> None:
    other = node(reservation("10.244.1.9", "8" * 64), Checkpoint("8" * 64, ""), later=60 * MINUTE)
    assert severities(after(pending(), other)) == []


def test_a_completed_teardown_is_forgotten() -> None:
    assert severities(after(pending(), node(later=MINUTE), pending(60 * MINUTE))) == []


@pytest.mark.parametrize("source", ["reservations", "containers", "checkpoints"])
def test_without_its_sources_it_has_insufficient_data(source: str) -> None:
    with pytest.raises(InsufficientData, match=source):
        findings_of(stuck_teardown, without(pending(), source))

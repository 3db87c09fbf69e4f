"""Headline and advice: the worst consequence, and never a good word about what was not read."""

from dataclasses import replace

from agent.checks.registry import DETECTORS
from agent.exporters.advice import advice, description, runbook
from agent.exporters.headline import Status, headline, status_of
from agent.exporters.text.scan import scan_table
from agent.exporters.wording import WORDING
from agent.model.finding import Finding, Severity, SkippedCheck, TrackedFinding
from agent.model.report import Report
from tests.builders import NOW, node, scanned, without
from tests.deploy.monitoring import rules
from tests.exporters.cleanings import cleaning
from tests.kube_events.syncs import leak

FULL = Finding("exhausted_range", "kubenet", "full", Severity.CRITICAL, "kubenet")


def report_with(*findings: Finding, confirmed: bool = True) -> Report:
    return replace(
        scanned(node()), findings=tuple(TrackedFinding(one, one.since or NOW, confirmed) for one in findings)
    )


def test_every_detector_has_its_words() -> None:
    assert WORDING.keys() == {detector.NAME for detector in DETECTORS}
    for name, wording in WORDING.items():
        two = report_with(*(Finding(name, subject, "m", network="kubenet") for subject in "ab"))
        assert headline(two).startswith("Warning: ")
        assert "findings" not in headline(two)
        assert min(len(advice(name, two)), len(description(name))) > 20
        assert (scan_table(two).count("  Do: ") == 1) is not wording.says_what_to_do


def test_every_detector_with_an_alert_has_its_runbook() -> None:
    for detector in DETECTORS:
        urls = {runbook(detector.NAME, severity) for severity in Severity}
        assert (urls == {""}) is (detector.NAME == "left_over_network")
        of_it = (rule for rule in rules("alert") if f'detector="{detector.NAME}"' in rule["expr"])
        assert {rule["annotations"]["runbook_url"] for rule in of_it} <= urls
    assert runbook("exhausted_range", Severity.CRITICAL).endswith("/docs/runbooks/Ranges.md#nodeleakrangeexhausted")


def test_the_severity_comes_before_the_kind_and_the_kind_before_the_number() -> None:
    lost = Finding("detached_volume", "v", "m", Severity.CRITICAL)
    assert headline(report_with(Finding("shared_ip", "a", "m"), lost)).startswith("Critical: 1 volume ")
    assert headline(report_with(leak(1), leak(2), Finding("shared_ip", "a", "m"))).startswith(
        "Warning: 1 pod address in use"
    )


def test_only_a_critical_registration_problem_announces_a_deletion() -> None:
    texts = [headline(report_with(Finding("unregistered_node", "n", "m", severity))) for severity in Severity]
    assert texts == [
        "OK: 1 informational finding",
        "Warning: this node is not registered correctly",
        "Critical: this node is not registered correctly: the cluster-autoscaler may delete the instance",
    ]


def test_nothing_is_ok_where_something_was_not_read() -> None:
    report = scanned(without(node(), "reservations"))
    assert headline(report) == "Incomplete: 9 of 16 checks could not run: it gave no word"
    failed = replace(scanned(node()), gaps=(SkippedCheck("shared_ip", "KeyError", broken=True),))
    assert headline(failed) == "Incomplete: 1 of 16 checks could not run: shared_ip: KeyError"
    assert "shared_ip: KeyError" in scan_table(failed)
    assert headline(scanned(node()), alive=False) == "Incomplete: the nodeleak agent is up but has stopped scanning"
    assert not any(line.startswith("OK") for line in scan_table(report).splitlines())


def test_halted_cleanup_is_critical_but_less_than_a_critical_finding() -> None:
    halted = cleaning(halted="released container 950b reappeared")
    for findings in ((), (leak(1),)):
        report = replace(report_with(*findings), cleaning=halted)
        assert (status_of(report), headline(report)) == (
            Status.PROBLEM, "Critical: cleanup halted: released container 950b reappeared",
        )  # fmt: skip
    assert headline(replace(report_with(FULL), cleaning=halted)).startswith("Critical: only ")


def test_what_to_do_about_leaks_depends_on_free_addresses() -> None:
    report = report_with(leak(9))
    for free, expected in (
        (0, "no address is free: pods that start now fail; cordon the node; release"),
        (90, "not urgent: 90 free addresses left; release"),
        (9, "9 free addresses left; release"),
        (None, "the number of free addresses is unknown; release"),
    ):
        text = advice(
            "leaked_reservation", replace(report, networks=tuple(replace(n, free=free) for n in report.networks))
        )
        assert text.startswith(expected)
        assert "nodeleak clean --dry-run" in text
        assert "never delete reservation files by hand" in text

"""Headline and advice: the worst consequence, and never a good word about what was not read."""

from dataclasses import replace

from agent.checks.registry import DETECTORS
from agent.exporters import advice as remedies
from agent.exporters.headline import Status, headline, status_of
from agent.exporters.text.addresses import TableView
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
        assert remedies.advice(name, two)
        assert len(remedies.description(name)) > 20
        assert (scan_table(two).count("  Do:\n") == 1) is not wording.says_what_to_do


def test_every_detector_with_an_alert_has_its_runbook() -> None:
    for detector in DETECTORS:
        urls = {remedies.runbook(detector.NAME, severity) for severity in Severity}
        assert (urls == {""}) is (detector.NAME == "left_over_network")
        of_it = (rule for rule in rules("alert") if f'detector="{detector.NAME}"' in rule["expr"])
        assert {rule["annotations"]["runbook_url"] for rule in of_it} <= urls
    assert remedies.runbook("exhausted_range", Severity.CRITICAL).endswith(
        "/docs/runbooks/Ranges.md#nodeleakrangeexhausted"
    )


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
    report = report_with(leak(9), FULL)
    for free, expected in (
        (0, "No address is free, and pods that start now fail. Cordon the node:"),
        (90, "Not urgent: 90 addresses are free. See what would be released"),
        (9, "9 addresses are free. See what would be released"),
        (None, "The number of free addresses is unknown. See what would be released"),
    ):
        networks = tuple(replace(network, free=free) for network in report.networks)
        steps = remedies.advice("leaked_reservation", replace(report, networks=networks))
        assert steps[0].text.startswith(expected)
        assert ("kubectl cordon worker-1" in steps[0].commands) is (free == 0)
        assert remedies.ON_NODE in [step.commands for step in steps]
        assert steps[-1].text.startswith("Never delete reservation files by hand")
    assert remedies.advice("exhausted_range", report) == [], "the steps of the leaks are those of the range"
    assert scan_table(report).count("Do:\n") == 1
    (cordon, *_) = remedies.advice("exhausted_range", report_with(FULL))
    assert cordon.commands == ("kubectl cordon worker-1",)


def test_only_the_commands_that_work_here_are_printed() -> None:
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    for environment, command in (
        ({}, "nodeleak clean --apply --cleanup-network=auto"),
        (pod, "kubectl nodeleak clean-job worker-1 --apply --run"),
        (pod | {"NODELEAK_CLEANUP_NETWORK": "auto"}, "nodeleak clean --apply"),
    ):
        text = scan_table(report_with(leak(9)), view=TableView(release=remedies.release_commands(environment)))
        assert [line.strip() for line in text.splitlines() if "--apply" in line] == [command]


def test_prose_fits_and_commands_are_not_broken() -> None:
    for detector in WORDING:
        report = report_with(Finding(detector, "a", "word " * 90, network="kubenet"))
        lines = scan_table(report, view=TableView(columns=150)).splitlines()
        prose = [line for line in lines if not line.startswith("         ")]
        assert max(map(len, prose)) <= 100
        assert not [line for line in prose if line.count("`") % 2]

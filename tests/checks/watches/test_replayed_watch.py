"""Replays that versions of the API server show, and how long they are reported."""

from dataclasses import replace
from datetime import timedelta

import pytest

from agent.checks.watches import replayed_watch
from agent.model.snapshot import InsufficientData, SourceDisabled
from agent.model.watches import LASTS, Evidence
from tests.builders import NOW, assessment, findings_of, node, shown, unavailable, without, without_api

MINUTE = timedelta(minutes=1)


def test_a_deletion_with_an_old_version_is_reported_with_its_details() -> None:
    (finding,) = findings_of(replayed_watch, node(watches=[shown(count=3)]))
    assert finding.subject == "pods deleted_below"
    assert finding.message == (
        "pods: the API server (v1.9.2) sent a DELETED event with version 7 after 40 on the same watch, "
        "3 times since 2026-03-26 19:57:00Z, last at 2026-03-26 19:59:00Z; "
        "clients that adopt this version process old events again and delete live objects"
    )
    assert finding.since == NOW - 3 * MINUTE


def test_each_resource_has_its_own_finding() -> None:
    watches = [shown(Evidence.REPLAYED, "node"), shown(Evidence.REPLAYED), shown()]
    findings = findings_of(replayed_watch, node(watches=watches))
    assert [finding.subject for finding in findings] == ["node replayed", "pods replayed", "pods deleted_below"]
    assert "sent an old ADDED or MODIFIED event, version 7, to a watch that had reached 40, at " in findings[0].message


@pytest.mark.parametrize("evidence", [Evidence.OLDER_LIST, Evidence.RV_RESET])
def test_a_lagging_server_and_a_restored_etcd_are_no_replay(evidence: Evidence) -> None:
    assert findings_of(replayed_watch, node(watches=[shown(evidence)])) == []


def test_the_finding_ends_an_hour_of_boot_clock_after_the_last_event() -> None:
    assert findings_of(replayed_watch, node(watches=[shown(ago=LASTS)]))
    assert not findings_of(replayed_watch, node(watches=[shown(ago=LASTS + MINUTE)]))
    assert findings_of(replayed_watch, node(watches=[shown(ago=MINUTE)], clock_set_by=timedelta(days=2)))
    assert not findings_of(replayed_watch, node(watches=[shown(ago=MINUTE)], later=LASTS))


@pytest.mark.parametrize(
    ("version", "repaired"),
    [
        ("v1.9.2", False), ("v1.9.3", True), ("v1.8.7", False), ("v1.8.8-gke.0", True), ("v1.9.0", False),
        ("v1.10.0", True), ("v1.20.2", True), ("v2.0.0", True), ("v1.7.16", False), ("", False),
    ],
)  # fmt: skip
def test_the_message_says_whether_the_version_has_the_fix(version: str, repaired: bool) -> None:
    (finding,) = findings_of(replayed_watch, node(watches=[shown(server_version=version)]))
    assert ("although this version has the fix" in finding.message) is repaired
    assert (f"the API server ({version}) sent" in finding.message) is bool(version)


def test_without_the_api_server_the_check_is_disabled() -> None:
    with pytest.raises(SourceDisabled, match="watches: --api=off"):
        findings_of(replayed_watch, without_api(node()))


@pytest.mark.parametrize("source", ["pods", "node"])
def test_an_unavailable_watch_keeps_its_findings_and_leaves_a_gap(source: str) -> None:
    incomplete = without(node(watches=[shown()]), source)
    findings = replayed_watch.find(assessment(incomplete))
    assert next(findings).subject == "pods deleted_below"
    with pytest.raises(InsufficientData, match=source):
        next(findings)
    with pytest.raises(InsufficientData):
        findings_of(replayed_watch, replace(node(), watches=unavailable("watches")))

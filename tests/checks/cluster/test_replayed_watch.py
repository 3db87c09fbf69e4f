"""Replays that versions of the API server show, and how long they are reported."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from agent.exporters.advice import advice
from agent.exporters.summary import headline
from agent.model.finding import Severity
from agent.model.snapshot import Snapshot
from agent.model.watches import Evidence
from tests.builders import (
    NOW,
    WORKER,
    findings_and_gap,
    findings_of,
    gap_of,
    node,
    processes,
    scanned,
    shown,
    the_finding,
    unavailable,
    without,
    without_api,
)

DETECTOR = "replayed_watch"
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


def test_each_resource_has_its_own_finding() -> None:
    watches = [shown(Evidence.REPLAYED, "node"), shown(Evidence.REPLAYED), shown(count=3)]
    findings = findings_of(DETECTOR, node(watches=watches))
    assert [finding.subject for finding in findings] == [
        "node replayed",
        "pods replayed",
        "pods deleted_below",
    ]
    assert findings[-1].since == NOW - 3 * MINUTE
    assert (
        "3 times since 2026-03-26 19:57:00Z, last at 2026-03-26 19:59:00Z; " in findings[-1].message
    )
    assert (
        "sent an old ADDED or MODIFIED event, version 7, to a watch that had reached 40, at "
        in findings[0].message
    )
    # A lagging server is no replay.
    assert findings_of(DETECTOR, node(watches=[shown(Evidence.OLDER_LIST)])) == []


def test_a_restored_etcd_is_reported_for_hours_or_until_the_kubelet_starts_again() -> None:
    def restored(ago: timedelta = HOUR, **changes: Any) -> Snapshot:
        pods = shown(Evidence.RV_RESET, ago=ago, count=2)
        own = shown(Evidence.RV_RESET, "node", ago=ago + MINUTE)
        return node(watches=[pods, own], **changes)

    finding = the_finding(DETECTOR, restored())
    assert (finding.subject, finding.severity) == ("etcd restored", Severity.WARNING)
    assert finding.since == NOW - HOUR - MINUTE
    assert finding.message == (
        "etcd was restored from a backup: its versions went back (pods from 40 to 7, node from 40 "
        "to 7), noticed at 2026-03-26 19:00:00Z; whatever watches from an earlier version may hear "
        "nothing for hours; restart the kubelet and kube-proxy here, unless that was done since"
    )
    report = scanned(restored())
    assert headline(report).startswith("Warning: etcd was restored from a backup: restart")
    assert findings_of(DETECTOR, restored(6 * HOUR - MINUTE))
    assert not findings_of(DETECTOR, restored(6 * HOUR + MINUTE))
    for kubelet, is_reported in ((HOUR, True), (HOUR - MINUTE, False), (None, True)):
        snapshot = restored(processes=[processes(kubelet=kubelet)])
        assert bool(findings_of(DETECTOR, snapshot)) is is_reported
    assert findings_of(DETECTOR, without(restored(), "processes")), "it may not have started"
    # Replays beside it have their own findings and steps.
    both = node(watches=[shown(), shown(Evidence.RV_RESET)])
    found = [(one.subject, one.kinds) for one in findings_of(DETECTOR, both)]
    assert found == [
        ("etcd restored", ("restored", "other")),
        ("pods deleted_below", ("replayed",)),
    ]


def test_after_a_restore_the_commands_are_those_of_the_distribution() -> None:
    for version, expected in (
        ("v1.30.4+k3s1", ["systemctl try-restart 'k3s*.service'"]),
        ("v1.30.4+rke2r1", ["systemctl try-restart 'rke2-*.service'", "crictl stop"]),
        ("v1.30.4", ["systemctl restart kubelet", "-l k8s-app=kube-proxy"]),
    ):
        worker = replace(WORKER, kubelet=version)
        snapshot = node(watches=[shown(Evidence.RV_RESET)], node=[worker])
        commands = [
            command for step in advice(DETECTOR, scanned(snapshot)) for command in step.commands
        ]
        assert len(commands) == len(expected)
        assert all(part in command for part, command in zip(expected, commands, strict=True))


def test_the_finding_ends_an_hour_of_boot_clock_after_the_last_event() -> None:
    assert findings_of(DETECTOR, node(watches=[shown(ago=HOUR)]))
    assert not findings_of(DETECTOR, node(watches=[shown(ago=HOUR + MINUTE)]))
    assert findings_of(DETECTOR, node(watches=[shown(ago=MINUTE)], clock_set_by=timedelta(days=2)))
    assert not findings_of(DETECTOR, node(watches=[shown(ago=MINUTE)], later=HOUR))


def test_the_message_says_whether_the_version_has_the_fix() -> None:
    for version, repaired in (
        ("v1.9.2", False), ("v1.9.3", True), ("v1.8.7", False), ("v1.8.8-gke.0", True), ("v1.9.0", False),
        ("v1.10.0", True), ("v1.20.2", True), ("v2.0.0", True), ("v1.7.16", False), ("", False),
    ):  # fmt: skip
        (finding,) = findings_of(DETECTOR, node(watches=[shown(server_version=version)]))
        assert ("although this version has the fix" in finding.message) is repaired
        assert (f"the API server ({version}) sent" in finding.message) is bool(version)


def test_an_unavailable_watch_keeps_its_findings_and_leaves_a_gap() -> None:
    for source in ("pods", "node"):
        findings, gap = findings_and_gap(DETECTOR, without(node(watches=[shown()]), source))
        assert [finding.subject for finding in findings] == ["pods deleted_below"]
        assert gap.why.startswith(source)
    assert gap_of(DETECTOR, replace(node(), watches=unavailable("watches"))).startswith("watches")
    _, gap = findings_and_gap(DETECTOR, without_api(node()))
    assert (gap.why, gap.chosen) == ("watches: --api=off", True)

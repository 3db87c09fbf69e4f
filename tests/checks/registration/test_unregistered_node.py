"""Nodes with registration problems: deleted, without a provider ID, with another one, or about to be removed."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from agent.checks.registration import unregistered_node
from agent.model.finding import Finding, Severity
from agent.model.registration import (
    DELETION_CANDIDATE,
    TO_BE_DELETED,
    UNINITIALIZED,
    Autoscaler,
    Removal,
    Taint,
)
from agent.model.setting_values import Expected
from agent.model.snapshot import InsufficientData, NotRequested, Snapshot, SourceDisabled, Unavailable
from tests.builders import (
    INSTANCE,
    NOW,
    OLD,
    findings_of,
    last_seen,
    node,
    processes,
    registration,
    scanned,
    without,
    without_api,
    worker,
)

MINUTE, SECOND = timedelta(minutes=1), timedelta(seconds=1)
REMEMBERED = registration(last_seen(MINUTE))


def deleted_node(**changes: Any) -> Snapshot:
    """The Node was there a minute ago; its kubelet runs, and pods are swept."""
    usual: dict[str, Any] = {"node": [], "registration": REMEMBERED, "pods": Unavailable("pods", "they are swept")}
    return node(**(usual | changes))


def finding(snapshot: Snapshot) -> Finding:
    (one,) = findings_of(unregistered_node, snapshot)
    return one


def insufficient_data(snapshot: Snapshot) -> str:
    with pytest.raises(InsufficientData) as raised:
        findings_of(unregistered_node, snapshot)
    return str(raised.value)


# Gone


def test_a_deleted_node_whose_kubelet_runs_is_critical() -> None:
    one = finding(deleted_node())
    assert (one.subject, one.severity, one.since) == ("Node worker-1", Severity.CRITICAL, NOW - MINUTE)
    assert one.message == (
        "the Node worker-1 was deleted, but its kubelet is running: the Node was last seen at 2026-03-26 19:59:00Z; "
        "its pods are deleted after 40 s, and a cluster-autoscaler deletes the instance 15 minutes after it notices "
        "(at 2026-03-26 20:14:00Z or later); restart the kubelet (systemctl restart kubelet), which registers the node "
        "only when it starts, unless the Node was deleted on purpose; until then, pause the autoscaler or protect the "
        "instance"
    )


@pytest.mark.parametrize(
    ("known", "evidence"),
    [
        (registration(kubelet_name="worker-1"), "the kubelet here uses that name"),
        (registration(listed_pods=3), "the API server still lists 3 of its pods"),
    ],
)
def test_a_node_never_seen_is_identified_by_its_kubelet_or_its_pods(known: Any, evidence: str) -> None:
    one = finding(deleted_node(registration=known))
    assert f"but its kubelet is running: {evidence};" in one.message
    assert "the kubelet has not registered it since its start at 2026-02-24 20:00:00Z: check its log" in one.message


@pytest.mark.parametrize(
    "known", [registration(), registration(last_seen(name="worker-2")), registration(kubelet_name="worker-2")]
)
def test_a_node_name_without_any_evidence_is_reported_as_wrong_and_is_no_finding(known: Any) -> None:
    assert "the API server has no Node named worker-1" in insufficient_data(deleted_node(registration=known))


def test_a_kubelet_with_another_node_name_means_a_wrong_name_despite_the_last_seen_record() -> None:
    known = registration(last_seen(), kubelet_name="worker-2", listed_pods=2)
    assert "check --node (the kubelet here uses the name worker-2)" in insufficient_data(
        deleted_node(registration=known)
    )


def test_an_unreadable_last_seen_record_is_reported_where_it_matters() -> None:
    assert insufficient_data(deleted_node(registration=registration(why="node.json: not JSON"))).endswith(
        "; the last known Node cannot be read: node.json: not JSON"
    )


def test_a_node_without_a_kubelet_may_be_deleted() -> None:
    assert findings_of(unregistered_node, deleted_node(processes=[processes(kubelet=None)])) == []


@pytest.mark.parametrize(
    ("up", "seen", "reported"),
    [
        (timedelta(seconds=59), timedelta(minutes=5), False),
        (timedelta(seconds=60), timedelta(minutes=5), True),
        (timedelta(seconds=59), timedelta(seconds=30), True),
    ],
    ids=["it registers", "it did not", "it had registered"],
)
def test_a_kubelet_that_just_started_has_time_to_register(up: timedelta, seen: timedelta, reported: bool) -> None:
    snapshot = deleted_node(processes=[processes(kubelet=up)], registration=registration(last_seen(seen)))
    assert bool(findings_of(unregistered_node, snapshot)) is reported


@pytest.mark.parametrize(
    ("removal", "how"),
    [
        (Removal.DRAINED, "it was cordoned and drained before it was deleted"),
        (
            Removal.SCALE_DOWN,
            "the cluster-autoscaler marked it for removal (taint ToBeDeletedByClusterAutoscaler) before it was deleted",
        ),
    ],
)
@pytest.mark.parametrize("up", [OLD, 2 * MINUTE], ids=["the kubelet kept running", "the kubelet started since"])
def test_a_planned_removal_is_informational_and_is_not_to_be_undone(removal: Removal, how: str, up: timedelta) -> None:
    last = last_seen(5 * MINUTE, removal=removal)
    one = finding(deleted_node(registration=registration(last), processes=[processes(kubelet=up)]))
    assert (one.severity, one.since) == (Severity.INFO, NOW - 5 * MINUTE)
    assert f"the Node worker-1 was removed on purpose: {how} (the Node was last seen at" in one.message
    assert one.message.endswith("to keep it removed, stop the kubelet, which registers the node when it starts")
    assert "restart" not in one.message


def test_a_cordoned_node_that_was_not_drained_may_have_been_deleted_on_purpose() -> None:
    one = finding(deleted_node(registration=registration(last_seen(removal=Removal.CORDONED))))
    assert one.severity is Severity.WARNING
    how = "was deleted while it was cordoned, no drain was seen in the day before, and its kubelet is running"
    assert how in one.message
    assert "unless the Node was deleted on purpose" in one.message


def test_the_removal_of_another_node_is_no_evidence() -> None:
    last = last_seen(name="worker-2", removal=Removal.DRAINED)
    assert finding(deleted_node(registration=registration(last, listed_pods=1))).severity is Severity.CRITICAL


@pytest.mark.parametrize(("gone", "refuted"), [(60 * MINUTE - SECOND, False), (60 * MINUTE, True)])
def test_a_deletion_of_the_instance_is_not_announced_after_an_hour_without_it(gone: timedelta, refuted: bool) -> None:
    one = finding(deleted_node(registration=registration(last_seen(OLD, gone=gone))))
    assert one.severity is (Severity.WARNING if refuted else Severity.CRITICAL)
    assert ("a cluster-autoscaler deletes the instance" in one.message) is not refuted
    assert ("no cluster-autoscaler has deleted the instance since" in one.message) is refuted
    assert "systemctl restart kubelet" in one.message


def test_a_node_that_was_not_seen_for_long_may_have_been_deleted_just_now() -> None:
    """No agent ran meanwhile."""
    last = last_seen(OLD, gone=timedelta(0))
    assert finding(deleted_node(registration=registration(last))).severity is Severity.CRITICAL


def test_it_is_confirmed_despite_unavailable_sources() -> None:
    report = scanned(deleted_node())
    assert [one.finding.severity for one in report.findings] == [Severity.CRITICAL]
    assert [one.source for one in report.unavailable] == ["pods"]


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        (
            Autoscaler(unregistered=2, long_unregistered=1, told=NOW),
            "status of 2026-03-26 20:00:00Z: 2 nodes unregistered, 1 for so long that it deletes them (whole cluster)",
        ),
        (
            Autoscaler(long_unregistered=1),
            "; the autoscaler's status says: 1 for so long that it deletes them (whole cluster)",
        ),
        (Autoscaler(told=NOW), "status of 2026-03-26 20:00:00Z: no counts (whole cluster); "),
        (Autoscaler(why="no permission to get it"), "status is unknown: no permission to get it; "),
    ],
)
def test_the_message_contains_the_autoscaler_status(reported: Autoscaler, expected: str) -> None:
    assert expected in finding(deleted_node(autoscaler=reported)).message
    assert "status" not in finding(deleted_node(autoscaler=Unavailable("autoscaler", "timed out"))).message


# Without a provider ID

CLOUD = Autoscaler(others=3, others_with_id=2)
BARE = Autoscaler(others=3)
RECENT = 9 * MINUTE


def without_id(age: timedelta = OLD, *taints: Taint, **changes: Any) -> Snapshot:
    usual: dict[str, Any] = {"registration": registration(), "autoscaler": CLOUD}
    return node(node=[worker(*taints, age=age)], **(usual | changes))


@pytest.mark.parametrize(
    ("age", "severity"),
    [
        (3 * MINUTE - SECOND, None),
        (3 * MINUTE, Severity.WARNING),
        (8 * MINUTE - SECOND, Severity.WARNING),
        (8 * MINUTE, Severity.CRITICAL),
        (60 * MINUTE - SECOND, Severity.CRITICAL),
        (60 * MINUTE, Severity.WARNING),
    ],
)
def test_a_missing_provider_id_is_the_more_severe_the_sooner_the_instance_may_be_deleted(
    age: timedelta, severity: Severity | None
) -> None:
    assert [one.severity for one in findings_of(unregistered_node, without_id(age))] == ([severity] if severity else [])


def test_a_deletion_that_did_not_happen_is_not_announced() -> None:
    one = finding(without_id(timedelta(days=20), autoscaler=replace(CLOUD, why="there is no configmap")))
    assert one.message == (
        "the Node worker-1 has had no provider ID since it registered at 2026-03-06 20:00:00Z, and needs one: 2 of 3 "
        "other nodes have one; no cluster-autoscaler has deleted the instance since; the autoscaler's status is "
        "unknown: there is no configmap; repair the cloud-controller-manager, or set spec.providerID of the Node (it "
        "can be set only once); if the node needs none, set --provider-id=ignored"
    )


def test_the_age_is_measured_by_the_clock_of_the_api_server() -> None:
    ahead = replace(without_id(2 * MINUTE), api_skew=MINUTE)
    behind = replace(without_id(3 * MINUTE), api_skew=-MINUTE)
    assert finding(ahead).severity is Severity.WARNING
    assert findings_of(unregistered_node, behind) == []


def test_a_higher_severity_is_another_finding() -> None:
    assert finding(without_id(4 * MINUTE)).key != finding(without_id(9 * MINUTE)).key


@pytest.mark.parametrize(
    ("snapshot", "why"),
    [
        (without_id(RECENT), "2 of 3 other nodes have one"),
        (without_id(RECENT, Taint(UNINITIALIZED), autoscaler=BARE), f"it has the taint {UNINITIALIZED}"),
        (
            without_id(RECENT, registration=registration(cloud_provider="external"), autoscaler=BARE),
            "the kubelet runs with --cloud-provider=external",
        ),
        (
            without_id(
                RECENT, registration=registration(last_seen(provider_id="", earlier_id=INSTANCE)), autoscaler=BARE
            ),
            "it had one before",
        ),
        (
            without_id(RECENT, registration=registration(expected=Expected.REQUIRED), autoscaler=BARE),
            "--provider-id=required",
        ),
    ],
)
def test_the_message_explains_why_a_provider_id_is_needed(snapshot: Snapshot, why: str) -> None:
    one = finding(snapshot)
    assert f", and needs one: {why}; a cluster-autoscaler may delete the instance from about 2026" in one.message
    assert (one.subject, one.since) == ("provider ID of worker-1", NOW - RECENT)


def test_bare_metal_has_no_finding() -> None:
    assert findings_of(unregistered_node, without_id(autoscaler=BARE)) == []
    ignored = registration(expected=Expected.IGNORED)
    assert findings_of(unregistered_node, without_id(registration=ignored)) == []


def test_unavailable_data_is_never_treated_as_bare_metal() -> None:
    assert insufficient_data(without_id(autoscaler=Unavailable("autoscaler", "timed out"))) == "autoscaler: timed out"


def test_missing_permissions_are_no_finding() -> None:
    forbidden = without_id(autoscaler=NotRequested("autoscaler", "may not `list` nodes"))
    with pytest.raises(SourceDisabled, match="may not `list` nodes"):
        findings_of(unregistered_node, forbidden)
    assert scanned(forbidden).complete


def test_without_a_creation_time_the_check_has_insufficient_data() -> None:
    undated = node(node=[worker(age=None)], registration=registration(), autoscaler=CLOUD)
    assert insufficient_data(undated) == "node: it has no creationTimestamp"


# Another one than before


def changed(ago: timedelta = MINUTE, now: str = "kind://b", uid: str = "") -> Snapshot:
    last = last_seen(timedelta(0), provider_id=now, earlier_id="kind://a", changed=ago)
    one = worker(provider_id=now)
    return node(node=[replace(one, uid=uid or one.uid)], registration=registration(last))


def test_a_changed_provider_id_is_reported_for_an_hour() -> None:
    one = finding(changed())
    assert (one.subject, one.severity, one.since) == (
        "changed provider ID of worker-1",
        Severity.WARNING,
        NOW - MINUTE,
    )
    assert "has the provider ID kind://b, and had kind://a before" in one.message
    assert findings_of(unregistered_node, changed(60 * MINUTE - SECOND))
    assert findings_of(unregistered_node, changed(60 * MINUTE)) == []


def test_the_last_seen_record_of_another_node_is_no_change() -> None:
    assert findings_of(unregistered_node, changed(uid="another")) == []


# About to be removed


def test_taints_of_the_autoscaler_are_informational_with_their_time() -> None:
    tainted = worker(Taint(TO_BE_DELETED, NOW - MINUTE), Taint(DELETION_CANDIDATE), provider_id=INSTANCE)
    removed, candidate = findings_of(unregistered_node, node(node=[tainted]))
    assert {removed.severity, candidate.severity} == {Severity.INFO}
    assert (removed.since, candidate.since) == (NOW - MINUTE, None)
    assert "in a scale-down, since 2026-03-26 19:59:00Z (taint ToBeDeletedByClusterAutoscaler)" in removed.message
    assert scanned(node(node=[tainted])).problems == ()


# Silence


@pytest.mark.parametrize("source", ["node", "registration"])
def test_unavailable_data_is_never_treated_as_registered(source: str) -> None:
    assert insufficient_data(without(node(), source)) == f"{source}: it gave no word"


def test_without_the_kubelets_state_the_check_has_insufficient_data() -> None:
    assert insufficient_data(without(deleted_node(), "processes")) == "processes: it gave no word"


def test_without_the_api_server_the_check_is_disabled() -> None:
    with pytest.raises(SourceDisabled):
        findings_of(unregistered_node, without_api(node()))

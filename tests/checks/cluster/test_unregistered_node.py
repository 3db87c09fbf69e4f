"""Nodes with registration problems: deleted, without a provider ID, with another one, or about to be removed."""

from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from agent.model.finding import Severity
from agent.model.registration import (
    DELETION_CANDIDATE,
    TO_BE_DELETED,
    UNINITIALIZED,
    Autoscaler,
    Removal,
    Taint,
)
from agent.model.settings import Expected
from agent.model.snapshot import NotRequested, Snapshot, Unavailable
from tests import builders as b
from tests.builders import (
    INSTANCE,
    NOW,
    OLD,
    findings_of,
    gap_of,
    last_seen,
    node,
    processes,
    registration,
    worker,
)

DETECTOR = "unregistered_node"
finding = partial(b.the_finding, DETECTOR)
MINUTE, SECOND = timedelta(minutes=1), timedelta(seconds=1)
INFO, WARNING, CRITICAL = Severity.INFO, Severity.WARNING, Severity.CRITICAL


def deleted_node(**changes: Any) -> Snapshot:
    """The Node was there a minute ago; its kubelet runs, and pods are swept."""
    swept = Unavailable("pods", "they are swept")
    usual: dict[str, Any] = {
        "node": [],
        "registration": registration(last_seen(MINUTE)),
        "pods": swept,
    }
    return node(**(usual | changes))


def test_a_deleted_node_whose_kubelet_runs_is_critical() -> None:
    found = finding(deleted_node())
    assert (found.subject, found.severity, found.since) == ("Node worker-1", CRITICAL, NOW - MINUTE)
    assert (
        "deletes the instance 15 minutes after it notices (at 2026-03-26 20:14:00Z" in found.message
    )
    assert findings_of(DETECTOR, deleted_node(processes=[processes(kubelet=None)])) == [], (
        "it may be deleted"
    )
    # A Node that was never seen is identified by its kubelet or its pods.
    for known, evidence in (
        (registration(kubelet_name="worker-1"), "the kubelet here uses that name"),
        (registration(listed_pods=3), "the API server still lists 3 of its pods"),
    ):
        message = finding(deleted_node(registration=known)).message
        assert f"but its kubelet is running: {evidence};" in message
        assert (
            "the kubelet has not registered it since its start at 2026-02-24 20:00:00Z: check its log"
            in message
        )


def test_without_evidence_or_time_to_register_there_is_no_finding() -> None:
    unknown = "the API server has no Node named worker-1"
    other_name = registration(last_seen(), kubelet_name="worker-2", listed_pods=2)
    for known, why in (
        (registration(), unknown),
        (registration(last_seen(name="worker-2")), unknown),
        (registration(kubelet_name="worker-2"), unknown),
        (other_name, "check --node (the kubelet here uses the name worker-2)"),
        (
            registration(why="node.json: not JSON"),
            "; the last known Node cannot be read: node.json: not JSON",
        ),
    ):
        assert why in gap_of(DETECTOR, deleted_node(registration=known))
    # A kubelet that just started has time to register.
    for up, seen, reported in (
        (59, 300, False),
        (60, 300, True),
        (59, 30, True),
    ):  # the last had registered
        started, last = [processes(kubelet=up * SECOND)], registration(last_seen(seen * SECOND))
        assert (
            bool(findings_of(DETECTOR, deleted_node(processes=started, registration=last)))
            is reported
        )


def test_a_planned_removal_is_informational_and_is_not_to_be_undone() -> None:
    for removal, how in (
        (Removal.DRAINED, "it was cordoned and drained"),
        (
            Removal.SCALE_DOWN,
            f"the cluster-autoscaler marked it for removal (taint {TO_BE_DELETED})",
        ),
    ):
        for up in (OLD, 2 * MINUTE):  # the kubelet kept running, or started since
            last = registration(last_seen(5 * MINUTE, removal=removal))
            found = finding(deleted_node(registration=last, processes=[processes(kubelet=up)]))
            assert (found.severity, found.since) == (INFO, NOW - 5 * MINUTE)
            assert (
                f"was removed on purpose: {how} before it was deleted (the Node was last seen at"
                in found.message
            )
    of_another = last_seen(name="worker-2", removal=Removal.DRAINED)
    assert (
        finding(deleted_node(registration=registration(of_another, listed_pods=1))).severity
        is CRITICAL
    )
    # One that was cordoned and not drained may have been deleted on purpose.
    found = finding(deleted_node(registration=registration(last_seen(removal=Removal.CORDONED))))
    assert found.severity is WARNING


def test_a_deletion_of_the_instance_is_not_announced_after_an_hour_without_it() -> None:
    # The last was not seen for long, because no agent ran: it may have been deleted just now.
    for gone, refuted in ((60 * MINUTE - SECOND, False), (60 * MINUTE, True), (0 * MINUTE, False)):
        found = finding(deleted_node(registration=registration(last_seen(OLD, gone=gone))))
        assert found.severity is (WARNING if refuted else CRITICAL)
        assert ("a cluster-autoscaler deletes the instance" in found.message) is not refuted
        assert ("no cluster-autoscaler has deleted the instance since" in found.message) is refuted


def test_the_message_contains_the_autoscaler_status() -> None:
    of_now = "status of 2026-03-26 20:00:00Z: "
    for reported, expected in (
        (
            Autoscaler(unregistered=2, long_unregistered=1, told=NOW),
            f"{of_now}2 nodes unregistered, 1 for so long that it deletes them (whole cluster)",
        ),
        (
            Autoscaler(long_unregistered=1),
            "; the autoscaler's status says: 1 for so long that it deletes them",
        ),
        (Autoscaler(told=NOW), f"{of_now}no counts (whole cluster); "),
    ):
        assert expected in finding(deleted_node(autoscaler=reported)).message
    assert (
        "status"
        not in finding(deleted_node(autoscaler=Unavailable("autoscaler", "timed out"))).message
    )


CLOUD = Autoscaler(others=3, others_with_id=2)
BARE = Autoscaler(others=3)
RECENT = 9 * MINUTE


def without_id(age: timedelta = OLD, *taints: Taint, **changes: Any) -> Snapshot:
    usual: dict[str, Any] = {"registration": registration(), "autoscaler": CLOUD}
    return node(node=[worker(*taints, age=age)], **(usual | changes))


def test_a_missing_provider_id_is_explained_and_the_more_severe_the_sooner_the_instance_may_be_deleted() -> (
    None
):
    for age, severities in (
        (3 * MINUTE - SECOND, []),
        (3 * MINUTE, [WARNING]),
        (8 * MINUTE - SECOND, [WARNING]),
        (8 * MINUTE, [CRITICAL]),
        (60 * MINUTE - SECOND, [CRITICAL]),
        (60 * MINUTE, [WARNING]),
    ):
        found = findings_of(DETECTOR, without_id(age))
        assert [finding.severity for finding in found] == severities
        refuted = [
            "no cluster-autoscaler has deleted the instance since" in finding.message
            for finding in found
        ]
        assert refuted == [age >= 60 * MINUTE] * len(severities), (
            "a deletion that did not happen is not announced"
        )
    assert finding(without_id(4 * MINUTE)).key != finding(without_id(9 * MINUTE)).key, "it is news"
    # The age is measured by the clock of the API server.
    assert finding(replace(without_id(2 * MINUTE), api_skew=MINUTE)).severity is WARNING
    assert findings_of(DETECTOR, replace(without_id(3 * MINUTE), api_skew=-MINUTE)) == []
    # The message explains why it is needed.
    had_one = last_seen(provider_id="", earlier_id=INSTANCE)
    for snapshot, why in (
        (without_id(RECENT), "2 of 3 other nodes have one"),
        (
            without_id(RECENT, Taint(UNINITIALIZED), autoscaler=BARE),
            f"it has the taint {UNINITIALIZED}",
        ),
        *(
            (without_id(RECENT, registration=known, autoscaler=BARE), why)
            for known, why in (
                (
                    registration(cloud_provider="external"),
                    "the kubelet runs with --cloud-provider=external",
                ),
                (registration(had_one), "it had one before"),
                (registration(expected=Expected.REQUIRED), "--provider-id=required"),
            )
        ),
    ):
        late = finding(snapshot)
        assert (
            f", and needs one: {why}; a cluster-autoscaler may delete the instance from about 2026"
            in late.message
        )
        assert (late.subject, late.since) == ("provider ID of worker-1", NOW - RECENT)


def test_bare_metal_has_no_finding_and_unavailable_data_is_never_treated_as_bare_metal() -> None:
    assert findings_of(DETECTOR, without_id(autoscaler=BARE)) == []
    assert (
        findings_of(DETECTOR, without_id(registration=registration(expected=Expected.IGNORED)))
        == []
    )
    timed_out = without_id(autoscaler=Unavailable("autoscaler", "timed out"))
    assert gap_of(DETECTOR, timed_out) == "autoscaler: timed out"
    undated = node(node=[worker(age=None)], registration=registration(), autoscaler=CLOUD)
    assert gap_of(DETECTOR, undated) == "node: it has no creationTimestamp"
    forbidden = without_id(autoscaler=NotRequested("autoscaler", "may not `list` nodes"))
    found, gap = b.findings_and_gap(DETECTOR, forbidden)
    assert (found, gap.why, gap.chosen) == ([], "autoscaler: may not `list` nodes", True)
    assert b.scanned(forbidden).complete


def test_a_changed_provider_id_is_reported_for_an_hour() -> None:
    present = worker(provider_id="kind://b")
    for ago, uid, reported in (
        (MINUTE, present.uid, True),
        (60 * MINUTE - SECOND, present.uid, True),
        (60 * MINUTE, present.uid, False),
        (MINUTE, "another", False),
    ):
        last = last_seen(timedelta(0), provider_id="kind://b", earlier_id="kind://a", changed=ago)
        found = findings_of(
            DETECTOR, node(node=[replace(present, uid=uid)], registration=registration(last))
        )
        assert [(one.subject, one.severity, one.since) for one in found] == [
            ("changed provider ID of worker-1", WARNING, NOW - ago)
        ] * reported
        assert all(
            "has the provider ID kind://b, and had kind://a before" in one.message for one in found
        )


def test_taints_of_the_autoscaler_are_informational_with_their_time() -> None:
    tainted = node(
        node=[
            worker(
                Taint(TO_BE_DELETED, NOW - MINUTE), Taint(DELETION_CANDIDATE), provider_id=INSTANCE
            )
        ]
    )
    found = [(one.severity, one.since) for one in findings_of(DETECTOR, tainted)]
    assert found == [(INFO, NOW - MINUTE), (INFO, None)]
    assert b.scanned(tainted).problems == ()


def test_unavailable_data_is_never_treated_as_registered() -> None:
    for source in ("node", "registration"):
        assert gap_of(DETECTOR, b.without(node(), source)) == f"{source}: it gave no word"
    assert gap_of(DETECTOR, b.without(deleted_node(), "processes")) == "processes: it gave no word"
    found, gap = b.findings_and_gap(DETECTOR, b.without_api(node()))
    assert (found, gap.chosen) == ([], True)

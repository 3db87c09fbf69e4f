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
    assert "deletes the instance 15m after it notices (at 2026-03-26 20:14:00Z" in found.message
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


def test_the_kubelet_of_a_deleted_node_is_restarted_as_its_distribution_does() -> None:
    for version, command in (
        ("v1.20.2", "(systemctl restart kubelet)"),
        ("v1.30.4+k3s1", "(systemctl try-restart 'k3s*.service')"),
        ("v1.30.4+rke2r1", "(systemctl try-restart 'rke2-*.service')"),
    ):
        assert command in finding(replace(deleted_node(), server_version=version)).message


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
        (450 * SECOND - SECOND, [WARNING]),
        (450 * SECOND, [CRITICAL]),
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


def test_without_an_autoscaler_others_that_delete_machines_are_named() -> None:
    absent = Autoscaler(others=3, others_with_id=3, exists=False, why="there is no status")
    young = timedelta(minutes=9)
    told = finding(without_id(young, autoscaler=absent))
    assert "; Karpenter, a MachineHealthCheck or" in told.message
    assert told.headline == "this node has no provider ID: its instance may be deleted"
    unknown = replace(absent, exists=None)
    assert "; a cluster-autoscaler may" in finding(without_id(young, autoscaler=unknown)).message


def test_warnings_come_before_the_end_of_the_time_that_the_autoscaler_is_set_to() -> None:
    for provision, warning, critical in ((5, 60, 150), (15, 180, 450), (60, 720, 1800)):
        known = registration(provision_time=provision * MINUTE)
        for age, severities in (
            (warning * SECOND - SECOND, []),
            (warning * SECOND, [WARNING]),
            (critical * SECOND - SECOND, [WARNING]),
            (critical * SECOND, [CRITICAL]),
            (max(60, 4 * provision) * MINUTE - SECOND, [CRITICAL]),
            (max(60, 4 * provision) * MINUTE, [WARNING]),
        ):
            found = findings_of(DETECTOR, without_id(age, registration=known))
            assert [one.severity for one in found] == severities
    short = registration(last_seen(MINUTE), provision_time=5 * MINUTE)
    message = finding(without_id(4 * MINUTE, registration=short)).message
    assert "from about 2026-03-26 20:01:00Z on (--max-node-provision-time=5m)" in message
    gone = finding(deleted_node(registration=short)).message
    assert "5m after it notices (at 2026-03-26 20:04:00Z or later)" in gone
    # An instance that is overdue may be this one.
    overdue = replace(CLOUD, long_unregistered=1)
    assert finding(without_id(4 * MINUTE, autoscaler=overdue)).severity is CRITICAL
    assert not findings_of(DETECTOR, without_id(2 * MINUTE, autoscaler=overdue))


def test_an_autoscaler_that_was_not_read_leaves_a_gap_where_it_decides_the_severity() -> None:
    required = registration(expected=Expected.REQUIRED)
    unread = Unavailable("autoscaler", "timed out")
    node_without_id = without_id(4 * MINUTE, autoscaler=unread, registration=required)
    (found,), gap = b.findings_and_gap(DETECTOR, node_without_id)
    assert found.severity is WARNING
    unknown = "autoscaler: it is unknown whether the autoscaler is about to delete the instance"
    assert gap.why.startswith(unknown)
    critical = without_id(8 * MINUTE, autoscaler=unread, registration=required)
    assert DETECTOR not in {one.detector for one in b.scanned(critical).gaps}


K3S, RKE2, CLOUD_ID = "k3s://worker-1", "rke2://worker-1", "hcloud://12345"
NO_STATUS = Autoscaler(others=3, others_with_id=3, why="no permission")
MISSED = Autoscaler(
    others=3, others_with_id=3, exists=True, unregistered=1, long_unregistered=0, told=NOW
)


def with_id(provider_id: str, age: timedelta = RECENT, **changes: Any) -> Snapshot:
    present = worker(age=age, provider_id=provider_id)
    last = last_seen(timedelta(0), provider_id=provider_id)
    usual: dict[str, Any] = {"node": [present], "registration": registration(last)}
    return node(**(usual | changes))


def test_an_id_that_the_autoscaler_cannot_know_is_reported_while_the_node_is_young() -> None:
    for provider_id, status, severity, words in (
        (K3S, replace(MISSED, schemes=("k3s",)), WARNING, "which k3s sets itself"),
        (RKE2, replace(MISSED, schemes=("rke2",)), WARNING, "which RKE2 sets itself"),
        (RKE2, replace(MISSED, unregistered=None), WARNING, "which RKE2 sets itself"),
        (K3S, replace(NO_STATUS, schemes=("k3s",), marked=1), WARNING, "an autoscaler of a cloud"),
        (K3S, replace(NO_STATUS, schemes=("hcloud", "k3s")), WARNING, "an autoscaler of a cloud"),
        (K3S, replace(NO_STATUS, schemes=("k3s",)), INFO, "status is unknown: no permission"),
        (
            "openstack://region-1/1",
            replace(NO_STATUS, schemes=("aws",)),
            WARNING,
            "those of 3 other nodes begin with aws:",
        ),
        (
            "openstack://region-1/1",
            replace(MISSED, schemes=("openstack",)),
            WARNING,
            "autoscalers of OpenStack expect openstack:///ID",
        ),
        (
            CLOUD_ID,
            replace(NO_STATUS, schemes=("aws",), exists=False),
            INFO,
            "those of 3 other nodes begin with aws:",
        ),
    ):
        found = finding(with_id(provider_id, autoscaler=status))
        assert (found.severity, found.since) == (severity, NOW - RECENT)
        assert found.subject == "form of the provider ID of worker-1"
        assert f"has the provider ID {provider_id}, " in found.message
        assert words in found.message
        assert "from about 2026-03-26 20:06:00Z on (--max-node-provision-time=15m)" in found.message
        for age in (3 * MINUTE - SECOND, 60 * MINUTE):
            assert findings_of(DETECTOR, with_id(provider_id, age, autoscaler=status)) == []
    # An overdue instance is older than the time that it had, and so is the Node, if they are one.
    overdue = replace(MISSED, schemes=("hcloud",), unregistered=0, long_unregistered=1)
    for age, severities in ((15 * MINUTE - SECOND, []), (15 * MINUTE, [INFO])):
        doubts = findings_of(DETECTOR, with_id(CLOUD_ID, age, autoscaler=overdue))
        assert [one.severity for one in doubts] == severities


def test_an_id_is_not_doubted_where_the_autoscaler_knows_it_or_there_is_none() -> None:
    none_missed = replace(MISSED, unregistered=0)
    embedded = replace(NO_STATUS, schemes=("k3s",))
    for why, snapshot in {
        "no autoscaler": with_id(K3S, autoscaler=replace(embedded, exists=False)),
        "it misses no Node": with_id(K3S, autoscaler=none_missed),
        "it misses none, as older versions say": with_id(
            K3S, 16 * MINUTE, autoscaler=replace(none_missed, unregistered=None)
        ),
        "a machine of Rancher": with_id(
            RKE2,
            node=[replace(worker(age=RECENT, provider_id=RKE2), has_machine=True)],
            autoscaler=MISSED,
        ),
        "another machine boots": with_id(CLOUD_ID, autoscaler=replace(MISSED, schemes=("hcloud",))),
        "an ID of OpenStack": with_id(
            "openstack:///1", autoscaler=replace(MISSED, schemes=("openstack",))
        ),
        "a machine beside the cloud": with_id(
            "hrobot://7", autoscaler=replace(MISSED, schemes=("hcloud",))
        ),
        "machines beside the cloud": with_id(
            CLOUD_ID, autoscaler=replace(MISSED, schemes=("hcloud", "hrobot"))
        ),
        "the others have the wrong one": with_id(CLOUD_ID, autoscaler=embedded),
        "no majority": with_id(
            CLOUD_ID, autoscaler=replace(NO_STATUS, others_with_id=1, schemes=("aws",))
        ),
        "the others do not agree": with_id(
            CLOUD_ID, autoscaler=replace(NO_STATUS, schemes=("aws", "gce"))
        ),
        "an ID without a scheme": with_id(
            "ocid1.instance.oc1", autoscaler=replace(NO_STATUS, schemes=("oci",))
        ),
        "ignored": with_id(
            K3S, registration=registration(expected=Expected.IGNORED), autoscaler=MISSED
        ),
        "not asked": with_id(CLOUD_ID),
    }.items():
        report = b.scanned(snapshot)
        assert findings_of(DETECTOR, snapshot) == [], why
        assert DETECTOR not in {gap.detector for gap in report.gaps}, why
    # A status from before the registration says nothing of this node.
    stale = replace(none_missed, told=NOW - 10 * MINUTE)
    assert finding(with_id(K3S, autoscaler=stale)).severity is WARNING
    # Nobody asked, as in recordings of earlier releases.
    unasked, gap = b.findings_and_gap(DETECTOR, with_id(K3S))
    assert [one.severity for one in unasked] == [INFO]
    assert not gap.chosen
    assert f"it is unknown whether a cluster-autoscaler knows {K3S}" in gap.why
    failed = with_id(CLOUD_ID, autoscaler=Unavailable("autoscaler", "timed out"))
    assert gap_of(DETECTOR, failed) == "autoscaler: timed out"


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

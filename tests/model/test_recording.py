"""Recordings: what is written is read back, what is damaged says where, and names can be taken out."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from agent.checks import engine
from agent.exporters.json.scan import scan_document
from agent.exporters.text.scan import scan_table
from agent.model.anonymize import anonymous
from agent.model.codec import Damaged
from agent.model.devices import TransitionKind
from agent.model.finding import Severity
from agent.model.recording import Recording, dumps, loads
from agent.model.registration import TO_BE_DELETED, UNINITIALIZED, Autoscaler, Expected, Removal, Taint
from agent.model.report import Report
from agent.model.snapshot import Address, Node, NodeDevices, NotRequested, Snapshot, Unavailable
from agent.model.watches import Evidence
from tests.builders import (
    CIDR,
    GONE,
    GRACE,
    INSTANCE,
    KVM,
    KVM_SOCKET,
    NOW,
    WORKER,
    WORKER_UID,
    allocation,
    cni_result,
    dark_node,
    device_plugins,
    last_seen,
    node,
    plugin_socket,
    pod,
    refused_pod,
    registered,
    registration,
    reservation,
    sandbox,
    shown,
    the_node,
    transition,
    unrecognized,
    without_api,
    worker,
)

LOST = reservation("10.244.1.9")
RACE = node(
    refused_pod("vms/vm-1", controller="VirtualMachineInstance/vm"),
    node=[replace(WORKER, devices=(NodeDevices(KVM, 3, 0),))],
    device_plugins=device_plugins(
        plugin_socket(connected=None),
        registered(KVM, "kvm0"),
        allocation("vms/vm-1", KVM, "kvm0", container="compute"),
        transition(TransitionKind.SOCKET_APPEARED, socket=KVM_SOCKET, exact=False),
    ),
)

UNKNOWN = node(
    node=[worker(Taint(TO_BE_DELETED, NOW), Taint(UNINITIALIZED), age=timedelta(minutes=9))],
    registration=registration(
        last_seen(provider_id="", earlier_id=INSTANCE, changed=timedelta(hours=1), removal=Removal.SCALE_DOWN),
        expected=Expected.REQUIRED,
        kubelet_name="worker-1",
        cloud_provider="external",
    ),
    autoscaler=Autoscaler(2, 1, 3, 4, NOW, f"nodes is forbidden: it is worker-1, {INSTANCE}"),
)


def recording(*snapshots: Snapshot) -> Recording:
    return Recording(grace=GRACE, confirm_after=timedelta(0), snapshots=snapshots)


def replayed(text: str) -> Report:
    exported = loads(text)
    return engine.replay(exported.snapshots, grace=exported.grace, confirm_after=exported.confirm_after)


@pytest.mark.parametrize(
    "snapshot",
    [
        node(),
        dark_node(),
        without_api(node(LOST)),
        node(LOST, unrecognized("notes"), unread_networks=["storage"]),
        node(node=[Node("worker-1", (CIDR, "fd00::/64"), None)], cni_results=[cni_result(GONE, "", "fd00::/64")]),
        replace(RACE, api_skew=timedelta(seconds=-1.5)),
        UNKNOWN,
        replace(node(watches=[shown(), shown(Evidence.RV_RESET, "node")]), server_version="v1.9.2"),
    ],
    ids=["healthy", "dark", "api off", "several networks", "dual stack", "refused", "unregistered", "replayed"],
)
def test_a_recording_read_back_equals_what_was_written(snapshot: Snapshot) -> None:
    written = recording(snapshot, snapshot)
    assert loads(dumps(written)) == written


def test_a_recording_replays_to_the_same_verdicts() -> None:
    snapshots = (node(LOST), node(LOST, later=timedelta(seconds=1)))
    assert replayed(dumps(recording(*snapshots))) == engine.replay(snapshots, grace=GRACE, confirm_after=timedelta(0))


def test_an_unknown_field_is_ignored() -> None:
    assert loads(changed(lambda tree: tree | {"weather": "fine"})) == recording(node(LOST))


def changed(change: Callable[[dict[str, Any]], Any]) -> str:
    return json.dumps(change(json.loads(dumps(recording(node(LOST))))))


def put(*path: str | int, value: Any) -> Callable[[dict[str, Any]], Any]:
    def change(tree: dict[str, Any]) -> Any:
        place: Any = tree
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value
        return tree

    return change


def lose(*path: str | int) -> Callable[[dict[str, Any]], Any]:
    def change(tree: dict[str, Any]) -> Any:
        place: Any = tree
        for step in path[:-1]:
            place = place[step]
        del place[path[-1]]
        return tree

    return change


FILE = ("snapshots", 0, "reservations", 0, "reading", "known", 2)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "no schema: 'nodeleak record' writes recordings"),
        ("null", "no schema"),
        ('"text"', "no schema"),
        ("{}", "no schema"),
        ('{"schema": "nodeleak.scan/v1"}', "schema nodeleak.scan/v1: this version of nodeleak reads"),
        ('{"schema": "nodeleak.recording/v2"}', "schema nodeleak.recording/v2: this version of nodeleak reads"),
        (changed(lose("grace")), "recording.grace: missing"),
        (changed(put("snapshots", value=[])), "recording.snapshots: no snapshot"),
        (changed(put("snapshots", value={})), "recording.snapshots: expected a list, found {}"),
        (changed(put("snapshots", 0, value=7)), "recording.snapshots[0]: expected an object, found 7"),
        (changed(put("grace", value="5m")), 'recording.grace: expected timedelta, found "5m"'),
        (changed(put("grace", value=True)), "recording.grace: expected timedelta, found true"),
        (changed(put("grace", value=1e300)), "recording.grace: expected timedelta"),
        (changed(put("grace", value=float("nan"))), "recording.grace: expected timedelta"),
        (changed(lose(*FILE, "ip")), "recording.snapshots[0].reservations[0].reading[2].ip: missing"),
        (changed(put(*FILE, "inode", value="7")), 'reading[2].inode: expected int, found "7"'),
        (changed(put(*FILE, "inode", value=True)), "reading[2].inode: expected int, found true"),
        (changed(put("snapshots", 0, "taken_at", value="yesterday")), 'taken_at: expected datetime, found "yesterday"'),
        (changed(put("snapshots", 0, "taken_at", value="2026-03-26T20:00:00")), "taken_at: expected datetime"),
        (changed(put("snapshots", 0, "taken_at", value="0001-01-01T00:00:00+14:00")), "taken_at: expected datetime"),
        (
            changed(put(*FILE, "ip", value="::ffff:1.2.3.4")),
            'reading[2].ip: "::ffff:1.2.3.4" is not an address in canonical form',
        ),
        (changed(put(*FILE, "ip", value="fe80::1%eth0")), "is not an address in canonical form"),
        (changed(put("snapshots", 0, "taken_at", value=5)), "taken_at: expected datetime, found 5"),
        (
            changed(put("snapshots", 0, "pods", value=[])),
            "pods: expected known, unavailable or not_requested, found []",
        ),
        (changed(put("snapshots", 0, "pods", value={"known": 1})), "pods: expected a list, found 1"),
        (changed(put("snapshots", 0, "pods", "known", 0, "ips", value="10.0.0.1")), "pods[0].ips: expected a list"),
        (
            changed(put("snapshots", 0, "cni_results", "known", 0, "ranges", 0, 0, "first", value="banana")),
            "cni_results[0].ranges[0][0].first: 'banana' does not appear to be",
        ),
    ],
)
def test_a_damaged_recording_is_reported_with_the_position(text: str, complaint: str) -> None:
    with pytest.raises(Damaged) as raised:
        loads(text)
    assert complaint in str(raised.value)


def test_a_long_value_is_truncated_in_the_error() -> None:
    with pytest.raises(Damaged) as raised:
        loads(changed(put("snapshots", 0, "pods", value="x" * 5000)))
    assert len(str(raised.value)) < 200


# Names


NAMES = (
    "worker-berlin-7", "secretshop", "checkout-6d4f", "ledger-0", "payments-77", "billingd", "postgres-main",
    "uid-of-checkout", "uid-of-ledger", "11111111-2222-3333-4444-555555555555", "confidential-notes",
)  # fmt: skip


def telltale() -> str:
    """Record a node with every name that a recording can hold, and every finding."""
    snapshot = node(
        LOST,
        reservation("10.244.1.10", "8" * 64),
        unrecognized("confidential-notes", why="'secretshop' is not a container id"),
        unrecognized("10.244.1.11", blocks=True),
        cni_result(GONE, "secretshop/payments-77", CIDR),
        Address("10.244.1.10", 4711, "billingd"),
        Address("10.244.1.12", 4712, "postgres-main/1"),
        sandbox("4" * 64, "secretshop/checkout-6d4f"),
        sandbox("5" * 64, "secretshop/ledger-0"),
        pod("secretshop/checkout-6d4f", "10.244.1.20", uid="uid-of-checkout"),
        pod("secretshop/ledger-0", "10.244.1.20", uid="uid-of-ledger"),
        node=[Node("worker-berlin-7", (CIDR,), 250)],
    )
    named = replace(snapshot, node_name="worker-berlin-7")
    unavailable = Unavailable("processes", "no process of worker-berlin-7 has a comm like billingd in secretshop")
    return dumps(recording(named, replace(named, processes=unavailable)))


def verdicts(report: Report) -> Any:
    return (
        [(one.name if one.blocks else "", one.state, bool(one.pod)) for one in report.assessment.reservations],
        [(one.finding.detector, one.confirmed, one.finding.cause, one.since) for one in report.findings],
        [(one.name, one.usable, one.reserved, one.free, one.states) for one in report.networks],
        [(gap.detector, gap.broken) for gap in report.gaps],
    )


def test_an_anonymous_recording_contains_no_name() -> None:
    plain = telltale()
    text = anonymous(plain, "salt")
    report = replayed(text)
    exported = "\n".join((text, json.dumps(scan_document(report)), scan_table(report)))
    assert [name for name in NAMES if name not in plain] == [], "the node of this test has them all"
    assert [name for name in NAMES if name in exported] == []


def test_an_anonymous_recording_has_the_same_states() -> None:
    plain = telltale()
    before = replayed(plain)
    assert {one.finding.detector for one in before.findings} >= {"leaked_reservation", "shared_ip", "unmanaged_address"}
    assert verdicts(replayed(anonymous(plain, "salt"))) == verdicts(before)


def test_equal_names_stay_equal_and_another_salt_changes_them() -> None:
    plain = dumps(recording(node()))
    (snapshot,) = loads(anonymous(plain, "salt")).snapshots
    assert {one.pod for one in snapshot.containers.known() if one.sandbox} == {
        one.name for one in snapshot.pods.known()
    }
    assert snapshot.node_name == the_node(snapshot).name
    assert anonymous(plain, "salt") == anonymous(plain, "salt")
    assert anonymous(plain, "salt") != anonymous(plain, "pepper")


def test_a_node_name_that_is_an_address_is_replaced() -> None:
    named = replace(node(node=[Node("10.12.97.31", (CIDR,), 110)]), node_name="10.12.97.31")
    assert "10.12.97.31" not in anonymous(dumps(recording(named)), "salt")


def test_addresses_and_ids_needed_for_a_diagnosis_are_kept() -> None:
    (snapshot,) = loads(anonymous(dumps(recording(node(LOST))), "salt")).snapshots
    assert snapshot.reservations == node(LOST).reservations
    assert snapshot.taken_at == NOW


# Device plugins


def test_an_older_recording_without_device_plugins_is_read() -> None:
    tree = json.loads(dumps(recording(RACE)))
    del tree["snapshots"][0]["device_plugins"], tree["snapshots"][0]["api_skew"]
    for one in tree["snapshots"][0]["pods"]["known"]:
        del one["rejection"], one["wants"], one["controller"]
    (snapshot,) = loads(json.dumps(tree)).snapshots
    assert isinstance(snapshot.device_plugins, NotRequested)
    assert [one.rejection for one in snapshot.pods.known()] == [None] * 4


def test_an_older_recording_without_watches_is_read() -> None:
    tree = json.loads(dumps(recording(node())))
    del tree["snapshots"][0]["watches"], tree["snapshots"][0]["server_version"]
    (snapshot,) = loads(json.dumps(tree)).snapshots
    assert snapshot.watches == NotRequested("watches", "the snapshot was taken by a version that did not read it")
    assert snapshot.server_version == ""


def test_an_unknown_enum_value_is_reported_with_its_position() -> None:
    tree = json.loads(dumps(recording(RACE)))
    tree["snapshots"][0]["device_plugins"]["known"]["history"][0]["what"] = "exploded"
    with pytest.raises(Damaged, match=r'history\[0\]\.what: expected TransitionKind, found "exploded"'):
        loads(json.dumps(tree))


def test_an_anonymous_recording_keeps_resources_and_sockets() -> None:
    text = anonymous(dumps(recording(RACE)), "salt")
    assert not [name for name in ("vms", "vm-1", "compute") if f'"{name}' in text or f"/{name}" in text]
    (snapshot,) = loads(text).snapshots
    devices = snapshot.device_plugins.known()
    (refused,) = (one for one in snapshot.pods.known() if one.rejection)
    assert devices.sockets[0].name == devices.history[0].socket == KVM_SOCKET
    assert (refused.wants, refused.controller.split("/")[0]) == ((KVM,), "VirtualMachineInstance")
    assert refused.controller != "VirtualMachineInstance/vm"
    assert devices.allocations[0].pod_uid == refused.uid


def test_an_anonymous_recording_has_no_instance_id_but_its_comparison_stays() -> None:
    text = dumps(recording(UNKNOWN, UNKNOWN))
    hidden = anonymous(text, "salt")
    for name in ("worker-1", INSTANCE, "i-0123456789abcdef0", WORKER_UID):
        assert name in text
        assert name not in hidden
    (found,) = [one.finding for one in replayed(hidden).findings if one.finding.severity is Severity.CRITICAL]
    assert "--provider-id=required" in found.message
    known = loads(hidden).snapshots[0].registration.known()
    assert known.cloud_provider == "external"
    assert known.kubelet_name == loads(hidden).snapshots[0].node_name


def test_an_older_recording_without_registration_is_unavailable() -> None:
    tree = json.loads(dumps(recording(node(LOST))))
    (snapshot,) = tree["snapshots"]
    for source in ("registration", "autoscaler"):
        del snapshot[source]
    for field in ("uid", "created", "provider_id", "taints"):
        del snapshot["node"]["known"][field]
    (old,) = loads(json.dumps(tree)).snapshots
    for reading in (old.registration, old.autoscaler):
        assert isinstance(reading, NotRequested)
        assert reading.why == "the snapshot was taken by a version that did not read it"
    assert replayed(json.dumps(tree)).complete

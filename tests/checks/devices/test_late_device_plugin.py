"""A device plugin that has not registered again."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from agent.checks.devices import late_device_plugin
from agent.model.devices import TransitionKind
from agent.model.finding import Finding
from agent.model.snapshot import InsufficientData, NodeDevices, NotRequested, Snapshot, SourceDisabled
from tests.builders import (
    KVM,
    KVM_SOCKET,
    NOW,
    WORKER,
    assessment,
    device_plugins,
    findings_of,
    node,
    plugin_socket,
    pod,
    refused_pod,
    registered,
    transition,
    unavailable,
    without,
    without_api,
)


def seconds(n: float) -> timedelta:
    return timedelta(seconds=n)


def snapshot_of(*records: Any, kubelet: float, written: float = 9000, **others: Any) -> Snapshot:
    """A node whose kubelet started so many seconds ago, and wrote its checkpoint so many seconds ago."""
    devices = device_plugins(*records, kubelet_socket=seconds(kubelet), checkpoint_written=seconds(written))
    return node(device_plugins=devices, **others)


def only_finding(snapshot: Snapshot) -> Finding:
    (one,) = findings_of(late_device_plugin, snapshot)
    return one


def test_a_plugin_has_a_minute_to_register_after_a_kubelet_restart() -> None:
    assert findings_of(late_device_plugin, snapshot_of(registered(KVM, "d0"), kubelet=59)) == []
    one = only_finding(snapshot_of(registered(KVM, "d0"), kubelet=61))
    assert (one.subject, one.resource, one.since) == (KVM, KVM, NOW - seconds(61))
    assert "the kubelet started 1m1s ago" in one.message
    assert "stops offering it after 5 minutes" in one.message


def test_a_plugin_that_registered_again_is_not_late() -> None:
    snapshot = snapshot_of(plugin_socket(ago=seconds(890)), registered(KVM, "d0"), kubelet=900, written=889)
    assert findings_of(late_device_plugin, snapshot) == []


def test_after_five_minutes_the_node_shows_that_the_kubelet_dropped_the_resource() -> None:
    node_objects = [replace(WORKER, devices=(NodeDevices(KVM, 0, 0),))]
    requesting = [refused_pod("lab/vm")]
    one = only_finding(
        snapshot_of(registered("nvidia.com/gpu", "g0"), kubelet=400, written=90, node=node_objects, pods=requesting)
    )
    assert one.subject == KVM
    assert "the kubelet no longer offers it, and the node's status has capacity 0, allocatable 0" in one.message


def test_without_the_api_server_files_are_enough() -> None:
    snapshot = without_api(snapshot_of(registered(KVM, "d0"), kubelet=400))
    assert only_finding(snapshot).message.endswith("the kubelet no longer offers it")


def test_an_unavailable_node_object_leaves_a_gap_after_the_findings_from_files() -> None:
    findings = late_device_plugin.find(assessment(without(snapshot_of(registered(KVM, "d0"), kubelet=400), "node")))
    assert next(findings).subject == KVM
    with pytest.raises(InsufficientData):
        next(findings)


def test_a_plugin_of_earlier_snapshots_is_late_even_if_the_checkpoint_is_gone() -> None:
    history = (
        transition(TransitionKind.KUBELET_STARTED, ago=seconds(9000)),
        transition(TransitionKind.REGISTERED, KVM),
    )
    devices = device_plugins(*history, kubelet_socket=seconds(100))
    assert only_finding(node(device_plugins=devices)).subject == KVM


def test_a_finding_does_not_end_when_the_kubelet_drops_the_resource() -> None:
    history = (
        transition(TransitionKind.REGISTERED, KVM, ago=seconds(900)),
        transition(TransitionKind.KUBELET_STARTED, ago=seconds(305)),
        transition(TransitionKind.DROPPED, KVM, ago=seconds(3)),
    )
    one = only_finding(snapshot_of(*history, kubelet=305, written=3))
    assert (one.subject, one.since) == (KVM, NOW - seconds(305))


def test_a_resource_dropped_before_the_kubelet_started_is_not_late() -> None:
    """Somebody took the plugin away; the node's status keeps the key for ever."""
    history = (transition(TransitionKind.KUBELET_STARTED, ago=seconds(9000)), transition(TransitionKind.DROPPED, KVM))
    node_objects = [replace(WORKER, devices=(NodeDevices(KVM, 0, 0),))]
    devices = device_plugins(*history, kubelet_socket=seconds(100))
    assert findings_of(late_device_plugin, node(device_plugins=devices, node=node_objects)) == []


def test_unhealthy_devices_are_not_a_late_plugin() -> None:
    """Their plugin is connected, or the kubelet would have dropped it."""
    connected = snapshot_of(plugin_socket(ago=seconds(200)), registered(KVM), kubelet=210, written=199)
    assert findings_of(late_device_plugin, connected) == []
    untold = plugin_socket(ago=seconds(800), connected=None)
    assert findings_of(late_device_plugin, snapshot_of(untold, registered(KVM), kubelet=900, written=799)) == []
    assert only_finding(snapshot_of(untold, registered(KVM), kubelet=100, written=50)).subject == KVM


@pytest.mark.parametrize(
    ("connected", "words"), [(False, "the kubelet is not connected to its plugin's socket"), (None, "exists;")]
)
def test_the_message_describes_the_socket(connected: bool | None, words: str) -> None:
    snapshot = snapshot_of(plugin_socket(ago=seconds(90), connected=connected), registered(KVM, "d0"), kubelet=100)
    assert words in only_finding(snapshot).message


def test_a_missing_socket_is_reported() -> None:
    history = (
        transition(TransitionKind.SOCKET_APPEARED, socket=KVM_SOCKET),
        transition(TransitionKind.REGISTERED, KVM),
    )
    assert (
        f"its plugin's socket {KVM_SOCKET} is gone"
        in only_finding(snapshot_of(*history, registered(KVM, "d0"), kubelet=100)).message
    )


def test_a_plugin_lost_later_has_a_minute_too() -> None:
    def lost(ago: float) -> Snapshot:
        history = (
            transition(TransitionKind.KUBELET_STARTED, ago=seconds(9000)),
            transition(TransitionKind.REGISTERED, KVM, ago=seconds(8990)),
            transition(TransitionKind.LOST, KVM, ago=seconds(ago)),
        )
        dead = plugin_socket(ago=seconds(8991), connected=False)
        return snapshot_of(*history, dead, registered(KVM, "d0"), kubelet=9000, written=8990)

    assert findings_of(late_device_plugin, lost(59)) == []
    assert "and lost it at" in only_finding(lost(61)).message


# Replaced by another name of the same plugin

GPU, SHARED, LAB = "nvidia.com/gpu", "nvidia.com/gpu.shared", "lab.io/gpu"
MIG_1, MIG_2 = "nvidia.com/mig-1g.5gb", "nvidia.com/mig-2g.10gb"
STARTED, APPEARED = TransitionKind.KUBELET_STARTED, TransitionKind.SOCKET_APPEARED
REGISTERED, LOST, DROPPED = TransitionKind.REGISTERED, TransitionKind.LOST, TransitionKind.DROPPED
BEFORE = (transition(STARTED, ago=seconds(9000)), transition(REGISTERED, GPU, ago=seconds(8990)))
GONE = (transition(LOST, GPU, ago=seconds(4000)), transition(DROPPED, GPU, ago=seconds(3700)))


def renamed(*records: Any, successor: str = SHARED, **others: Any) -> Snapshot:
    """A node on which the plugin of a GPU was started with another configuration 4000 s ago."""
    usual: dict[str, Any] = {"node": [replace(WORKER, devices=(NodeDevices(GPU, 0, 0),))]}
    records = records or (*BEFORE, transition(REGISTERED, SHARED, ago=seconds(4000)), *GONE)
    return snapshot_of(*records, registered(successor, "g0"), kubelet=9000, written=3700, **(usual | others))


def test_a_resource_that_its_plugin_offers_under_another_name_is_not_late() -> None:
    assert findings_of(late_device_plugin, renamed()) == []
    assert findings_of(late_device_plugin, without_api(renamed())) == [], "the files are enough"


@pytest.mark.parametrize(
    "pods",
    [
        [refused_pod("shop/rejected", GPU)],
        [replace(pod("shop/running"), wants=(GPU,))],
        [replace(pod("shop/waiting", phase="Pending"), wants=(GPU,))],
    ],
    ids=["rejected", "running", "waiting"],
)
def test_a_replaced_resource_is_late_while_a_pod_requests_it(pods: Any) -> None:
    assert only_finding(renamed(pods=pods)).subject == GPU
    over = [replace(pod("shop/over", phase="Succeeded"), wants=(GPU,))]
    assert findings_of(late_device_plugin, renamed(pods=over)) == []


def test_a_replaced_resource_is_late_while_the_node_has_capacity_of_it() -> None:
    listed = [replace(WORKER, devices=(NodeDevices(GPU, 1, 0),))]
    assert only_finding(renamed(node=listed)).subject == GPU


@pytest.mark.parametrize("source", ["pods", "node"])
def test_whether_a_replaced_resource_is_requested_may_be_unknown(source: str) -> None:
    findings = late_device_plugin.find(assessment(without(renamed(), source)))
    with pytest.raises(InsufficientData, match=source):
        next(findings)


def test_whether_a_resource_that_only_the_node_names_is_requested_may_be_unknown() -> None:
    named = [replace(WORKER, devices=(NodeDevices(GPU, 0, 0),))]
    snapshot = snapshot_of(BEFORE[0], kubelet=9000, written=9000, node=named)
    assert findings_of(late_device_plugin, snapshot) == []
    with pytest.raises(InsufficientData, match="pods"):
        findings_of(late_device_plugin, without(snapshot, "pods"))


@pytest.mark.parametrize(
    "history",
    [
        (*BEFORE, transition(REGISTERED, SHARED, ago=seconds(8989)), *GONE),
        (
            *BEFORE,
            transition(REGISTERED, SHARED, ago=seconds(8989)),
            transition(LOST, SHARED, ago=seconds(4000)),
            transition(REGISTERED, SHARED, ago=seconds(3999)),
            *GONE,
        ),
        (
            *BEFORE,
            transition(REGISTERED, SHARED, ago=seconds(200)),
            transition(LOST, GPU, ago=seconds(200)),
            registered(GPU),
        ),
    ],
    ids=["registered before", "came back", "not dropped yet"],
)
def test_a_lost_resource_without_a_successor_is_late(history: Any) -> None:
    assert GPU in [one.subject for one in findings_of(late_device_plugin, renamed(*history))]


def test_a_resource_of_another_vendor_is_no_successor() -> None:
    history = (*BEFORE, transition(REGISTERED, "amd.com/gpu", ago=seconds(4000)), *GONE)
    assert only_finding(renamed(*history, successor="amd.com/gpu")).subject == GPU


def test_a_plugin_that_is_one_of_several_of_a_vendor_is_late_after_a_kubelet_restart() -> None:
    """KubeVirt has a plugin for each device: that the others are back shows nothing."""
    tun = "devices.kubevirt.io/tun"
    history = (
        transition(STARTED, ago=seconds(9000)),
        transition(REGISTERED, KVM, ago=seconds(8990)),
        transition(REGISTERED, tun, ago=seconds(8990)),
        transition(STARTED, ago=seconds(800)),
        transition(REGISTERED, tun, ago=seconds(790)),
        transition(DROPPED, KVM, ago=seconds(490)),
    )
    snapshot = snapshot_of(*history, registered(tun, "t0"), kubelet=800, written=490)
    assert only_finding(snapshot).subject == KVM


TUN, VSOCK = "devices.kubevirt.io/tun", "devices.kubevirt.io/vhost-vsock"


@pytest.mark.parametrize(
    "history",
    [
        (transition(STARTED, ago=seconds(8000)), transition(REGISTERED, TUN, ago=seconds(7990))),
        (
            transition(LOST, KVM, ago=seconds(8000)),
            transition(LOST, TUN, ago=seconds(7999)),
            transition(REGISTERED, TUN, ago=seconds(7990)),
        ),
        (transition(LOST, KVM, ago=seconds(8000)),),
    ],
    ids=["after a reboot", "after a restart of the plugins", "the other one stayed"],
)
def test_what_another_plugin_of_the_vendor_adds_is_no_successor(history: Any) -> None:
    """The plugins of KubeVirt are upgraded: one returns, one is new, one stays away."""
    before = (
        transition(STARTED, ago=seconds(9000)),
        transition(REGISTERED, KVM, ago=seconds(8990)),
        transition(REGISTERED, TUN, ago=seconds(8990)),
    )
    after = (transition(REGISTERED, VSOCK, ago=seconds(7990)), transition(DROPPED, KVM, ago=seconds(7690)))
    now = (registered(TUN, "t0"), registered(VSOCK, "v0"))
    gone = [replace(WORKER, devices=(NodeDevices(KVM, 0, 0),))]
    kubelet = 8000 if history[0].what is STARTED else 9000
    snapshot = snapshot_of(*before, *history, *after, *now, kubelet=kubelet, written=7690, node=gone)
    assert only_finding(snapshot).subject == KVM


@pytest.mark.parametrize(
    ("before", "after"),
    [((GPU,), (SHARED,)), ((GPU,), (MIG_1, MIG_2)), ((MIG_1, MIG_2), (GPU,))],
    ids=["time slicing", "MIG on", "MIG off"],
)
@pytest.mark.parametrize("reboot", [False, True])
def test_all_names_of_a_plugin_may_change_at_once(
    before: tuple[str, ...], after: tuple[str, ...], reboot: bool
) -> None:
    restarted = [transition(STARTED, ago=seconds(4010))] if reboot else []
    history = (
        BEFORE[0],
        *(transition(REGISTERED, one, ago=seconds(8990)) for one in before),
        *restarted,
        *(transition(LOST, one, ago=seconds(4005 - place)) for place, one in enumerate(before) if not reboot),
        *(transition(REGISTERED, one, ago=seconds(4000)) for one in after),
        *(transition(DROPPED, one, ago=seconds(3700)) for one in before),
    )
    gone = [replace(WORKER, devices=tuple(NodeDevices(one, 0, 0) for one in before))]
    kubelet = 4010 if reboot else 9000
    now = snapshot_of(*history, *(registered(one, "g0") for one in after), kubelet=kubelet, written=3700, node=gone)
    assert findings_of(late_device_plugin, now) == []


def test_a_successor_after_a_reboot_is_found_too() -> None:
    """A change of MIG may need one."""
    restarted = transition(STARTED, ago=seconds(4010))
    history = (*BEFORE, restarted, transition(REGISTERED, SHARED, ago=seconds(4000)), GONE[1])
    assert findings_of(late_device_plugin, renamed(*history)) == []


def test_a_finding_has_the_same_identity_in_each_snapshot() -> None:
    def after(n: float) -> Snapshot:
        devices = device_plugins(registered(KVM, "d0"), kubelet_socket=seconds(100))
        return node(device_plugins=devices, later=seconds(n))

    assert {only_finding(after(n)).key for n in (0, 15, 300)} == {(late_device_plugin.NAME, KVM)}


def test_without_a_kubelet_start_since_boot_no_plugin_is_late() -> None:
    snapshot = replace(snapshot_of(registered(KVM, "d0"), kubelet=900), uptime=seconds(300))
    assert findings_of(late_device_plugin, snapshot) == []


def test_unavailable_plugins_are_insufficient_data_and_disabled_plugins_disable_it() -> None:
    with pytest.raises(InsufficientData):
        findings_of(late_device_plugin, node(device_plugins=unavailable("device_plugins")))
    with pytest.raises(SourceDisabled):
        findings_of(late_device_plugin, node(device_plugins=NotRequested("device_plugins", "no such directory")))

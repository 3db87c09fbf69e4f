"""The history of device plugins: stored transitions, and the new ones of each snapshot."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from agent.checks.devices.history import MAX_TRANSITIONS, derive, with_history
from agent.checks.devices.resource_state import expected_resources, kubelet_up_for, resource_states
from agent.checks.devices.view import DeviceView
from agent.model.devices import (
    Allocation,
    DevicePlugins,
    DeviceTransition,
    PluginSocket,
    Registered,
    ResourceState,
    TransitionKind,
)
from agent.model.snapshot import InsufficientData, Known, NodeDevices, NotRequested, Snapshot
from tests.builders import (
    BOOT_ID,
    KVM,
    KVM_SOCKET,
    NOW,
    UPTIME,
    WORKER,
    allocation,
    device_plugins,
    node,
    plugin_socket,
    processes,
    refused_pod,
    registered,
    transition,
    unavailable,
    without,
)

GPU, TPU = "nvidia.com/gpu", "example.org/tpu"
STARTED, APPEARED, GONE = TransitionKind.KUBELET_STARTED, TransitionKind.SOCKET_APPEARED, TransitionKind.SOCKET_GONE
REGISTERED, LOST, DROPPED = TransitionKind.REGISTERED, TransitionKind.LOST, TransitionKind.DROPPED


def seconds(n: float) -> timedelta:
    return timedelta(seconds=n)


def snapshot_of(
    *records: PluginSocket | Registered | Allocation | DeviceTransition,
    kubelet: float | None = 30,
    written: float | None = None,
    at: float = 0,
    **others: Any,
) -> Snapshot:
    """A snapshot `at` seconds after NOW; the times of files are seconds before NOW."""
    devices = device_plugins(
        *records,
        kubelet_socket=None if kubelet is None else seconds(kubelet),
        checkpoint_written=None if written is None else seconds(written),
    )
    return node(device_plugins=devices, later=seconds(at), **others)


def after(before: Snapshot, now: Snapshot) -> Snapshot:
    """Return `now` with the stored history of the snapshot before."""
    devices = now.device_plugins.known()
    return with_history(replace(now, device_plugins=Known(replace(devices, history=derive(before)))))


def transitions_of(snapshot: Snapshot) -> list[tuple[str, str, float, bool]]:
    """What, of whom, how many seconds before NOW, and whether that is exact."""
    return [
        (
            transition.what.value,
            transition.resource or transition.socket,
            round((NOW - transition.at).total_seconds(), 3),
            transition.exact,
        )
        for transition in derive(snapshot)
    ]


def added(before: Snapshot, now: Snapshot) -> list[tuple[str, str, float, bool]]:
    return transitions_of(after(before, now))[len(derive(before)) :]


def devices_of(snapshot: Snapshot) -> DevicePlugins:
    return snapshot.device_plugins.known()


def view(snapshot: Snapshot) -> DeviceView:
    return DeviceView.of(with_history(snapshot))


def socket_pairs(history: Any, devices: DevicePlugins) -> Any:
    return DeviceView(node(device_plugins=devices), tuple(history)).sockets


def state(snapshot: Snapshot, resource: str = KVM) -> ResourceState:
    (current,) = (current for current in resource_states(with_history(snapshot)) if current.resource == resource)
    return current


# Transitions of a snapshot


def test_the_first_snapshot_has_the_transitions_that_files_show() -> None:
    """As on a real node: the plugin bound its socket 9.5 s after the kubelet, and registered 12 ms later."""
    snapshot = snapshot_of(plugin_socket(ago=seconds(20.476)), registered(KVM, "d0"), kubelet=30, written=20.464)
    assert transitions_of(snapshot) == [
        ("kubelet_started", "", 30, True),
        ("socket_appeared", KVM_SOCKET, 20.476, True),
        ("registered", KVM, 20.464, True),
    ]
    assert {transition.boot_id for transition in derive(snapshot)} == {BOOT_ID}


def test_a_healthy_node_adds_no_transition_over_time() -> None:
    records = (plugin_socket(ago=seconds(20)), registered(KVM, "d0"), registered(GPU))
    assert added(snapshot_of(*records, written=20), snapshot_of(*records, written=20, at=7200)) == []


def test_devices_in_a_checkpoint_older_than_the_kubelet_are_not_registered() -> None:
    """The checkpoint is not written when the kubelet starts."""
    snapshot = snapshot_of(registered(KVM, "d0"), kubelet=30, written=7200)
    assert transitions_of(snapshot) == [("kubelet_started", "", 30, True)]
    assert (state(snapshot).registered, state(snapshot).devices) == (False, 0)


def test_after_a_kubelet_restart_each_plugin_must_register_again() -> None:
    before = snapshot_of(plugin_socket(ago=OLDER), registered(KVM, "d0"), kubelet=9000, written=8000)
    restarted = snapshot_of(registered(KVM, "d0"), kubelet=5, written=8000)
    assert added(before, restarted) == [("kubelet_started", "", 5, True), ("socket_gone", KVM_SOCKET, 0, False)]
    assert state(after(before, restarted)).registered is False


OLDER = seconds(8000)


def test_a_registration_between_two_snapshots_has_the_time_of_the_file() -> None:
    before = snapshot_of(registered(KVM, "d0"), kubelet=30, written=8000)
    later = snapshot_of(plugin_socket(ago=seconds(-9)), registered(KVM, "d0"), kubelet=30, written=-10, at=15)
    assert added(before, later) == [("socket_appeared", KVM_SOCKET, -9, True), ("registered", KVM, -10, True)]


def test_two_registrations_between_two_snapshots_have_approximate_times() -> None:
    before = snapshot_of(kubelet=30)
    both = snapshot_of(registered(KVM, "d0"), registered(GPU, "g0"), kubelet=30, written=-10, at=15)
    assert added(before, both) == [("registered", KVM, -10, False), ("registered", GPU, -10, False)]


def test_a_checkpoint_seen_late_may_not_be_the_first_with_the_resource() -> None:
    assert transitions_of(snapshot_of(registered(KVM, "d0"), kubelet=9000, written=500))[-1] == (
        "registered",
        KVM,
        500,
        False,
    )


def test_a_checkpoint_written_for_a_pod_shows_no_registration() -> None:
    """As on a real node: the plugin's socket of 11:59:07.002, and a pod that was given a device at 11:59:14.450."""
    snapshot = snapshot_of(plugin_socket(ago=seconds(12.998)), registered(KVM, "d0"), kubelet=18, written=5.55)
    assert transitions_of(snapshot)[-1] == ("registered", KVM, 12.998, True)
    assert state(snapshot).delay == seconds(5.002)
    kept = after(snapshot_of(kubelet=18, at=-14), snapshot)
    assert transitions_of(kept)[-1] == ("registered", KVM, 12.998, True)


def test_a_socket_seen_without_its_resource_registered_later() -> None:
    socket = plugin_socket(ago=seconds(20))
    before = snapshot_of(socket, registered(KVM, "d0"), kubelet=30, written=7200)
    before = replace(before, device_plugins=Known(replace(devices_of(before), sockets=(socket,))))
    assert transitions_of(before)[-1] == ("socket_appeared", KVM_SOCKET, 20, True)
    assert added(before, snapshot_of(socket, registered(KVM, "d0"), kubelet=30, written=-10, at=15)) == [
        ("registered", KVM, -10, True)
    ]


def test_with_an_unassigned_socket_the_first_registration_is_approximate() -> None:
    sockets = (plugin_socket("a.sock", ago=seconds(21)), plugin_socket("b.sock", ago=seconds(21)))
    snapshot = snapshot_of(*sockets, registered(TPU, "t0"), kubelet=30, written=14)
    assert transitions_of(snapshot)[-1] == ("registered", TPU, 14, False)
    assert state(snapshot, TPU).delay is None
    assert added(snapshot_of(kubelet=30, at=-25), snapshot)[-1] == ("registered", TPU, 14, True)


def test_a_returning_plugin_registers_when_it_recreates_its_socket() -> None:
    before = snapshot_of(plugin_socket(ago=seconds(20)), registered(KVM, "d0"), written=20)
    dead = after(
        before, snapshot_of(plugin_socket(ago=seconds(20), connected=False), registered(KVM, "d0"), written=20)
    )
    back = snapshot_of(plugin_socket(ago=seconds(-20)), registered(KVM, "d0"), written=-27, at=30)
    assert added(dead, back)[-1] == ("registered", KVM, -20, True)


def test_two_plugins_with_known_sockets_have_their_own_times() -> None:
    records = (plugin_socket(ago=seconds(20)), plugin_socket("nvidia-gpu.sock", ago=seconds(10)))
    snapshot = snapshot_of(*records, registered(KVM, "d0"), registered(GPU, "g0"), kubelet=30, written=9.9)
    assert transitions_of(snapshot)[2:] == [
        ("registered", KVM, 20, True),
        ("socket_appeared", "nvidia-gpu.sock", 10, True),
        ("registered", GPU, 9.9, True),
    ]


def test_a_plugin_that_sends_an_empty_list_is_lost() -> None:
    before = snapshot_of(plugin_socket(ago=seconds(20)), registered(KVM, "d0"), written=20)
    empty = snapshot_of(plugin_socket(ago=seconds(20)), registered(KVM), written=-10, at=15)
    assert added(before, empty) == [("lost", KVM, -10, True)]


def test_a_dead_plugin_is_lost_even_without_a_new_checkpoint() -> None:
    before = snapshot_of(plugin_socket(ago=seconds(20)), registered(KVM, "d0"), written=20)
    dead = snapshot_of(plugin_socket(ago=seconds(20), connected=False), registered(KVM, "d0"), written=20, at=15)
    assert added(before, dead) == [("lost", KVM, -15, False)]
    assert state(after(before, dead)).registered is False
    again = snapshot_of(plugin_socket(ago=seconds(-20)), registered(KVM, "d0"), written=-21, at=30)
    assert added(after(before, dead), again) == [
        ("socket_appeared", KVM_SOCKET, -20, True),
        ("registered", KVM, -21, True),
    ]


def test_without_connections_no_plugin_is_lost() -> None:
    before = snapshot_of(plugin_socket(ago=seconds(20)), registered(KVM, "d0"), written=20)
    assert (
        added(before, snapshot_of(plugin_socket(ago=seconds(20), connected=None), registered(KVM, "d0"), written=20))
        == []
    )


def test_a_resource_that_disappears_from_the_checkpoint_was_dropped() -> None:
    before = snapshot_of(registered(KVM, "d0"), registered(GPU, "g0"), kubelet=9000, written=8000)
    restarted = after(before, snapshot_of(registered(KVM), registered(GPU, "g0"), kubelet=5, written=2))
    gone = snapshot_of(registered(GPU, "g0"), kubelet=5, written=-297, at=310)
    assert added(restarted, gone) == [("dropped", KVM, -297, True)]
    assert added(after(restarted, gone), gone) == []


def test_a_missing_resource_is_dropped_only_after_five_minutes() -> None:
    """Somebody removed the checkpoint: this kubelet never knew it."""
    before = snapshot_of(registered(KVM, "d0"), registered(GPU, "g0"), kubelet=9000, written=8000)
    assert [
        transition[0] for transition in added(before, snapshot_of(registered(GPU, "g0"), kubelet=50, written=40))
    ] == [
        "kubelet_started",
        "registered",
    ]


def test_a_removed_checkpoint_adds_no_transition() -> None:
    before = snapshot_of(registered(KVM, "d0"), kubelet=9000, written=8000)
    removed = snapshot_of(kubelet=9000, at=15)
    assert added(before, removed) == []
    assert state(after(before, removed)).registered is True


def test_a_recreated_socket_appears_again() -> None:
    before = snapshot_of(plugin_socket(ago=seconds(20)))
    assert added(before, snapshot_of(plugin_socket(ago=seconds(-5)), at=15)) == [
        ("socket_appeared", KVM_SOCKET, -5, True)
    ]


# Clocks and boots


def test_a_kubelet_socket_from_before_a_reboot_registers_nothing() -> None:
    before = snapshot_of(plugin_socket(ago=OLDER), registered(KVM, "d0"), kubelet=9000, written=8000)
    booted = replace(after(before, snapshot_of(registered(KVM, "d0"), kubelet=9000, written=8000)), uptime=seconds(40))
    booted = replace(booted, processes=Known(replace(processes(booted=seconds(40)), boot_id="another")))
    assert state(booted).registered is False
    assert kubelet_up_for(view(booted)) is None


def test_a_file_from_before_the_boot_is_not_dated_to_this_boot() -> None:
    first = replace(snapshot_of(kubelet=9000), uptime=seconds(40))
    assert [transition.boot_id for transition in derive(first)] == [""]


def test_a_clock_step_after_the_kubelet_start_keeps_the_order() -> None:
    """Without a battery the node boots in the past; the plugin registers when the clock is right."""
    past = 10**8
    just_booted = replace(snapshot_of(kubelet=past + 20, at=0), taken_at=NOW - seconds(past), uptime=seconds(40))
    records = (plugin_socket(ago=seconds(60)), registered(KVM, "d0"))
    stepped = replace(snapshot_of(*records, kubelet=past + 20, written=59), uptime=seconds(140))
    assert [transition[0] for transition in transitions_of(after(just_booted, stepped))] == [
        "kubelet_started",
        "socket_appeared",
        "registered",
    ]
    assert kubelet_up_for(view(after(just_booted, stepped))) == seconds(100)
    assert state(after(just_booted, stepped)).registered is True
    back = replace(snapshot_of(*records, kubelet=past + 20, written=59), uptime=seconds(140))
    assert [transition[0] for transition in transitions_of(back)][:2] == ["kubelet_started", "socket_appeared"]


def test_a_clock_set_back_removes_no_registration() -> None:
    records = (plugin_socket(ago=seconds(20)), registered(KVM, "d0"))
    before = snapshot_of(*records, written=20)
    back = replace(snapshot_of(*records, written=20, at=15), taken_at=NOW - timedelta(days=2))
    assert added(before, back) == []
    assert state(after(before, back)).registered is True


def test_after_a_clock_step_kubelet_uptime_uses_the_boot_clock() -> None:
    before = snapshot_of(kubelet=30)
    back = replace(snapshot_of(kubelet=30, at=90), taken_at=NOW - seconds(20))
    assert kubelet_up_for(view(after(before, back))) == seconds(90)
    assert kubelet_up_for(view(snapshot_of(kubelet=30, at=90))) == seconds(120)


# Bounds


def test_the_history_is_bounded_and_keeps_the_current_state() -> None:
    first = (
        transition(STARTED, ago=UPTIME),
        transition(REGISTERED, GPU, ago=UPTIME),
        transition(APPEARED, socket="nvidia-gpu.sock", ago=UPTIME),
    )
    noise = [
        transition(what, socket=f"{n}.sock", ago=OLDER) for n in range(MAX_TRANSITIONS) for what in (APPEARED, GONE)
    ]
    snapshot = snapshot_of(*first, *noise, plugin_socket("nvidia-gpu.sock", ago=UPTIME), kubelet=UPTIME.total_seconds())
    history = derive(snapshot)
    assert len(history) == len(first) + MAX_TRANSITIONS
    assert history[:3] == first
    assert history[-1] == noise[-1]
    assert (
        added(snapshot, snapshot_of(plugin_socket("nvidia-gpu.sock", ago=UPTIME), kubelet=UPTIME.total_seconds())) == []
    )


# Whose socket


def test_naming_conventions_map_a_socket_to_its_resource() -> None:
    for resource, socket in (
        (KVM, KVM_SOCKET),
        (GPU, "nvidia-gpu.sock"),
        ("nvidia.com/mig-1g.5gb", "nvidia-mig-1g.5gb.sock"),
        ("intel.com/qat", "kubevirt-intel.com-qat.sock"),
    ):
        devices = device_plugins(plugin_socket(socket), plugin_socket("other.sock"), registered(resource, "d"))
        assert socket_pairs((), devices) == {resource: socket}


def test_a_single_socket_is_mapped_to_a_single_resource() -> None:
    assert (socket_pairs((), device_plugins(plugin_socket("x.sock"), registered(TPU)))) == {TPU: "x.sock"}
    two = device_plugins(plugin_socket("x.sock"), registered(TPU), registered("example.org/fpga"))
    assert (socket_pairs((), two)) == {}


# How a resource stands


def test_a_resource_has_its_delay_and_allocations() -> None:
    snapshot = snapshot_of(
        plugin_socket(ago=seconds(20.5)),
        registered(KVM, "d0", "d1", "d2"),
        allocation("shop/web", KVM, "d0", container="init"),
        allocation("shop/web", KVM, "d0"),
        allocation("shop/gone", KVM, "d1"),
        kubelet=30,
        written=20,
    )
    assert state(snapshot) == ResourceState(
        resource=KVM,
        devices=3,
        allocated=1,
        registered=True,
        registered_since=NOW - seconds(20),
        delay=seconds(10),
        socket=KVM_SOCKET,
        socket_present=True,
        connected=True,
    )
    assert state(without(snapshot, "pods")).allocated is None


def test_with_a_late_checkpoint_the_delay_comes_from_the_socket() -> None:
    snapshot = snapshot_of(plugin_socket(ago=seconds(8990)), registered(KVM, "d0"), kubelet=9000, written=500)
    assert state(snapshot).delay == seconds(10)
    assert state(snapshot_of(registered(KVM, "d0"), kubelet=9000, written=500)).delay is None


def test_the_delay_stays_when_the_plugin_restarts_later() -> None:
    before = snapshot_of(plugin_socket(ago=seconds(20)), registered(KVM, "d0"), kubelet=30, written=20)
    lost = after(before, snapshot_of(registered(KVM), kubelet=30, written=-100, at=101))
    back = after(lost, snapshot_of(plugin_socket(ago=seconds(-200)), registered(KVM, "d0"), written=-201, at=202))
    assert state(back).delay == seconds(10)
    assert state(back).registered_since == NOW + seconds(201)


def test_a_connected_plugin_is_registered_before_the_checkpoint_lists_it() -> None:
    snapshot = snapshot_of(plugin_socket(ago=seconds(2)), registered(KVM, "d0"), kubelet=30, written=7200)
    assert (state(snapshot).registered, state(snapshot).registered_since) == (True, None)


def test_a_resource_only_in_the_node_object_is_expected_if_its_capacity_is_0_and_requested() -> None:
    dropped = replace(WORKER, devices=(NodeDevices(KVM, 0, 0), NodeDevices("example.org/by-hand", 4, 4)))
    assert expected_resources(view(snapshot_of(kubelet=900, node=[dropped]))) == (), (
        "so it stays for ever where a plugin is uninstalled"
    )
    snapshot = snapshot_of(kubelet=900, node=[dropped], pods=[refused_pod("lab/vm")])
    assert expected_resources(view(snapshot)) == (KVM,)
    assert (state(snapshot).registered, state(snapshot).socket, state(snapshot).socket_present) == (False, "", None)


def test_a_resource_dropped_before_the_kubelet_start_is_not_expected() -> None:
    history = (transition(STARTED, ago=OLDER), transition(DROPPED, KVM, ago=seconds(7000)))
    node_object = [replace(WORKER, devices=(NodeDevices(KVM, 0, 0),))]
    assert expected_resources(view(snapshot_of(*history, kubelet=8000, node=node_object))) == (KVM,)
    assert expected_resources(view(snapshot_of(*history, kubelet=30, node=node_object))) == ()


def test_without_device_plugins_the_history_is_unavailable() -> None:
    for reading in (unavailable("device_plugins"), NotRequested("device_plugins", "there is no such directory")):
        with pytest.raises(InsufficientData):
            derive(node(device_plugins=reading))
        with pytest.raises(InsufficientData):
            resource_states(with_history(node(device_plugins=reading)))


def test_an_unknown_boot_time_is_not_guessed() -> None:
    snapshot = without(snapshot_of(plugin_socket(ago=seconds(20)), registered(KVM, "d0"), written=20), "processes")
    assert {transition.boot_id for transition in derive(snapshot)} == {""}
    assert state(snapshot).registered is True

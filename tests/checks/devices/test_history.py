"""The history of device plugins: stored transitions, the new ones of each snapshot, and how each resource stands."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from agent.exporters.json.scan import scan_document
from agent.model.devices import TransitionKind
from agent.model.snapshot import Known, NodeDevices, NotRequested, Pod, Snapshot
from tests import builders as b
from tests.builders import (
    KVM,
    KVM_SOCKET,
    NOW,
    WORKER,
    allocation,
    findings_of,
    plugin_socket,
    registered,
    transition,
)
from tests.checks.reported import following, history_of, resources_of, seconds, with_plugins

GPU, TPU = "nvidia.com/gpu", "example.org/tpu"
STARTED, APPEARED, GONE = (
    TransitionKind.KUBELET_STARTED,
    TransitionKind.SOCKET_APPEARED,
    TransitionKind.SOCKET_GONE,
)
REGISTERED, DROPPED = TransitionKind.REGISTERED, TransitionKind.DROPPED
OLDER = seconds(8000)


def snapshot_of(
    *records: Any, kubelet: float = 30, written: float | None = None, at: float = 0, **others: Any
) -> Snapshot:
    """A snapshot `at` seconds after NOW; the times of files are seconds before NOW."""
    return with_plugins(*records, kubelet=kubelet, written=written, later=seconds(at), **others)


def with_kvm(ago: float = 20, connected: bool | None = True, **others: Any) -> Snapshot:
    """A snapshot of a node whose only plugin bound its socket so many seconds before NOW."""
    socket = plugin_socket(ago=seconds(ago), connected=connected)
    return snapshot_of(socket, registered(KVM, "d0"), **others)


def transitions_of(snapshot: Snapshot) -> list[str]:
    """What, how many seconds before NOW (`~`: about), and of whom; the resource and the socket of KVM need no name."""
    found = []
    for seen in history_of(snapshot):
        of, ago = seen.resource or seen.socket, round((NOW - seen.at).total_seconds(), 3)
        named = "" if of in {KVM, KVM_SOCKET} else f" {of}"
        found.append(f"{seen.what.value} {'' if seen.exact else '~'}{ago:g}{named}".rstrip())
    return found


def added(before: Snapshot, now: Snapshot) -> list[str]:
    return transitions_of(following(before, now))[len(history_of(before)) :]


def is_registered(snapshot: Snapshot) -> Any:
    return resources_of(snapshot)[KVM]["registered"]


def delay(snapshot: Snapshot) -> Any:
    return resources_of(snapshot)[KVM]["registration_delay_seconds"]


def test_the_first_snapshot_has_the_transitions_that_files_show() -> None:
    sockets = (plugin_socket("a.sock", ago=seconds(21)), plugin_socket("b.sock", ago=seconds(21)))
    two = (plugin_socket(ago=seconds(20)), plugin_socket("nvidia-gpu.sock", ago=seconds(10)))
    kvm, gpu, tpu = registered(KVM, "d0"), registered(GPU, "g0"), registered(TPU, "t0")
    stale = snapshot_of(kvm, written=7200)
    for snapshot, expected in (
        # As on a real node: the plugin bound its socket 9.5 s after the kubelet, and registered 12 ms later.
        (
            with_kvm(20.476, written=20.464),
            ["kubelet_started 30", "socket_appeared 20.476", "registered 20.464"],
        ),
        # The checkpoint is not written when the kubelet starts: one that is older shows no registration.
        (stale, ["kubelet_started 30"]),
        (with_kvm(written=7200), ["kubelet_started 30", "socket_appeared 20"]),
        # A checkpoint seen late may not be the first with the resource.
        (snapshot_of(kvm, kubelet=9000, written=500), ["registered ~500"]),
        # As on a real node: the plugin's socket of 11:59:07.002, and a pod that was given a device at 11:59:14.450.
        (with_kvm(12.998, kubelet=18, written=5.55), ["registered 12.998"]),
        # With an unassigned socket, the first registration is approximate.
        (snapshot_of(*sockets, tpu, written=14), [f"registered ~14 {TPU}"]),
        # Two plugins with known sockets have their own times.
        (
            snapshot_of(*two, kvm, gpu, written=9.9),
            ["registered 20", "socket_appeared 10 nvidia-gpu.sock", f"registered 9.9 {GPU}"],
        ),
    ):
        assert transitions_of(snapshot)[-len(expected) :] == expected
        assert {transition.boot_id for transition in history_of(snapshot)} == {b.BOOT_ID}
    assert (is_registered(stale), resources_of(stale)[KVM]["devices"]) == (False, 0)


def test_a_snapshot_adds_what_has_changed() -> None:
    kvm, gpu = registered(KVM, "d0"), registered(GPU, "g0")
    kept, new_pair = (
        snapshot_of(kvm, kubelet=9000, written=8000),
        snapshot_of(kvm, gpu, written=-10, at=15),
    )
    connected, dead = with_kvm(written=20), with_kvm(connected=False, written=20, at=15)
    pair = snapshot_of(kvm, gpu, kubelet=9000, written=8000)
    sockets = (plugin_socket("a.sock", ago=seconds(21)), plugin_socket("b.sock", ago=seconds(21)))
    restarted = following(pair, snapshot_of(registered(KVM), gpu, kubelet=5, written=2))
    gone = snapshot_of(gpu, kubelet=5, written=-297, at=310)
    lost = following(connected, dead)
    for before, now, expected in (
        # Time passes; it is not known who is connected; the checkpoint was removed.
        (connected, with_kvm(written=20, at=7200), []),
        (connected, with_kvm(connected=None, written=20), []),
        (kept, snapshot_of(kubelet=9000, at=15), []),
        # After a restart each plugin must register again.
        (
            with_kvm(8000, kubelet=9000, written=8000),
            snapshot_of(kvm, kubelet=5, written=8000),
            ["kubelet_started 5", "socket_gone ~0"],
        ),
        # A registration has the time of the file; of two, nobody knows which the file is of.
        (
            snapshot_of(kvm, written=8000),
            with_kvm(-9, written=-10, at=15),
            ["socket_appeared -9", "registered -10"],
        ),
        (snapshot_of(), new_pair, ["registered ~-10", f"registered ~-10 {GPU}"]),
        # If its plugin has not bound the socket anew, or nobody knows which socket it is, it was before that.
        (with_kvm(written=7200), with_kvm(written=-10, at=15), ["registered ~-10"]),
        (
            snapshot_of(at=-25),
            snapshot_of(*sockets, registered(TPU, "t0"), written=14),
            ["socket_appeared 21 a.sock", "socket_appeared 21 b.sock", f"registered ~14 {TPU}"],
        ),
        # It sent an empty list; it is dead, without a new checkpoint; it is back, and the checkpoint is of a pod later.
        (
            connected,
            snapshot_of(plugin_socket(ago=seconds(20)), registered(KVM), written=-10, at=15),
            ["lost -10"],
        ),
        (connected, dead, ["lost ~-15"]),
        (lost, with_kvm(-20, written=-21, at=30), ["socket_appeared -20", "registered -21"]),
        (lost, with_kvm(-20, written=-27, at=30), ["socket_appeared -20", "registered -20"]),
        # A socket was made again.
        (
            snapshot_of(plugin_socket(ago=seconds(20))),
            snapshot_of(plugin_socket(ago=seconds(-5)), at=15),
            ["socket_appeared -5"],
        ),
        # It left the checkpoint after five minutes, and stays away.
        (restarted, gone, ["dropped -297"]),
        (following(restarted, gone), gone, []),
        # Sooner, somebody removed the checkpoint: this kubelet never knew it.
        (
            pair,
            snapshot_of(gpu, kubelet=50, written=40),
            ["kubelet_started 50", f"registered ~40 {GPU}"],
        ),
    ):
        assert added(before, now) == expected


def up_for(snapshot: Snapshot) -> str:
    """Return how long the kubelet has been up, as the finding of its only late plugin says it."""
    (finding,) = findings_of("late_device_plugin", snapshot)
    return finding.message.partition("the kubelet started ")[2].partition(" ago")[0]


def test_a_kubelet_socket_from_before_a_reboot_registers_nothing() -> None:
    before = with_kvm(8000, kubelet=9000, written=8000)
    now = following(before, snapshot_of(registered(KVM, "d0"), kubelet=9000, written=8000))
    assert is_registered(now) is True
    booted = replace(now, uptime=seconds(40))
    booted = replace(
        booted, processes=Known(replace(b.processes(booted=seconds(40)), boot_id="another"))
    )
    assert is_registered(booted) is False
    assert findings_of("late_device_plugin", booted) == []
    # A file from before the boot is not dated to this boot.
    first = replace(snapshot_of(kubelet=9000), uptime=seconds(40))
    assert [transition.boot_id for transition in history_of(first)] == [""]
    unknown = b.without(with_kvm(written=20), "processes")
    assert {transition.boot_id for transition in history_of(unknown)} == {""}, "it is not guessed"
    assert is_registered(unknown) is True


def test_a_clock_step_keeps_the_order_and_the_registrations() -> None:
    # Without a battery the node boots in the past; the plugin registers when the clock is right.
    past = 10**8
    just_booted = replace(
        snapshot_of(kubelet=past + 20, at=0), taken_at=NOW - seconds(past), uptime=seconds(40)
    )
    records = (plugin_socket(ago=seconds(60)), registered(KVM, "d0"), registered(GPU))
    stepped = replace(snapshot_of(*records, kubelet=past + 20, written=59), uptime=seconds(140))
    both = following(just_booted, stepped)
    assert [text.split()[0] for text in transitions_of(both)] == [
        "kubelet_started",
        "socket_appeared",
        "registered",
    ]
    assert (up_for(both), is_registered(both)) == ("1m40s", True)
    assert [text.split()[0] for text in transitions_of(stepped)][:2] == [
        "kubelet_started",
        "socket_appeared",
    ]
    # A clock that is set removes no registration.
    before = with_kvm(written=20)
    back = replace(with_kvm(written=20, at=15), taken_at=NOW - timedelta(days=2))
    assert added(before, back) == []
    assert is_registered(following(before, back)) is True
    # The boot clock measures how long the kubelet is up.
    first, later = (snapshot_of(registered(GPU), at=at) for at in (0, 90))
    stepped = replace(later, taken_at=NOW - seconds(20))
    assert (up_for(following(first, stepped)), up_for(later)) == ("1m30s", "2m")


def test_sockets_are_mapped_by_naming_conventions_or_if_there_is_one_of_each() -> None:
    for resource, socket in (
        (KVM, KVM_SOCKET),
        (GPU, "nvidia-gpu.sock"),
        ("nvidia.com/mig-1g.5gb", "nvidia-mig-1g.5gb.sock"),
        ("intel.com/qat", "kubevirt-intel.com-qat.sock"),
    ):
        snapshot = snapshot_of(
            plugin_socket(socket), plugin_socket("other.sock"), registered(resource, "d")
        )
        assert resources_of(snapshot)[resource]["socket"] == socket
    for resources, found in (((TPU,), ["x.sock"]), ((TPU, "example.org/fpga"), [None, None])):
        snapshot = snapshot_of(plugin_socket("x.sock"), *map(registered, resources))
        assert [state["socket"] for state in resources_of(snapshot).values()] == found


def started_pod(ago: float) -> Pod:
    """A pod that started so many seconds ago."""
    return replace(b.pod("shop/vm"), wants=(KVM,), started=NOW - seconds(ago))


def test_a_resource_has_its_delay_and_allocations() -> None:
    snapshot = snapshot_of(
        plugin_socket(ago=seconds(20.5)),
        registered(KVM, "d0", "d1", "d2"),
        allocation("shop/web", KVM, "d0", container="init"),
        allocation("shop/web", KVM, "d0"),
        allocation("shop/gone", KVM, "d1"),
        written=20,
    )
    assert resources_of(snapshot)[KVM] == {
        "resource": KVM,
        "devices": 3,
        "allocated": 1,
        "registered": True,
        "registered_since": "2026-03-26T19:59:40Z",
        "registration_delay_seconds": 10.0,
        "socket": KVM_SOCKET,
        "socket_present": True,
        "connected": True,
    }
    assert resources_of(b.without(snapshot, "pods"))[KVM]["allocated"] is None
    for reading in (
        b.unavailable("device_plugins"),
        NotRequested("device_plugins", "there is no such directory"),
    ):
        assert scan_document(b.scanned(b.node(device_plugins=reading)))["device_plugins"] is None
    # A late checkpoint has no delay, and the socket has one; it stays when the plugin restarts later.
    assert delay(with_kvm(12.998, kubelet=18, written=5.55)) == 5.002
    assert delay(snapshot_of(registered(KVM, "d0"), kubelet=9000, written=500)) is None
    assert delay(with_kvm(8990, kubelet=9000, written=500)) == 10
    lost = following(with_kvm(written=20), snapshot_of(registered(KVM), written=-100, at=101))
    back = following(lost, with_kvm(-200, written=-201, at=202))
    assert delay(back) == 10
    assert resources_of(back)[KVM]["registered_since"] == "2026-03-26T20:03:21Z"
    # What was before the first snapshot is not known, as after a plugin's update.
    updated = with_kvm(4000, kubelet=9000, written=3999)
    assert (delay(updated), resources_of(updated)[KVM]["registered"]) == (None, True)
    given = (allocation("shop/vm", KVM, "d0"), started_pod(8900))
    soon = (plugin_socket(ago=seconds(8800)), registered(KVM, "d0"))
    assert delay(snapshot_of(*soon, kubelet=9000, written=8799)) == 201
    assert delay(snapshot_of(*soon, *given, kubelet=9000, written=8799)) is None, "it had a device"
    two = (plugin_socket("a.sock", ago=seconds(20)), plugin_socket("b.sock", ago=seconds(20)))
    unknown = snapshot_of(*two, registered(TPU, "t0"), written=19)
    assert resources_of(unknown)[TPU]["registration_delay_seconds"] is None
    late = with_kvm(50, kubelet=3000, written=49.9)
    for seen_first, expected in ((2900, 2950.1), (2000, None)):
        first = following(snapshot_of(kubelet=3000, at=-seen_first), late)
        assert delay(first) == expected, "an earlier registration would have been seen, or not"
    # A connected plugin is registered before the checkpoint lists it.
    early = with_kvm(2, written=7200)
    assert (is_registered(early), resources_of(early)[KVM]["registered_since"]) == (True, None)


def test_a_resource_only_in_the_node_object_is_expected_if_its_capacity_is_0_and_requested() -> (
    None
):
    dropped = replace(
        WORKER, devices=(NodeDevices(KVM, 0, 0), NodeDevices("example.org/by-hand", 4, 4))
    )
    unrequested = snapshot_of(kubelet=900, node=[dropped])
    assert resources_of(unrequested) == {}, "so it stays for ever where a plugin is uninstalled"
    (resource,) = resources_of(
        snapshot_of(kubelet=900, node=[dropped], pods=[b.refused_pod("lab/vm")])
    ).values()
    assert (resource["resource"], resource["registered"]) == (KVM, False)
    assert (resource["socket"], resource["socket_present"]) == (None, None)
    # One that was dropped before the start of the kubelet is not expected.
    history = (transition(STARTED, ago=OLDER), transition(DROPPED, KVM, ago=seconds(7000)))
    node_object = [replace(WORKER, devices=(NodeDevices(KVM, 0, 0),))]
    for kubelet, expected in ((8000, [KVM]), (30, [])):
        assert [*resources_of(snapshot_of(*history, kubelet=kubelet, node=node_object))] == expected


def test_the_node_shows_a_loss_that_the_kubelet_does_not_write() -> None:
    def seen(at: float, allocatable: int, *sockets: Any, written: float = 7000) -> Snapshot:
        worker = replace(WORKER, devices=(NodeDevices(TPU, 1, allocatable), NodeDevices(KVM, 1, 1)))
        there = (*sockets, registered(TPU, "t0"), registered(KVM, "d0"))
        return snapshot_of(*there, kubelet=9000, written=written, at=at, node=[worker])

    old = (plugin_socket("x.sock"), plugin_socket("y.sock"))
    before = seen(0, 1, *old)
    away = following(before, seen(15, 0, old[1]))
    assert added(before, seen(15, 0, old[1])) == [f"lost ~-15 {TPU}", "socket_gone ~-15 x.sock"]
    # The node's status is a moment late, and counts no more.
    anew = (plugin_socket("x.sock", ago=seconds(-48)), old[1])
    late = seen(50, 0, *anew, written=-49)
    assert added(away, late) == ["socket_appeared -48 x.sock", f"registered -49 {TPU}"]
    back = following(away, late)
    assert (resources_of(back)[TPU]["socket"], findings_of("late_device_plugin", back)) == (
        "x.sock",
        [],
    )

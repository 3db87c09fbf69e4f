"""A device plugin that has not registered again."""

from dataclasses import replace
from functools import partial
from typing import Any

from agent.model.devices import TransitionKind
from agent.model.finding import Severity
from agent.model.snapshot import NodeDevices, NotRequested, Pod, Snapshot
from tests import builders as b
from tests.builders import (
    KVM,
    NOW,
    WORKER,
    findings_of,
    node,
    plugin_socket,
    pod,
    registered,
    transition,
    without,
)
from tests.checks.reported import resources_of, seconds, with_plugins

DETECTOR = "late_device_plugin"
only_finding, subjects = partial(b.the_finding, DETECTOR), partial(b.subjects_of, DETECTOR)
STARTED, APPEARED = TransitionKind.KUBELET_STARTED, TransitionKind.SOCKET_APPEARED
REGISTERED, LOST, DROPPED = TransitionKind.REGISTERED, TransitionKind.LOST, TransitionKind.DROPPED


def snapshot_of(*records: Any, kubelet: float, written: float = 9000, **others: Any) -> Snapshot:
    """A node whose kubelet started so many seconds ago, and wrote its checkpoint so many seconds ago."""
    return with_plugins(*records, kubelet=kubelet, written=written, **others)


BY_NODE_ONLY = [replace(WORKER, devices=(NodeDevices(KVM, 0, 0),))]


def test_a_plugin_has_a_minute_to_register_after_a_kubelet_restart() -> None:
    assert subjects(snapshot_of(registered(KVM, "d0"), kubelet=59)) == []
    for ago, age in (
        (61, "1m1s"),
        (90, "1m30s"),
        (600, "10m"),
        (7200, "2h"),
        (93600, "1d2h"),
        (86400 * 21, "21d"),
    ):
        late = only_finding(snapshot_of(registered(KVM, "d0"), kubelet=ago, written=86400 * 22))
        assert (late.subject, late.resource, late.since) == (KVM, KVM, NOW - seconds(ago))
        assert f"the kubelet started {age} ago" in late.message
    assert (
        "stops offering it after 5 minutes"
        in only_finding(snapshot_of(registered(KVM, "d0"), kubelet=61)).message
    )
    keys = {
        only_finding(snapshot_of(registered(KVM, "d0"), kubelet=100, later=seconds(n))).key
        for n in (0, 15, 300)
    }
    assert keys == {(DETECTOR, KVM)}
    # After five minutes, the node shows that the kubelet dropped the resource.
    gpu = registered("nvidia.com/gpu", "g0")
    dropped = snapshot_of(
        gpu, kubelet=400, written=90, node=BY_NODE_ONLY, pods=[b.refused_pod("lab/vm")]
    )
    assert subjects(dropped) == [KVM]
    in_files = snapshot_of(registered(KVM, "d0"), kubelet=400)
    assert only_finding(b.without_api(in_files)).message.endswith(
        "the kubelet no longer offers it"
    ), "files are enough"
    (finding,), gap = b.findings_and_gap(DETECTOR, without(in_files, "node"))
    assert (finding.subject, gap.why) == (KVM, "node: it gave no word")
    # A plugin of earlier snapshots is late even if the kubelet no longer lists it.
    known = (transition(STARTED, ago=seconds(9000)), transition(REGISTERED, KVM))
    assert subjects(node(device_plugins=b.device_plugins(*known, kubelet_socket=seconds(100)))) == [
        KVM
    ]
    kept = (transition(REGISTERED, KVM, ago=seconds(900)), transition(STARTED, ago=seconds(305)))
    finding = only_finding(
        snapshot_of(*kept, transition(DROPPED, KVM, ago=seconds(3)), kubelet=305, written=3)
    )
    assert (finding.subject, finding.since) == (KVM, NOW - seconds(305)), (
        "it does not end with the kubelet's patience"
    )


def test_what_is_not_a_late_plugin_and_how_its_socket_is_described() -> None:
    untold = plugin_socket(ago=seconds(800), connected=None)
    for why, snapshot in {
        "it is back": snapshot_of(
            plugin_socket(ago=seconds(890)), registered(KVM, "d0"), kubelet=900, written=889
        ),
        # The node's status keeps the key for ever.
        "somebody took it away": snapshot_of(
            transition(STARTED, ago=seconds(9000)),
            transition(DROPPED, KVM),
            kubelet=100,
            node=BY_NODE_ONLY,
        ),
        "unhealthy, and connected": snapshot_of(
            plugin_socket(ago=seconds(200)), registered(KVM), kubelet=210, written=199
        ),
        "unhealthy, or the kubelet would have dropped it": snapshot_of(
            untold, registered(KVM), kubelet=900, written=799
        ),
        "no kubelet has started since the boot": replace(
            snapshot_of(registered(KVM, "d0"), kubelet=900), uptime=seconds(300)
        ),
    }.items():
        assert subjects(snapshot) == [], why
    assert subjects(snapshot_of(untold, registered(KVM), kubelet=100, written=50)) == [KVM]
    # The message describes the socket.
    for connected, words in (
        (False, "the kubelet is not connected to its plugin's socket"),
        (None, "exists;"),
    ):
        snapshot = snapshot_of(
            plugin_socket(ago=seconds(90), connected=connected), registered(KVM, "d0"), kubelet=100
        )
        assert words in only_finding(snapshot).message
    history = (transition(APPEARED, socket=b.KVM_SOCKET), transition(REGISTERED, KVM))
    gone = snapshot_of(*history, registered(KVM, "d0"), kubelet=100)
    assert f"its plugin's socket {b.KVM_SOCKET} is gone" in only_finding(gone).message


def test_a_plugin_lost_later_has_a_minute_too() -> None:
    started = (
        transition(STARTED, ago=seconds(9000)),
        transition(REGISTERED, KVM, ago=seconds(8990)),
    )
    dead = (plugin_socket(ago=seconds(8991), connected=False), registered(KVM, "d0"))
    for ago, late in ((59, False), (61, True)):
        lost = transition(LOST, KVM, ago=seconds(ago))
        found = findings_of(
            DETECTOR, snapshot_of(*started, lost, *dead, kubelet=9000, written=8990)
        )
        assert ["and lost it at" in finding.message for finding in found] == [True] * late


GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
MIG_1, MIG_2 = "nvidia.com/mig-1g.5gb", "nvidia.com/mig-2g.10gb"
TUN, VSOCK = "devices.kubevirt.io/tun", "devices.kubevirt.io/vhost-vsock"
BEFORE = (transition(STARTED, ago=seconds(9000)), transition(REGISTERED, GPU, ago=seconds(8990)))
GONE = (transition(LOST, GPU, ago=seconds(4000)), transition(DROPPED, GPU, ago=seconds(3700)))


def renamed(*records: Any, successor: str = SHARED, **others: Any) -> Snapshot:
    """A node on which the plugin of a GPU was started with another configuration 4000 s ago."""
    usual: dict[str, Any] = {"node": [replace(WORKER, devices=(NodeDevices(GPU, 0, 0),))]}
    records = records or (*BEFORE, transition(REGISTERED, SHARED, ago=seconds(4000)), *GONE)
    return snapshot_of(
        *records, registered(successor, "g0"), kubelet=9000, written=3700, **(usual | others)
    )


def test_a_resource_that_its_plugin_offers_under_another_name_is_not_late() -> None:
    assert subjects(renamed()) == []
    assert subjects(b.without_api(renamed())) == [], "the files are enough"
    restart = transition(STARTED, ago=seconds(4010))  # a change of MIG may need one
    assert (
        subjects(
            renamed(*BEFORE, restart, transition(REGISTERED, SHARED, ago=seconds(4000)), GONE[1])
        )
        == []
    )
    # All names of a plugin may change at once: with time slicing, and with MIG on or off; with a reboot or without.
    for before, after in (((GPU,), (SHARED,)), ((GPU,), (MIG_1, MIG_2)), ((MIG_1, MIG_2), (GPU,))):
        for reboot in (False, True):
            history = (
                BEFORE[0],
                *(transition(REGISTERED, resource, ago=seconds(8990)) for resource in before),
                *([restart] if reboot else []),
                *(
                    transition(LOST, resource, ago=seconds(4005 - n))
                    for n, resource in enumerate(before)
                    if not reboot
                ),
                *(transition(REGISTERED, resource, ago=seconds(4000)) for resource in after),
                *(transition(DROPPED, resource, ago=seconds(3700)) for resource in before),
            )
            gone = [
                replace(WORKER, devices=tuple(NodeDevices(resource, 0, 0) for resource in before))
            ]
            now = (registered(resource, "g0") for resource in after)
            kubelet = 4010 if reboot else 9000
            assert (
                subjects(snapshot_of(*history, *now, kubelet=kubelet, written=3700, node=gone))
                == []
            )


def test_a_replaced_resource_is_late_while_it_is_requested_or_has_capacity_and_else_unknown() -> (
    None
):
    for requesting in (
        b.refused_pod("shop/rejected", GPU),
        replace(pod("shop/running"), wants=(GPU,)),
        replace(pod("shop/waiting", phase="Pending"), wants=(GPU,)),
    ):
        assert subjects(renamed(pods=[requesting])) == [GPU]
    assert (
        subjects(renamed(pods=[replace(pod("shop/over", phase="Succeeded"), wants=(GPU,))])) == []
    )
    assert subjects(renamed(node=[replace(WORKER, devices=(NodeDevices(GPU, 1, 0),))])) == [GPU]
    # Whether it is requested may be unknown.
    for source in ("pods", "node"):
        assert b.gap_of(DETECTOR, without(renamed(), source)).startswith(source)
    named = snapshot_of(BEFORE[0], kubelet=9000, node=BY_NODE_ONLY)
    assert subjects(named) == []
    assert b.gap_of(DETECTOR, without(named, "pods")).startswith("pods")
    for reading in (
        b.unavailable("device_plugins"),
        NotRequested("device_plugins", "no such directory"),
    ):
        found, gap = b.findings_and_gap(DETECTOR, node(device_plugins=reading))
        assert (found, gap.chosen) == ([], isinstance(reading, NotRequested))


def test_a_lost_resource_without_a_successor_is_late() -> None:
    registered_before = transition(REGISTERED, SHARED, ago=seconds(8989))
    came_back = (
        transition(LOST, SHARED, ago=seconds(4000)),
        transition(REGISTERED, SHARED, ago=seconds(3999)),
    )
    not_dropped = transition(LOST, GPU, ago=seconds(200))
    other_vendor = (*BEFORE, transition(REGISTERED, "amd.com/gpu", ago=seconds(4000)), *GONE)
    for snapshot in (
        renamed(*BEFORE, registered_before, *GONE),
        renamed(*BEFORE, registered_before, *came_back, *GONE),
        renamed(
            *BEFORE, transition(REGISTERED, SHARED, ago=seconds(200)), not_dropped, registered(GPU)
        ),
        renamed(*other_vendor, successor="amd.com/gpu"),
    ):
        assert GPU in subjects(snapshot)
    # KubeVirt has a plugin for each device, and they are upgraded: one returns, one is new, one stays away.
    before = (
        transition(STARTED, ago=seconds(9000)),
        transition(REGISTERED, KVM, ago=seconds(8990)),
        transition(REGISTERED, TUN, ago=seconds(8990)),
    )
    lost, back = (
        transition(LOST, KVM, ago=seconds(8000)),
        transition(REGISTERED, TUN, ago=seconds(7990)),
    )
    after = (
        transition(REGISTERED, VSOCK, ago=seconds(7990)),
        transition(DROPPED, KVM, ago=seconds(7690)),
    )
    now = (registered(TUN, "t0"), registered(VSOCK, "v0"))
    for history, kubelet in (
        ((transition(STARTED, ago=seconds(8000)), back), 8000),
        ((lost, transition(LOST, TUN, ago=seconds(7999)), back), 9000),
        ((lost,), 9000),
    ):
        snapshot = snapshot_of(
            *before, *history, *after, *now, kubelet=kubelet, written=7690, node=BY_NODE_ONLY
        )
        assert subjects(snapshot) == [KVM]


AMD, RDMA = "amd.com/gpu", "rdma/hca_shared_devices_a"
EIGHT = registered(AMD, *"01234567")


def lost_to_the_node(
    *records: Any, capacity: int = 8, allocatable: int = 0, written: float = 3600, **others: Any
) -> Snapshot:
    """A node with two plugins, whose checkpoint has 8 GPUs, and whose status has none to give."""
    devices = (NodeDevices(AMD, capacity, allocatable), NodeDevices(RDMA, 2, 2))
    worker = replace(WORKER, devices=devices, **others)
    both = (EIGHT, registered(RDMA, "0", "1"))
    return snapshot_of(*both, *records, kubelet=9000, written=written, node=[worker])


def test_the_node_tells_at_once_that_a_plugin_has_ended() -> None:
    seen = (
        transition(STARTED, ago=seconds(9000)),
        transition(REGISTERED, AMD, ago=seconds(8990)),
        transition(REGISTERED, RDMA, ago=seconds(8990)),
    )
    # The kubelet writes nothing when a plugin ends, and drops the resource 5 minutes later.
    just_now = lost_to_the_node(*seen)
    states = resources_of(just_now)
    assert (states[AMD]["registered"], states[AMD]["devices"]) == (False, 0)
    assert (states[RDMA]["registered"], states[RDMA]["devices"]) == (True, 2)
    assert subjects(just_now) == [], "a plugin that restarts has a minute"
    lost = lost_to_the_node(*seen, transition(LOST, AMD, ago=seconds(61)))
    assert "lost it at" in only_finding(lost).message
    assert only_finding(lost).message.endswith("the node's status has capacity 8, allocatable 0")
    # No snapshot of a new agent saw when.
    assert (only_finding(lost_to_the_node()).subject, only_finding(lost_to_the_node()).since) == (
        AMD,
        None,
    )
    # It is back, and the node's status is a moment late; or the node's status is not current.
    for healthy in (
        lost_to_the_node(written=30),
        lost_to_the_node(ready=False),
        lost_to_the_node(allocatable=8),
    ):
        assert (subjects(healthy), resources_of(healthy)[AMD]["registered"]) == ([], True)


def test_a_plugin_that_is_there_and_reports_no_healthy_device_is_told() -> None:
    socket = "kubevirt-kvm.sock"

    def connected(*records: Any, capacity: int = 0) -> Snapshot:
        worker = replace(WORKER, devices=(NodeDevices(KVM, capacity, 0),))
        there = (plugin_socket(socket, ago=seconds(1190)), registered(KVM))
        return snapshot_of(*there, *records, kubelet=1200, written=1189, node=[worker])

    told = only_finding(connected(pod_of(KVM), capacity=4))
    assert (told.severity, told.kinds) == (Severity.WARNING, ("unhealthy",))
    assert told.message == (
        f"{KVM} has no healthy device: its plugin is there (socket {socket}) and reports none of "
        "its 4 devices as healthy"
    )
    assert "reports no device" in only_finding(connected(b.refused_pod("lab/vm"))).message
    assert subjects(connected()) == [], "a node without that hardware"
    lost = (
        transition(STARTED, ago=seconds(1200)),
        transition(REGISTERED, KVM, ago=seconds(1100)),
        transition(LOST, KVM, ago=seconds(300)),
    )
    finding = only_finding(connected(*lost))
    assert (finding.since, finding.kinds) == (NOW - seconds(300), ("unhealthy",))


def pod_of(resource: str) -> Pod:
    return replace(pod("shop/user", phase="Pending"), wants=(resource,))


def test_a_node_that_cannot_run_virtual_machines_is_not_ill() -> None:
    def offered(*records: Any, resource: str = KVM, **others: Any) -> Snapshot:
        worker = replace(WORKER, devices=(NodeDevices(resource, 1000, 0),))
        there = (plugin_socket("kubevirt-kvm.sock", ago=seconds(8990)), registered(resource))
        usual: dict[str, Any] = {"kubelet": 9000, "written": 8989, "node": [worker]}
        return snapshot_of(*there, *records, **(usual | others))

    found = only_finding(offered())
    assert (found.severity, found.kinds) == (Severity.INFO, ("unused",))
    was_healthy = (
        transition(STARTED, ago=seconds(9000)),
        transition(REGISTERED, KVM, ago=seconds(8990)),
        transition(LOST, KVM, ago=seconds(4000)),
    )
    for ill in (
        offered(*was_healthy),
        offered(pod_of(KVM)),
        offered(b.refused_pod("lab/vm")),
        offered(b.allocation("lab/old", KVM, "kvm0")),
        offered(resource=GPU),
    ):
        assert only_finding(ill).severity is Severity.WARNING
    (unknown,), _ = b.findings_and_gap(DETECTOR, without(offered(), "pods"))
    assert unknown.severity is Severity.WARNING


def test_what_only_the_node_names_may_be_set_by_a_controller() -> None:
    eni = "vpc.amazonaws.com/pod-eni"
    worker = replace(WORKER, devices=(NodeDevices(eni, 0, 0),))
    found = only_finding(snapshot_of(pod_of(eni), kubelet=900, node=[worker]))
    assert (found.resource, found.kinds) == (eni, ("missing", "only_in_node"))
    for record in (registered(eni, "eni0"), b.allocation("pay/old", eni, "eni0")):
        recorded = snapshot_of(pod_of(eni), record, kubelet=900, node=[worker])
        assert only_finding(recorded).kinds == ("missing",), "it had a plugin"

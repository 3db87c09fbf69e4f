"""Pods that run without the device they asked for."""

from dataclasses import replace
from typing import Any

from agent.model.devices import TransitionKind
from agent.model.snapshot import Known, Pod, Snapshot
from tests import builders as b
from tests.builders import (
    KVM,
    KVM_SOCKET,
    NOW,
    device_plugins,
    findings_of,
    gap_of,
    node,
    pod,
    transition,
    unavailable,
)
from tests.checks.reported import seconds, with_plugins

DETECTOR = "started_without_device"
RACE = (
    transition(TransitionKind.KUBELET_STARTED, ago=seconds(1000)),
    transition(TransitionKind.SOCKET_APPEARED, socket=KVM_SOCKET, ago=seconds(980.5)),
    transition(TransitionKind.REGISTERED, KVM, ago=seconds(980)),
)


def snapshot_of(
    *records: Any, history: Any = RACE, written: float = 980, kubelet: float = 1000
) -> Snapshot:
    there = (*history, b.plugin_socket(ago=seconds(980.5)), b.registered(KVM, "d0"))
    return with_plugins(*there, *records, kubelet=kubelet, written=written)


def vm(ago: float | None, resource: str = KVM, phase: str = "Running") -> Pod:
    """A pod that started so many seconds ago."""
    started = None if ago is None else NOW - seconds(ago)
    return replace(pod("shop/vm", phase=phase), wants=(resource,), started=started)


def test_a_pod_started_before_the_registration_has_no_device() -> None:
    (finding,) = findings_of(DETECTOR, snapshot_of(vm(990)))
    assert (finding.pod, finding.resource, finding.identity) == (
        "shop/vm",
        KVM,
        ("uid of shop/vm",),
    )
    for owner, times in (("shop/vm", 0), ("shop/other", 1)):
        assert (
            len(findings_of(DETECTOR, snapshot_of(vm(990), b.allocation(owner, KVM, "d0"))))
            == times
        )
    # At the bounds, whole seconds are ambiguous.
    for ago, times in ((1001, 0), (1000, 1), (983, 1), (982, 0), (900, 0)):
        assert len(findings_of(DETECTOR, snapshot_of(vm(ago)))) == times

    # As on a real node: kubelet.sock of 11:51:41.462, a container of 11:51:41Z; the plugin came 5 s later.
    history = (transition(TransitionKind.KUBELET_STARTED, ago=seconds(999.538)), *RACE[1:])
    (finding,) = findings_of(DETECTOR, snapshot_of(vm(1000), history=history, kubelet=999.538))
    assert finding.since == NOW - seconds(1000)
    assert findings_of(DETECTOR, snapshot_of(vm(1001), history=history, kubelet=999.538)) == []


def test_what_cannot_be_said_is_no_finding() -> None:
    removed = device_plugins(*RACE, kubelet_socket=seconds(1000))
    for why, snapshot in {
        "unknown start": snapshot_of(vm(None)),
        "terminated": snapshot_of(vm(990, phase="Failed")),
        "a resource without a plugin": snapshot_of(vm(990, resource="example.org/by-hand")),
        "allocations are unknown without a checkpoint": node(vm(990), device_plugins=removed),
        "a start before a clock step": replace(snapshot_of(vm(990)), uptime=seconds(500)),
    }.items():
        assert findings_of(DETECTOR, snapshot) == [], why


def test_without_an_observed_registration_the_socket_is_the_bound() -> None:
    def without_its_socket(snapshot: Snapshot) -> Snapshot:
        devices = snapshot.device_plugins.known()
        return replace(snapshot, device_plugins=Known(replace(devices, sockets=())))

    early, late = (snapshot_of(vm(ago), history=RACE[:1], written=100) for ago in (990, 500))
    assert len(findings_of(DETECTOR, early)) == 1
    assert findings_of(DETECTOR, late) == findings_of(DETECTOR, without_its_socket(early)) == []
    (finding,) = findings_of(
        DETECTOR, without_its_socket(snapshot_of(vm(500), history=RACE[:1], written=9000))
    )
    assert f"{KVM} was not registered then;" in finding.message

    assert gap_of(DETECTOR, node(pods=unavailable("pods"))).startswith("pods")
    assert gap_of(DETECTOR, node(device_plugins=unavailable("device_plugins"))).startswith(
        "device_plugins"
    )

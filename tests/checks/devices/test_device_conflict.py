"""Allocated devices, compared with those of the plugin, with pods and with each other."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from agent.model.devices import TransitionKind
from agent.model.finding import Severity
from agent.model.snapshot import Container, NodeDevices, Pod, Snapshot
from tests import builders as b
from tests.builders import (
    KVM,
    WORKER,
    allocation,
    findings_of,
    plugin_socket,
    pod,
    registered,
    sandbox,
    transition,
)
from tests.checks.reported import resources_of, seconds, with_plugins

DETECTOR = "device_conflict"
subjects = partial(b.subjects_of, DETECTOR)
SHOP = (pod("shop/a"), pod("shop/b"))


def snapshot_of(
    *records: Any,
    connected: bool | None = True,
    capacity: int = 2,
    allocatable: int = 2,
    written: float = 7190,
    **others: Any,
) -> Snapshot:
    """A node whose plugin offers two devices, d0 and d1."""
    worker = replace(WORKER, devices=(NodeDevices(KVM, capacity, allocatable),))
    there = (plugin_socket(connected=connected), registered(KVM, "d0", "d1"))
    sandboxes = [record for record in records if isinstance(record, Container)]
    records = tuple(record for record in records if not isinstance(record, Container))
    others = {"node": [worker], "containers": [*b.CONTAINERS, *sandboxes]} | others
    return with_plugins(*there, *records, kubelet=9000, written=written, **others)


def test_a_pod_that_has_what_its_plugin_does_not_offer() -> None:
    has = (*SHOP, allocation("shop/a", KVM, "d0", "d7"))
    (finding,) = findings_of(DETECTOR, snapshot_of(*has))
    assert (finding.subject, finding.severity) == (f"{KVM} of pod shop/a", Severity.WARNING)
    assert finding.message == (
        f"pod shop/a has device d7 of {KVM}, which its plugin does not offer any more; it offers 2"
    )
    (unhealthy,) = findings_of(DETECTOR, snapshot_of(*has, capacity=3))
    assert unhealthy.severity is Severity.WARNING
    assert "reports as unhealthy or does not offer" in unhealthy.message
    # Without the Node, nothing confirms that the list of devices is current.
    unproved = findings_of(DETECTOR, snapshot_of(*has, node=[replace(WORKER, ready=False)]))
    assert [each.severity for each in unproved] == [Severity.INFO]
    # If it could not be read, the check says that it could not confirm that.
    unread = b.scanned(b.without(snapshot_of(*has), "node"))
    (gap,) = (gap for gap in unread.gaps if gap.detector == DETECTOR)
    assert gap.why.startswith("node: ")


def test_two_pods_that_have_one_device() -> None:
    both = (allocation("shop/a", KVM, "d0"), allocation("shop/b", KVM, "d0", "d1"))
    (finding,) = findings_of(DETECTOR, snapshot_of(*SHOP, *both))
    assert (finding.pods, finding.severity) == (("shop/a", "shop/b"), Severity.WARNING)
    assert finding.message == f"2 pods have the same device d0 of {KVM}: shop/a, shop/b"


def test_a_pod_that_runs_and_that_the_api_server_does_not_have() -> None:
    snapshot = snapshot_of(allocation("ml/lost", KVM, "d0"), sandbox("d" * 64, "ml/lost"))
    (finding,) = findings_of(DETECTOR, snapshot)
    assert (finding.pod, finding.identity[0]) == ("ml/lost", "uid of ml/lost")
    assert finding.message.endswith(
        "and runs, and the API server does not have it: the scheduler counts its devices as free"
    )
    assert resources_of(snapshot)[KVM]["allocated"] == 1
    # Without the containers it may run or not.
    assert b.gap_of(DETECTOR, b.without(snapshot, "containers")).startswith("containers")
    assert b.gap_of(DETECTOR, b.without(snapshot, "pods")).startswith("pods")


def test_a_pod_that_runs_and_of_whose_device_the_kubelet_has_no_record() -> None:
    def user(ago: float, **changes: Any) -> Pod:
        started = b.NOW - seconds(ago)
        return replace(pod("shop/a"), wants=(KVM,), started=started, **changes)

    (finding,) = findings_of(DETECTOR, snapshot_of(user(90_000)))
    assert (finding.pod, finding.severity) == ("shop/a", Severity.WARNING)
    assert finding.kinds == ("unrecorded",)
    assert "has no record of its device" in finding.message
    early = transition(TransitionKind.REGISTERED, KVM, ago=seconds(95_000))
    before = transition(TransitionKind.KUBELET_STARTED, ago=seconds(95_010))
    start = transition(TransitionKind.KUBELET_STARTED, ago=seconds(9000))
    assert subjects(snapshot_of(user(90_000), before, early, start))
    late = replace(early, at=b.NOW - seconds(80_000))
    for why, snapshot in {
        "it has one": snapshot_of(user(90_000), allocation("shop/a", KVM, "d0")),
        "it started after the kubelet": snapshot_of(user(8000)),
        "it started before the plugin": snapshot_of(user(90_000), before, late, start),
        "only an init container wanted it": snapshot_of(user(90_000, wants_in_init=(KVM,))),
        "DRA serves it": snapshot_of(user(90_000, dra_resources=(KVM,))),
        "it has ended": snapshot_of(user(90_000, phase="Succeeded")),
        "it is being deleted": snapshot_of(user(90_000, deleting=True)),
        "the kubelet has not written since": snapshot_of(user(90_000), written=9100),
        "no plugin offers it": snapshot_of(replace(user(90_000), wants=("example.com/seat",))),
    }.items():
        assert [one for one in findings_of(DETECTOR, snapshot) if "record" in one.subject] == [], (
            why
        )


def test_the_runbook_has_a_step_for_each_conflict() -> None:
    runbook = (Path(__file__).parents[3] / "docs/runbooks/Devices.md").read_text()
    section = runbook.partition("## NodeleakDeviceConflict\n")[2]
    quoted = re.findall(r"^[0-9]\. `([^`]+)`", section, re.MULTILINE)
    lost = (*SHOP, allocation("shop/a", KVM, "d7"))
    both = (allocation("shop/a", KVM, "d0"), allocation("shop/b", KVM, "d0"))
    old = replace(SHOP[0], wants=(KVM,), started=b.NOW - seconds(90_000))
    for snapshot in (
        snapshot_of(*lost),
        snapshot_of(*lost, capacity=3),
        snapshot_of(*SHOP, *both),
        snapshot_of(allocation("ml/lost", KVM, "d0"), sandbox("d" * 64, "ml/lost")),
        snapshot_of(old),
    ):
        (finding,) = findings_of(DETECTOR, snapshot)
        assert sum(words in finding.message for words in quoted) == 1, finding.message


def test_what_is_no_conflict() -> None:
    ended = replace(SHOP[0], phase="Succeeded")
    stale = allocation("shop/a", KVM, "d7")
    for why, snapshot in {
        "the entry of a pod that has ended": snapshot_of(ended, stale),
        "the entry of a pod that is gone": snapshot_of(allocation("ml/gone", KVM, "d0")),
        "its sandbox has stopped": snapshot_of(
            allocation("ml/gone", KVM, "d0"), sandbox("d" * 64, "ml/gone", "exited")
        ),
        "a device of an ended pod that another has now": snapshot_of(
            ended, SHOP[1], allocation("shop/a", KVM, "d0"), allocation("shop/b", KVM, "d0")
        ),
        "containers of one pod share it": snapshot_of(
            *SHOP, *(allocation("shop/a", KVM, "d0", container=name) for name in ("init", "main"))
        ),
        "the pod is being deleted": snapshot_of(replace(SHOP[0], deleting=True), stale),
        "the plugin is away": snapshot_of(*SHOP, stale, connected=False),
        "the list is that of an earlier kubelet": snapshot_of(*SHOP, stale, written=9100),
    }.items():
        assert subjects(snapshot) == [], why

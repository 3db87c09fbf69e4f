"""Why a pod was rejected and whether it is replaced, from the node's files and the pod's status."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from agent.checks.devices import rejected_pod
from agent.checks.devices.history import with_history
from agent.checks.devices.view import kubelet_runs
from agent.model.devices import Allocation, DeviceTransition, PluginSocket, Registered, TransitionKind
from agent.model.rejections import PodOutcome, RejectedPod, RejectionCause, RejectionKind
from agent.model.snapshot import InsufficientData, NotRequested, Pod, Snapshot
from tests.builders import (
    KVM,
    KVM_SOCKET,
    NOW,
    UPTIME,
    allocation,
    device_plugins,
    node,
    plugin_socket,
    pod,
    refused_pod,
    registered,
    transition,
    unavailable,
)
from tests.nodes import devices as lab

STARTED, APPEARED, GONE = TransitionKind.KUBELET_STARTED, TransitionKind.SOCKET_APPEARED, TransitionKind.SOCKET_GONE
REGISTERED, LOST, DROPPED = TransitionKind.REGISTERED, TransitionKind.LOST, TransitionKind.DROPPED
NEW_WORDS = (
    f"Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices {KVM}"
)

Things = PluginSocket | Registered | Allocation | DeviceTransition


def rejected_pods(snapshot: Snapshot) -> tuple[RejectedPod, ...]:
    return tuple(rejected_pod.rejected_pods(with_history(snapshot)))


def seconds(n: float) -> timedelta:
    return timedelta(seconds=n)


THE_RACE: Sequence[DeviceTransition] = (
    transition(STARTED, ago=seconds(1000)),
    transition(APPEARED, socket=KVM_SOCKET, ago=seconds(990.5)),
    transition(REGISTERED, KVM, ago=seconds(990)),
)
"""The kubelet started 1000 s ago, and 10 s later the resource was registered."""


def snapshot_of(
    pods: Sequence[Pod], *records: Things, kubelet: float = 1000, written: float = 990, **others: Any
) -> Snapshot:
    there = (*(records or THE_RACE), plugin_socket(ago=seconds(990.5)), registered(KVM, "d0"))
    devices = device_plugins(*there, kubelet_socket=seconds(kubelet), checkpoint_written=seconds(written))
    return node(*pods, device_plugins=devices, **others)


def rejection_of(pod: Pod, *records: Things, **others: Any) -> RejectedPod:
    (one,) = rejected_pods(snapshot_of([pod], *records, **others))
    return one


def cause(pod: Pod, *records: Things, **others: Any) -> RejectionCause:
    return rejection_of(pod, *records, **others).cause


def vm(ago: float, **others: Any) -> Pod:
    """A pod that was rejected `ago` seconds ago."""
    return refused_pod("shop/vm", ago=seconds(ago), **others)


def rejected(pod: Pod, **changes: Any) -> Pod:
    assert pod.rejection is not None
    return replace(pod, rejection=replace(pod.rejection, **changes))


# The race


def test_a_pod_rejected_between_kubelet_start_and_registration_lost_the_race() -> None:
    one = rejection_of(vm(995))
    assert (one.cause, one.resource, one.pod) == (RejectionCause.KUBELET_RESTART, KVM, "shop/vm")
    assert f"{KVM} was registered 10.0 s later" in one.why


@pytest.mark.parametrize(
    ("ago", "expected"),
    [
        (1001, RejectionCause.UNVERIFIED),
        (1000, RejectionCause.KUBELET_RESTART),
        (992, RejectionCause.KUBELET_RESTART),
        (991, RejectionCause.UNVERIFIED),
        (990, RejectionCause.EXHAUSTED),
    ],
)
def test_a_rejection_time_covers_its_whole_second(ago: float, expected: RejectionCause) -> None:
    """The plugin bound its socket 990.5 s ago, and was registered 990 s ago."""
    assert cause(vm(ago)) is expected


SLOW: Sequence[DeviceTransition] = (THE_RACE[0], transition(REGISTERED, KVM, ago=seconds(900)))


@pytest.mark.parametrize(("skew", "ago", "expected"), [
    (None, 996, RejectionCause.UNVERIFIED),
    (None, 995, RejectionCause.KUBELET_RESTART),
    (None, 906, RejectionCause.KUBELET_RESTART),
    (None, 905, RejectionCause.UNVERIFIED),
    (None, 896, RejectionCause.UNVERIFIED),
    (None, 895, RejectionCause.EXHAUSTED),
    (seconds(2.4), 895, RejectionCause.EXHAUSTED),
    (seconds(-30), 966, RejectionCause.UNVERIFIED),
    (seconds(-30), 965, RejectionCause.KUBELET_RESTART),
    (seconds(30), 936, RejectionCause.KUBELET_RESTART),
    (seconds(30), 935, RejectionCause.UNVERIFIED),
    (seconds(30), 866, RejectionCause.UNVERIFIED),
    (seconds(30), 865, RejectionCause.EXHAUSTED),
])  # fmt: skip
def test_a_time_of_the_api_server_is_as_uncertain_as_the_clock_skew(
    skew: timedelta | None, ago: float, expected: RejectionCause
) -> None:
    pod = rejected(vm(ago), by_api=True)
    (one,) = rejected_pods(replace(snapshot_of([pod], *SLOW), api_skew=skew))
    assert one.cause is expected


@pytest.mark.parametrize("ago", [1003, 996, 905, 896])
@pytest.mark.parametrize(
    "rejected_one",
    [RejectionKind.UNREGISTERED, RejectionKind.NO_HEALTHY, RejectionKind.PLUGIN_GONE, RejectionKind.NO_CAPACITY],
)
def test_if_times_are_ambiguous_the_kubelets_message_decides(rejected_one: RejectionKind, ago: float) -> None:
    assert cause(rejected(vm(ago, refused=rejected_one), by_api=True), *SLOW) is RejectionCause.KUBELET_RESTART


def test_a_rejection_of_either_kubelet_run_is_unverified() -> None:
    before = (transition(STARTED, ago=seconds(5000)), transition(REGISTERED, KVM, ago=seconds(4990)))
    assert cause(rejected(vm(998), by_api=True), *before, *SLOW) is RejectionCause.UNVERIFIED


def test_a_boot_is_the_cause_of_the_kubelet_start() -> None:
    booted = seconds(1060)
    snapshot = replace(snapshot_of([vm(995)], transition(GONE, socket="x", ago=UPTIME)), uptime=booted)
    (one,) = rejected_pods(snapshot)
    assert one.cause is RejectionCause.NODE_REBOOT
    long_ago = replace(snapshot, uptime=seconds(1000 + 16 * 60))
    assert [one.cause for one in rejected_pods(long_ago)] == [RejectionCause.KUBELET_RESTART]


def test_an_earlier_boot_is_known_from_the_snapshot_of_that_kubelet_start() -> None:
    earlier = (
        replace(transition(STARTED, ago=seconds(90_000), boot_id="before"), uptime=seconds(50)),
        replace(transition(REGISTERED, KVM, ago=seconds(89_990), boot_id="before"), uptime=seconds(60)),
        transition(LOST, KVM, ago=seconds(50_000), boot_id="before"),
    )
    assert cause(vm(89_995), *earlier, *THE_RACE) is RejectionCause.NODE_REBOOT


def test_a_resource_not_registered_yet_is_still_in_the_race() -> None:
    snapshot = node(vm(995), device_plugins=device_plugins(registered(KVM), kubelet_socket=seconds(1000)))
    (one,) = rejected_pods(snapshot)
    assert one.cause is RejectionCause.KUBELET_RESTART
    assert "has not been registered since" in one.why


def test_the_last_kubelet_start_before_the_rejection_counts() -> None:
    twice = (
        transition(STARTED, ago=seconds(5000)),
        transition(REGISTERED, KVM, ago=seconds(4990)),
        *THE_RACE,
    )
    assert cause(vm(4995), *twice) is RejectionCause.KUBELET_RESTART
    assert cause(vm(3000), *twice) is RejectionCause.EXHAUSTED
    assert cause(vm(995), *twice) is RejectionCause.KUBELET_RESTART


def test_a_kubelet_that_restarts_before_the_plugin_registers_loses_the_race() -> None:
    one = rejection_of(vm(1010), transition(STARTED, ago=seconds(1015)), *THE_RACE)
    assert one.cause is RejectionCause.KUBELET_RESTART
    assert f"{KVM} was not registered before the kubelet started again" in one.why


def test_a_rejection_older_than_every_known_start_is_unverified() -> None:
    assert cause(vm(5000)) is RejectionCause.UNVERIFIED


def test_without_a_time_or_a_resource_a_rejection_is_unverified() -> None:
    assert cause(rejected(vm(995), at=None)) is RejectionCause.UNVERIFIED
    assert cause(rejected(vm(995), resource="")) is RejectionCause.UNVERIFIED
    assert cause(rejected(vm(995), refused=RejectionKind.OTHER)) is RejectionCause.UNVERIFIED


def test_after_a_clock_step_a_rejection_is_unverified() -> None:
    stepped = replace(snapshot_of([vm(995)], *THE_RACE), uptime=seconds(500))
    assert [one.cause for one in rejected_pods(stepped)] == [RejectionCause.UNVERIFIED]


def test_a_resource_named_like_a_socket_belongs_to_that_socket() -> None:
    pod = rejected(vm(995), refused=RejectionKind.PLUGIN_GONE, resource="guessed/one", socket=KVM_SOCKET)
    assert (rejection_of(pod).resource, rejection_of(pod).cause) == (KVM, RejectionCause.KUBELET_RESTART)


@pytest.mark.parametrize(
    "rejected_one",
    [RejectionKind.UNREGISTERED, RejectionKind.NO_HEALTHY, RejectionKind.PLUGIN_GONE, RejectionKind.NO_CAPACITY],
)
def test_every_variant_of_the_race_is_recognized(rejected_one: RejectionKind) -> None:
    assert cause(vm(995, refused=rejected_one)) is RejectionCause.KUBELET_RESTART


# A registration that was not observed in time: the agent started later


def test_without_an_observed_registration_the_socket_bounds_the_race() -> None:
    snapshot = snapshot_of([vm(995)], transition(STARTED, ago=seconds(1000)), written=100)
    assert [one.cause for one in rejected_pods(snapshot)] == [RejectionCause.KUBELET_RESTART]
    later = snapshot_of([vm(500)], transition(STARTED, ago=seconds(1000)), written=100)
    assert [one.cause for one in rejected_pods(later)] == [RejectionCause.EXHAUSTED]
    nobody_saw = (transition(STARTED, ago=seconds(1000)), transition(REGISTERED, KVM, ago=seconds(100), exact=False))
    assert cause(vm(500), *nobody_saw) is RejectionCause.UNVERIFIED


@pytest.mark.parametrize(("rejected_one", "ago", "expected"), [
    (RejectionKind.INSUFFICIENT, 950, RejectionCause.UNVERIFIED),
    (RejectionKind.NO_HEALTHY, 950, RejectionCause.KUBELET_RESTART),
    (RejectionKind.NO_HEALTHY, 600, RejectionCause.UNVERIFIED),
])  # fmt: skip
def test_without_a_socket_only_the_message_decides(
    rejected_one: RejectionKind, ago: float, expected: RejectionCause
) -> None:
    devices = device_plugins(
        registered(KVM, "d0"), kubelet_socket=seconds(1000), checkpoint_written=seconds(100)
    )  # fmt: skip
    (one,) = rejected_pods(node(vm(ago, refused=rejected_one), device_plugins=devices))
    assert one.cause is expected


def test_the_message_of_a_kubelet_that_still_knows_the_resource_is_no_race_later() -> None:
    """The agent came later than all that, and the plugin has bound its socket once more."""
    recreated = (
        THE_RACE[0],
        transition(APPEARED, socket=KVM_SOCKET, ago=seconds(500)),
        transition(REGISTERED, KVM, ago=seconds(500)),
    )
    assert cause(vm(641), *recreated) is RejectionCause.KUBELET_RESTART
    assert cause(vm(640), *recreated) is RejectionCause.UNVERIFIED
    assert cause(vm(640, refused=RejectionKind.UNREGISTERED), *recreated) is RejectionCause.KUBELET_RESTART
    assert cause(vm(640), THE_RACE[0], written=2000) is RejectionCause.UNVERIFIED


# No race


def test_no_free_device_is_exhausted_only_while_the_resource_is_registered() -> None:
    assert cause(vm(500)) is RejectionCause.EXHAUSTED
    assert cause(rejected(vm(500), available=None)) is RejectionCause.UNVERIFIED
    assert cause(vm(500), *THE_RACE, lost(470)) is RejectionCause.UNVERIFIED


def test_too_few_free_devices_is_always_exhausted() -> None:
    assert cause(vm(995, available=1)) is RejectionCause.EXHAUSTED
    assert cause(vm(500, available=1)) is RejectionCause.EXHAUSTED


def test_a_scarce_resource_may_not_belong_to_a_plugin() -> None:
    message = "Pod Node didn't have enough resource: example.org/dongle, requested: 1, used: 4, capacity: 4"
    pod = rejected(vm(995), resource="example.org/dongle", message=message)
    assert cause(pod) is RejectionCause.EXHAUSTED


def test_a_plugin_absent_at_the_rejection_was_restarted() -> None:
    away = (
        *THE_RACE,
        transition(LOST, KVM, ago=seconds(505)),
        transition(APPEARED, socket=KVM_SOCKET, ago=seconds(495)),
        transition(REGISTERED, KVM, ago=seconds(494)),
    )
    assert cause(vm(500), *away) is RejectionCause.PLUGIN_RESTART
    assert cause(vm(400), *away) is RejectionCause.EXHAUSTED


def test_a_plugin_that_recreated_its_socket_right_after_was_restarted() -> None:
    recreated = (*THE_RACE, transition(APPEARED, socket=KVM_SOCKET, ago=seconds(495)))
    assert cause(vm(500, refused=RejectionKind.NO_HEALTHY), *recreated) is RejectionCause.PLUGIN_RESTART
    assert cause(vm(500, refused=RejectionKind.PLUGIN_GONE)) is RejectionCause.PLUGIN_RESTART
    assert cause(vm(500, refused=RejectionKind.UNREGISTERED)) is RejectionCause.UNVERIFIED


ALL = allocation("shop/other", KVM, "d0")
OTHER = replace(pod("shop/other"), started=NOW - seconds(900))


def lost(ago: float, *, exact: bool = False, observed: float | None = None) -> DeviceTransition:
    one = transition(LOST, KVM, ago=seconds(ago), exact=exact)
    return replace(one, uptime=UPTIME - seconds(ago if observed is None else observed))


def test_what_was_lost_between_two_snapshots_may_have_been_lost_before_the_rejection() -> None:
    for after, expected in ((1.8, RejectionCause.UNVERIFIED), (61, RejectionCause.EXHAUSTED)):
        assert cause(vm(500), *THE_RACE, lost(500 - after)) is expected


def test_a_loss_seen_together_with_the_registration_may_be_much_older() -> None:
    came = replace(THE_RACE[-1], uptime=UPTIME)
    together = (*THE_RACE[:-1], came, lost(0, observed=0))
    assert cause(vm(500), *together) is RejectionCause.UNVERIFIED
    assert cause(vm(500), *THE_RACE, lost(0)) is RejectionCause.EXHAUSTED


def test_a_rejection_in_the_second_of_a_loss_is_verified_only_by_the_message() -> None:
    in_that_second = (*THE_RACE, lost(499.5, exact=True))
    assert cause(vm(500), *in_that_second) is RejectionCause.UNVERIFIED
    assert cause(vm(500, refused=RejectionKind.UNREGISTERED), *in_that_second) is RejectionCause.PLUGIN_RESTART
    assert cause(vm(500), *THE_RACE, lost(499, exact=True)) is RejectionCause.EXHAUSTED


def test_an_absence_counts_even_after_the_plugin_returned() -> None:
    """Snapshots show that it was absent; its later return does not change that."""
    gone = (*THE_RACE, lost(505), transition(GONE, socket=KVM_SOCKET, ago=seconds(504)))
    back = (transition(APPEARED, socket=KVM_SOCKET, ago=seconds(20)), transition(REGISTERED, KVM, ago=seconds(19.9)))
    devices = device_plugins(
        *gone, registered(KVM, "d0"), kubelet_socket=seconds(1000), checkpoint_written=seconds(990)
    )  # fmt: skip
    assert [one.cause for one in rejected_pods(node(vm(500), device_plugins=devices))] == [
        RejectionCause.PLUGIN_RESTART
    ]
    assert cause(vm(500), *gone, *back) is RejectionCause.PLUGIN_RESTART


# By the times of a real node (kubelet 1.20)


def real(pods: Sequence[Pod], bound: str, socket: str, written: str, given: int = 0) -> Snapshot:
    """The first snapshot, two minutes later; every allocated device belongs to the pod listed first."""

    def at(text: str) -> datetime:
        return datetime.fromisoformat(f"2026-11-21T{text}+00:00")

    allocations = [Allocation("uid of shop/first", "main", lab.KVM, tuple(f"d{n}" for n in range(given)))]
    first = replace(pod("shop/first"), started=at(written).replace(microsecond=0) + seconds(1))
    return lab.lab(
        *pods,
        *([first] if given else []),
        bound=at(bound),
        socket=at(socket),
        written=at(written),
        allocations=allocations,
        at=at(written) + timedelta(minutes=2),
    )


@pytest.mark.parametrize(("at", "expected"), [
    ("11:30:02", RejectionCause.UNVERIFIED),
    ("11:30:03", RejectionCause.KUBELET_RESTART),
    ("11:30:16", RejectionCause.KUBELET_RESTART),
    ("11:30:17", RejectionCause.UNVERIFIED),
    ("11:30:18", RejectionCause.EXHAUSTED),
])  # fmt: skip
def test_a_late_plugin(at: str, expected: RejectionCause) -> None:
    """Of 30 pods the first was rejected in the second of kubelet.sock, the last in that of the registration."""
    rejected_one = lab.refused(
        "vm", f"Pod Allocate failed due to {lab.TOO_FEW}, which is unexpected", f"2026-11-21T{at}Z"
    )
    (one,) = rejected_pods(real([rejected_one], "11:30:03.775", "11:30:17.518", "11:30:17.729", given=2))
    assert one.cause is expected
    assert expected is not RejectionCause.KUBELET_RESTART or "was registered 14.0 s later" in one.why


def test_a_pod_that_requested_more_than_was_left_right_after_registration() -> None:
    """The plugin came 4.3 s late, another pod took all at 11:41:12.114, and this one was rejected at 11:41:14Z."""
    message = f"Pod Allocate failed due to {lab.TOO_FEW}, which is unexpected"
    rejected_one = lab.refused("c-2", message, "2026-11-21T11:41:14Z")
    times = ("11:41:02.422", "11:41:06.759", "11:41:12.114")
    assert [one.cause for one in rejected_pods(real([rejected_one], *times, given=3))] == [RejectionCause.EXHAUSTED]
    by_api = lab.refused("c-2", message, "", **lab.written_by_kubelet("2026-11-21T11:41:14Z"))
    assert [one.cause for one in rejected_pods(real([by_api], *times, given=3))] == [RejectionCause.EXHAUSTED]


def test_without_the_kubelets_socket_a_rejection_is_unverified() -> None:
    devices = device_plugins(registered(KVM, "d0"), kubelet_socket=None)
    assert kubelet_runs(()) == ()
    assert [one.cause for one in rejected_pods(node(vm(500), device_plugins=devices))] == [RejectionCause.UNVERIFIED]


def test_a_dropped_resource_had_no_plugin() -> None:
    gone = (*THE_RACE, transition(DROPPED, KVM, ago=seconds(505)))
    snapshot = node(
        vm(500, refused=RejectionKind.UNREGISTERED), device_plugins=device_plugins(*gone, kubelet_socket=seconds(1000))
    )
    assert [one.cause for one in rejected_pods(snapshot)] == [RejectionCause.PLUGIN_RESTART]


def test_unhealthy_devices_of_a_present_plugin_are_the_cause() -> None:
    unhealthy = (*THE_RACE, transition(LOST, KVM, ago=seconds(505)))
    devices = device_plugins(
        *unhealthy,
        plugin_socket(ago=seconds(990.5)),
        registered(KVM),
        kubelet_socket=seconds(1000),
        checkpoint_written=seconds(505),
    )
    (one,) = rejected_pods(node(vm(500), device_plugins=devices))
    assert one.cause is RejectionCause.UNHEALTHY
    assert cause(vm(500, refused=RejectionKind.NO_HEALTHY)) is RejectionCause.UNHEALTHY


def test_newer_kubelets_reject_a_running_pod_whose_init_container_requests_a_device() -> None:
    ran = rejected(vm(995, refused=RejectionKind.NO_HEALTHY), message=NEW_WORDS)
    ran = replace(ran, started=NOW - seconds(9000), wants_in_init=(KVM,))
    assert cause(ran) is RejectionCause.INIT_CONTAINER
    assert cause(replace(ran, wants_in_init=())) is RejectionCause.KUBELET_RESTART
    assert cause(replace(ran, started=None)) is RejectionCause.KUBELET_RESTART
    assert (
        cause(replace(ran, started=None), *THE_RACE, allocation("shop/vm", KVM, "d0")) is RejectionCause.INIT_CONTAINER
    )
    old_words = "Pod Allocate failed due to can't allocate unregistered device"
    assert cause(rejected(ran, message=old_words)) is RejectionCause.KUBELET_RESTART


def test_a_job_pod_that_ran_was_admitted_again_after_it_ended() -> None:
    ran = replace(rejected(vm(995), message=NEW_WORDS), started=NOW - seconds(9000), controller="Job/once")
    assert cause(ran) is RejectionCause.READMITTED_AFTER_COMPLETION
    assert cause(replace(ran, started=None)) is RejectionCause.KUBELET_RESTART


# Which pods, and what was read


def test_only_rejected_pods_that_are_not_replaced_are_reported() -> None:
    pods = [
        vm(995),
        replace(vm(995), name="shop/pending", phase="Pending"),
        replace(vm(995), name="shop/broken", rejection=None),
        replace(vm(995), name="shop/going", deleting=True, deletion=NOW - seconds(30)),
    ]
    assert [one.pod for one in rejected_pods(snapshot_of(pods))] == ["shop/vm"]


@pytest.mark.parametrize("reading", [unavailable("device_plugins"), NotRequested("device_plugins", "none")])
def test_without_device_plugins_pods_are_listed_without_a_cause(reading: Any) -> None:
    (one,) = rejected_pods(node(vm(995), device_plugins=reading))
    assert (one.cause, one.pod_outcome) == (RejectionCause.UNVERIFIED, PodOutcome.STUCK)


def test_without_the_pods_rejections_are_unavailable() -> None:
    with pytest.raises(InsufficientData):
        rejected_pods(node(pods=unavailable("pods")))


# Fates


@pytest.mark.parametrize(
    ("controller", "ago", "pod_outcome"),
    [
        ("", 995, PodOutcome.STUCK),
        ("VirtualMachineInstance/vm", 995, PodOutcome.STUCK),
        ("ReplicaSet/web-5d8f", 995, PodOutcome.REPLACED_BY_CONTROLLER),
        ("Job/once", 995, PodOutcome.REPLACED_BY_CONTROLLER),
        ("StatefulSet/db", 119, PodOutcome.REPLACED_BY_CONTROLLER),
        ("StatefulSet/db", 121, PodOutcome.STUCK),
        ("DaemonSet/logs", 959, PodOutcome.REPLACED_BY_CONTROLLER),
        ("DaemonSet/logs", 961, PodOutcome.STUCK),
    ],
)
def test_a_pod_is_replaced_only_by_its_controller(controller: str, ago: float, pod_outcome: PodOutcome) -> None:
    assert rejection_of(vm(ago, controller=controller)).pod_outcome is pod_outcome


def deleted(ago: float, *finalizers: str) -> Pod:
    gone = vm(995, controller="ReplicaSet/web", deleting=True)
    return replace(gone, deletion=NOW - seconds(ago), finalizers=finalizers)


def test_a_deleted_pod_that_remains_is_stuck() -> None:
    assert rejected_pods(snapshot_of([deleted(60)])) == ()
    one = rejection_of(deleted(61))
    assert one.pod_outcome is PodOutcome.TERMINATING_STUCK
    assert "the kubelet has not finished deleting it" in one.do
    assert "its finalizers remain: example.org/lock" in rejection_of(deleted(61, "example.org/lock")).do


def test_a_deletion_is_timed_by_the_api_server() -> None:
    assert [one.pod_outcome for one in rejected_pods(replace(snapshot_of([deleted(50)]), api_skew=seconds(30)))] == [
        PodOutcome.TERMINATING_STUCK
    ]
    assert rejected_pods(replace(snapshot_of([deleted(70)]), api_skew=seconds(-30))) == ()


@pytest.mark.parametrize("controller", ["", "ReplicaSet/web", "Job/once", "StatefulSet/db"])
def test_the_advice_never_contains_force_deletion(controller: str) -> None:
    for rejected_one in (vm(995, controller=controller), deleted(600)):
        assert "--force" in rejection_of(rejected_one).do
        assert "never use --force" in rejection_of(rejected_one).do


def test_the_advice_says_whether_devices_are_available_again() -> None:
    assert "its devices are healthy again)" in rejection_of(vm(995)).do
    waiting = node(vm(995), device_plugins=device_plugins(registered(KVM), kubelet_socket=seconds(1000)))
    assert "once its devices are healthy again" in rejected_pods(waiting)[0].do
    assert "once a device is free" in rejection_of(vm(500)).do

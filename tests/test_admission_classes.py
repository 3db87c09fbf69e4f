"""Why a pod was refused, and what becomes of it: by what the node's files and the pod's status tell together."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from agent import admission
from agent.model.admission import Cause, Fate, Refused, Stranded
from agent.model.devices import Allocation, Happening, Milestone, PluginSocket, Registered
from agent.model.snapshot import Blind, NotAsked, Pod, Snapshot
from tests.builders import (
    KVM,
    KVM_SOCKET,
    NOW,
    UPTIME,
    allocation,
    device_plugins,
    milestone,
    node,
    plugin_socket,
    refused_pod,
    registered,
    unread,
)

STARTED, APPEARED, GONE = Happening.KUBELET_STARTED, Happening.SOCKET_APPEARED, Happening.SOCKET_GONE
REGISTERED, LOST, DROPPED = Happening.REGISTERED, Happening.LOST, Happening.DROPPED
NEW_WORDS = (
    f"Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices {KVM}"
)

Things = PluginSocket | Registered | Allocation | Milestone


def seconds(n: float) -> timedelta:
    return timedelta(seconds=n)


THE_RACE: Sequence[Milestone] = (
    milestone(STARTED, ago=seconds(1000)),
    milestone(APPEARED, socket=KVM_SOCKET, ago=seconds(990.5)),
    milestone(REGISTERED, KVM, ago=seconds(990)),
)
"""The kubelet started 1000 s ago, and 10 s later the resource was registered."""


def look(pods: Sequence[Pod], *things: Things, kubelet: float = 1000, written: float = 990, **others: Any) -> Snapshot:
    there = (*(things or THE_RACE), plugin_socket(ago=seconds(990.5)), registered(KVM, "d0"))
    devices = device_plugins(*there, kubelet_socket=seconds(kubelet), checkpoint_written=seconds(written))
    return node(*pods, device_plugins=devices, **others)


def judged(pod: Pod, *things: Things, **others: Any) -> Stranded:
    (one,) = admission.judge(look([pod], *things, **others))
    return one


def cause(pod: Pod, *things: Things, **others: Any) -> Cause:
    return judged(pod, *things, **others).cause


def vm(ago: float, **others: Any) -> Pod:
    """A pod that was refused so many seconds ago."""
    return refused_pod("shop/vm", ago=seconds(ago), **others)


def rejected(pod: Pod, **changes: Any) -> Pod:
    assert pod.rejection is not None
    return replace(pod, rejection=replace(pod.rejection, **changes))


# The race


def test_a_pod_between_the_kubelets_start_and_the_registration_lost_the_race() -> None:
    one = judged(vm(995))
    assert (one.cause, one.resource, one.pod) == (Cause.KUBELET_RESTART, KVM, "shop/vm")
    assert f"{KVM} was registered 10.0 s later" in one.why


@pytest.mark.parametrize(("ago", "expected"), [(1002, "race"), (1003, "unverified"), (988, "race"), (987, "exhausted")])
def test_the_bounds_of_the_race_are_as_wide_as_the_kubelets_seconds(ago: float, expected: str) -> None:
    verdict = cause(vm(ago))
    assert ("race" if verdict is Cause.KUBELET_RESTART else verdict.value) == expected


@pytest.mark.parametrize(("skew", "ago", "expected"), [
    (None, 985, Cause.KUBELET_RESTART),
    (None, 984, Cause.EXHAUSTED),
    (seconds(30), 955, Cause.KUBELET_RESTART),
    (seconds(-30), 1035, Cause.KUBELET_RESTART),
    (seconds(30), 954, Cause.EXHAUSTED),
    (seconds(30), 1036, Cause.UNVERIFIED),
])  # fmt: skip
def test_a_time_by_the_api_servers_clock_is_compared_within_what_the_clocks_differ(
    skew: timedelta | None, ago: float, expected: Cause
) -> None:
    pod = rejected(vm(ago), by_api=True)
    (one,) = admission.judge(replace(look([pod]), api_skew=skew))
    assert one.cause is expected


def test_a_node_that_booted_is_the_cause_of_its_kubelets_start() -> None:
    booted = seconds(1060)
    snapshot = replace(look([vm(995)], milestone(GONE, socket="x", ago=UPTIME)), uptime=booted)
    (one,) = admission.judge(snapshot)
    assert one.cause is Cause.NODE_REBOOT
    long_ago = replace(snapshot, uptime=seconds(1000 + 16 * 60))
    assert [one.cause for one in admission.judge(long_ago)] == [Cause.KUBELET_RESTART]


def test_a_boot_that_is_past_is_told_by_the_look_that_saw_the_kubelet_start() -> None:
    earlier = (
        replace(milestone(STARTED, ago=seconds(90_000), boot_id="before"), uptime=seconds(50)),
        replace(milestone(REGISTERED, KVM, ago=seconds(89_990), boot_id="before"), uptime=seconds(60)),
        milestone(LOST, KVM, ago=seconds(50_000), boot_id="before"),
    )
    assert cause(vm(89_995), *earlier, *THE_RACE) is Cause.NODE_REBOOT


def test_a_resource_that_is_not_registered_yet_is_still_in_the_race() -> None:
    snapshot = node(vm(995), device_plugins=device_plugins(registered(KVM), kubelet_socket=seconds(1000)))
    (one,) = admission.judge(snapshot)
    assert one.cause is Cause.KUBELET_RESTART
    assert "is not registered since" in one.why


def test_of_several_starts_the_one_before_the_refusal_counts() -> None:
    twice = (
        milestone(STARTED, ago=seconds(5000)),
        milestone(REGISTERED, KVM, ago=seconds(4990)),
        *THE_RACE,
    )
    assert cause(vm(4995), *twice) is Cause.KUBELET_RESTART
    assert cause(vm(3000), *twice) is Cause.EXHAUSTED
    assert cause(vm(995), *twice) is Cause.KUBELET_RESTART


def test_a_kubelet_that_restarted_before_the_plugin_came_lost_the_race_too() -> None:
    one = judged(vm(1010), milestone(STARTED, ago=seconds(1015)), *THE_RACE)
    assert one.cause is Cause.KUBELET_RESTART
    assert f"{KVM} was not registered before it started again" in one.why


def test_older_than_every_start_that_is_known_nothing_is_verified() -> None:
    assert cause(vm(5000)) is Cause.UNVERIFIED


def test_without_a_time_or_a_resource_nothing_is_verified() -> None:
    assert cause(rejected(vm(995), at=None)) is Cause.UNVERIFIED
    assert cause(rejected(vm(995), resource="")) is Cause.UNVERIFIED
    assert cause(rejected(vm(995), refused=Refused.OTHER)) is Cause.UNVERIFIED


def test_when_the_clock_was_set_since_nothing_is_verified() -> None:
    stepped = replace(look([vm(995)], *THE_RACE), uptime=seconds(500))
    assert [one.cause for one in admission.judge(stepped)] == [Cause.UNVERIFIED]


def test_a_resource_that_a_socket_names_is_that_sockets() -> None:
    pod = rejected(vm(995), refused=Refused.PLUGIN_GONE, resource="guessed/one", socket=KVM_SOCKET)
    assert (judged(pod).resource, judged(pod).cause) == (KVM, Cause.KUBELET_RESTART)


@pytest.mark.parametrize(
    "refused", [Refused.UNREGISTERED, Refused.NO_HEALTHY, Refused.PLUGIN_GONE, Refused.NO_CAPACITY]
)
def test_every_face_of_the_race_is_the_race(refused: Refused) -> None:
    assert cause(vm(995, refused=refused)) is Cause.KUBELET_RESTART


# A registration that nobody saw in time: the agent was started later


def test_where_nobody_saw_the_registration_the_plugins_socket_bounds_the_race() -> None:
    snapshot = look([vm(995)], milestone(STARTED, ago=seconds(1000)), written=100)
    assert [one.cause for one in admission.judge(snapshot)] == [Cause.KUBELET_RESTART]
    later = look([vm(500)], milestone(STARTED, ago=seconds(1000)), written=100)
    assert [one.cause for one in admission.judge(later)] == [Cause.UNVERIFIED]


@pytest.mark.parametrize(("refused", "ago", "expected"), [
    (Refused.INSUFFICIENT, 950, Cause.UNVERIFIED),
    (Refused.NO_HEALTHY, 950, Cause.KUBELET_RESTART),
    (Refused.NO_HEALTHY, 600, Cause.UNVERIFIED),
])  # fmt: skip
def test_without_a_socket_only_the_words_bound_it(refused: Refused, ago: float, expected: Cause) -> None:
    devices = device_plugins(
        registered(KVM, "d0"), kubelet_socket=seconds(1000), checkpoint_written=seconds(100)
    )  # fmt: skip
    (one,) = admission.judge(node(vm(ago, refused=refused), device_plugins=devices))
    assert one.cause is expected


# No race


def test_all_given_out_is_exhausted_only_while_the_resource_was_registered() -> None:
    assert cause(vm(500)) is Cause.EXHAUSTED
    assert cause(rejected(vm(500), available=None)) is Cause.UNVERIFIED
    lost = (*THE_RACE, milestone(LOST, KVM, ago=seconds(470), exact=False))
    assert cause(vm(500), *lost) is Cause.UNVERIFIED


def test_too_few_free_devices_is_exhausted_at_any_time() -> None:
    assert cause(vm(995, available=1)) is Cause.EXHAUSTED
    assert cause(vm(500, available=1)) is Cause.EXHAUSTED


def test_what_the_node_has_too_few_of_need_not_be_a_plugins() -> None:
    message = "Pod Node didn't have enough resource: example.org/dongle, requested: 1, used: 4, capacity: 4"
    pod = rejected(vm(995), resource="example.org/dongle", message=message)
    assert cause(pod) is Cause.EXHAUSTED


def test_a_plugin_that_was_away_when_the_pod_came_was_restarted() -> None:
    away = (
        *THE_RACE,
        milestone(LOST, KVM, ago=seconds(505)),
        milestone(APPEARED, socket=KVM_SOCKET, ago=seconds(495)),
        milestone(REGISTERED, KVM, ago=seconds(494)),
    )
    assert cause(vm(500), *away) is Cause.PLUGIN_RESTART
    assert cause(vm(400), *away) is Cause.EXHAUSTED


def test_a_plugin_that_made_its_socket_anew_right_after_was_restarted() -> None:
    anew = (*THE_RACE, milestone(APPEARED, socket=KVM_SOCKET, ago=seconds(495)))
    assert cause(vm(500, refused=Refused.NO_HEALTHY), *anew) is Cause.PLUGIN_RESTART
    assert cause(vm(500, refused=Refused.PLUGIN_GONE)) is Cause.PLUGIN_RESTART
    assert cause(vm(500, refused=Refused.UNREGISTERED)) is Cause.UNVERIFIED


def test_a_resource_that_was_dropped_had_no_plugin() -> None:
    gone = (*THE_RACE, milestone(DROPPED, KVM, ago=seconds(505)))
    snapshot = node(
        vm(500, refused=Refused.UNREGISTERED), device_plugins=device_plugins(*gone, kubelet_socket=seconds(1000))
    )
    assert [one.cause for one in admission.judge(snapshot)] == [Cause.PLUGIN_RESTART]


def test_devices_that_are_sick_while_their_plugin_is_there_are_unhealthy() -> None:
    sick = (*THE_RACE, milestone(LOST, KVM, ago=seconds(505)))
    devices = device_plugins(
        *sick,
        plugin_socket(ago=seconds(990.5)),
        registered(KVM),
        kubelet_socket=seconds(1000),
        checkpoint_written=seconds(505),
    )
    (one,) = admission.judge(node(vm(500), device_plugins=devices))
    assert one.cause is Cause.UNHEALTHY
    assert cause(vm(500, refused=Refused.NO_HEALTHY)) is Cause.UNHEALTHY


def test_a_running_pod_whose_init_container_asks_for_the_device_is_asked_again_by_newer_kubelets() -> None:
    ran = rejected(vm(995, refused=Refused.NO_HEALTHY), message=NEW_WORDS)
    ran = replace(ran, started=NOW - seconds(9000), wants_in_init=(KVM,))
    assert cause(ran) is Cause.INIT_CONTAINER
    assert cause(replace(ran, wants_in_init=())) is Cause.KUBELET_RESTART
    assert cause(replace(ran, started=None)) is Cause.KUBELET_RESTART
    assert cause(replace(ran, started=None), *THE_RACE, allocation("shop/vm", KVM, "d0")) is Cause.INIT_CONTAINER
    old_words = "Pod Allocate failed due to can't allocate unregistered device"
    assert cause(rejected(ran, message=old_words)) is Cause.KUBELET_RESTART


def test_a_jobs_pod_that_had_run_was_admitted_again_after_its_end() -> None:
    ran = replace(rejected(vm(995), message=NEW_WORDS), started=NOW - seconds(9000), controller="Job/once")
    assert cause(ran) is Cause.READMITTED_AFTER_COMPLETION
    assert cause(replace(ran, started=None)) is Cause.KUBELET_RESTART


# Which pods, and what was read


def test_only_pods_that_the_kubelet_refused_and_that_are_there_to_stay_are_stranded() -> None:
    pods = [
        vm(995),
        replace(vm(995), name="shop/pending", phase="Pending"),
        replace(vm(995), name="shop/broken", rejection=None),
        replace(vm(995), name="shop/going", deleting=True, deletion=NOW - seconds(30)),
    ]
    assert [one.pod for one in admission.judge(look(pods))] == ["shop/vm"]


@pytest.mark.parametrize("reading", [unread("device_plugins"), NotAsked("device_plugins", "none")])
def test_without_the_device_plugins_the_pods_are_there_and_the_cause_is_not(reading: Any) -> None:
    (one,) = admission.judge(node(vm(995), device_plugins=reading))
    assert (one.cause, one.fate) == (Cause.UNVERIFIED, Fate.STUCK)


def test_without_the_pods_there_is_no_word() -> None:
    with pytest.raises(Blind):
        admission.judge(node(pods=unread("pods")))


# Fates


@pytest.mark.parametrize(
    ("controller", "ago", "fate"),
    [
        ("", 995, Fate.STUCK),
        ("VirtualMachineInstance/vm", 995, Fate.STUCK),
        ("ReplicaSet/web-5d8f", 995, Fate.REPLACED_BY_CONTROLLER),
        ("Job/once", 995, Fate.REPLACED_BY_CONTROLLER),
        ("StatefulSet/db", 119, Fate.REPLACED_BY_CONTROLLER),
        ("StatefulSet/db", 121, Fate.STUCK),
        ("DaemonSet/logs", 959, Fate.REPLACED_BY_CONTROLLER),
        ("DaemonSet/logs", 961, Fate.STUCK),
    ],
)
def test_a_controller_replaces_it_or_nobody_does(controller: str, ago: float, fate: Fate) -> None:
    assert judged(vm(ago, controller=controller)).fate is fate


def deleted(ago: float, *finalizers: str) -> Pod:
    gone = vm(995, controller="ReplicaSet/web", deleting=True)
    return replace(gone, deletion=NOW - seconds(ago), finalizers=finalizers)


def test_a_deleted_pod_that_does_not_go_is_stuck() -> None:
    assert admission.judge(look([deleted(60)])) == ()
    one = judged(deleted(61))
    assert one.fate is Fate.TERMINATING_STUCK
    assert "the kubelet has not finished with it" in one.do
    assert "held by example.org/lock" in judged(deleted(61, "example.org/lock")).do


def test_a_deletion_is_by_the_api_servers_clock() -> None:
    assert [one.fate for one in admission.judge(replace(look([deleted(50)]), api_skew=seconds(30)))] == [
        Fate.TERMINATING_STUCK
    ]
    assert admission.judge(replace(look([deleted(70)]), api_skew=seconds(-30))) == ()


@pytest.mark.parametrize("controller", ["", "ReplicaSet/web", "Job/once", "StatefulSet/db"])
def test_nobody_is_told_to_delete_by_force(controller: str) -> None:
    for pod in (vm(995, controller=controller), deleted(600)):
        assert "--force" in judged(pod).do
        assert "never with --force" in judged(pod).do


def test_whether_the_devices_are_there_again_is_said() -> None:
    assert "its devices are healthy again)" in judged(vm(995)).do
    waiting = node(vm(995), device_plugins=device_plugins(registered(KVM), kubelet_socket=seconds(1000)))
    assert "once its devices are healthy again" in admission.judge(waiting)[0].do
    assert "once a device is free" in judged(vm(500)).do

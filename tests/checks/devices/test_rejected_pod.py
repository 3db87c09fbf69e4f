"""Pods that the kubelet rejected for a device: why, and whether they are replaced; and storms of them."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from agent.model.devices import (
    Allocation,
    DeviceTransition,
    PluginSocket,
    Registered,
    TransitionKind,
)
from agent.model.rejections import PodOutcome, RejectedPod, RejectionCause, RejectionKind
from agent.model.snapshot import NotRequested, Pod, Snapshot
from tests import builders as b
from tests.builders import (
    KVM,
    KVM_SOCKET,
    NOW,
    UPTIME,
    device_plugins,
    node,
    pod,
    refused_pod,
    registered,
    transition,
)
from tests.checks.reported import rejected_pods, seconds, with_plugins

STARTED, APPEARED, GONE = (
    TransitionKind.KUBELET_STARTED,
    TransitionKind.SOCKET_APPEARED,
    TransitionKind.SOCKET_GONE,
)
REGISTERED, LOST, DROPPED = TransitionKind.REGISTERED, TransitionKind.LOST, TransitionKind.DROPPED
KUBELET_RESTART, PLUGIN_RESTART = RejectionCause.KUBELET_RESTART, RejectionCause.PLUGIN_RESTART
EXHAUSTED, UNVERIFIED = RejectionCause.EXHAUSTED, RejectionCause.UNVERIFIED

DETECTOR = "rejected_pod"
only = partial(b.the_finding, DETECTOR)
Things = PluginSocket | Registered | Allocation | DeviceTransition


THE_RACE: Sequence[DeviceTransition] = (
    transition(STARTED, ago=seconds(1000)),
    transition(APPEARED, socket=KVM_SOCKET, ago=seconds(990.5)),
    transition(REGISTERED, KVM, ago=seconds(990)),
)
"""The kubelet started 1000 s ago, and 10 s later the resource was registered."""

USER = (pod("shop/user"), b.allocation("shop/user", KVM, "d0"))
"""A pod that has the only device."""


def snapshot_of(
    pods: Sequence[Pod],
    *records: Things,
    kubelet: float = 1000,
    written: float = 990,
    **others: Any,
) -> Snapshot:
    there = (*(records or THE_RACE), b.plugin_socket(ago=seconds(990.5)), registered(KVM, "d0"))
    return with_plugins(*pods, *there, *USER, kubelet=kubelet, written=written, **others)


def rejection_of(pod: Pod, *records: Things, **others: Any) -> RejectedPod:
    (rejected,) = rejected_pods(snapshot_of([pod], *records, **others))
    return rejected


def vm(ago: float, **others: Any) -> Pod:
    """A pod that was rejected `ago` seconds ago."""
    return refused_pod("shop/vm", ago=seconds(ago), **others)


def rejected(pod: Pod, **changes: Any) -> Pod:
    assert pod.rejection is not None
    return replace(pod, rejection=replace(pod.rejection, **changes))


def check(*cases: tuple[RejectionCause, Pod, Sequence[Things]], **others: Any) -> None:
    """Compare the cause of each rejection, given a history."""
    for number, (expected, refused, history) in enumerate(cases):
        assert rejection_of(refused, *history, **others).cause is expected, f"case {number}"


SAY_SO = (
    RejectionKind.UNREGISTERED,
    RejectionKind.NO_HEALTHY,
    RejectionKind.PLUGIN_GONE,
    RejectionKind.NO_CAPACITY,
)
"""Messages that say that the kubelet did not have the plugin."""


def test_a_pod_rejected_between_kubelet_start_and_registration_lost_the_race() -> None:
    # A time covers its whole second: the plugin bound its socket 990.5 s ago, and was registered 990 s ago.
    expected = {
        1001: UNVERIFIED,
        1000: KUBELET_RESTART,
        992: KUBELET_RESTART,
        991: UNVERIFIED,
        990: EXHAUSTED,
    }
    check(
        *((KUBELET_RESTART, vm(995, refused=kind), THE_RACE) for kind in SAY_SO),
        *((verdict, vm(ago), THE_RACE) for ago, verdict in expected.items()),
    )
    (waiting,) = rejected_pods(WAITING)
    assert waiting.cause is KUBELET_RESTART
    assert "has not been registered since" in waiting.why
    assert "Once the devices are healthy again" in str(only(WAITING).steps)


WAITING = node(
    vm(995), device_plugins=device_plugins(registered(KVM), kubelet_socket=seconds(1000))
)
SLOW: Sequence[DeviceTransition] = (THE_RACE[0], transition(REGISTERED, KVM, ago=seconds(900)))


def test_a_time_of_the_api_server_is_as_uncertain_as_the_clock_skew() -> None:
    for skew, expected in (
        (
            None,
            {
                996: UNVERIFIED,
                995: KUBELET_RESTART,
                906: KUBELET_RESTART,
                905: UNVERIFIED,
                895: EXHAUSTED,
            },
        ),
        (2.4, {895: EXHAUSTED}),
        (-30, {966: UNVERIFIED, 965: KUBELET_RESTART}),
        (30, {936: KUBELET_RESTART, 935: UNVERIFIED, 866: UNVERIFIED, 865: EXHAUSTED}),
    ):
        for ago, verdict in expected.items():
            snapshot = snapshot_of([rejected(vm(ago), by_api=True)], *SLOW)
            (refused,) = rejected_pods(
                replace(snapshot, api_skew=None if skew is None else seconds(skew))
            )
            assert (skew, ago, refused.cause) == (skew, ago, verdict)
    # If times are ambiguous, the kubelet's message decides.
    check(
        *(
            (KUBELET_RESTART, rejected(vm(ago, refused=kind), by_api=True), SLOW)
            for kind in SAY_SO
            for ago in (1003, 996, 905, 896)
        )
    )


def test_the_last_kubelet_start_before_the_rejection_counts_or_the_boot_that_caused_it() -> None:
    before = (
        transition(STARTED, ago=seconds(5000)),
        transition(REGISTERED, KVM, ago=seconds(4990)),
    )
    verdicts = (
        (5001, UNVERIFIED),
        (4995, KUBELET_RESTART),
        (3000, EXHAUSTED),
        (995, KUBELET_RESTART),
    )
    check(
        *((expected, vm(ago), (*before, *THE_RACE)) for ago, expected in verdicts),
        (
            UNVERIFIED,
            rejected(vm(998), by_api=True),
            (*before, *SLOW),
        ),  # it may have been either run
    )
    refused = rejection_of(vm(1010), transition(STARTED, ago=seconds(1015)), *THE_RACE)
    assert refused.cause is KUBELET_RESTART
    assert f"{KVM} was not registered before the kubelet started again" in refused.why
    # A boot is the cause of the kubelet's start.
    snapshot = snapshot_of([vm(995)], transition(GONE, socket="x", ago=UPTIME))
    for uptime, expected in ((1060, RejectionCause.NODE_REBOOT), (1000 + 16 * 60, KUBELET_RESTART)):
        assert [
            rejected.cause for rejected in rejected_pods(replace(snapshot, uptime=seconds(uptime)))
        ] == [expected]
    earlier = (
        replace(transition(STARTED, ago=seconds(90_000), boot_id="before"), uptime=seconds(50)),
        replace(
            transition(REGISTERED, KVM, ago=seconds(89_990), boot_id="before"), uptime=seconds(60)
        ),
        transition(LOST, KVM, ago=seconds(50_000), boot_id="before"),
    )
    check((RejectionCause.NODE_REBOOT, vm(89_995), (*earlier, *THE_RACE)))


def test_without_a_time_or_a_resource_or_after_a_clock_step_a_rejection_is_unverified() -> None:
    unsaid: tuple[dict[str, Any], ...] = (
        {"at": None},
        {"resource": ""},
        {"refused": RejectionKind.OTHER},
    )
    check(*((UNVERIFIED, rejected(vm(995), **changes), THE_RACE) for changes in unsaid))
    stepped = replace(snapshot_of([vm(995)], *THE_RACE), uptime=seconds(500))
    no_kubelet = with_plugins(vm(500), registered(KVM, "d0"), kubelet=None, written=None)
    for snapshot in (stepped, no_kubelet):
        assert [rejected.cause for rejected in rejected_pods(snapshot)] == [UNVERIFIED]
    # A resource named like a socket belongs to that socket.
    plugin_gone = vm(995, refused=RejectionKind.PLUGIN_GONE)
    refused = rejection_of(rejected(plugin_gone, resource="guessed/one", socket=KVM_SOCKET))
    assert (refused.resource, refused.cause) == (KVM, KUBELET_RESTART)


def test_without_an_observed_registration_the_socket_bounds_the_race() -> None:
    started = THE_RACE[:1]
    check((KUBELET_RESTART, vm(995), started), (EXHAUSTED, vm(500), started), written=100)
    check(
        (
            UNVERIFIED,
            vm(500),
            (*started, transition(REGISTERED, KVM, ago=seconds(100), exact=False)),
        )
    )
    # Without a socket, only the message decides.
    for kind, ago, expected in (
        (RejectionKind.INSUFFICIENT, 950, UNVERIFIED),
        (RejectionKind.NO_HEALTHY, 950, KUBELET_RESTART),
        (RejectionKind.NO_HEALTHY, 600, UNVERIFIED),
    ):
        refused = vm(ago, refused=kind)
        (rejected,) = rejected_pods(
            with_plugins(refused, registered(KVM, "d0"), kubelet=1000, written=100)
        )
        assert rejected.cause is expected
    # The agent came later than all that, and the plugin has bound its socket once more.
    recreated = (
        THE_RACE[0],
        transition(APPEARED, socket=KVM_SOCKET, ago=seconds(500)),
        transition(REGISTERED, KVM, ago=seconds(500)),
    )
    check(
        (KUBELET_RESTART, vm(641), recreated),
        (UNVERIFIED, vm(640), recreated),
        (KUBELET_RESTART, vm(640, refused=RejectionKind.UNREGISTERED), recreated),
    )
    check((UNVERIFIED, vm(640), started), written=2000)


def lost(ago: float, *, exact: bool = False, observed: float | None = None) -> DeviceTransition:
    change = transition(LOST, KVM, ago=seconds(ago), exact=exact)
    return replace(change, uptime=UPTIME - seconds(ago if observed is None else observed))


def test_no_free_device_is_exhausted_only_while_the_resource_is_registered() -> None:
    together = (*THE_RACE[:-1], replace(THE_RACE[-1], uptime=UPTIME), lost(0, observed=0))
    in_that_second = (*THE_RACE, lost(499.5, exact=True))
    message = "Pod Node didn't have enough resource: example.org/dongle, requested: 1, used: 4, capacity: 4"
    check(
        (EXHAUSTED, vm(500), THE_RACE),
        (UNVERIFIED, rejected(vm(500), available=None), THE_RACE),
        # What a snapshot saw first may have happened up to a minute earlier.
        (UNVERIFIED, vm(500), (*THE_RACE, lost(498.2))),
        (UNVERIFIED, vm(500), (*THE_RACE, lost(470))),
        (EXHAUSTED, vm(500), (*THE_RACE, lost(439))),
        # One snapshot saw both: the loss may be much older.
        (UNVERIFIED, vm(500), together),
        # In the second of a loss, only the message can say it.
        (UNVERIFIED, vm(500), in_that_second),
        (PLUGIN_RESTART, vm(500, refused=RejectionKind.UNREGISTERED), in_that_second),
        (EXHAUSTED, vm(500), (*THE_RACE, lost(499, exact=True))),
        # Too few free devices, and a full node, are no loss.
        (EXHAUSTED, vm(995, available=1), THE_RACE),
        (EXHAUSTED, vm(500, available=1), THE_RACE),
        (EXHAUSTED, rejected(vm(995), resource="example.org/dongle", message=message), THE_RACE),
    )


def test_a_plugin_absent_at_the_rejection_was_restarted_and_a_present_one_may_have_unhealthy_devices() -> (
    None
):
    appeared = transition(APPEARED, socket=KVM_SOCKET, ago=seconds(495))
    away = (
        *THE_RACE,
        lost(505, exact=True),
        appeared,
        transition(REGISTERED, KVM, ago=seconds(494)),
    )
    gone = (*THE_RACE, lost(505), transition(GONE, socket=KVM_SOCKET, ago=seconds(504)))
    back = (
        transition(APPEARED, socket=KVM_SOCKET, ago=seconds(20)),
        transition(REGISTERED, KVM, ago=seconds(19.9)),
    )
    check(
        (PLUGIN_RESTART, vm(500), away),
        (EXHAUSTED, vm(400), away),
        (PLUGIN_RESTART, vm(500, refused=RejectionKind.NO_HEALTHY), (*THE_RACE, appeared)),
        (PLUGIN_RESTART, vm(500, refused=RejectionKind.PLUGIN_GONE), THE_RACE),
        (UNVERIFIED, vm(500, refused=RejectionKind.UNREGISTERED), THE_RACE),
        # Snapshots show that it was absent; its later return does not change that.
        (PLUGIN_RESTART, vm(500), (*gone, *back)),
    )
    dropped = (*THE_RACE, transition(DROPPED, KVM, ago=seconds(505)))
    for history, refused in (
        (gone, RejectionKind.INSUFFICIENT),
        (dropped, RejectionKind.UNREGISTERED),
    ):
        (absent,) = rejected_pods(
            with_plugins(vm(500, refused=refused), *history, kubelet=1000, written=990)
        )
        assert absent.cause is PLUGIN_RESTART
    # Unhealthy devices of a present plugin are the cause.
    there: tuple[Things, ...] = (
        *THE_RACE,
        lost(505, exact=True),
        b.plugin_socket(ago=seconds(990.5)),
        registered(KVM),
    )
    (rejected,) = rejected_pods(with_plugins(vm(500), *there, kubelet=1000, written=505))
    assert rejected.cause is RejectionCause.UNHEALTHY
    check((RejectionCause.UNHEALTHY, vm(500, refused=RejectionKind.NO_HEALTHY), THE_RACE))


def test_a_pod_that_requested_more_than_was_left_right_after_registration() -> None:
    """As on a real node: the plugin came 4.3 s late, and another pod took all devices 7.3 s later."""
    first = replace(pod("shop/first"), started=NOW - seconds(119))
    given = b.allocation("shop/first", KVM, "d0", "d1", "d2")
    for refused in (vm(118), rejected(vm(118), by_api=True)):
        records = (
            first,
            refused,
            given,
            b.plugin_socket(ago=seconds(125.241)),
            registered(KVM, "d0", "d1", "d2"),
        )
        snapshot = with_plugins(*records, kubelet=129.578, written=119.886)
        assert [rejected.cause for rejected in rejected_pods(snapshot)] == [EXHAUSTED]


def deleted(ago: float) -> Pod:
    return replace(vm(995, controller="ReplicaSet/web", deleting=True), deletion=NOW - seconds(ago))


def test_a_pod_is_replaced_only_by_its_controller() -> None:
    replaced, again = PodOutcome.REPLACED_BY_CONTROLLER, PodOutcome.REJECTED_AGAIN
    for controller, ago, outcome in (
        ("", 995, PodOutcome.STUCK),
        ("VirtualMachineInstance/vm", 995, PodOutcome.STUCK),
        ("ReplicaSet/web-5d8f", 995, replaced),
        ("Job/once", 995, replaced),
        ("StatefulSet/db", 119, again),
        ("StatefulSet/db", 121, PodOutcome.STUCK),
        ("DaemonSet/logs", 959, again),
        ("DaemonSet/logs", 961, PodOutcome.STUCK),
    ):
        rejected = rejection_of(vm(ago, controller=controller))
        assert rejected.pod_outcome is outcome
        assert rejected.pod == "shop/vm"


def test_only_rejected_pods_that_remain_are_reported_and_deleted_ones_by_the_clock_of_the_api_server() -> (
    None
):
    for ago, skew, stuck in ((60, 0, False), (61, 0, True), (50, 30, True), (70, -30, False)):
        rejected = rejected_pods(replace(snapshot_of([deleted(ago)]), api_skew=seconds(skew)))
        assert [pod.pod_outcome for pod in rejected] == [PodOutcome.TERMINATING_STUCK] * stuck
    for other in (
        replace(refused_pod("shop/a"), phase="Pending"),
        replace(refused_pod("shop/b"), rejection=None),
    ):
        assert [pod.pod for pod in rejected_pods(snapshot_of([other, vm(995)]))] == ["shop/vm"]


def storm(
    several: int, apart: float = 0, controller: str = "ReplicaSet/vm", first: float = 999
) -> list[Pod]:
    """Pods of a controller that were rejected some seconds apart."""
    return [
        refused_pod(f"shop/vm-{n}", ago=seconds(first - n * apart), controller=controller)
        for n in range(several)
    ]


def test_a_rejected_pod_is_reported_with_its_resource_both_times_and_advice() -> None:
    finding = only(snapshot_of([vm(995)]))
    assert (finding.pod, finding.resource, finding.since) == ("shop/vm", KVM, NOW - seconds(995))
    assert (finding.cause, finding.pod_outcome) == (KUBELET_RESTART, PodOutcome.STUCK)
    # It is the same finding when more details become known.
    assert only(WAITING).key == finding.key == (DETECTOR, "pod shop/vm", "uid of shop/vm")
    later = replace(snapshot_of([vm(995)]), uptime=UPTIME + seconds(15), taken_at=NOW + seconds(15))
    assert "was registered 10.0 s later" in only(WAITING, later).message
    pods = (replace(vm(995), uid="one"), replace(vm(995), uid="two"))
    assert len({finding.key for finding in b.findings_of(DETECTOR, snapshot_of(pods))}) == 2


def test_five_pods_of_one_controller_in_ten_minutes_are_one_finding() -> None:
    group = only(snapshot_of(storm(5, apart=2)))
    assert group.subject == "pods of ReplicaSet/vm in shop"
    causes = [rejected.cause for rejected in group.rejected_pods]
    assert causes == [*[KUBELET_RESTART] * 4, UNVERIFIED], (
        "the last was rejected in the second of the registration"
    )
    assert [pod.pod for pod in group.rejected_pods] == [f"shop/vm-{n}" for n in range(5)]
    assert (group.cause, group.pod_outcome) == (KUBELET_RESTART, PodOutcome.REPLACED_BY_CONTROLLER)
    assert group.since == NOW - seconds(999)
    keys = {only(snapshot_of(storm(n))).key for n in (5, 6, 1181)}
    assert keys == {(DETECTOR, "pods of ReplicaSet/vm in shop")}, "it grows"


def test_few_pods_of_different_controllers_or_over_a_longer_time_are_not_grouped() -> None:
    for pods, findings in (
        (storm(4), 4),
        ([*storm(4), refused_pod("shop/other", controller="ReplicaSet/other")], 5),
        ([*storm(4), refused_pod("bank/vm", controller="ReplicaSet/vm")], 5),
        (storm(5, controller=""), 5),
        (storm(5, apart=-150), 1),
        (storm(5, apart=-151), 5),
    ):
        assert len(b.findings_of(DETECTOR, snapshot_of(pods))) == findings
    older = refused_pod("shop/older", ago=seconds(9000), controller="ReplicaSet/vm")
    subjects = [
        finding.subject for finding in b.findings_of(DETECTOR, snapshot_of([*storm(5), older]))
    ]
    assert sorted(subjects) == ["pod shop/older", "pods of ReplicaSet/vm in shop"]


def test_without_device_plugins_rejected_pods_are_reported_without_a_cause() -> None:
    for reading in (b.unavailable("device_plugins"), NotRequested("device_plugins", "none")):
        (finding,), gap = b.findings_and_gap(DETECTOR, node(vm(995), device_plugins=reading))
        assert (finding.cause, finding.pod_outcome) == (UNVERIFIED, PodOutcome.STUCK)
        assert gap.chosen is isinstance(reading, NotRequested)
    assert b.gap_of(DETECTOR, node(pods=b.unavailable("pods"))).startswith("pods")

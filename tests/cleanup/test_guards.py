"""Each guard: no objection to a plain leak, and otherwise a reason, and an option that lifts it if there is one."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from ipaddress import ip_address
from typing import Any

import pytest

from agent import config
from agent.cleanup import guards
from agent.cleanup.guard_context import GuardContext
from agent.cleanup.guards import decide
from agent.cli import main
from agent.model.assessment import State
from agent.model.index import SnapshotIndex
from agent.model.release import Limits, Reason, Refusal, ReleaseRequest
from agent.model.runtime import CONTAINERD, ContainerRuntime, RuntimeNetwork
from agent.model.snapshot import (
    SOURCES,
    Address,
    Checkpoint,
    Container,
    InsufficientData,
    Known,
    NotRequested,
    PluginProcess,
    PortMapping,
    Reservation,
    Snapshot,
    Unavailable,
)
from tests.builders import (
    CIDR,
    GRACE,
    NON_ADDRESS_SOURCES,
    NOW,
    RESERVATIONS,
    UPTIME,
    Thing,
    cni_result,
    empty_file,
    guard_context,
    make_limits,
    node,
    pod,
    processes,
    reservation,
    scanned,
    unavailable,
    verdicts,
    with_waiting_pod,
    without,
)
from tests.cleanup.leaks import BUDGETS, DUAL, LEAK, LEAK6, SECOND, THE_ID, THE_IP, leaks, only, reasons, refusals

# Every reason, and what lifts it


@dataclass(frozen=True)
class Situation:
    """A node with one leak and one reason to refuse it."""

    reason: Reason
    snapshots: tuple[Snapshot, ...]
    limits: Limits = field(default_factory=make_limits)
    known: dict[str, Any] = field(default_factory=dict)
    command: str = "clean"

    @property
    def guard_context(self) -> GuardContext:
        return guard_context(*self.snapshots, limits=self.limits, **self.known)

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        return decide(self.guard_context)[-1][1]


def situation(reason: Reason, *snapshots: Snapshot, limits: Limits | None = None, **more: Any) -> Situation:
    command = more.pop("command", "clean")
    return Situation(reason, snapshots, limits or make_limits(), more, command)


def with_runtime(snapshot: Snapshot, version: str) -> Snapshot:
    """Make it a node with this containerd."""
    socket = "/run/containerd/containerd.sock"
    named = replace(processes(), runtime=f"unix://{socket}", containerd=NOW - UPTIME)
    return replace(
        snapshot,
        processes=Known(named),
        runtimes=Known((ContainerRuntime(CONTAINERD, version, socket),)),
        checkpoints=NotRequested("checkpoints", "a kubelet with containerd has none"),
    )


def with_plugin(snapshot: Snapshot, age: timedelta) -> Snapshot:
    """Add a CNI plugin that has been at work for so long."""
    return replace(snapshot, processes=Known(replace(processes(), plugins=(PluginProcess(70, "bridge", NOW - age),))))


HALF_THE_RANGE = leaks(127)
OUTSIDE = reservation("10.250.0.9")
PINNED = cni_result(THE_ID, "shop/gone", CIDR, namespace="/var/run/netns/cni-9")
"""What libcni keeps of a sandbox whose network namespace was mounted."""
SITUATIONS = (
    situation(Reason.HALTED, node(LEAK), halted="container 999999999999 is there again"),
    situation(Reason.SOURCE_UNAVAILABLE, without(node(LEAK), "node")),
    situation(Reason.NETWORK_NOT_ALLOWED, node(LEAK), limits=make_limits(networks=frozenset({"storage"}))),
    situation(Reason.TEARDOWN_PENDING, node(LEAK, Checkpoint(THE_ID, "shop/gone"))),
    situation(Reason.ADDRESS_IN_USE, node(LEAK, Address(THE_IP, 77, "java"))),
    situation(Reason.CLAIMED_BY_POD, node(LEAK, pod("shop/late", THE_IP, phase="Pending"))),
    situation(Reason.NOT_CONFIRMED, node(reservation(THE_IP, age=GRACE - SECOND))),
    situation(Reason.OUTSIDE_RANGE, node(OUTSIDE)),
    situation(Reason.OUTSIDE_RANGE, node(LEAK, node=[], cni_results=[])),
    situation(Reason.PARTIAL_SANDBOX, node(LEAK, LEAK6, **DUAL), limits=only(THE_IP)),
    situation(Reason.RUNTIME_DOUBTFUL, node(reservations=[LEAK], checkpoints=[], containers=[])),
    situation(Reason.UNSETTLED, node(LEAK, processes=[processes(kubelet=GRACE - SECOND)])),
    situation(Reason.IMPLAUSIBLE_SHARE, node(*HALF_THE_RANGE)),
    situation(Reason.JOURNAL_UNWRITABLE, node(LEAK), journal_trouble="/var/lib/nodeleak is mounted read-only"),
    situation(Reason.JOURNAL_FULL, node(*leaks(2)), journal_room=1),
    *(
        situation(
            Reason.OVER_BUDGET,
            node(*leaks(2), reservation("10.244.1.8", age=timedelta(hours=1))),
            limits=limits,
            spent=spent,
            command=name.partition(",")[0],
        )
        for name, (limits, spent, _) in BUDGETS.items()
    ),
    situation(
        Reason.HOST_PORTS,
        node(LEAK, replace(cni_result(THE_ID, "shop/gone", CIDR), port_mappings=(PortMapping(8080, "tcp"),))),
        limits=make_limits(unattended=True),
        command="run",
    ),
    situation(Reason.PLUGIN_AT_WORK, with_plugin(node(LEAK), GRACE + UPTIME)),
    situation(Reason.RUNTIME_UNORDERED, with_runtime(node(LEAK), "1.6.8")),
    situation(Reason.ADDRESS_IN_USE, node(LEAK, PINNED, mounted_namespaces=["/run/netns/cni-9"])),
    situation(
        Reason.PLUGIN_FAILING,
        with_waiting_pod(node(*leaks(6, timedelta(minutes=8)))),
        limits=make_limits(unattended=True),
        command="run",
    ),
)
each = pytest.mark.parametrize("wrong", SITUATIONS, ids=lambda one: one.reason.value)


@each
def test_each_problem_is_one_refusal_with_its_reason(wrong: Situation) -> None:
    assert [one.reason for one in wrong.refusals] == {
        # These also change the state, so the leak is not confirmed either.
        Reason.SOURCE_UNAVAILABLE: [Reason.SOURCE_UNAVAILABLE],
        Reason.TEARDOWN_PENDING: [Reason.TEARDOWN_PENDING, Reason.NOT_CONFIRMED],
        Reason.ADDRESS_IN_USE: [Reason.ADDRESS_IN_USE, Reason.NOT_CONFIRMED],
        Reason.CLAIMED_BY_POD: [Reason.CLAIMED_BY_POD, Reason.NOT_CONFIRMED],
    }.get(wrong.reason, [wrong.reason])
    assert all(one.why for one in wrong.refusals)


def test_every_reason_can_occur() -> None:
    # What docker lists is never requested: only a wrong request, or the recheck, gives this reason.
    # A snapshot expires between the guards and the release, and addresses are probed there: see `test_cleaner.py`.
    later = {Reason.SNAPSHOT_EXPIRED, Reason.PROBE_UNANSWERED}
    assert set(Reason) == {one.reason for one in SITUATIONS} | {Reason.CONTAINER_EXISTS} | later
    assert reason_of(guards.no_container, RESERVATIONS[0]) is Reason.CONTAINER_EXISTS


def test_every_guard_is_evaluated() -> None:
    def is_guard(one: object) -> bool:
        return (
            inspect.isfunction(one) and list(inspect.signature(one).parameters.values())[-1].annotation is GuardContext
        )

    written = {name for name, one in inspect.getmembers(guards, is_guard) if not name.startswith("_")}
    assert written - {"decide"} == {guard.__name__ for guard in guards.GUARDS}
    assert len(set(guards.GUARDS)) == len(guards.GUARDS)


def reason_of(guard: guards.Guard, *reservations: Reservation, snapshot: Snapshot | None = None) -> Reason | None:
    refusal = guard(ReleaseRequest(reservations), guard_context(snapshot or node()))
    return None if refusal is None else refusal.reason


def applied(wrong: Situation, words: list[str]) -> Situation:
    """Return the limits with these additional options, parsed as the command line parses them."""
    given = [option.removeprefix("--").split("=", 1) for option in words]
    options = {name.replace("-", "_"): value for name, value in given if name not in {"ip", "max"}}
    read = config.load(wrong.command, {"api": "off", **options}, {})
    ips = frozenset(str(ip_address(value)) for name, value in given if name == "ip")
    most = {"max_per_sync": read.max_per_sync, "max_per_hour": read.max_per_hour}
    most |= {name: config.positive(value) for name, value in given if name == "max"}
    changes: dict[str, Any] = {name: getattr(read, name) for name in options if name not in most}
    if "cleanup_network" in changes:
        changes["networks"] = frozenset(changes.pop("cleanup_network"))
    if ips:
        changes["only"] = (wrong.limits.only or frozenset()) | ips
    allowances = tuple(
        (setting, most[name] - wrong.known["spent"].get(setting, 0) if name in {*options, "max"} else left)
        for setting, left in wrong.limits.allowances
        if (name := setting.removeprefix("--").replace("-", "_"))
    )
    return replace(wrong, limits=replace(wrong.limits, allowances=allowances, **changes))


@each
def test_the_setting_named_by_a_refusal_overrides_it(wrong: Situation) -> None:
    refusal = wrong.refusals[0]
    lifted = applied(wrong, refusal.setting.split()) if refusal.setting else wrong
    assert (lifted.refusals == ()) is bool(refusal.setting)


@each
def test_a_named_setting_exists_in_the_commands(wrong: Situation, capsys: pytest.CaptureFixture[str]) -> None:
    main([wrong.command, "--help-all"])
    helped = capsys.readouterr().out
    for refusal in wrong.refusals:
        for option in refusal.setting.split():
            assert f"  {option.partition('=')[0]} " in helped


NO_SETTING = {
    Reason.HALTED, Reason.SOURCE_UNAVAILABLE, Reason.CONTAINER_EXISTS, Reason.TEARDOWN_PENDING, Reason.ADDRESS_IN_USE,
    Reason.CLAIMED_BY_POD, Reason.RUNTIME_DOUBTFUL, Reason.UNSETTLED, Reason.JOURNAL_UNWRITABLE, Reason.JOURNAL_FULL,
    Reason.RUNTIME_UNORDERED, Reason.PLUGIN_AT_WORK, Reason.PLUGIN_FAILING,
}  # fmt: skip


@each
def test_no_setting_overrides_evidence_of_an_owner_or_missing_data(wrong: Situation) -> None:
    assert (wrong.refusals[0].setting == "") is (wrong.reason in NO_SETTING)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (SITUATIONS[1], "node: it gave no word"),
        (SITUATIONS[2], "cleanup is not allowed in network kubenet"),
        (SITUATIONS[4], "process 77 (java) has 10.244.1.9 configured"),
        (SITUATIONS[5], "pod shop/late has 10.244.1.9"),
        (SITUATIONS[6], "299 s old, and --grace is 300 s"),
        (SITUATIONS[7], "10.250.0.9 is not allocated from 10.244.1.1-10.244.1.254"),
        (SITUATIONS[9], "the sandbox also has fd00::9; all its addresses are released together"),
        (SITUATIONS[11], "the kubelet started 299 s ago, and --settle is 300 s"),
        (SITUATIONS[12], "50% of network kubenet looks leaked, and --max-share is 50%"),
        (SITUATIONS[-3], "containerd 1.6.8 is not known to record a sandbox before its address is reserved"),
        (SITUATIONS[15], "--max allows 2 addresses now; this is number 3 in line"),
        (SITUATIONS[-2], "its network namespace is still mounted: /run/netns/cni-9"),
    ],
    ids=lambda one: one.reason.value if isinstance(one, Situation) else "",
)
def test_a_refusal_has_the_relevant_numbers_and_names(wrong: Situation, why: str) -> None:
    assert wrong.refusals[0].why == why


@pytest.mark.parametrize("unread", [unavailable("mounted_namespaces"), NotRequested("mounted_namespaces", "no")])
def test_without_the_mount_table_no_named_namespace_counts_as_unmounted(unread: Unavailable | NotRequested) -> None:
    named, other = ReleaseRequest((LEAK,)), ReleaseRequest((reservation("10.244.1.8", "8" * 64),))
    context = guard_context(node(LEAK, PINNED, mounted_namespaces=unread))
    with pytest.raises(InsufficientData, match="mounted_namespaces: "):
        guards.no_configured_address(named, context)
    assert guards.no_configured_address(other, context) is None


def test_a_namespace_that_was_unmounted_is_no_objection() -> None:
    assert reason_of(guards.no_configured_address, LEAK, snapshot=node(LEAK, PINNED)) is None


def test_all_refusals_are_returned_the_most_important_first() -> None:
    wrong = node(reservation("10.250.0.9", age=SECOND), Checkpoint(THE_ID, ""), processes=[processes(docker=None)])
    found_refusals = reasons(wrong, limits=make_limits(networks=frozenset()), halted="once more", journal_trouble="no")
    assert found_refusals == [
        Reason.HALTED,
        Reason.NETWORK_NOT_ALLOWED,
        Reason.TEARDOWN_PENDING,
        Reason.NOT_CONFIRMED,
        Reason.OUTSIDE_RANGE,
        Reason.UNSETTLED,
        Reason.JOURNAL_UNWRITABLE,
    ]


# Guards read the snapshot itself, whatever the state is


def mistaken(context: GuardContext) -> GuardContext:
    """Classify every reservation as a confirmed leak, as if the classification were wrong."""
    assessment = replace(
        context.assessment,
        reservations=tuple(replace(one, state=State.LEAKED) for one in context.assessment.reservations),
    )
    confirmed = scanned(node(*(one for one in context.classified)), grace=timedelta(0)).findings
    assert {one.finding.detector for one in confirmed} >= {"leaked_reservation"}
    return replace(context, report=replace(context.report, assessment=assessment, findings=confirmed))


@pytest.mark.parametrize(
    ("owner", "reason"),
    [
        (Checkpoint(THE_ID, ""), Reason.TEARDOWN_PENDING),
        (Address(THE_IP, 1, ""), Reason.ADDRESS_IN_USE),
        (Address("fd00::9", 1, ""), Reason.ADDRESS_IN_USE),
        (pod("shop/a", THE_IP, phase=""), Reason.CLAIMED_BY_POD),
        (pod("", "192.0.2.1", "fd00::9", phase="Unknown"), Reason.CLAIMED_BY_POD),
        (pod("shop/web", THE_IP, deleting=True), Reason.CLAIMED_BY_POD),
    ],
)
def test_a_guard_does_not_rely_on_the_classification(owner: Any, reason: Reason) -> None:
    assert verdicts(mistaken(guard_context(node(LEAK, LEAK6, **DUAL)))) == {f"{THE_IP} fd00::9": ()}
    (found_refusals,) = verdicts(mistaken(guard_context(node(LEAK, LEAK6, owner, **DUAL)))).values()
    assert [one.reason for one in found_refusals] == [reason]


@pytest.mark.parametrize("source", ["checkpoints", "addresses", "pods", "processes"])
@pytest.mark.parametrize("kind", [unavailable, lambda source: NotRequested(source, "it was left alone")])
def test_a_guard_without_its_source_refuses(source: str, kind: Callable[[str], Any]) -> None:
    changed: dict[str, Any] = {source: kind(source)}
    incomplete = mistaken(guard_context(node(LEAK)))
    assessment = replace(incomplete.assessment, index=SnapshotIndex(replace(incomplete.snapshot, **changed)))
    (found_refusals,) = verdicts(replace(incomplete, report=replace(incomplete.report, assessment=assessment))).values()
    if (source, type(changed[source])) == ("pods", NotRequested):
        assert found_refusals == (), "pods may be disabled: the other sources decide"
    else:
        assert Reason.SOURCE_UNAVAILABLE in {one.reason for one in found_refusals}


@pytest.mark.parametrize("source", sorted({*SOURCES} - {*NON_ADDRESS_SOURCES}))
def test_one_unavailable_source_prevents_every_release(source: str) -> None:
    incomplete = without(node(LEAK), source)
    assert all(
        refusal and refusal[0].reason is Reason.SOURCE_UNAVAILABLE
        for refusal in verdicts(guard_context(incomplete)).values()
    )


@pytest.mark.parametrize("source", NON_ADDRESS_SOURCES)
def test_non_address_sources_do_not_affect_releases(source: str) -> None:
    incomplete = without(node(LEAK), source)
    assert all(refusal == () for refusal in verdicts(guard_context(incomplete)).values())


def test_another_unavailable_network_prevents_every_release() -> None:
    assert Reason.SOURCE_UNAVAILABLE in reasons(node(LEAK, unread_networks=["storage"]))


def test_records_that_own_no_address_do_not_refuse() -> None:
    hosts = pod("kube-system/agent", THE_IP, host_network=True)
    done: list[Thing] = [pod("shop/job", THE_IP, phase="Succeeded"), pod("shop/cron", THE_IP, phase="Failed")]
    others: list[Thing] = [
        Checkpoint("8" * 64, ""),
        Address("10.244.1.90", 1, "sh"),
        pod("shop/x", "10.244.1.91", phase="Pending"),
    ]
    assert refusals(node(LEAK, hosts, *done, *others)) == ()


def test_ids_are_compared_in_full() -> None:
    short: list[Thing] = [Checkpoint(THE_ID[:12], ""), Container(THE_ID[:12], "running", 0, "", "", sandbox=True)]
    assert refusals(node(LEAK, *short)) == ()


def test_an_empty_file_is_protected_by_the_owners_of_its_address() -> None:
    empty = empty_file(THE_IP)
    assert reasons(node(empty, Address(THE_IP, 1, "sh")))[0] is Reason.ADDRESS_IN_USE
    assert reasons(node(empty, pod("shop/late", THE_IP, phase="Pending")))[0] is Reason.CLAIMED_BY_POD
    assert Reason.NOT_CONFIRMED in reasons(node(replace(empty, mtime_ns=LEAK.mtime_ns + 7200 * 10**9)))


# All addresses of a sandbox are decided together


@pytest.mark.parametrize("saved", [Address("fd00::9", 1, "sh"), pod("shop/late", "fd00::9", phase="Pending")])
def test_one_protected_address_protects_both_of_a_sandbox(saved: Any) -> None:
    (found_refusals,) = verdicts(guard_context(node(LEAK, LEAK6, saved, **DUAL))).values()
    assert found_refusals


def test_one_unconfirmed_address_protects_both_of_a_sandbox() -> None:
    recent = reservation("fd00::9", age=SECOND)
    assert list(verdicts(guard_context(node(LEAK, recent, **DUAL)))) == [f"{THE_IP} fd00::9"]
    assert reasons(node(LEAK, recent, **DUAL)) == [Reason.NOT_CONFIRMED]


def test_a_sandbox_partly_in_a_network_that_is_not_allowed_is_refused() -> None:
    other = reservation("10.9.0.2", network="storage", ifname="net1")
    both = node(LEAK, other, cni_result("8" * 64, "shop/x", "10.9.0.0/24", network="storage"))
    (refusal,) = refusals(both)
    assert (refusal.reason, refusal.setting) == (Reason.NETWORK_NOT_ALLOWED, "--cleanup-network=kubenet,storage")
    assert refusals(both, limits=make_limits(networks=frozenset({"kubenet", "storage"}))) == ()


def test_auto_allows_only_what_the_runtime_names() -> None:
    auto = make_limits(networks=frozenset({"auto"}))
    kubenet = RuntimeNetwork("kubenet", ("bridge",), "host-local")
    assert refusals(node(LEAK, networks=[kubenet]), limits=auto) == ()
    for networks in ([], [replace(kubenet, name="cbr0")], [replace(kubenet, ipam="calico-ipam")]):
        (refusal,) = refusals(node(LEAK, networks=networks), limits=auto)
        assert (refusal.reason, refusal.setting) == (Reason.NETWORK_NOT_ALLOWED, "--cleanup-network=auto,kubenet")


def test_both_addresses_of_a_sandbox_can_be_requested() -> None:
    dual = node(LEAK, LEAK6, **DUAL)
    assert refusals(dual, limits=only(THE_IP, "fd00::9")) == ()
    assert refusals(dual, limits=only("fd00::9"))[0].setting == f"--ip={THE_IP} --ip=fd00::9"


# Age


@pytest.mark.parametrize(("age", "refused"), [(GRACE - timedelta(milliseconds=1), True), (GRACE, False)])
def test_a_file_as_old_as_the_grace_period_is_old_enough(age: timedelta, refused: bool) -> None:
    made = replace(LEAK, mtime_ns=int((NOW - age).timestamp() * 1000) * 10**6)
    assert bool(refusals(node(made))) is refused


def test_without_a_grace_period_only_a_future_file_is_not_confirmed() -> None:
    limits = make_limits(grace=timedelta(0))
    assert refusals(node(reservation(THE_IP, age=timedelta(0))), limits=limits) == ()
    for age in (SECOND, timedelta(hours=1)):
        refusal = refusals(node(reservation(THE_IP, age=-age)), limits=limits)[0]
        assert (refusal.reason, refusal.setting) == (Reason.NOT_CONFIRMED, "")
        assert refusal.why == f"the file is {age.total_seconds():.0f} s newer than the snapshot"


def test_a_leak_found_by_one_snapshot_is_not_confirmed_whatever_its_age() -> None:
    once = guard_context(node(LEAK))
    once = replace(once, report=scanned(node(), node(LEAK)))
    (refusal,) = verdicts(once)[THE_IP]
    assert (refusal.reason, refusal.setting) == (Reason.NOT_CONFIRMED, "")


def test_another_file_under_the_same_address_is_another_leak() -> None:
    replaced = replace(LEAK, inode=LEAK.inode + 1)
    assert reasons(node(LEAK), node(replaced)) == [Reason.NOT_CONFIRMED]


def test_a_file_with_an_mtime_out_of_range_is_decided() -> None:
    assert refusals(node(replace(LEAK, mtime_ns=-(2**62) * 8))) == ()
    assert Reason.NOT_CONFIRMED in reasons(node(replace(LEAK, mtime_ns=2**62 * 8)))


# The range


@pytest.mark.parametrize("ip", ["10.244.1.1", "10.244.1.255", "10.244.2.9", "10.244.1.0", "fd00::9"])
def test_an_address_outside_the_usable_range_is_released_only_by_name(ip: str) -> None:
    odd = node(reservation(ip), addresses=[])
    (refusal,) = refusals(odd)
    assert (refusal.reason, refusal.setting) == (Reason.OUTSIDE_RANGE, f"--ip={ip}")
    assert refusals(odd, limits=only(ip)) == ()


def test_an_owner_also_refuses_releases_by_name() -> None:
    assert Reason.ADDRESS_IN_USE in reasons(node(OUTSIDE, Address(OUTSIDE.ip, 1, "sh")), limits=only(OUTSIDE.ip))
    assert Reason.SOURCE_UNAVAILABLE in reasons(without(node(LEAK), "cni_results"), limits=only(THE_IP))


def test_the_range_of_another_network_does_not_count() -> None:
    stray = replace(reservation("10.244.1.9", network="storage"), network="storage")
    limits = make_limits(networks=frozenset({"storage"}))
    assert reasons(node(stray), limits=limits) == [Reason.OUTSIDE_RANGE]


# Settling


@pytest.mark.parametrize("who", ["booted", "kubelet", "docker"])
@pytest.mark.parametrize(("ago", "refused"), [(GRACE, False), (GRACE - SECOND, True), (-SECOND, True)])
def test_a_recent_start_is_unsettled(who: str, ago: timedelta, refused: bool) -> None:
    snapshot = node(LEAK, processes=[processes(**{who: ago})])
    assert reasons(snapshot) == ([Reason.UNSETTLED] if refused else [])
    assert refusals(snapshot, limits=make_limits(settle=timedelta(0))) == ()


def test_a_recent_start_of_cri_dockerd_is_unsettled() -> None:
    started = replace(processes(), cri_dockerd=NOW - timedelta(seconds=20))
    assert refusals(node(LEAK, processes=[started])) == (
        Refusal(Reason.UNSETTLED, "cri-dockerd started 20 s ago, and --settle is 300 s"),
    )
    assert refusals(node(LEAK, processes=[replace(processes(), cri_dockerd=NOW - GRACE)])) == ()


@pytest.mark.parametrize(("name", "field"), [("containerd", "containerd"), ("cri-o", "crio")])
def test_the_start_of_the_runtime_that_was_asked_counts(name: str, field: str) -> None:
    asked = Known((ContainerRuntime(name, "1.28.11", "/run/mine.sock"),))
    for started, why in (
        (NOW - GRACE, ""),
        (NOW - timedelta(seconds=20), f"{name} started 20 s ago, and --settle is 300 s"),
        (None, f"it is not known when {name} started: its process was not found"),
    ):
        times: dict[str, Any] = {field: started, "docker": None, "runtime": "/run/mine.sock"}
        snapshot = replace(node(LEAK, processes=[replace(processes(), **times)]), runtimes=asked)
        assert refusals(snapshot) == ((Refusal(Reason.UNSETTLED, why),) if why else ())


@pytest.mark.parametrize(("who", "name"), [("kubelet", "the kubelet"), ("docker", "docker")])
def test_an_unknown_start_is_unsettled_and_no_setting_is_offered(who: str, name: str) -> None:
    changed: dict[str, Any] = {who: None}
    snapshot = node(LEAK, processes=[processes(**changed)])
    assert refusals(snapshot) == (
        Refusal(Reason.UNSETTLED, f"it is not known when {name} started: its process was not found"),
    )


# A CNI plugin that outlives its runtime


@pytest.mark.parametrize(
    ("age", "refused"),
    [
        (timedelta(seconds=30), False),  # after the reservation of half an hour
        (timedelta(minutes=1), True),  # the wall clock may have been moved
        (timedelta(days=1), True),
    ],
)
def test_a_plugin_objects_if_it_may_have_made_the_reservation(age: timedelta, *, refused: bool) -> None:
    context = guard_context(with_plugin(node(LEAK), age))
    ((_, refusals_),) = decide(context)
    assert (Reason.PLUGIN_AT_WORK in {refusal.reason for refusal in refusals_}) is refused


def test_a_plugin_objects_to_what_was_written_after_it_was_started() -> None:
    limits = make_limits(grace=timedelta(0))
    context = guard_context(with_plugin(node(reservation(THE_IP, age=SECOND * 20)), SECOND * 25), limits=limits)
    ((_, refusals_),) = decide(context)
    assert Reason.PLUGIN_AT_WORK in {refusal.reason for refusal in refusals_}

"""Each guard: no objection to a plain leak, and otherwise a reason, and an option that lifts it if there is one."""

import itertools
from dataclasses import dataclass, field, replace
from datetime import timedelta
from ipaddress import ip_address
from typing import Any

import pytest

from agent import config
from agent.cleanup.guards import Allowance, GuardContext, RuntimeHistory, decide, release_requests
from agent.model.assessment import State
from agent.model.release import Limits, Reason, Refusal
from agent.model.runtime import CONTAINERD, CRI_O, ContainerRuntime, RuntimeNetwork
from agent.model.snapshot import (
    SOURCES,
    Address,
    Checkpoint,
    Container,
    Known,
    Node,
    NotRequested,
    PluginProcess,
    Pod,
    PortMapping,
    Snapshot,
)
from tests.builders import (
    CIDR,
    GRACE,
    NON_ADDRESS_SOURCES,
    NOW,
    OLD,
    UPTIME,
    Thing,
    assessment,
    cni_result,
    empty_file,
    guard_context,
    make_limits,
    node,
    pod,
    processes,
    reservation,
    sandbox,
    scanned,
    unavailable,
    unrecognized,
    verdicts,
    with_waiting_pod,
    without,
    without_api,
)
from tests.cleanup.leaks import (
    BUDGETS,
    DUAL,
    LEAK,
    LEAK6,
    SECOND,
    THE_ID,
    THE_IP,
    leaks,
    only,
    passed,
    reasons,
    refusals,
)

# Every reason, and what lifts it


@dataclass(frozen=True)
class Situation:
    """A node with one leak and one reason to refuse it."""

    reason: Reason
    why: str
    snapshots: tuple[Snapshot, ...]
    limits: Limits = field(default_factory=make_limits)
    known: dict[str, Any] = field(default_factory=dict)
    command: str = "clean"

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        return decide(guard_context(*self.snapshots, limits=self.limits, **self.known))[-1][1]


def situation(reason: Reason, why: str, *snapshots: Snapshot, limits: Limits | None = None, **more: Any) -> Situation:
    """`why`: a part of the text."""
    command = more.pop("command", "clean")
    return Situation(reason, why, snapshots, limits or make_limits(), more, command)


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
FORWARDED = replace(cni_result(THE_ID, "shop/gone", CIDR), port_mappings=(PortMapping(8080, "tcp"),))
SITUATIONS = (
    situation(Reason.HALTED, "is there again", node(LEAK), halted="container 999999999999 is there again"),
    situation(Reason.SOURCE_UNAVAILABLE, "node: it gave no word", without(node(LEAK), "node")),
    situation(
        Reason.NETWORK_NOT_ALLOWED, "in network kubenet", node(LEAK), limits=make_limits(networks=frozenset({"x"}))
    ),
    situation(Reason.TEARDOWN_PENDING, "its checkpoint remains", node(LEAK, Checkpoint(THE_ID, "shop/gone"))),
    situation(Reason.ADDRESS_IN_USE, "process 77 (java) has the address", node(LEAK, Address(THE_IP, 77, "java"))),
    situation(
        Reason.ADDRESS_IN_USE,
        "its network namespace is still mounted, without a process: /run/netns/cni-9",
        node(LEAK, PINNED, mounted_namespaces=["/run/netns/cni-9"]),
    ),
    situation(
        Reason.CLAIMED_BY_POD, "pod shop/late has 10.244.1.9", node(LEAK, pod("shop/late", THE_IP, phase="Pending"))
    ),
    situation(Reason.NOT_CONFIRMED, "299 s old, and --grace is 300 s", node(reservation(THE_IP, age=GRACE - SECOND))),
    situation(Reason.OUTSIDE_RANGE, "10.250.0.9 is not allocated from 10.244.1.1-10.244.1.254", node(OUTSIDE)),
    situation(Reason.OUTSIDE_RANGE, "the range of network kubenet", node(LEAK, node=[], cni_results=[])),
    situation(Reason.PARTIAL_SANDBOX, "also has fd00::9", node(LEAK, LEAK6, **DUAL), limits=only(THE_IP)),
    situation(
        Reason.RUNTIME_DOUBTFUL,
        "docker lists no container of 3 of the 3 pods",
        node(reservations=[LEAK], checkpoints=[], containers=[]),
    ),
    situation(
        Reason.UNSETTLED, "the kubelet started 299 s ago", node(LEAK, processes=[processes(kubelet=GRACE - SECOND)])
    ),
    situation(Reason.IMPLAUSIBLE_SHARE, "50% of network kubenet looks leaked", node(*HALF_THE_RANGE)),
    situation(Reason.JOURNAL_UNWRITABLE, "read-only", node(LEAK), journal_trouble="/x is mounted read-only"),
    situation(
        Reason.JOURNAL_UNWRITABLE,
        "/x/torn.json: no entry; it may say that cleanup halted",
        node(LEAK),
        limits=make_limits(unattended=True, release_host_ports=True),
        journal_damage=("/x/torn.json: no entry",),
    ),
    *(
        situation(
            Reason.OVER_BUDGET,
            "this is number 3 in line",
            node(*leaks(2), reservation("10.244.1.8", age=timedelta(hours=1))),
            allowances=allowances,
            command=name.partition(",")[0],
        )
        for name, (allowances, _) in BUDGETS.items()
    ),
    situation(Reason.HOST_PORTS, "8080", node(LEAK, FORWARDED), limits=make_limits(unattended=True), command="run"),
    situation(Reason.PLUGIN_AT_WORK, "the CNI plugin bridge (process 70)", with_plugin(node(LEAK), GRACE + UPTIME)),
    situation(Reason.RUNTIME_UNORDERED, "containerd 1.6.8 is not known to", with_runtime(node(LEAK), "1.6.8")),
    situation(
        Reason.PLUGIN_FAILING,
        "a CNI plugin of network kubenet fails",
        with_waiting_pod(node(*leaks(6, timedelta(minutes=8)))),
        limits=make_limits(unattended=True, release_host_ports=True),
        command="run",
    ),
)
each = pytest.mark.parametrize("wrong", SITUATIONS, ids=lambda situation: situation.reason.value)
OWNED = {Reason.TEARDOWN_PENDING, Reason.ADDRESS_IN_USE, Reason.CLAIMED_BY_POD}


@each
def test_each_problem_is_one_refusal_with_its_reason(wrong: Situation) -> None:
    # An owner also changes the state, so the leak is not confirmed either.
    also = [Reason.NOT_CONFIRMED] if wrong.reason in OWNED else []
    assert [refusal.reason for refusal in wrong.refusals] == [wrong.reason, *also]
    assert wrong.why in wrong.refusals[0].why


def test_every_reason_can_occur() -> None:
    # These come after the guards: see `test_run.py` and `test_unlink.py`.
    later = {Reason.CONTAINER_EXISTS, Reason.SNAPSHOT_EXPIRED, Reason.PROBE_UNANSWERED, Reason.JOURNAL_FULL}
    assert set(Reason) == {situation.reason for situation in SITUATIONS} | later


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
        Allowance(setting, most[name] - spent if name in {*options, "max"} else left, spent)
        for setting, left, spent in wrong.known.get("allowances", ())
        if (name := setting.removeprefix("--").replace("-", "_"))
    )
    known = wrong.known | {"allowances": allowances}
    return replace(wrong, limits=replace(wrong.limits, **changes), known=known)


LIFTED = {
    Reason.NETWORK_NOT_ALLOWED, Reason.NOT_CONFIRMED, Reason.OUTSIDE_RANGE, Reason.PARTIAL_SANDBOX,
    Reason.IMPLAUSIBLE_SHARE, Reason.OVER_BUDGET, Reason.HOST_PORTS,
}  # fmt: skip


@each
def test_the_setting_named_by_a_refusal_overrides_it_and_nothing_overrides_an_owner(wrong: Situation) -> None:
    refusal = wrong.refusals[0]
    assert bool(refusal.setting) is (wrong.reason in LIFTED)
    assert not refusal.setting or applied(wrong, refusal.setting.split()).refusals == ()


def test_all_refusals_are_returned_the_most_important_first() -> None:
    wrong = node(reservation("10.250.0.9", age=SECOND), Checkpoint(THE_ID, ""), processes=[processes(docker=None)])
    assert reasons(wrong, limits=make_limits(networks=frozenset()), halted="once more", journal_trouble="no") == [
        Reason.HALTED,
        Reason.NETWORK_NOT_ALLOWED,
        Reason.TEARDOWN_PENDING,
        Reason.NOT_CONFIRMED,
        Reason.OUTSIDE_RANGE,
        Reason.UNSETTLED,
        Reason.JOURNAL_UNWRITABLE,
    ]


# Owners


def mistaken(snapshot: Snapshot) -> GuardContext:
    """Classify every reservation as a confirmed leak, as if the classification were wrong."""
    context = guard_context(snapshot)
    wrong = tuple(replace(classified, state=State.LEAKED) for classified in context.assessment.reservations)
    return replace(context, report=replace(context.report, assessment=replace(context.assessment, reservations=wrong)))


@pytest.mark.parametrize(
    "claim",
    [
        pod("shop/a", THE_IP, phase=""),
        pod("", "192.0.2.1", "fd00::9", phase="Unknown"),
        pod("shop/web", THE_IP, deleting=True),
    ],
)
def test_a_live_pod_is_asked_for_itself_because_it_is_not_asked_again(claim: Any) -> None:
    found = verdicts(mistaken(node(LEAK, LEAK6, claim, **DUAL)))[f"{THE_IP} fd00::9"]
    assert [refusal.reason for refusal in found] == [Reason.CLAIMED_BY_POD]


def test_records_that_own_no_address_do_not_refuse() -> None:
    hosts = pod("kube-system/agent", THE_IP, host_network=True)
    others: list[Thing] = [
        pod("shop/job", THE_IP, phase="Succeeded"),
        pod("shop/cron", THE_IP, phase="Failed"),
        Checkpoint("8" * 64, ""),
        Address("10.244.1.90", 1, "sh"),
        pod("shop/x", "10.244.1.91", phase="Pending"),
        Checkpoint(THE_ID[:12], ""),
        Container(THE_ID[:12], "running", 0, "", "", sandbox=True),
    ]
    assert refusals(node(LEAK, hosts, *others)) == ()
    assert refusals(node(LEAK, PINNED)) == (), "its namespace was unmounted"


def test_an_empty_file_is_protected_by_the_owners_of_its_address() -> None:
    empty = empty_file(THE_IP)
    assert refusals(node(empty)) == ()
    assert reasons(node(empty, Address(THE_IP, 1, "sh")))[0] is Reason.ADDRESS_IN_USE
    assert reasons(node(empty, pod("shop/late", THE_IP, phase="Pending")))[0] is Reason.CLAIMED_BY_POD


@pytest.mark.parametrize("saved", [Address("fd00::9", 1, "sh"), pod("shop/late", "fd00::9", phase="Pending")])
def test_one_protected_address_protects_both_of_a_sandbox(saved: Any) -> None:
    assert set(reasons(node(LEAK, LEAK6, saved, **DUAL))) & OWNED
    assert set(reasons(node(LEAK, LEAK6, saved, **DUAL), limits=only(THE_IP, "fd00::9"))) & OWNED, "by name too"


# Sources


@pytest.mark.parametrize("source", sorted({*SOURCES}))
def test_one_unavailable_source_of_address_data_prevents_every_release(source: str) -> None:
    found = verdicts(guard_context(without(node(LEAK), source))).values()
    if source in NON_ADDRESS_SOURCES:
        assert list(found) == [()]
    else:
        assert all(refusal and refusal[0].reason is Reason.SOURCE_UNAVAILABLE for refusal in found)


@pytest.mark.parametrize("source", ["checkpoints", "addresses", "pods", "processes", "cni_results"])
def test_a_source_that_was_not_asked_is_not_empty_either(source: str) -> None:
    changed: dict[str, Any] = {source: NotRequested(source, "it was left alone")}
    assert bool(refusals(replace(node(LEAK), **changed))) is (source != "pods"), "pods may be disabled"


@pytest.mark.parametrize("unread", [unavailable("mounted_namespaces"), NotRequested("mounted_namespaces", "no")])
def test_without_the_mount_table_no_named_namespace_counts_as_unmounted(unread: Any) -> None:
    assert Reason.NOT_CONFIRMED in reasons(node(LEAK, PINNED, mounted_namespaces=unread))


def test_another_unavailable_network_prevents_every_release() -> None:
    assert Reason.SOURCE_UNAVAILABLE in reasons(node(LEAK, unread_networks=["storage"]))


# Networks and ranges


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


@pytest.mark.parametrize("ip", ["10.244.1.1", "10.244.1.255", "10.244.2.9", "10.244.1.0", "fd00::9"])
def test_an_address_outside_the_usable_range_is_released_only_by_name(ip: str) -> None:
    odd = node(reservation(ip), addresses=[])
    (refusal,) = refusals(odd)
    assert (refusal.reason, refusal.setting) == (Reason.OUTSIDE_RANGE, f"--ip={ip}")
    assert refusals(odd, limits=only(ip)) == ()


# Age, and two snapshots


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
    assert refusals(node(replace(LEAK, mtime_ns=-(2**62) * 8))) == ()
    assert Reason.NOT_CONFIRMED in reasons(node(replace(LEAK, mtime_ns=2**62 * 8)))


def test_a_leak_that_not_both_snapshots_have_is_not_confirmed_whatever_its_age() -> None:
    once = replace(guard_context(node(LEAK)), report=scanned(node(), node(LEAK)))
    (refusal,) = verdicts(once)[THE_IP]
    assert (refusal.reason, refusal.setting) == (Reason.NOT_CONFIRMED, "")
    assert reasons(node(LEAK), node(replace(LEAK, inode=LEAK.inode + 1))) == [Reason.NOT_CONFIRMED], "another file"
    recent = reservation("fd00::9", age=SECOND)
    assert reasons(node(LEAK, recent, **DUAL)) == [Reason.NOT_CONFIRMED], "one address of two"


# What has to settle


@pytest.mark.parametrize("who", ["booted", "kubelet", "docker"])
@pytest.mark.parametrize(("ago", "refused"), [(GRACE, False), (GRACE - SECOND, True), (-SECOND, True)])
def test_a_recent_start_is_unsettled(who: str, ago: timedelta, refused: bool) -> None:
    snapshot = node(LEAK, processes=[processes(**{who: ago})])
    assert reasons(snapshot) == ([Reason.UNSETTLED] if refused else [])
    assert refusals(snapshot, limits=make_limits(settle=timedelta(0))) == ()


@pytest.mark.parametrize(("name", "kind"), [("containerd", "containerd"), ("cri-o", "crio")])
def test_the_start_of_the_runtime_that_was_asked_counts(name: str, kind: str) -> None:
    asked = Known((ContainerRuntime(name, "1.28.11", "/run/mine.sock"),))
    for started, why in (
        (NOW - GRACE, ""),
        (NOW - timedelta(seconds=20), f"{name} started 20 s ago, and --settle is 300 s"),
        (None, f"it is not known when {name} started: its process was not found"),
    ):
        times: dict[str, Any] = {kind: started, "docker": None, "runtime": "/run/mine.sock"}
        snapshot = replace(node(LEAK, processes=[replace(processes(), **times)]), runtimes=asked)
        assert refusals(snapshot) == ((Refusal(Reason.UNSETTLED, why),) if why else ())


def test_an_unknown_start_is_unsettled_and_cri_dockerd_counts_where_it_runs() -> None:
    for changed, why in (
        ({"kubelet": None}, "it is not known when the kubelet started: its process was not found"),
        ({"docker": None}, "it is not known when docker started: its process was not found"),
        ({"cri_dockerd": NOW - timedelta(seconds=20)}, "cri-dockerd started 20 s ago, and --settle is 300 s"),
    ):
        started = replace(processes(), **changed)
        assert refusals(node(LEAK, processes=[started])) == (Refusal(Reason.UNSETTLED, why),)


@pytest.mark.parametrize(
    ("leak_age", "age", "refused"),
    [
        (timedelta(minutes=30), timedelta(seconds=30), False),
        (timedelta(minutes=30), timedelta(minutes=1), True),  # the wall clock may have been moved
        (timedelta(minutes=30), timedelta(days=1), True),
        (timedelta(seconds=20), timedelta(seconds=25), True),  # the file was written after its start
    ],
)
def test_a_plugin_objects_if_it_may_have_made_the_reservation(
    leak_age: timedelta, age: timedelta, *, refused: bool
) -> None:
    snapshot = with_plugin(node(reservation(THE_IP, age=leak_age)), age)
    found = reasons(snapshot, limits=make_limits(grace=timedelta(0)))
    assert (Reason.PLUGIN_AT_WORK in found) is refused


# The runtime's list


def watched(*snapshots: Snapshot) -> RuntimeHistory:
    history = RuntimeHistory()
    for snapshot in snapshots:
        history = history.after(snapshot)
    return history


def crowd(count: int, state: str = "running") -> list[Container]:
    return [Container(f"{n:064x}", state, 0, "", "", sandbox=False) for n in range(count)]


@pytest.mark.parametrize(
    ("before", "after", "suspect"),
    [(4, 2, False), (4, 1, True), (4, 0, True), (3, 0, False), (10, 5, False), (11, 5, True), (5, 5, False)],
)
def test_a_list_that_lost_most_of_its_containers_is_suspect(before: int, after: int, suspect: bool) -> None:
    history = watched(node(containers=crowd(before)), node(containers=crowd(after), later=SECOND))
    assert (history.suspect_since == UPTIME + SECOND) is suspect
    full = node(containers=[*crowd(3), *crowd(40, "exited")[3:]])
    assert watched(full, node(containers=crowd(3), later=SECOND)).suspect_since is None, "stopped ones come and go"


def test_a_loss_is_detected_across_snapshots_without_dockers_list() -> None:
    incomplete = without(node(later=SECOND), "containers")
    history = watched(node(containers=crowd(9)), incomplete, incomplete, node(containers=crowd(3), later=2 * SECOND))
    assert history.suspect_since == UPTIME + 2 * SECOND
    assert history.why == "docker listed 9 running containers, then 3 in the next snapshot"


def test_a_restarted_docker_is_suspect_even_if_it_was_unavailable_meanwhile() -> None:
    before, after = node(), node(processes=[processes(docker=timedelta(days=1))], later=2 * SECOND)
    incomplete = without(node(later=SECOND), "processes", "containers")
    gone = node(processes=[processes(docker=None)], later=SECOND)
    for between in ([], [incomplete], [gone], [incomplete, gone]):
        history = watched(before, *between, after)
        assert (history.suspect_since, history.why) == (UPTIME + 2 * SECOND, "docker restarted between two snapshots")
    assert watched(before, incomplete, gone, before).suspect_since is None
    moved = replace(processes(), booted=NOW - UPTIME + GRACE, docker=NOW - UPTIME + GRACE)
    assert watched(node(), node(processes=[moved], clock_set_by=GRACE, later=SECOND)).suspect_since is None


@pytest.mark.parametrize(("later", "refused"), [(timedelta(0), True), (GRACE, True), (GRACE + SECOND, False)])
def test_a_suspect_list_is_trusted_again_after_settle(later: timedelta, refused: bool) -> None:
    history = RuntimeHistory(suspect_since=UPTIME, why="docker restarted")
    context = replace(guard_context(node(LEAK, later=later)), runtime_history=history)
    (found,) = verdicts(context).values()
    assert [refusal.reason for refusal in found] == ([Reason.RUNTIME_DOUBTFUL] if refused else [])


@pytest.mark.parametrize(
    ("running", "listed", "refused"),
    [(0, 0, False), (1, 1, False), (1, 0, True), (3, 1, False), (3, 0, True), (4, 2, False), (4, 1, True)],
)
def test_a_list_without_the_running_pods_is_suspect(running: int, listed: int, refused: bool) -> None:
    pods = [pod(f"shop/p{n}", f"10.253.6.{n + 2}") for n in range(running)]
    boxes = [sandbox(f"{n:064x}", f"shop/p{n}") for n in range(listed)]
    found = reasons(node(reservations=[LEAK], checkpoints=[], containers=boxes, pods=pods))
    assert found == ([Reason.RUNTIME_DOUBTFUL] if refused else [])


def test_pods_that_are_not_running_need_not_be_listed() -> None:
    others = [pod("shop/new", phase="Pending"), pod("shop/old", deleting=True), pod("shop/done", phase="Succeeded")]
    assert refusals(node(LEAK, *others)) == ()
    empty = node(reservations=[LEAK], checkpoints=[], containers=[])
    assert refusals(without_api(empty)) == (), "without the API server nothing says otherwise"


# The share


def share(*records: Any, **changes: Any) -> float:
    return guard_context(node(*records, **changes), limits=make_limits()).shares["kubenet"]


def test_a_share_of_a_few_sandboxes_is_ignored() -> None:
    small = [Node("worker-1", ("10.244.1.0/28",), 110)]
    assert (share(*leaks(7), node=small), share(*leaks(8), node=small)) == (0, 8 / 13)


def test_a_share_counts_sandboxes_leaked_and_candidate_but_not_owned() -> None:
    recent = [reservation(f"10.244.1.{n}", f"{n:064x}", age=SECOND) for n in range(40, 44)]
    in_use = [Address(f"10.244.1.{10 + n}", 1, "sh") for n in (1, 2)]
    both = [reservation(f"10.244.2.{n}", f"{n:064x}", age=SECOND) for n in range(40, 44)]
    assert share(*leaks(10), *recent, *both, *in_use) == 12 / 253


@pytest.mark.parametrize(("most", "refused"), [(31 / 253, False), (30 / 253, True), (0.0, True), (1.0, False)])
def test_a_share_equal_to_the_limit_is_plausible(most: float, refused: bool) -> None:
    found = verdicts(guard_context(node(*leaks(31)), limits=make_limits(max_share=most)))
    assert {tuple(refusal.reason for refusal in each) for each in found.values()} == {
        (Reason.IMPLAUSIBLE_SHARE,) if refused else ()
    }


def test_no_sandbox_is_released_in_part_where_a_directory_is_not_read() -> None:
    primary = cni_result(THE_ID, "shop/gone", CIDR)
    attached = replace(primary, network="storage", ifname="net1", data_dir="/data/ipam")
    (refusal,) = refusals(node(LEAK, primary, attached))
    assert (refusal.reason, refusal.setting) == (Reason.PARTIAL_SANDBOX, "")
    assert "another address of it, in /data/ipam/storage, which is not read" in refusal.why
    assert refusals(node(LEAK, primary, replace(attached, container_id="e" * 64))) == ()
    for place in ("/var/lib/cni/networks", "/data/ipam"):  # there is an older directory of the same name
        snapshot = node(LEAK, replace(LEAK, network="storage", ip="10.9.0.2"), primary, attached)
        stores = tuple(replace(store, data_dir=place) for store in snapshot.reservations)
        reasons = {refusal.reason for refusal in refusals(replace(snapshot, reservations=stores))}
        assert (Reason.PARTIAL_SANDBOX in reasons) == (place != "/data/ipam")


def test_what_a_share_is_one_of() -> None:
    assert share(*leaks(8), node=[], cni_results=[]) == 8 / 10, "the reservations, where the range is not known"
    assert share(*leaks(31), node=[Node("worker-1", ("10.250.0.0/29",), 110)]) == 1, "at most 1"
    alone = NotRequested("pods", "--api=off")
    assert share(*leaks(110), pods=alone) == 110 / 112, "only docker makes nearly all of them leaked"
    assert share(*leaks(31), pods=alone) == 31 / 253
    assert share(*leaks(110)) == 110 / 253, "the API server knows the pods that run, and docker's list agrees with it"


def test_a_share_is_calculated_per_network() -> None:
    crowded = node(*leaks(8), reservation("10.9.0.2", "8" * 64, network="storage"), node=[], cni_results=[])
    found = verdicts(guard_context(crowded, limits=make_limits(networks=frozenset({"kubenet", "storage"}))))
    assert Reason.IMPLAUSIBLE_SHARE not in {refusal.reason for refusal in found["10.9.0.2"]}
    assert Reason.IMPLAUSIBLE_SHARE in {refusal.reason for refusal in found["10.244.1.11"]}


# Host ports, where nobody watches

UNATTENDED = make_limits(unattended=True)
WEB = PortMapping(8080, "tcp")


def its_pod(ports: tuple[PortMapping, ...] | None, age: timedelta = timedelta(days=1), uid: str = "") -> Pod:
    """Return the pod of the leak, as the API server has it, and what its spec says."""
    return replace(pod("shop/gone", phase="Pending", uid=uid), created=NOW - age, host_ports=ports)


def host_ports_of(*snapshots: Snapshot) -> str:
    """Return why the daemon does not release the leak for its host ports; empty if it does."""
    found = refusals(*snapshots, limits=UNATTENDED)
    assert refusals(*snapshots, limits=replace(UNATTENDED, release_host_ports=True)) == ()
    assert refusals(*snapshots) == (), "a command by hand warns"
    assert [refusal.reason for refusal in found] == [Reason.HOST_PORTS] * len(found)
    return "".join(refusal.why for refusal in found)


def with_crio(snapshot: Snapshot) -> Snapshot:
    socket = "/run/crio/crio.sock"
    return replace(
        snapshot,
        processes=Known(replace(processes(), runtime=f"unix://{socket}", crio=NOW - UPTIME)),
        runtimes=Known((ContainerRuntime(CRI_O, "1.35.6", socket),)),
        checkpoints=NotRequested("checkpoints", "a kubelet with CRI-O has none"),
    )


def test_with_crio_the_daemon_releases_no_address_whose_host_ports_are_not_known() -> None:
    not_known = "rules that forward host ports to 1 address are not known: `iptables-save -t nat | grep -wF 10.244.1.9`"
    assert f"no record says whose it was, and {not_known}" in host_ports_of(with_crio(node(LEAK)))
    assert host_ports_of(node(LEAK)) == "", "elsewhere an unknown leak is no sign of a host port"
    named = cni_result(THE_ID, "shop/gone", CIDR)
    assert host_ports_of(node(LEAK, named)) == "", "a CNI plugin would have been told of them"
    assert f"the spec of its pod shop/gone was not seen, and {not_known}" in host_ports_of(with_crio(node(LEAK, named)))
    namesake, recorded = its_pod((), age=OLD - SECOND), its_pod(None)
    for unsure in (namesake, recorded, replace(namesake, created=None)):
        assert not_known in host_ports_of(with_crio(node(LEAK, named, unsure)))


def test_the_spec_of_its_pod_says_which_host_ports_are_forwarded() -> None:
    named = cni_result(THE_ID, "shop/gone", CIDR)
    assert host_ports_of(with_crio(node(LEAK, named, its_pod(())))) == ""
    assert "host port 8080/tcp to 10.244.1.9" in host_ports_of(with_crio(node(LEAK, named, its_pod((WEB,)))))
    assert host_ports_of(node(LEAK, named, its_pod((WEB,)))) == "", "no CNI plugin was told of it"


def test_the_host_ports_of_a_sandbox_that_ran_are_remembered() -> None:
    ran, uid = sandbox(THE_ID, "shop/gone"), "uid of shop/gone"
    young = timedelta(0)  # the API server's clock is ahead
    for ports, why in (((), ""), ((WEB,), "8080/tcp")):
        before = node(LEAK, ran, its_pod(ports, young, uid))
        unread = without(node(LEAK), "reservations")
        for after in ([], [without(node(LEAK), "pods")], [unread]):
            assert bool(host_ports_of(before, *after, node(LEAK), node(LEAK))) is bool(why)
        another = node(LEAK, its_pod((PortMapping(53, "udp"),)))
        assert why in host_ports_of(before, another, another)
    other = node(LEAK, ran, its_pod((WEB,), young, "another uid"))
    assert host_ports_of(other, node(LEAK), node(LEAK)) == "", "of a pod with the same name"


def test_an_empty_file_and_one_from_before_a_reboot_have_no_rules() -> None:
    assert host_ports_of(node(empty_file(THE_IP))) == ""
    assert host_ports_of(node(LEAK, processes=[processes(booted=timedelta(hours=1))])) == ""


# Requests: every sandbox with a reservation that no runtime lists


def test_only_sandboxes_that_no_runtime_lists_are_requested() -> None:
    assert verdicts(guard_context(node(LEAK))) == {THE_IP: ()}
    assert verdicts(guard_context(without_api(node(LEAK)))) == {THE_IP: ()}
    for nothing in (
        node(),
        node(LEAK, sandbox(THE_ID, "shop/gone", "exited")),
        node(unrecognized("notes.txt"), unrecognized("10.244.1.77", blocks=True)),
        without(node(LEAK), "containers"),
        replace(node(LEAK), containers=NotRequested("containers", "for no reason")),
    ):
        assert release_requests(assessment(nothing)) == ()


def test_a_sandbox_is_one_request_across_networks_and_an_empty_file_its_own() -> None:
    other = reservation("10.9.0.2", network="storage", ifname="net1")
    empty = [empty_file("10.244.1.30"), replace(empty_file("10.244.1.30"), network="storage")]
    found = release_requests(assessment(node(other, LEAK6, LEAK, *empty)))
    assert {request.reservations for request in found} == {
        (LEAK, LEAK6, other),
        *((reservation,) for reservation in empty),
    }
    assert found[0].networks == ("kubenet", "storage")


def test_requested_by_name_a_sandbox_includes_all_its_addresses() -> None:
    gathered = release_requests(assessment(node(LEAK, LEAK6, *leaks(2))), frozenset({"fd00::9"}))
    assert [request.reservations for request in gathered] == [(LEAK, LEAK6)]
    assert release_requests(assessment(node(LEAK)), frozenset({"10.244.1.200"})) == ()
    assert refusals(node(LEAK, LEAK6, **DUAL), limits=only("fd00::9"))[0].setting == f"--ip={THE_IP} --ip=fd00::9"


@pytest.mark.parametrize(
    ("name", "version", "kept"),
    [("cri-o", "1.32.0", True), ("cri-o", "1.31.9", False), ("cri-o", "", False), ("containerd", "2.1.9", False)],
)
def test_a_cached_result_stays_for_a_runtime_that_deletes_at_its_start(name: str, version: str, kept: bool) -> None:
    socket = "/run/mine.sock"
    snapshot = replace(
        node(LEAK, processes=[replace(processes(), runtime=socket)]),
        runtimes=Known((ContainerRuntime(name, version, socket), ContainerRuntime("docker", "20.10.1"))),
    )
    (request,) = release_requests(assessment(snapshot))
    assert request.keeps_results is kept


# The order, the budget, and what is paused


def test_the_oldest_are_released_first_whatever_the_order_of_the_directory() -> None:
    old, middle, new = leaks(3)
    dual = [reservation(THE_IP, age=timedelta(hours=9)), reservation("fd00::9", age=timedelta(hours=1))]
    assert list(verdicts(guard_context(node(new, old, *dual, middle, **DUAL)))) == [
        f"{THE_IP} fd00::9", old.ip, middle.ip, new.ip,
    ]  # fmt: skip
    twins = [reservation(f"10.244.1.{n}", f"{n:064x}") for n in (20, 21, 22)]
    orders = {tuple(verdicts(guard_context(node(*some)))) for some in itertools.permutations(twins)}
    assert len(orders) == 1


def test_what_is_paused_is_left_out_and_uses_no_budget() -> None:
    old, middle, new = leaks(3)
    context = guard_context(node(new, old, middle), allowances=[Allowance("--max", 1)], paused=frozenset({old}))
    assert (passed(context), len(verdicts(context))) == ([middle.ip], 2)
    refused = guard_context(node(old, Address(old.ip, 1, "sh")), paused=frozenset({old}))
    assert len(verdicts(refused)) == 1, "another reason is told"


def test_a_budget_counts_addresses_and_skips_sandboxes_that_do_not_fit_or_are_refused() -> None:
    dual = [reservation(ip, age=timedelta(hours=9)) for ip in (THE_IP, "fd00::9")]
    in_use = reservation("10.244.1.8", "8" * 64, age=timedelta(hours=10))
    context = node(*dual, *leaks(3), in_use, Address(in_use.ip, 1, "sh"), **DUAL)
    for most, expected in (
        (0, []),
        (1, ["10.244.1.11"]),
        (2, [f"{THE_IP} fd00::9"]),
        (3, [f"{THE_IP} fd00::9", "10.244.1.11"]),
        (5, [f"{THE_IP} fd00::9", "10.244.1.11", "10.244.1.12", "10.244.1.13"]),
    ):
        assert passed(guard_context(context, allowances=[Allowance("--max-per-sync", most)])) == expected
    assert len(passed(guard_context(node(*leaks(31))))) == 31, "without a budget"


@pytest.mark.parametrize("name", BUDGETS)
def test_a_refusal_names_each_limit_that_is_too_low_and_the_needed_value(name: str) -> None:
    allowances, setting = BUDGETS[name]
    least = min(allowance.left for allowance in allowances)
    context = guard_context(node(*leaks(3)), allowances=allowances)
    over = [refusal for nos in verdicts(context).values() for refusal in nos]
    assert len(over) == 3 - max(least, 0)
    assert over[-1].setting == setting
    assert "-3" not in over[-1].why

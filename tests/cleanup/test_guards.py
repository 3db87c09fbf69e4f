"""Each guard: no refusal to a plain leak, and otherwise a reason, and an option that lifts it if there is one."""

import itertools
from dataclasses import replace
from datetime import timedelta
from typing import Any

from agent.checks.addresses import leaked_share
from agent.cleanup.guards import RuntimeHistory, decide, release_requests
from agent.cleanup.journal import Journal
from agent.model.assessment import State
from agent.model.brake import Brake
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
from tests import builders as b
from tests.builders import (
    GRACE,
    NOW,
    OLD,
    UPTIME,
    guard_context,
    make_limits,
    node,
    pod,
    processes,
    reservation,
    sandbox,
)
from tests.cleanup.leaks import DUAL, LEAK, LEAK6, SECOND, THE_ID, THE_IP, leaks
from tests.cleanup.syncs import entry


def refusals(
    *snapshots: Snapshot, limits: Limits | None = None, **known: Any
) -> tuple[Refusal, ...]:
    """Return the refusals to the last request of a node."""
    return decide(guard_context(*snapshots, limits=limits, **known))[-1][1]


def reasons(*snapshots: Snapshot, limits: Limits | None = None, **known: Any) -> list[Reason]:
    return [refusal.reason for refusal in refusals(*snapshots, limits=limits, **known)]


def only(*ips: str) -> Limits:
    return make_limits(only=frozenset(ips))


def in_networks(*names: str) -> Limits:
    return make_limits(networks=frozenset(names))


def with_runtime(snapshot: Snapshot, name: str, version: str) -> Snapshot:
    """Make it a node with this runtime, which has run as long as the node."""
    socket = f"/run/{name}.sock"
    named = replace(
        processes(), runtime=f"unix://{socket}", containerd=NOW - UPTIME, crio=NOW - UPTIME
    )
    return replace(
        snapshot,
        processes=Known(named),
        runtimes=Known((ContainerRuntime(name, version, socket),)),
        checkpoints=NotRequested("checkpoints", "a kubelet without docker has none"),
    )


def with_plugin(snapshot: Snapshot, age: timedelta) -> Snapshot:
    """Add a CNI plugin that has been at work for so long."""
    return replace(
        snapshot,
        processes=Known(replace(processes(), plugins=(PluginProcess(70, "bridge", NOW - age),))),
    )


UNATTENDED = make_limits(unattended=True)
UNATTENDED_PORTS = replace(UNATTENDED, release_host_ports=True)
PINNED = b.cni_result(THE_ID, "shop/gone", b.CIDR, namespace="/var/run/netns/cni-9")
"""What libcni keeps of a sandbox whose network namespace was mounted."""
NAMED = b.cni_result(THE_ID, "shop/gone", b.CIDR)
FORWARDED = replace(NAMED, port_mappings=(PortMapping(8080, "tcp"),))
HALTING = entry(LEAK, halted=NOW)
BRAKED = Brake("kube-system/nodeleak-brake", on=True, reason="incident 42", since=NOW)
TORN = "/x/torn.json: no entry"
SITUATIONS: tuple[tuple[Reason, str, Snapshot, dict[str, Any]], ...] = (
    (Reason.HALTED, HALTING.reappearance, node(LEAK), {"journal": Journal((HALTING,))}),
    (Reason.BRAKE_ON, "the brake kube-system/nodeleak-brake has been on since 2026-03-26 20:00:00Z: incident 42",
     node(LEAK, brake=BRAKED), {}),
    (Reason.SOURCE_UNAVAILABLE, "node: it gave no word", b.without(node(LEAK), "node"), {}),
    (Reason.TEARDOWN_PENDING, "its checkpoint remains", node(LEAK, Checkpoint(THE_ID, "shop/gone")), {}),
    *((Reason.ADDRESS_IN_USE, "process 77 (java) has", node(LEAK, Address(THE_IP, 77, "java"), *kept), {})
      for kept in ((), (Checkpoint(THE_ID, "shop/gone"),))),
    (Reason.ADDRESS_IN_USE, "its network namespace is still mounted, without a process: /run/netns/cni-9",
     node(LEAK, PINNED, mounted_namespaces=["/run/netns/cni-9"]), {}),
    (Reason.CLAIMED_BY_POD, "pod shop/late has 10.244.1.9", node(LEAK, pod("shop/late", THE_IP, phase="Pending")), {}),
    (Reason.RUNTIME_DOUBTFUL, "docker lists no container of 3 of the 3 pods",
     node(reservations=[LEAK], checkpoints=[], containers=[]), {}),
    (Reason.UNSETTLED, "the kubelet started 299 s ago", node(LEAK, processes=[processes(kubelet=GRACE - SECOND)]), {}),
    (Reason.JOURNAL_UNWRITABLE, "/x is read-only", node(LEAK), {"journal_error": "/x is read-only"}),
    (Reason.JOURNAL_UNWRITABLE, f"{TORN}; it may say that cleanup halted", node(LEAK),
     {"limits": UNATTENDED_PORTS, "journal": Journal(damage=(TORN,))}),
    (Reason.PLUGIN_AT_WORK, "the CNI plugin bridge (process 70)", with_plugin(node(LEAK), GRACE + UPTIME), {}),
    (Reason.RUNTIME_UNORDERED, "containerd 1.6.8 is not known to", with_runtime(node(LEAK), CONTAINERD, "1.6.8"), {}),
    (Reason.PLUGIN_FAILING, "a CNI plugin of network kubenet fails",
     b.with_waiting_pod(node(*leaks(6, timedelta(minutes=8)))), {"limits": UNATTENDED_PORTS}),
)  # fmt: skip
OWNED = {Reason.TEARDOWN_PENDING, Reason.ADDRESS_IN_USE, Reason.CLAIMED_BY_POD}
BOTH_IPS = f"--ip={THE_IP} --ip=fd00::9"
LIFTED: tuple[tuple[Reason, str, str, Snapshot, Limits, Limits], ...] = (
    (Reason.NETWORK_NOT_ALLOWED, "network kubenet", "--cleanup-network=kubenet,x", node(LEAK), in_networks("x"),
     in_networks("kubenet", "x")),
    (Reason.NOT_CONFIRMED, "299 s old, and --grace is 300 s", "--grace=0s",
     node(reservation(THE_IP, age=GRACE - SECOND)), make_limits(), make_limits(grace=timedelta(0))),
    (Reason.OUTSIDE_RANGE, "10.250.0.9 is not allocated from 10.244.1.1-10.244.1.254", "--ip=10.250.0.9",
     node(reservation("10.250.0.9")), make_limits(), only("10.250.0.9")),
    (Reason.OUTSIDE_RANGE, "the range of network kubenet", f"--ip={THE_IP}",
     node(LEAK, node=[], cni_results=[]), make_limits(), only(THE_IP)),
    (Reason.PARTIAL_SANDBOX, "also has fd00::9", BOTH_IPS, node(LEAK, LEAK6, **DUAL), only(THE_IP),
     only(THE_IP, "fd00::9")),
    (Reason.IMPLAUSIBLE_SHARE, "50% of network kubenet looks leaked", "--max-share=100%", node(*leaks(127)),
     make_limits(), make_limits(max_share=1.0)),
    (Reason.HOST_PORTS, "8080", "--release-host-ports=on", node(LEAK, FORWARDED), UNATTENDED, UNATTENDED_PORTS),
)  # fmt: skip


def test_each_problem_is_one_refusal_with_its_reason_and_nothing_overrides_an_owner() -> None:
    for reason, why, snapshot, known in SITUATIONS:
        found = refusals(snapshot, **known)
        # An owner also changes the state, so the leak is not confirmed either.
        also = [Reason.NOT_CONFIRMED] if reason in OWNED else []
        assert [refusal.reason for refusal in found] == [reason, *also]
        assert why in found[0].why
        assert found[0].setting == ""


def test_the_setting_named_by_a_refusal_overrides_it() -> None:
    for reason, why, setting, snapshot, limits, lifted in LIFTED:
        (refusal,) = refusals(snapshot, limits=limits)
        assert (refusal.reason, refusal.setting) == (reason, setting)
        assert why in refusal.why
        assert refusals(snapshot, limits=lifted) == ()


def test_the_setting_for_what_was_restored_names_all_addresses_of_the_sandbox() -> None:
    snapshot = node(LEAK, LEAK6, **DUAL)
    restored = Journal((entry(LEAK, restored=NOW),))
    (refusal,) = refusals(snapshot, journal=restored)
    assert (refusal.reason, refusal.setting) == (Reason.NOT_CONFIRMED, BOTH_IPS)
    assert refusals(snapshot, limits=only(THE_IP, "fd00::9"), journal=restored) == ()


def test_all_refusals_are_returned_the_most_important_first() -> None:
    wrong = node(
        reservation("10.250.0.9", age=SECOND),
        Checkpoint(THE_ID, ""),
        processes=[processes(docker=None)],
    )
    assert reasons(
        wrong, limits=in_networks(), journal=Journal((HALTING,)), journal_error="no"
    ) == [
        Reason.HALTED,
        Reason.NETWORK_NOT_ALLOWED,
        Reason.TEARDOWN_PENDING,
        Reason.NOT_CONFIRMED,
        Reason.OUTSIDE_RANGE,
        Reason.UNSETTLED,
        Reason.JOURNAL_UNWRITABLE,
    ]


def test_a_live_pod_is_asked_for_itself_because_it_is_not_asked_again() -> None:
    """Though every reservation is classified as a confirmed leak, by mistake."""
    for claim in (
        pod("shop/a", THE_IP, phase=""),
        pod("", "192.0.2.1", "fd00::9", phase="Unknown"),
        pod("shop/web", THE_IP, deleting=True),
    ):
        context = guard_context(node(LEAK, LEAK6, claim, **DUAL))
        wrong = tuple(
            replace(classified, state=State.LEAKED)
            for classified in context.assessment.reservations
        )
        report = replace(context.report, assessment=replace(context.assessment, reservations=wrong))
        found = b.verdicts(replace(context, report=report))[f"{THE_IP} fd00::9"]
        assert [refusal.reason for refusal in found] == [Reason.CLAIMED_BY_POD]


def test_one_protected_address_protects_both_of_a_sandbox_and_an_empty_file() -> None:
    claim: tuple[Any, ...] = (
        Address("fd00::9", 1, "sh"),
        pod("shop/late", "fd00::9", phase="Pending"),
    )
    for saved, reason in zip(claim, (Reason.ADDRESS_IN_USE, Reason.CLAIMED_BY_POD), strict=True):
        for limits in (make_limits(), only(THE_IP, "fd00::9")):
            assert reasons(node(LEAK, LEAK6, saved, **DUAL), limits=limits)[0] in OWNED
        assert reasons(node(b.empty_file("fd00::9"), saved, **DUAL))[0] is reason
    assert refusals(node(b.empty_file("fd00::9"), **DUAL), limits=only("fd00::9")) == ()


def test_an_empty_file_that_somebody_may_have_made_is_released_only_by_name() -> None:
    for limits in (make_limits(), UNATTENDED):
        (refusal,) = refusals(node(b.empty_file(THE_IP)), limits=limits)
        assert (refusal.reason, refusal.setting) == (Reason.NOT_CONFIRMED, f"--ip={THE_IP}")


def test_one_source_of_address_data_that_was_not_read_or_not_asked_prevents_every_release() -> None:
    for source in SOURCES:
        found = b.verdicts(guard_context(b.without(node(LEAK), source))).values()
        if source in b.NON_ADDRESS_SOURCES:
            assert list(found) == [()]
        else:
            assert all(
                refusal and refusal[0].reason is Reason.SOURCE_UNAVAILABLE for refusal in found
            )
            assert bool(found) is (source not in {"containers", "reservations"}), (
                "they say what could be released"
            )
    for source in ("checkpoints", "addresses", "pods", "processes", "cni_results"):
        changed: dict[str, Any] = {source: NotRequested(source, "it was left alone")}
        assert bool(refusals(replace(node(LEAK), **changed))) is (source != "pods"), (
            "pods may be disabled"
        )
    for unread in (b.unavailable("mounted_namespaces"), NotRequested("mounted_namespaces", "no")):
        assert Reason.NOT_CONFIRMED in reasons(node(LEAK, PINNED, mounted_namespaces=unread)), (
            "it may be mounted"
        )
    assert Reason.SOURCE_UNAVAILABLE in reasons(node(LEAK, unread_networks=["storage"]))


def test_a_sandbox_partly_in_a_network_that_is_not_allowed_is_refused_and_auto_allows_what_the_runtime_names() -> (
    None
):
    other = reservation("10.9.0.2", network="storage", ifname="net1")
    both = node(LEAK, other, b.cni_result("8" * 64, "shop/x", "10.9.0.0/24", network="storage"))
    (refusal,) = refusals(both)
    assert (refusal.reason, refusal.setting) == (
        Reason.NETWORK_NOT_ALLOWED,
        "--cleanup-network=kubenet,storage",
    )
    assert refusals(both, limits=in_networks("kubenet", "storage")) == ()
    auto = in_networks("auto")
    kubenet = RuntimeNetwork("kubenet", ("bridge",), "host-local")
    assert refusals(node(LEAK, networks=[kubenet]), limits=auto) == ()
    for networks in ([], [replace(kubenet, name="cbr0")], [replace(kubenet, ipam="calico-ipam")]):
        (refusal,) = refusals(node(LEAK, networks=networks), limits=auto)
        assert (refusal.reason, refusal.setting) == (
            Reason.NETWORK_NOT_ALLOWED,
            "--cleanup-network=auto,kubenet",
        )


def test_a_brake_that_is_off_or_not_set_refuses_nothing_and_one_that_is_not_known_everything() -> (
    None
):
    off = Brake("kube-system/nodeleak-brake", on=False)
    for brake in (off, NotRequested("brake", "--brake=off")):
        assert refusals(node(LEAK, brake=brake)) == ()
    for limits in (make_limits(), UNATTENDED, only(THE_IP), make_limits(max_share=1.0)):
        unknown = b.without(node(LEAK), "brake")
        assert set(reasons(unknown, limits=limits)) == {Reason.SOURCE_UNAVAILABLE}
        assert reasons(node(LEAK, brake=BRAKED), limits=limits) == [Reason.BRAKE_ON]


def test_the_daemon_releases_only_where_the_node_has_the_label() -> None:
    label = "nodeleak.dev/cleanup=auto"
    limits = make_limits(node_label=label)
    assert refusals(node(LEAK, node=[replace(b.WORKER, labels=(label,))]), limits=limits) == ()
    assert reasons(node(LEAK), limits=limits) == [Reason.NODE_NOT_CHOSEN]
    (refusal, *_) = refusals(node(LEAK, node=[]), limits=limits)
    assert refusal.reason is Reason.NODE_NOT_CHOSEN
    assert "there is no Node" in refusal.why
    for unread in (b.unavailable("node"), NotRequested("node", "--api=off")):
        found = reasons(node(LEAK, node=unread), limits=limits)
        assert Reason.SOURCE_UNAVAILABLE in found, "whether it has the label is not known"


def test_an_address_outside_the_usable_range_is_released_only_by_name() -> None:
    for ip in ("10.244.1.1", "10.244.1.255", "10.244.2.9", "10.244.1.0", "fd00::9"):
        odd = node(reservation(ip), addresses=[])
        (refusal,) = refusals(odd)
        assert (refusal.reason, refusal.setting) == (Reason.OUTSIDE_RANGE, f"--ip={ip}")
        assert refusals(odd, limits=only(ip)) == ()


def test_no_sandbox_is_released_in_part_where_a_directory_is_not_read() -> None:
    attached = replace(NAMED, network="storage", ifname="net1", data_dir="/data/ipam")
    (refusal,) = refusals(node(LEAK, NAMED, attached))
    assert (refusal.reason, refusal.setting) == (Reason.PARTIAL_SANDBOX, "")
    assert "another address of it, in /data/ipam/storage, which is not read" in refusal.why
    assert refusals(node(LEAK, NAMED, replace(attached, container_id="e" * 64))) == ()
    for place in (
        "/var/lib/cni/networks",
        "/data/ipam",
    ):  # there is an older directory of the same name
        snapshot = node(LEAK, replace(LEAK, network="storage", ip="10.9.0.2"), NAMED, attached)
        stores = tuple(replace(store, data_dir=place) for store in snapshot.reservations)
        found = reasons(replace(snapshot, reservations=stores))
        assert (Reason.PARTIAL_SANDBOX in found) == (place != "/data/ipam")


def test_a_leak_is_confirmed_by_both_snapshots_and_as_old_as_the_grace_period_but_no_future_file() -> (
    None
):
    for age, refused in ((GRACE - timedelta(milliseconds=1), True), (GRACE, False)):
        made = replace(LEAK, mtime_ns=int((NOW - age).timestamp() * 1000) * 10**6)
        assert bool(refusals(node(made))) is refused
    no_grace = make_limits(grace=timedelta(0))
    assert refusals(node(reservation(THE_IP, age=timedelta(0))), limits=no_grace) == ()
    for age in (SECOND, timedelta(hours=1)):
        refusal = refusals(node(reservation(THE_IP, age=-age)), limits=no_grace)[0]
        assert (refusal.reason, refusal.setting) == (Reason.NOT_CONFIRMED, "")
    assert refusals(node(replace(LEAK, mtime_ns=-(2**62) * 8))) == ()
    assert Reason.NOT_CONFIRMED in reasons(node(replace(LEAK, mtime_ns=2**62 * 8)))
    once = replace(guard_context(node(LEAK)), report=b.scanned(node(), node(LEAK)))
    (refusal,) = b.verdicts(once)[THE_IP]
    assert (refusal.reason, refusal.setting) == (Reason.NOT_CONFIRMED, "")
    assert reasons(node(LEAK), node(replace(LEAK, inode=LEAK.inode + 1))) == [
        Reason.NOT_CONFIRMED
    ], "another file"
    recent = reservation("fd00::9", age=SECOND)
    assert reasons(node(LEAK, recent, **DUAL)) == [Reason.NOT_CONFIRMED], "one address of two"


def test_a_recent_or_unknown_start_is_unsettled_and_the_runtime_that_was_asked_counts() -> None:
    for who, ago in itertools.product(
        ("booted", "kubelet", "docker"), (GRACE, GRACE - SECOND, -SECOND)
    ):
        snapshot = node(LEAK, processes=[processes(**{who: ago})])
        assert reasons(snapshot) == ([] if ago == GRACE else [Reason.UNSETTLED])
        assert refusals(snapshot, limits=make_limits(settle=timedelta(0))) == ()
    recent = NOW - timedelta(seconds=20)
    started: dict[str, Any]
    for runtime, started, why in (
        (
            "docker",
            {"kubelet": None},
            "it is not known when the kubelet started: its process was not found",
        ),
        (
            "docker",
            {"docker": None},
            "it is not known when docker started: its process was not found",
        ),
        (
            "docker",
            {"cri_dockerd": recent},
            "cri-dockerd started 20 s ago, and --settle is 300 s: wait 280 s",
        ),
        (
            "containerd",
            {"containerd": None},
            "it is not known when containerd started: its process was not found",
        ),
        (
            "containerd",
            {"containerd": recent},
            "containerd started 20 s ago, and --settle is 300 s: wait 280 s",
        ),
        ("containerd", {"docker": None}, ""),
        ("cri-o", {"crio": None}, "it is not known when cri-o started: its process was not found"),
        ("cri-o", {"crio": recent}, "cri-o started 20 s ago, and --settle is 300 s: wait 280 s"),
    ):
        snapshot = node(LEAK) if runtime == "docker" else with_runtime(node(LEAK), runtime, "2.1.0")
        snapshot = replace(
            snapshot, processes=Known(replace(snapshot.processes.known(), **started))
        )
        found = refusals(snapshot)
        assert [(refusal.reason, refusal.why) for refusal in found] == (
            [(Reason.UNSETTLED, why)] if why else []
        )
        # It says for how long the next command would be refused too.
        assert [refusal.wait for refusal in found] == (
            [timedelta(seconds=280)] if "wait" in why else [None] * bool(why)
        )


def test_a_plugin_objects_if_it_may_have_made_the_reservation() -> None:
    for leak_age, age, refused in (
        (timedelta(minutes=30), timedelta(seconds=30), False),
        (timedelta(minutes=30), timedelta(minutes=1), True),  # the wall clock may have been moved
        (timedelta(minutes=30), timedelta(days=1), True),
        (
            timedelta(seconds=20),
            timedelta(seconds=25),
            True,
        ),  # the file was written after its start
    ):
        snapshot = with_plugin(node(reservation(THE_IP, age=leak_age)), age)
        found = reasons(snapshot, limits=make_limits(grace=timedelta(0)))
        assert (Reason.PLUGIN_AT_WORK in found) is refused


def watched(*snapshots: Snapshot) -> RuntimeHistory:
    history = RuntimeHistory()
    for snapshot in snapshots:
        history = history.after(snapshot)
    return history


def crowd(count: int, state: str = "running") -> list[Container]:
    return [Container(f"{n:064x}", state, 0, "", "", sandbox=False) for n in range(count)]


def test_a_list_that_lost_most_of_its_containers_is_suspect() -> None:
    for many, left, suspect in (
        (4, 2, False), (4, 1, True), (4, 0, True), (3, 0, False), (10, 5, False), (11, 5, True), (5, 5, False),
    ):  # fmt: skip
        history = watched(node(containers=crowd(many)), node(containers=crowd(left), later=SECOND))
        assert (history.suspect_since == UPTIME + SECOND) is suspect
    full = node(containers=[*crowd(3), *crowd(40, "exited")[3:]])
    assert watched(full, node(containers=crowd(3), later=SECOND)).suspect_since is None, (
        "stopped ones come and go"
    )
    incomplete = b.without(node(later=SECOND), "containers")
    history = watched(
        node(containers=crowd(9)),
        incomplete,
        incomplete,
        node(containers=crowd(3), later=2 * SECOND),
    )
    assert history.suspect_since == UPTIME + 2 * SECOND
    assert history.suspicion == "docker listed 9 running containers, then 3 in the next snapshot"
    # So is that of a docker that restarted, even if it was unavailable meanwhile.
    before, after = node(), node(processes=[processes(docker=timedelta(days=1))], later=2 * SECOND)
    incomplete = b.without(node(later=SECOND), "processes", "containers")
    gone = node(processes=[processes(docker=None)], later=SECOND)
    for between in ([], [incomplete], [gone], [incomplete, gone]):
        history = watched(before, *between, after)
        assert (history.suspect_since, history.suspicion) == (
            UPTIME + 2 * SECOND,
            "docker restarted between two snapshots",
        )
    assert watched(before, incomplete, gone, before).suspect_since is None
    moved = replace(processes(), booted=NOW - UPTIME + GRACE, docker=NOW - UPTIME + GRACE)
    assert (
        watched(node(), node(processes=[moved], clock_set_by=GRACE, later=SECOND)).suspect_since
        is None
    )


def test_a_suspect_list_is_trusted_again_after_settle() -> None:
    history = RuntimeHistory(suspect_since=UPTIME, suspicion="docker restarted")
    for later, refused in ((timedelta(0), True), (GRACE, True), (GRACE + SECOND, False)):
        context = replace(guard_context(node(LEAK, later=later)), runtime_history=history)
        (found,) = b.verdicts(context).values()
        assert [refusal.reason for refusal in found] == (
            [Reason.RUNTIME_DOUBTFUL] if refused else []
        )


def test_a_list_without_the_running_pods_is_suspect() -> None:
    for running, listed, refused in (
        (0, 0, False), (1, 1, False), (1, 0, True), (3, 1, False), (3, 0, True), (4, 2, False), (4, 1, True),
    ):  # fmt: skip
        pods = [pod(f"shop/p{n}", f"10.253.6.{n + 2}") for n in range(running)]
        boxes = [b.sandbox(f"{n:064x}", f"shop/p{n}") for n in range(listed)]
        found = reasons(node(reservations=[LEAK], checkpoints=[], containers=boxes, pods=pods))
        assert found == ([Reason.RUNTIME_DOUBTFUL] if refused else [])
    others = [
        pod("shop/new", phase="Pending"),
        pod("shop/old", deleting=True),
        pod("shop/done", phase="Succeeded"),
    ]
    assert refusals(node(LEAK, *others)) == (), "they need not be listed"
    empty = node(reservations=[LEAK], checkpoints=[], containers=[])
    assert refusals(b.without_api(empty)) == (), "without the API server nothing says otherwise"


def share(*records: Any, **changes: Any) -> float:
    return leaked_share.share(guard_context(node(*records, **changes)).assessment, "kubenet")


def test_what_a_share_is_one_of_and_that_each_network_has_its_own() -> None:
    small = [Node("worker-1", ("10.244.1.0/28",), 110)]
    assert (share(*leaks(7), node=small), share(*leaks(8), node=small)) == (0, 8 / 13), (
        "a few are ignored"
    )
    recent = [reservation(f"10.244.1.{n}", f"{n:064x}", age=SECOND) for n in range(40, 44)]
    in_use = [Address(f"10.244.1.{10 + n}", 1, "sh") for n in (1, 2)]
    both = [reservation(f"10.244.2.{n}", f"{n:064x}", age=SECOND) for n in range(40, 44)]
    assert share(*leaks(10), *recent, *both, *in_use) == 12 / 253, (
        "sandboxes leaked and candidate, not owned"
    )
    assert share(*leaks(8), node=[], cni_results=[]) == 8 / 10, (
        "the reservations, where the range is not known"
    )
    assert share(*leaks(31), node=[Node("worker-1", ("10.250.0.0/29",), 110)]) == 1, "at most 1"
    alone = NotRequested("pods", "--api=off")
    assert share(*leaks(110), pods=alone) == 110 / 112, (
        "only docker makes nearly all of them leaked"
    )
    assert share(*leaks(31), pods=alone) == 31 / 253
    assert share(*leaks(110)) == 110 / 253, (
        "the API server knows the pods that run, and docker's list agrees with it"
    )
    # One that is equal to the limit is plausible, and each network has its own.
    for most, refused in ((31 / 253, False), (30 / 253, True), (0.0, True), (1.0, False)):
        found = b.verdicts(guard_context(node(*leaks(31)), limits=make_limits(max_share=most)))
        assert {tuple(refusal.reason for refusal in each) for each in found.values()} == {
            (Reason.IMPLAUSIBLE_SHARE,) if refused else ()
        }
    crowded = node(
        *leaks(8), reservation("10.9.0.2", "8" * 64, network="storage"), node=[], cni_results=[]
    )
    found = b.verdicts(guard_context(crowded, limits=in_networks("kubenet", "storage")))
    assert Reason.IMPLAUSIBLE_SHARE not in {refusal.reason for refusal in found["10.9.0.2"]}
    assert Reason.IMPLAUSIBLE_SHARE in {refusal.reason for refusal in found["10.244.1.11"]}


def running_pods(count: int, network: str = "kubenet") -> list[Any]:
    """Return pods that run, with their sandboxes and reservations."""
    records: list[Any] = []
    for number in range(count):
        name, ip, id_ = f"shop/more-{number}", f"10.244.1.{200 + number}", f"{number:x}c" * 32
        records += [
            reservation(ip, id_, network=network),
            sandbox(id_, name),
            Checkpoint(id_, name),
            pod(name, ip),
        ]
    return records


def doubt(*records: Any, **changes: Any) -> str:
    """Return why most of a network is not released, by a person or the daemon; empty: it is."""
    snapshot = node(*leaks(180), *records, **changes)
    for unattended in (False, True):
        limits = make_limits(networks=frozenset({"kubenet", "storage"}), unattended=unattended)
        found = b.verdicts(guard_context(snapshot, limits=limits))
        reasons = {refusal.reason for ip, each in found.items() for refusal in each}
        of_others = {Reason.CLAIMED_BY_POD, Reason.NOT_CONFIRMED}
        of_others |= {Reason.OUTSIDE_RANGE, Reason.HOST_PORTS}
        assert reasons <= {Reason.IMPLAUSIBLE_SHARE, *of_others}
        refused = [
            refusal
            for ip, each in found.items()
            for refusal in each
            if refusal.reason is Reason.IMPLAUSIBLE_SHARE
        ]
        assert len(refused) in {0, 180}
        assert {refusal.setting for refusal in refused} <= {"--max-share=100%"}
    return refused[0].why if refused else ""


def test_most_of_a_range_is_released_where_the_api_server_confirms_that_it_is_leaked() -> None:
    """The healthy node has two pods of the network and one on the node's own."""
    assert doubt(*running_pods(2)) == ""
    assert (
        "71% of network kubenet looks leaked, --max-share is 50%, and only 3 running pods in this network"
        in doubt(*running_pods(1))
    )
    # Pods of another network show nothing of this one.
    elsewhere = running_pods(6, network="storage")
    assert "only 2 running pods in this network confirm the list (4 are needed)" in doubt(
        *elsewhere
    )
    # No pod that may have a sandbox is missing: one that ends has its address until it is gone.
    alone = pod("shop/alone", "10.244.1.250")
    for unlisted in (
        alone,
        replace(alone, deleting=True),
        replace(alone, phase="Pending"),
        replace(alone, phase="Unknown"),
    ):
        assert "docker lists no running sandbox with the address of pod shop/alone" in doubt(
            *running_pods(9), unlisted
        )
    for harmless in (
        replace(alone, ips=()),
        replace(alone, phase="Failed"),
        replace(alone, host_network=True),
    ):
        assert doubt(*running_pods(2), harmless) == ""
    # An exited sandbox, a container without one, and that of an earlier pod of the name are none.
    for other in (
        sandbox("d" * 64, "shop/alone", "exited"),
        replace(sandbox("d" * 64, "shop/alone"), sandbox=False),
        replace(sandbox("d" * 64, "shop/alone"), pod_uid="another"),
        replace(sandbox("d" * 64, "shop/alone"), pod_uid=""),
    ):
        assert "no running sandbox with the address of pod shop/alone" in doubt(
            *running_pods(9), alone, other
        )
    assert doubt(*running_pods(9), alone, sandbox("d" * 64, "shop/alone")) == ""
    # A pod's running sandbox is another one if its address is reserved for one that is not listed.
    leak = leaks(1)[0].ip
    own = sandbox("d" * 64, "shop/alone")
    assert "sandbox with the address of pod shop/alone" in doubt(
        *running_pods(9), replace(alone, ips=(leak,)), own
    )
    unlisted_one = reservation("10.244.1.250", "e" * 64, network="storage")
    exited = sandbox("e" * 64, "shop/alone", "exited")
    for records in ((unlisted_one,), (replace(unlisted_one, network="kubenet"), exited)):
        found = doubt(*running_pods(9), alone, own, *records)
        assert "sandbox with the address of pod shop/alone" in found
    # Another network may have the same range.
    reserved = reservation("10.244.1.250", "d" * 64)
    assert doubt(*running_pods(9), alone, own, reserved, unlisted_one) == ""
    off = NotRequested("pods", "--api=off")
    assert "the API server is not asked (--api=off)" in doubt(*running_pods(9), pods=off)


WEB = PortMapping(8080, "tcp")


def its_pod(
    ports: tuple[PortMapping, ...] | None, age: timedelta = timedelta(days=1), uid: str = ""
) -> Pod:
    """Return the pod of the leak, as the API server has it, and what its spec says."""
    return replace(pod("shop/gone", phase="Pending", uid=uid), created=NOW - age, host_ports=ports)


def host_ports_of(*snapshots: Snapshot) -> str:
    """Return why the daemon does not release the leak for its host ports; empty if it does."""
    found = refusals(*snapshots, limits=UNATTENDED)
    assert refusals(*snapshots, limits=UNATTENDED_PORTS) == ()
    assert refusals(*snapshots) == (), "a command by hand warns"
    assert [refusal.reason for refusal in found] == [Reason.HOST_PORTS] * len(found)
    return "".join(refusal.why for refusal in found)


def with_crio(*records: Any) -> Snapshot:
    return with_runtime(node(LEAK, *records), CRI_O, "1.35.6")


def test_the_daemon_releases_no_address_whose_host_ports_are_not_known() -> None:
    not_known = "rules that forward host ports to 1 address are not known; such rules would lead to the next pod; "
    assert f"no record says whose it was, and {not_known}" in host_ports_of(with_crio())
    assert host_ports_of(node(LEAK)) == "", "kubenet leaves no record of any"
    # Elsewhere the chain decides. It is known of the networks of the runtime.
    chain = RuntimeNetwork("kubenet", ("bridge",), "host-local", forwards_ports=False)
    assert host_ports_of(with_runtime(node(LEAK, networks=[chain]), CONTAINERD, "2.1.9")) == ""
    for other in (replace(chain, forwards_ports=True), replace(chain, name="x")):
        assert not_known in host_ports_of(
            with_runtime(node(LEAK, networks=[other]), CONTAINERD, "2.1.9")
        )
    assert host_ports_of(node(LEAK, NAMED)) == "", "a CNI plugin would have been told of them"
    assert f"the spec of its pod shop/gone was not seen, and {not_known}" in host_ports_of(
        with_crio(NAMED)
    )
    namesake, recorded = its_pod((), age=OLD - SECOND), its_pod(None)
    for unsure in (namesake, recorded, replace(namesake, created=None)):
        assert not_known in host_ports_of(with_crio(NAMED, unsure))
    assert host_ports_of(with_crio(NAMED, its_pod(()))) == ""
    assert "host port 8080/tcp to 10.244.1.9" in host_ports_of(with_crio(NAMED, its_pod((WEB,))))
    assert host_ports_of(node(LEAK, NAMED, its_pod((WEB,)))) == "", "no CNI plugin was told of it"


def test_the_host_ports_of_a_sandbox_that_ran_are_remembered() -> None:
    ran, uid = b.sandbox(THE_ID, "shop/gone"), "uid of shop/gone"
    young = timedelta(0)  # the API server's clock is ahead
    for ports, why in (((), ""), ((WEB,), "8080/tcp")):
        before = node(LEAK, ran, its_pod(ports, young, uid))
        for after in ([], [b.without(node(LEAK), "pods")], [b.without(node(LEAK), "reservations")]):
            assert bool(host_ports_of(before, *after, node(LEAK), node(LEAK))) is bool(why)
        another = node(LEAK, its_pod((PortMapping(53, "udp"),)))
        assert why in host_ports_of(before, another, another)
    other = node(LEAK, ran, its_pod((WEB,), young, "another uid"))
    assert host_ports_of(other, node(LEAK), node(LEAK)) == "", "of a pod with the same name"
    assert host_ports_of(node(LEAK, processes=[processes(booted=timedelta(hours=1))])) == "", (
        "a reboot ends the rules"
    )


def test_only_sandboxes_that_no_runtime_lists_are_requested() -> None:
    assert b.verdicts(guard_context(node(LEAK))) == {THE_IP: ()}
    assert b.verdicts(guard_context(b.without_api(node(LEAK)))) == {THE_IP: ()}
    for nothing in (
        node(),
        node(LEAK, b.sandbox(THE_ID, "shop/gone", "exited")),
        node(b.unrecognized("notes.txt"), b.unrecognized("10.244.1.77", blocks=True)),
        b.without(node(LEAK), "containers"),
        replace(node(LEAK), containers=NotRequested("containers", "for no reason")),
    ):
        assert release_requests(b.assessment(nothing)) == ()
    # A sandbox is one request across networks, and an empty file its own.
    other = reservation("10.9.0.2", network="storage", ifname="net1")
    empty = [b.empty_file("10.244.1.30"), replace(b.empty_file("10.244.1.30"), network="storage")]
    found = b.assessment(node(other, LEAK6, LEAK, *empty))
    requests = release_requests(found)
    assert [request.reservations for request in requests] == [
        (LEAK, LEAK6, other),
        *((file,) for file in empty),
    ]
    assert requests[0].networks == ("kubenet", "storage")
    assert release_requests(found, frozenset({"fd00::9"})) == requests[:1], (
        "by one of its addresses"
    )
    assert release_requests(found, frozenset({"10.244.1.200"})) == ()
    assert refusals(node(LEAK, LEAK6, **DUAL), limits=only("fd00::9"))[0].setting == BOTH_IPS


def test_a_cached_result_stays_for_a_runtime_that_deletes_at_its_start() -> None:
    for name, version, kept in (
        (CRI_O, "1.32.0", True), (CRI_O, "1.31.9", False), (CRI_O, "", False), (CONTAINERD, "2.1.9", False),
    ):  # fmt: skip
        snapshot = with_runtime(node(LEAK), name, version)
        (request,) = release_requests(b.assessment(snapshot))
        assert request.keeps_results is kept
        beside = RuntimeNetwork("kubenet", ("bridge", "firewall"), plugin_files=True)
        (request,) = release_requests(b.assessment(replace(snapshot, networks=Known((beside,)))))
        assert not request.keeps_results, "no result names the plugins in files of their own"


def test_the_oldest_are_released_first_whatever_the_order_of_the_directory() -> None:
    old, middle, new = leaks(3)
    dual = [
        reservation(THE_IP, age=timedelta(hours=9)),
        reservation("fd00::9", age=timedelta(hours=1)),
    ]
    in_order = [f"{THE_IP} fd00::9", old.ip, middle.ip, new.ip]
    assert list(b.verdicts(guard_context(node(new, old, *dual, middle, **DUAL)))) == in_order
    twins = [reservation(f"10.244.1.{n}", f"{n:064x}") for n in (20, 21, 22)]
    orders = {
        tuple(b.verdicts(guard_context(node(*some)))) for some in itertools.permutations(twins)
    }
    assert len(orders) == 1

"""Teardowns that the kubelet does not complete."""

from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from agent.checks import engine
from agent.exporters.advice import advice
from agent.exporters.summary import finding_lines
from agent.model.finding import Finding, Severity
from agent.model.report import Report
from agent.model.runtime import CONTAINERD, CRI_O, ContainerRuntime
from agent.model.snapshot import (
    SANDBOX_NOT_READY,
    Address,
    Checkpoint,
    Container,
    Damage,
    DamagedResult,
    Known,
    NotRequested,
    Snapshot,
)
from tests.builders import (
    GONE,
    GRACE,
    NOW,
    UPTIME,
    gap_of,
    node,
    pod,
    processes,
    reservation,
    sandbox,
    the_node,
    without,
)
from tests.checks.waiting.events import CONTAINERD as CONTAINERD_SAYS
from tests.checks.waiting.events import Event, waits, with_events

DETECTOR = "stuck_teardown"
LOST = reservation("10.244.1.9")
KEPT = Checkpoint(GONE, "shop/cart")
CART = sandbox("8" * 64, "shop/cart")
MINUTE = timedelta(minutes=1)


def pending(later: timedelta = timedelta(0), clock_set_by: timedelta = timedelta(0)) -> Snapshot:
    return node(LOST, KEPT, later=later, clock_set_by=clock_set_by)


def after(*snapshots: Snapshot) -> Report:
    state = None
    for snapshot in snapshots:
        report, state = engine.run(snapshot, state, grace=GRACE, confirm_after=timedelta(0))
    return report


def severities(report: Report) -> list[tuple[Severity, bool]]:
    found = (tracked for tracked in report.findings if tracked.finding.detector == DETECTOR)
    return [(tracked.finding.severity, tracked.confirmed) for tracked in found]


def found(report: Report) -> Finding:
    (finding,) = (
        tracked.finding for tracked in report.findings if tracked.finding.detector == DETECTOR
    )
    return finding


def test_a_late_teardown_is_for_information_and_a_stuck_one_a_warning() -> None:
    late = [pending(), pending(5 * MINUTE), pending(6 * MINUTE)]
    other = node(reservation("10.244.1.9", "8" * 64), Checkpoint("8" * 64, ""), later=60 * MINUTE)
    silent = (
        without(pending(30 * MINUTE), source)
        for source in ("reservations", "containers", "checkpoints")
    )
    for expected, snapshots in (
        ([], [pending(), pending(4 * MINUTE)]),
        ([(Severity.INFO, True)], late),
        ([(Severity.WARNING, True)], [*late, pending(15 * MINUTE), pending(16 * MINUTE)]),
        # A clock that is set is no time that passes.
        ([], [pending(), pending(MINUTE, clock_set_by=timedelta(days=2))]),
        # A source that is silent for a moment does not restart the time.
        *(
            ([(Severity.WARNING, False)], [pending(), moment, pending(60 * MINUTE)])
            for moment in silent
        ),
        # Another sandbox with the address starts over, and a completed teardown is forgotten.
        ([], [pending(), other]),
        ([], [pending(), node(later=MINUTE), pending(60 * MINUTE)]),
    ):
        assert severities(after(*snapshots)) == expected
    finding = found(after(pending(), pending(60 * MINUTE)))
    assert (finding.subject, finding.pod, finding.since) == ("kubenet/10.244.1.9", "shop/cart", NOW)
    for source in ("reservations", "containers", "checkpoints"):
        assert gap_of(DETECTOR, without(pending(), source)).startswith(source)


def kept(*records: Any, kubelet: str = "", started: timedelta | None = UPTIME) -> Snapshot:
    """Build a node with the pending teardown. `started`: how long ago the kubelet was."""
    reported = [replace(the_node(node()), kubelet=kubelet)]
    return node(LOST, KEPT, *records, node=reported, processes=[processes(kubelet=started)])


def test_one_scan_is_enough_where_the_kubelet_forgets_it_or_the_pod_has_had_a_newer_sandbox_for_long() -> (
    None
):
    made = {age: int((NOW - age * MINUTE).timestamp()) for age in (-1, 4, 14, 60)}
    newer = {age: replace(CART, id=f"{age:064}", created=created) for age, created in made.items()}
    for expected, snapshot in (
        ([Severity.WARNING], kept(kubelet="v1.36.0")),
        ([Severity.WARNING], kept(kubelet="v1.37.2+x", started=60 * MINUTE)),
        ([Severity.INFO], kept(kubelet="v2.0.1", started=14 * MINUTE)),
        *(([], kept(kubelet="v1.36.0", started=started)) for started in (4 * MINUTE, None)),
        *(([], kept(kubelet=kubelet)) for kubelet in ("v1.35.9", "", "x")),
        ([Severity.INFO], kept(newer[14])),
        ([Severity.WARNING], kept(newer[60], newer[14])),
        *(([], kept(newer[age])) for age in (4, -1)),
        *(([], kept(newer[60], started=started)) for started in (4 * MINUTE, None)),
        ([], kept(replace(newer[60], pod="shop/web"))),
        ([], kept(replace(newer[60], sandbox=False))),
        ([], kept(replace(newer[60], created=0))),  # it is older than the reservation
    ):
        assert [severity for severity, _ in severities(after(snapshot, snapshot))] == expected, (
            snapshot
        )
    assert (
        f"/var/lib/cri-dockerd/sandbox/{GONE} to another"
        in found(after(kept(kubelet="v1.36.0"))).message
    )
    assert found(after(kept(newer[60]))).since == NOW - HOUR


# containerd and CRI-O: the sandbox is listed until its teardown is completed

HOUR = timedelta(hours=1)
STOPPED = sandbox(GONE, "shop/cart", SANDBOX_NOT_READY)
ENDPOINT = "/run/containerd/containerd.sock"


def on_cri(
    *records: Any,
    later: timedelta = timedelta(0),
    container: Container = STOPPED,
    booted: timedelta = UPTIME,
) -> Snapshot:
    snapshot = node(
        LOST,
        container,
        *records,
        checkpoints=NotRequested("checkpoints", "the kubelet of this node has none"),
        runtimes=[ContainerRuntime(CONTAINERD, "1.7.24", ENDPOINT)],
        processes=[replace(processes(booted=booted), runtime=f"unix://{ENDPOINT}")],
        later=later,
    )
    return replace(snapshot, uptime=booted + later)


def with_damage(snapshot: Snapshot, network: str = "kubenet") -> Snapshot:
    return replace(snapshot, damaged_results=(DamagedResult(network, GONE, "eth0", Damage.EMPTY),))


def test_a_sandbox_that_has_ended_is_for_information_after_minutes_and_then_a_warning() -> None:
    for state in (SANDBOX_NOT_READY, "recorded but not listed", "exited", "dead"):
        at = partial(on_cri, container=sandbox(GONE, "shop/cart", state))
        assert severities(after(at(), at(later=4 * MINUTE))) == []
        late = [at(), at(later=5 * MINUTE), at(later=6 * MINUTE)]
        assert severities(after(*late)) == [(Severity.INFO, True)]
        stuck = [at(later=15 * MINUTE), at(later=16 * MINUTE)]
        assert severities(after(*late, *stuck)) == [(Severity.WARNING, True)]
    finding = found(after(on_cri(), on_cri(later=HOUR)))
    assert (finding.pod, finding.since) == ("shop/cart", NOW)
    assert "is reserved for sandbox 999999999999 of pod shop/cart" in finding.message
    # What runs, and what is no sandbox, is no finding.
    for container in (
        *(sandbox(GONE, "shop/cart", state) for state in ("running", "paused", "restarting")),
        replace(STOPPED, sandbox=False),
    ):
        assert (
            severities(
                after(on_cri(container=container), on_cri(later=25 * HOUR, container=container))
            )
            == []
        )
    assert severities(after(on_cri(), node(later=MINUTE), on_cri(later=4 * MINUTE))) == [], (
        "it was gone meanwhile"
    )


def test_a_sandbox_that_does_not_run_is_told_whatever_its_state_is_called() -> None:
    """As of docker, whose removal can hang; and the words of a runtime that is yet to come."""
    for state in ("removing", "created", "being created", "unknown", "on vacation", ""):
        at = partial(on_cri, container=sandbox(GONE, "shop/cart", state))
        assert severities(after(at(), at(later=4 * MINUTE))) == [], "it may be created just now"
        times = [at(later=minutes * MINUTE) for minutes in range(17)]
        assert severities(after(*times[:8])) == [(Severity.INFO, True)]
        assert severities(after(*times)) == [(Severity.WARNING, True)]
        assert f"`{state or 'unnamed'}`" in found(after(*times)).message
        running = at(later=HOUR, container=sandbox(GONE, "shop/cart"))
        ended = on_cri(later=HOUR + 4 * MINUTE)
        assert severities(after(at(), running, ended)) == [], "it has run meanwhile"
    at = partial(on_cri, container=sandbox(GONE, "shop/cart", "being created"))
    assert severities(after(at(), on_cri(later=MINUTE), on_cri(later=HOUR))) != [], "never ran"


def test_a_container_of_another_client_is_told_and_is_no_warning() -> None:
    """Whether it runs, containerd does not say: one of docker or nerdctl may rightly have it."""
    other = sandbox(GONE, "", "in another namespace of containerd")
    days = [on_cri(container=other, later=hour * HOUR) for hour in range(73)]
    assert severities(after(*days)) == [(Severity.INFO, True)]
    assert "another namespace of containerd" in found(after(*days)).message
    assert "teardown" not in found(after(*days)).message
    used = [replace(day, addresses=Known((Address(LOST.ip, 71, "nginx"),))) for day in days]
    assert severities(after(*used)) == [], "a process has the address"


# What a single scan knows


def at_once(snapshot: Snapshot) -> list[Severity]:
    """Return what a command says: it has no memory."""
    return [severity for severity, _ in severities(after(snapshot, snapshot))]


BOOTED = HOUR * 1.5  # Ago. Sandboxes of the builders are two hours old.


def with_runtime(snapshot: Snapshot, name: str, version: str) -> Snapshot:
    return replace(snapshot, runtimes=Known((ContainerRuntime(name, version, ENDPOINT),)))


def test_a_damaged_result_is_proof_at_once_where_the_runtime_does_not_forgive_it() -> None:
    damaged = with_damage(on_cri())
    assert engine.needs_second_snapshot(damaged, GRACE)
    new = replace(STOPPED, created=int(NOW.timestamp()) - 240)
    for expected, snapshot in (
        ([Severity.WARNING], damaged),
        # One damaged result stops the teardown in every network.
        ([Severity.WARNING], with_damage(on_cri(), network="storage")),
        ([Severity.WARNING], with_runtime(damaged, CONTAINERD, "1.6.20~ds1")),
        ([Severity.WARNING], with_runtime(damaged, CRI_O, "1.30.9")),
        ([], with_runtime(damaged, CONTAINERD, "2.0.0")),
        ([], with_runtime(damaged, CRI_O, "1.31.0")),
        # Without its version, that is only possible.
        ([], with_runtime(damaged, CONTAINERD, "")),
        # The file may be half written, and a sandbox that runs may have another cause.
        ([], with_damage(on_cri(container=new))),
        ([], with_damage(on_cri(container=sandbox(GONE, "shop/cart")))),
    ):
        assert at_once(snapshot) == expected, snapshot
    unknown = with_runtime(with_damage(on_cri()), CONTAINERD, "")
    later = replace(unknown, taken_at=NOW + HOUR, uptime=UPTIME + HOUR)
    assert "possible cause: containerd may be too old" in found(after(unknown, later)).message
    forgiving = with_runtime(later, CONTAINERD, "2.1.4")
    assert "damaged" not in found(after(unknown, forgiving)).message
    cut = after(with_damage(on_cri(booted=BOOTED)))
    assert found(cut).since == NOW - BOOTED
    assert (
        "containerd 1.7.24 cannot tear it down, because libcni's cached result"
        in found(cut).message
    )


def deleted(ago: timedelta, state: str = SANDBOX_NOT_READY, **pod_changes: Any) -> Snapshot:
    """Build a node on which the pod should have been gone for so long."""
    old = replace(
        pod("shop/cart", "10.244.1.9", deleting=True, uid="uid of shop/cart"), deletion=NOW - ago
    )
    return on_cri(replace(old, **pod_changes), container=sandbox(GONE, "shop/cart", state))


def test_a_pod_that_should_be_gone_dates_its_teardown_whatever_the_state_of_its_sandbox() -> None:
    for state in (SANDBOX_NOT_READY, "running"):
        for ago, expected in (
            (-HOUR, []),
            (4 * MINUTE, []),
            (5 * MINUTE, [Severity.INFO]),
            (15 * MINUTE, [Severity.WARNING]),
        ):
            assert at_once(deleted(ago, state)) == expected, (state, ago)
    runs = found(after(deleted(HOUR, "running")))
    assert (runs.since, runs.pod) == (NOW - HOUR, "shop/cart")
    assert "still runs, although its pod should have been gone since" in runs.message
    # The API server's clock dates the deletion.
    ahead = replace(deleted(-10 * MINUTE, "running"), api_skew=HOUR)
    assert found(after(ahead)).since == NOW - 50 * MINUTE


def test_pods_that_end_as_they_should_are_no_stuck_teardown() -> None:
    running = "running"
    started = replace(processes(), runtime=f"unix://{ENDPOINT}")
    minute_ago = NOW - MINUTE
    restarted = [replace(started, kubelet=minute_ago), replace(started, containerd=minute_ago)]
    for why, snapshot in {
        "a long grace period": deleted(-3 * HOUR, running),
        "another pod of the name": deleted(HOUR, running, uid="another"),
        "a mirror pod": deleted(HOUR, running, static=True),
        "no deletion": deleted(HOUR, running, deletion=None, deleting=False),
        "the kubelet started a minute ago": replace(deleted(HOUR), processes=Known(restarted[0])),
        "the runtime did": replace(deleted(HOUR), processes=Known(restarted[1])),
        "the node booted a minute ago": replace(
            deleted(HOUR), processes=Known(replace(started, booted=minute_ago))
        ),
        # A finalizer keeps the pod, and its sandbox has given its address back.
        "a finalizer": replace(
            deleted(HOUR, finalizers=("example.com/keep",)), reservations=node().reservations
        ),
        "a Job that has ended": on_cri(pod("shop/cart", phase="Succeeded")),
        "its pod is unknown": replace(
            deleted(HOUR, running), pods=NotRequested("pods", "--api=off")
        ),
    }.items():
        assert at_once(snapshot) == [], why


def test_a_newer_sandbox_of_the_pod_says_that_nothing_tears_the_old_one_down() -> None:
    def newer(age: timedelta, **changes: Any) -> Container:
        created = int((NOW - age).timestamp())
        return replace(sandbox("8" * 64, "shop/cart"), created=created, **changes)

    for record, expected in (
        (newer(4 * MINUTE), []),
        (newer(5 * MINUTE), [Severity.INFO]),
        (newer(HOUR), [Severity.WARNING]),
        (newer(3 * HOUR), []),  # it is older
        (newer(HOUR, pod_uid="of its successor"), []),
    ):
        assert at_once(on_cri(record)) == expected, record
    assert "its pod has had a newer sandbox since" in found(after(on_cri(newer(HOUR)))).message
    both_run = on_cri(newer(HOUR), container=sandbox(GONE, "shop/cart"))
    assert at_once(both_run) == [], "CRI-O or a probe may still say so"


def test_sandboxes_of_one_pod_are_told_in_one_line_with_the_words_of_the_runtime() -> None:
    ids = [f"{n:064x}" for n in range(1000, 1025)]
    old = int((NOW - HOUR).timestamp())
    containers = [
        replace(STOPPED, id=sandbox_id, created=old + n) for n, sandbox_id in enumerate(ids)
    ]
    leaks = [reservation(f"10.244.1.{20 + n}", sandbox_id) for n, sandbox_id in enumerate(ids)]
    snapshot = node(
        *leaks,
        *containers,
        checkpoints=NotRequested("checkpoints", "the kubelet of this node has none"),
        runtimes=[ContainerRuntime(CONTAINERD, "1.7.24", ENDPOINT)],
        processes=[replace(processes(), runtime=f"unix://{ENDPOINT}")],
    )
    damaged = tuple(DamagedResult("kubenet", each, "eth0", Damage.EMPTY) for each in ids)
    report = after(replace(snapshot, damaged_results=damaged))
    (line,) = finding_lines(report)[DETECTOR]
    assert line.severity is Severity.WARNING
    assert "25 addresses of 25 sandboxes of pod shop/cart" in line.text
    assert "10.244.1.20 to 10.244.1.44" in line.text
    assert f"25 of libcni's cached results are damaged, such as kubenet-{ids[0]}-eth0" in "; ".join(
        line.details
    )
    (steps,) = [advice(DETECTOR, report)]
    assert steps[0].text.startswith("If libcni's cached result is damaged")
    assert not any("cri-dockerd" in step.text for step in steps)


REFUSED = (
    'error killing pod: failed to "KillPodSandbox" for "3c" with KillPodSandboxError: "rpc error: '
    'code = Unknown desc = failed to destroy network for sandbox \\"4f\\": plugin type=\\"calico\\" '
    "failed (delete): error getting ClusterInformation: connection is unauthorized: Unauthorized"
)


def without_address(*deleted_ago: timedelta, **pod_changes: Any) -> Snapshot:
    """Build a node whose pods should have been gone for so long, and have no reservation."""
    pods = [
        replace(
            pod(f"shop/gone-{n}", "192.168.7.9", deleting=True, uid=f"uid of gone {n}"),
            deletion=NOW - ago,
            **pod_changes,
        )
        for n, ago in enumerate(deleted_ago)
    ]
    return replace(on_cri(*pods), reservations=node().reservations)


def killing(snapshot: Snapshot, message: str = REFUSED, ago: timedelta = MINUTE) -> Snapshot:
    return with_events(snapshot, Event(message, "FailedKillPod", ago))


def test_pods_that_cannot_be_removed_are_told_without_an_address_of_host_local() -> None:
    for ago, expected in (
        (4 * MINUTE, []),
        (6 * MINUTE, [Severity.INFO]),
        (16 * MINUTE, [Severity.WARNING]),
    ):
        assert at_once(killing(without_address(ago))) == expected, ago
    report = after(killing(without_address(HOUR, HOUR, HOUR, HOUR, HOUR, HOUR)))
    stuck = found(report)
    assert "4 pods should have been gone, the first since 2026-" in stuck.headline
    assert "plugin calico fails: error getting ClusterInformation" in stuck.headline
    assert stuck.details[-1] == "the Events of 2 others were not listed"
    assert stuck.pods == tuple(f"shop/gone-{n}" for n in range(4))
    assert any("calico-node" in step.text for step in advice(DETECTOR, report))


def test_a_cause_that_also_keeps_pods_from_starting_is_told_by_the_pods_that_wait() -> None:
    refused = REFUSED.partition(": plugin")[2].replace("(delete)", "(add)").replace('\\"', '"')
    late = waits("shop/late")
    snapshot = without_address(HOUR)
    snapshot = replace(snapshot, pods=Known((*snapshot.pods.known(), late)))
    both = Event(f"{CONTAINERD_SAYS}plugin{refused}"), Event(REFUSED, "FailedKillPod")
    report = after(with_events(snapshot, *both))
    assert found(report).told_by == "waiting_pods"
    (step,) = advice(DETECTOR, report)
    assert "waiting_pods" in step.text


def test_the_pods_that_wait_report_only_the_cause_that_still_keeps_some_waiting() -> None:
    snapshot = without_address(HOUR)
    (gone,) = (each for each in snapshot.pods.known() if each.deletion)
    refused = REFUSED.partition(": plugin")[2].replace("(delete)", "(add)").replace('\\"', '"')
    earlier = Event(f"{CONTAINERD_SAYS}plugin{refused}", ago=50 * MINUTE)
    late = waits("shop/late")
    snapshot = replace(snapshot, pods=Known((*snapshot.pods.known(), late)))
    snapshot = with_events(snapshot, Event("pulling is slow", "FailedMount"), of=[late])
    snapshot = with_events(snapshot, earlier, Event(REFUSED, "FailedKillPod"), of=[gone])
    report = after(snapshot)
    assert found(report).told_by == "", "the pod failed to start before it was deleted"
    assert any("calico-node" in step.text for step in advice(DETECTOR, report))


def test_pods_are_not_called_stuck_without_a_recent_word_of_the_kubelet() -> None:
    other = Event("Readiness probe failed", "Unhealthy")
    for why, snapshot in {
        "no Event": without_address(HOUR),
        "another Event": with_events(without_address(HOUR), other),
        "it has stopped failing": killing(without_address(HOUR), ago=10 * MINUTE),
        "a static pod": killing(without_address(HOUR, static=True)),
    }.items():
        assert at_once(snapshot) == [], why


def test_a_pod_with_an_address_is_told_once_and_its_message_is_explained() -> None:
    assert at_once(killing(deleted(HOUR))) == [Severity.WARNING]
    report = after(killing(deleted(HOUR)))
    assert "plugin calico fails" in found(report).message
    assert any("calico-node" in step.text for step in advice(DETECTOR, report))


def test_no_teardown_is_called_stuck_while_no_kubelet_runs() -> None:
    late = killing(deleted(HOUR))
    stopped = replace(late, processes=Known(replace(late.processes.known(), kubelet=None)))
    down = replace(the_node(late), ready=False, not_ready="Kubelet stopped posting node status.")
    assert at_once(replace(stopped, node=Known(down))) == []
    unknown_program = replace(stopped, node=Known(replace(down, ready=True)))
    assert at_once(unknown_program) == [Severity.WARNING]
    assert gap_of(DETECTOR, without(stopped, "node")).startswith("node: ")


def test_events_that_cannot_be_read_may_hide_pods_that_cannot_be_removed() -> None:
    unread = without(without_address(HOUR), "sandbox_failures")
    assert gap_of(DETECTOR, unread).startswith("sandbox_failures")
    young = replace(unread, processes=Known(processes(kubelet=4 * MINUTE)))
    told = without(deleted(HOUR), "sandbox_failures")
    for nothing_hidden in (without(on_cri(), "sandbox_failures"), young, told):
        assert DETECTOR not in {gap.detector for gap in after(nothing_hidden).gaps}


def test_without_the_right_to_list_events_it_is_unknown_whether_late_pods_can_be_removed() -> None:
    forbidden = NotRequested("sandbox_failures", "the account may not list events")
    late = replace(without_address(HOUR), sandbox_failures=forbidden)
    (gap,) = (gap for gap in after(late).gaps if gap.detector == DETECTOR)
    assert (gap.why, gap.chosen) == ("sandbox_failures: the account may not list events", True)
    # What is unavailable is not hidden by what was not requested.
    unread = without(replace(deleted(HOUR), sandbox_failures=forbidden), "containers")
    (gap,) = (gap for gap in after(unread).gaps if gap.detector == DETECTOR)
    assert (gap.why, gap.chosen) == ("containers: it gave no word", False)


def test_pods_that_were_not_read_may_hide_some_that_cannot_be_removed() -> None:
    for snapshot in (killing(without_address(HOUR)), killing(deleted(HOUR))):
        assert gap_of(DETECTOR, without(snapshot, "pods")).startswith("pods: ")

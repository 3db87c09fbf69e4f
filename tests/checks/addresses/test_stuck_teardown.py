"""Teardowns that the kubelet does not complete."""

from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from agent.checks import engine
from agent.model.finding import Finding, Severity
from agent.model.report import Report
from agent.model.runtime import CONTAINERD, ContainerRuntime
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
    processes,
    reservation,
    sandbox,
    the_node,
    without,
)

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
    late = [pending(), pending(15 * MINUTE), pending(16 * MINUTE)]
    other = node(reservation("10.244.1.9", "8" * 64), Checkpoint("8" * 64, ""), later=60 * MINUTE)
    silent = (
        without(pending(30 * MINUTE), source)
        for source in ("reservations", "containers", "checkpoints")
    )
    for expected, snapshots in (
        ([], [pending(), pending(14 * MINUTE)]),
        ([(Severity.INFO, True)], late),
        ([(Severity.WARNING, True)], [*late, pending(60 * MINUTE), pending(61 * MINUTE)]),
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
    made = {age: int((NOW - age * MINUTE).timestamp()) for age in (-1, 14, 15, 60)}
    newer = {age: replace(CART, id=f"{age:064}", created=created) for age, created in made.items()}
    for expected, snapshot in (
        ([Severity.WARNING], kept(kubelet="v1.36.0")),
        ([Severity.WARNING], kept(kubelet="v1.37.2+x", started=60 * MINUTE)),
        ([Severity.INFO], kept(kubelet="v2.0.1", started=15 * MINUTE)),
        *(([], kept(kubelet="v1.36.0", started=started)) for started in (14 * MINUTE, None)),
        *(([], kept(kubelet=kubelet)) for kubelet in ("v1.35.9", "", "x")),
        ([Severity.INFO], kept(newer[15])),
        ([Severity.WARNING], kept(newer[60], newer[14])),
        *(([], kept(newer[age])) for age in (14, -1)),
        *(([], kept(newer[60], started=started)) for started in (14 * MINUTE, None)),
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


def test_a_sandbox_that_has_ended_an_hour_ago_is_for_information_and_a_day_ago_a_warning() -> None:
    for state in (SANDBOX_NOT_READY, "recorded but not listed", "exited", "dead"):
        at = partial(on_cri, container=sandbox(GONE, "shop/cart", state))
        assert severities(after(at(), at(later=59 * MINUTE))) == []
        late = [at(), at(later=HOUR), at(later=HOUR + MINUTE)]
        assert severities(after(*late)) == [(Severity.INFO, True)]
        stuck = [at(later=24 * HOUR), at(later=24 * HOUR + MINUTE)]
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
    assert severities(after(on_cri(), node(later=MINUTE), on_cri(later=HOUR))) == [], (
        "it was gone meanwhile"
    )


def test_a_sandbox_that_does_not_run_is_told_whatever_its_state_is_called() -> None:
    """As of docker, whose removal can hang; and the words of a runtime that is yet to come."""
    for state in ("removing", "created", "being created", "unknown", "on vacation", ""):
        at = partial(on_cri, container=sandbox(GONE, "shop/cart", state))
        assert severities(after(at(), at(later=59 * MINUTE))) == [], "it may be created just now"
        hours = [at(later=hour * HOUR) for hour in range(73)]
        assert severities(after(*hours[:3])) == [(Severity.INFO, True)]
        assert severities(after(*hours)) == [(Severity.WARNING, True)]
        assert f"`{state or 'unnamed'}`" in found(after(*hours)).message
        running = at(later=HOUR, container=sandbox(GONE, "shop/cart"))
        ended = on_cri(later=HOUR * 1.9)
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


BOOTED = HOUR * 1.5  # Ago. Sandboxes of the builders are two hours old.


def test_only_a_power_cut_proves_the_age_of_a_damaged_sandbox_to_a_single_scan() -> None:
    cut = with_damage(on_cri(booted=BOOTED))
    (tracked,) = engine.replay([cut, cut], grace=GRACE, confirm_after=timedelta(0)).findings
    assert (tracked.finding.severity, tracked.finding.since) == (Severity.INFO, NOW - BOOTED)
    assert engine.needs_second_snapshot(cut, GRACE)
    # Otherwise a single scan does not know the age.
    made_since = replace(STOPPED, created=int(NOW.timestamp()) - 3600)
    for why, snapshot in {
        "no damage": on_cri(booted=BOOTED),
        "of another network": with_damage(on_cri(booted=BOOTED), network="cbr0"),
        "made after the boot": with_damage(on_cri(booted=BOOTED, container=made_since)),
        "start times unknown": with_damage(without(on_cri(booted=BOOTED), "processes")),
        "just booted": with_damage(on_cri(booted=HOUR / 2)),
    }.items():
        assert severities(after(snapshot, snapshot)) == [], why

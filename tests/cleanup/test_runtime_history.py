"""The history of docker, and how long its list is suspect."""

from dataclasses import replace
from datetime import timedelta

import pytest

from agent.cleanup.runtime_history import RuntimeHistory, watch
from agent.model.release import Reason
from agent.model.snapshot import Container, Snapshot
from tests.builders import (
    GRACE,
    NOW,
    UPTIME,
    guard_context,
    make_limits,
    node,
    pod,
    processes,
    sandbox,
    verdicts,
    without,
    without_api,
)
from tests.cleanup.leaks import LEAK, SECOND, reasons, refusals


def watched(*snapshots: Snapshot) -> RuntimeHistory:
    runtime_history = RuntimeHistory()
    for snapshot in snapshots:
        runtime_history = watch(runtime_history, snapshot)
    return runtime_history


def crowd(count: int, state: str = "running") -> list[Container]:
    return [Container(f"{n:064x}", state, 0, "", "", sandbox=False) for n in range(count)]


@pytest.mark.parametrize(
    ("before", "after", "suspect_since"),
    [(4, 2, False), (4, 1, True), (4, 0, True), (3, 0, False), (10, 5, False), (11, 5, True), (5, 5, False)],
)
def test_a_list_that_lost_most_of_its_containers_is_suspect(before: int, after: int, suspect_since: bool) -> None:
    runtime_history = watched(node(containers=crowd(before)), node(containers=crowd(after), later=SECOND))
    assert (runtime_history.suspect_since == UPTIME + SECOND) is suspect_since
    assert bool(runtime_history.why) is suspect_since


def test_stopped_sandboxes_of_pods_without_an_address_may_come_and_go() -> None:
    full = node(containers=[*crowd(3), *crowd(40, "exited")[3:]])
    assert watched(full, node(containers=crowd(3), later=SECOND)).suspect_since is None


def test_a_loss_is_detected_across_snapshots_without_dockers_list() -> None:
    incomplete = without(node(later=SECOND), "containers")
    runtime_history = watched(
        node(containers=crowd(9)), incomplete, incomplete, node(containers=crowd(3), later=2 * SECOND)
    )
    assert runtime_history.suspect_since == UPTIME + 2 * SECOND
    assert runtime_history.why == "docker listed 9 running containers, then 3 in the next snapshot"


def test_a_restarted_docker_is_suspect_even_if_it_was_unavailable_meanwhile() -> None:
    before, after = node(), node(processes=[processes(docker=timedelta(days=1))], later=2 * SECOND)
    incomplete = without(node(later=SECOND), "processes", "containers")
    gone = node(processes=[processes(docker=None)], later=SECOND)
    for snapshots in (
        [before, after],
        [before, incomplete, after],
        [before, gone, after],
        [before, incomplete, gone, after],
    ):
        assert watched(*snapshots).suspect_since == UPTIME + 2 * SECOND
        assert watched(*snapshots).why == "docker restarted between two snapshots"
    assert watched(before, incomplete, gone, before).suspect_since is None


def test_a_docker_that_started_with_the_node_can_restart_too() -> None:
    first = node(processes=[processes(booted=UPTIME, docker=UPTIME)])
    assert watched(first, node(processes=[processes(docker=timedelta(days=1))])).suspect_since == UPTIME


def test_a_clock_step_is_no_restart() -> None:
    moved = replace(processes(), booted=NOW - UPTIME + GRACE, docker=NOW - UPTIME + GRACE)
    assert watched(node(), node(processes=[moved], clock_set_by=GRACE, later=SECOND)).suspect_since is None


@pytest.mark.parametrize(
    ("later", "settle", "refused"),
    [
        (GRACE, GRACE, True),
        (GRACE + SECOND, GRACE, False),
        (timedelta(0), timedelta(0), True),
        (SECOND, timedelta(0), False),
        (-SECOND, GRACE, True),
    ],
)
def test_docker_stays_suspect_for_the_settle_period(later: timedelta, settle: timedelta, refused: bool) -> None:
    now = node(LEAK, later=later)
    history = RuntimeHistory(suspect_since=UPTIME, why="docker restarted")
    (found_refusals,) = verdicts(
        replace(guard_context(now, limits=make_limits(settle=settle)), runtime_history=history)
    ).values()
    assert [one.reason for one in found_refusals] == ([Reason.RUNTIME_DOUBTFUL] if refused else [])
    assert all(one.why == "docker restarted; its list is trusted again after --settle" for one in found_refusals)


@pytest.mark.parametrize(
    ("running", "listed", "refused"),
    [(0, 0, False), (1, 1, False), (1, 0, True), (3, 1, False), (3, 0, True), (4, 2, False), (4, 1, True)],
)
def test_a_list_without_the_running_pods_is_suspect(running: int, listed: int, refused: bool) -> None:
    pods = [pod(f"shop/p{n}", f"10.253.6.{n + 2}") for n in range(running)]
    boxes = [sandbox(f"{n:064x}", f"shop/p{n}") for n in range(listed)]
    found_refusals = reasons(node(reservations=[LEAK], checkpoints=[], containers=boxes, pods=pods))
    assert found_refusals == ([Reason.RUNTIME_DOUBTFUL] if refused else [])


def test_pods_that_are_not_running_need_not_be_listed() -> None:
    others = [pod("shop/new", phase="Pending"), pod("shop/old", deleting=True), pod("shop/done", phase="Succeeded")]
    assert refusals(node(LEAK, *others)) == ()
    empty = node(reservations=[LEAK], checkpoints=[], containers=[])
    assert refusals(without_api(empty)) == (), "without the API server nothing says otherwise"

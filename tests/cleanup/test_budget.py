"""The order of releases, and how many are allowed."""

import itertools
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

import pytest

from agent.cleanup.guard_context import GuardContext
from agent.cleanup.guards import decide
from agent.cleanup.runtime_history import FEWEST_CONTAINERS
from agent.model.release import Reason, Refusal
from agent.model.snapshot import Address, Checkpoint
from tests.builders import (
    ADDRESSES,
    CHECKPOINTS,
    CONTAINERS,
    PODS,
    RESERVATIONS,
    cni_result,
    guard_context,
    make_limits,
    node,
    pod,
    reservation,
    sandbox,
    verdicts,
    without,
)
from tests.cleanup.leaks import BUDGETS, DUAL, THE_IP, leaks, passed


def test_the_oldest_are_released_first_and_failed_ones_last() -> None:
    old, middle, new = leaks(3)
    context = guard_context(node(new, old, middle), limits=make_limits(allowances=(("--max", 2),)))
    assert passed(context) == [old.ip, middle.ip]
    assert passed(replace(context, failures={old: 1})) == [middle.ip, new.ip]
    failures = {old: 2, middle: 1, new: 1}
    assert list(verdicts(replace(context, failures=failures))) == [middle.ip, new.ip, old.ip]


def test_a_sandbox_has_the_age_of_its_oldest_address_and_failures_of_any() -> None:
    dual = [reservation(THE_IP, age=timedelta(hours=9)), reservation("fd00::9", age=timedelta(hours=1))]
    context = guard_context(node(*leaks(1), *dual, **DUAL))
    assert list(verdicts(context)) == [f"{THE_IP} fd00::9", "10.244.1.11"]
    failed = replace(context, failures={dual[1]: 1})
    assert list(verdicts(failed)) == ["10.244.1.11", f"{THE_IP} fd00::9"]


def test_equal_ages_have_an_order_independent_of_the_directory() -> None:
    twins = [reservation(f"10.244.1.{n}", f"{n:064x}") for n in (20, 21, 22)]
    orders = {tuple(verdicts(guard_context(node(*some)))) for some in itertools.permutations(twins)}
    assert len(orders) == 1


def test_a_budget_counts_addresses_and_skips_sandboxes_that_do_not_fit() -> None:
    dual = [reservation(ip, age=timedelta(hours=9)) for ip in (THE_IP, "fd00::9")]
    context = node(*dual, *leaks(3), **DUAL)
    for most, expected in (
        (0, []),
        (1, ["10.244.1.11"]),
        (2, [f"{THE_IP} fd00::9"]),
        (3, [f"{THE_IP} fd00::9", "10.244.1.11"]),
        (5, [f"{THE_IP} fd00::9", "10.244.1.11", "10.244.1.12", "10.244.1.13"]),
    ):
        assert passed(guard_context(context, limits=make_limits(allowances=(("--max-per-sync", most),)))) == expected


def test_a_release_refused_by_another_guard_uses_no_budget() -> None:
    newest, *others = leaks(3)
    in_use = Address(newest.ip, 1, "sh")
    context = guard_context(node(newest, *others, in_use), limits=make_limits(allowances=(("--max-per-sync", 2),)))
    assert passed(context) == [one.ip for one in others]


@pytest.mark.parametrize("name", BUDGETS)
def test_a_refusal_names_each_limit_that_is_too_low_and_the_needed_value(name: str) -> None:
    limits, spent, setting = BUDGETS[name]
    least = min(left for _, left in limits.allowances)
    context = guard_context(node(*leaks(3)), limits=limits, spent=spent)
    over = [refusal for nos in verdicts(context).values() for refusal in nos]
    assert len(over) == 3 - max(least, 0)
    assert over[-1].setting == setting
    assert "-3" not in over[-1].why


def test_what_the_journal_has_no_room_for_is_refused_whole_and_nothing_overrides_that() -> None:
    limits = make_limits(allowances=(("--max", 3),))
    for room, expected in ((0, 0), (1, 1), (2, 2), (3, 3), (9, 3)):
        assert len(passed(guard_context(node(*leaks(4)), limits=limits, journal_room=room))) == expected
    limits = make_limits(allowances=(("--max", 1),))
    over = list(verdicts(guard_context(node(*leaks(4)), limits=limits, journal_room=1)).values())
    assert [[one.reason for one in refusals] for refusals in over] == [
        [],
        *[[Reason.OVER_BUDGET, Reason.JOURNAL_FULL]] * 3,
    ]
    assert over[-1][-1] == Refusal(
        Reason.JOURNAL_FULL,
        "the journal has room for 1 address until its oldest entry is 24 hours old; this is number 4 in line",
    )


def test_without_a_budget_all_that_pass_are_released() -> None:
    assert len(passed(guard_context(node(*leaks(31))))) == 31


# The cost


def test_the_cost_of_a_decision_does_not_grow_with_the_leaks() -> None:
    """Ten times as many leaks take ten times as long; a decision that looks at all others would take a hundred."""
    for gone in ((), ("pods",)):
        few, many = (_busy_node(count, gone) for count in (100, 1000))
        assert _seconds(many) < 30 * _seconds(few)


def _busy_node(count: int, gone: Iterable[str]) -> GuardContext:
    busy = node(
        *(reservation(f"10.244.{n // 250}.{n % 250 + 2}", f"{n:064x}") for n in range(count)),
        *(sandbox(f"f{n:063x}", f"shop/p{n}") for n in range(count)),
        *(Address(f"10.9.{n // 250}.{n % 250}", n, "sh") for n in range(count)),
        *(pod(f"shop/p{n}", f"10.9.{n // 250}.{n % 250}") for n in range(count)),
        *(cni_result(f"f{n:063x}", f"shop/p{n}", "10.244.0.0/16") for n in range(count)),
        *(Checkpoint(f"f{n:063x}", "") for n in range(count)),
        node=[],
    )
    for source in gone:
        busy = without(busy, source)
    context = guard_context(busy, busy, limits=make_limits(max_share=1.0))
    assert len(decide(context)) == count
    return context


def _seconds(context: GuardContext) -> float:
    """Return the CPU time of a decision: the least of several."""
    times = []
    for _ in range(5):
        fresh = replace(context)  # without what it has derived already
        start = time.process_time()
        decide(fresh)
        times.append(time.process_time() - start)
    return min(times)


def test_the_healthy_node_has_the_expected_content() -> None:
    assert len(CONTAINERS) >= FEWEST_CONTAINERS
    assert {one.container_id for one in CHECKPOINTS} <= {one.id for one in CONTAINERS}
    assert {one.ip for one in RESERVATIONS} <= {one.ip for one in ADDRESSES}
    assert {one.name for one in PODS} <= {one.pod for one in CONTAINERS}

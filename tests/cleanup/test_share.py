"""How much of a network looks leaked."""

from typing import Any

import pytest

from agent import config
from agent.model.release import Reason
from agent.model.snapshot import Address, Node, NotRequested
from tests.builders import (
    guard_context,
    make_limits,
    node,
    reservation,
    verdicts,
)
from tests.cleanup.leaks import SECOND, leaks


def share(*records: Any, **changes: Any) -> float:
    return guard_context(node(*records, **changes), limits=make_limits()).shares["kubenet"]


def test_a_share_of_a_few_sandboxes_is_ignored() -> None:
    assert share(*leaks(7), node=[Node("worker-1", ("10.244.1.0/28",), 110)]) == 0
    assert share(*leaks(8), node=[Node("worker-1", ("10.244.1.0/28",), 110)]) == 8 / 13


def test_a_share_counts_sandboxes_leaked_and_candidate_but_not_owned() -> None:
    recent = [reservation(f"10.244.1.{n}", f"{n:064x}", age=SECOND) for n in range(40, 44)]
    in_use = [Address(f"10.244.1.{10 + n}", 1, "sh") for n in (1, 2)]
    both = [reservation(f"10.244.2.{n}", f"{n:064x}", age=SECOND) for n in range(40, 44)]
    assert share(*leaks(10), *recent, *both, *in_use) == 12 / 253


@pytest.mark.parametrize(("most", "refused"), [(31 / 253, False), (30 / 253, True), (0.0, True), (1.0, False)])
def test_a_share_equal_to_the_limit_is_plausible(most: float, refused: bool) -> None:
    found_refusals = verdicts(guard_context(node(*leaks(31)), limits=make_limits(max_share=most)))
    assert len(found_refusals) == 31
    assert all(
        [one.reason for one in refusal] == ([Reason.IMPLAUSIBLE_SHARE] if refused else [])
        for refusal in found_refusals.values()
    )


def test_with_an_unknown_range_the_share_is_of_all_reservations() -> None:
    assert share(*leaks(8), node=[], cni_results=[]) == 8 / 10


def test_a_share_is_at_most_one_and_one_can_be_allowed() -> None:
    small = node(*leaks(31), node=[Node("worker-1", ("10.250.0.0/29",), 110)])
    assert guard_context(small).shares["kubenet"] == 1
    found_refusals = verdicts(guard_context(small, limits=make_limits(max_share=config.percentage("100%"))))
    assert {one.reason for refusal in found_refusals.values() for one in refusal} == {Reason.OUTSIDE_RANGE}


def test_if_only_docker_makes_most_leaked_the_share_is_of_those() -> None:
    alone = NotRequested("pods", "--api=off")
    assert share(*leaks(110), pods=alone) == 110 / 112
    assert share(*leaks(31), pods=alone) == 31 / 253
    assert share(*leaks(110)) == 110 / 253, "the API server knows the pods that run, and docker's list agrees with it"


def test_a_share_is_calculated_per_network() -> None:
    crowded = node(*leaks(8), reservation("10.9.0.2", "8" * 64, network="storage"), node=[], cni_results=[])
    found_refusals = verdicts(guard_context(crowded, limits=make_limits(networks=frozenset({"kubenet", "storage"}))))
    assert Reason.IMPLAUSIBLE_SHARE not in {one.reason for one in found_refusals["10.9.0.2"]}
    assert Reason.IMPLAUSIBLE_SHARE in {one.reason for one in found_refusals["10.244.1.11"]}

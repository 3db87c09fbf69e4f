"""On small nodes, in every order of events, cleanup releases no address that is in use."""

import os
import sys
from dataclasses import replace

import pytest

from tests.proof import scenarios as nodes
from tests.proof.explorer import Counterexample, Explorer, Scenario
from tests.proof.laws import IN_USE, LAWS
from tests.proof.mutants import without_guards
from tests.wire import only_with

pytestmark = pytest.mark.proof

FEWEST_STATES = 1000
WRONG_LIST = (
    *nodes.ASSUMED,
    *(scenario for scenario in (*nodes.PROOF, *nodes.DEEP) if scenario.laws == IN_USE),
)


def explore(scenario: Scenario, fewest: int) -> None:
    explored = Explorer(scenario).explore()
    sys.stdout.write(f"\n{scenario.name}: {explored}\n")
    assert explored.states >= fewest
    assert (explored.removals > 0) == scenario.releases
    # While docker's list is right, no released sandbox ever reappears.
    assert not explored.halted or scenario in WRONG_LIST


@pytest.mark.parametrize("scenario", nodes.PROOF, ids=lambda scenario: scenario.name)
def test_no_order_of_events_releases_an_address_in_use(scenario: Scenario) -> None:
    explore(scenario, FEWEST_STATES)


@pytest.mark.parametrize("scenario", nodes.DEEP, ids=lambda scenario: scenario.name)
def test_larger_nodes(scenario: Scenario) -> None:
    only_with(
        os.environ.get("NODELEAK_PROOF") == "deep", "NODELEAK_PROOF=deep, which takes minutes"
    )
    explore(scenario, 100 * FEWEST_STATES)


@pytest.mark.parametrize(
    "scenario", [*nodes.POLICY, *nodes.ASSUMED], ids=lambda scenario: scenario.name
)
def test_if_an_assumption_fails_another_guard_protects(scenario: Scenario) -> None:
    explore(scenario, 1)


def test_without_settle_a_wrong_list_and_an_add_that_outlives_its_kubelet_lose_an_address() -> None:
    with pytest.raises(Counterexample, match=r"pod-1 uses 10[.]244[.]1[.]2 and has lost") as found:
        Explorer(nodes.UNSETTLED).explore()
    assert "the kubelet restarts" in found.value.steps
    assert "docker restarts, without pod-1" in found.value.steps
    assert "pod-1: docker knows no such container, the checkpoint is dropped" in found.value.steps


def test_without_settle_a_wrong_list_loses_the_reservation_of_a_sandbox_that_never_used_it() -> (
    None
):
    strict = Scenario(
        name=nodes.DOCKER.name, start=nodes.DOCKER.start, laws=LAWS, check_recovery=False
    )
    with pytest.raises(Counterexample, match="pod-1 exists and has lost its reservation") as found:
        Explorer(strict).explore()
    assert "the kubelet restarts" in found.value.steps
    assert not any("configures" in step for step in found.value.steps)


def test_host_local_may_reserve_after_its_sandbox_is_gone_and_that_does_not_halt_cleanup() -> None:
    explored = Explorer(nodes.CRI_DEADLINE_DUAL).explore()
    assert explored.removals > 0
    assert not explored.halted


def test_if_a_runtime_records_a_sandbox_later_than_its_version_says_an_address_is_lost() -> None:
    late = replace(nodes.CRI_SMALL, start=nodes.CRI_SMALL.start._replace(record_first=False))
    with pytest.raises(Counterexample, match="pod-1 exists and has lost its reservation"):
        Explorer(late).explore()


def test_without_ordered_runtime_the_longer_grace_period_suffices_while_no_clock_is_set() -> None:
    timed = replace(
        nodes.LISTED_LAST,
        start=nodes.LISTED_LAST.start._replace(left=nodes.rarely("ten minutes pass")),
    )
    with without_guards(["ordered_runtime"]):
        assert Explorer(timed).explore().removals > 0


@pytest.mark.parametrize(
    "scenario",
    [nodes.SMALL, nodes.DOCKER, nodes.CRI_UNAVAILABLE],
    ids=lambda scenario: scenario.name,
)
def test_merging_states_changes_nothing_that_can_happen(scenario: Scenario) -> None:
    merging, complete = (
        Explorer(replace(scenario, setup=replace(scenario.setup, merged=merged)))
        for merged in (True, False)
    )
    assert merging.explore().states < complete.explore().states
    assert merging.reached == complete.reached

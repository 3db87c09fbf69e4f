"""On small nodes, whatever happens in whatever order, cleaning takes no address that somebody has."""

import os
import sys
from dataclasses import replace

import pytest

from tests.proof.explorer import Counterexample, Explorer, Scenario
from tests.proof.laws import IN_USE, LAWS
from tests.proof.scenarios import ASSUMED, DEEP, DOCKER, LITTLE, POLICY, PROOF, UNSETTLED
from tests.proof.world import World

FEWEST_STATES = 1000
LIED_TO = (*ASSUMED, *(one for one in (*PROOF, *DEEP) if one.laws == IN_USE))


def explore(scenario: Scenario, fewest: int) -> None:
    explored = Explorer(scenario).explore()
    sys.stdout.write(f"\n{scenario.name}: {explored}\n")
    assert explored.states >= fewest
    assert (explored.removals > 0) == scenario.releases
    # Where docker tells the truth, no released sandbox is ever there again.
    assert not explored.stopped or scenario in LIED_TO


@pytest.mark.parametrize("scenario", PROOF, ids=lambda one: one.name)
def test_no_order_of_events_costs_anybody_an_address(scenario: Scenario) -> None:
    explore(scenario, FEWEST_STATES)


@pytest.mark.skipif(os.environ.get("NODELEAK_PROOF") != "deep", reason="DID NOT RUN: minutes: NODELEAK_PROOF=deep")
@pytest.mark.parametrize("scenario", DEEP, ids=lambda one: one.name)
def test_nor_on_larger_nodes(scenario: Scenario) -> None:
    explore(scenario, 100 * FEWEST_STATES)


@pytest.mark.parametrize("scenario", [*POLICY, *ASSUMED], ids=lambda one: one.name)
def test_where_every_witness_fails_a_guard_is_left(scenario: Scenario) -> None:
    explore(scenario, 1)


def test_without_settle_a_lying_docker_and_an_add_that_outlives_its_kubelet_cost_an_address() -> None:
    with pytest.raises(Counterexample, match=r"pod-1 uses 10[.]244[.]1[.]2 and has lost") as found:
        Explorer(UNSETTLED).explore()

    assert "the kubelet restarts" in found.value.steps
    assert "docker restarts, without pod-1" in found.value.steps
    assert "pod-1: docker knows no such container, the checkpoint is dropped" in found.value.steps


def test_without_settle_a_lying_docker_costs_the_reservation_of_a_sandbox_that_never_got_its_address() -> None:
    strict = Scenario(name=DOCKER.name, start=DOCKER.start, laws=LAWS, at_rest=False)

    with pytest.raises(Counterexample, match="pod-1 lives and has lost its reservation") as found:
        Explorer(strict).explore()

    assert "the kubelet restarts" in found.value.steps
    assert not any("configures" in step for step in found.value.steps)


@pytest.mark.parametrize("scenario", [LITTLE, DOCKER], ids=lambda one: one.name)
def test_that_a_cleaner_may_forget_changes_nothing_that_can_happen(scenario: Scenario) -> None:
    forgetful, scrupulous = (
        Explorer(replace(scenario, setup=replace(scenario.setup, merged=merged))) for merged in (True, False)
    )

    assert forgetful.explore().states < scrupulous.explore().states
    assert _nodes(forgetful) == _nodes(scrupulous)


def _nodes(explorer: Explorer) -> set[World]:
    return {world._replace(cleaners=()) for world in explorer.reached}

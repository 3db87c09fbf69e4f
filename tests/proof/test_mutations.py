"""Without a guard, or another protection, the checker finds a counterexample, or something else covers for it."""

import pytest

from agent.cleanup import guards
from tests.proof.explorer import Counterexample, Explored, Explorer, Scenario
from tests.proof.mutants import made_of, without_guards
from tests.proof.mutations import ALL_COVERED_GUARDS, BUDGET, BY_STATE, COVERED, DETECTED, Without
from tests.proof.scenarios import CLAIMED, CRI_SMALL, DOCKER, HANDOVER, PARTLY, SMALL, UNAVAILABLE

pytestmark = pytest.mark.proof


def explore(without: Without) -> Explored:
    with without_guards(without.guards):
        return Explorer(without.scenario, made_of(*without.parts)).explore()


@pytest.mark.parametrize("name", DETECTED)
def test_without_this_guard_the_checker_finds_a_counterexample(name: str) -> None:
    with pytest.raises(Counterexample):
        explore(DETECTED[name])


@pytest.mark.parametrize("name", COVERED)
def test_without_this_guard_alone_the_others_suffice(name: str) -> None:
    assert explore(COVERED[name].holds).states > 0


@pytest.mark.parametrize("name", [name for name, covered in COVERED.items() if covered.detected])
def test_without_the_others_too_the_checker_finds_a_counterexample(name: str) -> None:
    together = COVERED[name].detected
    assert together is not None

    with pytest.raises(Counterexample):
        explore(together)


@pytest.mark.parametrize(
    "scenario", [SMALL, UNAVAILABLE, DOCKER, PARTLY, CLAIMED, CRI_SMALL], ids=lambda scenario: scenario.name
)
def test_without_all_covered_guards_the_others_suffice(scenario: Scenario) -> None:
    assert explore(Without(scenario=scenario, guards=ALL_COVERED_GUARDS)).states > 0


def test_a_reading_for_each_release_prevents_what_a_shared_one_permits() -> None:
    assert explore(Without(scenario=HANDOVER, guards=BY_STATE)).removals > 0


def test_every_guard_and_the_budget_is_in_the_table() -> None:
    known = [*DETECTED, *COVERED]

    assert {*(guard.__name__ for guard in guards.GUARDS), BUDGET} <= set(known)
    assert len(known) == len(set(known))

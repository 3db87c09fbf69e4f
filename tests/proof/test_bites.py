"""A proof is worth what it can find: without a guard, or a part of the act, there is a counterexample, or a reason."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cleanup import guards
from tests.proof.bites import ALL_COVERED_GUARDS, BITES, BUDGET, COVERED, Without
from tests.proof.bitten import made_of, without_guards
from tests.proof.explorer import Counterexample, Explored, Explorer, Scenario
from tests.proof.scenarios import CLAIMED, DOCKER, LITTLE, PARTLY, SILENT

PAGE = Path(__file__).parents[2] / "docs/proof.md"


def explore(without: Without) -> Explored:
    with without_guards(without.guards):
        return Explorer(without.scenario, made_of(*without.parts)).explore()


@pytest.mark.parametrize("name", BITES)
def test_without_it_the_checker_finds_a_counterexample(name: str) -> None:
    with pytest.raises(Counterexample):
        explore(BITES[name])


@pytest.mark.parametrize("name", COVERED)
def test_without_it_alone_others_still_hold(name: str) -> None:
    assert explore(COVERED[name].holds).states > 0


@pytest.mark.parametrize("name", [name for name, covered in COVERED.items() if covered.bites])
def test_without_those_others_too_the_checker_finds_a_counterexample(name: str) -> None:
    together = COVERED[name].bites
    assert together is not None

    with pytest.raises(Counterexample):
        explore(together)


@pytest.mark.parametrize("scenario", [LITTLE, SILENT, DOCKER, PARTLY, CLAIMED], ids=lambda one: one.name)
def test_without_all_the_covered_guards_at_once_others_still_hold(scenario: Scenario) -> None:
    assert explore(Without(scenario=scenario, guards=ALL_COVERED_GUARDS)).states > 0


def test_every_guard_and_the_budget_bites_or_is_covered() -> None:
    known = [*BITES, *COVERED]

    assert {*(guard.__name__ for guard in guards.GUARDS), BUDGET} <= set(known)
    assert len(known) == len(set(known))


def test_a_guard_is_gone_only_as_long_as_it_is_taken_out() -> None:
    before = guards.GUARDS

    with without_guards(["settled"]):
        assert guards.settled not in guards.GUARDS
        assert len(guards.GUARDS) == len(before) - 1

    assert guards.GUARDS is before


def test_the_page_says_what_the_tests_know() -> None:
    assert list(_rows("Found at once")) == [(name, without.scenario.name) for name, without in BITES.items()]
    assert list(_rows("Covered by others")) == [
        (name, covered.because, covered.also or "nothing in the model") for name, covered in COVERED.items()
    ]


def _rows(heading: str) -> Iterator[tuple[str, ...]]:
    section = PAGE.read_text().split(f"### {heading}\n", 1)[1].split("\n#", 1)[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    for row in rows[1:]:
        yield tuple(cell.strip() for cell in row.strip("|").split("|"))

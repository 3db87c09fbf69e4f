"""Without a guard, or another protection, the checker finds a counterexample, or something else covers for it.

docs/proof.md says why.
"""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from agent.cleanup import guards
from tests.proof import mutants
from tests.proof import scenarios as nodes
from tests.proof.explorer import Counterexample, Explored, Explorer, Scenario
from tests.proof.process import InMemory, InMemoryJournal, Setup

pytestmark = pytest.mark.proof

BUDGET = "the budget"

BY_STATE = ("without_owner", "confirmed")
"""The guards that keep an address with an owner. Without them only the recheck does."""
Part = type[InMemory | InMemoryJournal]


@dataclass(frozen=True)
class Without:
    """A cleaner without something, on a node."""

    scenario: Scenario
    guards: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    share: tuple[tuple[str, Any], ...] = ()
    """What is changed of `leaked_share`."""

    def explore(self) -> Explored:
        with mutants.without_guards(self.guards), mutants.changed_share(dict(self.share)):
            return Explorer(self.scenario, mutants.made_of(*self.parts)).explore()


def guard(name: str, scenario: Scenario) -> Without:
    return Without(scenario, guards=(name,))


def part(scenario: Scenario, *parts: Part, guards: tuple[str, ...] = ()) -> Without:
    return Without(scenario, guards, parts)


def share(scenario: Scenario, **changes: Any) -> Without:
    return Without(scenario, share=tuple(changes.items()))


def unprobed(scenario: Scenario) -> Without:
    return Without(replace(scenario, setup=replace(scenario.setup, probe=False)))


ONE_SNAPSHOT = replace(
    nodes.SMALL, name="one snapshot instead of two, beside a pod", setup=Setup(one_snapshot=True)
)
UNORDERED = part(
    ONE_SNAPSHOT, mutants.OwnersFirst, mutants.DOCKER_NOT_RECHECKED, mutants.KUBELET_NOT_RECHECKED
)
RECORDS = part(nodes.CRI_SMALL, mutants.RECORDS_NOT_LISTED, mutants.RECORDS_NOT_RECHECKED)
MOUNTS = part(nodes.CRI_MOUNTED, mutants.MOUNTS_NOT_LISTED, mutants.MOUNTS_NOT_RECHECKED)

DETECTED = {
    "allowed_network": guard("allowed_network", nodes.UNRECOGNIZED),
    "confirmed": guard("confirmed", nodes.CANDIDATE),
    "inside_range": guard("inside_range", nodes.UNRECOGNIZED),
    "whole_sandbox": guard("whole_sandbox", nodes.BY_NAME),
    "ordered_runtime": guard("ordered_runtime", nodes.LISTED_LAST),
    "trusted_runtime": guard("trusted_runtime", nodes.LOSING),
    "settled": guard("settled", nodes.SETTLED),
    "the settling of CRI-O": guard("settled", nodes.CRI_SURVIVED),
    **{
        f"plausible_share: {scenario.name}": guard("plausible_share", scenario)
        for scenario in nodes.DOUBTED[1:]
    },
    "plausible_share": guard("plausible_share", nodes.FAULTY_READING),
    "four witnesses": share(nodes.FEW_WITNESSES, MIN_WITNESSES=1),
    "every pod in the list": share(nodes.UNLISTED_WITNESS, unlisted=lambda *_: []),
    "witnesses of the network": share(nodes.FOREIGN_NETWORK, witnesses_of=lambda *of: len(of[-1])),
    BUDGET: Without(replace(nodes.BUDGETED, setup=Setup())),
    "the checkpoint as evidence": part(
        replace(nodes.DOCKER, check_recovery=False), mutants.KUBELET_IGNORED
    ),
    "the runtime that the kubelet names": part(nodes.OTHER_RUNTIME, mutants.RUNTIME_IGNORED),
    "a missing checkpoint directory as a gap": part(nodes.NO_DIRECTORY, mutants.DIRECTORY_IGNORED),
    "the kernel as evidence": part(nodes.PARTLY, mutants.KERNEL_IGNORED),
    "the probe": unprobed(nodes.PINNED),
    "the probe of an address of containerd": unprobed(nodes.CRI_KILLED),
    "the API server as evidence": part(nodes.CLAIMED, mutants.PODS_IGNORED),
    "comparing under the lock": part(nodes.FULL, mutants.ReadOnce),
    "host-local's lock": part(nodes.EMPTY, mutants.WITHOUT_LOCK),
    "the journal before removing": part(nodes.FULL, mutants.NOT_JOURNALED),
    "recovery of unfinished entries": part(nodes.DUAL, mutants.NOT_RECOVERED),
    "the line that ends a restoration": part(nodes.RESTORING_DISK, mutants.RestoredAtOnce),
    "refusing what the journal shows in motion": part(nodes.RESTORING, mutants.ACTIVITY_IGNORED),
    "a halt that another cleaner records": part(nodes.HALTED, mutants.HaltReadOnce),
    "reading the brake before each release": part(nodes.BRAKED, mutants.BRAKE_NOT_REREAD),
    "keeping every entry of a day": part(nodes.NEARLY_FULL, mutants.FORGETFUL),
}

COVERED: dict[str, tuple[Without, Without | None]] = {
    "not_halted": (
        guard("not_halted", nodes.RETURNED),
        part(nodes.RETURNED, mutants.HaltReadOnce, guards=("not_halted",)),
    ),
    "not_braked": (guard("not_braked", nodes.BRAKED), None),
    "chosen_node": (guard("chosen_node", nodes.UNRECOGNIZED), None),
    "sources_available": (guard("sources_available", nodes.UNAVAILABLE), None),
    "without_owner": (
        guard("without_owner", nodes.DOCKER),
        part(nodes.DOCKER, mutants.KUBELET_NOT_RECHECKED, guards=BY_STATE),
    ),
    "no_plugin_at_work": (guard("no_plugin_at_work", nodes.CRI_SURVIVED), None),
    "plugin_works": (guard("plugin_works", nodes.UNRECOGNIZED), None),
    "no_host_ports": (guard("no_host_ports", nodes.UNRECOGNIZED), None),
    "journal_usable": (guard("journal_usable", nodes.DISK), None),
    "reservations before their owners": (part(nodes.SMALL, mutants.OwnersFirst), UNORDERED),
    "the second snapshot": (Without(ONE_SNAPSHOT), UNORDERED),
    "the recheck of docker": (part(nodes.SMALL, mutants.DOCKER_NOT_RECHECKED), UNORDERED),
    "the recheck of the kubelet": (part(nodes.DOCKER, mutants.KUBELET_NOT_RECHECKED), UNORDERED),
    "the recheck of the kernel": (
        part(nodes.DOCKER, mutants.KERNEL_NOT_RECHECKED),
        part(nodes.PARTLY, mutants.KERNEL_NOT_RECHECKED, guards=BY_STATE),
    ),
    "a reading of the namespaces for each release": (
        part(nodes.HANDOVER, mutants.NamespacesSharedByReleases),
        part(nodes.HANDOVER, mutants.NamespacesSharedByReleases, guards=BY_STATE),
    ),
    "the records in the snapshot": (part(nodes.CRI_SMALL, mutants.RECORDS_NOT_LISTED), RECORDS),
    "the recheck of the records": (part(nodes.CRI_SMALL, mutants.RECORDS_NOT_RECHECKED), RECORDS),
    "mounted network namespaces in the snapshot": (
        part(nodes.CRI_MOUNTED, mutants.MOUNTS_NOT_LISTED),
        MOUNTS,
    ),
    "the recheck of mounted network namespaces": (
        part(nodes.CRI_MOUNTED, mutants.MOUNTS_NOT_RECHECKED),
        MOUNTS,
    ),
    "the cleaner's lock": (part(nodes.TWO_CLEANERS, mutants.NotExclusive), None),
}
"""Without the first alone nothing goes wrong; with the second, which misses more, something does."""
NAMES = {guard.__name__ for guard in guards.GUARDS}


@pytest.mark.parametrize("name", DETECTED)
def test_without_this_guard_the_checker_finds_a_counterexample(name: str) -> None:
    with pytest.raises(Counterexample):
        DETECTED[name].explore()


@pytest.mark.parametrize("name", COVERED)
def test_without_this_guard_alone_the_others_suffice(name: str) -> None:
    assert COVERED[name][0].explore().states > 0


@pytest.mark.parametrize("together", dict.fromkeys(more for _, more in COVERED.values() if more))
def test_without_the_others_too_the_checker_finds_a_counterexample(together: Without) -> None:
    with pytest.raises(Counterexample):
        together.explore()


SCENARIOS = (
    nodes.SMALL,
    nodes.UNAVAILABLE,
    nodes.DOCKER,
    nodes.PARTLY,
    nodes.CLAIMED,
    nodes.CRI_SMALL,
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_without_all_covered_guards_the_others_suffice(scenario: Scenario) -> None:
    assert Without(scenario, tuple(NAMES.intersection(COVERED))).explore().states > 0


def test_a_reading_for_each_release_prevents_what_a_shared_one_permits() -> None:
    assert Without(nodes.HANDOVER, guards=BY_STATE).explore().removals > 0


def test_every_guard_and_the_budget_is_in_the_table() -> None:
    assert {*NAMES, BUDGET} <= {*DETECTED, *COVERED}
    assert not DETECTED.keys() & COVERED.keys()

"""What each guard, and each other protection, prevents: the mutations of docs/proof.md, which says why."""

from dataclasses import dataclass, replace
from typing import Final

from agent.cleanup import guards
from tests.proof import mutants
from tests.proof.explorer import Scenario
from tests.proof.process import InMemory, InMemoryJournal, Setup
from tests.proof.scenarios import (
    BUDGETED,
    BY_NAME,
    CANDIDATE,
    CLAIMED,
    CRI_KILLED,
    CRI_MOUNTED,
    CRI_SMALL,
    CRI_SURVIVED,
    DISK,
    DOCKER,
    DUAL,
    EMPTY,
    FAULTY_READING,
    FULL,
    HANDOVER,
    LISTED_LAST,
    LOSING,
    NEARLY_FULL,
    NO_DIRECTORY,
    OTHER_RUNTIME,
    PARTLY,
    PINNED,
    RESTORING,
    RESTORING_DISK,
    RETURNED,
    SETTLED,
    SMALL,
    TWO_CLEANERS,
    UNAVAILABLE,
    UNRECOGNIZED,
)

BUDGET: Final = "the budget"
BY_STATE: Final = ("without_owner", "confirmed")
"""The guards that keep an address with an owner. Without them only the recheck does."""


@dataclass(frozen=True, kw_only=True)
class Without:
    """A cleaner without something, on a node."""

    scenario: Scenario
    guards: tuple[str, ...] = ()
    parts: tuple[type[InMemory | InMemoryJournal], ...] = ()


@dataclass(frozen=True)
class Covered:
    """Without this alone nothing goes wrong."""

    holds: Without
    detected: Without | None = None
    """What else must be missing for something to go wrong."""


def _guard(name: str, scenario: Scenario) -> Without:
    return Without(scenario=scenario, guards=(name,))


def _part(part: type[InMemory | InMemoryJournal], scenario: Scenario) -> Without:
    return Without(scenario=scenario, parts=(part,))


ONE_SNAPSHOT: Final = replace(SMALL, name="one snapshot instead of two, beside a pod", setup=Setup(one_snapshot=True))
_UNORDERED: Final = Without(
    scenario=ONE_SNAPSHOT, parts=(mutants.OwnersFirst, mutants.DockerNotRechecked, mutants.KubeletNotRechecked)
)

DETECTED: Final[dict[str, Without]] = {
    "not_halted": _guard("not_halted", RETURNED),
    "allowed_network": _guard("allowed_network", UNRECOGNIZED),
    "confirmed": _guard("confirmed", CANDIDATE),
    "inside_range": _guard("inside_range", UNRECOGNIZED),
    "whole_sandbox": _guard("whole_sandbox", BY_NAME),
    "ordered_runtime": _guard("ordered_runtime", LISTED_LAST),
    "trusted_runtime": _guard("trusted_runtime", LOSING),
    "settled": _guard("settled", SETTLED),
    "plausible_share": _guard("plausible_share", FAULTY_READING),
    BUDGET: Without(scenario=replace(BUDGETED, setup=Setup())),
    "the checkpoint as evidence": _part(mutants.KubeletIgnored, replace(DOCKER, check_recovery=False)),
    "the runtime that the kubelet names": _part(mutants.RuntimeIgnored, OTHER_RUNTIME),
    "a missing checkpoint directory as a gap": _part(mutants.DirectoryIgnored, NO_DIRECTORY),
    "the kernel as evidence": _part(mutants.KernelIgnored, PARTLY),
    "the probe": _part(mutants.NotProbed, PINNED),
    "the probe of an address of containerd": _part(mutants.NotProbed, CRI_KILLED),
    "the settling of CRI-O": _guard("settled", CRI_SURVIVED),
    "the runtime's records": Without(scenario=CRI_SMALL, parts=(mutants.RecordsNotListed, mutants.RecordsNotRechecked)),
    "mounted network namespaces": Without(
        scenario=CRI_MOUNTED, parts=(mutants.MountsNotListed, mutants.MountsNotRechecked)
    ),
    "the API server as evidence": _part(mutants.PodsIgnored, CLAIMED),
    "comparing under the lock": _part(mutants.ReadOnce, FULL),
    "host-local's lock": _part(mutants.WithoutLock, EMPTY),
    "the journal before removing": _part(mutants.NotJournaled, FULL),
    "recovery of unfinished entries": _part(mutants.NotRecovered, DUAL),
    "the line that ends a restoration": _part(mutants.RestoredAtOnce, RESTORING_DISK),
    "refusing what the journal shows in motion": _part(mutants.ActivityIgnored, RESTORING),
    "keeping every entry of a day": _part(mutants.Forgetful, NEARLY_FULL),
}

COVERED: Final[dict[str, Covered]] = {
    "sources_available": Covered(_guard("sources_available", UNAVAILABLE)),
    "without_owner": Covered(
        _guard("without_owner", DOCKER), Without(scenario=DOCKER, guards=BY_STATE, parts=(mutants.KubeletNotRechecked,))
    ),
    "no_plugin_at_work": Covered(_guard("no_plugin_at_work", CRI_SURVIVED)),
    "plugin_works": Covered(_guard("plugin_works", UNRECOGNIZED)),
    "no_host_ports": Covered(_guard("no_host_ports", UNRECOGNIZED)),
    "journal_usable": Covered(_guard("journal_usable", DISK)),
    "reservations before their owners": Covered(_part(mutants.OwnersFirst, SMALL), _UNORDERED),
    "the second snapshot": Covered(Without(scenario=ONE_SNAPSHOT), _UNORDERED),
    "the recheck of docker": Covered(_part(mutants.DockerNotRechecked, SMALL), _UNORDERED),
    "the recheck of the kubelet": Covered(_part(mutants.KubeletNotRechecked, DOCKER), _UNORDERED),
    "the recheck of the kernel": Covered(
        _part(mutants.KernelNotRechecked, DOCKER),
        Without(scenario=PARTLY, guards=BY_STATE, parts=(mutants.KernelNotRechecked,)),
    ),
    "a reading of the namespaces for each release": Covered(
        _part(mutants.NamespacesSharedByReleases, HANDOVER),
        Without(scenario=HANDOVER, guards=BY_STATE, parts=(mutants.NamespacesSharedByReleases,)),
    ),
    "the records in the snapshot": Covered(
        _part(mutants.RecordsNotListed, CRI_SMALL), DETECTED["the runtime's records"]
    ),
    "the recheck of the records": Covered(
        _part(mutants.RecordsNotRechecked, CRI_SMALL), DETECTED["the runtime's records"]
    ),
    "mounted network namespaces in the snapshot": Covered(
        _part(mutants.MountsNotListed, CRI_MOUNTED), DETECTED["mounted network namespaces"]
    ),
    "the recheck of mounted network namespaces": Covered(
        _part(mutants.MountsNotRechecked, CRI_MOUNTED), DETECTED["mounted network namespaces"]
    ),
    "comparing the inode": Covered(_part(mutants.ContentOnly, EMPTY)),
    "the cleaner's lock": Covered(_part(mutants.NotExclusive, TWO_CLEANERS)),
}

ALL_COVERED_GUARDS: Final = tuple(name for name in COVERED if name in {guard.__name__ for guard in guards.GUARDS})

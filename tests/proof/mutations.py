"""What each guard, and each other protection, prevents: the table of mutations behind docs/proof.md."""

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
    RESTORING_DISK,
    RETURNED,
    SETTLED,
    SMALL,
    TWO_CLEANERS,
    UNAVAILABLE,
    UNRECOGNIZED,
)

BUDGET: Final = "the budget"
UNCHECKPOINTED: Final = ("no_checkpoint", "confirmed")
"""The guards that keep an address with a checkpoint. Without them only the recheck does."""


@dataclass(frozen=True, kw_only=True)
class Without:
    """A cleaner without something, on a node."""

    scenario: Scenario
    guards: tuple[str, ...] = ()
    parts: tuple[type[InMemory | InMemoryJournal], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Covered:
    """Without this alone nothing goes wrong."""

    holds: Without
    because: str
    detected: Without | None = None
    """What else must be missing for something to go wrong."""
    also: str = ""


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
    "keeping every entry of a day": _part(mutants.Forgetful, NEARLY_FULL),
}

COVERED: Final[dict[str, Covered]] = {
    "sources_available": Covered(
        holds=_guard("sources_available", UNAVAILABLE),
        because="unavailable data makes an address `unknown`, and the other guards raise InsufficientData",
    ),
    "no_container": Covered(
        holds=_guard("no_container", SMALL),
        because="a listed container is never requested, and docker is rechecked",
    ),
    "no_checkpoint": Covered(
        holds=_guard("no_checkpoint", DOCKER),
        because="an address with a checkpoint is not `leaked`, and the directory is rechecked",
        detected=Without(
            scenario=DOCKER,
            guards=("no_checkpoint", "confirmed", "no_configured_address"),
            parts=(mutants.KubeletNotRechecked,),
        ),
        also="confirmed, no_configured_address, the recheck of the kubelet",
    ),
    "no_configured_address": Covered(
        holds=_guard("no_configured_address", PARTLY),
        because="a configured address is not `leaked`, and the kernel is rechecked",
        detected=Without(
            scenario=PARTLY, guards=("no_configured_address", "confirmed"), parts=(mutants.KernelNotRechecked,)
        ),
        also="confirmed, the recheck of the kernel",
    ),
    "no_pod_claim": Covered(
        holds=_guard("no_pod_claim", CLAIMED),
        because="an address that a pod claims is not `leaked`",
        detected=Without(scenario=CLAIMED, guards=("no_pod_claim", "confirmed")),
        also="confirmed",
    ),
    "no_plugin_at_work": Covered(
        holds=_guard("no_plugin_at_work", CRI_SURVIVED),
        because="an ADD of the model that outlives its runtime ends within --settle",
    ),
    "plugin_works": Covered(
        holds=_guard("plugin_works", UNRECOGNIZED),
        because="it keeps a failing plugin from taking again what was released, and protects no address",
    ),
    "no_host_ports": Covered(
        holds=_guard("no_host_ports", UNRECOGNIZED),
        because="it keeps left-over rules from reaching another pod, and protects no address",
    ),
    "journal_writable": Covered(
        holds=_guard("journal_writable", DISK),
        because="beginning an entry fails too, before anything is removed",
    ),
    "reservations before their owners": Covered(
        holds=_part(mutants.OwnersFirst, SMALL),
        because="the second snapshot reads the owners after the first has read the reservations",
        detected=_UNORDERED,
        also="the second snapshot, the rechecks of docker and the kubelet",
    ),
    "the second snapshot": Covered(
        holds=Without(scenario=ONE_SNAPSHOT),
        because="in the order of one snapshot a sandbox exists before its address is reserved",
        detected=_UNORDERED,
        also="the order, the rechecks of docker and the kubelet",
    ),
    "the recheck of docker": Covered(
        holds=_part(mutants.DockerNotRechecked, SMALL),
        because="an ID that docker did not list never reappears",
        detected=_UNORDERED,
        also="the order, the second snapshot, the recheck of the kubelet",
    ),
    "the recheck of the kubelet": Covered(
        holds=_part(mutants.KubeletNotRechecked, DOCKER),
        because="a checkpoint is written before an address is reserved, and never later",
        detected=_UNORDERED,
        also="the order, the second snapshot, the recheck of docker",
    ),
    "the recheck of the kernel": Covered(
        holds=_part(mutants.KernelNotRechecked, DOCKER),
        because="an address is configured only for a sandbox that docker or a checkpoint knows",
        detected=Without(
            scenario=PARTLY, guards=("no_configured_address", "confirmed"), parts=(mutants.KernelNotRechecked,)
        ),
        also="no_configured_address, confirmed",
    ),
    "a reading of the namespaces for each release": Covered(
        holds=_part(mutants.NamespacesSharedByReleases, HANDOVER),
        because="an address with a checkpoint is not `leaked`, whatever happens to the checkpoint later",
        detected=Without(scenario=HANDOVER, guards=UNCHECKPOINTED, parts=(mutants.NamespacesSharedByReleases,)),
        also="no_checkpoint, confirmed",
    ),
    "the records in the snapshot": Covered(
        holds=_part(mutants.RecordsNotListed, CRI_SMALL),
        because="the records are rechecked",
        detected=DETECTED["the runtime's records"],
        also="the recheck of the records",
    ),
    "the recheck of the records": Covered(
        holds=_part(mutants.RecordsNotRechecked, CRI_SMALL),
        because="a record is written before an address is reserved, and never later",
        detected=DETECTED["the runtime's records"],
        also="the records in the snapshot",
    ),
    "mounted network namespaces in the snapshot": Covered(
        holds=_part(mutants.MountsNotListed, CRI_MOUNTED),
        because="they are rechecked",
        detected=DETECTED["mounted network namespaces"],
        also="the recheck of mounted network namespaces",
    ),
    "the recheck of mounted network namespaces": Covered(
        holds=_part(mutants.MountsNotRechecked, CRI_MOUNTED),
        because="a namespace loses its process only together with a record, which the snapshot has",
        detected=DETECTED["mounted network namespaces"],
        also="mounted network namespaces in the snapshot",
    ),
    "comparing the inode": Covered(
        holds=_part(mutants.ContentOnly, EMPTY),
        because="an ID never reappears, and no empty file is written while the cleaner holds the lock",
    ),
    "the room of the journal": Covered(
        holds=_part(mutants.Roomy, NEARLY_FULL),
        because="beginning an entry fails too, before one is dropped",
        detected=Without(scenario=NEARLY_FULL, parts=(mutants.Roomy, mutants.Forgetful)),
        also="keeping every entry of a day",
    ),
    "the cleaner's lock": Covered(
        holds=_part(mutants.NotExclusive, TWO_CLEANERS),
        because="two cleaners meet at host-local's lock and compare under it",
    ),
}

ALL_COVERED_GUARDS: Final = tuple(name for name in COVERED if name in {one.__name__ for one in guards.GUARDS})

"""What is taken out, and what happens then: every guard, and every part of the act."""

from dataclasses import dataclass, replace
from typing import Final

from agent.cleanup import guards
from tests.proof import bitten
from tests.proof.explorer import Scenario
from tests.proof.process import InMemory, InMemoryBook, Setup
from tests.proof.scenarios import (
    BLIND,
    BUDGETED,
    BY_NAME,
    CANDIDATE,
    CLAIMED,
    DISK,
    DOCKER,
    DUAL,
    EMPTY,
    FULL,
    LITTLE,
    LOSING,
    PARTLY,
    RETURNED,
    SETTLED,
    SILENT,
    TWO_CLEANERS,
    UNRECOGNIZED,
)

BUDGET: Final = "the budget"


@dataclass(frozen=True, kw_only=True)
class Without:
    """A process without something, on a node."""

    scenario: Scenario
    guards: tuple[str, ...] = ()
    parts: tuple[type[InMemory | InMemoryBook], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Covered:
    """Without it alone nothing happens."""

    holds: Without
    because: str
    bites: Without | None = None
    """What else must be missing for something to happen."""
    also: str = ""


def _guard(name: str, scenario: Scenario) -> Without:
    return Without(scenario=scenario, guards=(name,))


def _part(part: type[InMemory | InMemoryBook], scenario: Scenario) -> Without:
    return Without(scenario=scenario, parts=(part,))


ONE_LOOK: Final = replace(LITTLE, name="one look instead of two, beside a pod", setup=Setup(one_look=True))
_UNORDERED: Final = Without(
    scenario=ONE_LOOK, parts=(bitten.OwnersFirst, bitten.DockerAskedOnce, bitten.KubeletAskedOnce)
)

BITES: Final[dict[str, Without]] = {
    "not_halted": _guard("not_halted", RETURNED),
    "allowed_network": _guard("allowed_network", UNRECOGNIZED),
    "confirmed": _guard("confirmed", CANDIDATE),
    "inside_range": _guard("inside_range", UNRECOGNIZED),
    "whole_sandbox": _guard("whole_sandbox", BY_NAME),
    "trusted_runtime": _guard("trusted_runtime", LOSING),
    "settled": _guard("settled", SETTLED),
    "plausible_share": _guard("plausible_share", BLIND),
    BUDGET: Without(scenario=replace(BUDGETED, setup=Setup())),
    "the checkpoint as a witness": _part(bitten.KubeletNeverAsked, replace(DOCKER, at_rest=False)),
    "the kernel as a witness": _part(bitten.KernelNeverAsked, PARTLY),
    "the API server as a witness": _part(bitten.PodsUnheard, CLAIMED),
    "comparing under the lock": _part(bitten.ReadOnce, FULL),
    "host-local's lock": _part(bitten.Unlocked, EMPTY),
    "the journal before removing": _part(bitten.Unwritten, FULL),
    "settling what was left half done": _part(bitten.Unsettled, DUAL),
}

COVERED: Final[dict[str, Covered]] = {
    "sources_available": Covered(
        holds=_guard("sources_available", SILENT),
        because="what was not read makes an address `unknown`, and every veto is blind with it",
    ),
    "no_container": Covered(
        holds=_guard("no_container", LITTLE),
        because="what docker lists is no candidate at all, and docker is asked again",
    ),
    "no_checkpoint": Covered(
        holds=_guard("no_checkpoint", DOCKER),
        because="an address with a checkpoint is not `leaked`, and the directory is asked again",
        bites=Without(
            scenario=DOCKER,
            guards=("no_checkpoint", "confirmed", "no_configured_address"),
            parts=(bitten.KubeletAskedOnce,),
        ),
        also="confirmed, no_configured_address, asking the kubelet again",
    ),
    "no_configured_address": Covered(
        holds=_guard("no_configured_address", PARTLY),
        because="an address that is alive is not `leaked`, and the kernel is asked again",
        bites=Without(scenario=PARTLY, guards=("no_configured_address", "confirmed"), parts=(bitten.KernelAskedOnce,)),
        also="confirmed, asking the kernel again",
    ),
    "no_pod_claim": Covered(
        holds=_guard("no_pod_claim", CLAIMED),
        because="an address that a pod claims is not `leaked`",
        bites=Without(scenario=CLAIMED, guards=("no_pod_claim", "confirmed")),
        also="confirmed",
    ),
    "journal_writable": Covered(
        holds=_guard("journal_writable", DISK),
        because="beginning an entry fails too, before anything is removed",
    ),
    "reservations before their owners": Covered(
        holds=_part(bitten.OwnersFirst, LITTLE),
        because="the second look asks the owners after the first has read the reservations",
        bites=_UNORDERED,
        also="the second look, asking docker and the kubelet again",
    ),
    "the second look": Covered(
        holds=Without(scenario=ONE_LOOK),
        because="in the order of one look a sandbox is there before its address is reserved",
        bites=_UNORDERED,
        also="the order, asking docker and the kubelet again",
    ),
    "asking docker again": Covered(
        holds=_part(bitten.DockerAskedOnce, LITTLE),
        because="an id that docker did not list never comes back",
        bites=_UNORDERED,
        also="the order, the second look, asking the kubelet again",
    ),
    "asking the kubelet again": Covered(
        holds=_part(bitten.KubeletAskedOnce, DOCKER),
        because="a checkpoint is written before an address is reserved, and never again",
        bites=_UNORDERED,
        also="the order, the second look, asking docker again",
    ),
    "asking the kernel again": Covered(
        holds=_part(bitten.KernelAskedOnce, DOCKER),
        because="an address becomes alive only with a sandbox that docker or a checkpoint knows",
        bites=Without(scenario=PARTLY, guards=("no_configured_address", "confirmed"), parts=(bitten.KernelAskedOnce,)),
        also="no_configured_address, confirmed",
    ),
    "comparing the inode": Covered(
        holds=_part(bitten.ContentOnly, EMPTY),
        because="an id never comes back, and no empty file is filled while we hold the lock",
    ),
    "the cleaner's own lock": Covered(
        holds=_part(bitten.NeverAlone, TWO_CLEANERS),
        because="two cleaners meet at host-local's lock, and compare under it",
    ),
}

ALL_COVERED_GUARDS: Final = tuple(name for name in COVERED if name in {one.__name__ for one in guards.GUARDS})

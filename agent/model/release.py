"""What cleaning is about: the addresses that could be given back, why one is not, and what came of the rest."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from agent.model.snapshot import Reservation, Unavailable


class Reason(StrEnum):
    """Why an address is not released: the closed list of the guards. The text of each is shown to people."""

    HALTED = "halted"
    """An id that was released is there again, so cleaning cannot be trusted on this node."""
    SOURCE_UNAVAILABLE = "source_unavailable"
    """Something was not read, and anything could be in it."""
    NETWORK_NOT_ALLOWED = "network_not_allowed"
    """Its network is not one that was allowed to be cleaned."""
    CONTAINER_EXISTS = "container_exists"
    """Asked for that one id, docker has a container of it."""
    TEARDOWN_PENDING = "teardown_pending"
    """A sandbox checkpoint says that the kubelet will release it."""
    ADDRESS_IN_USE = "address_in_use"
    """A process of this node has the address configured."""
    CLAIMED_BY_POD = "claimed_by_pod"
    """A live pod has the address by the API server's word."""
    NOT_CONFIRMED = "not_confirmed"
    """Younger than the grace period, or not found the same by two looks."""
    OUTSIDE_RANGE = "outside_range"
    """Not an address that this network gives out on this node."""
    PARTIAL_SANDBOX = "partial_sandbox"
    """Its sandbox has another address that was not asked for; a sandbox is released whole."""
    RUNTIME_DOUBTFUL = "runtime_doubtful"
    """docker's list cannot be believed: it misses running pods, or has just lost most of what it had."""
    UNSETTLED = "unsettled"
    """The kubelet, docker or the node started a moment ago: the kubelet's own retries come first."""
    IMPLAUSIBLE_SHARE = "implausible_share"
    """So much of the range looks leaked that our own eyes are suspected before the node."""
    JOURNAL_UNWRITABLE = "journal_unwritable"
    """What is removed could not be written down; no journal, no release."""
    OVER_BUDGET = "over_budget"
    """Enough was released for now."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One guard's no."""

    reason: Reason
    why: str
    setting: str = ""
    """The option, with its value, that would lift it; empty where nothing should."""


class Verdict(StrEnum):
    """What came of an address."""

    RELEASED = "released"
    """The reservation was removed, and the journal can restore it."""
    WOULD_RELEASE = "would_release"
    """It passed every guard; releasing was not asked for."""
    REFUSED = "refused"
    """A guard said no, or the second look did."""
    CHANGED = "changed"
    """Under the lock the file was another than the one judged. A race lost, and nothing was touched."""
    GONE = "gone"
    """Somebody else, most likely the kubelet, had released it already."""
    BUSY = "busy"
    """A lock was held by somebody else for longer than `--lock-timeout`."""
    FAILED = "failed"
    """It could not be done; the reservation is where it was."""


MISSED = (Verdict.CHANGED, Verdict.GONE, Verdict.BUSY, Verdict.FAILED)
"""What can come of an address that every guard let pass, other than its release."""


@dataclass(frozen=True, slots=True)
class ReleaseRequest:
    """All the addresses of one sandbox that docker does not list: they are released together or not at all.

    An empty file names no sandbox: it is a candidate alone.
    """

    reservations: tuple[Reservation, ...]
    pod: str = ""

    @property
    def container_id(self) -> str:
        return self.reservations[0].container_id

    @property
    def networks(self) -> tuple[str, ...]:
        return tuple(sorted({reservation.network for reservation in self.reservations}))

    @property
    def oldest_ns(self) -> int:
        return min(reservation.mtime_ns for reservation in self.reservations)


@dataclass(frozen=True, slots=True)
class Outcome:
    candidate: ReleaseRequest
    verdict: Verdict
    refusals: tuple[Refusal, ...] = ()
    """Every guard that said no, the weightiest first."""
    why: str = ""
    """What happened, where it was not a refusal."""
    entry: str = ""
    """The journal's entry, where there is one."""
    waited: float | None = None
    """Seconds until host-local's locks were ours; None where they were not tried for."""
    held: float | None = None
    """Seconds for which they were ours."""


@dataclass(frozen=True, slots=True)
class PassedOver:
    """An address that was asked for by name, and of which there is nothing to release."""

    ip: str
    why: str
    network: str = ""
    """Empty: no network has it reserved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How bold cleaning may be."""

    networks: frozenset[str]
    grace: timedelta
    settle: timedelta
    max_share: float
    """Of the range, from 0 to 1."""
    allowances: tuple[tuple[str, int], ...] = ()
    """How many addresses may be released now, by the setting that says so."""
    only: frozenset[str] | None = None
    """The addresses that were asked for by name; None: any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaning:
    """What one round of cleaning judged and did."""

    node: str
    taken_at: datetime
    applied: bool
    """Whether releases were asked for."""
    outcomes: tuple[Outcome, ...] = ()
    passed_over: tuple[PassedOver, ...] = ()
    """What was asked for by name and is no candidate: somebody owns it, or nobody reserved it."""
    unavailable: tuple[Unavailable, ...] = ()
    halted: str = ""
    """Why cleaning has stopped itself; empty where it has not."""
    free_before: Mapping[str, int | None] = field(default_factory=dict)
    """Free addresses by network, as of the look; None where the range is not known."""
    free_after: Mapping[str, int | None] = field(default_factory=dict)
    """The same without what was, or would be, released."""
    warnings: tuple[str, ...] = ()
    """What an operator should know beside the outcomes, such as damage of the journal."""

    def tally(self) -> Counter[Verdict]:
        """Count addresses, not sandboxes, by verdict."""
        return Counter(
            outcome.verdict for outcome in self.outcomes for _ in outcome.candidate.reservations
        )  # fmt: skip

    @property
    def failed(self) -> bool:
        return any(outcome.verdict in {Verdict.BUSY, Verdict.FAILED} for outcome in self.outcomes)

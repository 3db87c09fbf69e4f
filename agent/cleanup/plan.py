"""Which commands release the most, with the fewest options, by what the guards refused. Pure.

It judges nothing itself: a request needs the options of all its refusals, and if one of them has
none, no command releases it. A probe can still refuse what no guard refuses.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from operator import itemgetter
from typing import Final, TypeAlias

from agent.model.release import Reason, Refusal, ReleaseRequest

Refused: TypeAlias = tuple[ReleaseRequest, tuple[Refusal, ...]]
"""A request with every refusal of it (`guards.Decision`)."""

_BY_NAME: Final = {Reason.OUTSIDE_RANGE, Reason.NOT_CONFIRMED, Reason.PARTIAL_SANDBOX}
"""What `--ip` lifts, where the refusal suggests an option and does not pass by itself."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one command releases."""

    requests: tuple[ReleaseRequest, ...]
    lifted: tuple[Refusal, ...] = ()
    """What its options lift: each needs a check first."""
    wait: timedelta = timedelta(0)
    """Until it can be released; zero: now."""
    waits_for: Reason | None = None
    """What passes with that time."""
    by_name: bool = False

    @property
    def count(self) -> int:
        """The number of addresses."""
        return sum(len(request.reservations) for request in self.requests)

    @property
    def networks(self) -> frozenset[str]:
        """Those that have to be allowed in addition."""
        return frozenset(network for refusal in self.lifted for network in refusal.networks)

    @property
    def any_share(self) -> bool:
        return any(refusal.reason is Reason.IMPLAUSIBLE_SHARE for refusal in self.lifted)

    @property
    def ips(self) -> tuple[str, ...]:
        """The addresses to request by name."""
        if not self.by_name:
            return ()
        return tuple(ip for request in self.requests for ip in request.ips)

    @property
    def at_once(self) -> bool:
        """Whether it needs neither a check nor a wait."""
        return not self.lifted and not self.wait


@dataclass(frozen=True, slots=True)
class Blocked:
    """What no option lifts."""

    refusal: Refusal
    requests: tuple[ReleaseRequest, ...]

    @property
    def count(self) -> int:
        """The number of addresses."""
        return sum(len(request.reservations) for request in self.requests)


@dataclass(frozen=True, slots=True)
class Plan:
    """The commands in the order in which to run them, and what none of them releases."""

    batches: tuple[Batch, ...] = ()
    blocked: tuple[Blocked, ...] = ()

    @property
    def count(self) -> int:
        """The number of addresses that commands release."""
        return sum(batch.count for batch in self.batches)


def make_plan(decisions: Iterable[Refused]) -> Plan:
    """Return a command for what needs no option, one for options, and one for names.

    So a user who cannot make a check still releases what needs none. What has to wait is apart.
    """
    blocked: dict[Reason, tuple[Refusal, list[ReleaseRequest]]] = {}
    batches: dict[tuple[bool, bool, bool], list[Refused]] = {}
    for request, refusals in decisions:
        final = next((refusal for refusal in refusals if not _passes(refusal)), None)
        if final:
            _, requests = blocked.setdefault(final.reason, (final, []))
            requests.append(request)
            continue

        lifted = [refusal for refusal in refusals if refusal.wait is None]
        by_name = any(refusal.reason in _BY_NAME for refusal in lifted)
        waits = len(lifted) < len(refusals)
        batches.setdefault((waits, by_name, bool(lifted)), []).append((request, refusals))

    in_order = sorted(batches.items(), key=itemgetter(0))
    return Plan(
        batches=tuple(_batch(refused, by_name=by_name) for (_, by_name, _), refused in in_order),
        blocked=tuple(Blocked(refusal, tuple(requests)) for refusal, requests in blocked.values()),
    )


def _passes(refusal: Refusal) -> bool:
    """Return whether it passes with time, or whether an option that may be advised lifts it."""
    if refusal.wait is not None:
        return True
    liftable = {Reason.NETWORK_NOT_ALLOWED, Reason.IMPLAUSIBLE_SHARE, *_BY_NAME}
    return bool(refusal.setting) and refusal.reason in liftable


def _batch(refused: Sequence[Refused], *, by_name: bool) -> Batch:
    """Return what one command releases, once the longest wait of its refusals is over."""
    refusals = [refusal for _, each in refused for refusal in each]
    lifted = dict.fromkeys(refusal for refusal in refusals if refusal.wait is None)
    waits = {refusal.wait: refusal.reason for refusal in refusals if refusal.wait is not None}
    wait = max(waits, default=timedelta(0))
    return Batch(
        requests=tuple(request for request, _ in refused),
        lifted=tuple(lifted),
        wait=wait,
        waits_for=waits.get(wait),
        by_name=by_name,
    )

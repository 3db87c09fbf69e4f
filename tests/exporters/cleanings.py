"""Results of cleanups, for the tests of outputs."""

from typing import Any

from agent.model.release import Cleaning, Outcome, Reason, Refusal, ReleaseRequest, Verdict
from agent.model.snapshot import Reservation
from tests.builders import GONE, NOW, reservation

LOST = reservation("10.244.1.9")
ENTRY = "20260326T200000.000000Z-999999999999"
BUDGET = Refusal(Reason.OVER_BUDGET, "--max allows 3 addresses now; ready to release: 4", "--max=4")
CANDIDATE = Refusal(Reason.NOT_CONFIRMED, "30 s old, and --grace is 300 s", "--grace=0s")
UNMANAGED = Refusal(Reason.ADDRESS_IN_USE, "process 7 (nginx) has 10.244.1.9 configured")


def outcome(
    verdict: Verdict, *reservations: Reservation, why: str = "", entry: str = "", **more: Any
) -> Outcome:
    return Outcome(
        ReleaseRequest(reservations or (LOST,), "shop/cart"), verdict, why=why, entry=entry, **more
    )


def refused(*refusals: Refusal, of: tuple[Reservation, ...] = (LOST,)) -> Outcome:
    return Outcome(ReleaseRequest(of), Verdict.REFUSED, refusals)


def released(
    *reservations: Reservation, why: str = "", waited: float = 0.003, held: float = 0.0007
) -> Outcome:
    return outcome(Verdict.RELEASED, *reservations, why=why, entry=ENTRY, waited=waited, held=held)


def many(count: int) -> tuple[Reservation, ...]:
    """Return as many reservations, each of a sandbox of its own."""
    return tuple(reservation(f"10.244.1.{20 + n}", f"{n:064x}") for n in range(count))


def cleaning(*outcomes: Outcome, dry_run: bool = False, **more: Any) -> Cleaning:
    about = {"free_before": {"kubenet": 0}, "free_after": {"kubenet": 7}, **more}
    return Cleaning(node="worker-1", taken_at=NOW, dry_run=dry_run, outcomes=outcomes, **about)


DUAL = (reservation("10.244.1.9"), reservation("fd00::9", GONE))  # The two addresses of one sandbox

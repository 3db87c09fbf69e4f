"""Leaks, and the objections to their release."""

from datetime import timedelta
from typing import Any

from agent.cleanup.guards import Allowance, GuardContext
from agent.model.release import Limits, Reason, Refusal
from agent.model.snapshot import Node, Reservation, Snapshot
from tests.builders import guard_context, make_limits, reservation, verdicts

SECOND = timedelta(seconds=1)
THE_ID, THE_IP = "9" * 64, "10.244.1.9"
LEAK = reservation(THE_IP)
LEAK6 = reservation("fd00::9")
DUAL: dict[str, Any] = {"node": [Node("worker-1", ("10.244.1.0/24", "fd00::/64"), 110)]}


def refusals(*snapshots: Snapshot, limits: Limits | None = None, **known: Any) -> tuple[Refusal, ...]:
    """Return the objections to the only request of a node."""
    (decided,) = verdicts(guard_context(*snapshots, limits=limits, **known)).values()
    return decided


def reasons(*snapshots: Snapshot, limits: Limits | None = None, **known: Any) -> list[Reason]:
    return [refusal.reason for refusal in refusals(*snapshots, limits=limits, **known)]


def only(*ips: str, **changes: Any) -> Limits:
    return make_limits(only=frozenset(ips), **changes)


def leaks(count: int, age: timedelta = timedelta(hours=2)) -> list[Reservation]:
    """Return leaks of different sandboxes, the first the oldest."""
    return [reservation(f"10.244.1.{10 + n}", f"{n:064x}", age=age - n * SECOND) for n in range(1, count + 1)]


def passed(context: GuardContext) -> list[str]:
    return [addresses for addresses, refusal in verdicts(context).items() if not refusal]


BUDGETS: dict[str, tuple[tuple[Allowance, ...], str]] = {
    "clean": ((Allowance("--max", 2),), "--max=3"),
    "run, a sync": ((Allowance("--max-per-sync", 2), Allowance("--max-per-hour", 9)), "--max-per-sync=3"),
    "run, an hour": ((Allowance("--max-per-sync", 10), Allowance("--max-per-hour", 2, 58)), "--max-per-hour=61"),
    "run, both": (
        (Allowance("--max-per-sync", 2), Allowance("--max-per-hour", -3, 63)),
        "--max-per-sync=3 --max-per-hour=66",
    ),
}
"""The allowances of each command, and the settings that would admit three addresses."""

"""Leaks of the node of `tests.builders`."""

from datetime import timedelta
from typing import Any

from agent.model.snapshot import Node, Reservation
from tests.builders import OLD, reservation

SECOND = timedelta(seconds=1)
THE_ID, THE_IP = "9" * 64, "10.244.1.9"
LEAK = reservation(THE_IP)
LEAK6 = reservation("fd00::9")
DUAL: dict[str, Any] = {"node": [Node("worker-1", ("10.244.1.0/24", "fd00::/64"), 110)]}
"""What a node needs to have both of them."""


def leaks(count: int, age: timedelta = OLD) -> list[Reservation]:
    """Return leaks of different sandboxes, the first the oldest."""
    return [
        reservation(f"10.244.1.{10 + n}", f"{n:04x}" * 16, age=age - n * SECOND)
        for n in range(1, count + 1)
    ]

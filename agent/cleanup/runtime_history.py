"""What earlier snapshots said of the container runtime. Pure.

A list that lost most of its containers stays suspect for a while.
"""

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from agent.checks import runtime as runtimes
from agent.model.snapshot import Known, Snapshot

MOST: Final = 2
"""More than one in this many is most."""

FEWEST_CONTAINERS: Final = 4
"""To lose most of fewer containers than this is normal."""


@dataclass(frozen=True, slots=True)
class RuntimeHistory:
    running: int | None = None
    """How many containers ran. Stopped ones do not count: on a full range each try to start a pod leaves another."""
    runtime_start: timedelta | None = None
    """After boot."""
    suspect_since: timedelta | None = None
    """The uptime at which the runtime was last seen to have restarted, or to have lost most of its containers."""
    why: str = ""


def watch(history: RuntimeHistory, snapshot: Snapshot) -> RuntimeHistory:
    """Add a snapshot. Data that is unavailable changes nothing."""
    running, started = _running(snapshot), _runtime_start(snapshot)
    updated = replace(
        history,
        running=history.running if running is None else running,
        runtime_start=history.runtime_start if started is None else started,
    )
    why = _lost(history, updated, runtimes.name_of(snapshot))
    return replace(updated, suspect_since=snapshot.uptime, why=why) if why else updated


def _lost(before: RuntimeHistory, now: RuntimeHistory, runtime: str) -> str:
    """Return how the runtime lost containers between two snapshots; empty if it did not."""
    if before.runtime_start is not None and now.runtime_start != before.runtime_start:
        return f"{runtime} restarted between two snapshots"
    had, has = before.running or 0, now.running or 0
    if had >= FEWEST_CONTAINERS and has * MOST < had:
        return f"{runtime} listed {had} running containers, then {has} in the next snapshot"
    return ""


def _running(snapshot: Snapshot) -> int | None:
    if not isinstance(snapshot.containers, Known):
        return None
    return sum(container.running for container in snapshot.containers.value)


def _runtime_start(snapshot: Snapshot) -> timedelta | None:
    if not isinstance(snapshot.processes, Known):
        return None
    processes = snapshot.processes.value
    started = processes.start_of(runtimes.name_of(snapshot))
    return None if started is None else started - processes.booted

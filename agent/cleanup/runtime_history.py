"""What earlier snapshots said of docker. A list that lost most of its containers stays suspect for a while. Pure."""

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from agent.model.snapshot import Known, Snapshot

MOST: Final = 2
"""More than one in this many is most."""

FEWEST_CONTAINERS: Final = 4
"""To lose most of fewer containers than this is normal."""


@dataclass(frozen=True, slots=True)
class RuntimeHistory:
    running: int | None = None
    """How many containers ran. Stopped ones do not count: on a full range each try to start a pod leaves another."""
    docker_start: timedelta | None = None
    """After boot."""
    suspect_since: timedelta | None = None
    """The uptime at which docker was last seen to have restarted, or to have lost most of its containers."""
    why: str = ""


def watch(history: RuntimeHistory, snapshot: Snapshot) -> RuntimeHistory:
    """Add a snapshot. Data that is unavailable changes nothing."""
    running, started = _running(snapshot), _docker_start(snapshot)
    updated = replace(
        history,
        running=history.running if running is None else running,
        docker_start=history.docker_start if started is None else started,
    )
    why = _lost(history, updated)
    return replace(updated, suspect_since=snapshot.uptime, why=why) if why else updated


def _lost(before: RuntimeHistory, now: RuntimeHistory) -> str:
    """Return how docker lost containers between two snapshots; empty if it did not."""
    if before.docker_start is not None and now.docker_start != before.docker_start:
        return "docker restarted between two snapshots"
    had, has = before.running or 0, now.running or 0
    if had >= FEWEST_CONTAINERS and has * MOST < had:
        return f"docker listed {had} running containers, then {has} in the next snapshot"
    return ""


def _running(snapshot: Snapshot) -> int | None:
    if not isinstance(snapshot.containers, Known):
        return None
    return sum(container.running for container in snapshot.containers.value)


def _docker_start(snapshot: Snapshot) -> timedelta | None:
    if not isinstance(snapshot.processes, Known):
        return None
    processes = snapshot.processes.value
    return None if processes.docker is None else processes.docker - processes.booted

"""What is remembered of docker from look to look, so that a list is doubtful for a while and not for one look. Pure."""

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from agent.model.snapshot import Known, Snapshot

MOST: Final = 2
"""More than one in this many is most."""

FEWEST_CONTAINERS: Final = 4
"""Losing most of less than this many containers is everyday life."""


@dataclass(frozen=True, slots=True)
class RuntimeHistory:
    """What the looks so far leave to the next."""

    running: int | None = None
    """How many containers ran. Others come and go: on a full range each try to start a pod leaves a stopped sandbox."""
    docker_start: timedelta | None = None
    """After boot."""
    doubted: timedelta | None = None
    """The boot clock when docker was last seen to restart, or to lose most of its containers."""
    why: str = ""


def watch(runtime_history: RuntimeHistory, snapshot: Snapshot) -> RuntimeHistory:
    """Remember this look, and whether docker lost its memory before it. What was not read changes nothing."""
    running, started = _running(snapshot), _docker_start(snapshot)
    watched = replace(
        runtime_history,
        running=runtime_history.running if running is None else running,
        docker_start=runtime_history.docker_start if started is None else started,
    )
    why = _lost(runtime_history, watched)
    return replace(watched, doubted=snapshot.uptime, why=why) if why else watched


def _lost(before: RuntimeHistory, now: RuntimeHistory) -> str:
    """Say how docker lost its memory between two looks; empty where it did not."""
    if before.docker_start is not None and now.docker_start != before.docker_start:
        return "docker restarted between two looks"
    had, has = before.running or 0, now.running or 0
    if had >= FEWEST_CONTAINERS and has * MOST < had:
        return f"docker listed {had} running containers, and in the next look {has}"
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

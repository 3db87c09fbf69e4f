"""Pods that should have been gone, and that an Event says cannot be removed, by what stops them.

Such a pod may have no address of host-local: other networks fail in DEL too. Pure.
"""

from collections.abc import Collection
from typing import NamedTuple

from agent.checks.waiting_pods import is_recent, overdue_pods, pods_to_list
from agent.model.snapshot import EARLIEST, FAILED_KILL, Pod, SandboxFailure, Snapshot, known_or


class FailedKills(NamedTuple):
    """Pods that cannot be removed for the same reason."""

    failure: SandboxFailure
    """The last Event of the pod that is overdue longest."""
    pods: tuple[Pod, ...]  # those first that are overdue longest


def failed_kills(snapshot: Snapshot, reported: Collection[str]) -> list[FailedKills]:
    """Return the pods that cannot be removed, by the reason. `reported`: without these."""
    failures = _recent_failures(snapshot)
    by_reason: dict[tuple[str, ...], list[Pod]] = {}
    for pod in removable(snapshot, reported):
        if failure := failures.get(pod.name):
            reason = failure.plugin, failure.network, failure.entry or failure.kind
            by_reason.setdefault(reason, []).append(pod)
    return [FailedKills(failures[pods[0].name], tuple(pods)) for pods in by_reason.values()]


def unlisted(snapshot: Snapshot, reported: Collection[str]) -> int:
    """Return how many pods should have been gone, of which no Events were listed."""
    listed = {pod.uid for pod in pods_to_list(snapshot)}
    return sum(
        pod.uid not in listed and not pod.finalizers for pod in removable(snapshot, reported)
    )


def removable(snapshot: Snapshot, reported: Collection[str]) -> list[Pod]:
    """Return the pods that the kubelet should have removed, without those of `reported`.

    It runs a static pod on while the API server deletes its mirror.
    """
    return [pod for pod in overdue_pods(snapshot) if not pod.static and pod.name not in reported]


def _recent_failures(snapshot: Snapshot) -> dict[str, SandboxFailure]:
    """Return the last Event of each pod by which the kubelet still fails to remove it."""
    recent = [
        failure
        for failure in known_or(snapshot.sandbox_failures, ())
        if failure.reason == FAILED_KILL and is_recent(failure, snapshot)
    ]
    recent.sort(key=lambda failure: failure.at or EARLIEST)
    return {failure.pod: failure for failure in recent}

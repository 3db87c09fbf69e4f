"""Pods that wait for their sandbox, and with it for their addresses. Pure.

`Pod.scheduled` is by the API server's clock, so it is compared with `Snapshot.api_time`: the node's
clock may be set differently.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from agent.model.ranges import RangeSets, covers
from agent.model.snapshot import Pod, SandboxFailure, Snapshot, known_or

WAITS_AFTER: Final = timedelta(minutes=1)
"""A pod gets its sandbox and its address within seconds, unless something is wrong."""
_EVENT_AGE: Final = timedelta(minutes=6)
"""The kubelet retries in seconds. After 25 Events of an object it sends one every 5 minutes."""


def waiting_pods(snapshot: Snapshot) -> list[Pod]:
    """Return the pods that were scheduled a minute ago or more and have no address, longest first.

    Nothing where the pods are not known: who concludes that none waits asks for them first.
    """
    waiting = [
        (pod.scheduled, pod.uid, pod)
        for pod in _without_address(snapshot)
        if pod.scheduled and not pod.deleting and _is_late(pod, snapshot)
    ]
    return [pod for _, _, pod in sorted(waiting, key=lambda entry: entry[:2])]


def may_wait(snapshot: Snapshot) -> bool:
    """Return whether a pod waits, or may wait.

    It may if it is unknown when it was scheduled. So may a pod that is being deleted: an ADD that
    began before may still run, and what it fails in leaves its reservations.
    """
    return any(_is_late(pod, snapshot) for pod in _without_address(snapshot))


def _is_late(pod: Pod, snapshot: Snapshot) -> bool:
    return pod.scheduled is None or snapshot.api_time - pod.scheduled >= WAITS_AFTER


def _without_address(snapshot: Snapshot) -> list[Pod]:
    pods = known_or(snapshot.pods, ())
    return [pod for pod in pods if pod.networked and not pod.ips]


def recent_exhaustion(snapshot: Snapshot) -> Iterator[SandboxFailure]:
    """Yield the recent Events by which host-local has no free address, the last one first."""
    for failure in reversed(known_or(snapshot.sandbox_failures, ())):
        recent = failure.at is not None and snapshot.api_time - failure.at <= _EVENT_AGE
        if failure.exhausted and recent:
            yield failure


def is_about(failure: SandboxFailure, ranges: RangeSets) -> bool:
    """Return whether the range set without a free address is one of these."""
    try:
        return covers(ranges, failure.exhausted.partition("-")[0])
    except ValueError:
        return False

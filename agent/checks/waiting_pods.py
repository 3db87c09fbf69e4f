"""Pods that wait for their sandbox, and with it for their addresses. Pure.

A waiting pod has no address according to the API server. An unstarted pod waits, and the runtime
has no sandbox with a network for it. An overdue pod should have been gone.

`Pod.scheduled` is by the API server's clock, so it is compared with `Snapshot.api_time`: the node's
clock may be set differently.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Final, NamedTuple

from agent.model.assessment import LONGEST_ADD
from agent.model.index import SnapshotIndex
from agent.model.ranges import RangeSets, covers
from agent.model.runtime import DOCKER
from agent.model.snapshot import Pod, SandboxFailure, Snapshot, known_or

WAITS_AFTER: Final = timedelta(minutes=1)
"""A pod gets its sandbox and its address, or ends, within seconds, unless something is wrong."""
_EVENT_AGE: Final = timedelta(minutes=6)
"""The kubelet retries in seconds. After 25 Events of an object it sends one every 5 minutes."""
_DOCKER_SETUP: Final = timedelta(seconds=30)
"""docker runs a sandbox before it has a network of its own. A setup that works takes seconds."""
MAX_LISTED: Final = 4
"""Pods whose Events are listed, once a minute. Most pods of a node fail for the same reason."""


class Wait(NamedTuple):
    pod: Pod
    time: timedelta
    """How long at least it has had no network."""


def waiting_pods(snapshot: Snapshot) -> list[Pod]:
    """Return the pods that were scheduled a minute ago or more and have no address, longest first.

    Nothing where the pods are not known: who concludes that none waits asks for them first.
    """
    return _by_time(
        (pod.scheduled, pod)
        for pod in _without_address(snapshot)
        if pod.scheduled and not pod.deleting and _is_late(pod, snapshot)
    )


def waiting_host_pods(snapshot: Snapshot) -> list[Pod]:
    """Return the pods in the node's network that were scheduled a minute ago or more, and wait.

    The kubelet reports the node's address for them at once. They need no plugin, and no address.
    """
    return [
        pod
        for pod in known_or(snapshot.pods, ())
        if pod.host_network and pod.phase == "Pending" and pod.scheduled and not pod.deleting
        if _is_late(pod, snapshot)
    ]


def _by_time(dated: Iterable[tuple[datetime, Pod]]) -> list[Pod]:
    """Return pods in the order of their times."""
    return [pod for _, pod in sorted(dated, key=lambda entry: (entry[0], entry[1].uid))]


def may_wait(snapshot: Snapshot) -> bool:
    """Return whether a pod waits, or may wait.

    It may if it is unknown when it was scheduled. So may a pod that is being deleted: an ADD that
    began before may still run, and what it fails in leaves its reservations.
    """
    return any(_is_late(pod, snapshot) for pod in _without_address(snapshot))


def _without_address(snapshot: Snapshot) -> list[Pod]:
    """Return the live pods on the pod network that the API server has no address of."""
    pods = known_or(snapshot.pods, ())
    return [pod for pod in pods if pod.networked and not pod.ips]


def _is_late(pod: Pod, snapshot: Snapshot) -> bool:
    """Return whether a pod was scheduled a minute ago or more, or may have been."""
    return pod.scheduled is None or snapshot.api_time - pod.scheduled >= WAITS_AFTER


def unstarted_pods(snapshot: Snapshot) -> list[Wait]:
    """Return the pods that have had no sandbox with a network for a minute, longest first.

    Those in the node's network are among them: they have had no sandbox.
    A pod with a running sandbox has its network: the kubelet reports its address only when its
    first images are pulled. Nothing where the pods are not known.
    """
    index = SnapshotIndex(snapshot)
    waits = []
    for pod in (*waiting_pods(snapshot), *waiting_host_pods(snapshot)):
        time = _waiting_time(pod, snapshot)
        if time >= WAITS_AFTER and not (
            _has_network(pod, index) or _has_just_ended(pod, index, time)
        ):
            waits.append(Wait(pod, time))
    return sorted(waits, key=lambda wait: (-wait.time, wait.pod.name, wait.pod.uid))


def _waiting_time(pod: Pod, snapshot: Snapshot) -> timedelta:
    """Return how long a pod has waited: since it was scheduled or unready, or since the boot."""
    times = [at for at in (pod.scheduled, pod.unready) if at]
    ages = [snapshot.api_time - at for at in times]
    if processes := known_or(snapshot.processes, None):
        ages.append(snapshot.taken_at - processes.booted)
    return min(ages)


def _has_network(pod: Pod, index: SnapshotIndex) -> bool:
    """Return whether the pod has a sandbox whose network is certainly set up."""
    has_docker = any(runtime.name == DOCKER for runtime in known_or(index.snapshot.runtimes, ()))
    now = index.snapshot.taken_at.timestamp()

    for sandbox in index.running_sandboxes.values():
        is_new = has_docker and now - sandbox.created < _DOCKER_SETUP.total_seconds()
        if sandbox.pod_uid == pod.uid and (pod.host_network or not is_new):
            return True
    return False


def _has_just_ended(pod: Pod, index: SnapshotIndex, time: timedelta) -> bool:
    """Return whether all containers of a pod have just ended, as those of a Job do."""
    return index.ended.get(pod.uid, False) and not pod.waiting and time < LONGEST_ADD


def overdue_pods(snapshot: Snapshot) -> list[Pod]:
    """Return the pods that should have been gone for a minute or more, longest first."""
    return _by_time(
        (pod.deletion, pod)
        for pod in known_or(snapshot.pods, ())
        if pod.deletion and snapshot.api_time - pod.deletion >= WAITS_AFTER
    )


def pods_to_list(snapshot: Snapshot) -> list[Pod]:
    """Return the pods whose Events are listed: of each controller first the longest wait.

    One place at least is for a pod that should have been gone.
    """
    unstarted = _by_turns(wait.pod for wait in unstarted_pods(snapshot))
    overdue = _by_turns(overdue_pods(snapshot))
    listed_overdue = overdue[: max(1, MAX_LISTED - len(unstarted))]
    return [*unstarted[: MAX_LISTED - len(listed_overdue)], *listed_overdue]


def _by_turns(pods: Iterable[Pod]) -> list[Pod]:
    """Return the first pod of each controller, then the second of each, and so on."""
    turns: Counter[str] = Counter()
    with_turn = []
    for pod in pods:
        owner = pod.controller or pod.uid
        with_turn.append((turns[owner], pod))
        turns[owner] += 1
    return [pod for _, pod in sorted(with_turn, key=itemgetter(0))]


def recent_exhaustion(snapshot: Snapshot) -> Iterator[SandboxFailure]:
    """Yield the recent Events that say that host-local has no free address, the last one first."""
    for failure in reversed(known_or(snapshot.sandbox_failures, ())):
        if failure.exhausted and is_recent(failure, snapshot):
            yield failure


def is_recent(failure: SandboxFailure, snapshot: Snapshot) -> bool:
    """Return whether an Event is so recent that the kubelet would say the same now."""
    return failure.at is not None and snapshot.api_time - failure.at <= _EVENT_AGE


def are_exhausted(ranges: RangeSets, failure: SandboxFailure) -> bool:
    """Return whether an Event says that one of the range sets has no free address."""
    try:
        return covers(ranges, failure.exhausted.partition("-")[0])
    except ValueError:
        return False

"""Waiting pods by what stops them: one group for each cause. Pure."""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from agent.checks.waiting_pods import Wait, is_recent, pods_to_list, unstarted_pods
from agent.model.finding import WaitCause
from agent.model.snapshot import (
    CREATION_REASONS,
    FAILED_KILL,
    NETWORK_NOT_READY,
    VOLUME_REASONS,
    Known,
    NotRequested,
    Pod,
    SandboxFailure,
    Snapshot,
    Unavailable,
    known_or,
)

NO_CONFIGURATION: Final = frozenset({
    "client_no_configuration", "containerd_no_network", "crio_no_config", "crio_starting",
    "docker_no_config", "network_not_ready",
})  # fmt: skip
"""The entries of the catalog by which the runtime has no network at all."""
RANGE_FULL: Final = "range_full"
"""The entry by which host-local has no free address."""
NO_ADDRESS: Final = frozenset({RANGE_FULL, "requested_address_taken"})
_WITHOUT_EVENT: Final = "no Event"
_WITH_VOLUMES: Final = "no Event, and volumes"
_ON_HOST: Final = "in the node's network"
_NO_SANDBOX_FAILED: Final = frozenset({_WITHOUT_EVENT, _WITH_VOLUMES, *VOLUME_REASONS})
_AFTER_VOLUMES: Final = CREATION_REASONS.index(VOLUME_REASONS[0])
_OBSTACLES: Final = (
    *CREATION_REASONS[:_AFTER_VOLUMES],
    FAILED_KILL,
    *CREATION_REASONS[_AFTER_VOLUMES:],
)
"""The kubelet removes the earlier sandbox of a pod when its volumes are mounted."""
_RANK: Final = {reason: rank for rank, reason in enumerate(_OBSTACLES)}


class Group(NamedTuple):
    """Pods that wait for the same reason."""

    cause: WaitCause
    failure: SandboxFailure | None
    """Their last Event. None: none is known."""
    waits: tuple[Wait, ...]  # longest first
    needs_volumes: bool = False
    """Whether no Event says why, and each pod needs volumes.

    The kubelet makes no sandbox before these are mounted. From 1.28 on it sends no Event when that
    takes too long.
    """
    unlisted: int = 0
    """Of how many the Events were not listed. If there is an Event, it is assumed for them."""

    @property
    def on_host(self) -> bool:
        """Whether all are in the node's network: no plugin, range or network stops them."""
        return all(wait.pod.host_network for wait in self.waits)


def groups(snapshot: Snapshot) -> list[Group]:
    """Return the groups of pods that wait, the one first that has waited longest."""
    failures = _last_failures(snapshot)
    # Without the runtime's list, a pod may have its sandbox and pull its image.
    has_list = isinstance(snapshot.containers, Known)
    waits = [wait for wait in unstarted_pods(snapshot) if has_list or wait.pod.name in failures]
    # Where no Events are known, nobody's are missing among them.
    pods = [wait.pod for wait in waits] if events_unread(snapshot) else pods_to_list(snapshot)
    listed = {pod.uid for pod in pods}

    found = []
    for key, members in _by_key(waits, failures, listed).items():
        failure = failures.get(members[0].pod.name)
        needs_volumes = key[0] == _WITH_VOLUMES
        on_host = key[-1] == _ON_HOST
        cause = _cause(failure, snapshot, needs_volumes=needs_volumes, on_host=on_host)
        waits = sorted(members, key=lambda wait: -wait.time)
        unlisted = sum(_is_unlisted(wait.pod, failures, listed) for wait in members)
        group = Group(cause, failure, tuple(waits), needs_volumes=needs_volumes, unlisted=unlisted)
        found.append(group)

    return sorted(found, key=lambda group: -group.waits[0].time)


def _by_key(
    waits: Iterable[Wait], failures: Mapping[str, SandboxFailure], listed: Collection[str]
) -> dict[tuple[str, ...], list[Wait]]:
    """Group pods by what stops them. If there is one cause, it is assumed for unlisted ones."""
    by_key: dict[tuple[str, ...], list[Wait]] = {}
    unlisted = []
    for wait in waits:
        if _is_unlisted(wait.pod, failures, listed):
            unlisted.append(wait)
        else:
            by_key.setdefault(_key(wait, failures.get(wait.pod.name)), []).append(wait)

    of_sandboxes = [key for key in by_key if key[0] not in _NO_SANDBOX_FAILED]
    assumed = of_sandboxes[0] if len(of_sandboxes) == 1 else None
    # What stops pods with a network of their own may be that network.
    stops_hosts = assumed and any(wait.pod.host_network for wait in by_key[assumed])

    for wait in unlisted:
        is_other = wait.pod.host_network and not stops_hosts
        key = _key(wait, None) if assumed is None or is_other else assumed
        by_key.setdefault(key, []).append(wait)
    return by_key


def _is_unlisted(pod: Pod, failures: Mapping[str, SandboxFailure], listed: Collection[str]) -> bool:
    """Whether it has no Event because its Events were not listed."""
    return pod.name not in failures and pod.uid not in listed


def unattached_volumes(snapshot: Snapshot) -> int:
    """Return how many volumes the kubelet needs, and the controller has not attached."""
    node = known_or(snapshot.node, None)
    if node is None or not node.controller_attach:
        return 0
    return len(set(node.volumes_in_use) - set(node.volumes_attached))


def events_unread(snapshot: Snapshot) -> str:
    """Return why the Events of waiting pods are not known; empty: they are."""
    match snapshot.sandbox_failures:
        case NotRequested(_, why) | Unavailable(_, why):
            return why
        case _:
            return ""


def _last_failures(snapshot: Snapshot) -> Mapping[str, SandboxFailure]:
    """Return for each pod the Event that says why it has no sandbox.

    Of several that are recent, it is the one about the latest step of the kubelet. A teardown that
    failed is over once the runtime has no sandbox of the pod.
    """
    containers = known_or(snapshot.containers, None)
    kept = {container.pod for container in containers or () if container.sandbox}

    last: dict[str, SandboxFailure] = {}
    for failure in known_or(snapshot.sandbox_failures, ()):
        is_over = (
            failure.reason == FAILED_KILL and containers is not None and failure.pod not in kept
        )
        if failure.reason in _RANK and not is_over:
            earlier = last.get(failure.pod)
            if earlier is None or _precedes(failure, earlier, snapshot):
                last[failure.pod] = failure
    return last


def _precedes(failure: SandboxFailure, other: SandboxFailure, snapshot: Snapshot) -> bool:
    """Whether a failure tells more of what stops its pod now than another one does."""
    if failure.at is None or other.at is None:
        return failure.at is not None
    are_recent = is_recent(failure, snapshot) and is_recent(other, snapshot)
    if failure.reason != other.reason and are_recent:
        return _RANK[failure.reason] < _RANK[other.reason]
    return failure.at >= other.at


def _key(wait: Wait, failure: SandboxFailure | None) -> tuple[str, ...]:
    """Return what is equal for pods that the same cause stops.

    Without an Event, its last part is `_ON_HOST` for pods in the node's network.
    """
    if failure is None:
        reason = _WITH_VOLUMES if wait.pod.claims or wait.pod.volumes else _WITHOUT_EVENT
        return (reason, _ON_HOST) if wait.pod.host_network else (reason,)

    words = failure.exhausted or failure.requested_ip or failure.entry or failure.kind
    return failure.reason, failure.network, failure.plugin, words


def _cause(
    failure: SandboxFailure | None, snapshot: Snapshot, *, needs_volumes: bool, on_host: bool
) -> WaitCause:
    """Return what stops pods. `failure`: their last Event; None: none says it."""
    if failure is None:
        if snapshot.network_ready is False and not on_host:
            return WaitCause.NETWORK_NOT_READY
        is_late = needs_volumes and unattached_volumes(snapshot)
        return WaitCause.VOLUME_PENDING if is_late else WaitCause.UNEXPLAINED

    if failure.reason in VOLUME_REASONS:
        return WaitCause.VOLUME_PENDING
    if failure.reason == NETWORK_NOT_READY or failure.entry in NO_CONFIGURATION:
        return WaitCause.NETWORK_NOT_READY
    if failure.entry in NO_ADDRESS:
        return WaitCause.NO_ADDRESS
    if failure.plugin or failure.reason == "NoNetworkFound":
        return WaitCause.PLUGIN_FAILED
    return WaitCause.SANDBOX_FAILED

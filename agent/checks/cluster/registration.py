"""What is remembered of a Node from snapshot to snapshot, and what its registration shows. Pure."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from agent.model.registration import (
    TO_BE_DELETED,
    UNINITIALIZED,
    LastSeen,
    Registration,
    Removal,
    Taint,
)
from agent.model.snapshot import Node, Pod
from agent.model.text import format_time

DRAINED_WITHIN: Final = timedelta(days=1)
"""A node that was not in use for longer is a spare, or a control plane that is always cordoned."""
_PODS_LEFT_FOR: Final = timedelta(seconds=40)
"""How long the API server keeps the pods of a deleted Node."""

Pods = tuple[Pod, ...]


class Deadlines(NamedTuple):
    """When the autoscaler deletes an instance that it counts as unregistered, by its age."""

    provision: timedelta
    """Its `--max-node-provision-time`."""

    @property
    def warning(self) -> timedelta:
        """By then a cloud controller, which needs seconds, has set the provider ID."""
        return self.provision / 5

    @property
    def critical(self) -> timedelta:
        """By then half of the time for a repair is over."""
        return self.provision / 2

    @property
    def acted(self) -> timedelta:
        """By then the cloud's controllers and the autoscaler have acted, if at all."""
        return max(timedelta(hours=1), 4 * self.provision)

    def concern(self, age: timedelta) -> bool:
        """Return whether the autoscaler may delete an instance of that age soon."""
        return self.warning <= age < self.acted


def advance(before: LastSeen | None, node: Node, pods: Pods | None, now: datetime) -> LastSeen:
    """Return what to remember of a Node as it is now.

    `before`: what was remembered until now, of any node. `pods`: None if they are unavailable.
    """
    is_same = before is not None and (before.name, before.uid) == (node.name, node.uid)
    seen = LastSeen(node.name, node.uid, node.provider_id, now)
    seen = _with_removal(seen, before if is_same else None, node, pods)

    if before is None or before.name != node.name:
        return seen
    if node.provider_id == before.provider_id:
        return replace(seen, earlier_id=before.earlier_id, changed=before.changed)

    earlier_id = before.provider_id or before.earlier_id
    if earlier_id is None or earlier_id == node.provider_id:
        return seen
    return replace(seen, earlier_id=earlier_id, changed=now)


def advance_without_node(
    before: LastSeen, latest: Node | None, pods: Pods | None, now: datetime
) -> LastSeen:
    """Return what to remember once the API server has no such Node.

    `latest`: the Node as the API server last sent it, also between two snapshots.
    """
    last = before
    if latest is not None and latest.uid == before.uid:
        still_listed = timedelta(0) <= now - before.at < _PODS_LEFT_FOR
        last = _with_removal(before, before, latest, pods if still_listed else None)
    return replace(last, gone=now)


def _with_removal(
    seen: LastSeen, before: LastSeen | None, node: Node, pods: Pods | None
) -> LastSeen:
    """Add how far the removal of a Node has come. `before`: the same Node in the last snapshot."""
    in_use = not node.unschedulable or any(map(_will_be_evicted, pods or ()))
    removal = Removal.NONE
    if any(taint.key == TO_BE_DELETED for taint in node.taints):
        removal = Removal.SCALE_DOWN
    elif node.unschedulable:
        removal = Removal.CORDONED if in_use or pods is None else Removal.DRAINED

    last_used = None
    if before is not None:
        last_used = before.at if before.removal is Removal.NONE else before.in_use

    was_drained = before is not None and before.removal is Removal.DRAINED
    if was_drained and removal is Removal.CORDONED:
        removal = Removal.DRAINED  # the pods that tolerate a cordon may return
    elif in_use:
        last_used = seen.at

    if removal is Removal.DRAINED and not _drain_was_seen(last_used, seen.at):
        removal = Removal.CORDONED
    return replace(seen, removal=removal, in_use=None if removal is Removal.NONE else last_used)


def _drain_was_seen(last_used: datetime | None, now: datetime) -> bool:
    return last_used is not None and timedelta(0) <= now - last_used <= DRAINED_WITHIN


def _will_be_evicted(pod: Pod) -> bool:
    """Whether a drain evicts the pod, and has not begun to."""
    stays = pod.static or pod.controller.startswith("DaemonSet/")
    return pod.live and not pod.deleting and not stays


def evidence_of_node(registration: Registration, name: str) -> str | None:
    """Return the evidence that this machine is the node of that name; None: there is none."""
    if registration.kubelet_name not in {None, name}:
        return None
    if registration.last is not None and registration.last.name == name:
        return f"the Node was last seen at {format_time(registration.last.at)}"
    if registration.kubelet_name:
        return "the kubelet here uses that name"
    if registration.listed_pods:
        return f"the API server still lists {registration.listed_pods} of its pods"
    return None


def evidence_of_cloud(registration: Registration, taints: Iterable[Taint]) -> str | None:
    """Return the evidence that the cluster of this node uses a cloud; None: there is none."""
    if any(taint.key == UNINITIALIZED for taint in taints):
        return f"it has the taint {UNINITIALIZED}"
    if registration.cloud_provider:
        return f"the kubelet runs with --cloud-provider={registration.cloud_provider}"
    if registration.last is not None and registration.last.earlier_id:
        return "it had one before"
    return None

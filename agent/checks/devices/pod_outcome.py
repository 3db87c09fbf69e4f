"""What becomes of a refused pod if nobody does anything, and what somebody should do. Pure."""

from datetime import datetime, timedelta
from typing import Final

from agent.model.finding import format_time
from agent.model.rejections import PodOutcome, Rejection, RejectionCause
from agent.model.snapshot import Pod, Snapshot

OVERDUE: Final = timedelta(seconds=60)
"""After the time by which a deleted pod should be gone."""
REPLACED: Final = {
    "ReplicaSet": None,
    "ReplicationController": None,
    "Job": None,
    "StatefulSet": timedelta(minutes=2),
    "DaemonSet": timedelta(minutes=16),
}
"""Whose failed pods are replaced. The last two delete them first: one that is still there after this long is stuck."""
NOT_READ: Final = (RejectionCause.UNVERIFIED, "the node's device plugins were not read")

NOT_BY_FORCE: Final = "never with --force, which skips the CNI teardown and leaks the pod's address"


def overdue(pod: Pod, snapshot: Snapshot) -> datetime | None:
    """Return since when a deleted pod should be gone, by the clock of the API server; None: it may still be there."""
    by_api = snapshot.taken_at + (snapshot.api_skew or timedelta(0))
    return pod.deletion if pod.deletion is not None and by_api - pod.deletion > OVERDUE else None


def predict_outcome(
    pod: Pod, rejection: Rejection, cause: RejectionCause, snapshot: Snapshot, *, healthy: bool
) -> tuple[PodOutcome, str]:
    """Return what becomes of it, and the advice. `healthy`: the kubelet knows healthy devices of the resource now."""
    if since := overdue(pod, snapshot):
        return PodOutcome.TERMINATING_STUCK, f"deleted, and should be gone since {format_time(since)}: {_held_by(pod)}"
    delete = f"delete it {_when(cause, healthy)}, {NOT_BY_FORCE}"
    kind = pod.controller.partition("/")[0]
    if kind not in REPLACED:
        whose = f"{pod.controller} need not replace it" if pod.controller else "it has no controller"
        return PodOutcome.STUCK, f"{whose}, so it stays Failed: {delete}"
    patience = REPLACED[kind]
    if patience is not None and rejection.at is not None and snapshot.taken_at - rejection.at > patience:
        return PodOutcome.STUCK, f"{pod.controller} should have replaced it by now and has not: {delete}"
    if kind == "Job":
        return PodOutcome.REPLACED_BY_CONTROLLER, f"{pod.controller} counts it as a failure and tries again: {delete}"
    return PodOutcome.REPLACED_BY_CONTROLLER, f"{pod.controller} replaces it, and this one only stays behind: {delete}"


def _held_by(pod: Pod) -> str:
    if pod.finalizers:
        return f"held by {', '.join(pod.finalizers)}; whoever set these finalizers has to remove them"
    restart = f"restart the kubelet, so that it tries again; delete it {NOT_BY_FORCE}"
    return f"the kubelet has not finished with it; {restart}"


def _when(cause: RejectionCause, healthy: bool) -> str:
    if cause is RejectionCause.EXHAUSTED:
        return "once a device is free"
    return "(its devices are healthy again)" if healthy else "once its devices are healthy again"

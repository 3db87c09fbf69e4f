"""What happens to a rejected pod if nobody acts, and what to do. Pure."""

from datetime import datetime, timedelta
from typing import Final

from agent.model.rejections import PodOutcome, Rejection, RejectionCause
from agent.model.snapshot import Pod, Snapshot
from agent.model.text import format_time

OVERDUE: Final = timedelta(seconds=60)
"""How long after its deletionTimestamp a pod may still exist."""
REPLACED_WITHIN: Final = {
    "ReplicaSet": None,
    "ReplicationController": None,
    "Job": None,
    "StatefulSet": timedelta(minutes=2),
    "DaemonSet": timedelta(minutes=16),
}
"""Controllers that replace failed pods. The last two delete the pod first, so an older pod is stuck."""

NO_FORCE: Final = "never use --force, which can leak the address of a pod that had run"
_LEFTOVER: Final = f"delete the failed pod at your convenience; {NO_FORCE}"


def overdue(pod: Pod, snapshot: Snapshot) -> datetime | None:
    """Return since when a deleted pod should be gone, by the API server's clock; None: it may still exist."""
    by_api = snapshot.taken_at + (snapshot.api_skew or timedelta(0))
    return pod.deletion if pod.deletion is not None and by_api - pod.deletion > OVERDUE else None


def predict_outcome(
    pod: Pod, rejection: Rejection, cause: RejectionCause, snapshot: Snapshot, *, healthy: bool
) -> tuple[PodOutcome, str]:
    """Return the outcome, and the advice. `healthy`: the kubelet has healthy devices of the resource now."""
    if since := overdue(pod, snapshot):
        return (
            PodOutcome.TERMINATING_STUCK,
            f"deleted, and should have been gone by {format_time(since)}, but {_held_by(pod)}",
        )
    delete = f"delete it {_when(cause, healthy)}; {NO_FORCE}"
    kind = pod.controller.partition("/")[0]
    if kind not in REPLACED_WITHIN:
        whose = f"{pod.controller} need not replace it" if pod.controller else "it has no controller"
        return PodOutcome.STUCK, f"{whose}, so it stays Failed: {delete}"
    grace = REPLACED_WITHIN[kind]
    if grace is not None and rejection.at is not None and snapshot.taken_at - rejection.at > grace:
        return PodOutcome.STUCK, f"{pod.controller} should have replaced it by now: {delete}"
    if kind == "Job":
        return PodOutcome.REPLACED_BY_CONTROLLER, f"{pod.controller} counts it as a failure and retries; {_LEFTOVER}"
    return PodOutcome.REPLACED_BY_CONTROLLER, f"{pod.controller} replaces it; {_LEFTOVER}"


def _held_by(pod: Pod) -> str:
    if pod.finalizers:
        return f"its finalizers remain: {', '.join(pod.finalizers)}; the controller that owns them must remove them"
    return (
        "the kubelet has not finished deleting it; only a kubelet restart makes it try again, and every device plugin "
        f"must then register again: ask the owner of the node first; {NO_FORCE}"
    )


def _when(cause: RejectionCause, healthy: bool) -> str:
    if cause is RejectionCause.EXHAUSTED:
        return "once a device is free"
    return "(its devices are healthy again)" if healthy else "once its devices are healthy again"

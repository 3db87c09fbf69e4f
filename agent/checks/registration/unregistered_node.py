"""The cluster does not know this machine as its node any more: the cluster-autoscaler deletes such an instance.

It knows instances by the `spec.providerID` of Node objects. One that is in none of them is deleted 15 minutes after the
autoscaler first noticed, even where scaling down is switched off; and no taint warns of it, for there is no Node to
carry one. A kubelet registers when it starts, and never again: a Node that was deleted does not come back by itself.

Means: critical: the Node is gone while its kubelet runs (its pods are deleted 40 s later), or has been without a
provider ID for 8 minutes; warning: without one for 3 minutes, on a cluster that uses a cloud, or with another one
than before; info: the autoscaler is about to remove the node, or considers it, in the ordinary way.
Do: if the Node is gone, restart the kubelet (`systemctl restart kubelet`), which registers it anew; pause the
autoscaler or protect the instance meanwhile. If the provider ID is missing, repair the cloud-controller-manager, or
set it (`kubectl patch node NODE -p '{"spec":{"providerID":"…"}}'`): an empty one may be, once. The kubelet's
--provider-id counts only when it registers.
On bare metal, or where nobody deletes instances, `--provider-id=ignored` silences that part.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from agent.model.assessment import Assessment
from agent.model.finding import Finding, Severity, format_time
from agent.model.registration import (
    DELETION_CANDIDATE,
    REMOVED_AFTER,
    TO_BE_DELETED,
    Autoscaler,
    Expected,
    Registration,
    who_says_ours,
    why_cloud,
)
from agent.model.snapshot import InsufficientData, Node, Snapshot, known_or

NAME = "unregistered_node"
SEVERITIES: Final = (Severity.INFO, Severity.WARNING, Severity.CRITICAL)

REGISTERS_WITHIN: Final = timedelta(seconds=60)
"""What a kubelet may need from its start to its registration."""
LATE, TOO_LATE = timedelta(minutes=3), timedelta(minutes=8)
"""Without a provider ID: a cloud's controller gives it within seconds, and the autoscaler acts after 15 minutes."""
NEWS: Final = timedelta(hours=1)
"""How long another provider ID than before is told: whoever acts on it has acted by then."""


def find(assessment: Assessment) -> Iterator[Finding]:
    snapshot = assessment.snapshot
    registration, node = snapshot.registration.known(), snapshot.node.known()
    if node is None:
        yield from _gone(snapshot, registration)
        return
    yield from _about_to_be_removed(node)
    yield from _changed(node, registration, snapshot.taken_at)
    yield from _without_id(node, registration, snapshot)


def _gone(snapshot: Snapshot, registration: Registration) -> Iterator[Finding]:
    name, last = snapshot.node_name, registration.last
    ours = who_says_ours(registration, name)
    if not ours:
        raise InsufficientData(f"node: {_unknown_name(registration, name)}")
    started = snapshot.processes.known().kubelet
    if started is None:
        return  # no kubelet runs, and the next one that starts registers
    seen = last.at if last is not None and last.name == name else None
    if (seen is None or seen < started) and snapshot.taken_at - started < REGISTERS_WITHIN:
        return
    remedy = _RESTART if seen is not None and seen >= started else f"{_NOT_YET} {format_time(started)}: look at its log"
    due = f"15 minutes after it first noticed{f' (from {format_time(seen + REMOVED_AFTER)} on)' if seen else ''}"
    yield Finding(
        detector=NAME,
        subject=f"Node {name}",
        message=f"the Node {name} is gone while its kubelet runs: {ours}; its pods are deleted 40 s later, and the "
        f"instance by a cluster-autoscaler {due}{_status(snapshot)}; {remedy}, and pause the autoscaler or protect the "
        "instance meanwhile",
        severity=Severity.CRITICAL,
        since=seen or started,
        # Its pods are deleted 40 s later, and the agent is one of them.
        urgent=True,
    )


_RESTART: Final = "a kubelet registers only when it starts: restart it (systemctl restart kubelet)"
_NOT_YET: Final = "the kubelet has not registered it since its start at"


def _unknown_name(registration: Registration, name: str) -> str:
    """Say that there is no such Node, where nobody says that there should be."""
    other = f"the kubelet here calls itself {registration.kubelet_name!r}: " if registration.kubelet_name else ""
    return f"the API server has no Node named {name!r}: {other}is the node's name right?" + (
        f" (what was remembered cannot be read: {registration.why})" if registration.why else ""
    )


def _without_id(node: Node, registration: Registration, snapshot: Snapshot) -> Iterator[Finding]:
    if node.provider_id or registration.expected is Expected.IGNORED:
        return
    if node.created is None:
        raise InsufficientData("node: it has no creationTimestamp")
    # The server dates the Node, so its clock counts the age.
    age = snapshot.taken_at + (snapshot.api_skew or timedelta(0)) - node.created
    if age < LATE:
        return
    why = _why_it_needs_one(node, registration, snapshot)
    if not why:
        return
    severity = Severity.CRITICAL if age >= TOO_LATE else Severity.WARNING
    yield Finding(
        detector=NAME,
        subject=f"provider ID of {node.name}",
        message=f"the Node {node.name} has no provider ID since it registered at {format_time(node.created)}, though "
        f"{why}: a cluster-autoscaler deletes the instance about 15 minutes after that{_status(snapshot)}; repair the "
        "cloud-controller-manager, or set spec.providerID of the Node, which may be done once; pause the autoscaler or "
        "protect the instance meanwhile",
        severity=severity,
        since=node.created,
        # Worse is news: it is told as another finding.
        identity=(severity.value,),
    )


def _why_it_needs_one(node: Node, registration: Registration, snapshot: Snapshot) -> str:
    if registration.expected is Expected.REQUIRED:
        return "--provider-id=required"
    if why := why_cloud(registration, node.taints):
        return why
    told = snapshot.autoscaler.known()
    return f"{told.others_with_id} of {told.others} other nodes have one" if told.others_with_id else ""


def _changed(node: Node, registration: Registration, now: datetime) -> Iterator[Finding]:
    last = registration.last
    if last is None or last.name != node.name or last.uid != node.uid or last.changed is None:
        return
    if not last.earlier_id or not node.provider_id or now - last.changed >= NEWS:
        return
    yield Finding(
        detector=NAME,
        subject=f"changed provider ID of {node.name}",
        message=f"the Node {node.name} has the provider ID {node.provider_id}, and had {last.earlier_id} before: if it "
        "is not this machine's own instance, the cloud's controllers delete the Node, and a cluster-autoscaler the "
        "instance; then pause the autoscaler, correct the kubelet's --provider-id, delete the Node and restart the "
        "kubelet",
        since=last.changed,
        identity=(node.provider_id,),
    )


_REMOVALS: Final = {
    TO_BE_DELETED: "is being removed by the cluster-autoscaler, which scales down",
    DELETION_CANDIDATE: "is a candidate for removal by the cluster-autoscaler, which finds it unneeded",
}


def _about_to_be_removed(node: Node) -> Iterator[Finding]:
    for taint in node.taints:
        if taint.key in _REMOVALS:
            since = "" if taint.at is None else f", since {format_time(taint.at)}"
            yield Finding(
                detector=NAME,
                subject=f"{taint.key} of {node.name}",
                message=f"the Node {node.name} {_REMOVALS[taint.key]}{since} (taint {taint.key})",
                severity=Severity.INFO,
                since=taint.at,
            )


def _status(snapshot: Snapshot) -> str:
    """Say what the autoscaler itself says of all instances; empty where it was not asked."""
    told = known_or(snapshot.autoscaler, None)
    if told is None:
        return ""
    return f"; the autoscaler's status {_in_words(told)}"


def _in_words(told: Autoscaler) -> str:
    if told.why:
        return f"is not known: {told.why}"
    counted = [
        f"{count} {what}"
        for count, what in ((told.unregistered, "unregistered"), (told.long_unregistered, "long unregistered"))
        if count is not None
    ]
    at = f"of {format_time(told.told)}" if told.told else "says"
    return f"{at}: {', '.join(counted) if counted else 'no counts'} in the whole cluster"

"""The cluster no longer knows this machine as its node: the autoscaler may delete the instance.

The cluster-autoscaler identifies instances by `spec.providerID` of Node objects. It deletes an
instance that matches none of them 15 minutes after it noticed, even if scale-down is disabled; no
Node means no taint that would announce it. A kubelet registers when it starts, and never again: a
deleted Node does not come back by itself.

Means: the Node is gone, has no provider ID or another ID than before, or is about to be removed.
Critical: it is gone while its kubelet runs (its pods are deleted 40 s later), or has had no
provider ID for 8 minutes.
Warning: the same after an hour in which nothing deleted the instance; or it has had no provider ID
for 3 minutes, has another ID than before, or was deleted while it was cordoned.
Info: it was removed on purpose (drained within a day, or marked by the autoscaler), or the
autoscaler removes it or considers that.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from agent.checks.cluster.registration import evidence_of_cloud, evidence_of_node
from agent.checks.detector import Advice, Noun, Step
from agent.model.assessment import Assessment
from agent.model.finding import Finding, Severity
from agent.model.registration import (
    DELETION_CANDIDATE,
    TO_BE_DELETED,
    LastSeen,
    Registration,
    Removal,
)
from agent.model.settings import Expected
from agent.model.snapshot import InsufficientData, Node, Snapshot, known_or
from agent.model.text import count_of, format_time

NAME = "unregistered_node"
SEVERITIES: Final = (Severity.INFO, Severity.WARNING, Severity.CRITICAL)
NOUN: Final = Noun(
    "node that is not registered correctly",
    "nodes that are not registered correctly",
    headline="this node is not registered correctly",
    critical_headline="this node is not registered correctly: the cluster-autoscaler may delete "
    "the instance",
)
ADVICE: Final = Advice(
    steps=(
        Step("If the Node was removed on purpose, stop the kubelet: nothing else is to be done."),
        Step(
            "Otherwise pause the autoscaler, or protect the instance from deletion, before "
            "anything else."
        ),
        Step(
            "If the Node is gone, restart the kubelet (`systemctl restart kubelet`), which "
            "registers it again."
        ),
        Step(
            "If the ID is missing, repair the cloud-controller-manager, or set it (`kubectl patch "
            'node NODE -p \'{"spec":{"providerID":"…"}}\'`), which is possible once; the '
            "kubelet's --provider-id has an effect only when it registers."
        ),
        Step(
            "If the ID has changed, compare it with the machine's ID at the cloud provider: if it "
            "is wrong, tell the owner of the cloud-controller-manager."
        ),
        Step("Once the Node is right, undo the pause or the protection."),
        Step(
            "On bare metal, or where nothing deletes instances, `--provider-id=ignored` disables "
            "the check for a missing ID."
        ),
    ),
    runbook="NodeUnregistered.md#nodeleaknodeunregistered",
    in_messages=True,
)

REGISTERS_WITHIN: Final = timedelta(seconds=60)
"""How long a kubelet may take from its start to its registration."""
REMOVED_AFTER: Final = timedelta(minutes=15)
"""How long an instance may have no Node: the default of `--max-node-provision-time`."""
_WARNING_AFTER: Final = timedelta(minutes=3)
"""Without a provider ID: a cloud controller sets it within seconds."""
_CRITICAL_AFTER: Final = timedelta(minutes=8)
"""Without a provider ID: the autoscaler acts after `REMOVED_AFTER`."""
ACTED_WITHIN: Final = timedelta(hours=1)
"""By then the cloud's controllers and the autoscaler have acted, if at all."""
_MARKED: Final = {
    TO_BE_DELETED: "is being removed by the cluster-autoscaler in a scale-down",
    DELETION_CANDIDATE: "is a candidate for removal by the cluster-autoscaler, which considers it "
    "unneeded",
}
"""What a taint of the cluster-autoscaler says about its node."""
_PLANNED: Final = {
    Removal.DRAINED: "it was cordoned and drained",
    Removal.SCALE_DOWN: f"the cluster-autoscaler marked it for removal (taint {TO_BE_DELETED})",
}
"""Why the deletion of a Node was on purpose."""
_NOT_DELETED_SINCE: Final = "no cluster-autoscaler has deleted the instance since"


def find(assessment: Assessment) -> Iterator[Finding]:
    snapshot = assessment.snapshot
    registration = snapshot.registration.known()
    node = snapshot.node.known()
    if node is None:
        yield from _find_deleted(snapshot, registration)
        return
    for taint in node.taints:
        if taint.key in _MARKED:
            since = "" if taint.at is None else f", since {format_time(taint.at)}"
            yield Finding(
                NAME,
                f"{taint.key} of {node.name}",
                f"the Node {node.name} {_MARKED[taint.key]}{since} (taint {taint.key})",
                severity=Severity.INFO,
                since=taint.at,
            )
    yield from _find_changed_id(node, registration, snapshot.taken_at)
    yield from _find_missing_id(node, registration, snapshot)


def _find_deleted(snapshot: Snapshot, registration: Registration) -> Iterator[Finding]:
    name = snapshot.node_name
    evidence = evidence_of_node(registration, name)
    if not evidence:
        raise InsufficientData(f"node: {_unknown_name(registration, name)}")
    started = snapshot.processes.known().kubelet
    if started is None:
        return  # no kubelet runs; the next kubelet registers when it starts

    last = registration.last
    if last and last.name != name:
        last = None
    if last and last.at >= started:
        remedy = (
            "restart the kubelet (systemctl restart kubelet), which registers the node only when "
            "it starts"
        )
    elif snapshot.taken_at - started < REGISTERS_WITHIN:
        return
    else:
        start = format_time(started)
        remedy = f"the kubelet has not registered it since its start at {start}: check its log"

    severity, message = _describe_deletion(snapshot, last, evidence, remedy)
    yield Finding(
        NAME,
        f"Node {name}",
        f"the Node {name} was {message}",
        severity=severity,
        since=last.at if last else started,
        urgent=True,  # its pods are deleted 40 s later, and the agent is among them
    )


def _describe_deletion(
    snapshot: Snapshot, last: LastSeen | None, evidence: str, remedy: str
) -> tuple[Severity, str]:
    """Return how severe it is that a Node was deleted, and the end of the message.

    `evidence`: that it existed. `remedy`: what to do unless it was deleted on purpose.
    """
    if last and last.removal in _PLANNED:
        return Severity.INFO, (
            f"removed on purpose: {_PLANNED[last.removal]} before it was deleted ({evidence}); its "
            "kubelet is still running; to keep it removed, stop the kubelet, which registers the "
            "node when it starts"
        )

    is_cordoned = last is not None and last.removal is Removal.CORDONED
    deleted = "deleted, but its kubelet is running"
    if is_cordoned:
        deleted = (
            "deleted while it was cordoned, no drain was seen in the day before, and its kubelet "
            "is running"
        )

    status = _autoscaler_status(snapshot)
    remedy += ", unless the Node was deleted on purpose"
    if last and last.gone and snapshot.taken_at - last.gone >= ACTED_WITHIN:
        return Severity.WARNING, f"{deleted}: {evidence}; {_NOT_DELETED_SINCE}{status}; {remedy}"

    due = "15 minutes after it notices"
    if last:
        due += f" (at {format_time(last.at + REMOVED_AFTER)} or later)"
    message = (
        f"{deleted}: {evidence}; its pods are deleted after 40 s, and a cluster-autoscaler deletes "
        f"the instance {due}{status}; {remedy}; until then, pause the autoscaler or protect the "
        "instance"
    )
    return Severity.WARNING if is_cordoned else Severity.CRITICAL, message


def _unknown_name(registration: Registration, name: str) -> str:
    message = f"the API server has no Node named {name}: check --node"
    if registration.kubelet_name:
        message += f" (the kubelet here uses the name {registration.kubelet_name})"
    if registration.why:
        message += f"; the last known Node cannot be read: {registration.why}"
    return message


def _find_missing_id(
    node: Node, registration: Registration, snapshot: Snapshot
) -> Iterator[Finding]:
    if node.provider_id or registration.expected is Expected.IGNORED:
        return
    if node.created is None:
        raise InsufficientData("node: it has no creationTimestamp")
    age = snapshot.api_time - node.created  # the server sets creationTimestamp
    if age < _WARNING_AFTER:
        return
    reason = _reason_to_need_id(node, registration, snapshot)
    if reason is None:
        return

    severity = Severity.WARNING
    effect = _NOT_DELETED_SINCE
    remedy = "if the node needs none, set --provider-id=ignored"
    if age < ACTED_WITHIN:
        due = format_time(node.created + REMOVED_AFTER)
        effect = f"a cluster-autoscaler may delete the instance from about {due} on"
        remedy = "until then, pause the autoscaler or protect the instance"
        if age >= _CRITICAL_AFTER:
            severity = Severity.CRITICAL

    message = (
        f"the Node {node.name} has had no provider ID since it registered at "
        f"{format_time(node.created)}, and needs one: {reason}; "
        f"{effect}{_autoscaler_status(snapshot)}; repair the cloud-controller-manager, or set "
        f"spec.providerID of the Node (it can be set only once); {remedy}"
    )
    yield Finding(
        NAME,
        f"provider ID of {node.name}",
        message,
        severity=severity,
        since=node.created,
        identity=(severity.value,),  # a change of the severity is another finding
    )


def _reason_to_need_id(node: Node, registration: Registration, snapshot: Snapshot) -> str | None:
    """Return why a Node needs a provider ID; None: it does not."""
    if registration.expected is Expected.REQUIRED:
        return "--provider-id=required"
    if evidence := evidence_of_cloud(registration, node.taints):
        return evidence
    nodes = snapshot.autoscaler.known()
    if not nodes.others_with_id:
        return None
    return f"{nodes.others_with_id} of {nodes.others} other nodes have one"


def _find_changed_id(node: Node, registration: Registration, now: datetime) -> Iterator[Finding]:
    last = registration.last
    if last is None or last.name != node.name or last.uid != node.uid or last.changed is None:
        return
    if not last.earlier_id or not node.provider_id or now - last.changed >= ACTED_WITHIN:
        return
    message = (
        f"the Node {node.name} has the provider ID {node.provider_id}, and had {last.earlier_id} "
        "before; compare it with the machine's ID at the cloud provider; if it is right, do "
        "nothing: the finding ends after an hour; if it is wrong, first pause the autoscaler, then "
        "tell the owner of the cloud-controller-manager: the cloud's controllers may delete the "
        "Node, and a cluster-autoscaler the instance"
    )
    yield Finding(
        NAME,
        f"changed provider ID of {node.name}",
        message,
        since=last.changed,
        identity=(node.provider_id,),
    )


def _autoscaler_status(snapshot: Snapshot) -> str:
    """Return what the autoscaler's status says, as the end of a sentence."""
    status = known_or(snapshot.autoscaler, None)
    if status is None:
        return ""
    if status.why:
        return f"; the autoscaler's status is unknown: {status.why}"
    counts = []
    if status.unregistered is not None:
        counts.append(f"{count_of(status.unregistered, 'node')} unregistered")
    if status.long_unregistered is not None:
        counts.append(f"{status.long_unregistered} for so long that it deletes them")
    at = f"of {format_time(status.told)}" if status.told else "says"
    return f"; the autoscaler's status {at}: {', '.join(counts) or 'no counts'} (whole cluster)"

"""The cluster no longer knows this machine as its node: the autoscaler may delete the instance.

The cluster-autoscaler identifies instances by `spec.providerID` of Node objects. It deletes an
instance that matches none of them 15 minutes after it noticed (`--max-node-provision-time`), even
if scale-down is disabled; no Node means no taint that would announce it. A kubelet registers when
it starts, and never again: a deleted Node does not come back by itself.

Karpenter deletes the instance of a NodeClaim whose Node is not registered 15 minutes after its
launch, and matches both by the same ID. Cluster API binds a Machine to its Node by that ID, and a
MachineHealthCheck replaces a Machine without a Node after 10 minutes. nodeleak reads neither.

Means: the Node is gone, has no provider ID, another ID than before or one of the wrong form, or is
about to be removed.
Critical: it is gone while its kubelet runs (its pods are deleted 40 s later), or has had no
provider ID for half of `--max-node-provision-time`, or for a fifth of it while the autoscaler
counts an instance as overdue.
Warning: the same after an hour in which nothing deleted the instance; or it has had no provider ID
for a fifth of that time, has another ID than before, or was deleted while it was cordoned; or its
ID has another scheme than those of the other nodes, or k3s or RKE2 set it while an autoscaler runs.
Info: it was removed on purpose (drained within a day, or marked by the autoscaler), or the
autoscaler removes it or considers that; or its ID may be wrong, and it is unknown whether an
autoscaler runs, or which instance it misses.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from agent.checks.cluster.provider_ids import autoscaler_status, doubt_of_id, due
from agent.checks.cluster.registration import Deadlines, evidence_of_cloud, evidence_of_node
from agent.checks.detector import Advice, Noun, Step
from agent.checks.kubelet_service import (
    LOG_FILES,
    RESTARTS,
    Distribution,
    distribution,
    restart_command,
)
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
from agent.model.snapshot import (
    InsufficientData,
    Node,
    NotRequested,
    Snapshot,
    Unavailable,
    known_or,
)
from agent.model.text import format_age, format_time

NAME = "unregistered_node"
SEVERITIES: Final = (Severity.INFO, Severity.WARNING, Severity.CRITICAL)
NOUN: Final = Noun(
    "node that is not registered correctly",
    "nodes that are not registered correctly",
    headline="this node is not registered correctly",
    critical_headline="this node is not registered correctly: the cluster-autoscaler may delete "
    "the instance",
)
_AT_RISK: Final = "at_risk"
_DELETED: Final = "deleted"
_NOT_REGISTERED: Final = "not_registered"
_REMOVED: Final = "removed"
_SCALE_DOWN: Final = "scale_down"
_ID: Final = "id"
_MISSING_ID: Final = "missing_id"
_CHANGED_ID: Final = "changed_id"
_WRONG_ID: Final = "wrong_id"
_RESTART: Final = {each: f"restart_{each}" for each in Distribution}
ADVICE: Final = Advice(
    steps=(
        Step(
            "First pause the autoscaler, or protect the instance from deletion.",
            kind=_AT_RISK,
        ),
        Step(
            "If the Node was deleted on purpose, stop the kubelet. Nothing else is to be done.",
            kind=_DELETED,
        ),
        Step(
            "Otherwise restart k3s, which registers the Node again:",
            (RESTARTS[Distribution.K3S],),
            kind=_RESTART[Distribution.K3S],
        ),
        Step(
            "Otherwise restart RKE2, which registers the Node again:",
            (RESTARTS[Distribution.RKE2],),
            kind=_RESTART[Distribution.RKE2],
        ),
        Step(
            "Otherwise restart the kubelet, which registers the Node again:",
            (RESTARTS[Distribution.OTHER],),
            kind=_RESTART[Distribution.OTHER],
        ),
        Step(
            "If the kubelet has started since and did not register the Node, its log says why "
            f"(RKE2: `{LOG_FILES}`):",
            ("journalctl -u kubelet -u 'k3s*' -u 'rke2*' | grep -i regist",),
            kind=_NOT_REGISTERED,
        ),
        Step(
            "If the Node was removed on purpose, stop the kubelet (with k3s and RKE2, their "
            "service): it registers the Node when it starts.",
            kind=_REMOVED,
        ),
        Step(
            "The autoscaler removes a marked node by itself. To keep the node:",
            (
                (
                    "kubectl annotate node NODE "
                    "cluster-autoscaler.kubernetes.io/scale-down-disabled=true"
                ),
            ),
            kind=_SCALE_DOWN,
        ),
        Step(
            "If the ID is missing, repair the cloud-controller-manager. Or set the ID, which is "
            "possible once (the kubelet's --provider-id has an effect only when it registers):",
            ("""kubectl patch node NODE -p '{"spec":{"providerID":"ID"}}'""",),
            kind=_MISSING_ID,
        ),
        Step(
            "If the ID has changed, compare it with the machine's ID at the cloud provider. If it "
            "is right, do nothing: the finding ends after an hour. If it is wrong, pause the "
            "autoscaler, then tell the owner of the cloud-controller-manager.",
            kind=_CHANGED_ID,
        ),
        Step(
            "If the ID may be wrong, compare it with the machine's ID at the cloud provider. If "
            "they differ, pause the autoscaler, or protect the instance.",
            kind=_WRONG_ID,
        ),
        Step(
            "An ID of the wrong form (k3s and RKE2 set `k3s://NODE` and `rke2://NODE`) cannot be "
            "changed. Disable their cloud controller (`disable-cloud-controller: true`) and run "
            "that of the cloud. Then delete the Node, and restart the kubelet at once.",
            kind=_WRONG_ID,
        ),
        Step("Once the Node is right, undo the pause or the protection.", kind=_AT_RISK),
        Step(
            "On bare metal, or where nothing deletes instances, `--provider-id=ignored` disables "
            "the checks of the ID.",
            kind=_ID,
        ),
    ),
    runbook="NodeUnregistered.md#nodeleaknodeunregistered",
)

REGISTERS_WITHIN: Final = timedelta(seconds=60)
"""How long a kubelet may take from its start to its registration."""
REPORTED_FOR: Final = timedelta(hours=1)
"""How long a changed provider ID is news."""
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
_SET_ID: Final = (
    "repair the cloud-controller-manager, or set spec.providerID of the Node (it can be set only "
    "once)"
)
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
                kinds=(_SCALE_DOWN,),
            )

    yield from _find_changed_id(node, registration, snapshot.taken_at)
    yield from _find_missing_id(node, registration, snapshot)
    yield from _find_wrong_id(node, registration, snapshot)


def _find_deleted(snapshot: Snapshot, registration: Registration) -> Iterator[Finding]:
    """Yield that the Node is gone, and a kubelet runs here.

    Raises InsufficientData if the name of the node may be wrong.
    """
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
    kind = _RESTART[distribution(snapshot)]
    if last and last.at >= started:
        remedy = (
            f"restart the kubelet ({restart_command(snapshot)}), which registers the node only "
            "when it starts"
        )
    elif snapshot.taken_at - started < REGISTERS_WITHIN:
        return
    else:
        start = format_time(started)
        remedy = f"the kubelet has not registered it since its start at {start}: check its log"
        kind = _NOT_REGISTERED

    deletion = _describe_deletion(snapshot, last, evidence, remedy)
    is_info = deletion.severity is Severity.INFO
    yield Finding(
        NAME,
        f"Node {name}",
        f"the Node {name} was {deletion.message}",
        severity=deletion.severity,
        since=last.at if last else started,
        urgent=True,  # its pods are deleted 40 s later, and the agent is among them
        headline="" if is_info else f"the Node {name} was deleted: {deletion.effect}",
        lead=f"the Node {name} was {deletion.lead}",
        details=deletion.details,
        kinds=(_REMOVED,) if is_info else (_AT_RISK, _DELETED, kind),
    )


class _Deletion(NamedTuple):
    """How severe it is that a Node was deleted, and how to describe it."""

    severity: Severity
    lead: str
    details: tuple[str, ...]
    remedy: str
    effect: str = ""
    """What follows, for the headline."""

    @property
    def message(self) -> str:
        joined = "; ".join([*self.details, self.remedy])
        return f"{self.lead}{'; ' if self.severity is Severity.INFO else ': '}{joined}"


def _describe_deletion(
    snapshot: Snapshot, last: LastSeen | None, evidence: str, remedy: str
) -> _Deletion:
    """`evidence`: that it existed. `remedy`: what to do unless it was deleted on purpose."""
    if last and last.removal in _PLANNED:
        return _Deletion(
            Severity.INFO,
            f"removed on purpose: {_PLANNED[last.removal]} before it was deleted ({evidence})",
            ("its kubelet is still running",),
            "to keep it removed, stop the kubelet, which registers the node when it starts",
        )

    is_cordoned = last is not None and last.removal is Removal.CORDONED
    deleted = "deleted, but its kubelet is running"
    if is_cordoned:
        deleted = (
            "deleted while it was cordoned, no drain was seen in the day before, and its kubelet "
            "is running"
        )

    status = tuple(autoscaler_status(snapshot))
    deadlines = Deadlines(snapshot.registration.known().provision_time)
    remedy += ", unless the Node was deleted on purpose"
    if last and last.gone and snapshot.taken_at - last.gone >= deadlines.acted:
        details = (evidence, _NOT_DELETED_SINCE, *status)
        return _Deletion(
            Severity.WARNING, deleted, details, remedy, "restart its kubelet, or stop it"
        )

    due = f"{format_age(deadlines.provision)} after it notices"
    effect = "a cluster-autoscaler may delete the machine"
    if last:
        at = format_time(last.at + deadlines.provision)
        due += f" (at {at} or later)"
        effect += f" from {at} on"
    deletions = (
        "its pods are deleted after 40 s, and a cluster-autoscaler deletes the instance " + due
    )
    return _Deletion(
        Severity.WARNING if is_cordoned else Severity.CRITICAL,
        deleted,
        (evidence, deletions, *status),
        f"{remedy}; until then, pause the autoscaler or protect the instance",
        effect,
    )


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
    deadlines = Deadlines(registration.provision_time)
    if age < deadlines.warning:
        return

    reason = _reason_to_need_id(node, registration, snapshot)
    if reason is None:
        return

    severity = Severity.WARNING
    effect = _NOT_DELETED_SINCE
    headline = ""
    remedy = "if the node needs none, set --provider-id=ignored"
    if age < deadlines.acted:
        remover = "a cluster-autoscaler"
        status = known_or(snapshot.autoscaler, None)
        if status is not None and status.exists is False:
            remover = "Karpenter, a MachineHealthCheck or a cluster-autoscaler"
            headline = "this node has no provider ID: its instance may be deleted"
        effect = f"{remover} may delete the instance from {due(node.created, deadlines)}"
        remedy = "until then, pause the autoscaler or protect the instance"
        if age >= deadlines.critical or _is_overdue(snapshot):
            severity = Severity.CRITICAL

    lead = (
        f"the Node {node.name} has had no provider ID since it registered at "
        f"{format_time(node.created)}, and needs one"
    )
    details = (reason, effect, *autoscaler_status(snapshot))
    yield Finding(
        NAME,
        f"provider ID of {node.name}",
        f"{lead}: {'; '.join([*details, _SET_ID, remedy])}",
        lead=lead,
        details=details,
        kinds=(_AT_RISK, _MISSING_ID, _ID),
        severity=severity,
        since=node.created,
        headline=headline,
        identity=(severity.value,),  # a change of the severity is another finding
    )
    if age < deadlines.acted:
        _require_autoscaler(snapshot, severity)


def _require_autoscaler(snapshot: Snapshot, severity: Severity) -> None:
    """Raise InsufficientData if an autoscaler that was not read might make it critical."""
    reading = snapshot.autoscaler
    if severity is Severity.WARNING and isinstance(reading, Unavailable):
        unknown = f"whether the autoscaler is about to delete the instance: {reading.why}"
        raise InsufficientData(f"autoscaler: it is unknown {unknown}")


def _is_overdue(snapshot: Snapshot) -> bool:
    """Whether the autoscaler is about to delete an instance, which may be this one."""
    status = known_or(snapshot.autoscaler, None)
    return status is not None and bool(status.long_unregistered)


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


def _find_wrong_id(node: Node, registration: Registration, snapshot: Snapshot) -> Iterator[Finding]:
    """Yield a doubt about the ID while an autoscaler may act on it. Raises InsufficientData."""
    deadlines = Deadlines(registration.provision_time)
    if not node.provider_id or node.created is None or registration.expected is Expected.IGNORED:
        return
    age = snapshot.api_time - node.created
    if not deadlines.concern(age):
        return

    doubt = doubt_of_id(node, deadlines, snapshot)
    if doubt is not None:
        yield Finding(
            NAME,
            f"form of the provider ID of {node.name}",
            doubt.message,
            severity=doubt.severity,
            lead=doubt.lead,
            details=doubt.details,
            kinds=(_WRONG_ID, _ID),
            since=node.created,
            identity=(doubt.severity.value,),
        )

    reading = snapshot.autoscaler
    if doubt is not None and isinstance(reading, NotRequested):
        reason = f"whether a cluster-autoscaler knows {node.provider_id}: {reading.why}"
        raise InsufficientData(f"autoscaler: it is unknown {reason}")
    if isinstance(reading, Unavailable):
        reading.known()


def _find_changed_id(node: Node, registration: Registration, now: datetime) -> Iterator[Finding]:
    """Yield that the ID was changed, for as long as that is news."""
    last = registration.last
    if last is None or last.name != node.name or last.uid != node.uid or last.changed is None:
        return
    if not last.earlier_id or not node.provider_id or now - last.changed >= REPORTED_FOR:
        return

    effect = (
        "with a wrong ID, the cloud's controllers may delete the Node, and a cluster-autoscaler "
        "the instance"
    )
    lead = (
        f"the Node {node.name} has the provider ID {node.provider_id}, and had {last.earlier_id} "
        "before"
    )
    yield Finding(
        NAME,
        f"changed provider ID of {node.name}",
        f"{lead}; compare it with the machine's ID at the cloud provider; if it is right, do "
        "nothing: the finding ends after an hour; if it is wrong, first pause the autoscaler, then "
        "tell the owner of the cloud-controller-manager: the cloud's controllers may delete the "
        "Node, and a cluster-autoscaler the instance",
        lead=lead,
        details=(effect,),
        kinds=(_CHANGED_ID,),
        since=last.changed,
        identity=(node.provider_id,),
    )

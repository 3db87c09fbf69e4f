"""Pods of this node wait for their sandbox: what stops them, in the words of who says it.

The kubelet makes a pod's sandbox first, and the container runtime gives it a network through CNI
plugins. Until then the pod is in `ContainerCreating` and has no address. Full ranges and leaks are
one reason of many. The kubelet's Events say which; the node often shows the same.

Means: a pod was scheduled to this node a minute ago or more, and has no running sandbox. Pods in
the node's network need no plugin, and wait for a sandbox too. Pods that the same cause stops are
one finding: with the last Event, what the message means, and what this node shows of it. `proof`
was read here independently; what `fits` would stop pods too.
Severity info: one pod, for less than five minutes; pods without an Event while others start; a node
that has been up for less than five minutes; pods that wait for a volume; or a full range, which
exhausted_range tells.
Severity warning: several pods, or one for five minutes.
Severity critical: several pods have waited for five minutes, or the runtime's network is not ready,
and no pod with a network of its own has started for five minutes.
Without pods that wait for a network: the runtime says that its network is not ready, or the Node is
not Ready.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from shlex import quote
from typing import Final

from agent.checks.detector import Advice, Noun, Step
from agent.checks.kubelet_service import LOG_FILES, lacks_kubelet
from agent.checks.node_network import is_young
from agent.checks.waiting.causes import Group, events_unread, groups, unattached_volumes
from agent.checks.waiting.evidence import (
    ATTEMPT_LASTS,
    HANGING,
    STOPPED,
    Evidence,
    Situation,
    Weight,
    entry_of,
    gather,
    remedies,
)
from agent.checks.waiting_pods import WAITS_AFTER, Wait, is_recent
from agent.model.assessment import Assessment
from agent.model.catalog import Addresses
from agent.model.finding import WAITING_PODS, Finding, Severity, WaitCause
from agent.model.remedy import Remedy
from agent.model.snapshot import (
    FAILED_SANDBOX,
    SandboxFailure,
    Snapshot,
    known_or,
    require_available,
)
from agent.model.text import FEW, count_of, format_age, join_few

NAME = WAITING_PODS
SEVERITIES: Final = (Severity.INFO, Severity.WARNING, Severity.CRITICAL)
NOUN: Final = Noun("reason why pods wait", "reasons why pods wait")
ADVICE: Final = Advice(
    steps=(
        Step("The kubelet tries again by itself once the cause is gone."),
        Step("Release addresses only if a finding says that some are leaked."),
    ),
    runbook="WaitingPods.md#nodeleakwaitingpods",
)

LONG: Final = timedelta(minutes=5)
_BEFORE_SANDBOX: Final = frozenset({"FailedCreatePodContainer", "FailedPrepareDynamicResources"})
"""The reasons of Events about what the kubelet does before it asks the runtime for anything."""
_NO_LACK: Final = "this message is not about a lack of addresses"
_ABOUT: Final = {
    Addresses.UNRELATED: "this message is not about host-local's addresses",
    Addresses.LEAKING: f"{_NO_LACK}, but retries may leave some reserved",
    Addresses.BOTH: f"{_NO_LACK}, but retries may leave some reserved",
    Addresses.HELD: _NO_LACK,
    Addresses.CONFIGURED: _NO_LACK,
}
"""What a message says of addresses. Whether the range is full is exhausted_range's to say."""


def find(assessment: Assessment) -> Iterator[Finding]:
    snapshot = assessment.snapshot
    found = groups(snapshot)
    starting = is_young(snapshot)
    for number, group in enumerate(found):
        yield _finding(assessment, group, number, starting=starting)

    # The others have it among their evidence.
    if all(group.on_host or group.cause is WaitCause.VOLUME_PENDING for group in found):
        yield from _not_ready(assessment, starting=starting)

    # After the findings: what is unavailable must not hide them. Without Events, they say so.
    snapshot.pods.known()
    require_available(snapshot.containers, snapshot.runtime_status, snapshot.node)


def _finding(assessment: Assessment, group: Group, number: int, *, starting: bool) -> Finding:
    """`number`: its place among the groups, by which it is known from snapshot to snapshot."""
    uids = frozenset(wait.pod.uid for wait in group.waits)
    situation = Situation(group.cause, group.failure, assessment, uids, on_host=group.on_host)
    evidence = gather(situation)
    severity = Severity.INFO if starting else _severity(assessment, group, evidence)

    names = tuple(dict.fromkeys(wait.pod.name for wait in group.waits))
    oldest = group.waits[0]
    subject = _subject(group.waits)
    reason = _reason(group, assessment.snapshot)
    headline = f"{subject}: {reason}"

    clauses = [*_meaning(group, assessment.snapshot), *_clauses(evidence)]
    if starting:
        clauses.append("the node has just started")
    if len(names) > 1:
        clauses.append(f"pods: {join_few(names)}")
    if group.unlisted and not _no_events_listed(group):
        clauses.append(f"the Events of {count_of(group.unlisted, 'other')} were not listed")

    return Finding(
        NAME,
        "pods without a sandbox",
        "; ".join([headline, *clauses]),
        severity=severity,
        network=group.failure.network if group.failure else "",
        pod=names[0] if len(names) == 1 else "",
        cause=group.cause,
        since=assessment.snapshot.taken_at - oldest.time,
        # Not the message: retries of one pod may fail in turn for what follows from each other.
        identity=(number,),
        affected=tuple(wait.pod.uid for wait in group.waits[:FEW]),
        headline=headline,
        details=tuple(clauses),
        told_by=_told_by(group.cause, group.failure, evidence, assessment.snapshot),
        steps=tuple(_steps(group, evidence)),
        pods=names,
    )


def _subject(waits: Sequence[Wait]) -> str:
    age = format_age(waits[0].time)
    if len(waits) == 1:
        return f"pod {waits[0].pod.name} has waited for {age}"
    return f"{count_of(len(waits), 'pod')} have waited for up to {age}"


def _reason(group: Group, snapshot: Snapshot) -> str:
    failure = group.failure
    if failure is None:
        if group.cause is WaitCause.NETWORK_NOT_READY:
            return "the runtime's network is not ready"
        if group.cause is WaitCause.VOLUME_PENDING:
            volumes = count_of(unattached_volumes(snapshot), "volume is", "volumes are")
            return f"for a volume, not for an address; {volumes} in use and not attached"
        if lacks_kubelet(snapshot):
            return "no kubelet runs on this node"
        unread = events_unread(snapshot)
        if not unread and _no_events_listed(group):
            unread = f"{'its' if len(group.waits) == 1 else 'their'} Events were not listed"
        return f"why is not known: {unread}" if unread else "no Event says why"

    words = f"{_speaker(group, failure)}: {failure.message}{_times(failure, snapshot)}"
    is_past = _is_past(failure, snapshot)
    return f"no kubelet runs on this node; its last Event: {words}" if is_past else words


def _no_events_listed(group: Group) -> bool:
    return group.unlisted == len(group.waits)


def _is_past(failure: SandboxFailure, snapshot: Snapshot) -> bool:
    """Return whether an Event is of a kubelet that no longer runs."""
    return not is_recent(failure, snapshot) and lacks_kubelet(snapshot)


def _speaker(group: Group, failure: SandboxFailure) -> str:
    """Return who says the message that follows."""
    if group.cause is WaitCause.VOLUME_PENDING:
        return f"for a volume, not for an address; the kubelet says ({failure.reason})"
    network = f" in network {failure.network}" if failure.network else ""
    if failure.plugin:
        operation = " in DEL" if failure.operation == "delete" else ""
        return f"CNI plugin {failure.plugin} fails{operation}{network}"
    if failure.reason == FAILED_SANDBOX:
        return f"the runtime cannot make the sandbox{network}"
    return f"the kubelet says ({failure.reason})"


def _times(failure: SandboxFailure, snapshot: Snapshot) -> str:
    """Return how often an Event was sent, and when last; empty: not known."""
    if failure.at is None:
        return ""
    ago = format_age(max(snapshot.api_time - failure.at, timedelta(0)))
    return f" ({count_of(failure.count, 'time')}, last {ago} ago)"


def _told_by(
    cause: WaitCause,
    failure: SandboxFailure | None,
    evidence: Sequence[Evidence],
    snapshot: Snapshot,
) -> str:
    """Return the detector that reports what stops these pods; empty: none.

    What only fits may be another fault, unless nothing says what stops them, or an Event says that
    an attempt does not end, and a plugin hangs.
    """
    if failure is not None and _is_past(failure, snapshot):
        return STOPPED

    faults = [one for one in evidence if one.detector]
    proven = [one.detector for one in faults if one.weight is Weight.PROOF]
    fitting = {one.detector for one in faults if one.weight is Weight.FITS}

    if proven:
        return proven[0]
    if failure is not None:
        return HANGING if failure.entry in ATTEMPT_LASTS and HANGING in fitting else ""
    return fitting.pop() if len(fitting) == 1 and cause is WaitCause.UNEXPLAINED else ""


def _meaning(group: Group, snapshot: Snapshot) -> Iterator[str]:
    failure = group.failure
    may_be_late = group.needs_volumes and not lacks_kubelet(snapshot)
    if may_be_late and group.cause is WaitCause.UNEXPLAINED:
        they = "they need" if len(group.waits) > 1 else "it needs"
        yield f"{they} volumes, and kubelets from 1.28 send no Event about those that are late"

    if failure is None or group.cause is WaitCause.VOLUME_PENDING:
        return

    entry = entry_of(failure)
    if entry is None:
        yield "nodeleak does not know this message, nor whether it is about addresses"
    elif entry.addresses in _ABOUT:
        yield _ABOUT[entry.addresses]


def _clauses(evidence: Sequence[Evidence]) -> Iterator[str]:
    for one in evidence:
        yield f"{one.weight}{one.text}"


def _severity(assessment: Assessment, group: Group, evidence: Sequence[Evidence]) -> Severity:
    if group.cause is WaitCause.VOLUME_PENDING:
        return Severity.INFO

    proven = any(one.weight is Weight.PROOF for one in evidence)
    if group.failure and group.failure.exhausted and proven:
        return Severity.INFO  # exhausted_range reports it

    is_long = group.waits[0].time >= LONG
    several = len(group.waits) > 1
    if group.failure is None and not is_long and _last_start(assessment) < WAITS_AFTER:
        return Severity.INFO  # many at once, and they start one after the other

    concerns_all = several or group.cause is WaitCause.NETWORK_NOT_READY
    if group.needs_volumes and group.cause is WaitCause.UNEXPLAINED:
        concerns_all = False
    if is_long and concerns_all and _last_start(assessment) >= LONG:
        return Severity.CRITICAL
    return Severity.WARNING if is_long or several else Severity.INFO


def _last_start(assessment: Assessment) -> timedelta:
    """Return how long ago a pod with a network of its own has started, as far as is known."""
    snapshot = assessment.snapshot
    on_host = {pod.uid for pod in known_or(snapshot.pods, ()) if pod.host_network}
    created = [
        sandbox.created
        for sandbox in assessment.index.running_sandboxes.values()
        if sandbox.pod_uid not in on_host
    ]
    return timedelta(seconds=snapshot.taken_at.timestamp() - max(created, default=0))


def _steps(group: Group, evidence: Sequence[Evidence]) -> Iterator[Remedy]:
    failure = group.failure
    yield from (one.remedy for one in evidence if one.remedy)
    if failure and failure.exhausted:
        yield from _about_range(evidence)
    elif failure and entry_of(failure):
        yield from remedies(failure)
    elif failure and group.cause is not WaitCause.VOLUME_PENDING:
        yield _log_of(failure)

    namespace, _, name = group.waits[0].pod.name.partition("/")
    text = "See all that the kubelet says of the pod that has waited longest:"
    yield Remedy(text, f"kubectl describe pod -n {quote(namespace)} {quote(name)}")


def _log_of(failure: SandboxFailure) -> Remedy:
    """Return where who speaks in an Event says more: the runtime, or the kubelet itself."""
    is_of_kubelet = failure.reason in _BEFORE_SANDBOX
    log = "kubelet's" if is_of_kubelet else "runtime's"
    units = "-u kubelet" if is_of_kubelet else "-u containerd -u crio"
    return Remedy(
        f"Look for what comes before and after this message in the {log} log (k3s and RKE2: "
        f"`{LOG_FILES}`):",
        f"journalctl {units} -u 'k3s*' -u 'rke2*' --since=-10min",
    )


def _about_range(evidence: Sequence[Evidence]) -> Iterator[Remedy]:
    """Yield what to do where pods find a range full. If it is, exhausted_range says it."""
    if not any(one.weight is Weight.PROOF for one in evidence):
        yield Remedy("Do not trust what is said here about the addresses of this range.")
        yield Remedy(
            "Compare the range with the CNI configuration of the node: set --cni-networks-dir to "
            "the `dataDir` in it; for a network of Multus, set --network=auto,NAME."
        )


def _not_ready(assessment: Assessment, *, starting: bool) -> Iterator[Finding]:
    """Yield that no pod could start: the runtime's network or the Node is not ready."""
    snapshot = assessment.snapshot
    node = known_or(snapshot.node, None)
    severity = Severity.INFO if starting else Severity.WARNING

    if snapshot.network_ready is False:
        cause = WaitCause.NETWORK_NOT_READY
        headline = "the runtime's network is not ready, so new pods with a network cannot start"
        evidence = gather(Situation(cause, None, assessment))
        details = tuple(_clauses(evidence))
        told_by = _told_by(cause, None, evidence, snapshot)
    elif node is not None and node.not_ready:
        cause = WaitCause.NODE_NOT_READY
        headline = f"the Node is not Ready: {node.not_ready}"
        details = ()
        told_by = ""
    else:
        return

    yield Finding(
        NAME,
        "network of the node",
        "; ".join([headline, *details]),
        severity=severity,
        cause=cause,
        headline=headline,
        details=details,
        told_by=told_by,
    )

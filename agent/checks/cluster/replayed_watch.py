"""The API server went back to old versions, and clients act on them, or hear nothing any more.

Before 1.8.8 and 1.9.3, API servers sent a DELETED event with the version of the object's last
update. A client that adopts the version of the last event (client-go did) watches again from there,
and receives old events as if they were new: an existing object is added and deleted once more.
Controllers then delete endpoints of live services, which come back and vanish every few minutes.

After etcd was restored from a backup, a watch from a version that etcd has not reached again is
silent, for hours: a kubelet or kube-proxy that was not restarted acts on what it knew before.

Means: the API server sent the daemon an event older than what its watch had received or was started
from (for an hour after the last one), or etcd's versions went back (for six hours, or until the
kubelet is started again). The daemon itself never adopts a lower version. It watches the node's
pods and the Node, and sees neither Services nor Endpoints, which suffer most.
"""

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Final

from agent.checks.detector import Advice, Noun, Step
from agent.checks.kubelet_service import RESTARTS, Distribution, distribution
from agent.model.assessment import Assessment
from agent.model.finding import Finding, Severity
from agent.model.snapshot import Snapshot, require_available
from agent.model.text import format_time, join_names
from agent.model.versions import is_since
from agent.model.watches import EVIDENCE_LASTS, Evidence, Watch

NAME = "replayed_watch"
SEVERITIES: Final = (Severity.WARNING,)
NOUN: Final = Noun(
    "watch that received old versions",
    "watches that received old versions",
    headline="the API server sends outdated watch events",
)
# The kinds of findings, which choose the steps.
_KIND_REPLAYED: Final = "replayed"
_KIND_RESTORED: Final = "restored"
_DELETE_KUBE_PROXY: Final = (
    "kubectl -n kube-system delete pods -l k8s-app=kube-proxy --field-selector spec.nodeName=NODE"
)
_STOP_KUBE_PROXY: Final = (
    "crictl=/var/lib/rancher/rke2/bin/crictl; "
    "export CRI_CONFIG_FILE=/var/lib/rancher/rke2/agent/etc/crictl.yaml; "
    "$crictl ps -q --name kube-proxy | xargs -r $crictl stop"
)
ADVICE: Final = Advice(
    steps=(
        Step(
            "k3s runs kubelet and kube-proxy within its service. Restart it on this node:",
            (RESTARTS[Distribution.K3S],),
            kind=Distribution.K3S,
        ),
        Step(
            "RKE2 runs the kubelet within its service, and kube-proxy as a static pod. Restart the "
            "service of this node, and stop the container of kube-proxy, which the kubelet then "
            "starts again:",
            (RESTARTS[Distribution.RKE2], _STOP_KUBE_PROXY),
            kind=Distribution.RKE2,
        ),
        Step(
            "Restart the kubelet and kube-proxy of this node (in k3s and RKE2, their service):",
            (RESTARTS[Distribution.OTHER], _DELETE_KUBE_PROXY),
            kind=Distribution.OTHER,
        ),
        Step(
            "Restart everything else that watches: first the API servers, then the "
            "kube-controller-manager and the scheduler, then controllers in pods, such as those of "
            "the network, of ingresses and of operators.",
            kind=_KIND_RESTORED,
        ),
        Step(
            "At once: restart kube-controller-manager, or change any object of the kind that is "
            "affected (a label of a Service will do), so that the last event has a high version "
            "again. Deleting pods or deployments does not help a watch of Services.",
            kind=_KIND_REPLAYED,
        ),
        Step("Upgrade the API server to 1.8.8, 1.9.3 or later.", kind=_KIND_REPLAYED),
        Step(
            "If all API servers are newer, check whether etcd was restored from a backup: then "
            "restart them, so that their caches are rebuilt.",
            kind=_KIND_REPLAYED,
        ),
    ),
    runbook="WatchReplayed.md#nodeleakwatchreplayed",
)

RESTORE_LASTS: Final = timedelta(hours=6)
"""How long a restored etcd is reported, by the boot clock, if the kubelet is not restarted."""
_FIXED: Final = ((1, 8, 8), (1, 9, 3))
"""The first version with the fix of each branch."""
_ALTHOUGH_FIXED: Final = (
    ", although this version has the fix: check for an older API server beside it"
)
_EVENTS: Final = {
    Evidence.DELETED_BELOW: "a DELETED event with version {} after {} on the same watch",
    Evidence.REPLAYED: "an old ADDED or MODIFIED event, version {}, to a watch that had reached {}",
}
"""What the API server sent, by the evidence. Only an event proves a replay: an older list may come
from a server that lags, or from a restored etcd."""


def find(assessment: Assessment) -> Iterator[Finding]:
    snapshot = assessment.snapshot
    watches = snapshot.watches.known()
    yield from _find_restore(snapshot, watches)
    for watch in watches:
        is_valid = snapshot.uptime - watch.last_uptime <= EVIDENCE_LASTS
        if watch.evidence in _EVENTS and is_valid:
            yield _replay(watch)

    # The daemon watches pods and the Node. Without events of them, no finding means nothing.
    require_available(snapshot.pods, snapshot.node)


def _find_restore(snapshot: Snapshot, watches: Iterable[Watch]) -> Iterator[Finding]:
    """Yield a finding if etcd was restored, and the kubelet has not started since."""
    resets = [
        watch
        for watch in watches
        if watch.evidence is Evidence.RV_RESET
        and snapshot.uptime - watch.last_uptime <= RESTORE_LASTS
    ]
    if not resets:
        return

    noticed_at = max(watch.last for watch in resets)
    started_at = snapshot.kubelet_started
    if started_at is not None and started_at > noticed_at:
        return

    steps_back = join_names(
        [f"{reset.resource} from {reset.before} to {reset.version}" for reset in resets]
    )
    yield Finding(
        NAME,
        "etcd restored",
        f"etcd was restored from a backup: its versions went back ({steps_back}), "
        f"noticed at {format_time(noticed_at)}; whatever watches from an earlier version may hear "
        "nothing for hours; restart the kubelet and kube-proxy here, unless that was done since",
        since=min(watch.first for watch in resets),
        headline="etcd was restored from a backup: restart the kubelet and kube-proxy here",
        kinds=(_KIND_RESTORED, distribution(snapshot)),
    )


def _replay(watch: Watch) -> Finding:
    event = _EVENTS[watch.evidence].format(watch.version, watch.before)
    server = f" ({watch.server_version})" if watch.server_version else ""
    times = f"at {format_time(watch.last)}"
    if watch.count != 1:
        times = f"{watch.count} times since {format_time(watch.first)}, last {times}"

    effect = "clients that adopt this version process old events again and delete live objects"
    hint = _ALTHOUGH_FIXED if is_since(watch.server_version, _FIXED) else ""
    return Finding(
        NAME,
        f"{watch.resource} {watch.evidence.value}",
        f"{watch.resource}: the API server{server} sent {event}, {times}; {effect}{hint}",
        since=watch.first,
        kinds=(_KIND_REPLAYED,),
    )

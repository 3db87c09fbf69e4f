"""The API server sends old versions on a watch, and clients that adopt them delete live objects.

Before 1.8.8 and 1.9.3, API servers sent a DELETED event with the version of the object's last
update. A client that adopts the version of the last event (client-go did) watches again from there,
and receives old events as if they were new: an existing object is added and deleted once more.
Controllers then delete endpoints of live services.

Means: the API server sent the daemon an event older than what its watch had received or was started
from. The daemon itself never adopts a lower version. The finding ends an hour after the last such
event.
"""

from collections.abc import Iterator
from typing import Final

from agent.checks.detector import Advice, Noun, Step
from agent.model.assessment import Assessment
from agent.model.finding import Finding, Severity
from agent.model.snapshot import require_available
from agent.model.text import format_time
from agent.model.versions import is_since
from agent.model.watches import LASTS, Evidence

NAME = "replayed_watch"
SEVERITIES: Final = (Severity.WARNING,)
NOUN: Final = Noun(
    "watch that sends outdated events",
    "watches that send outdated events",
    headline="the API server sends outdated watch events",
)
ADVICE: Final = Advice(
    steps=(
        Step("Upgrade the API server to 1.8.8, 1.9.3 or later."),
        Step(
            "Until then, restart kube-controller-manager, or change any object of that kind (a "
            "label will do), so that the last event has a high version again."
        ),
        Step(
            "If all API servers are newer, check whether etcd was restored from a backup: then "
            "restart them, so that their caches are rebuilt."
        ),
    ),
    runbook="WatchReplayed.md#nodeleakwatchreplayed",
)

_FIXED: Final = ((1, 8, 8), (1, 9, 3))
_ALTHOUGH_FIXED: Final = (
    ", although this version has the fix: check for an older API server beside it"
)
_SHOWN: Final = {
    Evidence.DELETED_BELOW: "a DELETED event with version {} after {} on the same watch",
    Evidence.REPLAYED: "an old ADDED or MODIFIED event, version {}, to a watch that had reached {}",
}
"""Proof against the server. Lists may come from a server that lags, or from a restored etcd."""


def find(assessment: Assessment) -> Iterator[Finding]:
    snapshot = assessment.snapshot
    for watch in snapshot.watches.known():
        if watch.evidence not in _SHOWN or snapshot.uptime - watch.last_uptime > LASTS:
            continue
        shown = _SHOWN[watch.evidence].format(watch.version, watch.before)
        server = f" ({watch.server_version})" if watch.server_version else ""
        times = f"at {format_time(watch.last)}"
        if watch.count != 1:
            times = f"{watch.count} times since {format_time(watch.first)}, last {times}"
        effect = "clients that adopt this version process old events again and delete live objects"
        if is_since(watch.server_version, _FIXED):
            effect += _ALTHOUGH_FIXED
        message = f"{watch.resource}: the API server{server} sent {shown}, {times}; {effect}"
        yield Finding(NAME, f"{watch.resource} {watch.evidence.value}", message, since=watch.first)
    # Without events there is no evidence, so the absence of a finding means nothing.
    require_available(snapshot.pods, snapshot.node)

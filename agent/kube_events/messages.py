"""The Kubernetes Events of a report. Pure.

They are core/v1: Kubernetes up to 1.20 rejects an events.k8s.io Event about a Node outside of
`kube-system`. An Event about a Node is in `default` and has the node's name as its uid, like the
kubelet's: `kubectl describe node` up to 1.20 finds only these, later versions find both.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from agent.model.finding import Finding, Severity
from agent.model.release import Cleaning, Verdict
from agent.model.report import Report
from agent.model.snapshot import Pod, Snapshot, known_or
from agent.model.text import escape, rfc3339

_COMPONENT: Final = "nodeleak"
EXAMPLES: Final = 5
LONGEST: Final = 1024
"""Bytes of a message: the limit of events.k8s.io."""
_LONGEST_EXAMPLE: Final = 180
_LONGEST_NAME: Final = 200
"""Characters of the object's name in the Event's own name, which may have 253."""


class About(NamedTuple):
    """The involved object. `namespace`: empty if it has none."""

    kind: str
    namespace: str
    name: str
    uid: str


class EventSpec(NamedTuple):
    node: str
    about: About
    reason: str
    message: str
    severity: Severity = Severity.WARNING
    subject: str = ""
    """A network or a resource, if the object has several Events with one reason.

    Part of the Event's identity.
    """
    lasting: bool = True
    """Whether it is sent again while it is true; the others happened in this sync."""

    @property
    def namespace(self) -> str:
        """Of the Event: that of an object without one is `default`."""
        return self.about.namespace or "default"

    @property
    def name(self) -> str:
        """The same in every process, so that a restarted agent patches its own Events."""
        about = self.about
        parts = (self.node, self.reason, about.kind, self.namespace, about.uid, self.subject)
        identity = "\0".join(parts).encode(errors="backslashreplace")
        digest = hashlib.sha256(identity).hexdigest()[:16]
        return f"{about.name[:_LONGEST_NAME].rstrip('-.')}.{_COMPONENT}.{digest}"

    @property
    def path(self) -> str:
        """Where it is created; a patch adds its name."""
        return f"/api/v1/namespaces/{self.namespace}/events"

    def event(self, at: datetime) -> dict[str, Any]:
        """Return the object to create, of the first time that this happened."""
        about = {
            "apiVersion": "v1",
            "kind": self.about.kind,
            "name": self.about.name,
            "uid": self.about.uid,
        }
        if self.about.namespace:
            about["namespace"] = self.about.namespace

        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "involvedObject": about,
            "reason": self.reason,
            "source": {"component": _COMPONENT, "host": self.node},
            "reportingComponent": _COMPONENT,
            "reportingInstance": self.node,
            "firstTimestamp": rfc3339(at),
            **self.changes(at, 1),
        }

    def changes(self, at: datetime, count: int | None) -> dict[str, Any]:
        """Return the patch for a repeated Event; `count` None: leave it unchanged."""
        kind = "Normal" if self.severity is Severity.INFO else "Warning"
        changes = {"type": kind, "message": self.message, "lastTimestamp": rfc3339(at)}
        return changes if count is None else {**changes, "count": count}


def event_specs(report: Report) -> Iterator[EventSpec]:
    """Yield the Events of releases, and of confirmed findings.

    Findings have one Event for each detector and network or resource, and one for each pod.
    """
    snapshot = report.assessment.snapshot
    node = snapshot.node_name
    about_node = About(kind="Node", namespace="", name=node, uid=node)
    if report.cleaning is not None:
        yield from _released(about_node, report.cleaning)

    confirmed = [tracked.finding for tracked in report.sorted_findings if tracked.confirmed]
    groups = defaultdict(list)
    for finding in confirmed:
        subject = finding.network or finding.resource
        groups[about_node, finding.detector, subject].append(finding)
    for finding in confirmed:
        for pod in _affected(finding, snapshot):
            namespace, _, name = pod.name.partition("/")
            about_pod = About(kind="Pod", namespace=namespace, name=name, uid=pod.uid)
            groups[about_pod, finding.detector, ""].append(finding)

    for (about, detector, subject), findings in groups.items():
        worst = max(findings, key=lambda finding: finding.severity.rank)
        yield EventSpec(
            node,
            about,
            reason=detector.title().replace("_", ""),
            message=_message(subject, findings),
            severity=worst.severity,
            subject=subject,
        )


def _affected(finding: Finding, snapshot: Snapshot) -> Iterator[Pod]:
    """Yield the affected pods, by uid.

    A name is not enough, because a leaked address's pod may have a successor.
    """
    rejected = (pod.uid for pod in finding.rejected_pods)
    uids = {*finding.identity, *finding.affected, *rejected}
    for pod in known_or(snapshot.pods, ()):
        if pod.uid and pod.uid in uids:
            yield pod


def _released(about_node: About, cleaning: Cleaning) -> Iterator[EventSpec]:
    """Yield one Event for each network in which addresses were released."""
    released = defaultdict(list)
    for outcome in cleaning.outcomes:
        if outcome.verdict is Verdict.RELEASED:
            request = outcome.request
            pod = f" (of pod {request.pod})" if request.pod else ""
            for reservation in request.reservations:
                released[reservation.network].append(f"{reservation.ip}{pod}")

    for network, addresses in released.items():
        count = len(addresses)
        yield EventSpec(
            about_node.name,
            about_node,
            reason="ReleasedReservation",
            message=_list(f"released leaked addresses in {network} ({count})", addresses, count),
            severity=Severity.INFO,
            subject=network,
            lasting=False,
        )


def _message(subject: str, findings: Sequence[Finding]) -> str:
    if len(findings) == 1:
        return _shorten(findings[0].message, LONGEST)

    count = sum(finding.count for finding in findings)
    texts = [finding.message for finding in findings if finding.count == 1]
    where = f" in {subject}" if subject else ""
    return _list(f"{count} findings{where}", texts, count)


def _list(head: str, texts: Sequence[str], count: int) -> str:
    """Return the head with the first texts. `count`: of all, also of those that have no text."""
    shown = [_shorten(text, _LONGEST_EXAMPLE) for text in texts[:EXAMPLES]]
    more = f" | and {count - len(shown)} more" if count > len(shown) else ""
    return _shorten(f"{head}: {' | '.join(shown)}{more}", LONGEST)


def _shorten(text: str, limit: int) -> str:
    """Return the text without control characters. `limit`: bytes."""
    escaped = escape(text)
    raw = escaped.encode()
    if len(raw) <= limit:
        return escaped
    return f"{raw[: limit - 3].decode(errors='ignore')}..."

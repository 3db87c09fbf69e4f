"""What Kubernetes Events a round gives cause for, and how they look. Pure.

They are core/v1: up to 1.20 an Event of events.k8s.io about a Node is refused outside of `kube-system`. One about a
Node lies in `default` and has the node's name for a uid, as the kubelet's have: `kubectl describe node` up to 1.20
looks for nothing else, and later ones look for both.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from agent.checks.registry import DETECTORS
from agent.model.finding import Finding, Severity
from agent.model.release import Cleaning, Verdict
from agent.model.report import Report
from agent.model.snapshot import Known, Pod, Snapshot
from agent.sources.printable import escape

COMPONENT: Final = "nodeleak"
EXAMPLES: Final = 5
LONGEST: Final = 1024
"""Bytes of a message: what events.k8s.io takes."""
_LONGEST_EXAMPLE: Final = 180
_LONGEST_NAME: Final = 200
"""Of what an Event is about, in the Event's own name, which may have 253 characters."""


def reason(detector: str) -> str:
    """Spell a detector's name as reasons are: `leaked_reservation` is `LeakedReservation`."""
    return "".join(word.capitalize() for word in detector.split("_"))


RELEASED: Final = "ReleasedReservation"
REASONS: Final = (*(reason(detector.NAME) for detector in DETECTORS), RELEASED)


@dataclass(frozen=True, slots=True)
class About:
    """The object that an Event is about."""

    kind: str
    namespace: str
    """Empty: it has none."""
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class EventSpec:
    """What one Event should say now."""

    node: str
    about: About
    reason: str
    type: str
    message: str
    subject: str = ""
    """What it is about beside the object: a network or a resource. Part of the Event's identity."""
    lasting: bool = True
    """It will be said again as long as it is true; what is not lasting happened in this round."""

    @property
    def namespace(self) -> str:
        return self.about.namespace or "default"

    @property
    def name(self) -> str:
        """The Event's name, the same in every process: a restarted agent meets its own Events, and makes no others."""
        identity = (self.node, self.reason, self.about.kind, self.namespace, self.about.uid, self.subject)
        digest = hashlib.sha256("\0".join(identity).encode(errors="backslashreplace")).hexdigest()[:16]
        return f"{self.about.name[:_LONGEST_NAME].rstrip('-.')}.{COMPONENT}.{digest}"

    @property
    def path(self) -> str:
        """Where Events of its namespace are created."""
        return f"/api/v1/namespaces/{self.namespace}/events"

    def event(self, at: datetime) -> dict[str, Any]:
        """Return the Event, as it begins."""
        about = {"apiVersion": "v1", "kind": self.about.kind, "name": self.about.name, "uid": self.about.uid}
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "involvedObject": about | ({"namespace": self.about.namespace} if self.about.namespace else {}),
            "reason": self.reason,
            "source": {"component": COMPONENT, "host": self.node},
            "reportingComponent": COMPONENT,
            "reportingInstance": self.node,
            "firstTimestamp": stamp(at),
            **self.now(at, 1),
        }

    def now(self, at: datetime, count: int | None) -> dict[str, Any]:
        """Return what changes in an Event when it is said again; None: the count stays as it is."""
        said = {"type": self.type, "message": self.message, "lastTimestamp": stamp(at)}
        return said if count is None else {**said, "count": count}


def stamp(at: datetime) -> str:
    """Write a time as the API server reads it."""
    return f"{at:%Y-%m-%dT%H:%M:%S}Z"


def event_specs(report: Report) -> Iterator[EventSpec]:
    """Yield what should be told: the node's first, of which each stands for everything of its kind.

    Confirmed findings only, one notice for a detector and a network or resource, and one for a detector and a pod.
    """
    snapshot = report.assessment.snapshot
    node = snapshot.node_name
    confirmed = [judged.finding for judged in report.findings if judged.confirmed]
    by_place: defaultdict[tuple[str, str], list[Finding]] = defaultdict(list)
    by_pod: defaultdict[tuple[str, Pod], list[Finding]] = defaultdict(list)
    for finding in confirmed:
        by_place[finding.detector, finding.network or finding.resource].append(finding)
        for pod in _affected(finding, snapshot):
            by_pod[finding.detector, pod].append(finding)
    if report.cleaning is not None:
        yield from _released(node, report.cleaning)
    for (detector, place), findings in by_place.items():
        yield _notice(node, _the_node(node), detector, place, findings)
    for (detector, pod), findings in by_pod.items():
        namespace, _, name = pod.name.partition("/")
        yield _notice(node, About("Pod", namespace, name, pod.uid), detector, "", findings)


def _the_node(node: str) -> About:
    return About("Node", "", node, node)


def _affected(finding: Finding, snapshot: Snapshot) -> Iterator[Pod]:
    """Yield the pods that the trouble is with, which the finding tells by uid.

    A name alone is not enough: that of a leaked address's pod may be its successor's.
    """
    uids = {*finding.identity, *finding.affected, *(one.uid for one in finding.rejected_pods)}
    if isinstance(snapshot.pods, Known):
        yield from (pod for pod in snapshot.pods.value if pod.uid and pod.uid in uids)


def _notice(node: str, about: About, detector: str, subject: str, findings: Sequence[Finding]) -> EventSpec:
    is_good_to_know = all(finding.severity is Severity.INFO for finding in findings)
    return EventSpec(
        node=node,
        about=about,
        reason=reason(detector),
        type="Normal" if is_good_to_know else "Warning",
        message=_together(f"{len(findings)} findings{_in(subject)}", [finding.message for finding in findings]),
        subject=subject,
    )


def _released(node: str, cleaning: Cleaning) -> Iterator[EventSpec]:
    released: defaultdict[str, list[str]] = defaultdict(list)
    for outcome in cleaning.outcomes:
        if outcome.verdict is Verdict.RELEASED:
            pod = f" (of pod {outcome.candidate.pod})" if outcome.candidate.pod else ""
            for one in outcome.candidate.reservations:
                released[one.network].append(f"{one.ip}{pod}")
    for network, addresses in released.items():
        message = _listed(f"leaked addresses released{_in(network)} ({len(addresses)})", addresses)
        yield EventSpec(node, _the_node(node), RELEASED, "Normal", message, network, lasting=False)


def _in(place: str) -> str:
    return f" in {place}" if place else ""


def _together(head: str, texts: Sequence[str]) -> str:
    """Write what several findings say; one alone speaks for itself."""
    return _listed(head, texts) if len(texts) > 1 else _within(LONGEST, texts[0])


def _listed(head: str, texts: Sequence[str]) -> str:
    shown = [_within(_LONGEST_EXAMPLE, text) for text in texts[:EXAMPLES]]
    more = f" | and {len(texts) - len(shown)} more" if len(texts) > len(shown) else ""
    return _within(LONGEST, f"{head}: {' | '.join(shown)}{more}")


def _within(most: int, text: str) -> str:
    """Return what can be printed of a text, cut to so many bytes."""
    said = escape(text)
    raw = said.encode()
    return said if len(raw) <= most else f"{raw[: most - 3].decode(errors='ignore')}..."

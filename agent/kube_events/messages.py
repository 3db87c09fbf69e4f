"""The Kubernetes Events of a report, and how often they are sent. Pure.

They are core/v1: Kubernetes up to 1.20 rejects an events.k8s.io Event about a Node outside of `kube-system`. An Event
about a Node is in `default` and has the node's name as its uid, like the kubelet's: `kubectl describe node` up to 1.20
finds only these, later versions find both.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from agent.checks.registry import DETECTORS
from agent.model.finding import Finding, Severity
from agent.model.release import Cleaning, Verdict
from agent.model.report import Report
from agent.model.snapshot import Known, Pod, Snapshot
from agent.model.text import escape, rfc3339
from agent.model.token_bucket import TokenBucket

COMPONENT: Final = "nodeleak"
EXAMPLES: Final = 5
LONGEST: Final = 1024
"""Bytes of a message: the limit of events.k8s.io."""
_LONGEST_EXAMPLE: Final = 180
_LONGEST_NAME: Final = 200
"""Characters of the object's name in the Event's own name, which may have 253."""
REPEAT_AFTER: Final = timedelta(minutes=5)
BURST: Final = 25
"""As in client-go, but for the whole agent, not for each object: 200 rejected pods are 200 objects."""
TOKEN_INTERVAL: Final = timedelta(seconds=12)
"""Until the bucket gets one token back: five a minute for the whole agent."""
_FORGET_AFTER: Final = timedelta(hours=1)
"""When the server has expired the Event too."""


def reason(detector: str) -> str:
    """Write a detector's name in camel case: `leaked_reservation` is `LeakedReservation`."""
    return "".join(word.capitalize() for word in detector.split("_"))


RELEASED: Final = "ReleasedReservation"
REASONS: Final = (*(reason(detector.NAME) for detector in DETECTORS), RELEASED)


class About(NamedTuple):
    """The involved object. `namespace`: empty if it has none."""

    kind: str
    namespace: str
    name: str
    uid: str


class EventSpec(NamedTuple):
    """The content of one Event."""

    node: str
    about: About
    reason: str
    type: str
    message: str
    subject: str = ""
    """A network or a resource, where the object has several Events with one reason. Part of the Event's identity."""
    lasting: bool = True
    """Whether it is sent again while it is true; the others happened in this sync."""
    critical: bool = False
    """One that has become critical does not wait because it was sent before."""

    @property
    def namespace(self) -> str:
        return self.about.namespace or "default"

    @property
    def name(self) -> str:
        """The Event's name, the same in every process, so that a restarted agent patches its own Events."""
        identity = (self.node, self.reason, self.about.kind, self.namespace, self.about.uid, self.subject)
        digest = hashlib.sha256("\0".join(identity).encode(errors="backslashreplace")).hexdigest()[:16]
        return f"{self.about.name[:_LONGEST_NAME].rstrip('-.')}.{COMPONENT}.{digest}"

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/events"

    def event(self, at: datetime) -> dict[str, Any]:
        """Return the new Event."""
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
            "firstTimestamp": rfc3339(at),
            **self.changes(at, 1),
        }

    def changes(self, at: datetime, count: int | None) -> dict[str, Any]:
        """Return the patch for a repeated Event; `count` None: leave it unchanged."""
        changes = {"type": self.type, "message": self.message, "lastTimestamp": rfc3339(at)}
        return changes if count is None else {**changes, "count": count}


def event_specs(report: Report) -> Iterator[EventSpec]:
    """Yield the Events of releases; of confirmed findings by detector and network or resource, and by pod."""
    snapshot = report.assessment.snapshot
    node = snapshot.node_name
    about_node = About("Node", "", node, node)
    of_node: defaultdict[tuple[str, str], list[Finding]] = defaultdict(list)
    of_pods: defaultdict[tuple[str, Pod], list[Finding]] = defaultdict(list)
    for finding in (tracked.finding for tracked in report.sorted_findings if tracked.confirmed):
        of_node[finding.detector, finding.network or finding.resource].append(finding)
        for pod in _affected(finding, snapshot):
            of_pods[finding.detector, pod].append(finding)
    if report.cleaning is not None:
        yield from _released(about_node, report.cleaning)
    for (detector, subject), findings in of_node.items():
        yield _event_spec(node, about_node, detector, subject, findings)
    for (detector, pod), findings in of_pods.items():
        namespace, _, name = pod.name.partition("/")
        yield _event_spec(node, About("Pod", namespace, name, pod.uid), detector, "", findings)


def _affected(finding: Finding, snapshot: Snapshot) -> Iterator[Pod]:
    """Yield the affected pods, by uid: a name is not enough, because a leaked address's pod may have a successor."""
    uids = {*finding.identity, *finding.affected, *(rejected.uid for rejected in finding.rejected_pods)}
    if isinstance(snapshot.pods, Known):
        yield from (pod for pod in snapshot.pods.value if pod.uid and pod.uid in uids)


def _event_spec(node: str, about: About, detector: str, subject: str, findings: Sequence[Finding]) -> EventSpec:
    severities = {finding.severity for finding in findings}
    kind, critical = "Normal" if severities == {Severity.INFO} else "Warning", Severity.CRITICAL in severities
    return EventSpec(node, about, reason(detector), kind, _message(subject, findings), subject, critical=critical)


def _released(about_node: About, cleaning: Cleaning) -> Iterator[EventSpec]:
    released: defaultdict[str, list[str]] = defaultdict(list)
    for outcome in cleaning.outcomes:
        if outcome.verdict is Verdict.RELEASED:
            pod = f" (of pod {outcome.request.pod})" if outcome.request.pod else ""
            for reservation in outcome.request.reservations:
                released[reservation.network].append(f"{reservation.ip}{pod}")
    for network, addresses in released.items():
        message = _list(f"released leaked addresses in {network} ({len(addresses)})", addresses, len(addresses))
        yield EventSpec(about_node.name, about_node, RELEASED, "Normal", message, network, lasting=False)


def _message(subject: str, findings: Sequence[Finding]) -> str:
    if len(findings) == 1:
        return _shorten(findings[0].message, LONGEST)
    count = sum(finding.count for finding in findings)
    texts = [finding.message for finding in findings if finding.count == 1]
    return _list(f"{count} findings{f' in {subject}' if subject else ''}", texts, count)


def _list(head: str, texts: Sequence[str], count: int) -> str:
    """`count`: how many there are, with those that have no text."""
    shown = [_shorten(text, _LONGEST_EXAMPLE) for text in texts[:EXAMPLES]]
    more = f" | and {count - len(shown)} more" if count > len(shown) else ""
    return _shorten(f"{head}: {' | '.join(shown)}{more}", LONGEST)


def _shorten(text: str, limit: int) -> str:
    """Escape a text and cut it to so many bytes."""
    raw = escape(text).encode()
    return raw.decode() if len(raw) <= limit else f"{raw[: limit - 3].decode(errors='ignore')}..."


class RateLimiter:
    """Sends new Events at once, lasting ones every five minutes, and never many at a time, by the boot clock."""

    def __init__(self) -> None:
        self._bucket = TokenBucket(BURST, TOKEN_INTERVAL)
        self._sent: dict[str, tuple[timedelta, tuple[bool, str]]] = {}
        """When, and how severe: whether critical, and the type (`Normal` sorts before `Warning`)."""
        self._waiting: frozenset[str] = frozenset()

    def due(self, specs: Iterable[EventSpec], now: timedelta) -> tuple[list[EventSpec], int]:
        """Return what to send now, and how many others are newly over the limit: they are sent later if still true."""
        self._bucket.fill(now)
        self._sent = {name: sent for name, sent in self._sent.items() if now - sent[0] < _FORGET_AFTER}
        wanted = sorted((spec for spec in specs if self._is_due(spec, now)), key=self._priority)
        tokens = self._bucket.take(len(wanted))
        due, rest = wanted[:tokens], wanted[tokens:]
        self._sent |= {spec.name: (now, (spec.critical, spec.type)) for spec in due}
        over_limit = sum(not spec.lasting or spec.name not in self._waiting for spec in rest)
        self._waiting = frozenset(spec.name for spec in rest if spec.lasting)
        return due, over_limit

    def _is_due(self, spec: EventSpec, now: timedelta) -> bool:
        sent = self._last_sent(spec)
        return not spec.lasting or sent is None or now - sent >= REPEAT_AFTER

    def _priority(self, spec: EventSpec) -> tuple[bool, timedelta]:
        # What is critical, and what can be sent only now; of each, what was never sent, then what was sent longest ago.
        return spec.lasting and not spec.critical, self._last_sent(spec) or timedelta.min

    def _last_sent(self, spec: EventSpec) -> timedelta | None:
        """Return when it was sent; None if never, or if it is more severe now."""
        at, severity = self._sent.get(spec.name, (None, (False, "")))
        return at if severity >= (spec.critical, spec.type) else None

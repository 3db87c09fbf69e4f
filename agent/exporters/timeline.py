"""Events on the node, in order, from a snapshot and the release journal. Pure.

Each event comes from one record and has that record's time. Clocks differ: a time of the API server, or between two
snapshots, is not exact.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

from agent.checks import runtime as runtimes
from agent.checks.addresses import leaked_reservation
from agent.model.devices import DeviceTransition, TransitionKind
from agent.model.rejections import Rejection, RejectionKind
from agent.model.release import Verdict
from agent.model.report import Report
from agent.model.runtime import DOCKER
from agent.model.snapshot import InsufficientData, Pod, Snapshot, Unavailable, known_or
from agent.model.text import truncate

_NONE, _SECOND = timedelta(0), timedelta(seconds=1)
_UNDATED_SOURCES = {"cni_results", "node", "watches"}
"""Sources without times: a timeline lacks nothing without them."""


class EventKind(StrEnum):
    """Of two events at one time, the earlier in this list comes first."""

    BOOTED = "booted"
    DOCKER_STARTED = "docker_started"
    RUNTIME_STARTED = "runtime_started"
    KUBELET_STARTED = "kubelet_started"
    DEVICE_MANAGER_STARTED = "device_manager_started"
    SOCKET_GONE = "socket_gone"
    LOST = "lost"
    DROPPED = "dropped"
    REJECTED = "rejected"
    SOCKET_APPEARED = "socket_appeared"
    REGISTERED = "registered"
    LEAKED = "leaked"
    RELEASED = "released"
    RESTORED = "restored"


@dataclass(frozen=True, slots=True)
class Event:
    at: datetime
    exact: bool
    """False: a bound, whole seconds only, or another clock than the node's."""
    kind: EventKind
    subject: str
    text: str
    source: str


@dataclass(frozen=True, slots=True)
class Timeline:
    node: str
    taken_at: datetime
    events: tuple[Event, ...]
    """Oldest first."""
    unavailable: tuple[Unavailable, ...]
    """Sources of events that could not be read, and checks that failed."""
    warnings: tuple[str, ...] = ()
    """Damage in records of the past: events may be missing."""
    undated: int = 0
    """Rejected pods without a known time."""
    api_skew: timedelta | None = None
    """How far the API server's clock is ahead of the node's; None: not known."""

    @property
    def complete(self) -> bool:
        return not self.unavailable

    def last(self, span: timedelta) -> "Timeline":
        return replace(self, events=tuple(event for event in self.events if self.taken_at - event.at <= span))


class Release(Protocol):
    """An entry of the journal."""

    @property
    def name(self) -> str: ...
    @property
    def at(self) -> datetime: ...
    @property
    def by(self) -> str: ...
    @property
    def pod(self) -> str: ...
    @property
    def ips(self) -> tuple[str, ...]: ...
    @property
    def verdict(self) -> Verdict | None: ...
    @property
    def restored(self) -> datetime | None: ...


def build_timeline(report: Report, releases: Iterable[Release] | Unavailable, damage: Iterable[str] = ()) -> Timeline:
    """Merge the events. `releases`: the journal's entries; `damage`: what cannot be read in it."""
    snapshot = report.assessment.snapshot
    events = [*_process_starts(snapshot), *_transitions(snapshot), *_rejections(report), *_leaks(report)]
    if not isinstance(releases, Unavailable):
        events += _releases(releases)
    return Timeline(
        node=snapshot.node_name,
        taken_at=snapshot.taken_at,
        events=tuple(_in_order(events)),
        unavailable=tuple(_unavailable(report, releases)),
        warnings=(*_state_warnings(snapshot), *(f"journal: {line}" for line in damage)),
        undated=sum(1 for _, rejection in _rejected(snapshot) if rejection.at is None),
        api_skew=snapshot.api_skew,
    )


def _in_order(events: Iterable[Event]) -> list[Event]:
    events, rank = tuple(events), list(EventKind)
    starts = [event.at for event in events if event.kind is EventKind.DEVICE_MANAGER_STARTED]

    def place(event: Event) -> tuple[datetime, int, str]:
        at = event.at
        if event.kind is EventKind.REJECTED:
            # The device manager starts before any pod is admitted; a rejection's time has whole seconds only.
            at = max([at, *(start for start in starts if _NONE <= start - at < _SECOND)])
        return at, rank.index(event.kind), event.subject

    return sorted(events, key=place)


def _unavailable(report: Report, releases: object) -> Iterator[Unavailable]:
    yield from (one for one in report.unavailable if one.source not in _UNDATED_SOURCES)
    yield from (Unavailable(gap.detector, gap.why) for gap in report.gaps if gap.broken)
    if isinstance(releases, Unavailable):
        yield releases


def _process_starts(snapshot: Snapshot) -> Iterator[Event]:
    if (processes := known_or(snapshot.processes, None)) is None:
        return
    yield Event(processes.booted, True, EventKind.BOOTED, "node", "the node booted", "processes")
    starts = [(processes.kubelet, "kubelet", EventKind.KUBELET_STARTED)]
    for name in runtimes.names(snapshot):
        kind = EventKind.DOCKER_STARTED if name == DOCKER else EventKind.RUNTIME_STARTED
        starts.append((processes.start_of(name), name, kind))
    for started, name, kind in starts:
        if started is not None:
            yield Event(started, True, kind, name, f"{name} started", "processes")


def _transitions(snapshot: Snapshot) -> Iterator[Event]:
    try:
        transitions = snapshot.device_plugins.known().history
    except InsufficientData:
        return
    for one in transitions:
        kind, subject, text = _describe_transition(one)
        yield Event(one.at, one.exact, kind, subject, text, "device_plugins")


def _state_warnings(snapshot: Snapshot) -> Iterator[str]:
    plugins = known_or(snapshot.device_plugins, None)
    if plugins and plugins.trouble:
        yield f"device_plugins: {plugins.trouble}"


def _describe_transition(transition: DeviceTransition) -> tuple[EventKind, str, str]:
    resource, name = transition.resource, transition.socket
    socket = f"{name} ({resource})" if resource else name
    match transition.what:
        case TransitionKind.KUBELET_STARTED:
            text = "the kubelet's device manager started: it has no plugin until each registers again"
            return EventKind.DEVICE_MANAGER_STARTED, "kubelet", text
        case TransitionKind.SOCKET_APPEARED:
            return EventKind.SOCKET_APPEARED, name, f"plugin socket {socket} appeared"
        case TransitionKind.SOCKET_GONE:
            return EventKind.SOCKET_GONE, name, f"plugin socket {socket} was removed"
        case TransitionKind.REGISTERED:
            return EventKind.REGISTERED, resource, f"{resource} registered: the kubelet has healthy devices of it"
        case TransitionKind.LOST:
            return EventKind.LOST, resource, f"the kubelet lost {resource}: it has no healthy device of it"
        case TransitionKind.DROPPED:
            text = f"the kubelet dropped {resource}: the node has none until it registers again"
            return EventKind.DROPPED, resource, text


def _rejected(snapshot: Snapshot) -> Iterator[tuple[Pod, Rejection]]:
    return ((pod, pod.rejection) for pod in known_or(snapshot.pods, ()) if pod.rejection is not None)


def _rejections(report: Report) -> Iterator[Event]:
    snapshot = report.assessment.snapshot
    causes = {pod.uid: pod for one in report.findings if one.confirmed for pod in one.finding.rejected_pods}
    for pod, rejection in _rejected(snapshot):
        if rejection.at is None:
            continue
        found = causes.get(pod.uid)
        outcome = f"; {found.cause.value}, {found.pod_outcome.value}" if found else ""
        at = _node_time(rejection.at, snapshot.api_skew if rejection.by_api else None)
        text = f"pod {pod.name} was rejected: {_why(rejection)}{outcome}"
        # Not exact by the node's own clock either: whole seconds.
        yield Event(at, False, EventKind.REJECTED, pod.name, text, "pods")


def _node_time(at: datetime, skew: timedelta | None) -> datetime:
    try:
        return at - (skew or _NONE)
    except OverflowError:
        return at


def _why(rejection: Rejection) -> str:
    resource = rejection.resource or "a device"
    match rejection.refused:
        case RejectionKind.UNREGISTERED:
            return f"{resource} was not registered with the kubelet"
        case RejectionKind.NO_HEALTHY:
            return f"the kubelet had no healthy device of {resource}"
        case RejectionKind.INSUFFICIENT:
            return f"too few devices of {resource}{_amounts(rejection)}"
        case RejectionKind.PLUGIN_GONE:
            return f"the plugin of {resource} was gone"
        case RejectionKind.NO_CAPACITY:
            return f"the node had no {resource}"
        case RejectionKind.OTHER:
            return truncate(rejection.message)


def _amounts(rejection: Rejection) -> str:
    if rejection.requested is None or rejection.available is None:
        return ""
    return f" (requested {rejection.requested}, available {rejection.available})"


def _leaks(report: Report) -> Iterator[Event]:
    for tracked in report.sorted_findings:
        finding = tracked.finding
        if tracked.confirmed and finding.detector == leaked_reservation.NAME:
            # The earliest time at which it can have leaked.
            yield Event(
                tracked.since, False, EventKind.LEAKED, finding.subject, f"leak: {finding.message}", "reservations"
            )


def _releases(releases: Iterable[Release]) -> Iterator[Event]:
    for entry in releases:
        if entry.verdict is not Verdict.RELEASED:
            continue
        ips = ", ".join(entry.ips)
        of_pod = f" of pod {entry.pod}" if entry.pod else ""
        text = f"{ips}{of_pod} was released by `{entry.by}`, journal entry {entry.name}"
        yield Event(entry.at, True, EventKind.RELEASED, ips, text, "journal")
        if entry.restored is not None:
            text = f"{ips}{of_pod} was restored, journal entry {entry.name}"
            yield Event(entry.restored, True, EventKind.RESTORED, ips, text, "journal")

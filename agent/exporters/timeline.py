"""What happened on the node, in order: the events that a look and the journal know of. Pure, and judges nothing.

Each comes from one record, and carries that record's word for when. Clocks differ: what the API server dates, and what
lies between two looks, is not exact.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

from agent.checks.addresses import leaked_reservation
from agent.checks.devices.clocks import plugins
from agent.model.devices import DeviceTransition, TransitionKind
from agent.model.rejections import Rejection, RejectionKind
from agent.model.release import Verdict
from agent.model.report import Report
from agent.model.snapshot import InsufficientData, Known, Pod, ProcessStartTimes, Snapshot, Unavailable, known_or

_LONGEST_QUOTE = 200
_NONE, _SECOND = timedelta(0), timedelta(seconds=1)


class What(StrEnum):
    """The closed list of what a timeline tells; of two things in one moment the earlier in this list comes first."""

    BOOTED = "booted"
    DOCKER_STARTED = "docker_started"
    KUBELET_STARTED = "kubelet_started"
    DEVICE_MANAGER_STARTED = "device_manager_started"
    SOCKET_GONE = "socket_gone"
    LOST = "lost"
    DROPPED = "dropped"
    REFUSED = "refused"
    SOCKET_APPEARED = "socket_appeared"
    REGISTERED = "registered"
    LEAKED = "leaked"
    RELEASED = "released"
    RESTORED = "restored"


@dataclass(frozen=True, slots=True)
class Event:
    at: datetime
    exact: bool
    """False: a bound by the record's clock, or another clock than the node's."""
    what: What
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
    """What events would come from and was not read, or not judged."""
    warnings: tuple[str, ...] = ()
    """What is damaged in the records of the past: there may have been more."""
    undated: int = 0
    """Refused pods of which no record says when."""
    api_skew: timedelta | None = None
    """How far the API server's clock is ahead of the node's; None: not known."""

    @property
    def complete(self) -> bool:
        return not self.unavailable

    def last(self, span: timedelta) -> "Timeline":
        """Return what happened no longer ago."""
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
    """Merge what is known. `releases`: the journal's entries; `damage`: what cannot be read in it."""
    snapshot = report.assessment.snapshot
    events = [*_daemons(snapshot), *_milestones(snapshot), *_refusals(report), *_leaks(report)]
    if not isinstance(releases, Unavailable):
        events += _releases(releases)
    return Timeline(
        node=snapshot.node_name,
        taken_at=snapshot.taken_at,
        events=tuple(_in_order(events)),
        unavailable=tuple(_unread(report, releases)),
        warnings=(*_trouble(snapshot), *(f"journal: {line}" for line in damage)),
        undated=sum(1 for _, rejection in _refused(snapshot) if rejection.at is None),
        api_skew=snapshot.api_skew,
    )


def _in_order(events: Iterable[Event]) -> list[Event]:
    events, rank = tuple(events), list(What)
    starts = [event.at for event in events if event.what is What.DEVICE_MANAGER_STARTED]

    def place(event: Event) -> tuple[datetime, int, str]:
        at = event.at
        if event.what is What.REFUSED:
            # No pod is admitted before the device manager has started; the second in which both fell is cut off.
            at = max([at, *(start for start in starts if _NONE <= start - at < _SECOND)])
        return at, rank.index(event.what), event.subject

    return sorted(events, key=place)


def _unread(report: Report, releases: object) -> Iterator[Unavailable]:
    """Tell what the timeline lacks. libcni's cache only names pods; node object and watches date nothing."""
    yield from (one for one in report.unavailable if one.source not in {"cni_results", "node", "watches"})
    yield from (Unavailable(gap.detector, gap.why) for gap in report.gaps if gap.broken)
    if isinstance(releases, Unavailable):
        yield releases


def _daemons(snapshot: Snapshot) -> Iterator[Event]:
    if not isinstance(snapshot.processes, Known):
        return
    processes = snapshot.processes.value
    yield Event(processes.booted, True, What.BOOTED, "node", "the node booted", "processes")
    yield from _started(processes)


def _started(processes: ProcessStartTimes) -> Iterator[Event]:
    for name, started, what in (
        ("docker", processes.docker, What.DOCKER_STARTED),
        ("kubelet", processes.kubelet, What.KUBELET_STARTED),
    ):
        if started is not None:
            yield Event(started, True, what, name, f"{name} started", "processes")


def _milestones(snapshot: Snapshot) -> Iterator[Event]:
    try:
        transitions = plugins(snapshot).history
    except InsufficientData:
        return
    for one in transitions:
        what, subject, text = _said(one)
        yield Event(one.at, one.exact, what, subject, text, "device_plugins")


def _trouble(snapshot: Snapshot) -> Iterator[str]:
    plugins = known_or(snapshot.device_plugins, None)
    if plugins and plugins.trouble:
        yield f"device_plugins: {plugins.trouble}"


def _said(transition: DeviceTransition) -> tuple[What, str, str]:
    resource, name = transition.resource, transition.socket
    socket = f"{name} ({resource})" if resource else name
    match transition.what:
        case TransitionKind.KUBELET_STARTED:
            text = "the kubelet's device manager started: it knows no plugin until each registers again"
            return What.DEVICE_MANAGER_STARTED, "kubelet", text
        case TransitionKind.SOCKET_APPEARED:
            return What.SOCKET_APPEARED, name, f"the plugin socket {socket} appeared"
        case TransitionKind.SOCKET_GONE:
            return What.SOCKET_GONE, name, f"the plugin socket {socket} went away"
        case TransitionKind.REGISTERED:
            return What.REGISTERED, resource, f"{resource} was registered: the kubelet knows healthy devices of it"
        case TransitionKind.LOST:
            return What.LOST, resource, f"the kubelet lost {resource}: it knows no healthy device of it"
        case TransitionKind.DROPPED:
            return (
                What.DROPPED,
                resource,
                f"the kubelet dropped {resource}: the node has none, until it registers again",
            )


def _refused(snapshot: Snapshot) -> Iterator[tuple[Pod, Rejection]]:
    pods = known_or(snapshot.pods, ())
    return ((pod, pod.rejection) for pod in pods if pod.rejection is not None)


def _refusals(report: Report) -> Iterator[Event]:
    snapshot = report.assessment.snapshot
    judged = {pod.uid: pod for one in report.findings if one.confirmed for pod in one.finding.rejected_pods}
    for pod, rejection in _refused(snapshot):
        if rejection.at is None:
            continue
        rejected_pods = judged.get(pod.uid)
        verdict = f"; {rejected_pods.cause.value}, {rejected_pods.pod_outcome.value}" if rejected_pods else ""
        text = f"the pod {pod.name} was refused: {_why(rejection)}{verdict}"
        # Its clocks count whole seconds, even the node's own.
        yield Event(
            _by_node(rejection.at, snapshot.api_skew if rejection.by_api else None),
            False,
            What.REFUSED,
            pod.name,
            text,
            "pods",
        )


def _by_node(at: datetime, skew: timedelta | None) -> datetime:
    try:
        return at - (skew or _NONE)
    except OverflowError:
        return at


def _why(rejection: Rejection) -> str:
    resource = rejection.resource or "a device"
    match rejection.refused:
        case RejectionKind.UNREGISTERED:
            return f"the kubelet did not know {resource}"
        case RejectionKind.NO_HEALTHY:
            return f"the kubelet knew no healthy device of {resource}"
        case RejectionKind.INSUFFICIENT:
            return f"too few of {resource}{_counted(rejection)}"
        case RejectionKind.PLUGIN_GONE:
            return f"the plugin of {resource} was gone"
        case RejectionKind.NO_CAPACITY:
            return f"the node had no {resource}"
        case RejectionKind.OTHER:
            quote = rejection.message
            return quote if len(quote) <= _LONGEST_QUOTE else f"{quote[:_LONGEST_QUOTE]}…"


def _counted(rejection: Rejection) -> str:
    if rejection.requested is None or rejection.available is None:
        return ""
    return f" ({rejection.requested} asked for, {rejection.available} to be had)"


def _leaks(report: Report) -> Iterator[Event]:
    for judged in report.findings:
        finding = judged.finding
        if judged.confirmed and finding.detector == leaked_reservation.NAME:
            # It became a leak then at the earliest.
            text = f"leak: {finding.message}"
            yield Event(judged.since, False, What.LEAKED, finding.subject, text, "reservations")


def _releases(releases: Iterable[Release]) -> Iterator[Event]:
    for entry in releases:
        if entry.verdict is not Verdict.RELEASED:
            continue
        ips = ", ".join(entry.ips)
        of_pod = f" of pod {entry.pod}" if entry.pod else ""
        text = f"{ips}{of_pod} was released by `{entry.by}`, entry {entry.name}"
        yield Event(entry.at, True, What.RELEASED, ips, text, "journal")
        if entry.restored is not None:
            text = f"{ips}{of_pod} was put back, entry {entry.name}"
            yield Event(entry.restored, True, What.RESTORED, ips, text, "journal")

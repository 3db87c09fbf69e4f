"""Events on the node, from a snapshot and the release journal, as the JSON document `nodeleak.timeline/v1`. Pure.

Each event comes from one record and has that record's time. Clocks differ: a time of the API server, or between two
snapshots, is not exact.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from agent.checks import runtime as runtimes
from agent.checks.addresses import leaked_reservation
from agent.exporters.json.scan import unavailable_sources
from agent.model.devices import TransitionKind
from agent.model.rejections import Rejection, RejectionKind
from agent.model.release import Verdict
from agent.model.report import Report
from agent.model.runtime import DOCKER
from agent.model.snapshot import Pod, Snapshot, Unavailable, known_or
from agent.model.text import rfc3339, truncate

if TYPE_CHECKING:
    from agent.cleanup.journal import Entry

_SCHEMA: Final = "nodeleak.timeline/v1"
_NONE, _SECOND = timedelta(0), timedelta(seconds=1)
_UNDATED_SOURCES: Final = {"cni_results", "node", "watches"}
"""Sources without times: a timeline lacks nothing without them."""

_TRANSITIONS: Final = {
    TransitionKind.KUBELET_STARTED: "the kubelet's device manager started: it has no plugin until each registers again",
    TransitionKind.SOCKET_APPEARED: "plugin socket {socket} appeared",
    TransitionKind.SOCKET_GONE: "plugin socket {socket} was removed",
    TransitionKind.REGISTERED: "{resource} registered: the kubelet has healthy devices of it",
    TransitionKind.LOST: "the kubelet lost {resource}: it has no healthy device of it",
    TransitionKind.DROPPED: "the kubelet dropped {resource}: the node has none until it registers again",
}
_OF_SOCKETS: Final = {TransitionKind.SOCKET_APPEARED, TransitionKind.SOCKET_GONE}
_REJECTIONS: Final = {
    RejectionKind.UNREGISTERED: "{resource} was not registered with the kubelet",
    RejectionKind.NO_HEALTHY: "the kubelet had no healthy device of {resource}",
    RejectionKind.INSUFFICIENT: "too few devices of {resource}{amounts}",
    RejectionKind.PLUGIN_GONE: "the plugin of {resource} was gone",
    RejectionKind.NO_CAPACITY: "the node had no {resource}",
    RejectionKind.OTHER: "{message}",
}


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


_STARTS: Final = {"kubelet": EventKind.KUBELET_STARTED, DOCKER: EventKind.DOCKER_STARTED}


class _Event(NamedTuple):
    at: datetime
    exact: bool
    """False: a bound, whole seconds only, or another clock than the node's."""
    what: EventKind
    subject: str
    text: str
    source: str


def timeline_document(
    report: Report,
    releases: "Iterable[Entry] | Unavailable" = (),
    damage: Iterable[str] = (),
    *,
    since: timedelta | None = None,
) -> dict[str, Any]:
    """Merge the events, the oldest first. `damage`: of the journal; `since`: only so long before the snapshot."""
    snapshot = report.assessment.snapshot
    events = [*_process_starts(snapshot), *_transitions(snapshot), *_rejections(report), *_leaks(report)]
    if not isinstance(releases, Unavailable):
        events += _releases(releases)
    return {
        "schema": _SCHEMA,
        "node": snapshot.node_name,
        "taken_at": rfc3339(snapshot.taken_at),
        "events": [
            {**event._asdict(), "at": rfc3339(event.at, "milliseconds")}
            for event in _in_order(events)
            if since is None or snapshot.taken_at - event.at <= since
        ],
        "undated_rejections": sum(1 for _, rejection in _rejected(snapshot) if rejection.at is None),
        "api_skew_seconds": None if snapshot.api_skew is None else snapshot.api_skew.total_seconds(),
        "warnings": [*_state_warnings(snapshot), *(f"journal: {line}" for line in damage)],
        "unavailable": unavailable_sources(_unavailable(report, releases)),
    }


def _in_order(events: Iterable[_Event]) -> list[_Event]:
    events, rank = tuple(events), list(EventKind)
    starts = [event.at for event in events if event.what is EventKind.DEVICE_MANAGER_STARTED]

    def order(event: _Event) -> tuple[datetime, int, str]:
        at = event.at
        if event.what is EventKind.REJECTED:
            # The device manager starts before any pod is admitted; a rejection's time has whole seconds only.
            at = max([at, *(start for start in starts if _NONE <= start - at < _SECOND)])
        return at, rank.index(event.what), event.subject

    return sorted(events, key=order)


def _unavailable(report: Report, releases: object) -> Iterator[Unavailable]:
    yield from (source for source in report.unavailable if source.source not in _UNDATED_SOURCES)
    yield from (Unavailable(gap.detector, gap.why) for gap in report.gaps if gap.broken)
    if isinstance(releases, Unavailable):
        yield releases


def _process_starts(snapshot: Snapshot) -> Iterator[_Event]:
    if (processes := known_or(snapshot.processes, None)) is None:
        return
    yield _Event(processes.booted, True, EventKind.BOOTED, "node", "the node booted", "processes")
    starts = {"kubelet": processes.kubelet} | {name: processes.start_of(name) for name in runtimes.names(snapshot)}
    for name, started in starts.items():
        if started is not None:
            kind = _STARTS.get(name, EventKind.RUNTIME_STARTED)
            yield _Event(started, True, kind, name, f"{name} started", "processes")


def _transitions(snapshot: Snapshot) -> Iterator[_Event]:
    plugins = known_or(snapshot.device_plugins, None)
    for transition in plugins.history if plugins else ():
        resource, name, what = transition.resource, transition.socket, transition.what
        kind, subject = EventKind.DEVICE_MANAGER_STARTED, "kubelet"
        if what is not TransitionKind.KUBELET_STARTED:
            kind, subject = EventKind(what.value), name if what in _OF_SOCKETS else resource
        text = _TRANSITIONS[what].format(resource=resource, socket=f"{name} ({resource})" if resource else name)
        yield _Event(transition.at, transition.exact, kind, subject, text, "device_plugins")


def _state_warnings(snapshot: Snapshot) -> Iterator[str]:
    plugins = known_or(snapshot.device_plugins, None)
    if plugins and plugins.trouble:
        yield f"device_plugins: {plugins.trouble}"


def _rejected(snapshot: Snapshot) -> Iterator[tuple[Pod, Rejection]]:
    return ((pod, pod.rejection) for pod in known_or(snapshot.pods, ()) if pod.rejection is not None)


def _rejections(report: Report) -> Iterator[_Event]:
    snapshot = report.assessment.snapshot
    causes = {pod.uid: pod for found in report.findings if found.confirmed for pod in found.finding.rejected_pods}
    for pod, rejection in _rejected(snapshot):
        if rejection.at is None:
            continue
        found = causes.get(pod.uid)
        outcome = f"; {found.cause.value}, {found.pod_outcome.value}" if found else ""
        at = _node_time(rejection.at, snapshot.api_skew if rejection.by_api else None)
        text = f"pod {pod.name} was rejected: {_why(rejection)}{outcome}"
        # Not exact by the node's own clock either: whole seconds.
        yield _Event(at, False, EventKind.REJECTED, pod.name, text, "pods")


def _node_time(at: datetime, skew: timedelta | None) -> datetime:
    try:
        return at - (skew or _NONE)
    except OverflowError:
        return at


def _why(rejection: Rejection) -> str:
    known = rejection.requested is not None and rejection.available is not None
    amounts = f" (requested {rejection.requested}, available {rejection.available})" if known else ""
    resource, message = rejection.resource or "a device", truncate(rejection.message)
    return _REJECTIONS[rejection.refused].format(resource=resource, amounts=amounts, message=message)


def _leaks(report: Report) -> Iterator[_Event]:
    for tracked in report.sorted_findings:
        finding = tracked.finding
        if tracked.confirmed and finding.detector == leaked_reservation.NAME:
            # Without `since`, the last start that can have been its cause is a bound from above, and not from below.
            at = finding.since or finding.cause_at or tracked.first_seen
            when = "then or later" if finding.since else "then or earlier"
            text = f"leak (began {when}): {finding.message}"
            yield _Event(at, False, EventKind.LEAKED, finding.subject, text, "reservations")


def _releases(releases: "Iterable[Entry]") -> Iterator[_Event]:
    for entry in releases:
        if entry.verdict is not Verdict.RELEASED:
            continue
        ips = ", ".join(entry.ips)
        of_pod = f" of pod {entry.pod}" if entry.pod else ""
        text = f"{ips}{of_pod} was released by `{entry.actor}`, journal entry {entry.name}"
        yield _Event(entry.at, True, EventKind.RELEASED, ips, text, "journal")
        if entry.restored is not None:
            text = f"{ips}{of_pod} was restored, journal entry {entry.name}"
            yield _Event(entry.restored, True, EventKind.RESTORED, ips, text, "journal")

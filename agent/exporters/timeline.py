"""Events on the node, from a snapshot and the release journal, as the JSON document `nodeleak.timeline/v1`. Pure.

Each event comes from one record and has that record's time. Clocks differ: a time of the API server, or between two
snapshots, is not exact.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from agent.checks.addresses import leaked_reservation
from agent.exporters.json.scan import unavailable_sources
from agent.model.devices import KUBELET_SOCKET, TransitionKind
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


_ORDER: Final = (
    *(
        "booted",
        "docker_started",
        "runtime_started",
        "kubelet_started",
        "device_manager_started",
        "socket_gone",
    ),
    *(
        "lost",
        "dropped",
        "rejected",
        "socket_appeared",
        "registered",
        "leaked",
        "released",
        "restored",
    ),
)
"""Of two events at one time, the kind that is named earlier comes first."""
_STARTS: Final = {"kubelet": "kubelet_started", DOCKER: "docker_started"}


class _Event(NamedTuple):
    at: datetime
    exact: bool
    """False: a bound, whole seconds only, or another clock than the node's."""
    what: str
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
    events = [
        *_process_starts(snapshot, report.assessment.runtime.names),
        *_transitions(snapshot),
        *_rejections(report),
        *_leaks(report),
    ]
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
        "undated_rejections": sum(
            1 for _, rejection in _rejected(snapshot) if rejection.at is None
        ),
        "api_skew_seconds": None
        if snapshot.api_skew is None
        else snapshot.api_skew.total_seconds(),
        "warnings": [*_state_warnings(snapshot), *(f"journal: {line}" for line in damage)],
        "unavailable": unavailable_sources(_unavailable(report, releases)),
    }


def _in_order(events: Sequence[_Event]) -> list[_Event]:
    starts = [event.at for event in events if event.what == "device_manager_started"]

    def order(event: _Event) -> tuple[datetime, int, str]:
        at = event.at
        if event.what == "rejected":
            # The device manager starts before any pod is admitted; a rejection's time has whole seconds only.
            at = max([at, *(start for start in starts if _NONE <= start - at < _SECOND)])
        return at, _ORDER.index(event.what), event.subject

    return sorted(events, key=order)


def _unavailable(report: Report, releases: object) -> Iterator[Unavailable]:
    yield from (source for source in report.unavailable if source.source not in _UNDATED_SOURCES)
    yield from (Unavailable(gap.detector, gap.why) for gap in report.gaps if gap.broken)
    if isinstance(releases, Unavailable):
        yield releases


def _process_starts(snapshot: Snapshot, runtimes: Iterable[str]) -> Iterator[_Event]:
    if (processes := known_or(snapshot.processes, None)) is None:
        return
    yield _Event(processes.booted, True, "booted", "node", "the node booted", "processes")
    starts = {"kubelet": processes.kubelet} | {name: processes.start_of(name) for name in runtimes}
    for name, started in starts.items():
        if started is not None:
            kind = _STARTS.get(name, "runtime_started")
            yield _Event(started, True, kind, name, f"{name} started", "processes")


def _transitions(snapshot: Snapshot) -> Iterator[_Event]:
    plugins = known_or(snapshot.device_plugins, None)
    for transition in plugins.history if plugins else ():
        resource, name, what = transition.resource, transition.socket, transition.what
        kind, subject = what.value, name if what in _OF_SOCKETS else resource
        if what is TransitionKind.KUBELET_STARTED:
            kind, subject = "device_manager_started", "kubelet"
        text = _TRANSITIONS[what].format(
            resource=resource, socket=f"{name} ({resource})" if resource else name
        )
        if subject == KUBELET_SOCKET:
            text = (
                f"{KUBELET_SOCKET} was removed: no plugin can register until the kubelet restarts"
            )
        yield _Event(transition.at, transition.exact, kind, subject, text, "device_plugins")


def _state_warnings(snapshot: Snapshot) -> Iterator[str]:
    plugins = known_or(snapshot.device_plugins, None)
    if plugins and plugins.trouble:
        yield f"device_plugins: {plugins.trouble}"


def _rejected(snapshot: Snapshot) -> Iterator[tuple[Pod, Rejection]]:
    return (
        (pod, pod.rejection) for pod in known_or(snapshot.pods, ()) if pod.rejection is not None
    )


def _rejections(report: Report) -> Iterator[_Event]:
    snapshot = report.assessment.snapshot
    causes = {
        pod.uid: pod
        for found in report.findings
        if found.confirmed
        for pod in found.finding.rejected_pods
    }
    for pod, rejection in _rejected(snapshot):
        if rejection.at is None:
            continue
        found = causes.get(pod.uid)
        outcome = f"; {found.cause.value}, {found.pod_outcome.value}" if found else ""
        at = _node_time(rejection.at, snapshot.api_skew if rejection.by_api else None)
        text = f"pod {pod.name} was rejected: {_why(rejection)}{outcome}"
        # Not exact by the node's own clock either: whole seconds.
        yield _Event(at, False, "rejected", pod.name, text, "pods")


def _node_time(at: datetime, skew: timedelta | None) -> datetime:
    try:
        return at - (skew or _NONE)
    except OverflowError:
        return at


def _why(rejection: Rejection) -> str:
    known = rejection.requested is not None and rejection.available is not None
    amounts = (
        f" (requested {rejection.requested}, available {rejection.available})" if known else ""
    )
    resource, message = rejection.resource or "a device", truncate(rejection.message)
    return _REJECTIONS[rejection.refused].format(
        resource=resource, amounts=amounts, message=message
    )


def _leaks(report: Report) -> Iterator[_Event]:
    for tracked in report.sorted_findings:
        finding = tracked.finding
        if tracked.confirmed and finding.detector == leaked_reservation.NAME:
            # Without `since`, the last start that can have been its cause is a bound from above, and not from below.
            at = finding.since or finding.cause_at or tracked.first_seen
            when = "then or later" if finding.since else "then or earlier"
            text = f"leak (began {when}): {finding.message}"
            yield _Event(at, False, "leaked", finding.subject, text, "reservations")


def _releases(releases: "Iterable[Entry]") -> Iterator[_Event]:
    for entry in releases:
        if entry.verdict is not Verdict.RELEASED:
            continue
        ips = ", ".join(entry.ips)
        of_pod = f" of pod {entry.pod}" if entry.pod else ""
        text = f"{ips}{of_pod} was released by `{entry.actor}`, journal entry {entry.name}"
        yield _Event(entry.at, True, "released", ips, text, "journal")
        if entry.restored is not None:
            text = f"{ips}{of_pod} was restored, journal entry {entry.name}"
            yield _Event(entry.restored, True, "restored", ips, text, "journal")

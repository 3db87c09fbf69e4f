"""Events on the node, as the JSON document `nodeleak.timeline/v1`. Pure.

They come from a snapshot and the release journal, each from one record and with that record's time.
Clocks differ: a time of the API server, or between two snapshots, is not exact.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.checks.addresses import leaked_reservation
from agent.exporters.json import Document
from agent.exporters.json.scan import unavailable_sources
from agent.model.clocks import WHOLE_SECOND
from agent.model.devices import KUBELET_SOCKET, TransitionKind
from agent.model.rejections import Rejection, RejectionKind
from agent.model.release import Verdict
from agent.model.report import Report
from agent.model.runtime import DOCKER
from agent.model.snapshot import Snapshot, Unavailable, known_or
from agent.model.text import rfc3339, truncate

if TYPE_CHECKING:
    from agent.cleanup.journal import Entry

_SCHEMA: Final = "nodeleak.timeline/v1"
_UNDATED_SOURCES: Final = {"cni_results", "node", "watches"}
"""Sources without times: a timeline lacks nothing without them."""

_TRANSITIONS: Final = {
    TransitionKind.KUBELET_STARTED: "the kubelet's device manager started: it has no plugin until "
    "each registers again",
    TransitionKind.SOCKET_APPEARED: "plugin socket {socket} appeared",
    TransitionKind.SOCKET_GONE: "plugin socket {socket} was removed",
    TransitionKind.REGISTERED: "{resource} registered: the kubelet has healthy devices of it",
    TransitionKind.LOST: "the kubelet lost {resource}: it has no healthy device of it",
    TransitionKind.DROPPED: "the kubelet dropped {resource}: the node has none until it registers "
    "again",
}
_OF_SOCKETS: Final = {TransitionKind.SOCKET_APPEARED, TransitionKind.SOCKET_GONE}
_REJECTIONS: Final = {
    RejectionKind.UNREGISTERED: "{resource} was not registered with the kubelet",
    RejectionKind.NO_HEALTHY: "the kubelet had no healthy device of {resource}",
    RejectionKind.INSUFFICIENT: "too few devices of {resource}{amounts}",
    RejectionKind.POD_DEVICES_UNHEALTHY: "its earlier devices of {resource} were not healthy",
    RejectionKind.PLUGIN_GONE: "the plugin of {resource} was gone",
    RejectionKind.PLUGIN_CRASHED: "{message}",
    RejectionKind.PLUGIN_ERROR: "{message}",
    RejectionKind.REQUEST_REFUSED: "{message}",
    RejectionKind.REQUEST_CHANGED: "{message}",
    RejectionKind.CHECKPOINT_FAILED: "{message}",
    RejectionKind.NO_CAPACITY: "the node had no {resource}",
    RejectionKind.OTHER: "{message}",
    RejectionKind.NOT_FOR_A_DEVICE: "{message}",
}
_ORDER: Final = (
    "booted",
    "docker_started",
    "runtime_started",
    "kubelet_started",
    "device_manager_started",
    "socket_gone",
    "lost",
    "dropped",
    "rejected",
    "socket_appeared",
    "registered",
    "leaked",
    "released",
    "restored",
)
"""Of two events at one time, the kind that is named earlier comes first."""

_STARTS: Final = {"node": "booted", "kubelet": "kubelet_started", DOCKER: "docker_started"}
"""What the start of each is called; that of any other runtime is `runtime_started`."""


class _Event(NamedTuple):
    """One line of the timeline, as the document has it."""

    at: datetime
    exact: bool
    """False: a bound, whole seconds only, or another clock than the node's."""
    what: str
    """One of `_ORDER`."""
    subject: str
    text: str
    source: str


def timeline_document(
    report: Report,
    releases: "Iterable[Entry] | Unavailable" = (),
    damage: Iterable[str] = (),
    *,
    since: timedelta | None = None,
) -> Document:
    """Merge the events, the oldest first.

    `damage`: of the journal. `since`: only so long before the snapshot.
    """
    snapshot = report.snapshot
    events = [
        *_process_starts(snapshot, report.assessment.runtime.names),
        *_transitions(snapshot),
        *_rejections(report),
        *_leaks(report),
    ]
    if not isinstance(releases, Unavailable):
        events += _releases(releases)

    shown = [
        event._asdict() | {"at": rfc3339(event.at, "milliseconds")}
        for event in _in_order(events)
        if since is None or snapshot.taken_at - event.at <= since
    ]
    rejections = [pod.rejection for pod in known_or(snapshot.pods, ()) if pod.rejection]
    skew = snapshot.api_skew

    return {
        "schema": _SCHEMA,
        "node": snapshot.node_name,
        "taken_at": rfc3339(snapshot.taken_at),
        "events": shown,
        "undated_rejections": sum(rejection.at is None for rejection in rejections),
        "api_skew_seconds": None if skew is None else skew.total_seconds(),
        "warnings": [*_state_warnings(snapshot), *(f"journal: {line}" for line in damage)],
        "unavailable": unavailable_sources(_unavailable(report, releases)),
    }


def _in_order(events: Sequence[_Event]) -> list[_Event]:
    """Sort by time; at one time, what can be the cause of another event comes before it."""
    starts = [event.at for event in events if event.what == "device_manager_started"]

    def sort_key(event: _Event) -> tuple[datetime, int, str]:
        at = event.at
        if event.what == "rejected":
            # The device manager starts before any pod is admitted; a rejection's time has whole
            # seconds only.
            within = [start for start in starts if at <= start < at + WHOLE_SECOND]
            at = max([at, *within])
        return at, _ORDER.index(event.what), event.subject

    return sorted(events, key=sort_key)


def _unavailable(report: Report, releases: object) -> Iterator[Unavailable]:
    """Yield the sources whose events are missing, and the checks that failed."""
    yield from (source for source in report.unavailable if source.source not in _UNDATED_SOURCES)
    yield from (Unavailable(gap.detector, gap.why) for gap in report.gaps if gap.broken)
    if isinstance(releases, Unavailable):
        yield releases


def _process_starts(snapshot: Snapshot, runtimes: Iterable[str]) -> Iterator[_Event]:
    """Yield when the node, the kubelet and the runtimes were started."""
    processes = known_or(snapshot.processes, None)
    if processes is None:
        return

    started = {"node": processes.booted, "kubelet": processes.kubelet}
    started |= {name: processes.start_of(name) for name in runtimes}
    for name, at in started.items():
        if at is None:
            continue
        what = _STARTS.get(name, "runtime_started")
        text = "the node booted" if what == "booted" else f"{name} started"
        yield _Event(at=at, exact=True, what=what, subject=name, text=text, source="processes")


def _transitions(snapshot: Snapshot) -> Iterator[_Event]:
    """Yield what happened to device plugins, as far as it is remembered."""
    plugins = known_or(snapshot.device_plugins, None)
    for change in plugins.history if plugins else ():
        what = change.what.value
        subject = change.socket if change.what in _OF_SOCKETS else change.resource
        socket = f"{change.socket} ({change.resource})" if change.resource else change.socket
        text = _TRANSITIONS[change.what].format(resource=change.resource, socket=socket)

        if change.what is TransitionKind.KUBELET_STARTED:
            what = "device_manager_started"
            subject = "kubelet"
        if subject == KUBELET_SOCKET:
            text = f"{subject} was removed: no plugin can register until the kubelet restarts"

        yield _Event(
            at=change.at,
            exact=change.exact,
            what=what,
            subject=subject,
            text=text,
            source="device_plugins",
        )


def _state_warnings(snapshot: Snapshot) -> Iterator[str]:
    plugins = known_or(snapshot.device_plugins, None)
    if plugins and plugins.trouble:
        yield f"device_plugins: {plugins.trouble}"


def _rejections(report: Report) -> Iterator[_Event]:
    """Yield the rejected pods with a known time, with the cause where it is confirmed."""
    snapshot = report.snapshot
    explained = {
        pod.uid: pod
        for tracked in report.findings
        if tracked.confirmed
        for pod in tracked.finding.rejected_pods
    }
    for pod in known_or(snapshot.pods, ()):
        rejection = pod.rejection
        if rejection is None or rejection.at is None:
            continue

        skew = snapshot.api_skew if rejection.by_api else None
        text = f"pod {pod.name} was rejected: {_describe(rejection)}"
        if found := explained.get(pod.uid):
            text += f"; {found.cause.value}, {found.pod_outcome.value}"

        yield _Event(
            at=_node_time(rejection.at, skew),
            exact=False,  # by the node's own clock, it has whole seconds
            what="rejected",
            subject=pod.name,
            text=text,
            source="pods",
        )


def _node_time(at: datetime, skew: timedelta | None) -> datetime:
    """Return a time by the node's clock. `skew`: how far the clock of `at` is ahead; None: not."""
    try:
        return at - (skew or timedelta(0))
    except OverflowError:  # an odd status may have the year 1, or 9999
        return at


def _describe(rejection: Rejection) -> str:
    """Say why the kubelet rejected a pod."""
    amounts = ""
    if rejection.requested is not None and rejection.available is not None:
        amounts = f" (requested {rejection.requested}, available {rejection.available})"
    return _REJECTIONS[rejection.refused].format(
        resource=rejection.resource or "a device",
        amounts=amounts,
        message=truncate(rejection.message),
    )


def _leaks(report: Report) -> Iterator[_Event]:
    for tracked in report.sorted_findings:
        finding = tracked.finding
        if not tracked.confirmed or finding.detector != leaked_reservation.NAME:
            continue

        # Without `since`, the last start that can be its cause is an upper bound, and no lower one.
        when = "then or later" if finding.since else "then or earlier"
        yield _Event(
            at=finding.since or finding.cause_at or tracked.first_seen,
            exact=False,
            what="leaked",
            subject=finding.subject,
            text=f"leak (began {when}): {finding.message}",
            source="reservations",
        )


def _releases(entries: "Iterable[Entry]") -> Iterator[_Event]:
    """Yield the releases, and those that were undone."""
    for entry in entries:
        if entry.verdict is not Verdict.RELEASED:
            continue

        ips = ", ".join(entry.ips)
        addresses = f"{ips} of pod {entry.pod}" if entry.pod else ips
        released = f"released by `{entry.actor}`"
        for what, at, done in (
            ("released", entry.at, released),
            ("restored", entry.restored, "restored"),
        ):
            if at is not None:
                text = f"{addresses} was {done}, journal entry {entry.name}"
                yield _Event(at=at, exact=True, what=what, subject=ips, text=text, source="journal")

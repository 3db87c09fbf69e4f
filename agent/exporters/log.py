"""Log lines: changes, not syncs. A healthy node logs nothing after the start."""

import logging
import sys
from collections.abc import Container, Iterator
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, TypeGuard

import structlog  # as a whole, with asyncio: its parts cannot be imported alone

from agent.checks.addresses import leaked_reservation
from agent.exporters.rows import WHEN_HALTED
from agent.kube_events.token_bucket import TokenBucket
from agent.model.devices import DeviceTransition, TransitionKind
from agent.model.finding import Key, Severity, TrackedFinding
from agent.model.release import MISSED, Cleaning, Outcome, Verdict
from agent.model.report import Report
from agent.model.settings import AUTO
from agent.model.snapshot import (
    NotRequested,
    Reading,
    Reservation,
    ReservationKey,
    Snapshot,
    Unavailable,
    known_or,
)
from agent.model.watches import Evidence

_MAY_BE_ABSENT: Final = {"reservations", "checkpoints", "containers", "cni_results"}
"""Sources that a node need not have; the others are disabled by configuration, or not needed."""

MAX_LINES: Final = 1000
"""Lines at once about what a node can have many of.

These are findings that are not critical, and addresses that are not released.
"""

_LINE_INTERVAL: Final = timedelta(seconds=3.6)
"""Until there may be another one: 1,000 an hour."""

_TRANSITIONS: Final = {
    TransitionKind.KUBELET_STARTED: "kubelet.started",
    TransitionKind.SOCKET_APPEARED: "device_plugin.socket_appeared",
    TransitionKind.REGISTERED: "device_plugin.registered",
    TransitionKind.LOST: "device_plugin.lost",
}
"""The others follow from these; if one lasts, it is a finding."""

Logger = structlog.typing.FilteringBoundLogger


class _Source(NamedTuple):
    source: str
    network: str = ""
    """Each network's reservations are read, and fail, on their own."""


_Missing = Unavailable | NotRequested
_UNLISTED: Final = _Source("reservations", AUTO)
"""Stands for the networks that were not found, because the directories could not be listed."""


def configure(log_format: str) -> Logger:
    """Return the logger of this process, which writes to standard error.

    `log_format`: `json`, `text`, or `auto`, which is text on a terminal.
    """
    is_terminal = sys.stderr.isatty()
    renderer: Any = structlog.processors.JSONRenderer()
    if log_format == "text" or (log_format == "auto" and is_terminal):
        renderer = structlog.dev.ConsoleRenderer(colors=is_terminal)

    processors = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _event_first,
        renderer,
    ]

    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logger: Logger = structlog.get_logger()
    return logger


def _event_first(_logger: object, _method: str, event: Any) -> Any:
    """Put time, level and event before the fields: people read these lines too."""
    return {key: event.pop(key) for key in ("timestamp", "level", "event")} | event


class LogExporter:
    """Logs what changed since the last sync."""

    def __init__(self, logger: Logger) -> None:
        self._log = logger
        self._lines = TokenBucket(MAX_LINES, _LINE_INTERVAL)
        self._omitted = 0
        """Lines of this sync that the bucket left out."""

        self._open: dict[Key, TrackedFinding] = {}
        self._missing: dict[_Source, _Missing] = {}
        self._failed_detectors: frozenset[str] = frozenset()
        self._outcomes: dict[Reservation, tuple[str, str]] = {}
        """Verdict and reason, of each address that was released or refused."""
        self._halted: str | None = None
        self._warnings: frozenset[str] = frozenset()
        self._started: datetime | None = None
        """When the agent's first snapshot was taken; None: before it."""
        self._history: frozenset[DeviceTransition] | None = None
        """What happened to device plugins, as far as it is logged or older; None: not known yet."""
        self._watches: dict[tuple[str, Evidence], datetime] = {}
        """When each watch began to return old versions."""

    def export(self, report: Report, seconds: float) -> None:  # noqa: ARG002 (a metric)
        """Log what this report has and the last one had not."""
        snapshot = report.snapshot
        self._lines.fill(snapshot.uptime)
        self._omitted = 0
        if report.clock_stepped:
            text = "the node's clock was set: findings are confirmed again"
            self._log.warning("clock.stepped", text=text)

        self._log_sources(snapshot)
        self._log_detectors(report)
        self._log_transitions(snapshot)
        self._log_watches(snapshot)
        self._log_findings(report)
        if report.cleaning is not None:
            self._log_cleanup(report.cleaning)
            self._log_releases(report.cleaning, report.confirmed_leaks)

        if self._omitted:
            text = f"more than {MAX_LINES:,} lines in an hour: 'nodeleak scan' shows all findings"
            self._log.warning("log.limited", omitted=self._omitted, text=text)

    def _has_room(self, severity: Severity = Severity.INFO) -> bool:
        """Return whether one more of those lines that a node can have thousands of is allowed."""
        if severity is Severity.CRITICAL or self._lines.take():
            return True
        self._omitted += 1
        return False

    def _log_sources(self, snapshot: Snapshot) -> None:
        """Log which sources were lost, and which are back."""
        # By source, not by reason: one that counts something would be a change in every sync.
        before = self._missing
        readings = dict(_readings(snapshot))
        missing = {
            source: reading for source, reading in readings.items() if _is_missing(reading, source)
        }

        if isinstance(missing.get(_UNLISTED), Unavailable):
            # Nothing has changed for networks that may still exist.
            for source in before.keys() - readings.keys():
                missing[source] = before[source]

        for source in sorted(before.keys() | missing.keys()):
            self._log_source(source, before.get(source), missing.get(source))
        self._missing = missing

    def _log_source(self, source: _Source, before: _Missing | None, now: _Missing | None) -> None:
        if type(before) is type(now):
            return

        fields = _present(**source._asdict())
        if isinstance(now, Unavailable):
            self._log.error("source.unavailable", **fields, why=now.why)
        elif isinstance(now, NotRequested):
            self._log.info("source.not_requested", **fields, why=now.why)
        elif isinstance(before, Unavailable):
            self._log.info("source.recovered", **fields)

    def _log_detectors(self, report: Report) -> None:
        """Log the detectors that failed, each once while it goes on."""
        failed = {gap.detector: gap.why for gap in report.gaps if gap.broken}
        for detector in failed.keys() - self._failed_detectors:
            self._log.error("detector.failed", detector=detector, why=failed[detector])
        self._failed_detectors = frozenset(failed)

    def _log_transitions(self, snapshot: Snapshot) -> None:
        """Log what happened to device plugins since the agent started."""
        self._started = started = self._started or snapshot.taken_at
        plugins = known_or(snapshot.device_plugins, None)
        if plugins is None:
            return

        logged = self._history
        if logged is None:
            # At first by time; later not, because the clock may be set back.
            logged = frozenset(change for change in plugins.history if change.at <= started)

        for transition in plugins.history:
            if transition not in logged and transition.what in _TRANSITIONS:
                self._log_transition(transition)
        self._history = frozenset(plugins.history)

    def _log_transition(self, transition: DeviceTransition) -> None:
        is_lost = transition.what is TransitionKind.LOST
        log = self._log.warning if is_lost else self._log.info
        log(
            _TRANSITIONS[transition.what],
            **_present(resource=transition.resource, socket=transition.socket),
            at=transition.at.isoformat(timespec="milliseconds"),
            exact=transition.exact,
        )

    def _log_watches(self, snapshot: Snapshot) -> None:
        """Log old versions that are no fault of an API server, once while they go on.

        The others are findings.
        """
        for watch in known_or(snapshot.watches, ()):
            key = (watch.resource, watch.evidence)
            if self._watches.get(key) == watch.first:
                continue
            self._watches[key] = watch.first

            fields = {"resource": watch.resource, "before": watch.before, "version": watch.version}
            if watch.evidence is Evidence.RV_RESET:
                text = "versions went back: etcd was restored from a backup"
                self._log.warning("watch.reset", **fields, text=text)
            elif watch.evidence is Evidence.OLDER_LIST:
                text = "an API server's cache lags: reading through to etcd"
                self._log.info("watch.lagging", **fields, text=text)

    def _log_findings(self, report: Report) -> None:
        """Log the findings that were confirmed, or have become more severe, and those that ended."""
        confirmed = {
            tracked.finding.key: tracked for tracked in report.sorted_findings if tracked.confirmed
        }
        for key, tracked in confirmed.items():
            before = self._open.get(key)
            severity = tracked.finding.severity
            if before is None or severity.rank > before.finding.severity.rank:
                self._log_opened(tracked)
        self._open = confirmed | self._log_closed(confirmed, report)

    def _log_closed(self, confirmed: Container[Key], report: Report) -> dict[Key, TrackedFinding]:
        """Log the findings that have ended, and return those that may still exist.

        Their detector could not run, or they are leaks that are counted together.
        """
        not_evaluated = {gap.detector for gap in report.gaps}
        leaked = {str(key) for key in report.confirmed_leaks}
        remaining = {}

        for key, tracked in self._open.items():
            if key in confirmed:
                continue
            finding = tracked.finding
            is_leak = finding.detector == leaked_reservation.NAME
            is_still_leaked = is_leak and finding.subject in leaked
            if is_still_leaked or finding.detector in not_evaluated:
                remaining[key] = tracked
            elif self._has_room(finding.severity):
                self._log.info("finding.closed", detector=finding.detector, subject=finding.subject)

        return remaining

    def _log_opened(self, tracked: TrackedFinding) -> None:
        finding = tracked.finding
        if not self._has_room(finding.severity):
            return

        if_known = _present(
            since=tracked.began and tracked.began.isoformat(timespec="seconds"),
            count=finding.count if finding.count > 1 else None,
            cause=finding.cause and finding.cause.value,
            pod=finding.pod,
        )

        self._log.warning(
            "finding.opened",
            detector=finding.detector,
            subject=finding.subject,
            severity=finding.severity.value,
            text=finding.message,
            **if_known,
        )

    def _log_cleanup(self, cleaning: Cleaning) -> None:
        """Log a halt and warnings, each once."""
        if cleaning.halted and cleaning.halted != self._halted:
            self._log.error("cleanup.halted", why=cleaning.halted, do=WHEN_HALTED)
        self._halted = cleaning.halted

        for warning in cleaning.warnings:
            if warning not in self._warnings:
                self._log.warning("cleanup.warning", text=warning)
        self._warnings = frozenset(cleaning.warnings)

    def _log_releases(self, cleaning: Cleaning, leaks: frozenset[ReservationKey]) -> None:
        """Log each release, and what else became of an address where that has changed.

        `leaks`: the confirmed ones.
        """
        before = self._outcomes
        # A sync that could not evaluate the guards forgets nothing.
        self._outcomes = dict(before) if cleaning.unavailable or cleaning.broken else {}

        for outcome in cleaning.outcomes:
            # Of a refusal only the reason, because its text may count seconds.
            reason = outcome.refusals[0].reason if outcome.refusals else outcome.why
            verdict_and_reason = (outcome.verdict, reason)

            for reservation in outcome.request.reservations:
                # Every ordinary teardown is refused for a while: only of leaks this is a change.
                if outcome.verdict is Verdict.REFUSED and reservation.key not in leaks:
                    continue
                self._outcomes[reservation] = verdict_and_reason
                # Each release is one, also of a file that somebody put back as it was.
                is_release = outcome.verdict is Verdict.RELEASED
                if is_release or before.get(reservation) != verdict_and_reason:
                    self._log_release(reservation, outcome)

    def _log_release(self, reservation: Reservation, outcome: Outcome) -> None:
        verdict = outcome.verdict
        if (outcome.refusals or verdict is Verdict.WOULD_RELEASE) and not self._has_room():
            return

        fields = _present(
            network=reservation.network,
            ip=reservation.ip,
            container=reservation.container_id,
            pod=outcome.request.pod,
        )

        if outcome.refusals:
            first = outcome.refusals[0]
            self._log.info("release.refused", **fields, reason=first.reason.value, why=first.why)
        elif verdict is Verdict.WOULD_RELEASE:
            self._log.info("release.dry_run", **fields)
        elif verdict in MISSED:
            self._log.warning("release.failed", **fields, verdict=verdict.value, why=outcome.why)
        else:
            if_known = _present(why=outcome.why)
            self._log.info("address.released", **fields, entry=outcome.entry, **if_known)


def _readings(snapshot: Snapshot) -> Iterator[tuple[_Source, Reading[object]]]:
    """Yield every source with its reading; the reservations of each network are one."""
    for store in snapshot.reservations:
        yield _Source("reservations", store.network), store.reading
    for name, reading in snapshot.readings():
        if name != "reservations":
            yield _Source(name), reading


def _is_missing(reading: Reading[object], source: _Source) -> TypeGuard[_Missing]:
    """Return whether the log says that a source has no value."""
    if isinstance(reading, NotRequested):
        return source.source in _MAY_BE_ABSENT
    return isinstance(reading, Unavailable)


def _present(**fields: Any) -> dict[str, Any]:
    """Return the fields that have a value."""
    return {name: value for name, value in fields.items() if value}

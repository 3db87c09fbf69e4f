"""Log lines: changes, not syncs. A healthy node logs nothing after the start."""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, TypeGuard

import structlog

from agent.checks.addresses import leaked_reservation
from agent.exporters.new_transitions import NewTransitions
from agent.exporters.text.clean import WHEN_HALTED
from agent.model.devices import DeviceTransition, TransitionKind
from agent.model.finding import Finding, Key, Severity, TrackedFinding
from agent.model.release import MISSED, Cleaning, Outcome, Verdict
from agent.model.report import Report
from agent.model.setting_values import AUTO
from agent.model.snapshot import (
    InsufficientData,
    NotRequested,
    Reading,
    Reservation,
    ReservationKey,
    Snapshot,
    Unavailable,
    known_or,
)
from agent.model.token_bucket import TokenBucket
from agent.model.watches import Evidence

_MAY_BE_ABSENT: Final = {"reservations", "checkpoints", "containers", "cni_results"}
"""Sources that a node need not have; the others are disabled by configuration, or not needed."""

MOST_LINES: Final = 1000
"""Lines at once about what a node can have many of: findings, networks, plugins, addresses that are not released."""
_LINE_INTERVAL: Final = timedelta(seconds=3.6)
"""Until there may be another one: 1,000 an hour."""


def configure(log_format: str) -> structlog.typing.FilteringBoundLogger:
    """Set up structlog: JSON lines, or colors on a terminal, on standard error."""
    as_text = log_format == "text" or (log_format == "auto" and sys.stderr.isatty())
    renderer: Any = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()) if as_text else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _event_first,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    return logger


def _event_first(_logger: object, _method: str, event: Any) -> Any:
    """Put time, level and event before the fields: people read these lines too."""
    return {key: event.pop(key) for key in ("timestamp", "level", "event")} | event


class _BoundedLog:
    """For lines of which a node can have thousands: it leaves out and counts those that are too many."""

    def __init__(self, logger: structlog.typing.FilteringBoundLogger) -> None:
        self._log, self._lines = logger, TokenBucket(MOST_LINES, _LINE_INTERVAL)
        self.omitted = 0

    def begin(self, now: timedelta) -> None:
        """A sync begins; `now`: by the boot clock."""
        self._lines.fill(now)
        self.omitted = 0

    def info(self, event: str, **fields: Any) -> None:
        self._one(self._log.info, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._one(self._log.warning, event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._one(self._log.error, event, fields)

    def _one(self, log: Callable[..., Any], event: str, fields: dict[str, Any]) -> None:
        if self._lines.take():
            log(event, **fields)
        else:
            self.omitted += 1


class _Source(NamedTuple):
    name: str
    network: str = ""
    """Each network's reservations are read, and fail, on their own."""


class LogExporter:
    """Compares each report with the previous one."""

    def __init__(self, logger: structlog.typing.FilteringBoundLogger) -> None:
        self._log = logger
        self._open: dict[Key, TrackedFinding] = {}
        self._unavailable: frozenset[_Source] = frozenset()
        self._absent: frozenset[_Source] = frozenset()
        self._failed_detectors: frozenset[str] = frozenset()
        self._outcomes: dict[Reservation, tuple[str, str]] = {}
        self._halted = ""
        self._warnings: frozenset[str] = frozenset()
        self._new_transitions: NewTransitions | None = None
        self._watches: dict[tuple[str, Evidence], datetime] = {}
        self._bounded_log = _BoundedLog(logger)

    def export(self, report: Report, seconds: float) -> None:  # noqa: ARG002 (a metric)
        self._bounded_log.begin(report.assessment.snapshot.uptime)
        if report.clock_stepped:
            self._log.warning("clock.stepped", text="the node's clock was set: findings are confirmed again")
        self._sources(report)
        self._detectors(report)
        self._transitions(report.assessment.snapshot)
        self._watch_versions(report.assessment.snapshot)
        self._findings(report)
        if report.cleaning is not None:
            self._cleanup(report.cleaning)
            self._releases(report.cleaning, report.confirmed_leaks)
        if omitted := self._bounded_log.omitted:
            text = f"more than {MOST_LINES:,} lines in an hour: 'nodeleak scan' shows all findings"
            self._log.warning("log.limited", omitted=omitted, text=text)

    def _sources(self, report: Report) -> None:
        # Compared by source, not by reason: one that counts something would be a change in every sync.
        readings = dict(_readings(report.assessment.snapshot))
        unavailable = {one: reading.why for one, reading in readings.items() if isinstance(reading, Unavailable)}
        absent = {one: reading.why for one, reading in readings.items() if _is_absent(reading, one)}
        # Of a network that may be there, because the directories could not be listed, nothing has changed.
        hidden = (self._unavailable | self._absent) - readings.keys() if _UNLISTED in unavailable else frozenset()
        for one in sorted(unavailable.keys() - self._unavailable):
            log = self._log_of(one)
            log.error("source.unavailable", **_about(one), why=unavailable[one])
        for one in sorted(self._unavailable - unavailable.keys() - absent.keys() - hidden):
            log = self._log_of(one)
            log.info("source.recovered", **_about(one))
        for one in sorted(absent.keys() - self._absent):
            log = self._log_of(one)
            log.info("source.not_requested", **_about(one), why=absent[one])
        self._unavailable = (self._unavailable & hidden).union(unavailable)
        self._absent = (self._absent & hidden).union(absent)

    def _log_of(self, source: _Source) -> "structlog.typing.FilteringBoundLogger | _BoundedLog":
        return self._bounded_log if source.network else self._log

    def _detectors(self, report: Report) -> None:
        failed = {gap.detector: gap.why for gap in report.gaps if gap.broken}
        for detector in failed.keys() - self._failed_detectors:
            self._log.error("detector.failed", detector=detector, why=failed[detector])
        self._failed_detectors = frozenset(failed)

    def _transitions(self, snapshot: Snapshot) -> None:
        if self._new_transitions is None:
            self._new_transitions = NewTransitions(snapshot.taken_at)
        try:
            transitions = snapshot.device_plugins.known().history
        except InsufficientData:
            return
        for one in self._new_transitions.of(transitions):
            self._transition(one)

    def _transition(self, one: DeviceTransition) -> None:
        about = {"resource": one.resource, "socket": one.socket}
        fields: dict[str, Any] = {name: value for name, value in about.items() if value}
        fields |= {"at": one.at.isoformat(timespec="milliseconds"), "exact": one.exact}
        match one.what:
            case TransitionKind.KUBELET_STARTED:
                self._log.info("kubelet.started", **fields)
            case TransitionKind.SOCKET_APPEARED:
                self._bounded_log.info("device_plugin.socket_appeared", **fields)
            case TransitionKind.REGISTERED:
                self._bounded_log.info("device_plugin.registered", **fields)
            case TransitionKind.LOST:
                self._bounded_log.warning("device_plugin.lost", **fields)
            case _:
                pass  # follows from these; if it lasts, it is a finding

    def _watch_versions(self, snapshot: Snapshot) -> None:
        """Log old versions that are no API server's fault, once for as long as they go on: the others are findings."""
        for one in known_or(snapshot.watches, ()):
            if self._watches.get((one.resource, one.evidence)) == one.first:
                continue
            self._watches[one.resource, one.evidence] = one.first
            fields = {"resource": one.resource, "before": one.before, "version": one.version}
            if one.evidence is Evidence.RV_RESET:
                self._log.warning("watch.reset", **fields, text="versions went back: etcd was restored from a backup")
            elif one.evidence is Evidence.OLDER_LIST:
                self._log.info("watch.lagging", **fields, text="an API server's cache lags: reading through to etcd")

    def _findings(self, report: Report) -> None:
        confirmed = {one.finding.key: one for one in report.sorted_findings if one.confirmed}
        for key, tracked in confirmed.items():
            before = self._open.get(key)
            if before is None or tracked.finding.severity.rank > before.finding.severity.rank:
                self._opened(tracked)
        gone = {key: one for key, one in self._open.items() if key not in confirmed}
        kept = _not_gone(gone, report) if gone else {}
        for key, tracked in gone.items():
            if key not in kept:
                finding = tracked.finding
                log = self._log_for(finding)
                log.info("finding.closed", detector=finding.detector, subject=finding.subject)
        self._open = confirmed | kept

    def _log_for(self, finding: Finding) -> "structlog.typing.FilteringBoundLogger | _BoundedLog":
        return self._log if finding.severity is Severity.CRITICAL else self._bounded_log

    def _opened(self, tracked: TrackedFinding) -> None:
        finding = tracked.finding
        log = self._log_for(finding)
        log.warning(
            "finding.opened",
            detector=finding.detector,
            subject=finding.subject,
            severity=finding.severity.value,
            text=finding.message,
            since=tracked.since.isoformat(timespec="seconds"),
            **({"count": finding.count} if finding.count > 1 else {}),
            **({"cause": finding.cause.value} if finding.cause else {}),
            **({"pod": finding.pod} if finding.pod else {}),
        )

    def _cleanup(self, cleaning: Cleaning) -> None:
        if cleaning.halted and cleaning.halted != self._halted:
            self._log.error("cleanup.halted", why=cleaning.halted, do=WHEN_HALTED)
        self._halted = cleaning.halted
        for warning in cleaning.warnings:
            if warning not in self._warnings:
                self._log.warning("cleanup.warning", text=warning)
        self._warnings = frozenset(cleaning.warnings)

    def _releases(self, cleaning: Cleaning, leaks: frozenset[ReservationKey]) -> None:
        outcomes = {one: outcome for outcome in cleaning.outcomes for one in outcome.request.reservations}
        # A refusal to release what is not a confirmed leak is no change: every ordinary teardown has one.
        outcomes = {
            one: outcome
            for one, outcome in outcomes.items()
            if outcome.verdict is not Verdict.REFUSED or one.key in leaks
        }
        for one, outcome in outcomes.items():
            if self._outcomes.get(one) != _compared(outcome):
                self._release(one, outcome)
        # A sync that could not evaluate the guards forgets nothing.
        before = self._outcomes if cleaning.unavailable else {}
        self._outcomes = {**before, **{one: _compared(outcome) for one, outcome in outcomes.items()}}

    def _release(self, one: Reservation, outcome: Outcome) -> None:
        about = {"network": one.network, "ip": one.ip, "container": one.container_id, "pod": outcome.request.pod}
        about = {name: value for name, value in about.items() if value}
        if outcome.refusals:
            first = outcome.refusals[0]
            self._bounded_log.info("release.refused", **about, reason=first.reason.value, why=first.why)
        elif outcome.verdict is Verdict.WOULD_RELEASE:
            self._bounded_log.info("release.dry_run", **about)
        elif outcome.verdict in MISSED:
            self._log.warning("release.failed", **about, verdict=outcome.verdict.value, why=outcome.why)
        else:
            why = {"why": outcome.why} if outcome.why else {}
            self._log.info("address.released", **about, entry=outcome.entry, **why)


def _not_gone(gone: Mapping[Key, TrackedFinding], report: Report) -> dict[Key, TrackedFinding]:
    """Return those whose detector could not run, and the leaks that are among those counted together."""
    not_evaluated = {gap.detector for gap in report.gaps}
    leaked = {str(key) for key in report.confirmed_leaks}

    def remains(finding: Finding) -> bool:
        is_leak = finding.detector == leaked_reservation.NAME and finding.subject in leaked
        return is_leak or finding.detector in not_evaluated

    return {key: one for key, one in gone.items() if remains(one.finding)}


def _compared(outcome: Outcome) -> tuple[str, str]:
    """Return what makes an outcome a new one; of a refusal its reason, because its text may count seconds."""
    if outcome.refusals:
        return outcome.verdict.value, outcome.refusals[0].reason.value
    return outcome.verdict.value, outcome.why


_UNLISTED: Final = _Source("reservations", AUTO)
"""Stands for the networks that were not found, because the directories could not be listed."""


def _readings(snapshot: Snapshot) -> Iterator[tuple[_Source, Reading[object]]]:
    yield from ((_Source("reservations", store.network), store.reading) for store in snapshot.reservations)
    yield from ((_Source(name), reading) for name, reading in snapshot.readings() if name != "reservations")


def _is_absent(reading: Reading[object], source: _Source) -> TypeGuard[NotRequested]:
    """Return whether this node does not have the source."""
    return isinstance(reading, NotRequested) and source.name in _MAY_BE_ABSENT


def _about(source: _Source) -> dict[str, str]:
    return {"source": source.name} | ({"network": source.network} if source.network else {})

"""Log lines: changes, not rounds. A healthy node is silent after the start."""

import logging
import sys
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, TypeAlias

import structlog

from agent.checks.addresses import leaked_reservation
from agent.checks.devices.clocks import plugins
from agent.exporters.text.clean import WHEN_HALTED
from agent.model.devices import DeviceTransition, TransitionKind
from agent.model.finding import TrackedFinding
from agent.model.release import MISSED, Cleaning, Outcome, Verdict
from agent.model.report import Report
from agent.model.snapshot import InsufficientData, NotRequested, Reservation, Snapshot, Unavailable, known_or
from agent.model.watches import Evidence

_MAY_BE_ABSENT: Final = {"reservations", "checkpoints", "containers", "cni_results"}


def configure(log_format: str) -> structlog.typing.FilteringBoundLogger:
    """Set up structlog: JSON lines, or colours on a terminal, on standard error."""
    coloured = log_format == "text" or (log_format == "auto" and sys.stderr.isatty())
    renderer: Any = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()) if coloured else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _what_first,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    return logger


def _what_first(_logger: object, _method: str, event: Any) -> Any:
    """Put when, how bad and what before the fields: lines are read by people too."""
    return {key: event.pop(key) for key in ("timestamp", "level", "event")} | event


class LogExporter:
    """Compares each report with the one before."""

    def __init__(self, logger: structlog.typing.FilteringBoundLogger) -> None:
        self._log = logger
        self._open: dict[tuple[str | int, ...], TrackedFinding] = {}
        self._unread: dict[str, Unavailable] = {}
        self._absent: frozenset[str] = frozenset()
        self._blind: dict[str, str] = {}
        self._fates: dict[Reservation, tuple[str, str]] = {}
        self._halted = ""
        self._warnings: frozenset[str] = frozenset()
        self._milestones: _News | None = None
        self._watches: dict[tuple[str, Evidence], datetime] = {}

    def export(self, report: Report, seconds: float) -> None:  # noqa: ARG002 (metrics tell of time)
        if report.clock_stepped:
            self._log.warning("clock.stepped", text="the node's clock was set; findings are confirmed anew")
        self._tell_sources(report)
        self._tell_milestones(report.assessment.snapshot)
        self._tell_watches(report.assessment.snapshot)
        self._tell_findings(report)
        if report.cleaning is not None:
            self._tell_cleaning(report.cleaning, _leaks(report))

    def _tell_sources(self, report: Report) -> None:
        # By source and not by reason: a reason that counts seconds would be a change in every round.
        unavailable = {_which(one): one for one in report.unavailable}
        for key in unavailable.keys() - self._unread.keys():
            self._log.error("source.unread", source=unavailable[key].source, why=unavailable[key].why)
        absent = {_which(one): one for one in _absent(report.assessment.snapshot)}
        nothing_to_read = {one.source for one in absent.values()}
        for key in self._unread.keys() - unavailable.keys():
            if self._unread[key].source not in nothing_to_read:
                self._log.info("source.read", source=self._unread[key].source)
        for key in sorted(absent.keys() - self._absent):
            self._log.info("source.not_requested", source=absent[key].source, why=absent[key].why)
        self._unread, self._absent = unavailable, frozenset(absent)
        broken = {gap.detector: gap.why for gap in report.gaps if gap.broken}
        for detector in broken.keys() - self._blind.keys():
            self._log.error("detector.failed", detector=detector, why=broken[detector])
        self._blind = broken

    def _tell_milestones(self, snapshot: Snapshot) -> None:
        if self._milestones is None:
            self._milestones = _News(snapshot.taken_at)
        try:
            transitions = plugins(snapshot).history
        except InsufficientData:
            return
        for one in self._milestones.of(transitions):
            about = {"resource": one.resource, "socket": one.socket}
            fields: dict[str, Any] = {name: value for name, value in about.items() if value}
            fields |= {"at": one.at.isoformat(timespec="milliseconds"), "exact": one.exact}
            match one.what:
                case TransitionKind.KUBELET_STARTED:
                    self._log.info("kubelet.started", **fields)
                case TransitionKind.SOCKET_APPEARED:
                    self._log.info("device_plugin.socket_appeared", **fields)
                case TransitionKind.REGISTERED:
                    self._log.info("device_plugin.registered", **fields)
                case TransitionKind.LOST:
                    self._log.warning("device_plugin.lost", **fields)
                case _:
                    pass  # what follows from these; that it lasts is a finding

    def _tell_watches(self, snapshot: Snapshot) -> None:
        """Tell of old versions that are nobody's fault, once as long as they go on: the others are findings."""
        for one in known_or(snapshot.watches, ()):
            if self._watches.get((one.resource, one.evidence)) == one.first:
                continue
            self._watches[one.resource, one.evidence] = one.first
            fields = {"resource": one.resource, "before": one.before, "version": one.version}
            if one.evidence is Evidence.RV_RESET:
                self._log.warning("watch.reset", **fields, text="versions went back: etcd was restored from a backup")
            elif one.evidence is Evidence.OLDER_LIST:
                self._log.info("watch.lagging", **fields, text="a server's cache lags behind; etcd itself is asked")

    def _tell_findings(self, report: Report) -> None:
        now = {one.finding.key: one for one in report.findings if one.confirmed}
        blind = {gap.detector for gap in report.gaps}
        for key, judged in now.items():
            if key not in self._open:
                finding = judged.finding
                self._log.warning(
                    "finding.opened",
                    detector=finding.detector,
                    subject=finding.subject,
                    severity=finding.severity.value,
                    text=finding.message,
                    since=judged.since.isoformat(timespec="seconds"),
                    **({"cause": finding.cause.value} if finding.cause else {}),
                    **({"pod": finding.pod} if finding.pod else {}),
                )
        gone = {key: one for key, one in self._open.items() if key not in now}
        unseen = {key: one for key, one in gone.items() if one.finding.detector in blind}
        for key, judged in gone.items():
            if key not in unseen:
                self._log.info("finding.closed", detector=judged.finding.detector, subject=judged.finding.subject)
        self._open = now | unseen

    def _tell_cleaning(self, cleaning: Cleaning, leaks: frozenset[str]) -> None:
        if cleaning.halted and cleaning.halted != self._halted:
            self._log.error("cleanup.halted", why=cleaning.halted, do=WHEN_HALTED)
        self._halted = cleaning.halted
        for warning in cleaning.warnings:
            if warning not in self._warnings:
                self._log.warning("cleanup.warned", text=warning)
        self._warnings = frozenset(cleaning.warnings)
        fates = {one: outcome for outcome in cleaning.outcomes for one in outcome.request.reservations}
        # What is not called a leak is no news, and neither is that it is not released: every teardown looks like it.
        news = {
            one: outcome
            for one, outcome in fates.items()
            if outcome.verdict is not Verdict.REFUSED or f"{one.network}/{one.ip}" in leaks
        }
        for one, outcome in news.items():
            if self._fates.get(one) != _fate(outcome):
                self._tell_fate(one, outcome)
        # A round that could not judge forgets nothing.
        before = self._fates if cleaning.unavailable else {}
        self._fates = {**before, **{one: _fate(outcome) for one, outcome in news.items()}}

    def _tell_fate(self, one: Reservation, outcome: Outcome) -> None:
        about = {"network": one.network, "ip": one.ip, "container": one.container_id, "pod": outcome.request.pod}
        about = {name: value for name, value in about.items() if value}
        if outcome.refusals:
            first = outcome.refusals[0]
            self._log.info("release.refused", **about, reason=first.reason.value, why=first.why)
        elif outcome.verdict is Verdict.WOULD_RELEASE:
            self._log.info("release.withheld", **about)
        elif outcome.verdict in MISSED:
            self._log.warning("release.failed", **about, verdict=outcome.verdict.value, why=outcome.why)
        else:
            left = {"why": outcome.why} if outcome.why else {}
            self._log.info("address.released", **about, entry=outcome.entry, **left)


class _News:
    """Which milestones were not told yet. What happened before the first look is told to nobody."""

    def __init__(self, started: datetime) -> None:
        self._started = started
        self._told: frozenset[_Thing] | None = None

    def of(self, transitions: Iterable[DeviceTransition]) -> list[DeviceTransition]:
        now = _things(transitions)
        # Once the past is known, what is new is what was not in it: a clock that is set cannot make it old.
        if self._told is None:
            news = [one for one in now.values() if one.at > self._started]
        else:
            news = [one for thing, one in now.items() if thing not in self._told]
        self._told = frozenset(now)
        return news


_Thing: TypeAlias = tuple[str | datetime | int, ...]


def _things(transitions: Iterable[DeviceTransition]) -> dict[_Thing, DeviceTransition]:
    """Tell milestones apart so that each stays itself from look to look.

    One without a date of its own is the n-th of its kind since the last that has one: where no history can be kept,
    every look is the first to see it, and dates it anew.
    """
    things: dict[_Thing, DeviceTransition] = {}
    since: tuple[datetime, ...] = ()
    counted: Counter[_Thing] = Counter()
    for one in transitions:
        kind = one.what, one.resource, one.socket
        if one.exact:
            since, counted = (one.at,), Counter()
            things[*kind, one.at] = one
        else:
            counted[kind] += 1
            things[*kind, *since, counted[kind]] = one
    return things


def _leaks(report: Report) -> frozenset[str]:
    return frozenset(
        one.finding.subject
        for one in report.findings
        if one.confirmed and one.finding.detector == leaked_reservation.NAME
    )  # fmt: skip


def _fate(outcome: Outcome) -> tuple[str, str]:
    """Return what makes an outcome another one: of a refusal its reason, whose words may count seconds."""
    if outcome.refusals:
        return outcome.verdict.value, outcome.refusals[0].reason.value
    return outcome.verdict.value, outcome.why


def _absent(snapshot: Snapshot) -> tuple[NotRequested, ...]:
    """Return what this node does not have. What an option leaves alone is no news, nor what was not needed."""
    readings = tuple(reading for _, reading in snapshot.readings())
    return tuple(one for one in readings if isinstance(one, NotRequested) and one.source in _MAY_BE_ABSENT)


def _which(unavailable: Unavailable | NotRequested) -> str:
    # The reservations of several networks fail apart, and their reasons (a directory's name) do not vary.
    return f"{unavailable.source}: {unavailable.why}" if unavailable.source == "reservations" else unavailable.source

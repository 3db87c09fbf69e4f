"""Syncs of a daemon, with the metrics and the log lines that its exporters make of them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, generate_latest

from agent.checks import engine
from agent.checks.engine import ConfirmationState
from agent.exporters.bugs import BugReporter
from agent.exporters.deliveries import DeliveryMetrics
from agent.exporters.log import LogExporter
from agent.exporters.prometheus import MetricsExporter
from agent.model.finding import SkippedCheck, TrackedFinding
from agent.model.release import Cleaning
from agent.model.report import Report
from agent.model.snapshot import Snapshot
from tests.builders import GRACE

Lines = list[dict[str, Any]]


class Stream:
    """A watch, as the exporter sees it."""

    source = "pods"
    restarts: Mapping[str, int] = {"ended": 3, "expired": 0}
    regressions = 1


class Daemon:
    """Each sync is 15 s after the last; a finding is confirmed after 30 s."""

    def __init__(
        self, *, mode: str = "observe", journal_size: Callable[[], int | None] = lambda: None
    ) -> None:
        self.registry, self._capture = CollectorRegistry(), structlog.testing.LogCapture()
        watches: list[Any] = [Stream()]
        logger = structlog.wrap_logger(None, processors=[self._capture])
        bugs = BugReporter(self.registry, logger)
        self._exporters = (
            LogExporter(logger),
            bugs,
            MetricsExporter(
                self.registry,
                mode,
                watches,
                commit="577acf9",
                journal_size=journal_size,
                report_bug=bugs,
            ),
        )
        self.deliveries = DeliveryMetrics(self.registry)
        self._memory: ConfirmationState | None = None
        self._seconds = 0

    def sync(
        self,
        snapshot: Snapshot,
        gaps: tuple[SkippedCheck, ...] = (),
        cleaning: Cleaning | None = None,
        findings: tuple[TrackedFinding, ...] = (),
        confirm_after: timedelta = timedelta(seconds=30),
    ) -> "Daemon":
        self._seconds += 15
        later = timedelta(seconds=self._seconds)
        snapshot = replace(
            snapshot, taken_at=snapshot.taken_at + later, uptime=snapshot.uptime + later
        )
        report, self._memory = engine.run(
            snapshot, self._memory, grace=GRACE, confirm_after=confirm_after
        )
        findings, gaps = (*report.findings, *findings), (*report.gaps, *gaps)
        return self.export(replace(report, gaps=gaps, findings=findings, cleaning=cleaning))

    def syncs(self, count: int, snapshot: Snapshot) -> "Daemon":
        for _ in range(count):
            self.sync(snapshot)
        return self

    def export(self, report: Report) -> "Daemon":
        self._capture.entries.clear()
        for exporter in self._exporters:
            exporter.export(report, 0.02)
        return self

    @property
    def lines(self) -> Lines:
        """The log lines of the last sync."""
        return [dict(line) for line in self._capture.entries]

    @property
    def events(self) -> list[str]:
        return [line["event"] for line in self.lines]

    def scrape(self) -> str:
        return generate_latest(self.registry).decode()

    def get(self, sample: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"nodeleak_{sample}", labels)

    def labels(self, name: str) -> list[dict[str, str]]:
        name = f"nodeleak_{name}"
        return [
            one.labels
            for family in self.registry.collect()
            for one in family.samples
            if one.name == name
        ]

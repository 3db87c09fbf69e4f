"""Bugs that the agent survives: each is logged once, with its traceback, and all are counted."""

from threading import Lock
from typing import Final

from prometheus_client import CollectorRegistry, Counter, disable_created_metrics

from agent.exporters.log import Logger
from agent.exporters.metric_help import HELP, PREFIX
from agent.model.bug import EXPORTER, Bug
from agent.model.report import Report

PARTS: Final = ("source", "detector", "guard", "cleaner", EXPORTER, "http")
"""The values of the label `part`. Each starts at 0, so that an alert sees the first bug."""
_NAME: Final = "internal_errors_total"
_MOST_LOGGED: Final = 100
"""Different bugs that are logged: an error may quote what it failed on, which differs each time."""


class BugReporter:
    """Reports the bugs of each sync; other threads call it with theirs."""

    def __init__(self, registry: CollectorRegistry, logger: Logger) -> None:
        disable_created_metrics()
        self._log = logger
        self._lock = Lock()
        self._logged: set[tuple[str, str, str]] = set()
        self._errors = Counter(f"{PREFIX}{_NAME}", HELP[_NAME], ("part",), registry=registry)
        for part in PARTS:
            self._errors.labels(part)

    def export(self, report: Report, seconds: float) -> None:  # noqa: ARG002 (a metric)
        of_cleaning = report.cleaning.bugs if report.cleaning else ()
        for bug in (*report.bugs, *of_cleaning):
            self(bug)

    def __call__(self, bug: Bug) -> None:
        self._errors.labels(bug.part).inc()
        kind = (bug.part, bug.name, bug.error)
        with self._lock:
            if kind in self._logged or len(self._logged) >= _MOST_LOGGED:
                return
            self._logged.add(kind)
        self._log.error(
            "internal_error",
            part=bug.part,
            name=bug.name,
            error=bug.error,
            traceback=bug.traceback,
        )

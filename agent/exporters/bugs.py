"""Bugs that the agent survives: each is logged once, with its traceback, and all are counted."""

from threading import Lock
from typing import Final

from prometheus_client import CollectorRegistry

from agent.exporters.log import Logger
from agent.exporters.metrics import INTERNAL_ERRORS
from agent.exporters.prometheus import counter
from agent.model.bug import Bug
from agent.model.report import Report

_MAX_LOGGED: Final = 100
"""Different bugs that are logged: an error may quote what it failed on, which differs each time."""


class BugReporter:
    """Reports the bugs of each sync; other threads call it with theirs."""

    def __init__(self, registry: CollectorRegistry, logger: Logger) -> None:
        self._log = logger
        self._lock = Lock()
        self._logged: set[tuple[str, str, str]] = set()
        """Part, name and error of each."""
        self._errors = counter(INTERNAL_ERRORS, registry)

    def export(self, report: Report, seconds: float) -> None:  # noqa: ARG002 (a metric)
        of_cleanup = report.cleaning.bugs if report.cleaning else ()
        for bug in (*report.bugs, *of_cleanup):
            self(bug)

    def __call__(self, bug: Bug) -> None:
        """Count a bug, and log it if it is a new one. Thread-safe."""
        self._errors.labels(bug.part).inc()
        kind = (bug.part, bug.name, bug.error)
        with self._lock:
            if kind in self._logged or len(self._logged) >= _MAX_LOGGED:
                return
            self._logged.add(kind)

        self._log.error(
            "internal_error",
            part=bug.part,
            name=bug.name,
            error=bug.error,
            traceback=bug.traceback,
        )

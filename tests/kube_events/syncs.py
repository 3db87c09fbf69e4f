"""Syncs of a daemon, and reports with given findings, for the tests of Events."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from agent.checks import engine
from agent.checks.engine import ConfirmationState
from agent.model.finding import Finding, Severity, TrackedFinding
from agent.model.report import Report
from agent.model.snapshot import Snapshot
from tests.builders import GRACE, NOW, node

INTERVAL = timedelta(seconds=15)


class Syncs:
    """Consecutive syncs, `INTERVAL` apart, as the daemon runs them."""

    def __init__(self) -> None:
        self._memory: ConfirmationState | None = None
        self._at = timedelta(0)

    def report(self, snapshot: Snapshot, after: timedelta = INTERVAL) -> Report:
        self._at += after
        snapshot = replace(
            snapshot, taken_at=snapshot.taken_at + self._at, uptime=snapshot.uptime + self._at
        )
        report, self._memory = engine.run(
            snapshot, self._memory, grace=GRACE, confirm_after=timedelta(seconds=30)
        )
        return report


def confirmed(*findings: Finding, pods: Any = None, later: timedelta = timedelta(0)) -> Report:
    """The report of a sync in which exactly these findings are confirmed."""
    report, _ = engine.run(node(pods=pods, later=later), None, grace=GRACE, confirm_after=GRACE)
    return replace(
        report, findings=tuple(TrackedFinding(finding, NOW, confirmed=True) for finding in findings)
    )


def leak(
    number: int, network: str = "kubenet", message: str = "", severity: Severity = Severity.WARNING
) -> Finding:
    ip = f"10.244.1.{number}"
    return Finding(
        "leaked_reservation",
        f"{network}/{ip}",
        message or f"{ip} leaked",
        severity=severity,
        network=network,
        identity=("9" * 64,),
    )

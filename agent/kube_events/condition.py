"""The node's condition `CNIAddressPressure`: what the detector `exhausted_range` says, False when all is well.

True: of some network it has a confirmed finding (fewer free addresses than the node may still be given pods, or none
at all). Unknown: it could not judge all networks. A finding that is not confirmed yet leaves the condition as it is,
and a node of which it has nothing to judge (no kubenet) is not given one.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from agent.checks.addresses import exhausted_range
from agent.kube_events.messages import stamp
from agent.kube_events.queue import Message, Post, Server, What
from agent.kube_events.rate_limit import AGAIN
from agent.model.finding import Severity
from agent.model.report import Report
from agent.model.snapshot import ADDRESS_PRESSURE, Known, Node

LOST: Final = timedelta(minutes=1)
"""By then the node object that we watch has what was sent; else it never arrived, or the Node was made anew."""

EXHAUSTED: Final = "CNIAddressesExhausted"
SCARCE: Final = "CNIAddressesScarce"
AVAILABLE: Final = "CNIAddressesAvailable"
UNKNOWN: Final = "CNIAddressesUnknown"


@dataclass(frozen=True, slots=True)
class Condition:
    status: str
    reason: str
    message: str

    def patch(self, at: datetime, *, turned: bool) -> dict[str, Any]:
        """Return the patch of a node; `turned`: its status was another one until now."""
        told = {
            "type": ADDRESS_PRESSURE,
            "status": self.status,
            "reason": self.reason,
            "message": self.message,
            "lastHeartbeatTime": stamp(at),
        }
        # What a patch leaves out stays as it is.
        return {"status": {"conditions": [told | ({"lastTransitionTime": stamp(at)} if turned else {})]}}


def condition(report: Report) -> Condition | None:
    """Return what the condition should be; None: as it is."""
    found = [judged for judged in report.findings if judged.finding.detector == exhausted_range.NAME]
    confirmed = [judged.finding for judged in found if judged.confirmed]
    if confirmed:
        nothing_left = any(finding.severity is Severity.CRITICAL for finding in confirmed)
        message = "; ".join(finding.message for finding in confirmed)
        return Condition("True", EXHAUSTED if nothing_left else SCARCE, message)
    if found:
        return None
    for gap in report.gaps:
        if gap.detector == exhausted_range.NAME:
            return None if gap.chosen and not _on_the_node(report) else Condition("Unknown", UNKNOWN, gap.why)
    free = (f"{one.name}: {one.free} of {one.usable} addresses are free" for one in report.networks)
    return Condition("False", AVAILABLE, "; ".join(free))


def _on_the_node(report: Report) -> str | None:
    """Return the condition's status as the node object has it, empty where it has none; None: that is not known."""
    match report.assessment.snapshot.node:
        case Known(Node(address_pressure=status)):
            return status
        case _:
            return None


class ConditionExporter:
    """Patches the condition when it changes, when the node object lacks it after a minute, and every five minutes."""

    def __init__(self, post: Post) -> None:
        self._post = post
        self._told: Condition | None = None
        self._told_at = timedelta(0)

    def export(self, report: Report, seconds: float) -> None:  # noqa: ARG002 (it tells of no time)
        snapshot = report.assessment.snapshot
        now = condition(report)
        if now is None or not self._is_due(now, _on_the_node(report), snapshot.uptime):
            return
        patch = now.patch(snapshot.taken_at, turned=now.status != self._standing(report))
        send = partial(_send, f"/api/v1/nodes/{snapshot.node_name}/status", patch)
        self._post(Message(What.CONDITION, now.reason, send))
        self._told, self._told_at = now, snapshot.uptime

    def _is_due(self, now: Condition, standing: str | None, uptime: timedelta) -> bool:
        ago = uptime - self._told_at
        if self._told is None or ago >= AGAIN or (ago >= LOST and standing not in {None, now.status}):
            return True
        return (now.status, now.reason) != (self._told.status, self._told.reason)

    def _standing(self, report: Report) -> str:
        """Return the condition's status until now: as the node object has it, which a restart does not forget."""
        status = _on_the_node(report)
        if status is None:
            return self._told.status if self._told else ""
        return status


def _send(path: str, patch: dict[str, Any], server: Server) -> None:
    server.patch(path, patch)

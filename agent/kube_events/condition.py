"""The node's condition `CNIAddressPressure`, from the detector `exhausted_range`.

True: it has a confirmed finding (fewer free addresses than the node can still be given pods, or none). False: it has
none. Unknown: it could not check all networks. An unconfirmed finding leaves the condition unchanged, and a node
without kubenet does not get one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from agent.checks.addresses import exhausted_range
from agent.kube_events.queue import Kind, Message, Put, Server
from agent.kube_events.rate_limit import REPEAT_AFTER
from agent.model.finding import Finding, Severity, urgency
from agent.model.report import NetworkSummary, Report
from agent.model.snapshot import ADDRESS_PRESSURE, Known, Node
from agent.model.text import rfc3339

RESEND_AFTER: Final = timedelta(minutes=1)
"""By then the watched node object has the patch; otherwise it was lost, or the Node was created again."""

EXHAUSTED: Final = "CNIAddressesExhausted"
SCARCE: Final = "CNIAddressesScarce"
AVAILABLE: Final = "CNIAddressesAvailable"
UNKNOWN: Final = "CNIAddressesUnknown"


@dataclass(frozen=True, slots=True)
class Condition:
    status: str
    reason: str
    message: str

    def patch(self, at: datetime, *, changed: bool) -> dict[str, Any]:
        """Return the patch of the node's status. `changed`: the condition had another status until now."""
        condition = {
            "type": ADDRESS_PRESSURE,
            "status": self.status,
            "reason": self.reason,
            "message": self.message,
            "lastHeartbeatTime": rfc3339(at),
        }
        # A strategic merge patch keeps the fields that it leaves out.
        return {"status": {"conditions": [condition | ({"lastTransitionTime": rfc3339(at)} if changed else {})]}}


def condition(report: Report) -> Condition | None:
    """Return the condition; None: leave it unchanged."""
    found = [one for one in report.problems if one.finding.detector == exhausted_range.NAME]
    confirmed = [one.finding for one in sorted(found, key=urgency) if one.confirmed]
    if confirmed:
        return _pressure(confirmed)
    if found:
        return None
    for gap in report.gaps:
        if gap.detector == exhausted_range.NAME:
            # A node without kubenet keeps no old status, but does not get a new condition.
            return None if gap.chosen and not _current_status(report) else Condition("Unknown", UNKNOWN, gap.why)
    return Condition("False", AVAILABLE, "; ".join(filter(None, map(_free_addresses, report.networks))))


def _pressure(confirmed: Sequence[Finding]) -> Condition:
    # The most severe comes first.
    reason = EXHAUSTED if confirmed[0].severity is Severity.CRITICAL else SCARCE
    return Condition("True", reason, "; ".join(finding.message for finding in confirmed))


def _free_addresses(network: NetworkSummary) -> str:
    """Count them; empty where the network is not in use."""
    if network.not_in_use:
        return ""
    if network.usable is None:
        return f"{network.name}: no address is reserved"
    return f"{network.name}: {network.free} of {network.usable} addresses are free"


def _current_status(report: Report) -> str | None:
    """Return the status in the node object, empty where it has no such condition; None: not known."""
    match report.assessment.snapshot.node:
        case Known(Node(address_pressure=status)):
            return status
        case _:
            return None


class ConditionExporter:
    """Patches the condition when it changes, when the node object lacks it after a minute, and every five minutes."""

    def __init__(self, put: Put) -> None:
        self._put = put
        self._sent: Condition | None = None
        self._sent_at = timedelta(0)

    def export(self, report: Report, seconds: float) -> None:  # noqa: ARG002 (a metric)
        snapshot = report.assessment.snapshot
        now = condition(report)
        if now is None or not self._is_due(now, _current_status(report), snapshot.uptime):
            return
        patch = now.patch(snapshot.taken_at, changed=now.status != self._previous_status(report))
        send = partial(_send, f"/api/v1/nodes/{snapshot.node_name}/status", patch)
        self._put(Message(Kind.CONDITION, now.reason, send))
        self._sent, self._sent_at = now, snapshot.uptime

    def _is_due(self, now: Condition, current: str | None, uptime: timedelta) -> bool:
        ago = uptime - self._sent_at
        if self._sent is None or ago >= REPEAT_AFTER or (ago >= RESEND_AFTER and current not in {None, now.status}):
            return True
        return (now.status, now.reason) != (self._sent.status, self._sent.reason)

    def _previous_status(self, report: Report) -> str:
        """Return the status until now, from the node object where possible: it survives a restart of the agent."""
        status = _current_status(report)
        if status is None:
            return self._sent.status if self._sent else ""
        return status


def _send(path: str, patch: dict[str, Any], server: Server) -> None:
    server.patch(path, patch)

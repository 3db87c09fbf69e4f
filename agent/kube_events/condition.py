"""The node's condition `CNIAddressPressure`, from the detector `exhausted_range`.

True: it has a confirmed warning or critical finding. False: it has none. Unknown: it could not
check all networks. An unconfirmed finding leaves the condition unchanged, and a node without
kubenet does not get one.
"""

from datetime import datetime, timedelta
from typing import Any, NamedTuple

from agent.checks.addresses import exhausted_range
from agent.kube_events.delivery import REPEAT_AFTER, DeliveryQueue, Kind, Message
from agent.model.finding import Severity, urgency
from agent.model.report import NetworkSummary, Report
from agent.model.snapshot import ADDRESS_PRESSURE, Known
from agent.model.text import rfc3339


class Condition(NamedTuple):
    status: str
    reason: str
    message: str

    def patch(self, at: datetime, *, changed: bool) -> dict[str, Any]:
        """Return the patch of the node's status.

        `changed`: the condition had another status until now.
        """
        condition = {
            "type": ADDRESS_PRESSURE,
            "status": self.status,
            "reason": self.reason,
            "message": self.message,
            "lastHeartbeatTime": rfc3339(at),
        }
        # A strategic merge patch keeps the fields that it leaves out.
        if changed:
            condition["lastTransitionTime"] = rfc3339(at)
        return {"status": {"conditions": [condition]}}


def condition(report: Report) -> Condition | None:
    """Return the condition; None: leave it unchanged."""
    problems = sorted(report.problems, key=urgency)
    findings = [each for each in problems if each.finding.detector == exhausted_range.NAME]
    confirmed = [tracked.finding for tracked in findings if tracked.confirmed]
    if confirmed:
        is_exhausted = confirmed[0].severity is Severity.CRITICAL
        reason = "CNIAddressesExhausted" if is_exhausted else "CNIAddressesScarce"
        return Condition("True", reason, "; ".join(finding.message for finding in confirmed))

    return None if findings else _without_finding(report)


def _without_finding(report: Report) -> Condition | None:
    """Return the condition by the gaps of the detector, and by the free addresses."""
    for gap in report.gaps:
        if gap.detector == exhausted_range.NAME:
            # A node without kubenet keeps no old status, but does not get a new condition.
            if gap.chosen and not _status(report):
                return None
            return Condition("Unknown", "CNIAddressesUnknown", gap.why)

    free = [_free_addresses(network) for network in report.networks if not network.not_in_use]
    return Condition("False", "CNIAddressesAvailable", "; ".join(free))


def _free_addresses(network: NetworkSummary) -> str:
    if network.usable is None:
        return f"{network.name}: no address is reserved"
    return f"{network.name}: {network.free} of {network.usable} addresses are free"


def _status(report: Report) -> str | None:
    """Return the status in the Node object; empty: it has no such condition; None: not known."""
    node = report.assessment.snapshot.node
    return node.value.address_pressure if isinstance(node, Known) and node.value else None


class ConditionExporter:
    """Patches the condition when it changes, and every five minutes.

    A patch, or the Node, may get lost.
    """

    def __init__(self, queue: DeliveryQueue) -> None:
        self._queue = queue
        self._sent: Condition | None = None
        self._sent_at = timedelta(0)
        """By the boot clock."""

    def export(self, report: Report, seconds: float) -> None:  # noqa: ARG002 (a metric)
        """Queue the patch, if it is due."""
        snapshot = report.assessment.snapshot
        sent = self._sent
        now = condition(report)
        if now is None:
            return
        unchanged = sent is not None and (sent.status, sent.reason) == (now.status, now.reason)
        if unchanged and snapshot.uptime - self._sent_at < REPEAT_AFTER:
            return

        before = _status(report)  # the Node object survives a restart of the agent
        if before is None and sent is not None:
            before = sent.status
        patch = now.patch(snapshot.taken_at, changed=now.status != before)

        path = f"/api/v1/nodes/{snapshot.node_name}/status"
        message = Message(Kind.CONDITION, now.reason, lambda writer: writer.patch(path, patch))
        self._queue.put(message)

        self._sent = now
        self._sent_at = snapshot.uptime

"""A report as the JSON document `nodeleak.scan/v1`: for programs."""

import re
from datetime import UTC, datetime
from typing import Any, Final

from agent.checks.addresses.classify import made_at
from agent.checks.devices.resource_state import resource_states
from agent.checks.registry import DETECTORS
from agent.model.assessment import ClassifiedReservation
from agent.model.devices import ResourceState
from agent.model.finding import TrackedFinding
from agent.model.report import NetworkSummary, Report
from agent.model.snapshot import InsufficientData, Reservation, Snapshot

SCHEMA: Final = "nodeleak.scan/v1"


def document(report: Report) -> dict[str, Any]:
    """Draw a report. Times are UTC in RFC 3339; what is not known is null, never 0."""
    snapshot = report.assessment.snapshot
    return {
        "schema": SCHEMA,
        "node": snapshot.node_name,
        "taken_at": moment(snapshot.taken_at),
        "server_version": snapshot.server_version or None,
        "networks": [_network(network) for network in report.networks],
        "reservations": [
            _reservation(one, snapshot.taken_at) for one in in_order(report.assessment.classified_reservations)
        ],
        "device_plugins": _devices(snapshot),
        "findings": [_finding(judged) for judged in findings_in_order(report)],
        "unavailable": [{"source": one.source, "why": one.why} for one in report.unavailable],
        "insufficient_data": [{"detector": gap.detector, "why": gap.why} for gap in report.gaps],
    }


def moment(when: datetime) -> str:
    return when.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def in_order(classified_reservations: tuple[ClassifiedReservation, ...]) -> list[ClassifiedReservation]:
    """Sort by network and address, as people count addresses; what is not an address comes last."""
    return sorted(
        classified_reservations,
        key=lambda one: (one.network, not one.blocks, _numeric(one.name) if one.blocks else (), one.name),
    )


def findings_in_order(report: Report) -> list[TrackedFinding]:
    """Sort by detector, as they are listed, and by subject, numbers as numbers."""
    rank = {detector.NAME: place for place, detector in enumerate(DETECTORS)}
    return sorted(report.findings, key=lambda one: (rank[one.finding.detector], _natural(one.finding.subject)))


def _natural(text: str) -> list[tuple[int, str]]:
    return [(int(part) if part.isdecimal() else -1, part) for part in re.split(r"(\d+)", text)]


def _numeric(ip: str) -> tuple[int, ...]:
    """Order addresses of one family by value, IPv4 before IPv6, without the price of parsing each."""
    if ":" in ip:
        head, _, tail = ip.partition("::")
        groups = [int(group, 16) for group in head.split(":") if group]
        after = [int(group, 16) for group in tail.split(":") if group]
        return (6, *groups, *([0] * (8 - len(groups) - len(after))), *after)
    return (4, *map(int, ip.split(".")))


def _network(network: NetworkSummary) -> dict[str, Any]:
    return {
        "name": network.name,
        "ranges": None if network.ranges is None else [str(one) for ranges in network.ranges for one in ranges],
        "usable": network.usable,
        "reserved": network.reserved,
        "free": network.free,
        "states": None if network.states is None else {state.value: n for state, n in network.states.items()},
    }


def _reservation(classified: ClassifiedReservation, taken_at: datetime) -> dict[str, Any]:
    entry = classified.entry
    reservation = entry if isinstance(entry, Reservation) else None
    return {
        "network": classified.network,
        "ip": classified.name,
        "container_id": reservation.container_id if reservation else None,
        "ifname": reservation.ifname if reservation else None,
        "state": classified.state.value,
        "pod": classified.pod or None,
        "age_seconds": round((taken_at - made_at(reservation)).total_seconds(), 3) if reservation else None,
        "why": classified.why,
    }


def _devices(snapshot: Snapshot) -> list[dict[str, Any]] | None:
    try:
        return [_device(state) for state in resource_states(snapshot)]
    except InsufficientData:
        return None


def _device(state: ResourceState) -> dict[str, Any]:
    return {
        "resource": state.resource,
        "devices": state.devices,
        "allocated": state.allocated,
        "registered": state.registered,
        "registered_since": None if state.registered_since is None else moment(state.registered_since),
        "registration_delay_seconds": None if state.delay is None else round(state.delay.total_seconds(), 3),
        "socket": state.socket or None,
        "socket_present": state.socket_present,
        "connected": state.connected,
    }


def _finding(judged: TrackedFinding) -> dict[str, Any]:
    finding = judged.finding
    return {
        "detector": finding.detector,
        "subject": finding.subject,
        "message": finding.message,
        "severity": finding.severity.value,
        "since": moment(judged.since),
        "confirmed": judged.confirmed,
        "cause": finding.cause.value if finding.cause else None,
        "network": finding.network or None,
        "pod": finding.pod or None,
        "resource": finding.resource or None,
        "pod_outcome": finding.pod_outcome.value if finding.pod_outcome else None,
        "strength": finding.strength.value if finding.strength else None,
    }

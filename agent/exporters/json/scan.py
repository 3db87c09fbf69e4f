"""A report as JSON: `nodeleak.scan/v1`, of which text and page are made too, and in short `nodeleak.status/v1`."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from agent.checks.devices.resources import resource_states
from agent.checks.devices.view import DeviceView
from agent.exporters.json.status import SCHEMA, NodeState
from agent.exporters.summary import headline, state_of
from agent.model.assessment import ClassifiedReservation, State
from agent.model.finding import LeakCause, TrackedFinding, total
from agent.model.ranges import numbered
from agent.model.report import NetworkSummary, Report
from agent.model.snapshot import (
    InsufficientData,
    Reservation,
    ReservationKey,
    Snapshot,
    Unavailable,
)
from agent.model.text import rfc3339

_SCHEMA: Final = "nodeleak.scan/v1"


def scan_document(report: Report) -> dict[str, Any]:
    """Return the document. Times are UTC in RFC 3339; what is not known is null, never 0."""
    snapshot, causes = report.assessment.snapshot, report.leak_causes
    return {
        "schema": _SCHEMA,
        "node": snapshot.node_name,
        "taken_at": rfc3339(snapshot.taken_at),
        "server_version": snapshot.server_version or None,
        "networks": [_network(network) for network in report.networks],
        "reservations": [
            _reservation(entry, snapshot.taken_at, causes)
            for entry in sorted_reservations(report.assessment.reservations)
        ],
        "device_plugins": _devices(snapshot),
        "findings": [_finding(tracked) for tracked in report.sorted_findings],
        "unavailable": unavailable_sources(report.unavailable),
        "insufficient_data": [{"detector": gap.detector, "why": gap.why} for gap in report.gaps],
    }


def unavailable_sources(unavailable: Iterable[Unavailable]) -> list[dict[str, str]]:
    return [{"source": source.source, "why": source.why} for source in unavailable]


def sorted_reservations(
    reservations: Iterable[ClassifiedReservation],
) -> list[ClassifiedReservation]:
    """Sort by network and address, addresses by value; entries that are not addresses come last."""
    return sorted(
        reservations,
        key=lambda entry: address_order(entry.network, entry.name, is_address=entry.blocks),
    )


def address_order(
    network: str, name: str, *, is_address: bool = True
) -> tuple[str, bool, tuple[int, int], str]:
    return network, not is_address, numbered(name) if is_address else (0, 0), name


def _network(network: NetworkSummary) -> dict[str, Any]:
    return {
        "name": network.name,
        "ranges": None
        if network.ranges is None
        else [str(each) for ranges in network.ranges for each in ranges],
        "usable": network.usable,
        "reserved": network.reserved,
        "free": network.free,
        "states": None
        if network.states is None
        else {state.value: n for state, n in network.states.items()},
        "not_in_use": network.not_in_use or None,
    }


def _reservation(
    classified: ClassifiedReservation,
    taken_at: datetime,
    causes: Mapping[ReservationKey, LeakCause],
) -> dict[str, Any]:
    entry = classified.entry
    reservation = entry if isinstance(entry, Reservation) else None
    return {
        "network": classified.network,
        "ip": classified.name,
        "container_id": reservation.container_id if reservation else None,
        "ifname": reservation.ifname if reservation else None,
        "state": classified.state.value,
        "pod": classified.pod or None,
        "age_seconds": round((taken_at - reservation.mtime).total_seconds(), 3)
        if reservation
        else None,
        "why": classified.why,
        "cause": causes.get(reservation.key) if reservation else None,
    }


def _devices(snapshot: Snapshot) -> list[dict[str, Any]] | None:
    try:
        states = resource_states(DeviceView.of(snapshot))
    except InsufficientData:
        return None
    return [
        {
            "resource": state.resource,
            "devices": state.devices,
            "allocated": state.allocated,
            "registered": state.registered,
            "registered_since": None
            if state.registered_since is None
            else rfc3339(state.registered_since),
            "registration_delay_seconds": None
            if state.delay is None
            else round(state.delay.total_seconds(), 3),
            "socket": state.socket,
            "socket_present": state.socket_present,
            "connected": state.connected,
        }
        for state in states
    ]


def _finding(tracked: TrackedFinding) -> dict[str, Any]:
    finding = tracked.finding
    return {
        "detector": finding.detector,
        "subject": finding.subject,
        "message": finding.message,
        "severity": finding.severity.value,
        "count": finding.count,
        "since": None if tracked.began is None else rfc3339(tracked.began),
        "confirmed": tracked.confirmed,
        "cause": finding.cause.value if finding.cause else None,
        "network": finding.network or None,
        "pod": finding.pod or None,
        "resource": finding.resource or None,
        "pod_outcome": finding.pod_outcome.value if finding.pod_outcome else None,
        "host_ports": [
            {"port": port.host_port, "protocol": port.protocol} for port in finding.port_mappings
        ],
        "strength": finding.confidence.value if finding.confidence else None,
    }


def status_document(
    report: Report,
    cleanup: Mapping[str, object],
    version: str,
    *,
    age: float,
    interval: float,
    alive: bool,
) -> dict[str, Any]:
    """`age`: seconds since the snapshot was begun; `interval`: between two syncs; `alive`: whether they go on."""
    taken_at = rfc3339(report.assessment.snapshot.taken_at)
    return {
        "schema": SCHEMA,
        "version": version,
        "node": report.assessment.snapshot.node_name,
        "state": (state_of(report) if alive else NodeState.STALLED).value,
        "headline": headline(report, alive=alive),
        "cleanup": {**cleanup, "halted": (report.cleaning and report.cleaning.halted) or ""},
        "networks": [
            _status_of_network(network) for network in report.networks if not network.not_in_use
        ],
        "findings": list(_counted_findings(report.sorted_findings)),
        "unavailable": unavailable_sources(report.unavailable),
        "report": {
            "taken_at": taken_at,
            "age_seconds": round(age, 1),
            "interval_seconds": interval,
        },
    }


def _status_of_network(network: NetworkSummary) -> dict[str, Any]:
    states = network.states or {}
    counts = {"leaked": states.get(State.LEAKED), "unknown": states.get(State.UNKNOWN)}
    return {"name": network.name, "usable": network.usable, "free": network.free, **counts}


def _counted_findings(findings: Iterable[TrackedFinding]) -> Iterator[dict[str, Any]]:
    groups: dict[tuple[str, str], list[TrackedFinding]] = {}
    for tracked in findings:
        if tracked.confirmed:
            groups.setdefault(
                (tracked.finding.severity.value, tracked.finding.detector), []
            ).append(tracked)
    for (severity, detector), group in groups.items():
        oldest = min(tracked.since for tracked in group)
        yield {
            "severity": severity,
            "detector": detector,
            "count": total(group),
            "oldest": rfc3339(oldest),
        }

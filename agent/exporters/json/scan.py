"""A report as the JSON document `nodeleak.scan/v1`, and in short as `nodeleak.status/v1`.

Text and page are made from the former.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final

from agent.checks.devices.resources import resource_states
from agent.checks.devices.view import DeviceView
from agent.exporters.json import Document
from agent.exporters.json.status import SCHEMA, NodeState
from agent.exporters.summary import headline, state_of
from agent.model.assessment import ClassifiedReservation, State
from agent.model.finding import Severity, TrackedFinding, total
from agent.model.ranges import numbered
from agent.model.report import NetworkSummary, Report
from agent.model.snapshot import InsufficientData, Reservation, Snapshot, Unavailable
from agent.model.text import rfc3339

_SCHEMA: Final = "nodeleak.scan/v1"


def scan_document(report: Report) -> Document:
    """Return the document. Times are UTC in RFC 3339; what is not known is null, never 0."""
    snapshot = report.snapshot
    reservations = sorted_reservations(report.assessment.reservations)

    return {
        "schema": _SCHEMA,
        "node": snapshot.node_name,
        "taken_at": rfc3339(snapshot.taken_at),
        "server_version": snapshot.server_version or None,
        "networks": [_network(network) for network in report.networks],
        "reservations": [_reservation(classified, report) for classified in reservations],
        "device_plugins": _devices(snapshot),
        "findings": [_finding(tracked) for tracked in report.sorted_findings],
        "unavailable": unavailable_sources(report.unavailable),
        "insufficient_data": [{"detector": gap.detector, "why": gap.why} for gap in report.gaps],
    }


def unavailable_sources(unavailable: Iterable[Unavailable]) -> list[Document]:
    """Return each source with the reason, as every document has them."""
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
    """Return a sort key. `is_address`: whether the name is an IP address."""
    return network, not is_address, numbered(name) if is_address else (0, 0), name


def _network(network: NetworkSummary) -> Document:
    ranges = None
    if network.ranges is not None:
        ranges = [str(each) for range_set in network.ranges for each in range_set]

    return {
        "name": network.name,
        "ranges": ranges,
        "usable": network.usable,
        "reserved": network.reserved,
        "free": network.free,
        "states": network.states,
        "not_in_use": network.not_in_use or None,
    }


def _reservation(classified: ClassifiedReservation, report: Report) -> Document:
    document: Document = {
        "network": classified.network,
        "ip": classified.name,
        "container_id": None,
        "ifname": None,
        "state": classified.state,
        "pod": classified.pod or None,
        "age_seconds": None,
        "why": classified.why,
        "cause": None,
    }

    entry = classified.entry
    if isinstance(entry, Reservation):
        age = report.snapshot.taken_at - entry.mtime
        document |= {
            "container_id": entry.container_id,
            "ifname": entry.ifname,
            "age_seconds": seconds_or_null(age),
            "cause": report.leak_causes.get(entry.key),
        }
    return document


def _devices(snapshot: Snapshot) -> list[Document] | None:
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
            "registered_since": time_or_null(state.registered_since),
            "registration_delay_seconds": seconds_or_null(state.delay),
            "socket": state.socket,
            "socket_present": state.socket_present,
            "connected": state.connected,
        }
        for state in states
    ]


def time_or_null(at: datetime | None) -> str | None:
    """Return a time in RFC 3339, or None."""
    return None if at is None else rfc3339(at)


def seconds_or_null(duration: timedelta | None) -> float | None:
    """Return seconds, to the millisecond, or None."""
    return None if duration is None else round(duration.total_seconds(), 3)


def _finding(tracked: TrackedFinding) -> Document:
    finding = tracked.finding
    return {
        "detector": finding.detector,
        "subject": finding.subject,
        "message": finding.message,
        "severity": finding.severity,
        "count": finding.count,
        "since": time_or_null(tracked.began),
        "confirmed": tracked.confirmed,
        "cause": finding.cause,
        "network": finding.network or None,
        "pod": finding.pod or None,
        "pods": list(finding.pods),
        "resource": finding.resource or None,
        "pod_outcome": finding.pod_outcome,
        "host_ports": [
            {"port": port.host_port, "protocol": port.protocol} for port in finding.port_mappings
        ],
        "strength": finding.confidence,
        "steps": [{"text": step.text, "command": step.command} for step in finding.steps],
    }


def status_document(
    report: Report,
    cleanup: Mapping[str, object],
    version: str,
    *,
    age: float,
    interval: float,
    alive: bool,
) -> Document:
    """Return `nodeleak.status/v1`.

    `age`: seconds since the snapshot was begun. `interval`: seconds between two syncs. `alive`:
    whether syncs go on.
    """
    snapshot = report.snapshot
    releasable = report.cleaning.releasable() if report.cleaning else None

    return {
        "schema": SCHEMA,
        "version": version,
        "node": snapshot.node_name,
        "state": state_of(report) if alive else NodeState.STALLED,
        "headline": headline(report, alive=alive),
        "cleanup": {**cleanup, "halted": report.halted or ""},
        "networks": [
            _network_status(network, releasable)
            for network in report.networks
            if not network.not_in_use
        ],
        "findings": list(_finding_counts(report.sorted_findings)),
        "unavailable": unavailable_sources(report.unavailable),
        "report": {
            "taken_at": rfc3339(snapshot.taken_at),
            "age_seconds": round(age, 1),
            "interval_seconds": interval,
        },
    }


def _network_status(network: NetworkSummary, releasable: Mapping[str, int] | None) -> Document:
    """`releasable`: by network, 0 for others; None: not known, or nothing may be released here."""
    states = network.states or {}
    return {
        "name": network.name,
        "usable": network.usable,
        "free": network.free,
        "leaked": states.get(State.LEAKED),
        "unknown": states.get(State.UNKNOWN),
        "releasable": None if releasable is None else releasable.get(network.name, 0),
    }


def _finding_counts(findings: Iterable[TrackedFinding]) -> Iterator[Document]:
    """Yield how many confirmed findings each detector has of each severity, in their order."""
    groups: dict[tuple[Severity, str], list[TrackedFinding]] = {}
    for tracked in findings:
        if tracked.confirmed:
            kind = tracked.finding.severity, tracked.finding.detector
            groups.setdefault(kind, []).append(tracked)

    for (severity, detector), group in groups.items():
        yield {
            "severity": severity,
            "detector": detector,
            "count": total(group),
            "oldest": rfc3339(min(tracked.since for tracked in group)),
        }

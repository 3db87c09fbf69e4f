"""A report as text: for people. A summary per network, the findings in words, then what could not be read."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from agent.checks.devices.resource_state import resource_states
from agent.exporters.json.scan import findings_in_order, in_order, moment
from agent.model.assessment import ClassifiedReservation, State
from agent.model.devices import ResourceState
from agent.model.finding import Finding, Severity
from agent.model.report import NetworkSummary, Report
from agent.model.snapshot import InsufficientData, NotRequested, Snapshot

_SHOWN = {State.UNMANAGED, State.CANDIDATE, State.TEARDOWN_PENDING, State.UNRECOGNIZED, State.UNKNOWN}
"""States whose entries are listed one by one: what is in order only counts, and leaks are findings."""
_LONGEST_LIST = 40


def table(report: Report) -> str:
    return lines_as_text(_lines(report))


def lines_as_text(lines: Iterable[str]) -> str:
    return "".join(f"{escape(line)}\n" for line in lines)


def escape(line: str) -> str:
    """Keep what a process calls itself, or a label says, from steering the reader's terminal."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in line)


def _lines(report: Report) -> Iterator[str]:
    snapshot = report.assessment.snapshot
    yield f"Node {snapshot.node_name}, {moment(snapshot.taken_at)}"
    yield ""
    yield from grid([["NETWORK", "RANGE", "USABLE", "RESERVED", "FREE", "STATES"], *map(_summary, report.networks)])
    listed = [one for one in in_order(report.assessment.classified_reservations) if one.state in _SHOWN]
    if listed:
        yield ""
        yield from grid([["NETWORK", "ADDRESS", "STATE", "POD", "WHY"], *map(_row, listed[:_LONGEST_LIST])])
        if len(listed) > _LONGEST_LIST:
            yield f"… and {len(listed) - _LONGEST_LIST} more: -o json lists all"
    if devices := list(_devices(snapshot)):
        yield ""
        yield "Devices:"
        yield from devices
    yield ""
    yield from _findings(report)
    if isinstance(snapshot.pods, NotRequested):
        yield ""
        yield f"Judged without the API server ({snapshot.pods.why}): by docker, checkpoints and network namespaces."
        if without := [gap.detector for gap in report.gaps if gap.chosen]:
            yield f"Not judged without it: {', '.join(without)}."
    if report.unavailable:
        yield ""
        yield "Could not be read (nothing is concluded from these):"
        yield from (f"  {one.source}: {one.why}" for one in report.unavailable)
    if blind := [gap for gap in report.gaps if not gap.chosen]:
        yield ""
        yield "Could not be judged:"
        yield from (f"  {gap.detector}: {gap.why}" for gap in blind)


def _findings(report: Report) -> Iterator[str]:
    if not report.findings:
        yield "No findings." if report.complete else "No findings, as far as could be read."
        return
    yield f"Findings ({len(report.findings)}; `nodeleak explain DETECTOR` says what to do):"
    for detector, found in groupby(findings_in_order(report), key=lambda judged: judged.finding.detector):
        messages = [_words(judged.finding) for judged in found]
        yield from (f"  {detector}: {message}" for message in messages[:_LONGEST_LIST])
        if len(messages) > _LONGEST_LIST:
            yield f"  {detector}: … and {len(messages) - _LONGEST_LIST} more: -o json lists all"


def _words(finding: Finding) -> str:
    # Most are warnings, which goes without saying.
    said = "" if finding.severity is Severity.WARNING else f"({finding.severity.value}) "
    return f"{said}{finding.message}"


def _devices(snapshot: Snapshot) -> Iterator[str]:
    """Tell of each resource; nothing where there is none."""
    try:
        rows = device_rows(snapshot)
    except InsufficientData:
        return
    if rows:
        heads = ["RESOURCE", "DEVICES", "ALLOCATED", "REGISTERED", "SINCE", "LATE(s)", "SOCKET"]
        yield from grid([heads, *rows[:_LONGEST_LIST]])
        if len(rows) > _LONGEST_LIST:
            yield f"… and {len(rows) - _LONGEST_LIST} more: -o json lists all"


def device_rows(snapshot: Snapshot) -> list[list[str]]:
    """Tell of each resource, and of sockets that belong to none; blind where device plugins were not read."""
    states, plugins = resource_states(snapshot), snapshot.device_plugins.known()
    claimed = {state.socket for state in states}
    strays = sorted(one.name for one in plugins.sockets if one.name not in claimed)
    return [*map(_device, states), *(["?", "?", "?", "?", "?", "?", name] for name in strays)]


def _device(state: ResourceState) -> list[str]:
    return [
        state.resource,
        _number(state.devices),
        _number(state.allocated),
        "?" if state.registered is None else "yes" if state.registered else "no",
        "?" if state.registered_since is None else moment(state.registered_since),
        "?" if state.delay is None else f"{state.delay.total_seconds():.1f}",
        _socket(state),
    ]


def _socket(state: ResourceState) -> str:
    if not state.socket:
        return "?"
    if state.socket_present is False:
        return f"{state.socket} (gone)"
    return f"{state.socket} (not connected)" if state.connected is False else state.socket


def _summary(network: NetworkSummary) -> list[str]:
    ranges = "?" if network.ranges is None else ", ".join(str(one) for ranges in network.ranges for one in ranges)
    if network.states is None:
        states = "not read"
    else:
        states = ", ".join(f"{n} {state.value}" for state, n in network.states.items() if n) or "no reservation"
    return [network.name, ranges, _number(network.usable), _number(network.reserved), _number(network.free), states]


def _number(value: int | None) -> str:
    return "?" if value is None else str(value)


def _row(classified: ClassifiedReservation) -> list[str]:
    return [classified.network, classified.name, classified.state.value, classified.pod or "-", classified.why]


def grid(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Align columns; the last one runs on."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()

"""What an agent writes elsewhere: log lines, by the real logger, and Events, as the real exporter makes them."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from typing import Final

import structlog

from agent.exporters.log import LogExporter, configure
from agent.kube_events.messages import event_specs
from tests.builders import NOW, node, reservation
from tests.kube_events.syncs import INTERVAL, Syncs

_HOUR: Final = 3600 // int(INTERVAL.total_seconds())
_HEALTHY: Final = node()
_WITH_A_LEAK: Final = node(reservation("10.244.1.9"))


@dataclass(frozen=True, slots=True)
class Written:
    """Bytes."""

    at_start: int
    healthy_day: int
    """After the start."""
    finding: int
    """The lines of a finding that opens and closes."""
    event: int
    """An Event in the API server, as JSON."""
    events: int
    """How many Events this finding has."""


def measure() -> Written:
    syncs = Syncs()
    with _log() as (log, lines):
        exporter = LogExporter(log)
        log.info("agent.started", node="worker-1", networks=["auto"], port=9747, mode="observe")
        exporter.export(syncs.report(_HEALTHY), 0)
        at_start = _taken(lines)
        for _ in range(_HOUR):
            exporter.export(syncs.report(_HEALTHY), 0)
        healthy_hour = _taken(lines)
        for _ in range(_HOUR):
            exporter.export(report := syncs.report(_WITH_A_LEAK), 0)
        exporter.export(syncs.report(_HEALTHY), 0)
        events = [one.event(NOW) for one in event_specs(report)]
        finding = _taken(lines)
    size = max(len(json.dumps(one)) for one in events)
    return Written(at_start, healthy_hour * 24, finding, size, len(events))


@contextmanager
def _log() -> Iterator[tuple[structlog.typing.FilteringBoundLogger, StringIO]]:
    lines, before = StringIO(), sys.stderr
    sys.stderr = lines
    try:
        yield configure("json"), lines
    finally:
        sys.stderr = before


def _taken(lines: StringIO) -> int:
    size = len(lines.getvalue().encode())
    lines.seek(0)
    lines.truncate()
    return size

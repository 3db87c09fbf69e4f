"""Metrics of device plugins.

The resource name is the only label that is not from a closed list, so it is bounded: 32 names at most, and `other`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from agent.checks.devices import rejected_pod
from agent.checks.devices.state import resource_states
from agent.exporters.metric_help import HELP, PREFIX
from agent.model.devices import ResourceState
from agent.model.rejections import RejectedPod
from agent.model.report import Report
from agent.model.snapshot import InsufficientData, Snapshot, known_or

MOST_RESOURCES: Final = 32
OTHER: Final = "other"
"""Resources beyond the first 32 by name, and invalid names. No resource has this name: theirs have a `/`."""
UNKNOWN_RESOURCE: Final = "unknown"
"""The resource of a rejected pod where neither the rejection nor the spec names one."""

_NAME = re.compile(r"(?=.{3,317}$)[A-Za-z0-9._-]{1,253}/[A-Za-z0-9._-]{1,63}")
"""A resource name that the API server accepts: a DNS subdomain, a slash, and a label value."""


def gauge(name: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}{name}", HELP[name], labels=labels)


def single(name: str, value: float) -> GaugeMetricFamily:
    """Return a gauge without labels."""
    return GaugeMetricFamily(f"{PREFIX}{name}", HELP[name], value=value)


def families(report: Report) -> Iterator[Metric]:
    """Yield the gauges of a report. What is not known is absent, never 0."""
    states = _states(report.assessment.snapshot)
    confirmed = (tracked.finding for tracked in report.findings if tracked.confirmed)
    rejected_pods = tuple(
        pod for finding in confirmed if finding.detector == rejected_pod.NAME for pod in finding.rejected_pods
    )
    labels = _labels([*(state.resource for state in states), *(pod.resource for pod in rejected_pods)])
    grouped: dict[str, list[ResourceState]] = {}
    for state in states:
        grouped.setdefault(labels[state.resource], []).append(state)
    yield from _resource_gauges(grouped)
    yield _rejected_pods(rejected_pods, labels)
    yield from _kubelet_start(report.assessment.snapshot)


def _resource_gauges(grouped: Mapping[str, Sequence[ResourceState]]) -> Iterator[Metric]:
    registered = gauge("device_plugin_registered", "resource")
    present = gauge("device_plugin_socket_present", "resource")
    delay = gauge("device_plugin_registration_delay_seconds", "resource")
    for label, group in grouped.items():
        delays = [state.delay.total_seconds() for state in group if state.delay is not None]
        _add(registered, label, _all(state.registered for state in group))
        _add(present, label, _all(state.socket_present for state in group))
        _add(delay, label, max(delays, default=None))
    yield from (registered, present, delay)


def _add(family: GaugeMetricFamily, label: str, value: float | None) -> None:
    if value is not None:
        family.add_metric([label], value)


def _states(snapshot: Snapshot) -> tuple[ResourceState, ...]:
    try:
        return resource_states(snapshot)
    except InsufficientData:
        return ()


def _labels(resources: Iterable[str]) -> Mapping[str, str]:
    known = sorted(set(resources))
    kept = frozenset([name for name in known if _NAME.fullmatch(name)][:MOST_RESOURCES])
    return {name: name if name in kept else OTHER if name else UNKNOWN_RESOURCE for name in known}


def _all(answers: Iterable[bool | None]) -> bool | None:
    """Return False where any is False, else None where any is unknown."""
    known = set(answers)
    return False if False in known else None if None in known else True


def _rejected_pods(pods: Iterable[RejectedPod], labels: Mapping[str, str]) -> Metric:
    family = gauge("rejected_pods", "resource", "cause", "pod_outcome")
    counted = Counter((labels[pod.resource], pod.cause.value, pod.pod_outcome.value) for pod in pods)
    for label, count in sorted(counted.items()):
        family.add_metric(label, count)
    return family


def _kubelet_start(snapshot: Snapshot) -> Iterator[Metric]:
    """By the process table, or else by when the kubelet bound its plugin socket, a moment later."""
    processes, plugins = known_or(snapshot.processes, None), known_or(snapshot.device_plugins, None)
    first = processes.kubelet if processes else None
    if first is None and plugins:
        first = plugins.kubelet_socket
    if first is not None:
        yield single("kubelet_start_timestamp_seconds", first.timestamp())

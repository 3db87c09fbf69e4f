"""Metrics of device plugins.

The resource name is the only label that is not from a closed list, so it is bounded: 32 names at most, and `other`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from agent.checks.devices import rejected_pod
from agent.checks.devices.resource_state import resource_states
from agent.model.devices import ResourceState
from agent.model.rejections import RejectedPod
from agent.model.report import Report
from agent.model.snapshot import InsufficientData, Snapshot, known_or

PREFIX: Final = "nodeleak_"
MOST_RESOURCES: Final = 32
OTHER: Final = "other"
"""Resources beyond the first 32 by name, and invalid names. No resource has this name: theirs have a `/`."""
UNKNOWN_RESOURCE: Final = "unknown"
"""The resource of a rejected pod where neither the rejection nor the spec names one."""

_NAME = re.compile(r"(?=.{3,317}$)[A-Za-z0-9._-]{1,253}/[A-Za-z0-9._-]{1,63}")
"""A resource name that the API server accepts: a DNS subdomain, a slash, and a label value."""


def families(report: Report) -> Iterator[Metric]:
    """Yield the gauges of a report. What is not known is absent, never 0."""
    states = _states(report.assessment.snapshot)
    confirmed = (one.finding for one in report.findings if one.confirmed)
    rejected_pods = tuple(
        pod for finding in confirmed if finding.detector == rejected_pod.NAME for pod in finding.rejected_pods
    )
    labels = _labels([*(one.resource for one in states), *(one.resource for one in rejected_pods)])
    grouped: dict[str, list[ResourceState]] = {}
    for state in states:
        grouped.setdefault(labels[state.resource], []).append(state)
    yield from _resource_gauges(grouped)
    yield _rejected_pods(rejected_pods, labels)
    yield from _kubelet_start(report.assessment.snapshot)


def _resource_gauges(grouped: Mapping[str, Sequence[ResourceState]]) -> Iterator[Metric]:
    yield _gauge(
        "device_plugin_registered",
        "Whether the kubelet has healthy devices of the resource; for `other`: of all of its resources.",
        {label: _all(one.registered for one in group) for label, group in grouped.items()},
    )
    yield _gauge(
        "device_plugin_socket_present",
        "Whether the plugin socket of the resource exists; for `other`: of all of its resources.",
        {label: _all(one.socket_present for one in group) for label, group in grouped.items()},
    )
    yield _gauge(
        "device_plugin_registration_delay_seconds",
        "Time from the last kubelet start to the registration of the resource; for `other`: the longest.",
        {
            label: max((one.delay.total_seconds() for one in group if one.delay is not None), default=None)
            for label, group in grouped.items()
        },
    )


def _states(snapshot: Snapshot) -> tuple[ResourceState, ...]:
    try:
        return resource_states(snapshot)
    except InsufficientData:
        return ()


def _labels(resources: Iterable[str]) -> Mapping[str, str]:
    known = sorted(set(resources))
    kept = frozenset([one for one in known if _NAME.fullmatch(one)][:MOST_RESOURCES])
    return {one: one if one in kept else OTHER if one else UNKNOWN_RESOURCE for one in known}


def _gauge(name: str, text: str, values: Mapping[str, float | None]) -> Metric:
    family = GaugeMetricFamily(f"{PREFIX}{name}", text, labels=["resource"])
    for label, value in values.items():
        if value is not None:
            family.add_metric([label], value)
    return family


def _all(answers: Iterable[bool | None]) -> bool | None:
    """Return False where any is False, else None where any is unknown."""
    known = set(answers)
    return False if False in known else None if None in known else True


def _rejected_pods(pods: Iterable[RejectedPod], labels: Mapping[str, str]) -> Metric:
    family = GaugeMetricFamily(
        f"{PREFIX}rejected_pods",
        "Pods that the kubelet rejected for a device and that still exist; absent where there are none.",
        labels=["resource", "cause", "pod_outcome"],
    )
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
        yield GaugeMetricFamily(
            f"{PREFIX}kubelet_start_timestamp_seconds", "When the kubelet started.", value=first.timestamp()
        )

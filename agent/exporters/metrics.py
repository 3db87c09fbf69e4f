"""The metrics, one declaration each: what it is, its labels, and how it is computed. Pure.

A value that is not known is absent, never 0. Labels come from closed lists, from the configured
networks, and from device resources (32 names at most, and `other`); never from a pod, an address or
an ID.
"""

import re
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from agent.checks.devices import rejected_pod
from agent.checks.devices.resources import resource_states
from agent.checks.devices.view import DeviceView
from agent.checks.registry import DETECTORS
from agent.model.assessment import State
from agent.model.bug import EXPORTER
from agent.model.devices import ResourceState
from agent.model.finding import WAITING_PODS, LeakCause, Severity
from agent.model.rejections import RejectedPod, RejectionCause
from agent.model.release import MISSED, Outcome, Reason, Verdict
from agent.model.report import Report
from agent.model.snapshot import InsufficientData, NotRequested, Unavailable, known_or

PREFIX: Final = "nodeleak_"
CLEAN: Final = "clean"
"""The mode in which the daemon releases addresses. Only then are there metrics of releases."""

_PHASES: Final = ("candidate", "confirmed")
_ALWAYS_EXPORTED: Final = frozenset({State.IN_USE, State.LEAKED, State.UNKNOWN})
"""The states of which a network also exports 0.

An alert or `kubectl nodeleak status` compares it, or it shows that the states are known.
"""

_MAX_RESOURCES: Final = 32
_OTHER: Final = "other"
"""Resources beyond the first 32 by name, and invalid names. Names of resources have a `/`."""

_UNKNOWN_RESOURCE: Final = "unknown"
"""The resource of a rejected pod where neither the rejection nor the spec names one."""

_NO_RESOURCE: Final = "none"
"""The resource of a pod that was not rejected for a device."""

_RESOURCE_NAME: Final = re.compile(r"(?=.{3,317}$)[A-Za-z0-9._-]{1,253}/[A-Za-z0-9._-]{1,63}")
"""A resource name that the API server accepts: a DNS subdomain, a slash, and a label value."""

Samples = Mapping[Any, float | None]
"""Values by label value, or by a tuple of those; `()` without labels. None: not known."""


class Watch(Protocol):
    """A watch of the API server."""

    source: str

    @property
    def restarts(self) -> Mapping[Any, int]: ...
    @property
    def regressions(self) -> int: ...


class Agent(NamedTuple):
    """What the agent exports before its first sync, too."""

    build: Mapping[str, str]
    mode: str
    watches: Sequence[Watch]


@dataclass(frozen=True)
class Sync:
    """What the metrics of a sync are computed from."""

    report: Report
    seconds: float
    mode: str
    read_at: Mapping[str, float]
    """When each source was last read: Unix time."""
    journal_bytes: int | None = None

    @cached_property
    def sources_up(self) -> dict[str, bool]:
        """Whether each requested source was read."""
        up: dict[str, bool] = {}
        for source, reading in self.report.snapshot.readings():
            if not isinstance(reading, NotRequested):
                up[source] = up.get(source, True) and not isinstance(reading, Unavailable)
        return up

    @cached_property
    def suspected_networks(self) -> list[str]:
        """The networks with a reservation that has no owner, as before a leak is confirmed.

        Not all of them: a node may have a hundred networks, and each would have 37 counters.
        """
        suspects = (State.CANDIDATE, State.LEAKED)
        return [
            network.name
            for network in self.report.networks
            if network.states and any(map(network.states.get, suspects))
        ]

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        return self.report.cleaning.outcomes if self.report.cleaning else ()

    @property
    def outcomes_by_network(self) -> Iterator[tuple[str, Outcome]]:
        """Each outcome with the network of each of its addresses."""
        for outcome in self.outcomes:
            for reservation in outcome.request.reservations:
                yield reservation.network, outcome

    @cached_property
    def resources(self) -> tuple[ResourceState, ...]:
        with suppress(InsufficientData):
            return resource_states(DeviceView.of(self.report.snapshot))
        return ()

    @cached_property
    def rejected_pods(self) -> list[RejectedPod]:
        return [
            pod
            for tracked in self.report.findings
            if tracked.confirmed and tracked.finding.detector == rejected_pod.NAME
            for pod in tracked.finding.rejected_pods
        ]

    @cached_property
    def resource_labels(self) -> Mapping[str, str]:
        """The label of each resource."""
        names = {state.resource for state in self.resources}
        names |= {pod.resource for pod in self.rejected_pods}
        valid = [name for name in sorted(names) if _RESOURCE_NAME.fullmatch(name)]
        labels = dict.fromkeys(names, _OTHER) | {"": _UNKNOWN_RESOURCE}
        return labels | {name: name for name in valid[:_MAX_RESOURCES]}

    @cached_property
    def resources_by_label(self) -> Mapping[str, list[ResourceState]]:
        groups: dict[str, list[ResourceState]] = {}
        for state in self.resources:
            groups.setdefault(self.resource_labels[state.resource], []).append(state)
        return groups


_T = TypeVar("_T")


def _no_values(_: object) -> Samples:
    """Of what is counted when it happens, nothing is computed later."""
    return {}


class Metric(NamedTuple, Generic[_T]):
    """`nodeleak_NAME`, computed from an `Agent` or a `Sync`."""

    name: str
    help: str
    values: Callable[[_T], Samples] = _no_values
    """Of a gauge, the values; of those that are `COUNTED`, what a sync adds: 0 begins a series."""
    labels: tuple[str, ...] = ()
    begins: tuple[str, ...] = ()
    """Values of the only label of a counter that begin at 0, so that alerts see the first."""
    releases: bool = False
    """Whether it is about releases, and exported in the mode `clean` only."""

    @property
    def type(self) -> str:
        return "counter" if self.name.endswith("_total") else "gauge"


class Distribution(NamedTuple):
    """A histogram; without buckets, a summary."""

    name: str
    help: str
    observations: Callable[[Sync], Iterable[float | None]]
    """In seconds; None counts as none."""
    buckets: tuple[float, ...] = ()
    releases: bool = False

    @property
    def labels(self) -> tuple[str, ...]:
        return ()

    @property
    def type(self) -> str:
        return "histogram" if self.buckets else "summary"


def _all_true(answers: Iterable[bool | None]) -> bool | None:
    """Return whether all are true: False if any is False, else None if any is unknown."""
    values = set(answers)
    if False in values:
        return False
    return None if None in values else True


def _restarts(agent: Agent) -> Samples:
    return {
        (watch.source, cause): times
        for watch in agent.watches
        for cause, times in sorted(watch.restarts.items())
        if times
    }


def _confirmed_leaks(sync: Sync) -> Samples:
    counts = Counts(dict.fromkeys(product(sync.suspected_networks, LeakCause), 0))
    counts.update(sync.report.newly_confirmed)
    return counts


def _released(sync: Sync) -> Samples:
    counts = Counts(dict.fromkeys(sync.suspected_networks, 0))
    for network, outcome in sync.outcomes_by_network:
        if outcome.verdict is Verdict.RELEASED:
            counts[network] += 1
    return counts


def _refused(sync: Sync) -> Samples:
    networks = sync.suspected_networks if sync.mode == CLEAN else ()
    counts = Counts(dict.fromkeys(product(networks, Reason), 0))
    for network, outcome in sync.outcomes_by_network:
        if outcome.refusals:
            counts[network, outcome.refusals[0].reason] += 1
    return counts


def _failed(sync: Sync) -> Samples:
    counts = Counts(dict.fromkeys(product(sync.suspected_networks, MISSED), 0))
    for network, outcome in sync.outcomes_by_network:
        if outcome.verdict in MISSED:
            counts[network, outcome.verdict] += 1
    return counts


def _reservations(sync: Sync) -> Samples:
    return {
        (network.name, state): count
        for network in sync.report.networks
        for state, count in (network.states or {}).items()
        if count or state in _ALWAYS_EXPORTED
    }


def _findings(sync: Sync) -> Samples:
    """With zeros, where alerts compare them; of a detector with a gap, only what it found."""
    counts = Counts[tuple[str, Severity, str]]()
    for tracked in sync.report.findings:
        finding = tracked.finding
        counts[finding.detector, finding.severity, _PHASES[tracked.confirmed]] += finding.count

    not_evaluated = {gap.detector for gap in sync.report.gaps}
    samples: dict[tuple[str, Severity, str], float] = {}
    for detector in DETECTORS:
        evaluated = detector.NAME not in not_evaluated
        for severity, phase in product(detector.SEVERITIES, _PHASES):
            count = counts[detector.NAME, severity, phase]
            is_compared = phase == "confirmed" and severity is not Severity.INFO
            if count or (evaluated and is_compared):
                samples[detector.NAME, severity, phase] = count
    return samples


def _oldest_findings(sync: Sync) -> Samples:
    """Unix times by detector."""
    oldest: dict[str, float] = {}
    for tracked in sync.report.findings:
        if tracked.confirmed:
            detector = tracked.finding.detector
            since = tracked.since.timestamp()
            oldest[detector] = min(since, oldest.get(detector, since))
    return dict(sorted(oldest.items()))


def _registered(sync: Sync) -> Samples:
    return {
        label: _all_true(state.registered for state in states)
        for label, states in sync.resources_by_label.items()
    }


def _sockets_present(sync: Sync) -> Samples:
    return {
        label: _all_true(state.socket_present for state in states)
        for label, states in sync.resources_by_label.items()
    }


def _registration_delays(sync: Sync) -> Samples:
    longest: dict[str, float | None] = {}
    for label, states in sync.resources_by_label.items():
        delays = (state.delay.total_seconds() for state in states if state.delay is not None)
        longest[label] = max(delays, default=None)
    return longest


def _rejected_pods(sync: Sync) -> Samples:
    counts = Counts[tuple[str, str, str]]()
    for pod in sync.rejected_pods:
        resource = sync.resource_labels[pod.resource]
        if pod.cause in {RejectionCause.NOT_FOR_A_DEVICE, RejectionCause.CHECKPOINT_FAILED}:
            resource = _NO_RESOURCE
        counts[resource, pod.cause.value, pod.pod_outcome.value] += 1
    return dict(sorted(counts.items()))


def _waiting_pods(sync: Sync) -> Samples:
    """Pods by cause."""
    pods = Counts[str]()
    for tracked in sync.report.findings:
        finding = tracked.finding
        if finding.detector == WAITING_PODS and finding.cause:
            pods[finding.cause.value] += len(finding.pods)
    return dict(sorted((+pods).items()))


def _kubelet_start(sync: Sync) -> Samples:
    """By the process table, or else by when the kubelet bound its plugin socket, a moment later."""
    snapshot = sync.report.snapshot
    processes = known_or(snapshot.processes, None)
    plugins = known_or(snapshot.device_plugins, None)
    start = processes.kubelet if processes else None
    if start is None and plugins:
        start = plugins.kubelet_socket
    return {} if start is None else {(): start.timestamp()}


def _halted(sync: Sync) -> Samples:
    cleaning = sync.report.cleaning
    return {} if cleaning is None else {(): bool(cleaning.halted)}


def _releasable(sync: Sync) -> Samples:
    """With zeros of the suspected networks."""
    cleaning = sync.report.cleaning
    counts = cleaning.releasable() if cleaning else None
    if counts is None:
        return {}
    return {network: counts[network] for network in {*sync.suspected_networks, *counts}}


def _brake(sync: Sync) -> Samples:
    brake = known_or(sync.report.snapshot.brake, None)
    return {} if brake is None else {(): brake.on}


def _source_seconds(sync: Sync) -> Samples:
    seconds: dict[str, float] = {}
    for source, took in sync.report.snapshot.timings:
        if source in sync.sources_up:
            seconds[source] = seconds.get(source, 0) + took
    return seconds


def _sync_failures(sync: Sync) -> Samples:
    return {
        "read": bool(sync.report.unavailable),
        "check": any(gap.broken for gap in sync.report.gaps),
    }


INTERNAL_ERRORS: Final = Metric[Any](
    "internal_errors_total",
    "Exceptions that the agent survived, by the part that raised them. Each is a bug.",
    labels=("part",),
    begins=("source", "detector", "guard", "cleaner", EXPORTER, "http"),
)
EVENTS_SENT: Final = Metric[Any](
    "events_sent_total",
    "Kubernetes Events created or patched since the agent started.",
    labels=("reason",),
)
EVENTS_DROPPED: Final = Metric[Any](
    "events_dropped_total",
    "Kubernetes Events that were due but not sent, by cause.",
    labels=("cause",),
)
CONDITION_PATCHES: Final = Metric[Any](
    "node_condition_patches_total",
    "Patches of the node's condition, by result.",
    labels=("result",),
)
IMMEDIATE: Final = (INTERNAL_ERRORS, EVENTS_SENT, EVENTS_DROPPED, CONDITION_PATCHES)
"""Counted when it happens, by whichever thread sees it, not after a sync."""

# What a sync adds to counters and distributions.
COUNTED: Final[Sequence[Metric[Sync] | Distribution]] = (
    Metric(
        "source_read_seconds_total",
        "Time spent reading a source.",
        _source_seconds,
        ("source",),
    ),
    Distribution(
        "sync_duration_seconds",
        "Time of a sync: read the sources, run the checks, export the report.",
        lambda sync: [sync.seconds],
        buckets=(0.1, 0.5, 2, 10),
    ),
    Distribution(
        "sync_seconds",
        "Deprecated: nodeleak_sync_duration_seconds has the same count and sum.",
        lambda sync: [sync.seconds],
    ),
    Metric(
        "sync_failures_total",
        "Syncs in which a source was unavailable (read) or a detector failed (check).",
        _sync_failures,
        ("stage",),
        begins=("read", "check"),
    ),
    Metric(
        "leaks_confirmed_total",
        "Leaked reservations confirmed since the agent started, by likely cause.",
        _confirmed_leaks,
        ("network", "cause"),
    ),
    Metric(
        "releases_refused_total",
        "Addresses that were refused, counted once per sync, by the first reason.",
        _refused,
        ("network", "reason"),
    ),
    Metric(
        "releases_total",
        "Addresses released since the agent started.",
        _released,
        ("network",),
        releases=True,
    ),
    Metric(
        "release_failures_total",
        "Release attempts that passed every guard but failed, by reason.",
        _failed,
        ("network", "reason"),
        releases=True,
    ),
    Distribution(
        "lock_wait_seconds",
        "Time to acquire host-local's locks.",
        lambda sync: [outcome.waited for outcome in sync.outcomes],
        buckets=(0.001, 0.005, 0.02, 0.1, 0.5, 2, 10),
        releases=True,
    ),
    Distribution(
        "lock_held_seconds",
        "Time that host-local's locks were held; new pods wait for an address meanwhile.",
        lambda sync: [outcome.held for outcome in sync.outcomes],
        buckets=(0.0001, 0.0005, 0.001, 0.002, 0.005, 0.02, 0.1),
        releases=True,
    ),
)

OF_AGENT: Final[Sequence[Metric[Agent]]] = (
    Metric(
        "build_info",
        "The running agent.",
        lambda agent: {tuple(agent.build.values()): 1},
        ("version", "commit", "python_version"),
    ),
    Metric(
        "mode_info",
        "What the agent may do to the node.",
        lambda agent: {agent.mode: 1},
        ("mode",),
    ),
    Metric(
        "watch_restarts_total",
        "Restarted API server watches, by cause.",
        _restarts,
        ("resource", "cause"),
    ),
    Metric(
        "watch_regressions_total",
        "API server objects older than a version seen before.",
        lambda agent: {watch.source: watch.regressions for watch in agent.watches},
        ("resource",),
    ),
)

OF_SYNC: Final[Sequence[Metric[Sync]]] = (
    Metric(
        "journal_bytes",
        "Size of the journal of releases.",
        lambda sync: {(): sync.journal_bytes},
    ),
    Metric(
        "reservations",
        "Entries in host-local's directory, by state.",
        _reservations,
        ("network", "state"),
    ),
    Metric(
        "range_addresses",
        "Addresses that the network can give to pods.",
        lambda sync: {network.name: network.usable for network in sync.report.networks},
        ("network",),
    ),
    Metric(
        "range_free_addresses",
        "Addresses that are not reserved.",
        lambda sync: {network.name: network.free for network in sync.report.networks},
        ("network",),
    ),
    Metric(
        "findings",
        "Current findings; phase candidate: not confirmed yet.",
        _findings,
        ("detector", "severity", "phase"),
    ),
    Metric(
        "oldest_finding_timestamp_seconds",
        "When the oldest confirmed finding of the detector began, or was first seen.",
        _oldest_findings,
        ("detector",),
    ),
    Metric(
        "device_plugin_registered",
        "Whether the kubelet has healthy devices of the resource; for `other`: of all of its "
        "resources.",
        _registered,
        ("resource",),
    ),
    Metric(
        "device_plugin_socket_present",
        "Whether the plugin socket of the resource exists; for `other`: of all of its resources.",
        _sockets_present,
        ("resource",),
    ),
    Metric(
        "device_plugin_registration_delay_seconds",
        "Time from the last kubelet start to the registration of the resource; for `other`: "
        "the longest.",
        _registration_delays,
        ("resource",),
    ),
    Metric(
        "rejected_pods",
        "Pods that the kubelet rejected and that still exist; absent where there are none.",
        _rejected_pods,
        ("resource", "cause", "pod_outcome"),
    ),
    Metric(
        "waiting_pods",
        "Pods that have had no sandbox with a network for a minute; absent where there are none.",
        _waiting_pods,
        ("cause",),
    ),
    Metric(
        "kubelet_start_timestamp_seconds",
        "When the kubelet started.",
        _kubelet_start,
    ),
    Metric(
        "source_up",
        "Whether the source was read in the last sync.",
        lambda sync: sync.sources_up,
        ("source",),
    ),
    Metric(
        "source_last_read_timestamp_seconds",
        "When a source that is unavailable was last read.",
        lambda sync: {
            source: sync.read_at.get(source) for source, up in sync.sources_up.items() if not up
        },
        ("source",),
    ),
    Metric(
        "last_sync_timestamp_seconds",
        "When the last sync started.",
        lambda sync: {(): sync.report.snapshot.taken_at.timestamp()},
    ),
    Metric(
        "releasable_addresses",
        "Leaked addresses that every guard would release now, apart from the brake, the label of "
        "the Node and the limits.",
        _releasable,
        ("network",),
    ),
    Metric(
        "brake",
        "Whether the brake is on, which stops every release; absent if it is not known, or none is "
        "set.",
        _brake,
    ),
    Metric(
        "cleanup_halted",
        "Whether cleanup is halted because a released container reappeared.",
        _halted,
    ),
)

METRICS: Final = (*OF_AGENT, *OF_SYNC, *COUNTED, *IMMEDIATE)

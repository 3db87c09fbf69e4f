"""Prometheus metrics: gauges from the last report, and counters.

Gauges are computed from the last report when the metrics are rendered; a value that is not known is absent, never 0.
Labels come from closed lists, from the configured networks, and from device resources (32 names at most, and `other`);
never from a pod, an address or an id.
"""

import platform
import re
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    Summary,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agent.checks.devices import rejected_pod
from agent.checks.devices.resources import resource_states
from agent.checks.devices.view import DeviceView
from agent.checks.registry import DETECTORS
from agent.exporters.metric_help import HELP, PREFIX
from agent.model.assessment import State
from agent.model.bug import EXPORTER, Bug, bug_of
from agent.model.devices import ResourceState
from agent.model.finding import LeakCause, Severity
from agent.model.release import MISSED, Outcome, Reason, Verdict
from agent.model.report import Report
from agent.model.snapshot import InsufficientData, NotRequested, Snapshot, Unavailable, known_or

if TYPE_CHECKING:
    from agent.sources.kube.list_watch import Reflector

_PHASES: Final = ("candidate", "confirmed")
CLEAN: Final = "clean"
"""The mode in which the daemon releases addresses. Only then are there metrics of releases."""
_PROCESS: Final = frozenset(
    {
        "process_cpu_seconds",
        "process_resident_memory_bytes",
        "process_start_time_seconds",
        "process_open_fds",
    }
)

_ALWAYS_EXPORTED: Final = frozenset({State.IN_USE, State.LEAKED, State.UNKNOWN})
"""The states of which a network also exports 0: an alert or `kubectl nodeleak status` compares it,
or it shows that the states are known."""
_MOST_RESOURCES: Final = 32
_OTHER: Final = "other"
"""Resources beyond the first 32 by name, and invalid names. No resource has this name: theirs have a `/`."""
_UNKNOWN_RESOURCE: Final = "unknown"
"""The resource of a rejected pod where neither the rejection nor the spec names one."""

_RESOURCE_NAME = re.compile(r"(?=.{3,317}$)[A-Za-z0-9._-]{1,253}/[A-Za-z0-9._-]{1,63}")
"""A resource name that the API server accepts: a DNS subdomain, a slash, and a label value."""


class MetricsExporter(Collector):
    """The agent's own metrics. `export` belongs to one thread; `collect` may be called from any."""

    def __init__(
        self,
        registry: CollectorRegistry,
        mode: str,
        watches: "Sequence[Reflector[Any]]",
        *,
        commit: str = "unknown",
        journal_size: Callable[[], int | None] = lambda: None,
        report_bug: Callable[[Bug], None],
    ) -> None:
        """`journal_size`: asked in each sync, because people release addresses too."""
        disable_created_metrics()
        self._last: Report | None = None
        self._read_at: dict[str, float] = {}
        self._mode, self._watches = mode, watches
        self._journal_size = journal_size
        self._report_bug = report_bug
        # The version is read from a file, and a scrape must wait for none.
        self._build = {
            "version": version("nodeleak"),
            "commit": commit,
            "python_version": platform.python_version(),
        }
        self._journal_bytes: int | None = None
        counter = partial(_counter, registry)
        self._source_seconds = counter("source_read_seconds_total", "source")
        self._sync_seconds = Summary(
            f"{PREFIX}sync_seconds", HELP["sync_seconds"], registry=registry
        )
        self._failures = counter("sync_failures_total", "stage")
        self._confirmed = counter("leaks_confirmed_total", "network", "cause")
        self._refused = counter("releases_refused_total", "network", "reason")
        # What is not registered is counted and not exported.
        of_releases = registry if mode == CLEAN else None
        self._released = _counter(of_releases, "releases_total", "network")
        self._failed = _counter(of_releases, "release_failures_total", "network", "reason")
        self._waited = _histogram(
            of_releases, "lock_wait_seconds", (0.001, 0.005, 0.02, 0.1, 0.5, 2, 10)
        )
        self._held = _histogram(
            of_releases, "lock_held_seconds", (0.0001, 0.0005, 0.001, 0.002, 0.005, 0.02, 0.1)
        )
        for stage in ("read", "check"):
            self._failures.labels(stage)
        self._process = ProcessCollector(registry=None)
        registry.register(self)

    def _begin(self, networks: Iterable[str]) -> None:
        """Start the counters of these networks at 0: Prometheus sees no increase without it."""
        for network in networks:
            for cause in LeakCause:
                self._confirmed.labels(network, cause.value)
            if self._mode == CLEAN:
                self._released.labels(network)
                for verdict in MISSED:
                    self._failed.labels(network, verdict.value)
                for reason in Reason:
                    self._refused.labels(network, reason.value)

    def export(self, report: Report, seconds: float) -> None:
        snapshot = report.assessment.snapshot
        self._last = report  # first, so that a bug below leaves no gauge behind
        self._begin(_with_suspects(report))
        sources_up = _sources_up(snapshot)
        for source, took in snapshot.timings:
            if source in sources_up:
                self._source_seconds.labels(source).inc(took)
        self._read_at |= {
            source: snapshot.taken_at.timestamp() for source, up in sources_up.items() if up
        }
        if report.unavailable:
            self._failures.labels("read").inc()
        if any(gap.broken for gap in report.gaps):
            self._failures.labels("check").inc()
        for (network, cause), count in report.newly_confirmed.items():
            self._confirmed.labels(network, cause.value).inc(count)
        self._count_releases(report.cleaning.outcomes if report.cleaning else ())
        self._sync_seconds.observe(seconds)
        self._journal_bytes = self._journal_size()

    def _count_releases(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            for network in (reservation.network for reservation in outcome.request.reservations):
                if outcome.refusals:
                    self._refused.labels(network, outcome.refusals[0].reason.value).inc()
                if outcome.verdict is Verdict.RELEASED:
                    self._released.labels(network).inc()
                elif outcome.verdict in MISSED:
                    self._failed.labels(network, outcome.verdict.value).inc()
            if outcome.waited is not None:
                self._waited.observe(outcome.waited)
            if outcome.held is not None:
                self._held.observe(outcome.held)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics, except for those whose making raises: what is unknown is absent."""
        for make in (self._of_agent, self._of_watches, self._of_process, self._of_journal):
            yield from self._made(make)
        if (report := self._last) is None:
            return
        for make_of in (_networks, _findings, _oldest, _devices, self._of_sources, _of_sync):
            yield from self._made(partial(make_of, report))

    def _made(self, make: Callable[[], Iterable[Metric]]) -> Sequence[Metric]:
        try:
            return tuple(make())
        except Exception as error:  # noqa: BLE001 (or nobody would see the other metrics)
            self._report_bug(bug_of(EXPORTER, "metrics", error))
            return ()

    def _of_agent(self) -> Iterator[Metric]:
        yield _gauge("build_info", {tuple(self._build.values()): 1}, *self._build)
        yield _gauge("mode_info", {self._mode: 1}, "mode")

    def _of_watches(self) -> Iterator[Metric]:
        yield from _watch_counters(self._watches)

    def _of_process(self) -> Iterator[Metric]:
        yield from (family for family in self._process.collect() if family.name in _PROCESS)

    def _of_journal(self) -> Iterator[Metric]:
        if self._journal_bytes is not None:
            yield _single("journal_bytes", self._journal_bytes)

    def _of_sources(self, report: Report) -> Iterator[Metric]:
        up = _sources_up(report.assessment.snapshot)
        read_at = {source: self._read_at.get(source) for source, is_up in up.items() if not is_up}
        yield _gauge("source_up", up, "source")
        yield _gauge("source_last_read_timestamp_seconds", read_at, "source")


def _counter(registry: CollectorRegistry | None, name: str, *labels: str) -> Counter:
    return Counter(f"{PREFIX}{name}", HELP[name], labels, registry=registry)


def _histogram(
    registry: CollectorRegistry | None, name: str, buckets: Sequence[float]
) -> Histogram:
    return Histogram(f"{PREFIX}{name}", HELP[name], buckets=buckets, registry=registry)


def _family(
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    samples: Mapping[Any, float | None],
    *labels: str,
) -> Metric:
    """Make a metric of its values by label, or by a tuple of labels; without those that are not known."""
    family = kind(f"{PREFIX}{name}", HELP[name], labels=labels)
    for values, value in samples.items():
        if value is not None:
            family.add_metric([values] if isinstance(values, str) else values, value)
    return family


_gauge = partial(_family, GaugeMetricFamily)
_counter_family = partial(_family, CounterMetricFamily)


def _single(name: str, value: float) -> Metric:
    return _gauge(name, {(): value})


def _watch_counters(watches: "Sequence[Reflector[Any]]") -> Iterator[Metric]:
    restarts = {
        (watch.source, cause): times
        for watch in watches
        for cause, times in sorted(watch.restarts.items())
        if times
    }
    yield _counter_family("watch_restarts_total", restarts, "resource", "cause")
    yield _counter_family(
        "watch_regressions_total",
        {watch.source: watch.regressions for watch in watches},
        "resource",
    )


def _sources_up(snapshot: Snapshot) -> dict[str, bool]:
    requested: dict[str, bool] = {}
    for source, reading in snapshot.readings():
        if not isinstance(reading, NotRequested):
            requested[source] = requested.get(source, True) and not isinstance(reading, Unavailable)
    return requested


def _with_suspects(report: Report) -> Iterator[str]:
    """Yield the networks with a reservation that has no owner, as before a leak is confirmed.

    Not all of them: a node may have a hundred networks, and each would have 37 counters for ever.
    """
    for network in report.networks:
        states = network.states or {}
        if states.get(State.CANDIDATE) or states.get(State.LEAKED):
            yield network.name


def _networks(report: Report) -> Iterator[Metric]:
    networks = report.networks
    states = {
        (network.name, state.value): n
        for network in networks
        for state, n in (network.states or {}).items()
        if n or state in _ALWAYS_EXPORTED
    }
    yield _gauge("reservations", states, "network", "state")
    yield _gauge(
        "range_addresses", {network.name: network.usable for network in networks}, "network"
    )
    yield _gauge(
        "range_free_addresses", {network.name: network.free for network in networks}, "network"
    )


def _of_sync(report: Report) -> Iterator[Metric]:
    yield _single("last_sync_timestamp_seconds", report.assessment.snapshot.taken_at.timestamp())
    if report.cleaning is not None:
        yield _single("cleanup_halted", bool(report.cleaning.halted))


def _findings(report: Report) -> Iterator[Metric]:
    """Of what alerts compare, zeros too; of a detector that was not evaluated, nothing: unknown is not 0."""
    found = Counts[tuple[str, Severity, str]]()
    for tracked in report.findings:
        found[tracked.finding.detector, tracked.finding.severity, _PHASES[tracked.confirmed]] += (
            tracked.finding.count
        )
    not_evaluated, samples = {gap.detector for gap in report.gaps}, {}
    for detector in (detector for detector in DETECTORS if detector.NAME not in not_evaluated):
        for severity, phase in product(detector.SEVERITIES, _PHASES):
            count = found[detector.NAME, severity, phase]
            if count or (phase == "confirmed" and severity is not Severity.INFO):
                samples[detector.NAME, severity, phase] = count
    yield _gauge("findings", samples, "detector", "severity", "phase")


def _oldest(report: Report) -> Iterator[Metric]:
    oldest: dict[str, float] = {}
    for tracked in report.findings:
        if tracked.confirmed:
            detector, since = tracked.finding.detector, tracked.since.timestamp()
            oldest[detector] = min(since, oldest.get(detector, since))
    yield _gauge("oldest_finding_timestamp_seconds", dict(sorted(oldest.items())), "detector")


def _devices(report: Report) -> Iterator[Metric]:
    states: tuple[ResourceState, ...] = ()
    with suppress(InsufficientData):
        states = resource_states(DeviceView.of(report.assessment.snapshot))
    confirmed = (tracked.finding for tracked in report.findings if tracked.confirmed)
    rejected_pods = tuple(
        pod
        for finding in confirmed
        if finding.detector == rejected_pod.NAME
        for pod in finding.rejected_pods
    )
    labels = _resource_labels(
        [*(state.resource for state in states), *(pod.resource for pod in rejected_pods)]
    )
    grouped: dict[str, list[ResourceState]] = {}
    for state in states:
        grouped.setdefault(labels[state.resource], []).append(state)
    yield from _resource_gauges(grouped)
    rejected = Counts(
        (labels[pod.resource], pod.cause.value, pod.pod_outcome.value) for pod in rejected_pods
    )
    yield _gauge(
        "rejected_pods", dict(sorted(rejected.items())), "resource", "cause", "pod_outcome"
    )
    yield from _kubelet_start(report.assessment.snapshot)


def _resource_gauges(grouped: Mapping[str, Sequence[ResourceState]]) -> Iterator[Metric]:
    registered = {
        label: _all(state.registered for state in group) for label, group in grouped.items()
    }
    present = {
        label: _all(state.socket_present for state in group) for label, group in grouped.items()
    }
    delays = {
        label: [state.delay for state in group if state.delay is not None]
        for label, group in grouped.items()
    }
    longest = {label: max(delays).total_seconds() for label, delays in delays.items() if delays}
    yield _gauge("device_plugin_registered", registered, "resource")
    yield _gauge("device_plugin_socket_present", present, "resource")
    yield _gauge("device_plugin_registration_delay_seconds", longest, "resource")


def _resource_labels(resources: Iterable[str]) -> Mapping[str, str]:
    known = sorted(set(resources))
    kept = frozenset([name for name in known if _RESOURCE_NAME.fullmatch(name)][:_MOST_RESOURCES])
    return {name: name if name in kept else _OTHER if name else _UNKNOWN_RESOURCE for name in known}


def _all(answers: Iterable[bool | None]) -> bool | None:
    """Return False where any is False, else None where any is unknown."""
    known = set(answers)
    return False if False in known else None if None in known else True


def _kubelet_start(snapshot: Snapshot) -> Iterator[Metric]:
    """By the process table, or else by when the kubelet bound its plugin socket, a moment later."""
    processes, plugins = known_or(snapshot.processes, None), known_or(snapshot.device_plugins, None)
    first = (processes.kubelet if processes else None) or (
        plugins.kubelet_socket if plugins else None
    )
    if first is not None:
        yield _single("kubelet_start_timestamp_seconds", first.timestamp())

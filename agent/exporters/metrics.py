"""Prometheus metrics: gauges from the last report, and counters.

Gauges are computed from the last report when the metrics are rendered; a value that is not known is absent, never 0.
Labels come from closed lists, from the configured networks, and from a bounded number of device resources; never from a
pod, an address or an id.

A large fleet pays for every series on every node. So there are zeros only where an alert compares them or where a rate
starts from them, and how times are distributed is left to the comparison of nodes.
"""

import platform
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from importlib.metadata import version
from typing import Any, Final, Protocol

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

from agent.checks.registry import DETECTORS
from agent.exporters import metrics_devices
from agent.exporters.metrics_devices import PREFIX
from agent.model.finding import LeakCause, Severity
from agent.model.release import MISSED, Cleaning, Outcome, Reason, Verdict
from agent.model.report import Report
from agent.model.setting_values import AUTO
from agent.model.snapshot import NotRequested, Snapshot, Unavailable

WAIT_BUCKETS: Final = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0)
HELD_BUCKETS: Final = (0.0001, 0.0005, 0.001, 0.002, 0.005, 0.02, 0.1)
STAGES: Final = ("read", "check")
CLEAN: Final = "clean"
"""The mode in which the daemon releases addresses. Only then are there metrics of releases."""
_PROCESS: Final = frozenset(
    {"process_cpu_seconds", "process_resident_memory_bytes", "process_start_time_seconds", "process_open_fds"}
)


class WatchStatus(Protocol):
    """A watched resource, with counts since the start."""

    @property
    def source(self) -> str: ...
    @property
    def restarts(self) -> Mapping[Any, int]: ...
    @property
    def regressions(self) -> int: ...


class MetricsExporter(Collector):
    """The agent's own metrics. `export` belongs to one thread; `collect` may be called from any."""

    def __init__(
        self,
        registry: CollectorRegistry,
        networks: Iterable[str],
        mode: str,
        watches: Sequence[WatchStatus],
        *,
        commit: str = "unknown",
        journal_size: Callable[[], int | None] = lambda: None,
    ) -> None:
        """`journal_size`: asked in each sync, because people release addresses too."""
        disable_created_metrics()
        self._last: Report | None = None
        self._read_at: dict[str, float] = {}
        self._mode, self._watches = mode, watches
        self._commit, self._journal_size = commit, journal_size
        self._journal_bytes: int | None = None
        counter = partial(_counter, registry)
        self._source_seconds = counter("source_read_seconds_total", "Time spent reading a source.", "source")
        self._sync_seconds = Summary(
            f"{PREFIX}sync_seconds",
            "Time of a sync: read the sources, run the checks, export the report.",
            registry=registry,
        )
        self._failures = counter(
            "sync_failures_total",
            "Syncs in which a source was unavailable (read) or a detector failed (check).",
            "stage",
        )
        text = "Leaked reservations confirmed since the agent started, by likely cause."
        self._confirmed = counter("leaks_confirmed_total", text, "network", "cause")
        text = "Addresses that a guard refused to release, counted once per sync, by the first reason."
        self._refused = counter("releases_refused_total", text, "network", "reason")
        self._releases = _Releases(registry) if mode == CLEAN else None
        self._begin(networks)
        for stage in STAGES:
            self._failures.labels(stage)
        self._process = ProcessCollector(registry=None)
        registry.register(self)

    def _begin(self, networks: Iterable[str]) -> None:
        """Let the counters of networks start at 0."""
        for network in networks:
            if self._releases is not None:
                self._releases.begin(network)
                for reason in Reason:
                    self._refused.labels(network, reason.value)
            for cause in LeakCause:
                self._confirmed.labels(network, cause.value)

    def export(self, report: Report, seconds: float) -> None:
        snapshot = report.assessment.snapshot
        self._begin(_in_use(report))
        sources_up = _sources_up(snapshot)
        for timing in snapshot.timings:
            if timing.source in sources_up:
                self._source_seconds.labels(timing.source).inc(timing.seconds)
        for source, up in sources_up.items():
            if up:
                self._read_at[source] = snapshot.taken_at.timestamp()
        if report.unavailable:
            self._failures.labels("read").inc()
        if any(gap.broken for gap in report.gaps):
            self._failures.labels("check").inc()
        for (network, cause), count in report.newly_confirmed.items():
            self._confirmed.labels(network, cause.value).inc(count)
        if report.cleaning is not None:
            self._count(report.cleaning)
        self._sync_seconds.observe(seconds)
        self._last, self._journal_bytes = report, self._journal_size()

    def _count(self, cleaning: Cleaning) -> None:
        for outcome in cleaning.outcomes:
            if outcome.refusals:
                for reservation in outcome.request.reservations:
                    self._refused.labels(reservation.network, outcome.refusals[0].reason.value).inc()
            if self._releases is not None:
                self._releases.count(outcome)

    def collect(self) -> Iterator[Metric]:
        yield _info(
            "build_info",
            "The running agent.",
            version=version("nodeleak"),
            commit=self._commit,
            python_version=platform.python_version(),
        )
        yield _info("mode_info", "What the agent may do to the node.", mode=self._mode)
        yield from _watch_counters(self._watches)
        yield from (one for one in self._process.collect() if one.name in _PROCESS)
        if self._journal_bytes is not None:
            text = "Size of the journal of releases."
            yield GaugeMetricFamily(f"{PREFIX}journal_bytes", text, value=self._journal_bytes)
        if (report := self._last) is not None:
            yield from _networks(report)
            yield from (_findings(report), _oldest(report))
            yield from metrics_devices.families(report)
            yield from self._sources(report)
            if report.cleaning is not None:
                yield GaugeMetricFamily(
                    f"{PREFIX}cleanup_halted",
                    "Whether cleanup is halted because a released container reappeared.",
                    value=bool(report.cleaning.halted),
                )

    def _sources(self, report: Report) -> Iterator[Metric]:
        up = _gauge("source_up", "Whether the source was read in the last sync.", "source")
        read_at = _gauge(
            "source_last_read_timestamp_seconds", "When a source that is unavailable was last read.", "source"
        )
        for source, is_up in _sources_up(report.assessment.snapshot).items():
            up.add_metric([source], is_up)
            if not is_up and source in self._read_at:
                read_at.add_metric([source], self._read_at[source])
        last = GaugeMetricFamily(
            f"{PREFIX}last_sync_timestamp_seconds",
            "When the last sync started.",
            value=report.assessment.snapshot.taken_at.timestamp(),
        )
        yield from (up, read_at, last)


class _Releases:
    """Attempts to release an address that passed every guard."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter, histogram = partial(_counter, registry), partial(_histogram, registry)
        self._released = counter("releases_total", "Addresses released since the agent started.", "network")
        self._failed = counter(
            "release_failures_total",
            "Release attempts that passed every guard but failed, by reason.",
            "network",
            "reason",
        )
        self._waited = histogram("lock_wait_seconds", "Time to acquire host-local's locks.", WAIT_BUCKETS)
        self._held = histogram(
            "lock_held_seconds",
            "Time that host-local's locks were held; new pods wait for an address meanwhile.",
            HELD_BUCKETS,
        )

    def begin(self, network: str) -> None:
        self._released.labels(network)
        for verdict in MISSED:
            self._failed.labels(network, verdict.value)

    def count(self, outcome: Outcome) -> None:
        for reservation in outcome.request.reservations:
            if outcome.verdict is Verdict.RELEASED:
                self._released.labels(reservation.network).inc()
            elif outcome.verdict in MISSED:
                self._failed.labels(reservation.network, outcome.verdict.value).inc()
        if outcome.waited is not None:
            self._waited.observe(outcome.waited)
        if outcome.held is not None:
            self._held.observe(outcome.held)


def _watch_counters(watches: Sequence[WatchStatus]) -> Iterator[Metric]:
    restarts = CounterMetricFamily(
        f"{PREFIX}watch_restarts", "Restarted API server watches, by cause.", labels=["resource", "cause"]
    )
    regressions = CounterMetricFamily(
        f"{PREFIX}watch_regressions", "API server objects older than a version seen before.", labels=["resource"]
    )
    for watch in watches:
        for cause, times in sorted(watch.restarts.items()):
            if times:
                restarts.add_metric([watch.source, cause], times)
        regressions.add_metric([watch.source], watch.regressions)
    yield from (restarts, regressions)


def _counter(registry: CollectorRegistry, name: str, text: str, *labels: str) -> Counter:
    return Counter(f"{PREFIX}{name}", text, labels, registry=registry)


def _histogram(registry: CollectorRegistry, name: str, text: str, buckets: Sequence[float]) -> Histogram:
    return Histogram(f"{PREFIX}{name}", text, buckets=buckets, registry=registry)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}{name}", text, labels=labels)


def _info(name: str, text: str, **labels: str) -> Metric:
    family = _gauge(name, text, *labels)
    family.add_metric(list(labels.values()), 1)
    return family


def _sources_up(snapshot: Snapshot) -> dict[str, bool]:
    """Return for each source whether it was read; disabled sources are left out."""
    requested: dict[str, bool] = {}
    for source, reading in snapshot.readings():
        if not isinstance(reading, NotRequested):
            requested[source] = requested.get(source, True) and not isinstance(reading, Unavailable)
    return requested


def _networks(report: Report) -> Iterator[Metric]:
    reservations = _gauge("reservations", "Entries in host-local's directory, by state.", "network", "state")
    usable = _gauge("range_addresses", "Addresses that the network can give to pods.", "network")
    free = _gauge("range_free_addresses", "Addresses that are not reserved.", "network")
    for network in report.networks:
        for state, count in (network.states or {}).items():
            reservations.add_metric([network.name, state.value], count)
        if network.usable is not None:
            usable.add_metric([network.name], network.usable)
        if network.free is not None:
            free.add_metric([network.name], network.free)
    yield from (reservations, usable, free)


def _in_use(report: Report) -> Iterator[str]:
    return (one.name for one in report.networks if not one.not_in_use and one.name != AUTO)  # no network's name


def _oldest(report: Report) -> Metric:
    family = _gauge(
        "oldest_finding_timestamp_seconds", "When the oldest confirmed finding of the detector began.", "detector"
    )
    oldest: dict[str, datetime] = {}
    for one in report.findings:
        if one.confirmed:
            name = one.finding.detector
            oldest[name] = min(one.since, oldest.get(name, one.since))
    for name, since in sorted(oldest.items()):
        family.add_metric([name], since.timestamp())
    return family


def _findings(report: Report) -> Metric:
    """Of what alerts compare, zeros too; of a detector that was not evaluated, nothing: unknown is not 0."""
    family = _gauge(
        "findings", "Current findings; phase candidate: not confirmed yet.", "detector", "severity", "phase"
    )
    not_evaluated = {gap.detector for gap in report.gaps}
    found = Counts[tuple[str, Severity, bool]]()
    for one in report.findings:
        found[one.finding.detector, one.finding.severity, one.confirmed] += one.finding.count
    for detector in DETECTORS:
        if detector.NAME in not_evaluated:
            continue
        for severity in detector.SEVERITIES:
            for confirmed, phase in ((False, "candidate"), (True, "confirmed")):
                count = found[detector.NAME, severity, confirmed]
                if count or (confirmed and severity is not Severity.INFO):
                    family.add_metric([detector.NAME, severity, phase], count)
    return family

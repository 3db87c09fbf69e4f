"""The declared metrics as Prometheus reads them: gauges of the last report, and counters."""

import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any, Final, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    Summary,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from agent.exporters.metrics import (
    CLEAN,
    COUNTED,
    OF_AGENT,
    OF_SYNC,
    PREFIX,
    Agent,
    Distribution,
    Metric,
    Sync,
    Watch,
)
from agent.model.bug import EXPORTER, Bug, bug_of
from agent.model.report import Report

_T = TypeVar("_T")
_PROCESS: Final = {
    "process_cpu_seconds",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "process_open_fds",
}
"""What is exported of the process; the client library has more."""


class MetricsExporter(Collector):
    """The agent's metrics. `export` belongs to one thread; `collect` may be called from any."""

    def __init__(
        self,
        registry: CollectorRegistry,
        mode: str,
        watches: Sequence[Watch],
        *,
        commit: str = "unknown",
        journal_size: Callable[[], int | None] = lambda: None,
        report_bug: Callable[[Bug], None],
    ) -> None:
        """`journal_size`: called in each sync, because people release addresses too."""
        build = {
            # The version is read from a file, and a scrape must wait for none.
            "version": version("nodeleak"),
            "commit": commit,
            "python_version": platform.python_version(),
        }
        self._agent = Agent(build, mode, watches)
        self._journal_size = journal_size
        self._report_bug = report_bug
        self._sync: Sync | None = None
        """The last one; None: before the first."""

        self._counters: list[tuple[Metric[Sync], Counter]] = []
        self._distributions: list[tuple[Distribution, Histogram | Summary]] = []
        for metric in COUNTED:
            if metric.releases and mode != CLEAN:
                continue
            if isinstance(metric, Metric):
                self._counters.append((metric, counter(metric, registry)))
            else:
                self._distributions.append((metric, _distribution(metric, registry)))

        self._process = ProcessCollector(registry=None)
        registry.register(self)

    def export(self, report: Report, seconds: float) -> None:
        """Show this report, and add it to the counters. `seconds`: how long its sync took."""
        before = self._sync
        read_at = dict(before.read_at) if before else {}
        journal_bytes = before.journal_bytes if before else None
        sync = Sync(report, seconds, self._agent.mode, read_at, journal_bytes)
        self._sync = sync  # first, so that a bug below leaves no gauge behind
        taken_at = report.snapshot.taken_at.timestamp()
        read_at |= {source: taken_at for source, is_up in sync.sources_up.items() if is_up}

        for metric, counted in self._counters:
            for labels, added in metric.values(sync).items():
                counted.labels(*_values(labels)).inc(added or 0)
        for distribution, observer in self._distributions:
            for observed in distribution.observations(sync):
                if observed is not None:
                    observer.observe(observed)

        self._sync = replace(sync, journal_bytes=self._journal_size())

    def collect(self) -> Iterator[Family]:
        """Yield all families, except those whose computation raises."""
        sync = self._sync
        for metric in OF_AGENT:
            yield from self._families(metric, self._agent)
        for family in self._process.collect():
            if family.name in _PROCESS:
                yield family
        if sync is not None:
            for metric_of_sync in OF_SYNC:
                yield from self._families(metric_of_sync, sync)

    def _families(self, metric: Metric[_T], computed_from: _T) -> Iterator[Family]:
        """Yield the family of a metric; nothing if it has no value, or raises."""
        kind = GaugeMetricFamily if metric.type == "gauge" else CounterMetricFamily
        family = kind(f"{PREFIX}{metric.name}", metric.help, labels=metric.labels)
        try:
            for labels, value in metric.values(computed_from).items():
                if value is not None:
                    family.add_metric(_values(labels), value)
        except Exception as error:  # noqa: BLE001 (or nobody would see the other metrics)
            self._report_bug(bug_of(EXPORTER, "metrics", error))
            return
        if family.samples or metric.labels:
            yield family


def counter(metric: Metric[Any], registry: CollectorRegistry) -> Counter:
    """Register a counter, with a zero for each of the values that it begins with."""
    disable_created_metrics()
    made = Counter(f"{PREFIX}{metric.name}", metric.help, metric.labels, registry=registry)
    for value in metric.begins:
        made.labels(value)
    return made


def _distribution(metric: Distribution, registry: CollectorRegistry) -> Histogram | Summary:
    name = f"{PREFIX}{metric.name}"
    if not metric.buckets:
        return Summary(name, metric.help, registry=registry)
    return Histogram(name, metric.help, buckets=metric.buckets, registry=registry)


def _values(labels: str | tuple[str, ...]) -> tuple[str, ...]:
    return (labels,) if isinstance(labels, str) else labels

"""What a Prometheus knows of every agent, as the documents that the agents themselves would give. Pure."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from agent.model.finding import Severity
from agent.model.status import SCHEMA, NodeState, no_report
from agent.model.text import rfc3339, truncate

_PREFIX: Final = "nodeleak_"
_VALUES: Final = (
    "build_info|mode_info|last_sync_timestamp_seconds|range_addresses|range_free_addresses|reservations|cleanup_halted"
)
QUERIES: Final[Mapping[str, str]] = {
    "value": f'{{__name__=~"{_PREFIX}({_VALUES})",state=~"(leaked|unknown)?"$}}',
    "finding": f'{_PREFIX}findings{{phase="confirmed"$}} > 0',
    "unavailable": f"{_PREFIX}source_up{{$}} == 0",
    "sources": f"count without (source) ({_PREFIX}source_up{{$}})",
    "failed": f'increase({_PREFIX}sync_failures_total{{stage="check"$}}[5m]) > 0',
    # Progress and not age, because the clocks of the node and of Prometheus may differ.
    "stalled": f"changes({_PREFIX}last_sync_timestamp_seconds{{$}}[10m]) == 0"
    f" and {_PREFIX}last_sync_timestamp_seconds offset 10m",
}
"""All of them, for the whole fleet. `$`: the cluster, if one is chosen."""
_OF_A_METRIC: Final = {
    *("__name__", "network", "state", "detector", "severity", "phase", "source", "stage"),
    *("mode", "version", "commit", "python_version"),
}
"""Labels that say nothing of the target."""
_ORDER: Final = [severity.value for severity in (Severity.CRITICAL, Severity.WARNING, Severity.INFO)]


@dataclass(frozen=True, slots=True)
class Sample:
    query: str
    labels: Mapping[str, str]
    at: float
    value: float

    @property
    def name(self) -> str:
        return self.labels.get("__name__", "").removeprefix(_PREFIX)


@dataclass(slots=True)
class AgentSeries:
    """All samples of one agent."""

    target: Mapping[str, str]
    samples: list[Sample] = field(default_factory=list)

    @property
    def node(self) -> str:
        """The name of the node where relabeling adds it, or else its address."""
        instance = self.target.get("instance", "")
        host = instance.rpartition(":")[0] if instance.rpartition(":")[2].isdecimal() else instance
        return self.target.get("node") or host.strip("[]")

    def of(self, query: str) -> list[Sample]:
        return [one for one in self.samples if one.query == query]

    def named(self, name: str) -> list[Sample]:
        return [one for one in self.of("value") if one.name == name]

    def label(self, name: str, label: str) -> str:
        return next((one.labels.get(label, "") for one in self.named(name)), "")


def queries(cluster: str) -> dict[str, str]:
    """Return each query by its name. `cluster`: the value of the label `cluster`; empty: any."""
    chosen = f"cluster={json.dumps(cluster)}" if cluster else ""
    alone, more = (f"{{{chosen}}}", f",{chosen}") if chosen else ("", "")
    return {
        name: re.sub(r"\{\$\}|\$", lambda found: alone if found[0] == "{$}" else more, text)
        for name, text in QUERIES.items()
    }


def samples(query: str, answer: str) -> list[Sample]:
    """Read the answer of Prometheus' HTTP API; raises ValueError if it is none, or an error."""
    try:
        tree = json.loads(answer)
        # A warning, or the mark of VictoriaMetrics, says that a part is missing. No series would look like no finding.
        missing = tree.get("warnings") or (tree.get("isPartial") and "it is partial")
        if tree["status"] == "success" and not missing:
            return [_sample(query, one) for one in tree["data"]["result"]]
        why = f"the answer is incomplete: {missing}" if missing else f"the query failed: {tree['error']}"
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError("no answer of Prometheus' HTTP API: is this the address of a Prometheus?") from error
    raise ValueError(truncate(why))


def _sample(query: str, one: Mapping[str, Any]) -> Sample:
    at, value = one["value"]
    return Sample(query, {str(key): str(text) for key, text in one["metric"].items()}, float(at), float(value))


def by_agent(found: Iterable[Sample]) -> list[AgentSeries]:
    """Group samples by the agent that they are of; what no agent serves now is left out."""
    agents: dict[frozenset[tuple[str, str]], AgentSeries] = {}
    for one in found:
        if hidden := _hidden(one):
            raise ValueError(
                f"Prometheus gives the agents the label {hidden}, which hides the one of their metrics: "
                "give it another name in the scrape configuration, or set honor_labels"
            )
        target = {key: value for key, value in one.labels.items() if key not in _OF_A_METRIC}
        agents.setdefault(frozenset(target.items()), AgentSeries(target)).samples.append(one)
    return [one for one in agents.values() if one.named("build_info")]


def _hidden(one: Sample) -> str:
    """Return a label of the metric that Prometheus has renamed, because the target has one of the same name."""
    renamed = (name.removeprefix("exported_") for name in one.labels if name.startswith("exported_"))
    return next((name for name in renamed if name in _OF_A_METRIC), "")


def document(agent: AgentSeries, node: str) -> dict[str, Any]:
    """Return `nodeleak.status/v1`. What no metric says is null, or refers to the agent.

    Raises ValueError, LookupError, OverflowError or OSError for what no agent exports.
    """
    if not (synced := agent.named("last_sync_timestamp_seconds")):
        return no_report("the agent has not finished its first sync")
    if not agent.of("sources"):
        raise LookupError("Prometheus stores no nodeleak_source_up of it")
    last = synced[-1]
    findings, unavailable = list(_findings(agent)), list(_unavailable(agent))
    halted = any(one.value for one in agent.named("cleanup_halted"))
    severe = halted or any(one["severity"] != Severity.INFO.value for one in findings)
    state = NodeState.FINDINGS if severe else NodeState.INCOMPLETE if unavailable else NodeState.OK
    taken_at = datetime.fromtimestamp(last.value, UTC)
    return {
        "schema": SCHEMA,
        "version": agent.label("build_info", "version"),
        "node": node,
        "state": (NodeState.STALLED if agent.of("stalled") else state).value,
        "headline": "Critical: cleanup halted" if halted else "",
        "report": {
            "taken_at": rfc3339(taken_at),
            "age_seconds": round(max(0.0, last.at - last.value), 1),
            "interval_seconds": None,
        },
        "cleanup": {
            "mode": agent.label("mode_info", "mode"),
            "networks": [],
            "release_possible": None,
            "why_not": [],
        },
        "networks": list(_networks(agent)),
        "findings": findings,
        "unavailable": unavailable,
    }


def _findings(agent: AgentSeries) -> Iterator[dict[str, Any]]:
    def order(one: Sample) -> tuple[int, str]:
        return _ORDER.index(one.labels["severity"]), one.labels["detector"]

    for one in sorted(agent.of("finding"), key=order):
        labels = one.labels
        count = int(one.value)
        yield {"severity": labels["severity"], "detector": labels["detector"], "count": count, "oldest": None}


def _unavailable(agent: AgentSeries) -> Iterator[dict[str, str]]:
    for one in sorted(agent.of("unavailable"), key=lambda one: one.labels.get("source", "")):
        yield {"source": one.labels.get("source", "?"), "why": "kubectl nodeleak scan says why"}
    if agent.of("failed"):
        yield {"source": "a check", "why": "it failed within five minutes, kubectl nodeleak scan says why"}


def _networks(agent: AgentSeries) -> Iterator[dict[str, Any]]:
    def counts(name: str, **labels: str) -> dict[str, int]:
        return {
            one.labels["network"]: int(one.value)
            for one in agent.named(name)
            if "network" in one.labels and labels.items() <= one.labels.items()
        }

    usable, free = counts("range_addresses"), counts("range_free_addresses")
    leaked, unknown = counts("reservations", state="leaked"), counts("reservations", state="unknown")
    for name in sorted({*usable, *free, *leaked, *unknown}):
        known = {"usable": usable, "free": free, "leaked": leaked, "unknown": unknown}
        yield {"name": name, **{key: values.get(name) for key, values in known.items()}}

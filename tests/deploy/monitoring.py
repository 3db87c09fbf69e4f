"""The alert rules and the dashboard, and what their PromQL names that the agent does not export."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import promql_parser as promql
import yaml  # type: ignore[import-untyped]

from agent.checks.registry import DETECTORS
from agent.exporters.metrics import INTERNAL_ERRORS
from agent.model.assessment import State
from agent.model.finding import LeakCause, Severity, WaitCause
from agent.model.rejections import PodOutcome, RejectionCause
from agent.model.release import Reason, Verdict
from agent.model.snapshot import SOURCES
from tests.exporters.test_metrics import everything

ROOT: Final = Path(__file__).parents[2]
RULES: Final = ROOT / "deploy/prometheus/rules.yaml"
RUNBOOKS: Final = ROOT / "docs/runbooks"
_TARGET: Final = frozenset({"cluster", "job", "instance", "node"})
"""Target labels of Prometheus; `node` and `cluster` if relabelling adds them."""
_OTHERS: Final = {"up": _TARGET, "kube_node_info": frozenset({"node", "os_image"})}
"""Metrics that are not the agent's: Prometheus' own, and one of kube-state-metrics."""
_VALUES: Final[Mapping[str, set[str]]] = {
    "cause": {one.value for kind in (LeakCause, RejectionCause, WaitCause) for one in kind},
    "detector": {one.NAME for one in DETECTORS},
    "pod_outcome": {one.value for one in PodOutcome},
    "mode": {"observe", "dry-run", "clean"},
    "part": set(INTERNAL_ERRORS.begins),
    "phase": {"candidate", "confirmed"},
    "reason": {one.value for one in (*Reason, *Verdict)},
    "severity": {one.value for one in Severity},
    "source": set(SOURCES),
    "stage": {"read", "check"},
    "state": {one.value for one in State},
}
"""Labels with closed lists of values. Rules must not name values of other labels (`network`, `resource`)."""


def rules(kind: str) -> list[dict[str, Any]]:
    """Return the rules of one kind: `alert` or `record`."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"] if kind in rule]


@cache
def known_metrics() -> Mapping[str, set[str]]:
    """Return all metrics with their labels: the agent's samples, those of others, and the recording rules."""
    known = {name: set(labels) for name, labels in _OTHERS.items()}
    for family in everything().registry.collect():
        for sample in family.samples:
            known.setdefault(sample.name, set()).update(sample.labels)
    for rule in rules("record"):
        by = re.match(r"\w+ by \(([\w, ]+)\)", rule["expr"])
        # A rule may read its own last result.
        read = (known.get(selector.name or "", set()) for selector in _selectors(rule["expr"]))
        known[rule["record"]] = set(by[1].split(", ")) if by else set[str]().union(*read)
    return known


def unknown_names(expr: str) -> Iterator[str]:
    """Return the metrics, labels and values of an expression that do not exist."""
    labels = set(_TARGET)
    for selector in _selectors(expr):
        name = selector.name or "an unnamed selector"
        if name not in known_metrics():
            yield f"{name} is not a metric"
            continue
        labels |= known_metrics()[name]
        for matcher in selector.matchers.matchers:
            if matcher.name not in known_metrics()[name] | _TARGET:
                yield f"{name} has no label {matcher.name}"
            if matcher.name in _VALUES:
                yield from (
                    f"{matcher.name} is never {value}"
                    for value in set(matcher.value.split("|")) - _VALUES[matcher.name]
                )
    yield from (
        f"no metric in it has the label {label}" for label in _grouped(expr) if label not in labels
    )


def _grouped(expr: str) -> Iterator[str]:
    """Return all labels used for grouping and matching."""
    for node in _nodes(expr):
        modifier = getattr(node, "modifier", None)
        if isinstance(node, promql.AggregateExpr) and modifier is not None:
            yield from modifier.labels
        if isinstance(node, promql.BinaryExpr) and modifier is not None:
            yield from (modifier.matching.labels if modifier.matching else ())
            yield from modifier.group_labels or ()


def _selectors(expr: str) -> list[promql.VectorSelector]:
    return [node for node in _nodes(expr) if isinstance(node, promql.VectorSelector)]


def _nodes(expr: str) -> list[promql.Expr]:
    found: list[promql.Expr] = []

    def visit(node: promql.Expr) -> None:
        found.append(node)
        if isinstance(node, promql.MatrixSelector):  # which the walk does not enter
            found.append(node.vector_selector)

    promql.walk(promql.parse(expr), pre_visit=visit)
    return found

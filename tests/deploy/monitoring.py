"""The alert rules, and a check of PromQL expressions against the metrics that the agent exports."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import promql_parser as promql
import yaml  # type: ignore[import-untyped]

from agent.app.daemon import MODES
from agent.checks.registry import DETECTORS
from agent.exporters.metrics import STAGES
from agent.model import rejections
from agent.model.assessment import State
from agent.model.finding import LeakCause, Severity
from agent.model.release import MISSED, Reason
from agent.model.snapshot import SOURCES
from tests.exporters.test_metrics import everything

ROOT: Final = Path(__file__).parents[2]
RULES: Final = ROOT / "deploy" / "prometheus" / "rules.yaml"
CASES: Final = RULES.with_name("tests.yaml")
RUNBOOKS: Final = ROOT / "docs" / "runbooks"
DASHBOARD: Final = ROOT / "deploy" / "grafana" / "nodeleak.json"

TARGET: Final = frozenset({"cluster", "job", "instance", "node"})
"""Target labels of Prometheus; `node` and `cluster` if relabelling adds them."""

OTHERS: Final[Mapping[str, frozenset[str]]] = {"up": TARGET, "kube_node_info": frozenset({"node", "os_image"})}
"""Metrics that are not the agent's: Prometheus' own, and one of kube-state-metrics."""

VALUES: Final[Mapping[str, frozenset[str]]] = {
    "cause": frozenset(one.value for kind in (LeakCause, rejections.RejectionCause) for one in kind),
    "detector": frozenset(one.NAME for one in DETECTORS),
    "pod_outcome": frozenset(one.value for one in rejections.PodOutcome),
    "mode": frozenset(MODES.values()),
    "phase": frozenset({"candidate", "confirmed"}),
    "reason": frozenset(one.value for one in (*Reason, *MISSED)),
    "severity": frozenset(one.value for one in Severity),
    "source": frozenset(SOURCES),
    "stage": frozenset(STAGES),
    "state": frozenset(one.value for one in State),
}
"""Labels with closed lists of values. Rules must not name values of other labels (`network`, `resource`)."""

PATTERNS: Final = frozenset({"MatchOp.Re", "MatchOp.NotRe"})


@dataclass(frozen=True)
class Rule:
    """An alert. Several can have the same name, with different severities."""

    alert: str
    expr: str
    wait: str
    severity: str
    annotations: Mapping[str, str]


def groups() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"]
    return found


def alerts() -> list[Rule]:
    rules = (rule for group in groups() for rule in group["rules"] if "alert" in rule)
    return [
        Rule(one["alert"], one["expr"], one.get("for", ""), one["labels"]["severity"], one["annotations"])
        for one in rules
    ]


def recordings() -> dict[str, str]:
    """Return the expressions of the recording rules by name."""
    return {rule["record"]: rule["expr"] for group in groups() for rule in group["rules"] if "record" in rule}


@cache
def known_metrics() -> Mapping[str, set[str]]:
    """Return all metrics with their labels: the agent's samples, those of others, and the recording rules."""
    known = {name: set(labels) for name, labels in OTHERS.items()}
    for family in everything().registry.collect():
        for sample in family.samples:
            known.setdefault(sample.name, set()).update(sample.labels)
    for name, expr in recordings().items():
        sources = (known.get(named(one), set()) for one in selectors(expr))  # a rule may read its own last result
        by = re.match(r"\w+ by \(([\w, ]+)\)", expr)
        known[name] = set(by[1].split(", ")) if by else set[str]().union(*sources)
    return known


def selectors(expr: str) -> list[promql.VectorSelector]:
    return [one for one in _nodes(promql.parse(expr)) if isinstance(one, promql.VectorSelector)]


def named(selector: promql.VectorSelector) -> str:
    return selector.name or "an unnamed selector"


def complaints(expr: str, known: Mapping[str, set[str]]) -> Iterator[str]:
    """Return what an expression names that does not exist."""
    asked = selectors(expr)
    for one in asked:
        if named(one) not in known:
            yield f"{named(one)} is not a metric"
            continue
        for matcher in one.matchers.matchers:
            yield from _of_matcher(named(one), known[named(one)], matcher)
    labels = TARGET.union(*(known.get(named(one), set()) for one in asked))
    for label in _grouped(promql.parse(expr)):
        if label not in labels:
            yield f"no metric in it has the label {label}"


def _of_matcher(name: str, labels: set[str], matcher: promql.Matcher) -> Iterator[str]:
    if matcher.name in TARGET or matcher.name in OTHERS.get(name, ()):
        return
    if matcher.name not in labels:
        yield f"{name} has no label {matcher.name}"
    is_pattern = str(matcher.op) in PATTERNS
    for value in matcher.value.split("|") if is_pattern else [matcher.value]:
        if value not in VALUES.get(matcher.name, ()):
            yield f"{matcher.name} is never {value}"


def _grouped(tree: promql.Expr) -> Iterator[str]:
    """Return all labels used for grouping and matching."""
    for one in _nodes(tree):
        modifier = getattr(one, "modifier", None)
        if isinstance(one, promql.AggregateExpr) and modifier is not None:
            yield from modifier.labels
        if isinstance(one, promql.BinaryExpr) and modifier is not None:
            yield from (modifier.matching.labels if modifier.matching else ())
            yield from modifier.group_labels or ()


def _nodes(tree: promql.Expr) -> list[promql.Expr]:
    found: list[promql.Expr] = []

    def visit(one: promql.Expr) -> None:
        found.append(one)
        if isinstance(one, promql.MatrixSelector):  # which the walk does not enter
            found.append(one.vector_selector)

    promql.walk(tree, pre_visit=visit)
    return found

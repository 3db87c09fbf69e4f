"""Alerts are well formed, use metrics that exist, and have a case that fires and one that does not."""

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from agent.checks.registry import DETECTORS
from agent.model.finding import Severity
from tests.deploy.monitoring import (
    CASES,
    ROOT,
    RULES,
    VALUES,
    Rule,
    alerts,
    complaints,
    known_metrics,
    recordings,
    selectors,
)
from tests.wire import needs, run

REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
OBJECT = ROOT / "deploy" / "overlays" / "prometheus-operator" / "prometheusrule.yaml"
FLEET = {
    "NodeleakSourceDownManyNodes", "NodeleakAgentDownManyNodes", "NodeleakNodesWithoutAgent", "NodeleakAgentAbsent",
}  # fmt: skip
"""Alerts that are not about one node."""
ALERTS = [pytest.param(rule, id=f"{rule.alert}-{rule.severity}") for rule in alerts()]
OTHERWISE = {"leaked_reservation": "network:nodeleak_leaked:sum", "rejected_pod": "nodeleak_rejected_pods{"}
"""Detectors whose alert uses a more specific metric than the number of findings."""


def promtool(*words: str) -> str:
    needs(shutil.which("promtool") is not None, "promtool (Debian: apt-get install prometheus), to check the rules")
    return run("promtool", *words)


def cases() -> Iterator[dict[str, Any]]:
    for test in yaml.safe_load(CASES.read_text())["tests"]:
        yield from test.get("alert_rule_test", ())


# Form


@pytest.mark.parametrize("rule", ALERTS)
def test_an_alert_is_well_formed(rule: Rule) -> None:
    assert re.fullmatch(r"Nodeleak([A-Z][a-z]+)+", rule.alert)
    # One alert has no `for`: the agent's own pod is deleted with those of its node.
    assert re.fullmatch(r"[1-9][0-9]*[mh]", rule.wait) or "max_over_time" in rule.expr
    assert rule.severity in set(Severity)
    assert list(rule.annotations) == ["summary", "description", "runbook_url"]
    assert rule.annotations["runbook_url"] == f"{REPOSITORY}/blob/main/docs/runbooks/{rule.alert}.md"


@pytest.mark.parametrize("rule", ALERTS)
def test_a_summary_names_the_node_or_how_many_nodes(rule: Rule) -> None:
    """People on call see the summaries of all alerts of a notification, and often nothing else."""
    summary = rule.annotations["summary"]
    if rule.alert in FLEET:
        assert "{{ $value }}" in summary or rule.alert == "NodeleakAgentAbsent"
        assert "{{ with $labels.cluster }} of cluster {{ . }}{{ end }}" in summary
    else:
        assert "{{ or $labels.node $labels.instance }}" in summary


@pytest.mark.parametrize("rule", ALERTS)
def test_an_expression_matches_targets_of_one_cluster_only(rule: Rule) -> None:
    """Addresses and names of nodes repeat in other clusters."""
    assert [on for on in re.findall(r"\bon \(([^)]*)\)", rule.expr) if "cluster" not in on] == []
    assert ("by (" in rule.expr) <= ("by (cluster" in rule.expr)


@pytest.mark.parametrize("name", recordings())
def test_a_recording_rule_is_named_by_level_metric_and_operation(name: str) -> None:
    assert re.fullmatch(r"[a-z_]+:nodeleak_[a-z_]+:[a-z]+", name)


def test_the_prometheusrule_is_generated_from_the_rules() -> None:
    made = subprocess.run(  # noqa: S603 (ours)
        [sys.executable, ROOT / "hack" / "prometheusrule"], capture_output=True, text=True, check=True
    ).stdout
    assert OBJECT.read_text() == made, "run hack/prometheusrule again"
    rule = yaml.safe_load(made)
    assert (rule["apiVersion"], rule["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert rule["spec"] == yaml.safe_load(RULES.read_text())


# Expressions


@pytest.mark.parametrize("expr", [*(rule.expr for rule in alerts()), *recordings().values()])
def test_an_expression_uses_only_metrics_and_labels_that_exist(expr: str) -> None:
    assert list(complaints(expr, known_metrics())) == []


@pytest.mark.parametrize(
    ("expr", "complaint"),
    [
        ("nodeleak_leaks > 0", "nodeleak_leaks is not a metric"),
        ('nodeleak_findings{kind="shared_ip"}', "nodeleak_findings has no label kind"),
        ('rate(nodeleak_findings{detector="shared_ips"}[5m])', "detector is never shared_ips"),
        ('nodeleak_reservations{state!~"leaked|lost"}', "state is never lost"),
        ("sum without (phrase) (nodeleak_findings)", "no metric in it has the label phrase"),
        ("up == 0 and on (pod) nodeleak_build_info", "no metric in it has the label pod"),
    ],
)
def test_a_mistake_in_an_expression_is_detected(expr: str, complaint: str) -> None:
    assert complaint in set(complaints(expr, known_metrics()))


def test_every_detector_has_an_alert_unless_it_only_informs() -> None:
    expressions = "\n".join(rule.expr for rule in alerts())
    for name in VALUES["detector"] - {one.NAME for one in DETECTORS if set(one.SEVERITIES) == {Severity.INFO}}:
        assert OTHERWISE.get(name, f'detector="{name}"') in expressions, name


@pytest.mark.parametrize("rule", ALERTS)
def test_an_alert_uses_only_severities_of_its_detector(rule: Rule) -> None:
    gives = {one.NAME: {severity.value for severity in one.SEVERITIES} for one in DETECTORS}
    for one in selectors(rule.expr):
        asked = {matcher.name: matcher.value for matcher in one.matchers.matchers}
        if asked.get("detector") in gives:
            assert set(asked.get("severity", "").split("|")) - {""} <= gives[asked["detector"]]


@pytest.mark.parametrize("rule", ALERTS)
def test_an_alert_on_findings_sums_over_severity(rule: Rule) -> None:
    """Otherwise two alerts would have the same labels: an alert's severity replaces that of the finding."""
    for one in selectors(rule.expr):
        if one.name == "nodeleak_findings":
            of_one_severity = any(m.name == "severity" and str(m.op) == "MatchOp.Equal" for m in one.matchers.matchers)
            assert of_one_severity or re.search(r"without \(\w+, severity\)|and on \(", rule.expr)


# Firing


def test_promtool_accepts_the_rules() -> None:
    assert "SUCCESS" in promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))


def test_alerts_fire_as_expected() -> None:
    assert "SUCCESS" in promtool("test", "rules", str(CASES))


def test_every_recording_rule_has_a_case() -> None:
    tests = yaml.safe_load(CASES.read_text())["tests"]
    assert {one["expr"] for test in tests for one in test.get("promql_expr_test", ())} == set(recordings())


def test_recorded_values_are_those_of_the_same_minute() -> None:
    names = [group["name"] for group in yaml.safe_load(RULES.read_text())["groups"]]
    assert yaml.safe_load(CASES.read_text())["group_eval_order"] == names
    assert names[0] == "nodeleak.recordings"


def test_every_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    fire = {(one["alertname"], each["exp_labels"]["severity"]) for one in cases() for each in one["exp_alerts"]}
    quiet = {one["alertname"] for one in cases() if not one["exp_alerts"]}
    assert fire == {(rule.alert, rule.severity) for rule in alerts()}
    assert quiet == {rule.alert for rule in alerts()}

"""Alerts, routes and dashboard: the tools that read them accept them, and they ask for what the agent exports."""

import json
import re
import shutil
from typing import Any, Final

import yaml  # type: ignore[import-untyped]
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from agent.checks.registry import DETECTORS
from agent.model.finding import Severity
from tests.deploy.monitoring import ROOT, RULES, rules, unknown_names
from tests.wire import needs, run

CASES: Final = RULES.with_name("tests.yaml")
ROUTES: Final = RULES.with_name("alertmanager.yaml")
BOARD: Final[dict[str, Any]] = json.loads((ROOT / "deploy/grafana/nodeleak.json").read_text())
ALERTS: Final = {rule["alert"] for rule in rules("alert")}
OTHERWISE: Final = {
    "leaked_reservation": "network:nodeleak_leaked:sum",
    "rejected_pod": "nodeleak_rejected_pods{",
}
"""Detectors whose alert uses a more specific metric than the number of findings."""


def test_promtool_accepts_the_rules_and_they_fire_as_expected() -> None:
    needs(
        shutil.which("promtool") is not None,
        "promtool (Debian: apt-get install prometheus), to check the rules",
    )
    assert "SUCCESS" in run("promtool", "check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    assert "SUCCESS" in run("promtool", "test", "rules", str(CASES))


def test_every_detector_has_an_alert_which_has_a_case_that_fires_and_one_that_does_not() -> None:
    cases = [
        case
        for test in yaml.safe_load(CASES.read_text())["tests"]
        for case in test.get("alert_rule_test", ())
    ]
    fired = {
        (case["alertname"], alert["exp_labels"]["severity"])
        for case in cases
        for alert in case["exp_alerts"]
    }
    assert fired == {(rule["alert"], rule["labels"]["severity"]) for rule in rules("alert")}
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == ALERTS
    expressions = "\n".join(rule["expr"] for rule in rules("alert"))
    for detector in DETECTORS:
        if set(detector.SEVERITIES) != {Severity.INFO}:
            assert OTHERWISE.get(detector.NAME, f'detector="{detector.NAME}"') in expressions, (
                detector.NAME
            )


def test_expressions_use_only_metrics_labels_and_values_that_exist() -> None:
    expressions = [rule["expr"] for kind in ("alert", "record") for rule in rules(kind)]
    variables = {"$__rate_interval": "5m", "$cluster": ".*", "$job": ".*", "$node": "worker-1"}
    for target in (target for panel in BOARD["panels"] for target in panel.get("targets", ())):
        for variable, value in variables.items():
            target["expr"] = target["expr"].replace(variable, value)
        expressions.append(target["expr"])
    for variable in BOARD["templating"]["list"]:
        if variable["type"] == "query":
            listed = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert listed, variable
            selector = listed[1].replace("$cluster", ".*").replace("$job", ".*")
            expressions.append(f"group by ({listed[2]}) ({selector})")
    assert len(expressions) > 50
    assert {expr: found for expr in expressions if (found := list(unknown_names(expr)))} == {}
    for expr, unknown in (
        ("nodeleak_leaks > 0", "nodeleak_leaks is not a metric"),
        ('rate(nodeleak_findings{detector="shared_ips"}[5m])', "detector is never shared_ips"),
        ("sum without (phrase) (nodeleak_findings)", "no metric in it has the label phrase"),
    ):
        assert unknown in set(unknown_names(expr))


def test_alerts_compare_targets_of_one_cluster_only() -> None:
    """Addresses and names of nodes repeat in other clusters."""
    for rule in rules("alert"):
        assert [
            on for on in re.findall(r"\bon \(([^)]*)\)", rule["expr"]) if "cluster" not in on
        ] == []
        assert ("by (" in rule["expr"]) <= ("by (cluster" in rule["expr"])


def test_alerts_reach_their_receivers_nothing_critical_is_muted_and_muting_alerts_exist() -> None:
    critical = {
        rule["alert"] for rule in rules("alert") if rule["labels"]["severity"] == "critical"
    }
    of_others = {"KubeNodeNotReady", "KubeNodeUnreachable"}  # of the Kubernetes mixin
    for rule in yaml.safe_load(ROUTES.read_text())["inhibit_rules"]:
        names = re.compile(r'alertname=~?"([^"]+)"')
        source, target = (
            set(matched[1].split("|"))
            for key in ("source_matchers", "target_matchers")
            for matched in map(names.fullmatch, rule[key])
            if matched
        )
        assert source <= ALERTS | of_others
        assert target <= ALERTS - critical
        assert "cluster" in rule["equal"]
    needs(
        shutil.which("amtool") is not None,
        "amtool (Debian: prometheus-alertmanager), to check alertmanager.yaml",
    )
    assert "SUCCESS" in run("amtool", "check-config", str(ROUTES))
    route = ("amtool", "config", "routes", "test", f"--config.file={ROUTES}")
    for severity, receiver in (
        ("critical", "nodeleak"),
        ("warning", "nodeleak"),
        ("info", "nobody"),
    ):
        assert receiver in run(*route, "alertname=NodeleakVolumeLost", f"severity={severity}")
    assert "default" in run(*route, "alertname=KubePodCrashLooping"), (
        "alerts of others stay where they were"
    )


def test_grafanas_types_accept_the_dashboard() -> None:
    plugins.register_default_plugins()
    read = Dashboard.from_json(BOARD)
    assert [panel.title for panel in read.panels or ()] == [
        panel["title"] for panel in BOARD["panels"]
    ]
    assert read.uid == "nodeleak", "links lead to it"

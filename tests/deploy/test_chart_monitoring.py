"""What the chart's values change in the alerts, and the pod of `helm test`."""

import json
import shutil
from pathlib import Path
from typing import Any, Final

import kubernetes_validate  # type: ignore[import-untyped]
import yaml  # type: ignore[import-untyped]

from agent.cli.parser import parse_arguments
from agent.config import load
from tests.deploy.helm import CHART, RELEASE, helm, template
from tests.deploy.manifests import Object
from tests.deploy.monitoring import ROOT
from tests.deploy.monitoring import rules as rules_of_file
from tests.wire import needs, run

THRESHOLDS: Final[dict[str, tuple[float, dict[str, str]]]] = {
    "leakedPercent": (7, {"NodeleakLeakedAddresses": ">= 0.07"}),
    "freePercent": (25, {"NodeleakLeakedAddresses": "ratio < 0.25"}),
    "nearlyExhaustedPercent": (15, {"NodeleakRangeNearlyExhausted": "ratio < 0.15"}),
    "rejectedPods": (300, {"NodeleakRejectedPods": ">= 300"}),
    "manyNodes": (
        9,
        {"NodeleakSourceDownManyNodes": ">= 9", "NodeleakAgentDownManyNodes": ">= 9"},
    ),
    "manyNodesPercent": (
        4,
        {"NodeleakSourceDownManyNodes": "> 0.04", "NodeleakAgentDownManyNodes": "> 0.04"},
    ),
}
"""For each threshold another value, and the alerts that it changes."""


def spec_of(**values: Any) -> Object:
    """Return the spec of the PrometheusRule of a release with these values."""
    objects = template({"prometheusRule": {"enabled": True} | values})
    (found,) = (each["spec"] for each in objects if each["kind"] == "PrometheusRule")
    spec: Object = found
    return spec


def alerts(**values: Any) -> list[Object]:
    groups = spec_of(**values)["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def test_one_alert_can_be_switched_off_or_changed_and_the_others_stay() -> None:
    changed = alerts(
        alerts={
            "NodeleakUnmanagedAddress": {"enabled": False},
            "NodeleakAgentDown": {"for": "30m", "severity": "critical", "labels": {"team": "a"}},
        }
    )
    expected = [
        rule for rule in rules_of_file("alert") if rule["alert"] != "NodeleakUnmanagedAddress"
    ]
    (down,) = (rule for rule in expected if rule["alert"] == "NodeleakAgentDown")
    down |= {"for": "30m", "labels": {"severity": "critical", "team": "a"}}
    assert changed == expected


def test_labels_runbooks_and_rules_of_your_own() -> None:
    own = [{"alert": "Mine", "expr": "up == 0"}, {"record": "mine:up", "expr": "up"}]
    values: dict[str, Any] = {
        "alertLabels": {"team": "a"},
        "runbookUrl": "https://wiki.example/nodeleak/",
        "extraRules": own,
    }
    *groups, extra = spec_of(**values)["groups"]
    assert extra == {"name": "nodeleak.extra", "rules": own}
    changed = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    expected = rules_of_file("alert")
    for rule in expected:
        rule["labels"]["team"] = "a"
        page = rule["annotations"]["runbook_url"].rpartition("/")[2]
        rule["annotations"]["runbook_url"] = f"https://wiki.example/nodeleak/{page}"
    assert changed == expected


def test_each_threshold_changes_its_alerts_and_promtool_accepts_them(tmp_path: Path) -> None:
    plain = rules_of_file("alert")
    for name, (value, expected) in THRESHOLDS.items():
        changed = alerts(thresholds={name: value})
        assert {
            new["alert"]
            for old, new in zip(plain, changed, strict=True)
            if old["expr"] != new["expr"]
        } == expected.keys(), name
        for rule in changed:
            assert expected.get(rule["alert"], "") in rule["expr"], rule
    needs(shutil.which("promtool") is not None, "promtool (Debian: apt-get install prometheus)")
    spec = spec_of(
        thresholds={name: value for name, (value, _) in THRESHOLDS.items()},
        nodesWithoutAgent='edge-"1"|lab-\\d+',
        extraRules=[{"record": "mine:up", "expr": "up"}],
    )
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(spec))
    assert "SUCCESS" in run("promtool", "check", "rules", str(tmp_path / "rules.yaml"))
    named = [rule for group in spec["groups"] for rule in group["rules"] if "alert" in rule]
    leaked = [rule for rule in named if rule["alert"] == "NodeleakLeakedAddresses"]
    for rule in leaked:
        description = rule["annotations"]["description"]
        assert "7%" in description
        assert "25%" in description
    (without,) = (rule for rule in named if rule["alert"] == "NodeleakNodesWithoutAgent")
    assert r'node!~"edge-\"1\"|lab-\\d+", os_image' in without["expr"]


def hook(*settings: str) -> Object:
    """Return the pod of `helm test`."""
    options = [f"--set={setting}" for setting in settings]
    shown = ("--namespace=kube-system", "--show-only=templates/tests/status.yaml")
    text = helm("template", RELEASE, str(CHART), *shown, *options).stdout
    pod: Object = yaml.safe_load(text)
    return pod


def test_helm_test_asks_the_agent_of_a_node_at_its_port_and_is_no_agent_itself() -> None:
    pod = hook("metricsPort=9800", "nodeSelector.pool=a", "image.repository=your.registry/nodeleak")
    kubernetes_validate.validate(pod, "1.33", strict=True)
    (container,) = pod["spec"]["containers"]
    assert container["image"].startswith("your.registry/nodeleak:")
    assert parse_arguments(container["args"]).command == "status"
    environment = {each["name"]: each["value"] for each in container["env"]}
    assert load("status", {}, environment).listen == ("", 9800)
    assert pod["spec"]["nodeSelector"] == {"kubernetes.io/os": "linux", "pool": "a"}
    labels = pod["metadata"]["labels"]
    assert (labels["app.kubernetes.io/name"], labels["app.kubernetes.io/component"]) == (
        "nodeleak-test",
        "test",
    )
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert "volumes" not in pod["spec"]


def test_every_object_of_the_chart_is_valid_with_everything_switched_on() -> None:
    on = {"enabled": True}
    values: dict[str, Any] = {
        "admissionPolicy": True,
        "cleanup": "auto",
        "clusterAutoscaler": True,
        "commonAnnotations": {"a": "b"},
        "commonLabels": {"a": "b"},
        "dashboard": on,
        "docker": True,
        "extraEnv": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "extraVolumes": [{"name": "a", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "a", "mountPath": "/a"}],
        "global": {"imagePullSecrets": ["a"]},
        "listenAddress": "10.0.0.1",
        "livenessProbe": {"periodSeconds": 20},
        "metricsPort": 9800,
        "nodeCondition": True,
        "serviceAccount": {"annotations": {"a": "b"}},
        "serviceMonitor": on,
        "tls": {"secretName": "a", "clientCa": True},
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}},
        "volumeAttachments": True,
    }
    objects = template(values)
    assert len({each["kind"] for each in objects}) == 11
    for each in objects:
        if each["apiVersion"] != "monitoring.coreos.com/v1":
            kubernetes_validate.validate(each, "1.33", strict=True)
    board = next(each for each in objects if each["kind"] == "ConfigMap")["data"]["nodeleak.json"]
    assert json.loads(board) == json.loads((ROOT / "deploy/grafana/nodeleak.json").read_text())

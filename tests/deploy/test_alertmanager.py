"""The configuration of Alertmanager: it names alerts that exist, and sends them to the right people."""

import re
import shutil
from typing import Any, Final

import pytest
import yaml  # type: ignore[import-untyped]

from tests.deploy.monitoring import RULES, alerts
from tests.wire import needs, run

CONFIG: Final = RULES.with_name("alertmanager.yaml")
INHIBIT: Final[list[dict[str, Any]]] = yaml.safe_load(CONFIG.read_text())["inhibit_rules"]
NAMES: Final = {rule.alert for rule in alerts()}
OTHERS: Final = {"KubeNodeNotReady", "KubeNodeUnreachable"}
"""Alerts of the Kubernetes mixin."""


def named(matchers: list[str]) -> set[str]:
    (names,) = [re.fullmatch(r'alertname=~?"([^"]+)"', one) for one in matchers if one.startswith("alertname")]
    assert names
    return set(names[1].split("|"))


def amtool(*words: str) -> str:
    needs(shutil.which("amtool") is not None, "amtool (Debian: prometheus-alertmanager), to check alertmanager.yaml")
    return run("amtool", *words)


@pytest.mark.parametrize("rule", INHIBIT, ids=lambda rule: "".join(sorted(named(rule["source_matchers"]))))
def test_an_inhibit_rule_names_alerts_that_exist_in_one_cluster(rule: dict[str, Any]) -> None:
    source, target = named(rule["source_matchers"]), named(rule["target_matchers"])
    assert source <= NAMES | OTHERS
    assert target <= NAMES
    assert not source & target
    assert "cluster" in rule["equal"]


def test_an_alert_on_many_nodes_mutes_the_alerts_of_these_nodes() -> None:
    muted = {
        (one, other)
        for rule in INHIBIT
        for one in named(rule["source_matchers"])
        for other in named(rule["target_matchers"])
    }
    assert {(name, name.removesuffix("ManyNodes")) for name in NAMES if name.endswith("ManyNodes")} <= muted


def test_nothing_critical_is_muted() -> None:
    critical = {rule.alert for rule in alerts() if rule.severity == "critical"}
    assert [rule for rule in INHIBIT if named(rule["target_matchers"]) & critical] == []


def test_amtool_accepts_it() -> None:
    assert "SUCCESS" in amtool("check-config", str(CONFIG))


@pytest.mark.parametrize(
    ("severity", "receiver"), [("critical", "nodeleak"), ("warning", "nodeleak"), ("info", "nobody")]
)
def test_alerts_reach_their_receiver(severity: str, receiver: str) -> None:
    routes = ("config", "routes", "test", f"--config.file={CONFIG}", f"--verify.receivers={receiver}")
    assert receiver in amtool(*routes, "alertname=NodeleakVolumeLost", f"severity={severity}")


def test_alerts_of_others_stay_where_they_were() -> None:
    assert "default" in amtool("config", "routes", "test", f"--config.file={CONFIG}", "alertname=KubePodCrashLooping")

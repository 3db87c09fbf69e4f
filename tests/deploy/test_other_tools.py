"""What the documentation tells users of kured and node-problem-detector to set."""

import json
import os
import re
from pathlib import Path
from typing import Any, Final

from agent.cli.parser import parse_arguments
from tests.deploy.manifests import ROOT, kubectl_has_components, of_kind, render
from tests.deploy.monitoring import rules
from tests.wire import only_with

OPERATIONS: Final = (ROOT / "docs/operations.md").read_text()


def test_the_filter_for_kured_ignores_every_alert_of_ours_and_no_other() -> None:
    (filter_,) = re.findall(r"--alert-filter-regexp='?([^'\s`]+)", OPERATIONS)
    ours = [rule["alert"] for rule in rules("alert")]
    assert len(ours) > 20
    assert [name for name in ours if not re.search(filter_, name)] == []
    assert not re.search(filter_, "KubeNodeNotReady")


def test_the_plugin_for_node_problem_detector_runs_a_command_with_the_exit_codes_that_it_reads() -> (
    None
):
    monitor: dict[str, Any] = json.loads(
        (ROOT / "deploy/node-problem-detector/nodeleak.json").read_text()
    )
    assert monitor["plugin"] == "custom"
    (rule,), (condition,) = monitor["rules"], monitor["conditions"]
    assert (rule["type"], rule["condition"]) == ("permanent", condition["type"])
    parsed = parse_arguments(rule["args"])
    # 0: no problem, 1: a problem; it takes every other code for unknown.
    assert (parsed.command, parsed.exit_code) == ("status", True)
    assert Path(rule["path"]).name == "nodeleak"


def test_the_components_for_an_image_of_one_platform_select_its_nodes(tmp_path: Path) -> None:
    only_with(kubectl_has_components(), "kubectl 1.21 or newer, which renders components")
    base = os.path.relpath(ROOT / "deploy", tmp_path)
    for platform in ("amd64", "arm64"):
        (tmp_path / "kustomization.yaml").write_text(
            f"resources: [{base}/base]\ncomponents: [{base}/components/{platform}]\n"
        )
        (agent,) = [each for each in render(tmp_path) if each["kind"] == "DaemonSet"]
        selector = agent["spec"]["template"]["spec"]["nodeSelector"]
        assert selector == {"kubernetes.io/os": "linux", "kubernetes.io/arch": platform}
    (agent,) = of_kind("base", "DaemonSet")
    assert "kubernetes.io/arch" not in agent["spec"]["template"]["spec"]["nodeSelector"]

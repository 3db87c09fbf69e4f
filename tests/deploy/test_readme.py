"""The READMEs: their commands parse, and their kustomization renders."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from agent.cli.parser import parse_arguments
from tests.deploy.manifests import ALL, ROOT, kubectl_has_components, kustomization, render
from tests.wire import needs

READMES = [pytest.param(ROOT / name, id=name) for name in ("README.md", "deploy/README.md")]


@pytest.mark.parametrize("page", READMES)
def test_the_parser_accepts_every_command(page: Path) -> None:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    shell = "\n".join(block for language, block in blocks if not language)
    commands = re.findall(r"^(?:\$ |kubectl .* -- )?nodeleak ([^#>\n]+)", shell, re.MULTILINE)
    assert commands
    for command in commands:
        parse_arguments(command.split())


def examples(page: Path) -> list[dict[str, Any]]:
    """Return the kustomizations that a page shows."""
    return [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)]


@pytest.mark.parametrize("page", READMES)
def test_the_kustomization_sets_the_image(page: Path, tmp_path: Path) -> None:
    example = examples(page)[0]
    if not kubectl_has_components():  # what the pages say for such a kubectl
        example["bases"] = example.pop("resources")
    (daemonset,) = [one for one in render(kustomization(tmp_path, **example)) if one["kind"] == "DaemonSet"]
    (container,) = daemonset["spec"]["template"]["spec"]["containers"]
    assert container["image"].startswith("your.registry/nodeleak:")


def test_the_example_of_components_renders(tmp_path: Path) -> None:
    needs(kubectl_has_components(), "kubectl 1.21 or newer, to render components")
    (_, example, _) = examples(ROOT / "deploy/README.md")
    kinds = {one["kind"] for one in render(kustomization(tmp_path, **example))}
    assert kinds >= {"DaemonSet", "PodMonitor"}


def test_the_example_of_a_namespace_moves_everything(tmp_path: Path) -> None:
    (_, _, example) = examples(ROOT / "deploy/README.md")
    if not kubectl_has_components():
        example["bases"] = example.pop("resources")
    rendered = render(kustomization(tmp_path, **example))
    assert {one["metadata"].get("namespace") for one in rendered} == {"nodeleak", None}
    (binding,) = [one for one in rendered if one["kind"] == "ClusterRoleBinding"]
    assert [subject["namespace"] for subject in binding["subjects"]] == ["nodeleak"]


def test_every_kustomization_has_a_row_in_the_table() -> None:
    rows = re.findall(r"^\| `((?:base|overlays/)[a-z-0-9]*)` \|", (ROOT / "deploy/README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(ALL)

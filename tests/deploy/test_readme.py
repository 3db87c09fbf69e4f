"""The READMEs: their commands parse, and their kustomization renders."""

import re
import shutil
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from agent.cli.parser import parse_arguments
from tests.deploy.manifests import DEPLOY, ROOT
from tests.wire import needs, run

READMES = [pytest.param(ROOT / name, id=name) for name in ("README.md", "deploy/README.md")]


@pytest.mark.parametrize("page", READMES)
def test_the_parser_accepts_every_command(page: Path) -> None:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    shell = "\n".join(block for language, block in blocks if not language)
    commands = re.findall(r"^(?:\$ |kubectl .* -- )?nodeleak ([^#>\n]+)", shell, re.MULTILINE)
    assert commands
    for command in commands:
        parse_arguments(command.split())


@pytest.mark.parametrize("page", READMES)
def test_the_kustomization_sets_the_image(page: Path, tmp_path: Path) -> None:
    kubectl = shutil.which("kubectl")
    needs(kubectl is not None, "kubectl, to render the kustomization")
    (example,) = re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    (tmp_path / "deploy").symlink_to(DEPLOY)
    directory = tmp_path / "my-nodeleak"
    directory.mkdir()
    (directory / "kustomization.yaml").write_text(example)
    objects = yaml.safe_load_all(run(str(kubectl), "kustomize", str(directory)))
    (daemonset,) = [one for one in objects if one["kind"] == "DaemonSet"]
    (container,) = daemonset["spec"]["template"]["spec"]["containers"]
    assert container["image"].startswith("your.registry/nodeleak:")

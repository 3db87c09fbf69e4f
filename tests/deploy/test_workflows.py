"""The workflows of GitHub, which cannot run here: what can be known of them without."""

import json
import re
from pathlib import Path
from typing import Final

import yaml  # type: ignore[import-untyped]

from tests.deploy.helm import program
from tests.deploy.manifests import ROOT
from tests.wire import run

GITHUB: Final = ROOT / ".github"
WORKFLOWS: Final = sorted((GITHUB / "workflows").glob("*.yaml"))
STEPS: Final = [
    step
    for path in WORKFLOWS
    for job in yaml.safe_load(path.read_text())["jobs"].values()
    for step in job["steps"]
]


def test_actionlint_accepts_them_and_the_first_line_says_that_they_never_ran() -> None:
    assert [path.stem for path in WORKFLOWS] == ["check", "release"]
    assert run(program("actionlint"), "-shellcheck=", "-pyflakes=", *map(str, WORKFLOWS)) == ""
    for path in WORKFLOWS:
        assert path.read_text().startswith("# Never run yet"), path


def test_actions_are_pinned_and_every_program_of_the_checkout_exists() -> None:
    used = [step["uses"] for step in STEPS if "uses" in step]
    assert [name for name in used if not re.search(r"@(v\d+|[0-9a-f]{40})$", name)] == []
    commands = "\n".join(step["run"] for step in STEPS if "run" in step)
    for script in {*re.findall(r"\bhack/[a-z-]+", commands)}:
        assert (ROOT / script).exists(), script
    targets = re.findall(r"^([a-z0-9]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    stages = yaml.safe_load((GITHUB / "workflows/check.yaml").read_text())["jobs"]["test"]
    assert {*stages["strategy"]["matrix"]["stage"], "packages"} <= {*targets}


def test_owners_and_hooks_name_what_exists() -> None:
    lines = (GITHUB / "CODEOWNERS").read_text().splitlines()
    for path, *owners in (line.split() for line in lines if line and not line.startswith("#")):
        assert owners
        assert path == "*" or (ROOT / path.lstrip("/")).exists(), path
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    lint = (ROOT / "Makefile").read_text()
    for hook in hooks:
        program_ = Path(hook["entry"].split()[0])
        assert program_.name in lint or (ROOT / program_).exists(), hook["id"]
    renovate = json.loads((ROOT / "renovate.json").read_text())
    assert {"github-actions", "gomod", "pip_requirements"} <= {*renovate["enabledManagers"]}
    for form_path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(form_path.read_text())
        assert {"name", "description", "body"} <= {*form} or "contact_links" in form, form_path

"""hack/release: sets one version everywhere, and refuses a release whose parts disagree."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.deploy.manifests import ROOT
from tests.wire import needs

PARTS = ("pyproject.toml", "CHANGELOG.md", "README.md", "deploy", "hack")
NEW = "9.8.7"
OLD = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with the parts of this one that name the version."""
    needs(shutil.which("kubectl") is not None, "kubectl, to render deploy/")
    needs(shutil.which("git") is not None, "git")
    for part in PARTS:
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, tmp_path / part)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    (tmp_path / ".gitignore").write_text(".venv/\n__pycache__/\n")
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    return tmp_path


def git(checkout: Path, *words: str) -> None:
    own = ("-c", "user.name=nodeleak", "-c", "user.email=nodeleak@example.com", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", checkout, *own, *words], check=True, capture_output=True)  # noqa: S603, S607


def commit(checkout: Path) -> None:
    git(checkout, "add", "--all")
    git(checkout, "commit", "-q", "--message=all")


def release(checkout: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    # The interpreter of these tests, without its environment, has no PyYAML.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(one for one in sys.path if "site-packages" in one)}
    command = [str(checkout / "hack/release"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)  # noqa: S603 (ours)


def set_version(checkout: Path) -> None:
    done = release(checkout, "set", NEW)
    assert (done.returncode, done.stderr) == (0, "")


def test_it_sets_the_version_everywhere(checkout: Path) -> None:
    set_version(checkout)
    files = [one for part in PARTS for one in (checkout / part, *(checkout / part).rglob("*")) if one.is_file()]
    old = re.compile(rf"(nodeleak|newTag|app\.kubernetes\.io/version): ?{re.escape(OLD)}\b")
    named = [str(one) for one in files if old.search(one.read_text(errors="replace"))]
    assert named == []
    assert tomllib.loads((checkout / "pyproject.toml").read_text())["project"]["version"] == NEW
    for name in ("install.yaml", "install-cleanup.yaml", "clean-one-node.yaml"):
        assert f"registry.invalid/nodeleak:{NEW}" in (checkout / "deploy" / name).read_text()
    rules = checkout / "deploy/overlays/prometheus-operator/prometheusrule.yaml"
    assert f"app.kubernetes.io/version: {NEW}" in rules.read_text()


def test_the_changelog_gets_a_date_and_keeps_a_place_for_what_follows(checkout: Path) -> None:
    set_version(checkout)
    set_version(checkout)  # again changes nothing
    headings = re.findall(r"^## (.+)$", (checkout / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert re.fullmatch(rf"{NEW} - \d{{4}}-\d\d-\d\d", headings[1])
    assert len([one for one in headings if one.startswith(NEW)]) == 1


def test_what_it_sets_passes_its_check_when_committed(checkout: Path) -> None:
    set_version(checkout)
    assert "the working tree has changes" in release(checkout, "check").stderr
    commit(checkout)
    done = release(checkout, "check")
    assert (done.returncode, done.stderr) == (0, "")


def test_it_refuses_parts_of_another_version_and_a_tag_elsewhere(checkout: Path) -> None:
    set_version(checkout)
    overlay = checkout / "deploy/overlays/cluster-autoscaler/rbac.yaml"
    overlay.write_text(overlay.read_text().replace(f"version: {NEW}", "version: 9.8.6"))
    commit(checkout)
    assert "cluster-autoscaler/rbac.yaml" in release(checkout, "check").stderr
    git(checkout, "revert", "--no-edit", "HEAD")
    set_version(checkout)
    commit(checkout)
    git(checkout, "tag", f"v{NEW}", "HEAD~1")
    assert f"the tag v{NEW} is another commit" in release(checkout, "check").stderr


def test_it_refuses_a_changelog_without_the_version(checkout: Path) -> None:
    page = checkout / "CHANGELOG.md"
    page.write_text(re.sub(rf"^## {re.escape(OLD)} .*\n", "", page.read_text(), flags=re.MULTILINE))
    git(checkout, "commit", "-q", "--all", "--allow-empty", "--message=without")
    assert f"CHANGELOG.md has no '## {OLD} - DATE'" in release(checkout, "check").stderr


@pytest.mark.parametrize("words", [("set", "1.0"), ("set", "v1.0.0"), ("build", "python:3.11-slim"), ("publish",), ()])
def test_it_refuses_wrong_usage(words: tuple[str, ...]) -> None:
    done = subprocess.run([ROOT / "hack/release", *words], capture_output=True, text=True, check=False)  # noqa: S603 (ours)
    assert done.returncode in {1, 2}
    assert re.search("expected a version such as|with its digest, such as|usage: hack/release", done.stderr)

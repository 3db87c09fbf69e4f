"""docs/kubectl.md says what the program does."""

import re
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml  # type: ignore[import-untyped]

from agent.cli.exit_codes import FAILED, FOUND, INTERRUPTED, UNAVAILABLE, USAGE
from agent.fleet.command import main
from tests.deploy.test_manifests import VERSIONS
from tests.fleet.test_options import COMMANDS

PAGE = (Path(__file__).parents[2] / "docs" / "kubectl.md").read_text()


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(title: str) -> list[list[str]]:
    lines = [line for line in section(title).splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def words(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_command_and_option_is_there_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert [name for cells in rows("Commands") for name in words(cells[0])] == [*COMMANDS]
    for name in COMMANDS:
        assert main([name, "--help"]) == 0
        shown = set(re.findall(r"^  (?:-\w(?: [^\s,]+)?, )?(--[a-z-]+)", capsys.readouterr().out, re.MULTILINE))
        documented = {
            option
            for cells in rows("Options")
            for option in words(cells[0])
            if option.startswith("--") and (name in words(cells[1])) != cells[1].startswith("all")
        }
        assert shown - {"--help"} == documented, name


def test_every_exit_code_is_there() -> None:
    codes = [0, FOUND, USAGE, UNAVAILABLE, FAILED, INTERRUPTED]
    assert [int(words(cells[0])[0]) for cells in rows("Exit codes")] == codes


@pytest.mark.parametrize("version", VERSIONS)
def test_the_roles_are_valid(version: Any) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", section("Rights"), re.DOTALL)
    assert {kubernetes_validate.validate(one, version, strict=True) for one in yaml.safe_load_all(text)}


def test_links_lead_to_existing_files() -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", PAGE)
    assert links
    assert [link for link in links if not (Path(__file__).parents[2] / "docs" / link).exists()] == []

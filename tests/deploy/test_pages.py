"""The pages beside the runbooks: their links lead somewhere, and their commands parse."""

import re
import subprocess
import textwrap
from pathlib import Path

import pytest

from agent.cli.parser import parse_arguments
from tests.deploy.manifests import ROOT

NAMES = (
    "README.md",
    "SECURITY.md",
    "DESIGN.md",
    "CONTRIBUTING.md",
    "deploy/README.md",
    "docs/operations.md",
    "docs/release.md",
)
PAGES = [pytest.param(ROOT / name, id=name) for name in NAMES]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page, as GitHub names those of headings."""
    text = page.read_text()
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}
    return slugs | set(re.findall(r'id="([^"]+)"', text))


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    links = re.findall(r"\]\((?!https?://)([^)#]*)#?([^)]*)\)", page.read_text())
    for path, anchor in links:
        target = page.parent / path if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


@pytest.mark.parametrize("page", PAGES)
def test_the_parser_accepts_every_command_in_a_sentence(page: Path) -> None:
    for command in re.findall(r"`nodeleak ([a-z][^`|…]*)`", page.read_text()):
        parse_arguments(command.split())


@pytest.mark.parametrize("name", ["deploy/README.md", "docs/operations.md", "docs/release.md"])
def test_commands_can_be_pasted_as_they_are(name: str) -> None:
    found = re.findall(r"^( *)```(\w*)\n(.*?)^\1```", (ROOT / name).read_text(), re.MULTILINE | re.DOTALL)
    blocks = [textwrap.dedent(block) for _, language, block in found if not language]
    assert blocks
    for block in blocks:
        subprocess.run(["bash", "-n"], input=block, text=True, check=True)  # noqa: S607 (any bash)

"""Pages: links lead somewhere, commands parse and can be pasted, and each alert has its runbook."""

import re
import subprocess
import textwrap
import tomllib
from pathlib import Path
from typing import Final

from agent.cli.parser import parse_arguments
from tests.cli.commands import nodeleak
from tests.deploy.monitoring import ROOT, RUNBOOKS, known_metrics, rules

PAGES: Final = [
    *ROOT.glob("*.md"),
    *(path for place in ("docs", "deploy") for path in (ROOT / place).rglob("*.md")),
]
RUNBOOK_PAGES: Final = sorted(RUNBOOKS.glob("*.md"))
VERSION: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
_BLOCK: Final = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[str]:
    """Return the blocks of a page without a language: commands, and what they print."""
    return [
        textwrap.dedent(block)
        for _, language, block in _BLOCK.findall(page.read_text())
        if not language
    ]


def is_shell(block: str) -> bool:
    return block.startswith(("NODE=", "MODE=", "JOB=", "IMAGE=", "kubectl ", "amtool "))


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page, as GitHub names those of headings."""
    text = page.read_text()
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'id="([^"]+)"', text))


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    for page in PAGES:
        for path, anchor in re.findall(r"\]\((?!https?://)([^)#]*)#?([^)]*)\)", page.read_text()):
            target = page.parent / path if path else page
            assert target.exists(), f"{page}: {path}"
            assert not anchor or anchor in anchors(target), f"{page}: {path}#{anchor}"


def test_commands_can_be_pasted_and_the_parser_accepts_them() -> None:
    # In a block of shell, in a pod, or in a sentence.
    command = re.compile(
        r"^(?:\$ |.* -- )nodeleak ([^#|>`\n]+)|`nodeleak ([a-z][^`|…]*)`", re.MULTILINE
    )
    pages = [page for page in PAGES if page.name not in {"CHANGELOG.md", "proof.md"}]
    commands = [
        found
        for page in pages
        for pair in command.findall(page.read_text())
        if (found := "".join(pair))
    ]
    assert len(commands) > 40
    for words in commands:
        parse_arguments(words.replace("ADDRESS", "10.244.1.9").split())
    shell = [block for page in PAGES for block in blocks(page) if is_shell(block)]
    assert len(shell) > 50
    subprocess.run(["bash", "-n"], input="\n".join(shell), text=True, check=True)  # noqa: S607 (any bash)


def test_every_alert_has_a_section_in_a_runbook_of_its_version_and_runbooks_name_only_what_exists() -> (
    None
):
    index, alerts = (RUNBOOKS / "README.md").read_text(), set[str]()
    for rule in rules("alert"):
        base, _, file = rule["annotations"]["runbook_url"].rpartition("/")
        assert base.endswith(f"/blob/v{VERSION}/docs/runbooks"), base
        page, _, anchor = file.partition("#")
        assert f"\n## {rule['alert']}\n" in (RUNBOOKS / page).read_text(), file
        assert anchor == rule["alert"].lower()
        assert f"({file})" in index, file
        alerts.add(rule["alert"])
    pages = "".join(page.read_text() for page in RUNBOOK_PAGES)
    assert sorted(re.findall(r"^## (Nodeleak\w+)$", pages, re.MULTILINE)) == sorted(alerts)
    names = {rule["alert"] for rule in rules("alert")}
    for page in RUNBOOK_PAGES:
        text = page.read_text()
        assert (
            set(re.findall(r"\b(?:[a-z_]+:)?nodeleak_[a-z_]+(?::[a-z]+)?\b", text))
            <= known_metrics().keys()
        ), page
        assert set(re.findall(r"\bNodeleak[A-Z]\w+", text)) <= names, page
        for word in set(re.findall(r"nodeleak explain ([a-z_]+)", text)):
            assert nodeleak("explain", word).code == 0, f"{page}: {word}"


def test_the_audit_lists_every_request_to_a_runtime_and_its_command_finds_them() -> None:
    page = (ROOT / "docs/audit.md").read_text()
    section = page.partition("\n## Requests to runtimes\n")[2].partition("\n## ")[0]
    (command,) = (block for _, _, block in _BLOCK.findall(section))
    shell = ["bash", "-euc", command]
    shown = subprocess.run(shell, cwd=ROOT, capture_output=True, text=True, check=True).stdout  # noqa: S603 (ours)
    found = re.findall(r'calls?\("(\w+)"', shown)
    found += re.findall(r'"/containerd\.services\.([\w./]+)"', shown)
    rows = re.findall(r"^\| (?:every CRI.*|containerd) \| (.*) \|$", section, re.MULTILINE)
    assert sorted(found) == sorted(re.findall(r"`([^`]+)`", " ".join(rows)))
    by_http = (
        'request("GET", "/config")',
        "inspect_container(",
        'version="auto"',
        "/containers/json",
    )
    assert all(shown.count(request) == 1 for request in by_http)
    assert len(shown.splitlines()) == len(found) + len(by_http)

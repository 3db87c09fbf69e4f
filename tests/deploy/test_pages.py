"""Pages: links lead somewhere, commands parse and can be pasted, and each alert has its runbook."""

import re
import subprocess
import textwrap
from pathlib import Path
from typing import Final

from agent.cli.glossary import entries
from agent.cli.parser import parse_arguments
from tests.deploy.monitoring import ROOT, RUNBOOKS, known_metrics, rules

PAGES: Final = [*ROOT.glob("*.md"), *(path for place in ("docs", "deploy") for path in (ROOT / place).rglob("*.md"))]
ALERT_PAGES: Final = sorted(RUNBOOKS.glob("Nodeleak*.md"))
_BLOCK: Final = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[str]:
    """Return the blocks of a page without a language: commands, and what they print."""
    return [textwrap.dedent(block) for _, language, block in _BLOCK.findall(page.read_text()) if not language]


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


def test_the_parser_accepts_every_command() -> None:
    # In a block of shell, in a pod, or in a sentence.
    command = re.compile(r"^(?:\$ |.* -- )nodeleak ([^#|>`\n]+)|`nodeleak ([a-z][^`|…]*)`", re.MULTILINE)
    pages = [page for page in PAGES if page.name not in {"CHANGELOG.md", "proof.md"}]
    commands = [found for page in pages for pair in command.findall(page.read_text()) if (found := "".join(pair))]
    assert len(commands) > 100
    for words in commands:
        parse_arguments(words.split())


def test_commands_can_be_pasted_as_they_are() -> None:
    shell = [block for page in PAGES for block in blocks(page) if is_shell(block)]
    assert len(shell) > 50
    subprocess.run(["bash", "-n"], input="\n".join(shell), text=True, check=True)  # noqa: S607 (any bash)


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    assert [page.stem for page in ALERT_PAGES] == sorted({rule["alert"] for rule in rules("alert")})
    for rule in rules("alert"):
        page = ROOT / re.sub(r".*/blob/main/", "", rule["annotations"]["runbook_url"])
        assert page in ALERT_PAGES, rule["annotations"]["runbook_url"]
        assert f"({page.name})" in (page.parent / "README.md").read_text()


def test_runbooks_name_only_metrics_alerts_and_words_that_exist() -> None:
    names, words = {page.stem for page in ALERT_PAGES}, {entry.word for entry in entries()}
    for page in ALERT_PAGES:
        text = page.read_text()
        assert set(re.findall(r"\b(?:[a-z_]+:)?nodeleak_[a-z_]+(?::[a-z]+)?\b", text)) <= known_metrics().keys(), page
        assert set(re.findall(r"\bNodeleak[A-Z]\w+", text)) <= names, page
        assert set(re.findall(r"nodeleak explain ([a-z_]+)", text)) <= words, page


def test_a_runbook_sets_the_variables_that_it_uses() -> None:
    for page in ALERT_PAGES:
        text = page.read_text()
        assert any(map(is_shell, blocks(page))), page
        assert set(re.findall(r"\$([A-Z]+)\b", text)) <= set(re.findall(r"^ *([A-Z]+)=", text, re.MULTILINE)), page
        # With a selector, `kubectl logs` shows the last ten lines of each pod unless --tail is given.
        logs = re.findall(r"^ *kubectl .*\blogs .*$", text, re.MULTILINE)
        assert [command for command in logs if "--tail=" not in command] == [], page

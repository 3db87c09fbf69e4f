"""Runbooks: one page per alert, complete by itself, with commands that work."""

import re
import subprocess
import textwrap
from pathlib import Path

import pytest

from agent.cli.glossary import entries
from agent.cli.parser import parse_arguments
from tests.deploy.monitoring import RUNBOOKS, alerts, known_metrics
from tests.e2e.transcript import steps_of

INDEX = RUNBOOKS / "README.md"
PAGES = sorted(page for page in RUNBOOKS.glob("*.md") if page != INDEX)
ALERTS = [page.stem for page in PAGES]
ALL = [pytest.param(page, id=page.stem) for page in (*PAGES, INDEX)]
COMMAND = re.compile(r"-- nodeleak ([^#|>`\n]+)|`nodeleak ([^`]+)`")
BLOCK = re.compile(r"^ *```\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
HEADINGS = [
    "What it means",
    "Urgency",
    "Diagnosis",
    "What to do",
    "If that is not allowed",
    "What not to do",
    "When to escalate",
]


def text_of(name: str) -> str:
    return (RUNBOOKS / f"{name}.md").read_text()


def blocks(text: str) -> list[str]:
    return [textwrap.dedent(block) for block in BLOCK.findall(text)]


def is_shell(block: str) -> bool:
    return block.startswith(("NODE=", "MODE=", "JOB=", "kubectl ", "amtool "))


def test_every_alert_has_a_page_and_every_page_an_alert() -> None:
    assert sorted({rule.alert for rule in alerts()}) == ALERTS


@pytest.mark.parametrize("name", ALERTS)
def test_a_page_has_all_sections_and_none_is_empty(name: str) -> None:
    prose = BLOCK.sub("a code block\n", text_of(name))
    title, *parts = re.split(r"^#+ (.+)\n", prose, flags=re.MULTILINE)[1:]
    assert title == name
    assert parts[1::2] == HEADINGS
    assert all(text.strip() for text in parts[2::2])


def test_the_index_lists_every_alert_with_its_severities_and_a_sentence() -> None:
    rows = re.findall(r"^\| \[(\w+)\]\(\1\.md\) \| ([a-z, ]+) \| (.+) \|$", INDEX.read_text(), re.MULTILINE)
    expected: dict[str, list[str]] = {}
    for rule in alerts():
        expected.setdefault(rule.alert, []).append(rule.severity)
    assert [(name, severities.split(", ")) for name, severities, _ in rows] == list(expected.items())
    assert len({sentence for _, _, sentence in rows}) == len(rows)


@pytest.mark.parametrize("page", ALL)
def test_a_page_refers_only_to_what_exists(page: Path) -> None:
    text, known = page.read_text(), known_metrics()
    assert [
        name for name in re.findall(r"\b(?:[a-z_]+:)?nodeleak_[a-z_]+(?::[a-z]+)?\b", text) if name not in known
    ] == []
    assert [link for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", text) if not (RUNBOOKS / link).exists()] == []
    assert set(re.findall(r"\bNodeleak[A-Z]\w+", text)) <= set(ALERTS)
    assert set(re.findall(r"nodeleak explain ([a-z_]+)", text)) <= {entry.word for entry in entries()}


@pytest.mark.parametrize("page", ALL)
def test_the_parser_accepts_every_nodeleak_command(page: Path) -> None:
    for in_a_pod, inline in COMMAND.findall(page.read_text()):
        parse_arguments((in_a_pod or inline).split())


@pytest.mark.parametrize("name", ALERTS)
def test_commands_can_be_pasted_as_they_are(name: str) -> None:
    shell = [block for block in blocks(text_of(name)) if is_shell(block)]
    assert shell
    for block in shell:
        subprocess.run(["bash", "-n"], input=block, text=True, check=True)  # noqa: S607 (any bash)


@pytest.mark.parametrize("name", ALERTS)
def test_a_page_sets_the_variables_that_it_uses_and_needs_no_function(name: str) -> None:
    text = text_of(name)
    used = set(re.findall(r"\$([A-Z]+)\b", text))
    assert used <= set(re.findall(r"^ *([A-Z]+)=", text, re.MULTILINE))
    assert [line for line in text.splitlines() if re.match(r" *agent [a-z]|.*`agent [a-z]", line)] == []


@pytest.mark.parametrize("page", ALL)
def test_logs_are_searched_from_the_start(page: Path) -> None:
    # With a selector, `kubectl logs` shows the last ten lines of each pod unless --tail is given.
    logs = re.findall(r"^ *kubectl .*\blogs .*$", page.read_text(), re.MULTILINE)
    assert [command for command in logs if "--tail=" not in command] == []


@pytest.mark.parametrize("section", ["A node with docker", "A node with containerd"])
def test_the_way_from_the_alert_to_the_fix_takes_eight_commands_of_its_runbook(section: str) -> None:
    document = (RUNBOOKS.parent / "from-alert-to-fix.md").read_text()
    commands = [re.sub("^NODE=.*", "NODE=worker-1", step.command) for step in steps_of(document, section)]
    assert 0 < len(commands) <= 8
    assert set(commands) <= set("".join(blocks(text_of("NodeleakLeakedAddresses"))).splitlines())

"""Runbooks: a page for each alert, none too many, and nothing in them that does not exist."""

import re
from pathlib import Path

import pytest

from agent.cli.parser import parse
from tests.deploy.monitoring import RUNBOOKS, VALUES, alerts, told

INDEX = RUNBOOKS / "README.md"
PAGES = sorted(page for page in RUNBOOKS.glob("*.md") if page != INDEX)
ALL = [pytest.param(page, id=page.stem) for page in (*PAGES, INDEX)]
COMMAND = re.compile(r"^agent ([a-z].*?)(?: +#.*)?$|`agent ([a-z][^`]*)`", re.MULTILINE)
HEADINGS = ["What it means", "How to see it", "What to do", "What not to do"]


def test_every_alert_has_a_page_and_every_page_an_alert() -> None:
    assert [page.stem for page in PAGES] == sorted({rule.alert for rule in alerts()})


@pytest.mark.parametrize("name", [page.stem for page in PAGES])
def test_a_page_has_its_headings_and_something_under_each(name: str) -> None:
    title, *parts = re.split(r"^#+ (.+)\n", (RUNBOOKS / f"{name}.md").read_text(), flags=re.MULTILINE)[1:]
    assert title == name
    assert parts[1::2] == HEADINGS
    assert all(text.strip() for text in parts[2::2])


def test_the_index_has_every_alert_with_its_severities_and_what_it_says() -> None:
    rows = re.findall(r"^\| \[(\w+)\]\(\1\.md\) \| ([a-z, ]+) \| (.+) \|$", INDEX.read_text(), re.MULTILINE)
    expected: dict[str, tuple[list[str], str]] = {}
    for rule in alerts():
        severities, _ = expected.setdefault(rule.alert, ([], rule.annotations["summary"]))
        severities.append(rule.severity)
    assert len(rows) == len(expected)
    # A page of several alerts is listed with the words of the first.
    assert {name: (severities.split(", "), f"{says}.") for name, severities, says in rows} == expected


@pytest.mark.parametrize("page", ALL)
def test_a_page_names_what_there_is(page: Path) -> None:
    text, known = page.read_text(), told()
    assert [name for name in re.findall(r"\bnodeleak_[a-z_]+\b", text) if name not in known] == []
    assert [link for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", text) if not (RUNBOOKS / link).exists()] == []
    assert set(re.findall(r"\bNodeleak[A-Z]\w+", text)) <= {one.stem for one in PAGES}
    assert set(re.findall(r"agent explain ([a-z_]+)", text)) <= VALUES["detector"]


@pytest.mark.parametrize("page", ALL)
def test_a_command_on_a_page_is_one_that_the_agent_takes(page: Path) -> None:
    for by_itself, in_a_sentence in COMMAND.findall(page.read_text()):
        parse((by_itself or in_a_sentence).split())


@pytest.mark.parametrize("page", ALL)
def test_logs_that_are_searched_are_whole(page: Path) -> None:
    # With a selector, `kubectl logs` shows the last ten lines of each pod unless it is told how many.
    asked = re.findall(r"^kubectl .*\blogs -l .*$", page.read_text(), re.MULTILINE)
    assert [command for command in asked if "--tail=" not in command] == []


def test_pages_have_commands_to_take() -> None:
    assert sum(len(COMMAND.findall(page.read_text())) for page in PAGES) > len(PAGES)

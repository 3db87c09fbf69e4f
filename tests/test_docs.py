"""Docs that tests can fail: the tables of docs/reference.md are compared with the code."""

import inspect
import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from agent import cli
from agent.config import BUG, DEFAULT_CONFIRM, knobs, option
from agent.detectors import DETECTORS
from agent.exporters.metrics import MetricsExporter
from agent.model.finding import Cause
from agent.model.scene import State
from agent.model.snapshot import SOURCES
from tests.exporters.test_metrics import CLOSED

ROOT = Path(__file__).parent.parent
REFERENCE = (ROOT / "docs" / "reference.md").read_text()


def section(title: str) -> str:
    parts = re.split(r"^## (.+)$", REFERENCE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))[title]


def rows(title: str) -> dict[str, list[str]]:
    """Return a section's table, by the name in its first column."""
    found: dict[str, list[str]] = {}
    for line in section(title).splitlines():
        if matched := re.match(r"\| `([^`]+)` \|(.*)\|$", line):
            assert matched[1] not in found, f"{matched[1]} is there twice"
            found[matched[1]] = [cell.strip() for cell in re.split(r"(?<!\\)\|", matched[2])]
    return found


def words(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def base(sample: str) -> str:
    return re.sub(r"_(bucket|count|sum)$", "", sample)


def test_every_detector_is_in_the_reference_and_no_other() -> None:
    assert list(rows("Detectors")) == [detector.NAME for detector in DETECTORS]


def test_every_cause_is_in_the_reference() -> None:
    assert {cause.value for cause in Cause} <= set(words(section("Detectors")))


def test_what_a_detector_needs_are_sources() -> None:
    for name, cells in rows("Detectors").items():
        assert re.search("|".join(SOURCES), cells[-1]), name


def test_every_state_is_in_the_reference_and_no_other() -> None:
    assert list(rows("States")) == [state.value for state in State]


def test_every_source_is_in_the_reference_and_no_other() -> None:
    assert set(rows("Sources")) == set(SOURCES)


def test_every_metric_is_in_the_reference_with_its_labels_and_no_other() -> None:
    told = {name: set(words(cells[1])) for name, cells in rows("Metrics").items()}
    assert told == {base(name): labels - {"le"} for name, labels in CLOSED.items()}


def test_every_metric_has_the_type_that_the_reference_says() -> None:
    registry = CollectorRegistry()
    MetricsExporter(registry, ["kubenet"], "observe", [])
    types = {family.name: family.type for family in registry.collect()}
    for name, cells in rows("Metrics").items():
        kind = types.get(name.removesuffix("_total"), "gauge")
        assert cells[0] == kind, name


def test_every_setting_is_in_the_reference_with_its_default_and_its_commands() -> None:
    told = rows("Settings")
    settings = knobs("run")
    assert list(told) == [option(name) for name in settings]
    for name, knob in settings.items():
        default, commands = told[option(name)][:2]
        expected = [DEFAULT_CONFIRM["scan"], "run", DEFAULT_CONFIRM["run"]] if name == "confirm" else [knob.default]
        assert words(default.replace(": `", "` `")) == [one for one in expected if one] or words(default) == [
            one for one in expected if one
        ], name
        assert {word.strip() for word in commands.split(",")} == set(knob.commands), name


def test_every_exit_code_is_in_the_reference_and_no_other() -> None:
    assert list(rows("Exit codes")) == [str(code) for code in (cli.DONE, cli.FOUND, cli.USAGE, cli.UNREAD, BUG)]


def test_the_example_of_the_document_has_its_keys() -> None:
    from agent.exporters import document  # noqa: PLC0415

    drawn = set(re.findall(r'"(\w+)": ', inspect.getsource(document)))
    example = set(re.findall(r'"(\w+)":', section("`nodeleak.scan/v1`"))) - {state.value for state in State}
    assert example == drawn


@pytest.mark.parametrize("name", ["README.md", "DESIGN.md", "CONTRIBUTING.md", "docs/reference.md"])
def test_what_a_page_links_to_is_there(name: str) -> None:
    page = ROOT / name
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_design_fits_on_one_page() -> None:
    assert len((ROOT / "DESIGN.md").read_text().splitlines()) < 200

"""Docs that tests can fail: the tables of docs/reference.md are compared with the code."""

import inspect
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from agent.app import daemon
from agent.app.daemon import MODES
from agent.checks.registry import DETECTORS
from agent.cleanup.journal import RESERVATION, Entry, FileImage, Journal
from agent.cli import exit_codes
from agent.cli.glossary import entries
from agent.config import BUG, DEFAULT_CONFIRM_AFTER, option, settings_of
from agent.exporters import log
from agent.exporters import timeline as merged
from agent.exporters.json import clean, scan, timeline
from agent.exporters.metrics import CLEAN, MetricsExporter
from agent.exporters.metrics_devices import MOST_RESOURCES, OTHER, UNKNOWN_RESOURCE
from agent.exporters.range_map import MOST_SINGLE, WEIGHT, Mark
from agent.exporters.text.map import LETTERS
from agent.exporters.timeline import EventKind
from agent.exporters.web.server import LINKS
from agent.kube_events import condition, messages, queue
from agent.kube_events.metrics import SENT, DeliveryMetrics
from agent.model import rejections
from agent.model.assessment import State
from agent.model.finding import Gap, LeakCause, Severity
from agent.model.release import MISSED, BlockedBy, PassedOver, Reason, Verdict
from agent.model.snapshot import ADDRESS_PRESSURE, SOURCES, Unavailable
from agent.model.status import NodeState
from tests.builders import NOW, device_plugins, node, registered, reservation, scanned, without
from tests.exporters.cleanings import CANDIDATE, cleaning, refused, released
from tests.exporters.test_metrics import CLOSED
from tests.model.test_status import GOOD

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


def test_every_cause_and_outcome_is_in_the_reference() -> None:
    documented = {one.value for kind in (LeakCause, rejections.RejectionCause, rejections.PodOutcome) for one in kind}
    assert documented <= set(words(section("Detectors")))


def test_every_severity_is_in_the_reference() -> None:
    assert {one.value for one in Severity} <= set(words(section("Detectors")))


def test_every_detector_is_in_the_readme_and_no_other() -> None:
    readme = (ROOT / "README.md").read_text()
    documented = re.findall(
        r"^\| `(\w+)` \|", readme.partition("## What it finds")[2].partition("\n## ")[0], re.MULTILINE
    )
    assert documented == [detector.NAME for detector in DETECTORS]


def test_the_required_sources_of_a_detector_exist() -> None:
    for name, cells in rows("Detectors").items():
        assert re.search("|".join(SOURCES), cells[-1]), name


def test_every_state_is_in_the_reference_and_no_other() -> None:
    assert list(rows("States")) == [state.value for state in State]


def test_every_state_of_a_node_is_in_the_reference_and_no_other() -> None:
    assert list(rows("`nodeleak.status/v1`")) == [state.value for state in NodeState]


def test_every_source_is_in_the_reference_and_no_other() -> None:
    assert set(rows("Sources")) == set(SOURCES)


def test_every_metric_is_in_the_reference_with_its_labels_and_no_other() -> None:
    documented = {name: set(words(cells[1])) for name, cells in rows("Metrics").items()}
    assert documented == {base(name): labels - {"le"} for name, labels in CLOSED.items()}


def test_every_metric_has_the_type_that_the_reference_says() -> None:
    registry = CollectorRegistry()
    MetricsExporter(registry, ["kubenet"], CLEAN, [])
    DeliveryMetrics(registry)
    types = {family.name: family.type for family in registry.collect()}
    for name, cells in rows("Metrics").items():
        kind = types.get(name.removesuffix("_total"), "gauge")
        assert cells[0] == kind, name


def test_every_setting_is_in_the_reference_with_its_default_and_its_commands() -> None:
    documented = rows("Settings")
    settings = settings_of("run")
    assert not any(
        set(settings_of(command)) - set(settings)
        for command in ("scan", "record", "clean", "restore", "resume", "journal")
    )
    assert list(documented) == [option(name) for name in settings]
    for name, setting in settings.items():
        default, commands = documented[option(name)][:2]
        if name == "confirm_after":
            assert default == "`{scan}` (`clean`: `{clean}`, `run`: `{run}`)".format_map(DEFAULT_CONFIRM_AFTER)
        else:
            assert words(default) == [one for one in [setting.default] if one], name
        assert {word.strip() for word in commands.split(",")} == set(setting.commands), name


def test_every_exit_code_is_in_the_reference_and_no_other() -> None:
    codes = {code for name, code in vars(exit_codes).items() if name.isupper()}
    assert list(rows("Exit codes")) == [str(code) for code in sorted({*codes, BUG})]


def test_every_reason_is_in_the_reference() -> None:
    assert set(rows("Guards")) == {reason.value for reason in Reason}


def test_explain_says_of_every_reason_which_setting_lifts_it() -> None:
    documented = {reason: set(re.findall(r"`(--[a-z-]+)`", cells[-1])) for reason, cells in rows("Guards").items()}
    texts = {entry.word: entry.text for entry in entries() if entry.kind.startswith("reason")}
    lifted_by = {reason: text.partition("\nLifted by: ")[2] for reason, text in texts.items()}
    assert [reason for reason, text in lifted_by.items() if not text] == []
    assert documented == {
        reason: set() if text.startswith("nothing.") else set(re.findall(r"--[a-z-]+", text))
        for reason, text in lifted_by.items()
    }


def test_every_blocker_is_in_the_reference_and_no_other() -> None:
    assert list(rows("Blockers")) == [one.value for one in BlockedBy]


def test_every_verdict_is_in_the_reference_and_no_other() -> None:
    assert list(rows("Verdicts")) == [verdict.value for verdict in Verdict]


def test_sources_that_may_be_missing_are_in_the_reference() -> None:
    reasons = words(rows("Metrics")["nodeleak_release_failures_total"][2])
    assert [verdict.value for verdict in MISSED] == reasons


def test_every_event_of_the_timeline_is_in_the_reference_in_its_order_with_its_source() -> None:
    documented = rows("Timeline")
    assert list(documented) == [kind.value for kind in EventKind]
    assert {cells[-1] for cells in documented.values()} <= {*SOURCES, "journal"}


def test_every_mark_of_the_map_is_in_the_reference_by_weight_with_its_letter() -> None:
    documented = rows("The map")
    assert list(documented) == [mark.value for mark in sorted(Mark, key=WEIGHT.__getitem__, reverse=True)]
    assert {mark: cells[0].strip("`") for mark, cells in documented.items()} == LETTERS
    assert f"up to {MOST_SINGLE} addresses" in section("The map")


def test_every_http_path_is_in_the_reference() -> None:
    assert list(rows("HTTP")) == ["/", *LINKS]


def test_the_limit_of_resources_is_in_the_reference() -> None:
    assert f"the first {MOST_RESOURCES}\nnames" in section("Metrics")
    assert {OTHER, UNKNOWN_RESOURCE} <= set(words(section("Metrics")))


def test_every_mode_is_in_the_reference() -> None:
    assert set(MODES.values()) <= set(words(rows("Metrics")["nodeleak_mode_info"][2]))


def test_every_event_of_the_log_is_in_the_reference_with_its_level_and_no_other() -> None:
    source = inspect.getsource(log) + inspect.getsource(daemon)
    documented = {event: level for level, event in re.findall(r'log\.(\w+)\(\s*"([a-z_]+\.[a-z_]+)"', source)}
    assert {event: cells[0] for event, cells in rows("Log").items()} == documented


def test_reasons_for_dropped_events_and_failed_patches_are_in_the_reference() -> None:
    documented = rows("Metrics")
    assert set(words(documented["nodeleak_events_dropped_total"][2])) == {one.value for one in queue.Failure}
    assert words(documented["nodeleak_node_condition_patches_total"][2]) == [SENT]


def test_every_reason_of_an_event_and_of_the_condition_is_in_the_reference() -> None:
    documented = set(words(section("Events")))
    assert {messages.RELEASED, messages.reason("leaked_reservation"), messages.reason("rejected_pod")} <= documented
    assert {
        condition.AVAILABLE,
        condition.SCARCE,
        condition.EXHAUSTED,
        condition.UNKNOWN,
        ADDRESS_PRESSURE,
    } <= documented


@pytest.mark.parametrize("command", ["scan", "status", "timeline", "record", "clean", "restore", "resume", "journal"])
def test_options_without_a_variable_are_in_the_reference(command: str) -> None:
    documented = {
        name
        for commands, names in re.findall(r"^\| (`[^|]+`) \| (`--[^|]+`) \|", section("Options"), re.MULTILINE)
        if command in words(commands)
        for name in words(names)
    }
    page = subprocess.run(  # noqa: S603 (ours)
        [sys.executable, "-m", "agent", command, "--help-all"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    options = set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", page, re.MULTILINE))
    settings = settings_of("scan" if command == "timeline" else command)
    assert documented == options - {option(name) for name in settings} - {"--help", "--help-all"}


# The documents

FILE = FileImage(RESERVATION, "kubenet", "10.244.1.9", b"", 0o644, 0, 0, 7, 0)
KNOWN = device_plugins(registered())
DRAWN: dict[str, Any] = {
    "nodeleak.clean/v1": clean.clean_document(
        cleaning(
            released(),
            refused(CANDIDATE),
            passed_over=(PassedOver("10.9.9.9", "not reserved"),),
            unavailable=(Unavailable("containers", "it gave no word"),),
        )
    ),
    "nodeleak.journal/v1": clean.journal_document(Journal((Entry("e", NOW, "run", "", "", (FILE,)),))),
    "nodeleak.timeline/v1": timeline.timeline_document(
        merged.Timeline(
            "worker-1",
            NOW,
            (merged.Event(NOW, False, EventKind.REJECTED, "shop/cart", "the pod was refused", "pods"),),
            unavailable=(Unavailable("pods", "it gave no word"),),
        )
    ),
    "nodeleak.status/v1": GOOD,
    "nodeleak.scan/v1": scan.scan_document(
        replace(
            scanned(node(reservation("10.244.1.9"))),
            assessment=scanned(without(node(reservation("10.244.1.9"), device_plugins=KNOWN), "pods")).assessment,
            gaps=(Gap("shared_ip", "it gave no word"),),
        )
    ),
}


def keys(tree: Any) -> set[str]:
    if isinstance(tree, list):
        return set().union(*map(keys, tree))
    return set(tree).union(*map(keys, tree.values())) if isinstance(tree, dict) else set()


@pytest.mark.parametrize("schema", DRAWN)
def test_the_example_document_has_all_keys(schema: str) -> None:
    (example,) = re.findall(r"```json\n(.*?)```", section(f"`{schema}`"), re.DOTALL)
    tree = json.loads(example)
    assert tree["schema"] == schema
    assert keys(tree) == keys(DRAWN[schema])


@pytest.mark.parametrize("name", ["README.md", "DESIGN.md", "CONTRIBUTING.md", "docs/reference.md"])
def test_links_of_a_page_lead_to_existing_files(name: str) -> None:
    page = ROOT / name
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_design_fits_on_one_page() -> None:
    assert len((ROOT / "DESIGN.md").read_text().splitlines()) < 200

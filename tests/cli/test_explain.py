"""explain: every word that nodeleak prints."""

import re
from enum import StrEnum
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from agent.checks.registry import DETECTORS
from agent.cli import glossary, main
from agent.cli.exit_codes import DONE, USAGE
from agent.config import settings_of
from agent.kube_events import condition, messages
from agent.model.assessment import State
from agent.model.finding import LeakCause, Severity
from agent.model.rejections import PodOutcome, RejectionCause
from agent.model.release import Reason, Verdict
from agent.model.snapshot import ADDRESS_PRESSURE, SOURCES
from agent.model.status import NodeState
from agent.model.volumes import Confidence
from tests.exporters.test_metrics import CLOSED

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules.yaml"
ENUMS = (State, LeakCause, Severity, RejectionCause, PodOutcome, Reason, Verdict, Confidence, NodeState)


def alerts() -> set[str]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}


def words(kind: str) -> set[str]:
    return {entry.word for entry in glossary.entries() if entry.kind == kind}


@pytest.mark.parametrize("enum", ENUMS, ids=lambda enum: enum.__name__)
def test_every_member_of_an_enum_is_explained(enum: type[StrEnum]) -> None:
    kinds = {entry.kind for entry in glossary.entries()}
    assert [kind for kind in kinds if words(kind) == {member.value for member in enum}], "exactly its members"


def test_every_detector_is_explained_with_what_it_means_and_what_to_do() -> None:
    pages = {entry.word: entry.text for entry in glossary.entries() if entry.kind == glossary.FINDING}
    assert list(pages) == [detector.NAME for detector in DETECTORS]
    for page in pages.values():
        assert "\nMeans: " in page
        assert "\nDo: " in page


def test_every_alert_is_explained_with_what_to_run() -> None:
    assert words(glossary.ALERT) == alerts()
    assert all("\nRun: " in text for text in glossary.ALERTS.values())


@pytest.mark.parametrize("text", glossary.ALERTS.values(), ids=glossary.ALERTS)
def test_an_alert_names_only_words_that_can_be_explained(text: str) -> None:
    known = {entry.word for entry in glossary.entries()}
    assert set(re.findall(r"nodeleak explain (\w+)", text)) <= known


def test_every_metric_is_explained() -> None:
    assert words(glossary.METRIC) == {re.sub(r"_(bucket|count|sum)$", "", sample) for sample in CLOSED}


def test_every_source_is_explained() -> None:
    assert words(glossary.SOURCE) == {*SOURCES, "journal"}


def test_every_source_that_can_be_unavailable_is_explained_with_what_to_do() -> None:
    pages = {entry.word: entry.text for entry in glossary.entries() if entry.kind == glossary.SOURCE}
    assert [word for word, page in pages.items() if "\nDo: " not in page] == ["runtimes", "registration"]


def test_conditions_and_reasons_of_events_are_explained() -> None:
    reasons = {condition.AVAILABLE, condition.SCARCE, condition.EXHAUSTED, condition.UNKNOWN, messages.RELEASED}
    assert set(glossary.CLUSTER) == {ADDRESS_PRESSURE, *reasons}


def test_every_setting_is_explained() -> None:
    assert words(glossary.SETTING) == set(settings_of("run"))


@pytest.mark.parametrize(
    ("word", "starts"),
    [
        ("leaked_reservation", "leaked_reservation (finding)\n\n"),
        ("LeakedReservation", "leaked_reservation (finding)\n\n"),
        ("outside_range", "outside_range (reason why clean refuses an address)\n\n"),
        ("gone", "gone (result of clean for an address)\n\n"),
        ("leaked-reservation", "leaked_reservation (finding)\n\n"),
        ("nodeleakrangeexhausted", "NodeleakRangeExhausted (alert)\n\n"),
        ("nodeleak_sync_seconds_bucket", "nodeleak_sync_seconds (metric)\n\n"),
        ("lock-timeout", "lock_timeout (setting)\n\n"),
        ("NODELEAK_LOCK_TIMEOUT", "lock_timeout (setting)\n\n"),
    ],
)
def test_a_word_is_found_however_it_is_written(word: str, starts: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", word]) == DONE
    assert capsys.readouterr().out.startswith(starts)


def test_a_word_with_several_meanings_has_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "unknown"]) == DONE
    page = capsys.readouterr().out
    assert "unknown (state of a reservation)" in page
    assert "unknown (likely cause of a leak)" in page


def test_without_a_word_it_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == DONE
    page = capsys.readouterr().out
    listed = set(re.findall(r"\w+", page))
    assert {entry.word for entry in glossary.entries() if entry.kind != glossary.SETTING} <= listed
    assert len(page.splitlines()) < 115


def test_an_unknown_word_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "leaked_reservations"]) == USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        'nodeleak: unknown word "leaked_reservations": did you mean "leaked_reservation"?\n'
        "run 'nodeleak explain' for a list of all words\n"
    )


def test_a_word_like_no_other_has_no_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "\x1b[2J"]) == USAGE
    error = capsys.readouterr().err
    assert "did you mean" not in error
    assert "\x1b" not in error

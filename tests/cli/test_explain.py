"""explain: every word that nodeleak prints."""

import re
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
from tests.deploy.monitoring import known_metrics

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules.yaml"
ENUMS = (State, LeakCause, Severity, RejectionCause, PodOutcome, Reason, Verdict, Confidence, NodeState)


def alerts() -> set[str]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}


def words(kind: str) -> set[str]:
    return {entry.word for entry in glossary.entries() if entry.kind == kind}


def test_every_word_is_explained() -> None:
    kinds = [words(kind) for kind in {entry.kind for entry in glossary.entries()}]
    for enum in ENUMS:
        assert {member.value for member in enum} in kinds, enum
    assert words(glossary.ALERT) == alerts()
    assert words(glossary.METRIC) == {
        re.sub(r"_(bucket|count|sum)$", "", sample) for sample in known_metrics() if sample.startswith("nodeleak_")
    }
    assert words(glossary.SOURCE) == {*SOURCES, "journal"}
    assert words(glossary.SETTING) == set(settings_of("run"))
    reasons = {condition.AVAILABLE, condition.SCARCE, condition.EXHAUSTED, condition.UNKNOWN, messages.RELEASED}
    assert {ADDRESS_PRESSURE, *reasons} in kinds


def test_what_to_do_is_said() -> None:
    findings = {entry.word: entry.text for entry in glossary.entries() if entry.kind == glossary.FINDING}
    assert list(findings) == [detector.NAME for detector in DETECTORS]
    assert [word for word, page in findings.items() if not ("\nMeans: " in page and "\nDo: " in page)] == []
    found = {entry.word: entry.text for entry in glossary.entries() if entry.kind == glossary.ALERT}
    assert [word for word, page in found.items() if "\nRun: " not in page] == []
    known = {entry.word for entry in glossary.entries()}
    assert {word for page in found.values() for word in re.findall(r"nodeleak explain (\w+)", page)} <= known
    sources = {entry.word: entry.text for entry in glossary.entries() if entry.kind == glossary.SOURCE}
    assert [word for word, page in sources.items() if "\nDo: " not in page] == ["runtimes", "registration"]


def test_a_word_is_found_however_it_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    for word, starts in {
        "leaked_reservation": "leaked_reservation (finding)\n\n",
        "LeakedReservation": "leaked_reservation (finding)\n\n",
        "outside_range": "outside_range (reason why clean refuses an address)\n\n",
        "gone": "gone (result of clean for an address)\n\n",
        "leaked-reservation": "leaked_reservation (finding)\n\n",
        "nodeleakrangeexhausted": "NodeleakRangeExhausted (alert)\n\n",
        "nodeleak_sync_seconds_bucket": "nodeleak_sync_seconds (metric)\n\n",
        "lock-timeout": "lock_timeout (setting)\n\n",
        "NODELEAK_LOCK_TIMEOUT": "lock_timeout (setting)\n\n",
    }.items():
        assert main(["explain", word]) == DONE
        assert capsys.readouterr().out.startswith(starts)


def test_a_word_with_several_meanings_has_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "unknown"]) == DONE
    page = capsys.readouterr().out
    assert "unknown (state of a reservation)" in page
    assert "unknown (likely cause of a leak)" in page


def test_a_message_of_another_program_leads_to_the_word_that_explains_it(capsys: pytest.CaptureFixture[str]) -> None:
    for message, word in {
        "no IP addresses available in range set": "NodeleakRangeExhausted (alert)",
        'plugin type="bridge" failed (add): failed to allocate for range 0: no IP addresses': "NodeleakRangeExhausted",
        'failed to find plugin "loopback" in path [/opt/cni/bin]': "failing_plugin (finding)",
        "UnexpectedAdmissionError": "rejected_pod (finding)",
        "Volume not attached according to node status for volume": "detached_volume (finding)",
    }.items():
        assert main(["explain", message]) == DONE
        assert capsys.readouterr().out.startswith(word)
    assert {glossary.MESSAGES[message] for message in glossary.MESSAGES} <= {entry.word for entry in glossary.entries()}
    assert main(["explain", "Multi-Attach error"]) == USAGE, "it is not what a lost volume looks like"


def test_without_a_word_it_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == DONE
    page = capsys.readouterr().out
    listed = set(re.findall(r"[\w-]+", page))
    assert {entry.word for entry in glossary.entries() if entry.kind != glossary.SETTING} <= listed
    assert len(page.splitlines()) < 120


def test_an_unknown_word_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "leaked_reservations"]) == USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        'nodeleak: unknown word "leaked_reservations": did you mean "leaked_reservation"?\n'
        "run 'nodeleak explain' for a list of all words\n"
    )

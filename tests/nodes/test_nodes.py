"""The diagnosis of each recorded node is the one in the file next to it."""

import json
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

from agent.cli.anonymize import anonymous
from agent.model.documents import dumps, loads
from tests.cli.commands import nodeleak

NODES = sorted(Path(__file__).parent.glob("*.json"))

NOT_YET = "the snapshot was taken by a version that did not read it"
"""The reason of a source that is newer than the recording."""


def document(recording: str) -> Any:
    """Return the report as JSON, and whether it is complete."""
    done = nodeleak("scan", "--recording=-", "--output=json", given=recording)
    return json.loads(done.out) | {"complete": done.code == 0}


def counts(network: dict[str, Any]) -> dict[str, int]:
    states = {state: count for state, count in (network["states"] or {}).items() if count}
    return {
        "usable": network["usable"],
        "reserved": network["reserved"],
        "free": network["free"],
        **states,
    }


def diagnosis(tree: Any) -> dict[str, Any]:
    told = ("detector", "subject", "cause", "pod", "resource", "pod_outcome", "strength")
    return {
        **{network["name"]: counts(network) for network in tree["networks"]},
        "complete": tree["complete"],
        "findings": sorted(
            " ".join(finding[key] for key in told if finding[key]) for finding in tree["findings"]
        ),
        "unavailable": [source["source"] for source in tree["unavailable"]],
        "insufficient_data": sorted(
            gap["detector"] for gap in tree["insufficient_data"] if not gap["why"].endswith(NOT_YET)
        ),
    }


def test_the_diagnosis_is_the_expected_one() -> None:
    assert len(NODES) >= 40
    for path in NODES:
        expected = tomllib.loads(path.with_suffix(".toml").read_text())
        says, recording = expected.pop("says"), path.read_text()
        tree = document(recording)
        assert diagnosis(tree) == {"unavailable": [], "insufficient_data": []} | expected, path.stem
        # A long message is broken into lines, and has one for each of its clauses.
        said = nodeleak("scan", "--recording=-", given=recording).said
        messages = (f"({one['severity']}) {one['message']}" for one in tree["findings"])
        text = " ".join([said, *messages])
        assert [words for words in says if words not in text] == [], path.stem
        leaked = [
            f"{entry['network']}/{entry['ip']}"
            for entry in tree["reservations"]
            if entry["state"] == "leaked"
        ]
        found = [
            entry["subject"]
            for entry in tree["findings"]
            if entry["detector"] == "leaked_reservation"
        ]
        assert found == leaked, path.stem
        assert sum(counts(network).get("leaked", 0) for network in tree["networks"]) == len(
            leaked
        ), path.stem


def test_without_names_the_diagnosis_is_the_same() -> None:
    def verdicts(recording: str) -> Any:
        tree = document(recording)
        told = ("detector", "severity", "cause", "pod_outcome", "strength", "since", "count")
        return (
            [
                (entry["state"], bool(entry["pod"]), entry["cause"])
                for entry in tree["reservations"]
            ],
            Counter(tuple(finding[key] for key in told) for finding in tree["findings"]),
            [counts(network) for network in tree["networks"]],
            [gap["detector"] for gap in tree["insufficient_data"]],
            [source["source"] for source in tree["unavailable"]],
        )

    for path in NODES:
        recording = path.read_text()
        assert verdicts(dumps(anonymous(loads(recording)))) == verdicts(recording), path.stem

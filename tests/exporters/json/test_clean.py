"""The documents `nodeleak.clean/v1` and `nodeleak.journal/v1`: exactly these keys, and null for what is not known."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from agent.cleanup.journal import RESERVATION, Entry, FileImage, Journal
from agent.exporters.json import clean
from agent.exporters.json.clean import clean_document
from agent.model.release import BlockedBy, Blocker, Cleaning, PassedOver, Refusal, Verdict
from agent.model.snapshot import Unavailable
from tests.builders import GONE, empty_file
from tests.exporters.cleanings import BUDGET, CANDIDATE, DUAL, ENTRY, UNMANAGED, cleaning, outcome, refused, released


def exported(one: Cleaning) -> Any:
    """Draw a cleaning, and read it back as a program would."""
    return json.loads(json.dumps(clean_document(one), allow_nan=False))


def test_a_cleanup_has_every_key() -> None:
    assert exported(cleaning(released())) == {
        "schema": "nodeleak.clean/v1",
        "node": "worker-1",
        "taken_at": "2026-03-26T20:00:00Z",
        "applied": True,
        "network": "kubenet",
        "networks": [{"network": "kubenet", "free_before": 0, "free_after": 7}],
        "addresses": [
            {
                "network": "kubenet",
                "ip": "10.244.1.9",
                "container_id": GONE,
                "pod": "shop/cart",
                "age_seconds": 7200.0,
                "cause": None,
                "verdict": "released",
                "reason": None,
                "why": None,
                "setting": None,
                "refusals": [],
                "entry": ENTRY,
                "waited_seconds": 0.003,
                "held_seconds": 0.0007,
            }
        ],
        "verdicts": {verdict.value: int(verdict is Verdict.RELEASED) for verdict in Verdict},
        "passed_over": [],
        "halted": None,
        "blockers": None,
        "unavailable": [],
        "warnings": [],
    }


def test_a_dry_run_says_why_nothing_can_be_released_here() -> None:
    assert exported(cleaning(applied=False))["blockers"] == []
    blockers = (Blocker(BlockedBy.JOURNAL_FULL, "full"), Blocker(BlockedBy.NETWORK_UNWRITABLE, "no", "storage"))
    assert exported(cleaning(applied=False, blockers=blockers))["blockers"] == [
        {"by": "journal_full", "why": "full", "network": None},
        {"by": "network_unwritable", "why": "no", "network": "storage"},
    ]


def test_a_refusal_has_the_reason_of_every_guard() -> None:
    (address,) = exported(cleaning(refused(CANDIDATE, UNMANAGED)))["addresses"]
    assert (address["verdict"], address["reason"]) == ("refused", "not_confirmed")
    assert address["why"] == f"{CANDIDATE.why}; {UNMANAGED.why}"
    assert address["refusals"] == [
        {"reason": "not_confirmed", "why": CANDIDATE.why, "setting": "--grace=0s"},
        {"reason": "address_in_use", "why": UNMANAGED.why, "setting": None},
    ]
    assert (address["waited_seconds"], address["held_seconds"], address["entry"]) == (None, None, None)


@pytest.mark.parametrize(
    ("refusals", "setting"),
    [
        ((CANDIDATE,), "--grace=0s"),
        ((CANDIDATE, BUDGET), "--grace=0s --max=4"),
        ((CANDIDATE, UNMANAGED), None),
        ((UNMANAGED,), None),
    ],
)
def test_the_setting_overrides_all_refusals_or_is_null(refusals: tuple[Refusal, ...], setting: str | None) -> None:
    assert exported(cleaning(refused(*refusals)))["addresses"][0]["setting"] == setting


def test_a_failed_release_has_its_reason() -> None:
    (address,) = exported(cleaning(outcome(Verdict.GONE, why="10.244.1.9 was released by somebody else")))["addresses"]
    assert (address["verdict"], address["why"]) == ("gone", "10.244.1.9 was released by somebody else")


def test_each_address_of_a_sandbox_is_listed_and_counted() -> None:
    tree = exported(cleaning(released(*DUAL)))
    assert [one["ip"] for one in tree["addresses"]] == ["10.244.1.9", "fd00::9"]
    assert tree["verdicts"]["released"] == 2


def test_an_empty_file_and_an_unknown_pod_are_null() -> None:
    (address,) = exported(cleaning(refused(CANDIDATE, of=(empty_file("10.244.1.9"),))))["addresses"]
    assert (address["container_id"], address["pod"]) == (None, None)


def test_without_data_nothing_is_zero() -> None:
    tree = exported(
        cleaning(
            applied=False,
            unavailable=(Unavailable("containers", "timed out"),),
            free_before={"kubenet": None, "storage": 4},
            free_after={"kubenet": None, "storage": 4},
        )
    )
    assert tree["networks"][0] == {"network": "kubenet", "free_before": None, "free_after": None}
    assert tree["network"] == "kubenet,storage"
    assert tree["unavailable"] == [{"source": "containers", "why": "timed out"}]
    assert (tree["applied"], tree["addresses"]) == (False, [])


def test_requested_addresses_that_cannot_be_released_are_listed_apart() -> None:
    over = (PassedOver("10.244.1.2", "in use: its container is running", "kubenet"), PassedOver("10.9.9.9", "no"))
    assert exported(cleaning(passed_over=over))["passed_over"] == [
        {"network": "kubenet", "ip": "10.244.1.2", "why": "in use: its container is running"},
        {"network": None, "ip": "10.9.9.9", "why": "no"},
    ]


def test_halted_cleanup_and_warnings_are_listed() -> None:
    tree = exported(cleaning(halted="it is there again", warnings=("journal: line 3",)))
    assert (tree["halted"], tree["warnings"]) == ("it is there again", ["journal: line 3"])


# The journal

AT = datetime(2026, 3, 26, 19, 0, 0, 5, tzinfo=UTC)


def test_the_journal_has_every_byte() -> None:
    text = FileImage(
        RESERVATION, "kubenet", "10.244.1.9", f"{GONE}\r\neth0".encode(), 0o600, 1, 2, 7, 1_700_000_000_000_001
    )
    binary = FileImage("/var/lib/cni/results", "kubenet", "x", b"\xff\x00", 0o644, 0, 0, 8, 0)
    kept = Journal(
        (Entry(ENTRY, AT, "run", GONE, "shop/cart", (text, binary), Verdict.RELEASED, "", AT),), ("line 3: no",)
    )
    tree = json.loads(json.dumps(clean.journal_document(kept)))
    files = tree["entries"][0].pop("files")
    assert tree == {
        "schema": "nodeleak.journal/v1",
        "entries": [
            {
                "entry": ENTRY,
                "at": "2026-03-26T19:00:00Z",
                "by": "run",
                "container_id": GONE,
                "pod": "shop/cart",
                "addresses": ["10.244.1.9"],
                "outcome": "released",
                "why": None,
                "restored": "2026-03-26T19:00:00Z",
                "restoring": None,
                "halted": None,
                "resumed": None,
            }
        ],
        "damage": ["line 3: no"],
    }
    assert (files[0]["text"], files[0]["mode"], files[0]["mtime_ns"]) == (f"{GONE}\r\neth0", "0600", 1700000000000001)
    assert (files[1]["base64"], files[1]["place"]) == ("/wA=", "/var/lib/cni/results")


def test_an_unfinished_entry_has_no_outcome() -> None:
    kept = Journal((Entry(ENTRY, AT, "clean", "", "", ()),))
    (entry,) = clean.journal_document(kept)["entries"]
    assert (entry["outcome"], entry["why"], entry["restored"], entry["container_id"]) == (None, None, None, None)
    assert clean.journal_document(Journal())["entries"] == []

"""Cleanup results as text: every outcome, each reason once, and no control characters."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from agent.cleanup.journal import RESERVATION, Entry, FileImage, Journal
from agent.cleanup.restore import Restoration
from agent.exporters.text.clean import WHEN_HALTED, clean_table, journal_table, restoration_text
from agent.model.release import BlockedBy, Blocker, Outcome, PassedOver, Reason, Refusal, Verdict
from agent.model.snapshot import Unavailable
from tests.builders import GONE, empty_file, reservation
from tests.exporters.cleanings import (
    BUDGET,
    CANDIDATE,
    DUAL,
    ENTRY,
    LOST,
    UNMANAGED,
    cleaning,
    many,
    outcome,
    refused,
    released,
)

CONTROL = "\x1b[2J\n\N{RIGHT-TO-LEFT OVERRIDE}x"


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


# A cleaning


def test_a_release_is_listed_with_its_journal_entry() -> None:
    assert lines(clean_table(cleaning(released()))) == [
        "Node worker-1, 2026-03-26T20:00:00Z",
        "",
        "NETWORK ADDRESS AGE CONTAINER POD VERDICT JOURNAL ENTRY",
        f"kubenet 10.244.1.9 2h 999999999999 shop/cart released {ENTRY}",
        "",
        "1 released",
        "Free addresses in kubenet: 0 before, 7 after",
    ]


def test_a_dry_run_is_labeled_and_names_the_option_to_release() -> None:
    text = lines(clean_table(cleaning(outcome(Verdict.WOULD_RELEASE), applied=False)))
    assert text[1] == "DRY RUN: nothing is changed; use --apply to release."
    assert "kubenet 10.244.1.9 2h 999999999999 shop/cart would release" in text
    assert "1 would be released" in text
    assert "DRY RUN" not in clean_table(cleaning(released()))


def test_where_no_release_is_possible_a_dry_run_says_so_first() -> None:
    blockers = (Blocker(BlockedBy.NO_CLEANUP_NETWORK, "not set"), Blocker(BlockedBy.HALTED, "it is there again"))
    dry = cleaning(outcome(Verdict.WOULD_RELEASE), applied=False, halted="it is there again", blockers=blockers)
    text = clean_table(dry).splitlines()
    assert text[1:8] == [
        "No release is possible here:",
        "  not set",
        "  cleanup halted: see below",
        "DRY RUN: nothing is changed.",
        "",
        "Cleanup halted: it is there again",
        f"  Do: {WHEN_HALTED}",
    ]
    assert "1 would be released (not possible here)" in text


def test_where_only_some_networks_are_blocked_they_are_named() -> None:
    blockers = (Blocker(BlockedBy.NETWORK_UNWRITABLE, "cannot change /storage", "storage"),)
    text = clean_table(cleaning(outcome(Verdict.WOULD_RELEASE), applied=False, blockers=blockers))
    assert (
        "\nNo release is possible in network storage:\n  cannot change /storage\nDRY RUN: nothing is changed; use"
        in text
    )
    assert "1 would be released (not possible in network storage)" in text
    everywhere = (*blockers, Blocker(BlockedBy.JOURNAL_FULL, "full"))
    assert "\nNo release is possible here:\n" in clean_table(cleaning(applied=False, blockers=everywhere))


def test_a_refusal_has_its_reasons_and_the_setting_that_overrides_it() -> None:
    text = lines(clean_table(cleaning(refused(CANDIDATE, UNMANAGED))))
    assert "kubenet 10.244.1.9 2h 999999999999 - refused: not_confirmed, address_in_use" in text
    assert "not_confirmed (10.244.1.9): 30 s old, and --grace is 300 s; override with --grace=0s" in text
    assert "address_in_use (10.244.1.9): process 7 (nginx) has 10.244.1.9 configured" in text
    assert "0 released, 1 refused (1 not_confirmed)" in text


def test_a_reason_shared_by_all_is_listed_once() -> None:
    text = clean_table(cleaning(*(refused(BUDGET, of=(one,)) for one in many(118)), applied=False))
    assert text.count(BUDGET.why) == 1
    assert f"over_budget (118 addresses): {BUDGET.why}; override with --max=4" in text
    assert sum("refused: over_budget" in line for line in text.splitlines()) == 118
    assert "0 would be released, 118 refused (118 over_budget)" in text


def test_a_failure_shared_by_all_is_listed_once() -> None:
    why = "another cleaner is at work on this node (it holds /var/lib/nodeleak/cleaner.lock)"
    text = clean_table(cleaning(*(outcome(Verdict.BUSY, one, why=why) for one in many(50))))
    assert text.count(why) == 1
    assert f"busy (50 addresses): {why}" in text
    assert "0 released, 50 busy" in text


def test_files_left_behind_by_a_release_are_listed() -> None:
    assert "released (10.244.1.9): left in libcni's cache: /x: permission denied" in clean_table(
        cleaning(released(why="left in libcni's cache: /x: permission denied"))
    )


def test_few_addresses_are_listed_and_many_are_counted() -> None:
    three, four = many(3), many(4)
    assert "over_budget (10.244.1.20, 10.244.1.21, 10.244.1.22): " in clean_table(cleaning(refused(BUDGET, of=three)))
    assert "over_budget (4 addresses): " in clean_table(cleaning(refused(BUDGET, of=four)))
    all_four = ", ".join(one.ip for one in four)
    assert f"over_budget ({all_four}): " in clean_table(cleaning(refused(BUDGET, of=four)), verbose=True)


def test_of_many_reasons_that_differ_by_a_number_the_first_and_the_last_are_listed() -> None:
    counting = [Refusal(Reason.OVER_BUDGET, f"up to it there are {n}", f"--max={n}") for n in range(60)]
    text = clean_table(cleaning(*(refused(no, of=(one,)) for no, one in zip(counting, many(60), strict=True))))
    assert [line for line in text.splitlines() if line.startswith("  over_budget")] == [
        "  over_budget (10.244.1.20): up to it there are 0; override with --max=0",
        "  over_budget: … 58 more: use -v to list all",
        "  over_budget (10.244.1.79): up to it there are 59; override with --max=59",
    ]
    assert all(f" {one.ip} " in text for one in many(60)), "each address has its line"
    verbose = clean_table(
        cleaning(*(refused(no, of=(one,)) for no, one in zip(counting, many(60), strict=True))), verbose=True
    )
    assert sum(line.startswith("  over_budget (10.244.1.") for line in verbose.splitlines()) == 60


def test_each_address_of_a_sandbox_has_its_line() -> None:
    text = lines(clean_table(cleaning(released(*DUAL))))
    assert sum(ENTRY in line for line in text) == 2
    assert "2 released" in text


def test_an_empty_file_has_no_container() -> None:
    assert "10.244.1.9 2h (empty file) - refused: not_confirmed" in " ".join(
        lines(clean_table(cleaning(refused(CANDIDATE, of=(empty_file("10.244.1.9"),)))))
    )


def test_refusals_are_counted_by_their_first_reason_the_most_frequent_first() -> None:
    one, two, three = many(3)
    text = clean_table(
        cleaning(refused(CANDIDATE, BUDGET, of=(one,)), refused(BUDGET, of=(two,)), refused(BUDGET, of=(three,)))
    )
    assert "0 released, 3 refused (2 over_budget, 1 not_confirmed)" in text


def test_an_empty_store_has_nothing_to_release() -> None:
    assert lines(clean_table(cleaning(free_before={"kubenet": 253}, free_after={"kubenet": 253}))) == [
        "Node worker-1, 2026-03-26T20:00:00Z",
        "",
        "Nothing to release.",
        "Free addresses in kubenet: 253 before, 253 after",
    ]


def test_a_requested_address_that_cannot_be_released_is_listed_with_why() -> None:
    text = lines(
        clean_table(
            cleaning(
                applied=False,
                passed_over=(
                    PassedOver("10.244.1.2", "in use: its container is running", "kubenet"),
                    PassedOver("10.9.9.9", "not reserved"),
                ),
            )
        )
    )
    assert "10.244.1.2: nothing to release: in use: its container is running" in text
    assert "10.9.9.9: nothing to release: not reserved" in text
    assert "Nothing to release." not in text


def test_without_data_nothing_is_said_to_be_healthy() -> None:
    text = lines(
        clean_table(
            cleaning(
                unavailable=(Unavailable("containers", "docker: timed out"),),
                free_before={"kubenet": None},
                free_after={"kubenet": None},
            )
        )
    )
    assert "Nothing can be released, because these sources are unavailable:" in text
    assert "containers: docker: timed out" in text
    assert "Nothing to release." not in text
    assert "Free addresses in kubenet: ? before, ? after" not in text


def test_a_reason_that_sources_share_is_written_once() -> None:
    why = "cannot connect to the API server at https://10.0.0.1: connection refused"
    all_sources = Refusal(Reason.SOURCE_UNAVAILABLE, f"pods: {why}; node: {why}")
    state = Refusal(Reason.NOT_CONFIRMED, f"its state is unknown: pods: {why}")
    away = (Unavailable("pods", why), Unavailable("node", why))
    text = clean_table(cleaning(refused(all_sources, state), unavailable=away))
    assert text.count(why) == 1
    assert f"\n  pods, node: {why}\n" in text
    assert "\nWhy:\n  not_confirmed (10.244.1.9): its state is unknown: needs pods\n" in text
    assert "refused: source_unavailable, not_confirmed" in text


def test_what_only_one_address_lacks_is_still_explained() -> None:
    text = clean_table(cleaning(refused(Refusal(Reason.SOURCE_UNAVAILABLE, "addresses: not read"))))
    assert "\nWhy:\n  source_unavailable (10.244.1.9): addresses: not read\n" in text


def test_halted_cleanup_says_why_and_what_to_do() -> None:
    text = clean_table(cleaning(halted="container 9999 is there again"))
    assert "Cleanup halted: container 9999 is there again\n  Do: cordon the node; " in text
    assert "`nodeleak restore ENTRY`, then with --apply" in text


def test_warnings_are_listed() -> None:
    assert "warning: journal: line 3: ValueError" in clean_table(cleaning(warnings=("journal: line 3: ValueError",)))


@pytest.mark.parametrize(
    "outcome",
    [
        outcome(Verdict.FAILED, reservation("10.244.1.9", network=CONTROL), why=CONTROL, entry=CONTROL),
        refused(Refusal(Reason.ADDRESS_IN_USE, CONTROL, CONTROL)),
    ],
    ids=["failed", "refused"],
)
def test_output_has_no_control_characters(outcome: Outcome) -> None:
    hostile = replace(outcome, request=replace(outcome.request, pod=CONTROL))
    text = clean_table(
        cleaning(hostile, halted=CONTROL, warnings=(CONTROL,), passed_over=(PassedOver(CONTROL, CONTROL),))
    )
    assert text.replace("\n", "").isprintable()
    assert "[2J" in text


# A restoration and the journal

AT = datetime(2026, 3, 26, 19, 0, tzinfo=UTC)


def entry(verdict: Verdict | None = Verdict.RELEASED, **more: Any) -> Entry:
    kept = FileImage(RESERVATION, "kubenet", LOST.ip, f"{GONE}\r\neth0".encode(), 0o644, 0, 0, 7, LOST.mtime_ns)
    return replace(Entry(ENTRY, AT, "clean", GONE, "shop/cart", (kept,), verdict), **more)


def test_a_restoration_names_the_address_container_and_pod() -> None:
    text = restoration_text(Restoration(entry(), done=True), Journal(), applied=True)
    assert text == f"restored: 10.244.1.9 for container 999999999999 of pod shop/cart, entry {ENTRY}\n"


def test_a_dry_restoration_says_that_nothing_is_changed() -> None:
    text = lines(restoration_text(Restoration(entry(pod=""), done=True), Journal(), applied=False))
    assert text == [
        "DRY RUN: nothing is changed; use --apply to restore.",
        f"would restore: 10.244.1.9 for container 999999999999, entry {ENTRY}",
    ]


@pytest.mark.parametrize(("applied", "verb"), [(True, "not restored"), (False, "would not restore")])
def test_a_restoration_that_is_refused_says_why(applied: bool, verb: str) -> None:
    done = Restoration(entry(container_id=""), done=False, why="10.244.1.9 of network kubenet is reserved again")
    (line,) = (one for one in lines(restoration_text(done, Journal(), applied=applied)) if "DRY RUN" not in one)
    assert line.startswith(f"{verb}: 10.244.1.9 for container (empty file) of pod shop/cart, entry ")
    assert line.endswith(": 10.244.1.9 of network kubenet is reserved again")


def test_a_restoration_warns_of_files_not_restored_and_of_a_damaged_journal() -> None:
    done = Restoration(entry(), done=True, why="libcni's x was not put back: it exists")
    text = lines(restoration_text(done, Journal(damage=("journal.jsonl, line 3: no",)), applied=True))
    assert text[1:] == [
        "warning: libcni's x was not put back: it exists",
        "warning: journal: journal.jsonl, line 3: no",
    ]


def test_the_journal_lists_time_command_addresses_and_outcome() -> None:
    assert lines(journal_table(Journal((entry(), entry(restored=AT, by="run", pod=""))))) == [
        "WHEN BY ADDRESSES CONTAINER POD OUTCOME ENTRY",
        f"2026-03-26T19:00:00Z clean 10.244.1.9 999999999999 shop/cart released {ENTRY}",
        f"2026-03-26T19:00:00Z run 10.244.1.9 999999999999 - released, restored 2026-03-26T19:00:00Z {ENTRY}",
    ]


def test_the_journal_lists_failures_and_damage() -> None:
    text = lines(
        journal_table(Journal((entry(None), entry(Verdict.FAILED, why="unlink: permission denied")), ("line 3",)))
    )
    assert text[1].endswith(f"unfinished {ENTRY}")
    assert " released, restoration unfinished " in lines(journal_table(Journal((entry(restoring=AT),))))[1]
    assert text[2].endswith(f"failed {ENTRY} unlink: permission denied")
    assert text[-1] == "damaged: line 3"


def test_an_empty_journal_has_no_releases() -> None:
    assert journal_table(Journal()) == "No releases.\n"
    assert journal_table(Journal(), "/tmp/x") == (  # noqa: S108 (only a name)
        "No journal in /tmp/x: nothing was released from here, or --state-dir is wrong\n"
    )


def test_the_journal_has_no_control_characters() -> None:
    hostile = entry(by=CONTROL, pod=CONTROL, why=CONTROL, name=CONTROL)
    for text in (
        journal_table(Journal((hostile,), (CONTROL,))),
        restoration_text(Restoration(hostile, done=False, why=CONTROL), Journal(damage=(CONTROL,)), applied=True),
    ):
        assert text.replace("\n", "").isprintable()
        assert "[2J" in text

"""What people are told of a cleaning: what happens, each reason once, and nothing that steers a terminal."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from agent.cleanup.journal import Entry, Journal
from agent.cleanup.release import RESERVATION, FileImage
from agent.cleanup.restore import Restoration
from agent.exporters.text.clean import journal, restoration, table
from agent.model.release import Outcome, PassedOver, Reason, Refusal, Verdict
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

STEERING = "\x1b[2J\n\N{RIGHT-TO-LEFT OVERRIDE}x"


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


# A cleaning


def test_a_release_is_told_with_where_it_is_written_down() -> None:
    assert lines(table(cleaning(released()))) == [
        "Node worker-1, 2026-03-26T20:00:00Z",
        "",
        "NETWORK ADDRESS CONTAINER POD VERDICT JOURNAL ENTRY",
        f"kubenet 10.244.1.9 999999999999 shop/cart released {ENTRY}",
        "",
        "1 released",
        "Free addresses of kubenet: 0 before, 7 after",
    ]


def test_a_dry_run_says_so_aloud_and_how_to_do_it() -> None:
    told = lines(table(cleaning(outcome(Verdict.WOULD_RELEASE), applied=False)))
    assert told[1] == "DRY RUN: nothing is touched; --apply releases."
    assert "kubenet 10.244.1.9 999999999999 shop/cart would release" in told
    assert "1 would be released" in told
    assert "DRY RUN" not in table(cleaning(released()))


def test_a_refusal_is_told_with_its_words_and_the_setting_that_lifts_it() -> None:
    told = lines(table(cleaning(refused(CANDIDATE, UNMANAGED))))
    assert "kubenet 10.244.1.9 999999999999 - refused: not_confirmed, address_in_use" in told
    assert "not_confirmed (10.244.1.9): 30 s old, and --grace is 300 s; --grace=0s would lift this" in told
    assert "address_in_use (10.244.1.9): process 7 (nginx) has 10.244.1.9 configured" in told
    assert "0 released, 1 refused (1 not_confirmed)" in told


def test_a_reason_that_holds_for_all_is_told_once() -> None:
    text = table(cleaning(*(refused(BUDGET, of=(one,)) for one in many(118)), applied=False))
    assert text.count(BUDGET.why) == 1
    assert f"over_budget (118 addresses): {BUDGET.why}; --max=4 would lift this" in text
    assert sum("refused: over_budget" in line for line in text.splitlines()) == 118
    assert "0 would be released, 118 refused (118 over_budget)" in text


def test_what_came_between_is_told_once_too() -> None:
    why = "another cleaner is at work on this node (it holds /var/lib/nodeleak/cleaner.lock)"
    text = table(cleaning(*(outcome(Verdict.BUSY, one, why=why) for one in many(50))))
    assert text.count(why) == 1
    assert f"busy (50 addresses): {why}" in text
    assert "0 released, 50 busy" in text


def test_what_was_left_behind_by_a_release_is_told() -> None:
    assert "released (10.244.1.9): left in libcni's cache: /x: Permission denied" in table(
        cleaning(released(why="left in libcni's cache: /x: Permission denied"))
    )


def test_few_addresses_are_named_and_many_are_counted() -> None:
    three, four = many(3), many(4)
    assert "over_budget (10.244.1.20, 10.244.1.21, 10.244.1.22): " in table(cleaning(refused(BUDGET, of=three)))
    assert "over_budget (4 addresses): " in table(cleaning(refused(BUDGET, of=four)))


def test_of_many_reasons_that_differ_by_a_number_the_first_and_the_last_are_told() -> None:
    counting = [Refusal(Reason.OVER_BUDGET, f"up to it there are {n}", f"--max={n}") for n in range(60)]
    told = table(cleaning(*(refused(no, of=(one,)) for no, one in zip(counting, many(60), strict=True))))
    assert [line for line in told.splitlines() if line.startswith("  over_budget")] == [
        "  over_budget (10.244.1.20): up to it there are 0; --max=0 would lift this",
        "  over_budget: … 58 more: -o json lists all",
        "  over_budget (10.244.1.79): up to it there are 59; --max=59 would lift this",
    ]
    assert all(f" {one.ip} " in told for one in many(60)), "each address has its line"


def test_each_address_of_a_sandbox_has_its_line() -> None:
    told = lines(table(cleaning(released(*DUAL))))
    assert sum(ENTRY in line for line in told) == 2
    assert "2 released" in told


def test_an_empty_file_has_no_container() -> None:
    assert "10.244.1.9 (empty file) - refused: not_confirmed" in " ".join(
        lines(table(cleaning(refused(CANDIDATE, of=(empty_file("10.244.1.9"),)))))
    )


def test_refusals_are_counted_by_their_weightiest_reason_the_most_frequent_first() -> None:
    one, two, three = many(3)
    text = table(
        cleaning(refused(CANDIDATE, BUDGET, of=(one,)), refused(BUDGET, of=(two,)), refused(BUDGET, of=(three,)))
    )
    assert "0 released, 3 refused (2 over_budget, 1 not_confirmed)" in text


def test_an_empty_store_has_nothing_to_release() -> None:
    assert lines(table(cleaning(free_before={"kubenet": 253}, free_after={"kubenet": 253}))) == [
        "Node worker-1, 2026-03-26T20:00:00Z",
        "",
        "Nothing to release.",
        "Free addresses of kubenet: 253 before, 253 after",
    ]


def test_what_was_asked_for_and_is_no_candidate_is_told() -> None:
    told = lines(
        table(
            cleaning(
                applied=False,
                passed_over=(
                    PassedOver("10.244.1.2", "in use: its container is running", "kubenet"),
                    PassedOver("10.9.9.9", "not reserved"),
                ),
            )
        )
    )
    assert "10.244.1.2: nothing to release: in use: its container is running" in told
    assert "10.9.9.9: nothing to release: not reserved" in told
    assert "Nothing to release." not in told


def test_in_the_dark_nothing_is_said_to_be_well() -> None:
    told = lines(
        table(
            cleaning(
                unavailable=(Unavailable("containers", "docker: timed out"),),
                free_before={"kubenet": None},
                free_after={"kubenet": None},
            )
        )
    )
    assert "NOTHING IS RELEASED, because something could not be read:" in told
    assert "containers: docker: timed out" in told
    assert "Nothing to release." not in told
    assert "Free addresses of kubenet: ? before, ? after" in told


def test_cleaning_that_stopped_itself_says_why_and_what_to_do() -> None:
    told = table(cleaning(halted="container 9999 is there again"))
    assert "CLEANING HAS STOPPED ITSELF: container 9999 is there again\n  Do: find out how" in told
    assert "`nodeleak restore ENTRY --apply`" in told


def test_warnings_are_told() -> None:
    assert "warning: journal: line 3: ValueError" in table(cleaning(warnings=("journal: line 3: ValueError",)))


@pytest.mark.parametrize(
    "outcome",
    [
        outcome(Verdict.FAILED, reservation("10.244.1.9", network=STEERING), why=STEERING, entry=STEERING),
        refused(Refusal(Reason.ADDRESS_IN_USE, STEERING, STEERING)),
    ],
    ids=["failed", "refused"],
)
def test_nothing_that_is_told_can_steer_the_readers_terminal(outcome: Outcome) -> None:
    hostile = replace(outcome, request=replace(outcome.request, pod=STEERING))
    text = table(
        cleaning(hostile, halted=STEERING, warnings=(STEERING,), passed_over=(PassedOver(STEERING, STEERING),))
    )
    assert text.replace("\n", "").isprintable()
    assert "[2J" in text


# A restoration and the journal

AT = datetime(2026, 3, 26, 19, 0, tzinfo=UTC)


def entry(verdict: Verdict | None = Verdict.RELEASED, **more: Any) -> Entry:
    kept = FileImage(RESERVATION, "kubenet", LOST.ip, f"{GONE}\r\neth0".encode(), 0o644, 0, 0, 7, LOST.mtime_ns)
    return replace(Entry(ENTRY, AT, "clean", GONE, "shop/cart", (kept,), verdict), **more)


def test_a_restoration_is_told_with_what_was_put_back() -> None:
    text = restoration(Restoration(entry(), done=True), Journal(), applied=True)
    assert text == f"restored: 10.244.1.9 for container 999999999999 of pod shop/cart, entry {ENTRY}\n"


def test_a_restoration_that_is_tried_says_that_nothing_is_touched() -> None:
    told = lines(restoration(Restoration(entry(pod=""), done=True), Journal(), applied=False))
    assert told == [
        "DRY RUN: nothing is touched; --apply restores.",
        f"would restore: 10.244.1.9 for container 999999999999, entry {ENTRY}",
    ]


@pytest.mark.parametrize(("applied", "verb"), [(True, "not restored"), (False, "would not restore")])
def test_a_restoration_that_is_refused_says_why(applied: bool, verb: str) -> None:
    done = Restoration(entry(container_id=""), done=False, why="10.244.1.9 of network kubenet is reserved again")
    (line,) = (one for one in lines(restoration(done, Journal(), applied=applied)) if "DRY RUN" not in one)
    assert line.startswith(f"{verb}: 10.244.1.9 for container (empty file) of pod shop/cart, entry ")
    assert line.endswith(": 10.244.1.9 of network kubenet is reserved again")


def test_a_restoration_warns_of_what_it_left_and_of_a_damaged_journal() -> None:
    done = Restoration(entry(), done=True, why="libcni's x was not put back: it exists")
    told = lines(restoration(done, Journal(damage=("journal.jsonl, line 3: no",)), applied=True))
    assert told[1:] == [
        "warning: libcni's x was not put back: it exists",
        "warning: journal: journal.jsonl, line 3: no",
    ]


def test_the_journal_tells_when_by_whom_what_and_how_it_ended() -> None:
    assert lines(journal(Journal((entry(), entry(restored=AT, by="run", pod=""))))) == [
        "WHEN BY ADDRESSES CONTAINER POD OUTCOME ENTRY",
        f"2026-03-26T19:00:00Z clean 10.244.1.9 999999999999 shop/cart released {ENTRY}",
        f"2026-03-26T19:00:00Z run 10.244.1.9 999999999999 - released, restored 2026-03-26T19:00:00Z {ENTRY}",
    ]


def test_the_journal_tells_what_went_wrong() -> None:
    told = lines(journal(Journal((entry(None), entry(Verdict.FAILED, why="unlink: Permission denied")), ("line 3",))))
    assert told[1].endswith(f"never ended {ENTRY}")
    assert told[2].endswith(f"failed {ENTRY} unlink: Permission denied")
    assert told[-1] == "damaged: line 3"


def test_an_empty_journal_says_that_nothing_was_released() -> None:
    assert journal(Journal()) == "Nothing was released.\n"


def test_a_journal_cannot_steer_the_readers_terminal() -> None:
    hostile = entry(by=STEERING, pod=STEERING, why=STEERING, name=STEERING)
    for text in (
        journal(Journal((hostile,), (STEERING,))),
        restoration(Restoration(hostile, done=False, why=STEERING), Journal(damage=(STEERING,)), applied=True),
    ):
        assert text.replace("\n", "").isprintable()
        assert "[2J" in text

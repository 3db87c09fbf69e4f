"""What a session remembers: what was released, what failed, and what is still allowed."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from agent.cleanup.cleaner import DryRunCleaner
from agent.cleanup.journal import Entry, Journal
from agent.cleanup.release import FileImage
from agent.cleanup.session import HOUR, Budget, CleanupSession
from agent.model.release import Outcome, Reason, ReleaseRequest, Verdict
from agent.model.snapshot import Checkpoint, Node, Reservation
from tests.builders import NOW, cni_result, empty_file, make_limits, node, reservation, sandbox, scanned
from tests.cleanup.file_operations import Files, InMemoryJournal, image
from tests.cleanup.syncs import LEAK, NONE, SECOND, THE_ID, THE_IP, Daemon, entry, leaks, reasons_of, verdicts_of

AGAIN = sandbox(THE_ID, "shop/gone")
ELSEWHERE = cni_result("8" * 64, "shop/x", "10.9.0.0/24", network="storage")


@pytest.mark.parametrize(
    "again",
    [
        sandbox(THE_ID, "shop/gone"),
        sandbox(THE_ID, "shop/gone", "exited"),
        sandbox(THE_ID, "", "being created"),
        Checkpoint(THE_ID, "shop/gone"),
    ],
    ids=["its container", "its dead container", "a record of the runtime", "its checkpoint"],
)
def test_a_released_container_that_reappears_halts_all_cleanup(again: Any) -> None:
    daemon = Daemon(InMemoryJournal(entry(LEAK)))
    other = leaks(1)
    daemon.sync(*other)
    cleaning = daemon.sync(again, *other)
    assert cleaning.halted.startswith("released container 999999999999 reappeared (its address was 10.244.1.9;")
    assert "nodeleak restore" in cleaning.halted
    assert all(refusal[0] is Reason.HALTED for refusal in reasons_of(cleaning))
    assert all(one.refusals[0].why == cleaning.halted for one in cleaning.outcomes)


@pytest.mark.parametrize("ip", [THE_IP, "10.244.1.200"], ids=["its address", "another address"])
def test_a_reservation_of_a_released_container_without_a_record_is_a_leak_like_any_other(ip: str) -> None:
    """A plugin that outlived its sandbox wrote it."""
    daemon = Daemon(InMemoryJournal(entry(LEAK)))
    late = reservation(ip, age=SECOND)
    young = daemon.sync(late, *leaks(1))
    assert (young.halted, reasons_of(young)[-1][0]) == ("", Reason.NOT_CONFIRMED)
    old = [daemon.sync(reservation(ip)) for _ in range(2)][-1]
    assert (old.halted, verdicts_of(old)) == ("", [(ip, Verdict.RELEASED)])
    assert daemon.sync(AGAIN).halted != ""


def test_cleanup_stays_halted_although_the_container_disappears_again() -> None:
    daemon = Daemon(InMemoryJournal(entry(LEAK)))
    first = daemon.sync(AGAIN).halted
    for _ in range(4):
        cleaning = daemon.sync(*leaks(2))
        assert cleaning.halted == first
        assert {refusal[0] for refusal in reasons_of(cleaning)} == {Reason.HALTED}
        assert len(daemon.names) == 4


def test_releases_of_this_daemon_count_too() -> None:
    daemon = Daemon()
    daemon.sync(LEAK)
    daemon.sync(LEAK)
    assert not daemon.sync().halted
    assert daemon.sync(sandbox(THE_ID, "shop/gone")).halted


def test_one_of_two_snapshots_is_enough_to_halt() -> None:
    session = CleanupSession(make_limits(), NONE, InMemoryJournal(entry(LEAK)), "clean")
    session.read_journal(NOW)
    snapshots = (node(AGAIN), node())
    session.observe(snapshots)
    assert session.context(scanned(*snapshots)).halted


def test_a_dry_run_halts_too() -> None:
    daemon = Daemon(InMemoryJournal(entry(LEAK)))
    daemon.cleaner = DryRunCleaner(daemon.session)
    assert daemon.sync(AGAIN).halted


@pytest.mark.parametrize(
    "harmless",
    [
        entry(LEAK, restored=NOW),
        entry(LEAK, Verdict.FAILED),
        entry(LEAK, Verdict.CHANGED),
        entry(LEAK, None),
        entry(empty_file(THE_IP)),
        entry(reservation(THE_IP, "8" * 64)),
    ],
    ids=["restored", "failed", "changed", "unfinished", "an empty file", "another id"],
)
def test_containers_not_released_or_restored_may_exist(harmless: Entry) -> None:
    daemon = Daemon(InMemoryJournal(harmless))
    # An unfinished entry is recovered first, from the files that are on the node.
    daemon.files.files = {("kubenet", THE_IP): image(LEAK)}
    assert daemon.sync(LEAK, AGAIN).halted == ""


def test_a_container_whose_address_was_released_in_another_network_halts_too() -> None:
    daemon = Daemon(InMemoryJournal(entry(reservation("10.9.0.2", network="storage"))))
    assert daemon.sync(LEAK, AGAIN, ELSEWHERE).halted != ""


def test_a_release_of_another_cleaner_during_the_snapshot_did_not_reappear() -> None:
    """The snapshot has the file, another `clean` removes it, and only then the journal is read again."""
    daemon = Daemon()
    daemon.sync(LEAK)
    cleaning = daemon.sync(LEAK, meanwhile=[entry(LEAK, by="clean", at=NOW + SECOND)])
    assert cleaning.halted == ""
    assert daemon.sync().halted == ""


def test_a_release_of_another_cleaner_before_the_snapshot_is_not_in_it() -> None:
    daemon = Daemon()
    daemon.sync(LEAK)
    cleaning = daemon.sync(meanwhile=[entry(LEAK, by="clean", at=NOW + SECOND)])
    assert (cleaning.halted, cleaning.outcomes) == ("", ())


def test_a_release_of_another_cleaner_between_snapshot_and_lock_is_gone() -> None:
    daemon = Daemon()
    daemon.sync(LEAK)

    class Late(Files):
        """Another process is faster."""

        def read(self, reservation: Reservation) -> tuple[Reservation, FileImage] | None:
            self.files.pop(("kubenet", THE_IP), None)
            return super().read(reservation)

    daemon.files = Late()
    cleaning = daemon.sync(LEAK)
    assert verdicts_of(cleaning) == [(THE_IP, Verdict.GONE)]
    assert not cleaning.failed
    assert daemon.journal_store.read() == Journal()


def test_a_restoration_during_the_snapshot_did_not_reappear() -> None:
    released = entry(LEAK)
    daemon = Daemon(InMemoryJournal(released))
    assert daemon.sync(AGAIN, meanwhile=[replace(released, restored=NOW)]).halted == ""


def test_a_restoration_released_again_during_the_snapshot_did_not_reappear() -> None:
    released = entry(LEAK)
    daemon = Daemon(InMemoryJournal(released))
    once_more = entry(LEAK, by="clean", at=NOW + SECOND)
    assert daemon.sync(AGAIN, meanwhile=[replace(released, restored=NOW), once_more]).halted == ""


def test_a_restoration_that_failed_during_the_snapshot_did_not_reappear_and_is_watched_for_afterwards() -> None:
    released = entry(LEAK)
    daemon = Daemon(InMemoryJournal(released))
    failed = released.restoration_began(NOW).ended(Verdict.RELEASED, released.why)
    assert daemon.sync(AGAIN, meanwhile=[failed]).halted == ""
    assert "reappeared" in daemon.sync(AGAIN).halted


def test_a_restored_container_does_not_hide_another_that_reappeared() -> None:
    first, second = leaks(2)
    released = entry(first)
    daemon = Daemon(InMemoryJournal(released, entry(second)))
    again = [sandbox(one.container_id, "shop/gone") for one in (first, second)]
    cleaning = daemon.sync(*again, meanwhile=[replace(released, restored=NOW)])
    assert cleaning.halted.startswith("released container 020202020202 reappeared (its address was 10.244.1.12;")


def test_if_the_journal_becomes_unreadable_its_earlier_content_counts() -> None:
    class Failing(InMemoryJournal):
        """It can be read once a sync."""

        def read(self) -> Journal:
            journal, self.unreadable = super().read(), "it broke"
            return journal

    assert "reappeared" in Daemon(Failing(entry(LEAK))).sync(AGAIN).halted


# Budgets


BUDGET = Budget(per_sync=("--max-per-sync", 2), per_hour=("--max-per-hour", 3))


def test_a_sync_releases_up_to_its_limit_and_the_next_continues() -> None:
    daemon = Daemon(budget=Budget(per_sync=("--max-per-sync", 2)))
    daemon.sync(*leaks(5))
    left = leaks(5)
    for expected in (2, 2, 1):
        cleaning = daemon.sync(*left)
        assert cleaning.tally()[Verdict.RELEASED] == expected
        assert verdicts_of(cleaning)[:expected] == [(one.ip, Verdict.RELEASED) for one in left[:expected]]
        left = left[expected:]


def test_the_hourly_limit_survives_a_restart_of_the_daemon() -> None:
    journal_store = InMemoryJournal()
    released = 0
    left = leaks(9)
    for _ in range(3):
        daemon = Daemon(journal_store, budget=BUDGET)
        for _ in range(3):
            released += daemon.sync(*left).tally()[Verdict.RELEASED]
            left = [one for one in left if one.ip in daemon.names]
    assert released == 3
    over = daemon.sync(*left).outcomes[0].refusals[0]
    assert (over.reason, over.setting) == (Reason.OVER_BUDGET, "--max-per-hour=4")


@pytest.mark.parametrize(
    ("before", "left"),
    [
        ([], 3),
        ([{"at": NOW - timedelta(minutes=59)}], 2),
        ([{"at": NOW - HOUR}], 3),
        ([{"at": NOW - HOUR + SECOND}], 2),
        ([{"at": NOW + timedelta(days=1)}], 2),
        ([{"at": NOW, "by": "clean"}], 3),
        ([{"at": NOW, "restored": NOW}], 3),
        ([{"at": NOW, "verdict": Verdict.FAILED}], 3),
        ([{"at": NOW, "files": (image(LEAK), image(reservation("fd00::9")))}], 1),
        ([{"at": NOW - n * SECOND} for n in range(5)], -2),
    ],
    ids=[
        "nothing", "within the hour", "an hour ago", "within it by a second", "the clock was set back", "by hand",
        "restored", "failed", "two addresses", "a lower bound than before",
    ],
)  # fmt: skip
def test_the_hour_is_measured_by_the_journal(before: list[dict[str, Any]], left: int) -> None:
    journal = Journal(tuple(entry(LEAK, **one) for one in before))
    spent = BUDGET.spent(journal, NOW, "run")
    assert spent == {"--max-per-hour": 3 - left}
    assert BUDGET.left(spent) == (("--max-per-sync", 2), ("--max-per-hour", left))


def test_without_limits_nothing_is_counted() -> None:
    assert NONE.left(NONE.spent(Journal((entry(LEAK),)), NOW, "clean")) == ()


def test_failed_releases_are_retried_last() -> None:
    first, second, third = leaks(3)
    daemon = Daemon(budget=Budget(per_sync=("--max-per-sync", 1)))
    daemon.sync(first, second, third)
    daemon.files.broken = {first.ip}
    cleaning = daemon.sync(first, second, third)
    assert verdicts_of(cleaning)[0] == (first.ip, Verdict.FAILED)
    assert cleaning.failed
    assert first.ip in daemon.names
    assert verdicts_of(daemon.sync(first, second, third))[0] == (second.ip, Verdict.RELEASED)
    assert verdicts_of(daemon.sync(first, third))[0] == (third.ip, Verdict.RELEASED)
    daemon.files.broken = set()
    rounds = [verdicts_of(daemon.sync(first)) for _ in range(2)]
    assert rounds.count([(first.ip, Verdict.RELEASED)]) == 1, "a failed release is tried in every other sync"


def test_a_failure_does_not_hold_up_the_next_leak_of_the_address() -> None:
    daemon, after = Daemon(), reservation(THE_IP, "8" * 64)
    daemon.files.broken = {THE_IP}
    for _ in range(5):
        daemon.sync(LEAK)
    daemon.files.broken = set()
    daemon.sync(after)
    assert verdicts_of(daemon.sync(after)) == [(THE_IP, Verdict.RELEASED)]


def test_a_failure_is_forgotten_when_the_address_is_released() -> None:
    session = CleanupSession(make_limits(), NONE, InMemoryJournal(), "run")
    request = ReleaseRequest((LEAK,))
    for verdict, failed in (
        (Verdict.FAILED, 1),
        (Verdict.BUSY, 2),
        (Verdict.REFUSED, 2),
        (Verdict.RELEASED, 0),
        (Verdict.BUSY, 1),
        (Verdict.GONE, 0),
    ):
        session.record([Outcome(request, verdict)])
        assert session.context(scanned(node())).failures.get(LEAK, 0) == failed


def test_a_sandbox_with_one_file_that_cannot_be_removed_keeps_all() -> None:
    dual = reservation("fd00::9")
    cidrs = [Node("worker-1", ("10.244.1.0/24", "fd00::/64"), 110)]
    daemon = Daemon()
    daemon.files.broken = {"fd00::9"}
    daemon.sync(LEAK, dual, node=cidrs)
    cleaning = daemon.sync(LEAK, dual, node=cidrs)
    assert verdicts_of(cleaning) == [(THE_IP, Verdict.FAILED)]
    assert {THE_IP, "fd00::9"} <= set(daemon.names)

"""The cleanup of a sync: a dry run and applied; alone and with other cleaners; what is remembered from sync to sync."""

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.cleanup import guards
from agent.cleanup.journal import Journal
from agent.cleanup.journal_store import MAX_ENTRIES, JournalStore
from agent.model.brake import Brake
from agent.model.release import BlockedBy, Cleaning, ProbeResult, Reason, Refusal, Verdict
from agent.model.snapshot import (
    Address,
    Checkpoint,
    Known,
    PluginProcess,
    Reading,
    Reservation,
    Unavailable,
)
from agent.sources.source_error import SourceError
from tests.builders import (
    NOW,
    OLD,
    empty_file,
    make_limits,
    node,
    processes,
    reservation,
    sandbox,
    scanned,
    unavailable,
    unrecognized,
    without,
)
from tests.cleanup.leaks import DUAL, LEAK, LEAK6, SECOND, THE_ID, THE_IP, leaks
from tests.cleanup.recheck import Owners
from tests.cleanup.syncs import Daemon, InMemoryJournal, entry, image, reasons_of, verdicts_of

AGAIN = sandbox(THE_ID, "shop/gone")


def per_sync(most: int) -> dict[str, tuple[str, int]]:
    return {"per_sync": ("--max-per-sync", most)}


def test_a_dry_run_reports_what_applying_does_in_the_same_order_and_changes_nothing() -> None:
    records = [
        *leaks(4),
        Address(leaks(1)[0].ip, 1, "sh"),
        reservation("10.250.0.9", "7" * 64, age=3 * OLD),
    ]
    doing, trying = Daemon(budget=per_sync(2)), Daemon(budget=per_sync(2))
    trying.cleaner = trying.new_cleaner(dry_run=True)
    for daemon in (doing, trying):
        daemon.sync(*records)
    before = trying.names
    tried, did = trying.sync(*records), doing.sync(*records)
    assert (trying.names, trying.journal.entries, len(doing.names)) == (before, {}, len(before) - 2)
    assert sorted((ip, verdict is Verdict.REFUSED) for ip, verdict in verdicts_of(tried)) == [
        ("10.244.1.11", True),
        ("10.244.1.12", False),
        ("10.244.1.13", False),
        ("10.244.1.14", True),
        ("10.250.0.9", True),
    ]
    assert [outcome.request for outcome in tried.outcomes] == [
        outcome.request for outcome in did.outcomes
    ]
    assert reasons_of(tried) == reasons_of(did)
    assert tried.free_after == did.free_after


def test_what_the_recheck_or_the_probe_finds_refuses_this_release_with_all_of_its_addresses() -> (
    None
):
    for owners, reason in (
        (Owners(containers={THE_ID}), Reason.CONTAINER_EXISTS),
        (Owners(checkpoints={THE_ID}), Reason.TEARDOWN_PENDING),
        (Owners(holders={THE_IP: "process 7 (java)"}), Reason.ADDRESS_IN_USE),
        (Owners(refusals={THE_IP: Reason.ADDRESS_IN_USE}), Reason.ADDRESS_IN_USE),
        (Owners(refusals={THE_IP: Reason.PROBE_UNANSWERED}), Reason.PROBE_UNANSWERED),
    ):
        daemon = Daemon(owners=owners)
        cleaning = daemon.twice(LEAK, *leaks(1))
        assert dict(verdicts_of(cleaning)) == {
            THE_IP: Verdict.REFUSED,
            "10.244.1.11": Verdict.RELEASED,
        }
        assert [reason] in reasons_of(cleaning)
        assert THE_IP in daemon.names
        assert [entry.ips for entry in daemon.journal.entries.values()] == [("10.244.1.11",)]
    daemon = Daemon(owners=Owners(refusals={LEAK6.ip: Reason.ADDRESS_IN_USE}))
    cleaning = daemon.twice(LEAK, LEAK6, **DUAL)
    assert cleaning.tally() == {Verdict.REFUSED: 2}
    assert cleaning.outcomes[0].refusals == (
        Refusal(Reason.ADDRESS_IN_USE, f"probe: {LEAK6.ip} was probed"),
    )


def test_all_addresses_are_probed_at_once_in_turns_of_a_hundred_and_before_any_lock() -> None:
    class Observed(Owners):
        def probe(self, reservations: Sequence[Reservation]) -> dict[Any, ProbeResult]:
            assert not daemon.journal.held
            return super().probe(reservations)

    owners = Observed()
    daemon = Daemon(owners=owners, limits=make_limits(max_share=1.0))
    many = leaks(230)
    daemon.sync(*many)
    assert owners.probed == []
    assert daemon.sync(*many).tally() == {Verdict.RELEASED: 230}
    assert [len(ips) for ips in owners.probed] == [100, 100, 30]


def test_a_probe_that_fails_fails_every_release() -> None:
    class Broken(Owners):
        def probe(self, reservations: Sequence[Reservation]) -> dict[Any, ProbeResult]:
            raise SourceError(
                f"cannot ask the kernel for the route to {reservations[0].ip}: no buffer space available"
            )

    daemon = Daemon(owners=Broken())
    cleaning = daemon.twice(*leaks(2))
    assert cleaning.tally() == {Verdict.FAILED: 2}
    assert "no buffer space available" in cleaning.outcomes[1].why
    assert len(daemon.names) == 4


def test_addresses_that_answer_do_not_hold_up_others_and_are_probed_every_ten_minutes() -> None:
    ghosts = [leak.ip for leak in leaks(2)]
    owners = Owners(refusals=dict.fromkeys(ghosts, Reason.ADDRESS_IN_USE))
    daemon, left = Daemon(owners=owners, budget=per_sync(2)), leaks(4)
    for _ in range(2 * 40):  # of 15 s
        daemon.sync(*left)
        left = [leak for leak in left if leak.ip in daemon.names]
    assert [leak.ip for leak in left] == ghosts
    assert sum(ghosts[0] in ips for ips in owners.probed) == 2


def test_in_each_sync_a_leak_that_is_not_released_has_the_reason() -> None:
    """Also while nothing asks again: the page, the log and the metric count what a sync refuses."""
    for reason in (Reason.PROBE_UNANSWERED, Reason.ADDRESS_IN_USE):
        owners = Owners(refusals={THE_IP: reason})
        daemon = Daemon(owners=owners, budget=per_sync(1))
        (other,) = leaks(1)
        daemon.sync(LEAK, other)
        seen = [daemon.sync(LEAK) for _ in range(50)]  # of 15 s
        assert [reasons_of(cleaning) for cleaning in seen] == [[[reason]]] * 50
        assert {cleaning.outcomes[0].refusals[0].why for cleaning in seen} == {
            f"probe: {THE_IP} was probed"
        }
        assert len(owners.probed) == 2
        # It spends nothing of the budget.
        assert daemon.sync(LEAK, other).tally() == {Verdict.REFUSED: 2}
        assert daemon.sync(LEAK, other).tally() == {Verdict.REFUSED: 1, Verdict.RELEASED: 1}
        # What a guard says meanwhile comes first, and what has been refused is forgotten in time.
        assert (
            Reason.SOURCE_UNAVAILABLE in reasons_of(daemon.sync(LEAK, pods=unavailable("pods")))[0]
        )
        owners.refusals.clear()
        done = [daemon.sync(LEAK).tally() for _ in range(42)]
        assert {Verdict.RELEASED: 1} in done


def broken(_request: Any, _context: Any) -> Refusal | None:
    raise KeyError("metadata")


def test_a_guard_that_fails_refuses_and_is_reported_as_a_bug(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guards, "GUARDS", (*guards.GUARDS, broken))
    daemon = Daemon()
    cleaning = daemon.twice(*leaks(2))
    assert reasons_of(cleaning) == [[Reason.GUARD_FAILED]] * 2
    refusal = cleaning.outcomes[0].refusals[0]
    assert (refusal.why, refusal.setting) == ("bug in nodeleak: KeyError: 'metadata'", "")
    (bug,) = cleaning.bugs
    assert (bug.part, bug.name) == ("guard", "broken")
    assert 'raise KeyError("metadata")' in bug.traceback
    assert len(daemon.names) == 4
    monkeypatch.undo()
    cleaning = daemon.sync(*leaks(2))
    assert (cleaning.tally(), cleaning.bugs) == ({Verdict.RELEASED: 2}, ())


def test_a_file_from_any_time_is_judged() -> None:
    """tmpfs keeps times that no calendar has."""
    plugin = PluginProcess(4711, "portmap", NOW - 3 * SECOND)
    busy = replace(processes(), plugins=(plugin,))
    for mtime_ns in (4 * 10**20, -4 * 10**20, 2**63 * 10**9 - 1, -(2**63) * 10**9):
        odd = replace(reservation("10.244.1.77", "7" * 64), mtime_ns=mtime_ns)
        for process in (processes(), busy):
            cleaning = Daemon().twice(odd, processes=(process,))
            assert (cleaning.bugs, len(cleaning.outcomes)) == ((), 1)
            expected = Verdict.REFUSED if mtime_ns > 0 else Verdict.RELEASED
            assert cleaning.outcomes[0].verdict is expected, reasons_of(cleaning)


def test_a_failed_release_is_paused_for_a_minute_and_the_next_leak_of_the_address_is_not() -> None:
    first, second = leaks(2)
    daemon, after = Daemon(budget=per_sync(1)), reservation(first.ip, "8" * 64)
    for last in (after, first):
        daemon.sync(first, second)
        daemon.files.broken = {first.ip}
        cleaning = daemon.sync(first, second)
        assert (verdicts_of(cleaning)[0], cleaning.failed) == ((first.ip, Verdict.FAILED), True)
        daemon.files.broken = set()
        assert verdicts_of(daemon.sync(first, second)) == [(second.ip, Verdict.RELEASED)]
        outcomes = [verdicts_of(daemon.sync(last)) for _ in range(3)]  # of 15 s
        assert outcomes.index([(first.ip, Verdict.RELEASED)]) == (1 if last is after else 2)


def test_while_another_cleaner_runs_every_release_is_busy() -> None:
    daemon = Daemon()
    daemon.sync(*leaks(2))
    daemon.journal.other = "another cleaner is running on this node"
    cleaning = daemon.sync(*leaks(2))
    assert [(outcome.verdict, outcome.why) for outcome in cleaning.outcomes] == [
        (Verdict.BUSY, "another cleaner is running on this node")
    ] * 2
    assert (cleaning.failed, len(daemon.names)) == (True, 4)
    assert daemon.sync().outcomes == (), "there is nothing to wait for"
    daemon.journal.other = ""
    assert daemon.twice(*leaks(2)).tally() == {Verdict.RELEASED: 2}
    # A lock that host-local holds is waited for once.
    daemon = Daemon()
    daemon.sync(*leaks(9))
    daemon.files.held = True
    assert daemon.sync(*leaks(9)).tally() == {Verdict.BUSY: 9}
    assert daemon.files.tries == 1
    daemon.files.held = False
    assert daemon.sync(*leaks(9)).tally() == {Verdict.RELEASED: 9}


def test_what_the_journal_shows_in_motion_since_the_snapshot_is_not_released_in_this_sync() -> None:
    """The snapshot may show a part of the sandbox only."""
    before = entry(LEAK, Verdict.FAILED)
    began = before.restoration_began(NOW)
    for meanwhile in (
        began,
        replace(began, restored=NOW, restoring=None),
        began.ended(Verdict.FAILED, ""),
    ):
        daemon = Daemon(before)
        daemon.sync(LEAK)
        assert verdicts_of(daemon.sync(LEAK, meanwhile=[meanwhile])) == [(THE_IP, Verdict.CHANGED)]
        then = Verdict.REFUSED if meanwhile.restored or meanwhile.restoring else Verdict.RELEASED
        assert verdicts_of(daemon.sync(LEAK)) == [(THE_IP, then)], (
            "what was restored is released by name only"
        )
        daemon.cleaner.limits = replace(daemon.cleaner.limits, only=frozenset({THE_IP}))
        assert verdicts_of(daemon.sync(LEAK)) == [(THE_IP, Verdict.RELEASED)]


def test_what_was_restored_is_never_released_by_itself_however_many_releases_follow(
    tmp_path: Path,
) -> None:
    """Each of the later entries is older than a day, so that the journal has room for others."""
    days = timedelta(days=30)
    restored = entry(LEAK, at=NOW - days, restored=NOW - days)
    journal = JournalStore(tmp_path)
    daemon = Daemon()
    daemon.cleaner.store = journal
    journal.begin(replace(restored, verdict=None, restored=None), ["x"])
    journal.update(restored, NOW - days)
    (path,) = (tmp_path / "journal").iterdir()
    os.utime(path, ((NOW - days).timestamp(),) * 2)
    later = replace(restored, verdict=None, restored=None, container_id="8" * 64, name="later")
    journal.begin(later, ["x"], NOW - days)
    journal.update(later.ended(Verdict.RELEASED, ""), NOW - days)
    another = path.with_name("later.json")
    for number in range(MAX_ENTRIES):
        copy = another.with_name(f"{number:04}.json")
        copy.write_text(another.read_text().replace('"later"', f'"{number:04}"'))
        os.utime(copy, ((NOW - days / 2).timestamp(),) * 2)
    another.unlink()
    begun = replace(later, name="begun", at=NOW)
    journal.begin(begun, ["x"])
    journal.update(begun.ended(Verdict.RELEASED, ""), NOW)
    assert path.exists()
    assert reasons_of(daemon.twice(LEAK)) == [[Reason.NOT_CONFIRMED]]
    daemon.cleaner.limits = replace(daemon.cleaner.limits, only=frozenset({THE_IP}))
    assert verdicts_of(daemon.sync(LEAK)) == [(THE_IP, Verdict.RELEASED)]


def test_the_brake_is_read_again_before_each_release_and_once_it_refuses_no_other_begins() -> None:
    """Whatever the snapshot had of it."""
    on = Known(Brake("kube-system/nodeleak-brake", on=True, reason="incident 42"))
    unknown = Unavailable("brake", "the API server is away")
    cases: tuple[tuple[Reading[Brake], Reason], ...] = (
        (on, Reason.BRAKE_ON),
        (unknown, Reason.SOURCE_UNAVAILABLE),
    )
    for brake, reason in cases:
        for released in range(3):
            daemon = Daemon()
            daemon.sync(*leaks(3))
            daemon.brakes = [*[daemon.brake] * released, brake]
            cleaning = daemon.sync(*leaks(3))
            expected: list[list[Reason]] = [*[[]] * released, *[[reason]] * (3 - released)]
            assert reasons_of(cleaning) == expected
            assert daemon.brake_readings == released + 1, "an API server that is away is asked once"
            assert len(daemon.names) == 2 + 3 - released, "beside those of two pods"
            assert not cleaning.failed
            daemon.brake_readings = 0
            assert {verdict for _, verdict in verdicts_of(daemon.sync(*leaks(3)))} == {
                Verdict.RELEASED
            }, "nothing is paused by it"


def test_the_brake_is_not_read_again_after_a_refusal_of_the_probe_between_two_of_its_own() -> None:
    first, second, third = leaks(3)
    daemon = Daemon(owners=Owners(refusals={second.ip: Reason.ADDRESS_IN_USE}))
    daemon.brake = Unavailable("brake", "the API server is away")
    assert reasons_of(daemon.twice(first, second, third)) == [
        [Reason.SOURCE_UNAVAILABLE],
        [Reason.ADDRESS_IN_USE],
        [Reason.SOURCE_UNAVAILABLE],
    ]
    assert daemon.brake_readings == 1


def test_a_dry_run_names_the_brake_and_how_to_end_it() -> None:
    daemon = Daemon()
    daemon.cleaner = daemon.new_cleaner(dry_run=True)
    on = Brake("kube-system/nodeleak-brake", on=True, reason="incident 42", since=NOW)
    blockers = {blocker.by: blocker for blocker in daemon.twice(LEAK, brake=on).blockers}
    blocker = blockers[BlockedBy.BRAKE_ON]
    assert blocker.network is None
    assert "since 2026-03-26 20:00:00Z: incident 42" in blocker.why
    assert "kubectl nodeleak brake off" in blocker.why
    assert daemon.brake_readings == 0, "it releases nothing"
    ended = daemon.twice(LEAK, brake=replace(on, on=False)).blockers
    assert BlockedBy.BRAKE_ON not in {blocker.by for blocker in ended}


def test_no_release_starts_long_after_its_snapshot() -> None:
    """By the boot clock: a wall clock that was set says nothing about the age of the snapshot."""
    for seconds, set_by in ((61, 0), (59, 0), (20 * 60, -20 * 60), (0, 20 * 60), (0, -20 * 60)):
        owners = Owners()
        daemon = Daemon(owners=owners)
        daemon.sync(LEAK)
        daemon.passed = timedelta(seconds=seconds)
        daemon.set_by = timedelta(seconds=set_by)
        cleaning = daemon.sync(LEAK)
        expired = seconds > 60
        assert (reasons_of(cleaning), cleaning.failed) == (
            [[Reason.SNAPSHOT_EXPIRED] if expired else []],
            False,
        )
        assert (owners.probed == [], THE_IP in daemon.names) == (expired, expired)


def test_after_a_list_that_lost_most_of_its_containers_nothing_is_released() -> None:
    daemon = Daemon()
    daemon.sync(LEAK, *(sandbox(f"{n:064x}", f"shop/p{n}") for n in range(9)))
    for _ in range(2):
        assert reasons_of(daemon.sync(LEAK)) == [[Reason.RUNTIME_DOUBTFUL]]
    assert THE_IP in daemon.names


def test_with_a_damaged_journal_only_a_person_releases_and_without_one_nobody() -> None:
    for unattended in (True, False):
        daemon = Daemon(limits=make_limits(unattended=unattended, release_host_ports=True))
        daemon.journal.damage = ("torn.json: no entry",)
        cleaning = daemon.twice(LEAK)
        assert reasons_of(cleaning) == [[Reason.JOURNAL_UNWRITABLE] if unattended else []]
        assert cleaning.warnings[0] == "journal: torn.json: no entry"
        assert (THE_IP in daemon.names) is unattended
    # One that is readable again ends the refusals, and a full disk refuses each release.
    daemon = Daemon()
    daemon.sync(*leaks(2))
    daemon.journal.unreadable = "journal: it broke"
    assert reasons_of(daemon.sync(*leaks(2))) == [[Reason.JOURNAL_UNWRITABLE]] * 2
    daemon.journal.unreadable, daemon.journal.unwritable = "", "No space left on device"
    assert reasons_of(daemon.sync(*leaks(2))) == [[Reason.JOURNAL_UNWRITABLE]] * 2
    assert len(daemon.names) == 4
    daemon.journal.unwritable = ""
    assert daemon.sync(*leaks(2)).tally() == {Verdict.RELEASED: 2}


def test_unfinished_entries_are_recovered_before_the_snapshot_those_of_a_running_cleaner_are_not() -> (
    None
):
    lost, gone = entry(reservation("10.9.0.2", network="storage"), None), entry(LEAK, None)
    daemon = Daemon(lost, gone)
    daemon.journal.other = "another cleaner is running"
    assert len(daemon.sync().warnings) == 2
    daemon.journal.other, daemon.files.broken = "", {"storage"}
    cleaning = daemon.sync()
    assert [entry.verdict for entry in daemon.journal.entries.values()] == [
        None,
        Verdict.IN_DOUBT,
    ]
    why = "and cannot be recovered now: storage: input/output error"
    assert cleaning.warnings == (f"journal: entry {lost.name} is unfinished, {why}",)
    assert daemon.sync(AGAIN).halted is not None, "it may have been released"


def test_a_released_container_that_reappears_halts_all_cleanup_until_it_is_resumed() -> None:
    records: tuple[Any, ...] = (
        AGAIN, sandbox(THE_ID, "shop/gone", "exited"), sandbox(THE_ID, "", "being created"), Checkpoint(THE_ID, ""),
    )  # fmt: skip
    for again in records:
        daemon, others = Daemon(entry(LEAK)), leaks(2)
        daemon.sync(*others)
        first = daemon.sync(again, *others)
        assert (first.halted or "").startswith(
            "released container 999999999999 reappeared (its address was 10.244.1.9;"
        )
        assert "nodeleak restore" in (first.halted or "")
        restarted = Daemon(journal=daemon.journal)
        for cleaning in (
            first,
            daemon.sync(*others),
            daemon.sync(*others),
            restarted.sync(*others),
        ):
            assert cleaning.halted == first.halted
            assert {reasons[0] for reasons in reasons_of(cleaning)} == {Reason.HALTED}
        assert len(daemon.names) == 4
        (halted,) = daemon.journal.entries.values()
        daemon.journal.entries[halted.name] = replace(halted, resumed=NOW)
        assert daemon.sync(*others).tally() == {Verdict.RELEASED: 2}
        assert daemon.sync(again).halted, (
            "a record of the container exists, and it was not restored"
        )


def test_a_halt_that_another_cleaner_records_stops_this_one() -> None:
    before, wanted = entry(LEAK), leaks(150)
    halted = replace(before, halted=NOW)
    # Between the snapshot and the release.
    daemon = Daemon(before)
    daemon.sync(*leaks(2))
    cleaning = daemon.sync(*leaks(2), meanwhile=[halted])
    assert reasons_of(cleaning) == [[Reason.HALTED]] * 2
    assert cleaning.halted == halted.reappearance
    assert len(daemon.names) == 4

    class HaltedWhileProbing(Owners):
        """The daemon records a halt while a command probes its second batch."""

        def probe(self, reservations: Sequence[Reservation]) -> dict[Any, ProbeResult]:
            found = super().probe(reservations)
            if len(self.probed) == 2:
                daemon.journal.entries[before.name] = halted
            return found

    # Between two batches.
    daemon = Daemon(before, limits=make_limits(max_share=1), owners=HaltedWhileProbing())
    cleaning = daemon.twice(*wanted)
    assert cleaning.tally() == {Verdict.RELEASED: 100, Verdict.REFUSED: 50}
    assert cleaning.halted == halted.reappearance
    daemon.journal.entries[before.name] = replace(halted, resumed=NOW)
    assert daemon.sync().halted is None, "whoever resumes cleanup ends the halt for all cleaners"


def test_the_text_of_a_halt_has_the_command_that_puts_the_address_back() -> None:
    released = entry(LEAK)
    assert f"`nodeleak restore {released.name} --apply` puts it back" in released.reappearance


def test_one_of_two_snapshots_is_enough_to_halt_and_a_dry_run_halts_too() -> None:
    for dry_run in (False, True):
        daemon = Daemon(entry(LEAK))
        if dry_run:
            daemon.cleaner = daemon.new_cleaner(dry_run=True)
        snapshots = node(AGAIN), node()
        assert daemon.clean(snapshots, scanned(*snapshots)).halted
        assert bool(daemon.journal.read().halting_entries()) is not dry_run
        assert bool(daemon.sync().halted) is not dry_run, (
            "nobody could resume what was not recorded"
        )
    # A halt that cannot be recorded lasts, and is recorded later, also if its entry was removed.
    daemon = Daemon(entry(LEAK))
    daemon.journal.other = "another cleaner is running"
    assert daemon.sync(AGAIN).halted
    assert daemon.sync().halted
    assert not daemon.journal.read().halting_entries()
    daemon.journal.other = ""
    daemon.journal.entries.clear()
    assert daemon.sync().halted
    (halted,) = daemon.journal.read().halting_entries()
    assert (halted.container_id, halted.verdict, halted.files) == (
        THE_ID,
        Verdict.RELEASED,
        (image(LEAK),),
    )
    daemon.journal.entries[halted.name] = replace(halted, resumed=NOW)
    assert daemon.sync().halted is None, "`nodeleak resume` ends it"


def test_containers_not_released_or_restored_may_exist() -> None:
    for harmless in (
        entry(LEAK, restored=NOW),
        entry(LEAK, Verdict.FAILED),
        entry(LEAK, Verdict.CHANGED),
        entry(LEAK, None),
        entry(empty_file(THE_IP)),
        entry(reservation(THE_IP, "8" * 64)),
    ):
        daemon = Daemon(harmless)
        # An unfinished entry is recovered first, from the files that are on the node.
        daemon.files.files["kubenet", THE_IP] = image(LEAK)
        assert daemon.sync(LEAK, AGAIN).halted is None


def test_what_another_cleaner_did_during_the_snapshot_did_not_reappear() -> None:
    released, once_more = entry(LEAK), entry(LEAK, actor="clean", at=NOW + SECOND)
    restored = replace(released, restored=NOW)
    not_restored = released.restoration_began(NOW).ended(Verdict.RELEASED, "")
    for meanwhile in ([restored], [restored, once_more], [not_restored]):
        daemon = Daemon(released)
        assert daemon.sync(AGAIN, meanwhile=meanwhile).halted is None
        watched = any(entry.released for entry in meanwhile)
        assert bool(daemon.sync(AGAIN).halted) is watched
    # The snapshot has the container, another `clean` releases it, and only then the journal is read again.
    daemon = Daemon()
    daemon.sync(LEAK)
    assert daemon.sync(LEAK, AGAIN, meanwhile=[once_more]).halted is None
    assert daemon.sync().halted is None
    # What was restored does not hide another that reappeared.
    first, second = leaks(2)
    released = entry(first)
    daemon = Daemon(released, entry(second))
    again = [sandbox(leak.container_id, "shop/gone") for leak in (first, second)]
    cleaning = daemon.sync(*again, meanwhile=[replace(released, restored=NOW)])
    assert "(its address was 10.244.1.12;" in (cleaning.halted or "")


def test_if_the_journal_becomes_unreadable_its_earlier_content_counts() -> None:
    class Failing(InMemoryJournal):
        """It can be read once a sync."""

        def read(self) -> Journal:
            journal, self.unreadable = super().read(), "it broke"
            return journal

    assert "reappeared" in (Daemon(journal=Failing(entry(LEAK))).sync(AGAIN).halted or "")


def test_a_budget_counts_addresses_and_skips_sandboxes_that_do_not_fit_or_are_refused() -> None:
    dual = [reservation(ip, age=timedelta(hours=9)) for ip in (THE_IP, "fd00::9")]
    in_use = reservation("10.244.1.8", "8" * 64, age=timedelta(hours=10))
    records = [*dual, *leaks(3), in_use, Address(in_use.ip, 1, "sh")]
    for most, expected in (
        (0, []),
        (1, ["10.244.1.11"]),
        (2, [THE_IP]),
        (3, [THE_IP, "10.244.1.11"]),
        (5, [THE_IP, "10.244.1.11", "10.244.1.12", "10.244.1.13"]),
    ):
        daemon = Daemon(budget=per_sync(most))
        done = verdicts_of(daemon.twice(*records, **DUAL))
        assert [ip for ip, verdict in done if verdict is Verdict.RELEASED] == expected


AN_HOUR_BEFORE = NOW + 2 * timedelta(seconds=15) - timedelta(hours=1)  # The second sync
UNCOUNTED: tuple[dict[str, Any], ...] = (
    {"verdict": Verdict.BUSY}, {"restored": NOW}, {"actor": "clean"}, {"at": AN_HOUR_BEFORE},
)  # fmt: skip
"""What the budget of an hour does not count."""


def test_a_refusal_names_each_limit_that_is_too_low_and_the_value_that_would_do() -> None:
    for a_sync, an_hour, spent, setting in (
        (2, 9, 0, "--max-per-sync=3"),
        (10, 60, 58, "--max-per-hour=61"),
        (2, 60, 63, "--max-per-sync=3 --max-per-hour=66"),
    ):
        lost = [reservation("10.0.0.9", f"{n:x}e" * 32) for n in range(70)]
        earlier = [entry(one, at=NOW) for one in lost[: max(0, spent - 2)]]
        if spent:
            earlier.append(
                entry(LEAK, at=NOW + OLD, files=(image(LEAK), image(LEAK6)))
            )  # the clock was set back
        earlier += [
            entry(one, **{"at": NOW} | fields)
            for one, fields in zip(lost[-4:], UNCOUNTED, strict=True)
        ]
        budget = {"per_sync": ("--max-per-sync", a_sync), "per_hour": ("--max-per-hour", an_hour)}
        daemon = Daemon(*earlier, budget=budget)
        over = [
            refusal for outcome in daemon.twice(*leaks(3)).outcomes for refusal in outcome.refusals
        ]
        assert {refusal.reason for refusal in over} == {Reason.OVER_BUDGET}
        assert len(over) == 3 - max(0, min(a_sync, an_hour - spent))
        assert over[-1].setting == setting
        assert "-3" not in over[-1].why


def test_releases_of_a_clock_that_was_years_ahead_do_not_spend_the_budget_for_years() -> None:
    day, budget = timedelta(days=1), {"per_hour": ("--max-per-hour", 1)}
    for ahead, counts in ((day / 2, True), (2 * day, False), (75 * 365 * day, False)):
        daemon = Daemon(entry(reservation("10.0.0.9", "8" * 64), at=NOW + ahead), budget=budget)
        expected = [[Reason.OVER_BUDGET]] if counts else [[]]
        assert reasons_of(daemon.twice(LEAK)) == expected


def free(cleaning: Cleaning) -> tuple[int | None, int | None]:
    return cleaning.free_before["kubenet"], cleaning.free_after["kubenet"]


def test_a_sync_releases_up_to_its_limit_the_next_continues_and_free_addresses_are_counted() -> (
    None
):
    daemon, left = Daemon(budget=per_sync(2)), leaks(3)
    assert free(daemon.sync(*left)) == (248, 248)
    assert free(daemon.sync(*left)) == (248, 250)
    assert daemon.names == ["10.244.1.13", "10.244.1.2", "10.244.1.3"], "the oldest first"
    assert free(daemon.sync(left[2])) == (250, 251)
    assert free(Daemon().sync(LEAK, node=[], cni_results=[])) == (None, None)
    odd = reservation("10.250.0.9")
    daemon = Daemon(limits=make_limits(only=frozenset({odd.ip})))
    cleaning = daemon.twice(odd)
    assert (verdicts_of(cleaning), free(cleaning)) == ([(odd.ip, Verdict.RELEASED)], (251, 251)), (
        "outside the range"
    )


def test_an_address_requested_by_name_without_anything_to_release_is_explained() -> None:
    limits = make_limits(only=frozenset({THE_IP, "10.244.1.2", "10.244.1.77", "10.244.1.99"}))
    cleaning = Daemon(limits=limits).sync(LEAK, unrecognized("10.244.1.77", blocks=True))
    assert [(address.ip, address.network, address.why) for address in cleaning.not_releasable] == [
        ("10.244.1.2", "kubenet", "in use: its container is running"),
        (
            "10.244.1.77",
            "kubenet",
            "unrecognized: it is a directory; host-local cannot give out the address",
        ),
        ("10.244.1.99", "", "not reserved"),
    ]
    assert Daemon().sync(LEAK).not_releasable == ()
    unread = without(node(LEAK), "reservations")
    cleaning = Daemon(limits=make_limits(only=frozenset({THE_IP}))).clean(
        (unread,), scanned(unread)
    )
    assert [address.why for address in cleaning.not_releasable] == [
        "not known: cannot read network kubenet"
    ]


def test_what_only_a_permission_keeps_from_a_release_is_counted_and_nothing_else() -> None:
    brake = Brake("kube-system/nodeleak-brake", on=True)
    records: list[Any] = [*leaks(3), Address(leaks(1)[0].ip, 1, "sh")]
    assert Daemon().twice(*records, brake=brake).releasable() == {"kubenet": 2}
    assert Daemon(budget=per_sync(1)).twice(*records).releasable() == {"kubenet": 1}
    label = make_limits(node_label="pool=web")
    assert Daemon(limits=label).twice(*records, brake=brake).releasable() == {"kubenet": 2}
    assert Daemon().twice(*records).releasable() == {}, "it has released them"
    trying = Daemon()
    trying.cleaner = trying.new_cleaner(dry_run=True)
    assert trying.twice(*records).releasable() == {"kubenet": 2}
    for source in ("brake", "pods"):
        unread = without(node(*records), source)
        daemon = Daemon()
        daemon.sync(*records)
        assert daemon.clean((unread,), scanned(unread)).releasable() is None, "it is not known"
    owners = Owners(refusals=dict.fromkeys((leaks(2)[1].ip,), Reason.ADDRESS_IN_USE))
    assert Daemon(owners=owners).twice(*leaks(2)).releasable() == {}, "something answers"

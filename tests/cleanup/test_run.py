"""The cleanup of a sync: a dry run and applied; alone and with other cleaners; what is remembered from sync to sync."""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.checks import engine
from agent.cleanup import run
from agent.cleanup.journal import Entry, Journal, JournalStore
from agent.cleanup.run import Apply, Budget, DryRun
from agent.cleanup.unlink import NodeFiles
from agent.model.release import Cleaning, ProbeResult, Reason, Refusal, Verdict
from agent.model.snapshot import Address, Checkpoint, Node, Reservation, ReservationKey, Snapshot
from agent.sources.host import reservations as host_local
from agent.sources.source_error import SourceError
from tests.builders import (
    GRACE,
    NOW,
    OLD,
    empty_file,
    make_limits,
    node,
    reservation,
    sandbox,
    scanned,
    without,
)
from tests.cleanup.file_operations import Files, InMemoryJournal, Network, Owners, image
from tests.cleanup.stores import another_process_locks
from tests.cleanup.syncs import LEAK, NONE, SECOND, THE_ID, THE_IP, Daemon, entry, leaks, reasons_of, verdicts_of

DUAL = reservation("fd00::9")
CIDRS = [Node("worker-1", ("10.244.1.0/24", "fd00::/64"), 110)]
AGAIN = sandbox(THE_ID, "shop/gone")


class Disk:
    """A node's reservations, libcni's cache and the agent's state on a disk, with one pod and the given leaks."""

    def __init__(self, home: Path, *leaked: Reservation) -> None:
        self.home, self.networks, self.cache = home, home / "networks", home / "cache"
        for directory in (self.networks / "kubenet", self.cache):
            directory.mkdir(parents=True)
        for leak in leaked:
            path = self.networks / "kubenet" / leak.ip
            path.write_bytes(image(leak).content)
            os.utime(path, ns=(leak.mtime_ns, leak.mtime_ns))
        (self.networks / "kubenet" / "last_reserved_ip.0").write_text(THE_IP)
        (self.networks / "kubenet" / "lock").touch()
        self.journal, self.now = JournalStore(home / "state"), NOW
        files = NodeFiles(self.networks, (self.cache,), 0.05, lambda: 0.0)
        self.session = make_limits(), NONE, "clean", self.journal, Owners().recheck(), files

    def apply(self) -> Cleaning:
        return self.clean(Apply(*self.session, now=lambda: self.now, lock_timeout=0.05))

    def clean(self, cleaner: DryRun) -> Cleaning:
        """Do what `nodeleak clean` does."""
        cleaner.before_snapshot()
        snapshots = self.snapshot(), self.snapshot()
        return cleaner.after_snapshot(snapshots, engine.replay(snapshots, grace=GRACE, confirm_after=timedelta(0)))

    def snapshot(self) -> Snapshot:
        return replace(node(), reservations=(host_local.read_reservations(self.networks, "kubenet"),))

    @property
    def reserved(self) -> list[str]:
        return sorted(path.name for path in (self.networks / "kubenet").iterdir() if path.name[0].isdigit())

    def everything(self) -> dict[str, tuple[int, int, int, bytes]]:
        """Return every file with everything that would change if it were touched."""
        found = {path: path.lstat() for path in sorted(self.home.rglob("*"))}
        return {
            str(path): (
                at.st_ino, at.st_mtime_ns, at.st_ctime_ns, path.read_bytes() if stat.S_ISREG(at.st_mode) else b""
            )
            for path, at in found.items()
        }  # fmt: skip


# A dry run, and applied


def test_a_dry_run_says_what_would_be_released_and_touches_nothing(tmp_path: Path) -> None:
    disk = Disk(tmp_path, LEAK, *leaks(3))
    before = disk.everything()
    cleaning = disk.clean(DryRun(*disk.session))
    assert {verdict for _, verdict in verdicts_of(cleaning)} == {Verdict.WOULD_RELEASE}
    assert (len(cleaning.outcomes), cleaning.applied) == (4, False)
    assert disk.everything() == before
    disk.journal.begin(entry(LEAK, None), ["as in a release"])
    before = disk.everything()
    cleaning = disk.clean(DryRun(*disk.session))
    assert cleaning.warnings[0].endswith("the next cleanup or restore recovers it")
    assert disk.everything() == before


def test_applied_releases_are_removed_journaled_and_reported(tmp_path: Path) -> None:
    disk = Disk(tmp_path, LEAK, *leaks(2))
    cleaning = disk.apply()
    assert verdicts_of(cleaning) == [(leak.ip, Verdict.RELEASED) for leak in (LEAK, *leaks(2))]
    assert disk.reserved == []
    entries = {entry.name: entry for entry in JournalStore(tmp_path / "state").read().entries}
    assert [
        (entries[outcome.entry].ips, entries[outcome.entry].verdict, entries[outcome.entry].actor)
        for outcome in cleaning.outcomes
    ] == [((leak.ip,), Verdict.RELEASED, "clean") for leak in (LEAK, *leaks(2))]


def test_a_dry_run_reports_what_applying_does_in_the_same_order() -> None:
    records = [*leaks(4), Address(leaks(1)[0].ip, 1, "sh"), reservation("10.250.0.9", "7" * 64, age=3 * OLD)]
    budget = Budget(per_sync=("--max-per-sync", 2))
    doing, trying = Daemon(budget=budget), Daemon(budget=budget)
    trying.cleaner = DryRun(*trying.session)
    for daemon in (doing, trying):
        daemon.sync(*records)
    before = trying.names
    tried, did = trying.sync(*records), doing.sync(*records)
    assert (trying.names == before, len(doing.names)) == (True, len(before) - 2)
    assert sorted((ip, verdict is Verdict.REFUSED) for ip, verdict in verdicts_of(tried)) == [
        ("10.244.1.11", True),
        ("10.244.1.12", False),
        ("10.244.1.13", False),
        ("10.244.1.14", True),
        ("10.250.0.9", True),
    ]
    assert [outcome.request for outcome in tried.outcomes] == [outcome.request for outcome in did.outcomes]
    assert reasons_of(tried) == reasons_of(did)
    assert tried.free_after == did.free_after


def test_a_leak_is_released_in_the_second_sync_not_the_first() -> None:
    daemon = Daemon()
    assert reasons_of(daemon.sync(LEAK)) == [[Reason.NOT_CONFIRMED]]
    assert THE_IP in daemon.names
    assert verdicts_of(daemon.sync(LEAK)) == [(THE_IP, Verdict.RELEASED)]
    assert THE_IP not in daemon.names
    for _ in range(3):
        assert daemon.sync().outcomes == ()


def test_a_sandbox_is_released_whole_with_one_entry_or_not_at_all() -> None:
    daemon = Daemon()
    daemon.files.broken = {DUAL.ip}
    daemon.sync(LEAK, DUAL, node=CIDRS)
    assert verdicts_of(daemon.sync(LEAK, DUAL, node=CIDRS)) == [(THE_IP, Verdict.FAILED)]
    assert {THE_IP, DUAL.ip} <= set(daemon.names)
    daemon = Daemon()
    daemon.sync(LEAK, DUAL, node=CIDRS)
    assert daemon.sync(LEAK, DUAL, node=CIDRS).tally() == {Verdict.RELEASED: 2}
    (written,) = daemon.journal_store.read().entries
    assert written.ips == (THE_IP, DUAL.ip)


# Recheck and probe


@pytest.mark.parametrize(
    ("recheck", "reason"),
    [
        (Owners(containers={THE_ID}), Reason.CONTAINER_EXISTS),
        (Owners(checkpoints={THE_ID}), Reason.TEARDOWN_PENDING),
        (Owners(holders={THE_IP: "process 7 (java)"}), Reason.ADDRESS_IN_USE),
        (Owners(objections={THE_IP: Reason.ADDRESS_IN_USE}), Reason.ADDRESS_IN_USE),
        (Owners(objections={THE_IP: Reason.PROBE_UNANSWERED}), Reason.PROBE_UNANSWERED),
    ],
)
def test_what_the_recheck_or_the_probe_finds_refuses_this_release(recheck: Owners, reason: Reason) -> None:
    daemon = Daemon(recheck=recheck)
    daemon.sync(LEAK, *leaks(1))
    cleaning = daemon.sync(LEAK, *leaks(1))
    assert dict(verdicts_of(cleaning)) == {THE_IP: Verdict.REFUSED, "10.244.1.11": Verdict.RELEASED}
    assert [reason] in reasons_of(cleaning)
    assert THE_IP in daemon.names
    assert [entry.ips for entry in daemon.journal_store.read().entries] == [("10.244.1.11",)]


def test_one_address_of_a_sandbox_that_answers_keeps_the_others() -> None:
    daemon = Daemon(recheck=Owners(objections={DUAL.ip: Reason.ADDRESS_IN_USE}))
    daemon.sync(LEAK, DUAL, node=CIDRS)
    cleaning = daemon.sync(LEAK, DUAL, node=CIDRS)
    assert cleaning.tally() == {Verdict.REFUSED: 2}
    assert cleaning.outcomes[0].refusals == (Refusal(Reason.ADDRESS_IN_USE, f"probe: {DUAL.ip} was probed"),)


def test_all_addresses_are_probed_at_once_in_turns_of_a_hundred_and_before_any_lock() -> None:
    class Observed(Owners):
        def probe(self, reservations: Sequence[Reservation]) -> dict[ReservationKey, ProbeResult]:
            assert not exclusive.held
            return super().probe(reservations)

    class Exclusive(InMemoryJournal):
        held = False

        @contextmanager
        def exclusive(self, seconds: float) -> Iterator[None]:
            with super().exclusive(seconds):
                self.held = True
                yield
                self.held = False

    recheck, exclusive = Observed(), Exclusive()
    daemon = Daemon(exclusive, recheck=recheck, limits=make_limits(max_share=1.0))
    many = [reservation(f"10.244.1.{10 + n}", f"{n:064x}") for n in range(230)]
    daemon.sync(*many)
    assert recheck.probed == []
    assert daemon.sync(*many).tally() == {Verdict.RELEASED: 230}
    assert [len(ips) for ips in recheck.probed] == [100, 100, 30]


def test_a_probe_that_fails_fails_every_release() -> None:
    class Broken(Owners):
        def probe(self, reservations: Sequence[Reservation]) -> dict[ReservationKey, ProbeResult]:
            raise SourceError(f"cannot ask the kernel for the route to {reservations[0].ip}: no buffer space available")

    daemon = Daemon(recheck=Broken())
    daemon.sync(*leaks(2))
    cleaning = daemon.sync(*leaks(2))
    assert cleaning.tally() == {Verdict.FAILED: 2}
    assert "no buffer space available" in cleaning.outcomes[1].why
    assert len(daemon.names) == 4


# A pause after a failure


def test_addresses_that_answer_do_not_hold_up_others_and_are_probed_every_ten_minutes() -> None:
    ghosts = [leak.ip for leak in leaks(2)]
    recheck = Owners(objections=dict.fromkeys(ghosts, Reason.ADDRESS_IN_USE))
    daemon = Daemon(recheck=recheck, budget=Budget(per_sync=("--max-per-sync", 2)))
    left = leaks(4)
    for _ in range(2 * 40):  # of 15 s
        daemon.sync(*left)
        left = [leak for leak in left if leak.ip in daemon.names]
    assert [leak.ip for leak in left] == ghosts
    assert sum(ghosts[0] in ips for ips in recheck.probed) == 2


def test_a_failed_release_is_paused_and_the_next_leak_of_the_address_is_not() -> None:
    first, second = leaks(2)
    daemon, after = Daemon(budget=Budget(per_sync=("--max-per-sync", 1))), reservation(first.ip, "8" * 64)
    daemon.sync(first, second)
    daemon.files.broken = {first.ip}
    cleaning = daemon.sync(first, second)
    assert verdicts_of(cleaning)[0] == (first.ip, Verdict.FAILED)
    assert cleaning.failed
    daemon.files.broken = set()
    assert verdicts_of(daemon.sync(first, second)) == [(second.ip, Verdict.RELEASED)]
    assert daemon.sync(first).outcomes == ()
    daemon.sync(after)
    assert verdicts_of(daemon.sync(after)) == [(first.ip, Verdict.RELEASED)]


def test_a_failed_release_is_tried_again_after_a_minute() -> None:
    (leak,) = leaks(1)
    daemon = Daemon()
    daemon.sync(leak)
    daemon.files.broken = {leak.ip}
    assert daemon.sync(leak).failed
    daemon.files.broken = set()
    outcomes = [verdicts_of(daemon.sync(leak)) for _ in range(5)]  # of 15 s
    assert outcomes.index([(leak.ip, Verdict.RELEASED)]) == 3


# Other cleaners, and restorations


def test_while_another_cleaner_runs_every_release_is_busy(tmp_path: Path) -> None:
    disk = Disk(tmp_path, LEAK, *leaks(2))
    with disk.journal.exclusive(0):
        cleaning = disk.apply()
    assert {verdict for _, verdict in verdicts_of(cleaning)} == {Verdict.BUSY}
    assert all("another cleaner is running on this node" in outcome.why for outcome in cleaning.outcomes)
    assert (len(cleaning.outcomes), cleaning.failed, len(disk.reserved)) == (3, True, 3)
    assert {verdict for _, verdict in verdicts_of(disk.apply())} == {Verdict.RELEASED}
    with disk.journal.exclusive(0):
        assert disk.apply().outcomes == (), "there is nothing to wait for"


def test_a_lock_held_by_host_local_is_waited_for_once_and_the_next_sync_retries(tmp_path: Path) -> None:
    disk = Disk(tmp_path, LEAK, *leaks(9))
    tries = 0

    class Counting(NodeFiles):
        def _try_locks(self, directories: Sequence[str]) -> Any:
            nonlocal tries
            tries += 1
            return super()._try_locks(directories)

    disk.session = (*disk.session[:-1], Counting(disk.networks, (), 0, lambda: 0.0))
    with another_process_locks(disk.networks / "kubenet" / "lock"):
        assert disk.apply().tally() == {Verdict.BUSY: 10}
    assert tries == 1
    assert disk.apply().tally() == {Verdict.RELEASED: 10}


def restoring() -> list[Entry]:
    """Return what may have been journaled of a sandbox while its snapshot was taken."""
    began = entry(LEAK, Verdict.FAILED).restoration_began(NOW)
    return [began, replace(began, restored=NOW, restoring=None), began.ended(Verdict.FAILED, "")]


@pytest.mark.parametrize("meanwhile", restoring())
def test_what_has_activity_in_the_journal_since_the_snapshot_is_not_released_in_this_sync(meanwhile: Entry) -> None:
    """The snapshot may show a part of the sandbox only."""
    daemon = Daemon(InMemoryJournal(entry(LEAK, Verdict.FAILED)))
    daemon.sync(LEAK)
    cleaning = daemon.sync(LEAK, *leaks(1), meanwhile=[meanwhile])
    assert (THE_IP, Verdict.CHANGED) in verdicts_of(cleaning)
    assert verdicts_of(daemon.sync(LEAK))[0] == (THE_IP, Verdict.RELEASED)


def test_a_release_of_another_cleaner_between_snapshot_and_lock_is_gone() -> None:
    class Late(Files):
        """Another process is faster."""

        @contextmanager
        def opened(self, directories: Any) -> Iterator[Any]:
            self.files.pop(("kubenet", THE_IP), None)
            yield {directory: Network(directory, self, locked=False) for directory in directories}

    daemon = Daemon()
    files = Late()
    daemon.files = files
    daemon.cleaner.files = files
    daemon.sync(LEAK)
    cleaning = daemon.sync(LEAK)
    assert verdicts_of(cleaning) == [(THE_IP, Verdict.GONE)]
    assert not cleaning.failed
    assert daemon.journal_store.read() == Journal()


# Interrupted, or too late


def test_after_a_signal_no_release_starts_and_none_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = Daemon()
    daemon.sync(*leaks(2))
    monkeypatch.setattr(run, "interrupted", lambda: True)
    cleaning = daemon.sync(*leaks(2))
    assert {verdict for _, verdict in verdicts_of(cleaning)} == {Verdict.INTERRUPTED}
    assert (cleaning.interrupted, cleaning.failed, len(daemon.names)) == (True, False, 4)
    assert daemon.journal_store.read() == Journal()
    monkeypatch.undo()
    assert {verdict for _, verdict in verdicts_of(daemon.sync(*leaks(2)))} == {Verdict.RELEASED}


@pytest.mark.parametrize("seconds", [-61, 61])
def test_no_release_starts_long_after_its_snapshot(seconds: int) -> None:
    """Either way: a clock that was set back says nothing about the age of the snapshot."""
    recheck = Owners()
    daemon = Daemon(recheck=recheck)
    daemon.sync(LEAK)
    assert isinstance(daemon.cleaner, Apply)
    daemon.cleaner.now = lambda: daemon.now + timedelta(seconds=seconds)
    cleaning = daemon.sync(LEAK)
    assert (reasons_of(cleaning), cleaning.failed) == ([[Reason.SNAPSHOT_EXPIRED]], False)
    assert recheck.probed == []
    daemon.cleaner.now = lambda: daemon.now + run.MAX_SNAPSHOT_AGE - SECOND
    assert verdicts_of(daemon.sync(LEAK)) == [(THE_IP, Verdict.RELEASED)]


# The journal


@pytest.mark.parametrize("damage", ["state", "cleaner.lock", "entry"])
def test_without_a_journal_nothing_is_released(tmp_path: Path, damage: str) -> None:
    disk = Disk(tmp_path, LEAK)
    if damage == "state":
        (tmp_path / "state").write_text("a file where the directory should be")
    else:
        (tmp_path / "state" / ("journal/x.json" if damage == "entry" else damage)).mkdir(parents=True)
    cleaning = disk.apply()
    assert reasons_of(cleaning) == [[Reason.JOURNAL_UNWRITABLE]]
    assert cleaning.journal_unwritable
    assert disk.reserved == [THE_IP]


def test_with_a_damaged_journal_only_a_person_releases(tmp_path: Path) -> None:
    disk, torn = Disk(tmp_path, LEAK), tmp_path / "state" / "journal" / "torn.json"
    torn.parent.mkdir(parents=True)
    torn.write_text('{"schema": "nodeleak.jou')
    unattended = make_limits(unattended=True, release_host_ports=True)
    cleaning = disk.clean(Apply(unattended, *disk.session[1:], now=lambda: NOW, lock_timeout=0.05))
    assert (reasons_of(cleaning), disk.reserved) == ([[Reason.JOURNAL_UNWRITABLE]], [THE_IP])
    cleaning = disk.apply()
    assert (verdicts_of(cleaning), disk.reserved) == ([(THE_IP, Verdict.RELEASED)], [])
    assert [warning for warning in cleaning.warnings if str(torn) in warning]


def test_a_journal_that_is_readable_again_ends_the_refusals_and_a_full_disk_refuses_each_release() -> None:
    class Full(InMemoryJournal):
        """It fails only when it is written."""

        def trouble(self) -> str:
            return ""

    journal = Full()
    daemon = Daemon(journal)
    daemon.sync(*leaks(2))
    journal.unreadable = "journal: it broke"
    assert reasons_of(daemon.sync(*leaks(2))) == [[Reason.JOURNAL_UNWRITABLE]] * 2
    journal.unreadable, journal.unwritable = "", "No space left on device"
    assert reasons_of(daemon.sync(*leaks(2))) == [[Reason.JOURNAL_UNWRITABLE]] * 2
    assert len(daemon.names) == 4
    journal.unwritable = ""
    assert daemon.sync(*leaks(2)).tally() == {Verdict.RELEASED: 2}


# Recovery


def test_unfinished_entries_are_recovered_before_the_snapshot_those_of_a_running_cleaner_are_not() -> None:
    lost, gone = entry(reservation("10.9.0.2", network="storage"), None), entry(LEAK, None)
    journal = InMemoryJournal(lost, gone)
    journal.other = "another cleaner is running"
    daemon = Daemon(journal)
    assert len(daemon.sync().warnings) == 2
    journal.other, daemon.files.broken = "", {"storage"}
    cleaning = daemon.sync()
    assert [entry.verdict for entry in journal.read().entries] == [None, Verdict.INTERRUPTED]
    assert cleaning.warnings == (f"journal: entry {lost.name} is unfinished, the next cleanup or restore recovers it",)
    assert daemon.sync(AGAIN).halted != "", "it may have been released"


def test_a_partly_released_sandbox_is_put_back() -> None:
    journal = InMemoryJournal(replace(entry(LEAK, None), files=(image(LEAK), image(DUAL))))
    daemon = Daemon(journal)
    daemon.files.files[DUAL.network, DUAL.ip] = image(DUAL)
    daemon.cleaner.before_snapshot()
    assert daemon.names == [THE_IP, DUAL.ip]
    assert [entry.verdict for entry in journal.read().entries] == [Verdict.FAILED]


# A halt


@pytest.mark.parametrize(
    "again",
    [AGAIN, sandbox(THE_ID, "shop/gone", "exited"), sandbox(THE_ID, "", "being created"), Checkpoint(THE_ID, "")],
    ids=["its container", "its dead container", "a record of the runtime", "its checkpoint"],
)
def test_a_released_container_that_reappears_halts_all_cleanup_until_it_is_resumed(again: Any) -> None:
    journal = InMemoryJournal(entry(LEAK))
    daemon, others = Daemon(journal), leaks(2)
    daemon.sync(*others)
    first = daemon.sync(again, *others)
    assert first.halted.startswith("released container 999999999999 reappeared (its address was 10.244.1.9;")
    assert "nodeleak restore" in first.halted
    for cleaning in (first, *(daemon.sync(*others) for _ in range(4)), Daemon(journal).sync(*others)):
        assert cleaning.halted == first.halted
        assert {(reasons[0], len(reasons) > 0) for reasons in reasons_of(cleaning)} == {(Reason.HALTED, True)}
    assert len(daemon.names) == 4
    (halted,) = journal.entries.values()
    journal.entries[halted.name] = replace(halted, resumed=NOW)
    assert daemon.sync(*others).tally() == {Verdict.RELEASED: 2}
    assert daemon.sync(again).halted, "a record of the container exists, and it was not restored"


@pytest.mark.parametrize("ip", [THE_IP, "10.244.1.200"], ids=["its address", "another address"])
def test_a_reservation_of_a_released_container_without_a_record_is_a_leak_like_any_other(ip: str) -> None:
    """A plugin that outlived its sandbox wrote it."""
    daemon = Daemon(InMemoryJournal(entry(LEAK)))
    young = daemon.sync(reservation(ip, age=SECOND), *leaks(1))
    assert (young.halted, reasons_of(young)[-1][0]) == ("", Reason.NOT_CONFIRMED)
    old = [daemon.sync(reservation(ip)) for _ in range(2)][-1]
    assert (old.halted, verdicts_of(old)) == ("", [(ip, Verdict.RELEASED)])
    assert daemon.sync(AGAIN).halted != ""


def test_one_of_two_snapshots_is_enough_to_halt_and_a_dry_run_halts_too() -> None:
    for cleaner in (DryRun, lambda *session: Apply(*session, now=lambda: NOW, lock_timeout=0)):
        daemon = Daemon(InMemoryJournal(entry(LEAK)))
        session = cleaner(*daemon.session)
        session.before_snapshot()
        snapshots = (node(AGAIN), node())
        assert session.after_snapshot(snapshots, scanned(*snapshots)).halted


def test_a_halt_that_cannot_be_recorded_lasts_and_is_recorded_later() -> None:
    journal = InMemoryJournal(entry(LEAK))
    daemon = Daemon(journal)
    journal.other = "another cleaner is running"
    assert daemon.sync(AGAIN).halted
    assert daemon.sync().halted
    assert not journal.read().halted()
    journal.other = ""
    assert daemon.sync().halted
    assert journal.read().halted()


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
    daemon.files.files["kubenet", THE_IP] = image(LEAK)
    assert daemon.sync(LEAK, AGAIN).halted == ""


RELEASED = entry(LEAK)
ONCE_MORE = entry(LEAK, actor="clean", at=NOW + SECOND)
MEANWHILE = (
    [replace(RELEASED, restored=NOW)],
    [replace(RELEASED, restored=NOW), ONCE_MORE],
    [RELEASED.restoration_began(NOW).ended(Verdict.RELEASED, "")],
)


@pytest.mark.parametrize("meanwhile", MEANWHILE, ids=["restored", "restored and released again", "not restored"])
def test_what_another_cleaner_did_during_the_snapshot_did_not_reappear(meanwhile: list[Entry]) -> None:
    daemon = Daemon(InMemoryJournal(RELEASED))
    assert daemon.sync(AGAIN, meanwhile=meanwhile).halted == ""
    assert bool(daemon.sync(AGAIN).halted) is any(entry.released for entry in meanwhile), (
        "and is watched for afterwards"
    )


def test_a_release_of_another_cleaner_during_the_snapshot_did_not_reappear() -> None:
    """The snapshot has the container, another `clean` releases it, and only then the journal is read again."""
    daemon = Daemon()
    daemon.sync(LEAK)
    assert daemon.sync(LEAK, AGAIN, meanwhile=[ONCE_MORE]).halted == ""
    assert daemon.sync().halted == ""


def test_a_restored_container_does_not_hide_another_that_reappeared() -> None:
    first, second = leaks(2)
    released = entry(first)
    daemon = Daemon(InMemoryJournal(released, entry(second)))
    again = [sandbox(leak.container_id, "shop/gone") for leak in (first, second)]
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


def test_a_sync_releases_up_to_its_limit_and_the_next_continues() -> None:
    daemon, left = Daemon(budget=Budget(per_sync=("--max-per-sync", 2))), leaks(5)
    daemon.sync(*left)
    for expected in (2, 2, 1):
        cleaning = daemon.sync(*left)
        assert cleaning.tally()[Verdict.RELEASED] == expected
        assert verdicts_of(cleaning)[:expected] == [(leak.ip, Verdict.RELEASED) for leak in left[:expected]]
        left = left[expected:]


def test_the_hourly_limit_survives_a_restart_of_the_daemon() -> None:
    journal, released, left = InMemoryJournal(), 0, leaks(9)
    for _ in range(3):
        daemon = Daemon(journal, budget=Budget(per_sync=("--max-per-sync", 2), per_hour=("--max-per-hour", 3)))
        for _ in range(3):
            released += daemon.sync(*left).tally()[Verdict.RELEASED]
            left = [leak for leak in left if leak.ip in daemon.names]
    assert released == 3
    over = daemon.sync(*left).outcomes[0].refusals[0]
    assert (over.reason, over.setting) == (Reason.OVER_BUDGET, "--max-per-hour=4")


# What is remembered of the runtime


def test_docker_that_lost_most_of_its_list_between_two_syncs_is_not_trusted_until_settled() -> None:
    daemon = Daemon()
    daemon.sync(LEAK, *(sandbox(f"{n:064x}", "") for n in range(100, 120)))
    for _ in range(21):
        assert reasons_of(daemon.sync(LEAK)) == [[Reason.RUNTIME_DOUBTFUL]], "five minutes, and not a moment less"
    assert verdicts_of(daemon.sync(LEAK)) == [(THE_IP, Verdict.RELEASED)]


# The summary


def free(cleaning: Cleaning) -> tuple[int | None, int | None]:
    return cleaning.free_before["kubenet"], cleaning.free_after["kubenet"]


def test_free_addresses_are_counted_before_and_after_the_releases() -> None:
    daemon = Daemon(budget=Budget(per_sync=("--max-per-sync", 2)))
    assert free(daemon.sync(*leaks(3))) == (248, 248)
    assert free(daemon.sync(*leaks(3))) == (248, 250)
    assert free(daemon.sync(leaks(3)[2])) == (250, 251)
    assert free(Daemon().sync(LEAK, node=[], cni_results=[])) == (None, None)
    odd = reservation("10.250.0.9")
    daemon = Daemon(limits=make_limits(only=frozenset({odd.ip})), actor="clean")
    daemon.sync(odd)
    cleaning = daemon.sync(odd)
    assert (verdicts_of(cleaning), free(cleaning)) == ([(odd.ip, Verdict.RELEASED)], (251, 251)), "outside the range"


def test_an_unavailable_source_is_reported_and_nothing_is_released() -> None:
    daemon, incomplete = Daemon(), without(node(LEAK), "pods")
    cleaning = daemon.cleaner.after_snapshot((incomplete,), scanned(incomplete))
    assert [source.source for source in cleaning.unavailable] == ["pods"]
    assert {refusal[0] for refusal in reasons_of(cleaning)} == {Reason.SOURCE_UNAVAILABLE}
    incomplete = without(node(LEAK), "reservations")
    assert free(daemon.cleaner.after_snapshot((incomplete,), scanned(incomplete))) == (None, None)

"""The cleanup of a sync: off, dry run and applied; alone and with other cleaners; recovery."""

import fcntl
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.checks import engine
from agent.cleanup import cleaner
from agent.cleanup.cleaner import ApplyingCleaner, Cleaner, DisabledCleaner, DryRunCleaner
from agent.cleanup.files import NodeFiles
from agent.cleanup.journal import Journal
from agent.cleanup.journal_store import JournalStore
from agent.cleanup.release import Step, run_steps
from agent.cleanup.session import Budget, CleanupSession
from agent.model.release import Cleaning, Outcome, ProbeResult, Reason, Refusal, ReleaseRequest, Verdict
from agent.model.snapshot import Address, Checkpoint, Node, PortMapping, Reservation, Snapshot
from agent.sources.host import reservations as host_local
from agent.sources.source_error import SourceError
from tests.builders import CIDR, GRACE, NOW, OLD, cni_result, make_limits, node, reservation, sandbox, scanned, without
from tests.cleanup.file_operations import Files, InMemoryJournal, Owners, image
from tests.cleanup.syncs import LEAK, NONE, THE_ID, THE_IP, Daemon, entry, leaks, reasons_of, verdicts_of

# Off, dry run, applied


def test_off_reports_nothing() -> None:
    off, snapshot = DisabledCleaner(), node(LEAK)
    off.before_snapshot(NOW)
    report = scanned(snapshot)
    assert off.after_snapshot((snapshot,), report) is None  # type: ignore[func-returns-value]
    assert report.cleaning is None


class Disk:
    """A node's reservations, libcni's cache and the agent's state on a disk, with one pod and the given leaks."""

    def __init__(self, home: Path, *leaked: Reservation) -> None:
        self.home, self.networks, self.cache = home, home / "networks", home / "cache"
        for directory in (self.networks / "kubenet", self.cache):
            directory.mkdir(parents=True)
        for one in leaked:
            path = self.networks / "kubenet" / one.ip
            path.write_bytes(image(one).content)
            os.utime(path, ns=(one.mtime_ns, one.mtime_ns))
        (self.networks / "kubenet" / "last_reserved_ip.0").write_text(THE_IP)
        (self.networks / "kubenet" / "lock").touch()
        self.journal_store = JournalStore(home / "state")
        self.now = NOW

    def snapshot(self, **changes: Any) -> Snapshot:
        return replace(node(**changes), reservations=(host_local.read_reservations(self.networks, "kubenet"),))

    def session(self, by: str = "clean") -> CleanupSession:
        return CleanupSession(make_limits(), NONE, self.journal_store, by)

    def applying(self) -> ApplyingCleaner:
        return ApplyingCleaner(
            self.session(), Owners(), self.file_ops, self.journal_store, lambda: self.now, lock_timeout=0.05
        )

    def file_ops(self) -> NodeFiles:
        return NodeFiles(self.networks, [self.cache], 0.05, lambda: 0.0)

    def clean(self, cleaner: Cleaner, **changes: Any) -> Cleaning:
        """Do what `nodeleak clean` does."""
        cleaner.before_snapshot(self.now)
        snapshots = (self.snapshot(**changes), self.snapshot(**changes))
        cleaning = cleaner.after_snapshot(snapshots, engine.replay(snapshots, grace=GRACE, confirm_after=timedelta(0)))
        assert cleaning is not None
        return cleaning

    def everything(self) -> dict[str, tuple[int, int, int, bytes]]:
        """Return every file with everything that would change if it were touched."""
        return {
            str(path.relative_to(self.home)): (
                path.lstat().st_ino,
                path.lstat().st_mtime_ns,
                path.lstat().st_ctime_ns,
                path.read_bytes() if stat.S_ISREG(path.lstat().st_mode) else b"",
            )
            for path in sorted(self.home.rglob("*"))
        }


def test_a_dry_run_says_what_would_be_released_and_touches_nothing(tmp_path: Path) -> None:
    disk = Disk(tmp_path, LEAK, *leaks(3))
    before = disk.everything()
    cleaning = disk.clean(DryRunCleaner(disk.session()))
    assert {verdict for _, verdict in verdicts_of(cleaning)} == {Verdict.WOULD_RELEASE}
    assert (len(cleaning.outcomes), cleaning.applied) == (4, False)
    assert disk.everything() == before
    assert not (tmp_path / "state").exists()


def test_a_dry_run_recovers_nothing(tmp_path: Path) -> None:
    disk = Disk(tmp_path, *leaks(1))
    disk.journal_store.begin(entry(LEAK, None), ["as in a release"])
    before = disk.everything()
    cleaning = disk.clean(DryRunCleaner(disk.session()))
    assert cleaning.warnings[0].endswith("the next cleanup or restore recovers it")
    assert disk.everything() == before


def test_applied_releases_are_removed_journaled_and_reported(tmp_path: Path) -> None:
    disk = Disk(tmp_path, LEAK, *leaks(2))
    cleaning = disk.clean(disk.applying())
    assert verdicts_of(cleaning) == [(one.ip, Verdict.RELEASED) for one in (LEAK, *leaks(2))]
    assert sorted(os.listdir(disk.networks / "kubenet")) == ["last_reserved_ip.0", "lock"]
    entries = {one.name: one for one in JournalStore(tmp_path / "state").read().entries}
    assert len(entries) == 3
    assert [
        (entries[one.entry].ips, entries[one.entry].verdict, entries[one.entry].by) for one in cleaning.outcomes
    ] == [((one.ip,), Verdict.RELEASED, "clean") for one in (LEAK, *leaks(2))]


def test_a_dry_run_reports_what_applying_does_in_the_same_order() -> None:
    records = [*leaks(4), Address(leaks(1)[0].ip, 1, "sh"), reservation("10.250.0.9", "7" * 64, age=3 * OLD)]
    budget = Budget(per_sync=("--max-per-sync", 2))
    doing = Daemon(budget=budget)
    trying = Daemon(budget=budget)
    trying.cleaner = DryRunCleaner(trying.session)
    for daemon in (doing, trying):
        daemon.sync(*records)
    before = trying.names
    tried, did = trying.sync(*records), doing.sync(*records)
    assert (trying.names == before, len(doing.names)) == (True, len(before) - 2)
    assert [(ip, verdict is Verdict.REFUSED) for ip, verdict in verdicts_of(tried)] == [
        ("10.244.1.12", False),
        ("10.244.1.13", False),
        ("10.250.0.9", True),
        ("10.244.1.11", True),
        ("10.244.1.14", True),
    ]
    assert [one.request for one in tried.outcomes] == [one.request for one in did.outcomes]
    assert reasons_of(tried) == reasons_of(did)
    assert tried.free_after == did.free_after


def test_a_leak_is_released_in_the_second_sync_not_the_first() -> None:
    daemon = Daemon()
    assert reasons_of(daemon.sync(LEAK)) == [[Reason.NOT_CONFIRMED]]
    assert THE_IP in daemon.names
    assert verdicts_of(daemon.sync(LEAK)) == [(THE_IP, Verdict.RELEASED)]
    assert THE_IP not in daemon.names
    assert daemon.sync().outcomes == ()


@pytest.mark.parametrize("lifted", [False, True])
def test_the_daemon_leaves_an_address_to_which_host_ports_are_forwarded(lifted: bool) -> None:
    daemon = Daemon(limits=make_limits(unattended=True, release_host_ports=lifted))
    result = replace(cni_result(THE_ID, "shop/gone", CIDR), port_mappings=(PortMapping(8080, "tcp"),))
    daemon.sync(LEAK, *leaks(1), result)
    cleaning = daemon.sync(LEAK, *leaks(1), result)
    assert reasons_of(cleaning) == ([[], []] if lifted else [[], [Reason.HOST_PORTS]])
    assert ((THE_IP, Verdict.RELEASED) in verdicts_of(cleaning)) is lifted


def test_a_healthy_node_is_cleaned_of_nothing() -> None:
    daemon = Daemon()
    for _ in range(3):
        assert daemon.sync().outcomes == ()
    assert daemon.journal_store.read() == Journal()


def test_a_sandbox_is_released_whole_with_one_entry() -> None:
    dual = reservation("fd00::9")
    cidrs = [Node("worker-1", ("10.244.1.0/24", "fd00::/64"), 110)]
    daemon = Daemon()
    daemon.sync(LEAK, dual, node=cidrs)
    assert daemon.sync(LEAK, dual, node=cidrs).tally() == {Verdict.RELEASED: 2}
    (written,) = daemon.journal_store.read().entries
    assert written.ips == (THE_IP, "fd00::9")


# Recheck


@pytest.mark.parametrize(
    ("recheck", "reason"),
    [
        (Owners(containers={THE_ID}), Reason.CONTAINER_EXISTS),
        (Owners(checkpoints={THE_ID}), Reason.TEARDOWN_PENDING),
        (Owners(holders={THE_IP: "process 7 (java)"}), Reason.ADDRESS_IN_USE),
    ],
)
def test_an_owner_found_by_the_recheck_refuses_the_release(recheck: Owners, reason: Reason) -> None:
    daemon = Daemon(recheck=recheck)
    daemon.sync(LEAK)
    cleaning = daemon.sync(LEAK)
    assert (verdicts_of(cleaning), reasons_of(cleaning)) == ([(THE_IP, Verdict.REFUSED)], [[reason]])
    assert THE_IP in daemon.names
    assert daemon.journal_store.read() == Journal()


# The probe

PROBED = [Reason.ADDRESS_IN_USE, Reason.PROBE_UNANSWERED]


@pytest.mark.parametrize("objection", PROBED)
def test_an_address_that_the_probe_objects_to_is_not_released(objection: Reason) -> None:
    daemon = Daemon(recheck=Owners(objections={THE_IP: objection}))
    daemon.sync(LEAK, *leaks(2))
    cleaning = daemon.sync(LEAK, *leaks(2))
    (refused,) = (one for one in cleaning.outcomes if one.verdict is Verdict.REFUSED)
    assert refused.refusals == (Refusal(objection, f"probe: {THE_IP} was probed"),)
    assert cleaning.tally() == {Verdict.REFUSED: 1, Verdict.RELEASED: 2}
    assert daemon.names == ["10.244.1.2", "10.244.1.3", THE_IP]


def test_one_address_of_a_sandbox_that_answers_keeps_the_others() -> None:
    daemon, dual = Daemon(recheck=Owners(objections={"fd00::9": Reason.ADDRESS_IN_USE})), reservation("fd00::9")
    cidrs = [Node("worker-1", ("10.244.1.0/24", "fd00::/64"), 110)]
    daemon.sync(LEAK, dual, node=cidrs)
    assert daemon.sync(LEAK, dual, node=cidrs).tally() == {Verdict.REFUSED: 2}


def test_all_addresses_of_a_sync_are_probed_at_once_and_before_any_lock() -> None:
    class Observed(Owners):
        def probe(self, ips: Sequence[str]) -> dict[str, ProbeResult]:
            assert not exclusive.held
            return super().probe(ips)

    class Exclusive(InMemoryJournal):
        held = False

        @contextmanager
        def exclusive(self, seconds: float) -> Iterator[None]:
            with super().exclusive(seconds):
                self.held = True
                yield
                self.held = False

    recheck, exclusive = Observed(), Exclusive()
    daemon = Daemon(exclusive, recheck=recheck)
    daemon.sync(*leaks(12))
    assert recheck.probed == []
    assert daemon.sync(*leaks(12)).tally() == {Verdict.RELEASED: 12}
    assert [sorted(ips) for ips in recheck.probed] == [sorted(one.ip for one in leaks(12))]


def test_so_many_addresses_are_probed_in_turns() -> None:
    recheck = Owners()
    daemon = Daemon(recheck=recheck, limits=make_limits(max_share=1.0))
    many = [reservation(f"10.244.1.{10 + n}", f"{n:064x}") for n in range(230)]
    daemon.sync(*many)
    assert daemon.sync(*many).tally() == {Verdict.RELEASED: 230}
    assert [len(ips) for ips in recheck.probed] == [100, 100, 30]


def test_a_probe_that_fails_fails_every_release() -> None:
    class Broken(Owners):
        def probe(self, ips: Sequence[str]) -> dict[str, ProbeResult]:
            raise SourceError(f"cannot ask the kernel for the route to {ips[0]}: no buffer space available")

    daemon = Daemon(recheck=Broken())
    daemon.sync(*leaks(2))
    cleaning = daemon.sync(*leaks(2))
    assert cleaning.tally() == {Verdict.FAILED: 2}
    assert "no buffer space available" in cleaning.outcomes[1].why
    assert len(daemon.names) == 4


def test_addresses_that_answer_do_not_hold_up_others_and_are_probed_less_and_less() -> None:
    ghosts = [one.ip for one in leaks(2)]
    recheck = Owners(objections=dict.fromkeys(ghosts, Reason.ADDRESS_IN_USE))
    daemon = Daemon(recheck=recheck, budget=Budget(per_sync=("--max-per-sync", 2)))
    left = leaks(4)
    for _ in range(20):
        daemon.sync(*left)
        left = [one for one in left if one.ip in daemon.names]
    assert [one.ip for one in left] == ghosts
    assert 2 <= sum(ghosts[0] in ips for ips in recheck.probed) <= 5


def test_an_expired_snapshot_is_not_probed() -> None:
    recheck = Owners()
    daemon = Daemon(recheck=recheck)
    daemon.sync(LEAK)
    daemon.session.observe(())
    late = ApplyingCleaner(
        daemon.session, recheck, lambda: daemon.files, daemon.journal_store,
        lambda: daemon.now + cleaner.MAX_SNAPSHOT_AGE + timedelta(minutes=1), lock_timeout=0,
    )  # fmt: skip
    daemon.cleaner = late
    assert reasons_of(daemon.sync(LEAK)) == [[Reason.SNAPSHOT_EXPIRED]]
    assert recheck.probed == []


# A restoration


@pytest.mark.parametrize("ends", [False, True])
def test_what_is_restored_during_the_snapshot_is_not_released_in_this_sync(ends: bool) -> None:
    """The snapshot may show a part of the sandbox only."""
    half = entry(LEAK, Verdict.FAILED)
    daemon = Daemon(InMemoryJournal(half))
    daemon.sync(LEAK)
    meanwhile = half.restoration_began(NOW)
    cleaning = daemon.sync(LEAK, meanwhile=[meanwhile.restoration_ended(NOW) if ends else meanwhile])
    assert verdicts_of(cleaning) == [(THE_IP, Verdict.CHANGED)]
    assert cleaning.outcomes[0].why == "the sandbox was being restored during the snapshot"
    assert verdicts_of(daemon.sync(LEAK)) == [(THE_IP, Verdict.RELEASED)]


# Another cleaner


def test_while_another_cleaner_runs_every_release_is_busy(tmp_path: Path) -> None:
    disk = Disk(tmp_path, LEAK, *leaks(2))
    with disk.journal_store.exclusive(0):
        cleaning = disk.clean(disk.applying())
    assert {verdict for _, verdict in verdicts_of(cleaning)} == {Verdict.BUSY}
    assert all("another cleaner is running on this node" in one.why for one in cleaning.outcomes)
    assert (len(cleaning.outcomes), cleaning.failed) == (3, True)
    assert (disk.networks / "kubenet" / THE_IP).exists()
    assert {verdict for _, verdict in verdicts_of(disk.clean(disk.applying()))} == {Verdict.RELEASED}


def test_without_releases_there_is_no_wait_for_another_cleaner(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    with disk.journal_store.exclusive(0):
        assert disk.clean(disk.applying()).outcomes == ()


def test_a_lock_held_by_host_local_is_busy_and_the_next_sync_retries(tmp_path: Path) -> None:
    disk = Disk(tmp_path, LEAK, *leaks(1))
    with (disk.networks / "kubenet" / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert {verdict for _, verdict in verdicts_of(disk.clean(disk.applying()))} == {Verdict.BUSY}
    assert {verdict for _, verdict in verdicts_of(disk.clean(disk.applying()))} == {Verdict.RELEASED}


def test_if_no_journal_entry_can_be_written_nothing_is_released(tmp_path: Path) -> None:
    disk = Disk(tmp_path, LEAK)
    (tmp_path / "state").write_text("a file where the directory should be")
    cleaning = disk.clean(disk.applying())
    assert reasons_of(cleaning) == [[Reason.JOURNAL_UNWRITABLE]]
    assert (disk.networks / "kubenet" / THE_IP).exists()


def test_if_the_cleaner_lock_cannot_be_created_nothing_is_released(tmp_path: Path) -> None:
    disk = Disk(tmp_path, LEAK)
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "cleaner.lock").mkdir()
    cleaning = disk.clean(disk.applying())
    assert reasons_of(cleaning) == [[Reason.JOURNAL_UNWRITABLE]]
    assert (disk.networks / "kubenet" / THE_IP).exists()


# Interrupted, or too late


def test_after_a_signal_no_release_starts_and_none_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = Daemon()
    daemon.sync(*leaks(2))
    monkeypatch.setattr(cleaner, "interrupted", lambda: True)
    cleaning = daemon.sync(*leaks(2))
    assert {verdict for _, verdict in verdicts_of(cleaning)} == {Verdict.INTERRUPTED}
    assert (cleaning.interrupted, cleaning.failed, len(daemon.names)) == (True, False, 4)
    assert daemon.journal_store.read() == Journal()
    monkeypatch.undo()
    assert {verdict for _, verdict in verdicts_of(daemon.sync(*leaks(2)))} == {Verdict.RELEASED}


@pytest.mark.parametrize("seconds", [-61, 61])
def test_no_release_starts_long_after_its_snapshot(tmp_path: Path, seconds: int) -> None:
    """Either way: a clock that was set back says nothing about the age of the snapshot."""
    disk = Disk(tmp_path, LEAK)
    applying = disk.applying()
    disk.now = NOW + timedelta(seconds=seconds)
    cleaning = disk.clean(applying)
    assert reasons_of(cleaning) == [[Reason.SNAPSHOT_EXPIRED]]
    assert not cleaning.failed
    assert (disk.networks / "kubenet" / THE_IP).exists()
    disk.now = NOW + timedelta(seconds=59)
    assert verdicts_of(disk.clean(applying)) == [(THE_IP, Verdict.RELEASED)]


# The journal


def test_while_the_journal_is_unreadable_nothing_is_released(tmp_path: Path) -> None:
    disk = Disk(tmp_path, LEAK)
    (tmp_path / "state" / "journal" / "x.json").mkdir(parents=True)
    cleaning = disk.clean(disk.applying())
    assert reasons_of(cleaning) == [[Reason.JOURNAL_UNWRITABLE]]
    assert cleaning.outcomes[0].refusals[0].why == (f"cannot read {tmp_path}/state/journal/x.json: not a regular file")
    assert (disk.networks / "kubenet" / THE_IP).exists()
    (tmp_path / "state" / "journal" / "x.json").rmdir()
    assert verdicts_of(disk.clean(disk.applying())) == [(THE_IP, Verdict.RELEASED)]


def test_a_journal_that_is_readable_again_ends_the_refusals() -> None:
    journal_store = InMemoryJournal()
    daemon = Daemon(journal_store)
    daemon.sync(LEAK)
    journal_store.unreadable = "journal: it broke"
    assert reasons_of(daemon.sync(LEAK)) == [[Reason.JOURNAL_UNWRITABLE]]
    journal_store.unreadable = ""
    assert verdicts_of(daemon.sync(LEAK)) == [(THE_IP, Verdict.RELEASED)]


def test_a_full_disk_refuses_each_release() -> None:
    class Full(InMemoryJournal):
        """It fails only when it is written."""

        def trouble(self) -> str:
            return ""

    journal_store = Full()
    journal_store.unwritable = "No space left on device"
    daemon = Daemon(journal_store)
    daemon.sync(*leaks(2))
    cleaning = daemon.sync(*leaks(2))
    assert reasons_of(cleaning) == [[Reason.JOURNAL_UNWRITABLE]] * 2
    assert len(daemon.names) == 4


def test_journal_damage_is_reported_and_does_not_stop_cleanup(tmp_path: Path) -> None:
    disk = Disk(tmp_path, LEAK)
    (tmp_path / "state" / "journal").mkdir(parents=True)
    (tmp_path / "state" / "journal" / "x.json").write_text("{ torn")
    cleaning = disk.clean(disk.applying())
    assert cleaning.warnings[0].startswith("journal: ")
    assert verdicts_of(cleaning) == [(THE_IP, Verdict.RELEASED)]


# Recovery


def test_an_unfinished_entry_whose_file_is_gone_is_recovered_before_the_snapshot() -> None:
    journal_store = InMemoryJournal(entry(LEAK, None))
    daemon = Daemon(journal_store)
    cleaning = daemon.sync()
    assert [one.verdict for one in journal_store.read().entries] == [Verdict.INTERRUPTED]
    assert cleaning.warnings == ()
    assert daemon.sync(sandbox(THE_ID, "shop/gone")).halted != ""


def test_an_unfinished_entry_whose_file_is_in_place_is_recovered_as_failed() -> None:
    journal_store = InMemoryJournal(entry(LEAK, None))
    daemon = Daemon(journal_store)
    daemon.files = Files([LEAK])
    daemon.sync(LEAK)
    assert [one.verdict for one in journal_store.read().entries] == [Verdict.FAILED]
    assert verdicts_of(daemon.sync(LEAK)) == [(THE_IP, Verdict.RELEASED)]


def test_a_partly_released_sandbox_is_put_back() -> None:
    dual = reservation("fd00::9")
    journal_store = InMemoryJournal(replace(entry(LEAK, None), files=(image(LEAK), image(dual))))
    daemon = Daemon(journal_store)
    daemon.files = Files([dual])
    daemon.cleaner.before_snapshot(NOW)
    assert daemon.names == [THE_IP, "fd00::9"]
    assert [one.verdict for one in journal_store.read().entries] == [Verdict.FAILED]


def test_an_entry_that_cannot_be_recovered_does_not_prevent_others() -> None:
    lost, found = entry(reservation("10.9.0.2", network="storage"), None), entry(LEAK, None)
    journal_store = InMemoryJournal(lost, found)
    daemon = Daemon(journal_store)
    daemon.files.broken = {"storage"}
    cleaning = daemon.sync()
    assert [one.verdict for one in journal_store.read().entries] == [None, Verdict.INTERRUPTED]
    assert cleaning.warnings == (f"journal: entry {lost.name} is unfinished, the next cleanup or restore recovers it",)


def test_an_unfinished_entry_of_another_running_cleaner_is_not_recovered() -> None:
    journal_store = InMemoryJournal(entry(LEAK, None))
    journal_store.other = "another cleaner is running"
    daemon = Daemon(journal_store)
    assert len(daemon.sync().warnings) == 1
    assert journal_store.read().unfinished()
    journal_store.other = ""
    assert daemon.sync().warnings == ()


# Report


def free(cleaning: Cleaning, network: str = "kubenet") -> tuple[int | None, int | None]:
    return cleaning.free_before[network], cleaning.free_after[network]


def test_free_addresses_are_counted_before_and_after_the_releases() -> None:
    daemon = Daemon(budget=Budget(per_sync=("--max-per-sync", 2)))
    assert free(daemon.sync(*leaks(3))) == (248, 248)
    assert free(daemon.sync(*leaks(3))) == (248, 250)
    assert free(daemon.sync(leaks(3)[2])) == (250, 251)
    assert free(daemon.sync()) == (251, 251)


def test_free_addresses_are_unknown_without_the_range_or_the_directory() -> None:
    daemon = Daemon()
    assert free(daemon.sync(LEAK, node=[], cni_results=[])) == (None, None)
    session = CleanupSession(make_limits(), NONE, InMemoryJournal(), "run")
    incomplete = without(node(LEAK), "reservations")
    assert free(session.cleaning(scanned(incomplete), (), applied=True)) == (None, None)


def test_an_address_outside_the_range_does_not_increase_free_addresses() -> None:
    odd = reservation("10.250.0.9")
    daemon = Daemon(limits=make_limits(only=frozenset({odd.ip})), by="clean")
    daemon.sync(odd)
    cleaning = daemon.sync(odd)
    assert verdicts_of(cleaning) == [(odd.ip, Verdict.RELEASED)]
    assert free(cleaning) == (251, 251)


def test_an_unavailable_source_is_reported_and_nothing_is_released() -> None:
    daemon = Daemon()
    daemon.sync(LEAK)
    session, incomplete = daemon.session, without(node(LEAK), "pods")
    report = scanned(incomplete)
    cleaning = DryRunCleaner(session).after_snapshot((incomplete,), report)
    assert [one.source for one in cleaning.unavailable] == ["pods"]
    assert {refusal[0] for refusal in reasons_of(cleaning)} == {Reason.SOURCE_UNAVAILABLE}


def test_docker_that_lost_most_of_its_list_between_two_syncs_is_not_trusted_until_settled() -> None:
    daemon = Daemon()
    crowd = [sandbox(f"{n:064x}", "") for n in range(100, 120)]
    daemon.sync(LEAK, *crowd)
    for _ in range(20):
        assert reasons_of(daemon.sync(LEAK)) == [[Reason.RUNTIME_DOUBTFUL]]
    assert reasons_of(daemon.sync(LEAK)) == [[Reason.RUNTIME_DOUBTFUL]], "five minutes, and not a moment less"
    assert verdicts_of(daemon.sync(LEAK)) == [(THE_IP, Verdict.RELEASED)]


def test_every_result_of_the_steps_has_an_outcome() -> None:
    taken: list[Step] = []

    def steps() -> Iterable[Step]:
        for step in Step:
            taken.append(step)
            yield step
        return Outcome(ReleaseRequest((LEAK,)), Verdict.GONE)  # type: ignore[return-value]

    outcome = run_steps(steps())  # type: ignore[arg-type]
    assert (taken, outcome.verdict) == (list(Step), Verdict.GONE)


def test_a_checkpoint_that_appears_between_two_syncs_delays_the_release() -> None:
    daemon = Daemon()
    daemon.sync(LEAK)
    assert reasons_of(daemon.sync(LEAK, Checkpoint(THE_ID, "shop/gone")))[0][0] is Reason.TEARDOWN_PENDING
    daemon.sync(LEAK)
    assert verdicts_of(daemon.sync(LEAK)) == [(THE_IP, Verdict.RELEASED)]

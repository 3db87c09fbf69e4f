"""Rounds of cleaning: off, tried and done; alone and beside others; and when cleaning must end for good."""

import fcntl
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agent import cycle
from agent.cleanup.actuator import Actuator
from agent.cleanup.book import Book
from agent.cleanup.cleaner import Cleaner, DryRun, Live, Off, through
from agent.cleanup.journal import Entry, Journal
from agent.cleanup.judge import HOUR, Budget, Judge
from agent.cleanup.steps import Step
from agent.grace import Memory
from agent.model.release import Candidate, Cleaning, Limits, Outcome, Reason, Verdict
from agent.model.snapshot import Address, Checkpoint, Node, Reservation, Snapshot
from agent.sources import reservations as host_local
from tests.builders import GRACE, NOW, OLD, cni_result, empty_file, limits, node, reservation, sandbox, scanned, without
from tests.cleanup.hands import Files, Notebook, Owners, kept

SECOND = timedelta(seconds=1)
THE_ID, THE_IP = "9" * 64, "10.244.1.9"
LEAK = reservation(THE_IP)
NONE = Budget()


def leaks(count: int) -> list[Reservation]:
    """Return leaks of different sandboxes, the first the oldest."""
    return [reservation(f"10.244.1.{10 + n}", f"{n:02x}" * 32, age=OLD - n * SECOND) for n in range(1, count + 1)]


def entry(one: Reservation, verdict: Verdict | None = Verdict.RELEASED, **more: Any) -> Entry:
    """Return the journal's entry of one release, an hour and a half ago unless it is said when."""
    at: datetime = more.pop("at", NOW - 1.5 * HOUR)
    name = f"{at:%H%M%S.%f}-{one.container_id[:12]}-{one.ip}"
    told = {"by": "run", "pod": "", "files": (kept(one),), "verdict": verdict} | more
    return Entry(name=name, at=at, container_id=one.container_id, **told)


class Daemon:
    """The rounds of one daemon, 15 s apart, over a node whose files are what each look says."""

    def __init__(
        self,
        book: Book | None = None,
        *,
        bold: Limits | None = None,
        budget: Budget = NONE,
        by: str = "run",
        again: Owners | None = None,
    ) -> None:
        self.files, self.book = Files(), book or Notebook()
        self.judge = Judge(bold or limits(), budget, self.book, by)
        self.cleaner: Cleaner = Live(
            self.judge, again or Owners(), lambda: self.files, self.book, lambda: self.now, lock_timeout=0
        )
        self.now = NOW
        self._memory: Memory | None = None

    def round(self, *things: Any, meanwhile: Sequence[Entry] = (), **changes: Any) -> Cleaning:
        """Look and clean. `meanwhile`: what other cleaners write between our reading of the journal and our look."""
        self.now += timedelta(seconds=15)
        self.cleaner.before_look(self.now)
        for one in meanwhile:
            assert isinstance(self.book, Notebook)
            self.book.entries[one.name] = one
        look = node(*things, **changes, later=self.now - NOW)
        self.files.files = {
            (one.network, one.ip): kept(one) for store in look.reservations for one in store.reading.known()
        }
        report, self._memory = cycle.run(look, self._memory, patience=GRACE, period=timedelta(0))
        cleaning = self.cleaner.after_look((look,), report)
        assert cleaning is not None
        return cleaning

    @property
    def names(self) -> list[str]:
        """The addresses that are reserved now."""
        return sorted(name for _, name in self.files.files)


def told(cleaning: Cleaning) -> list[tuple[str, Verdict]]:
    return [(one.candidate.reservations[0].ip, one.verdict) for one in cleaning.outcomes]


def why(cleaning: Cleaning) -> list[list[Reason]]:
    return [[no.reason for no in one.refusals] for one in cleaning.outcomes]


# Off, trying, doing


def test_off_says_nothing() -> None:
    off, look = Off(), node(LEAK)
    off.before_look(NOW)
    report = scanned(look)
    assert off.after_look((look,), report) is None  # type: ignore[func-returns-value]
    assert report.cleaning is None


class Disk:
    """A node's store, libcni's cache and the agent's state on a disk, with one pod and the leaks that are named."""

    def __init__(self, home: Path, *leaked: Reservation) -> None:
        self.home, self.networks, self.cache = home, home / "networks", home / "cache"
        for directory in (self.networks / "kubenet", self.cache):
            directory.mkdir(parents=True)
        for one in leaked:
            path = self.networks / "kubenet" / one.ip
            path.write_bytes(kept(one).content)
            os.utime(path, ns=(one.mtime_ns, one.mtime_ns))
        (self.networks / "kubenet" / "last_reserved_ip.0").write_text(THE_IP)
        (self.networks / "kubenet" / "lock").touch()
        self.book = Book(home / "state")
        self.now = NOW

    def look(self, **changes: Any) -> Snapshot:
        return replace(node(**changes), reservations=(host_local.read(self.networks, "kubenet"),))

    def judge(self, by: str = "clean") -> Judge:
        return Judge(limits(), NONE, self.book, by)

    def live(self) -> Live:
        return Live(self.judge(), Owners(), self.hands, self.book, lambda: self.now, lock_timeout=0.05)

    def hands(self) -> Actuator:
        return Actuator(self.networks, [self.cache], 0.05, lambda: 0.0)

    def clean(self, cleaner: Cleaner, **changes: Any) -> Cleaning:
        """Do what `nodeleak clean` does."""
        cleaner.before_look(self.now)
        looks = (self.look(**changes), self.look(**changes))
        cleaning = cleaner.after_look(looks, cycle.replay(looks, patience=GRACE, period=timedelta(0)))
        assert cleaning is not None
        return cleaning

    def everything(self) -> dict[str, tuple[int, int, int, bytes]]:
        """Return every name, with what would tell that it was touched."""
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
    cleaning = disk.clean(DryRun(disk.judge()))
    assert {verdict for _, verdict in told(cleaning)} == {Verdict.WOULD_RELEASE}
    assert (len(cleaning.outcomes), cleaning.applied) == (4, False)
    assert disk.everything() == before
    assert not (tmp_path / "state").exists()


def test_a_dry_run_settles_nothing(tmp_path: Path) -> None:
    disk = Disk(tmp_path, *leaks(1))
    disk.book.begin(entry(LEAK, None), ["as in a release"])
    before = disk.everything()
    cleaning = disk.clean(DryRun(disk.judge()))
    assert [warning.endswith("the next cleaning settles it") for warning in cleaning.warnings] == [True]
    assert disk.everything() == before


def test_live_releases_writes_it_down_and_says_the_same(tmp_path: Path) -> None:
    disk = Disk(tmp_path, LEAK, *leaks(2))
    cleaning = disk.clean(disk.live())
    assert told(cleaning) == [(one.ip, Verdict.RELEASED) for one in (LEAK, *leaks(2))]
    assert sorted(os.listdir(disk.networks / "kubenet")) == ["last_reserved_ip.0", "lock"]
    entries = Book(tmp_path / "state").read().entries
    assert [one.name for one in entries] == [one.entry for one in cleaning.outcomes]
    assert [(one.ips, one.verdict, one.by) for one in entries] == [
        ((one.ip,), Verdict.RELEASED, "clean") for one in (LEAK, *leaks(2))
    ]


def test_trying_says_the_same_as_doing_and_in_the_same_order() -> None:
    things = [*leaks(4), Address(leaks(1)[0].ip, 1, "sh"), reservation("10.250.0.9", "7" * 64, age=3 * OLD)]
    budget = Budget(per_round=("--max-per-round", 2))
    doing = Daemon(budget=budget)
    trying = Daemon(budget=budget)
    trying.cleaner = DryRun(trying.judge)
    for daemon in (doing, trying):
        daemon.round(*things)
    before = trying.names
    tried, did = trying.round(*things), doing.round(*things)
    assert (trying.names == before, len(doing.names)) == (True, len(before) - 2)
    assert [(ip, verdict is Verdict.REFUSED) for ip, verdict in told(tried)] == [
        ("10.244.1.12", False),
        ("10.244.1.13", False),
        ("10.250.0.9", True),
        ("10.244.1.11", True),
        ("10.244.1.14", True),
    ]
    assert [one.candidate for one in tried.outcomes] == [one.candidate for one in did.outcomes]
    assert why(tried) == why(did)
    assert tried.free_after == did.free_after


def test_a_leak_is_released_in_the_second_round_and_not_in_the_first() -> None:
    daemon = Daemon()
    assert why(daemon.round(LEAK)) == [[Reason.TOO_YOUNG]]
    assert THE_IP in daemon.names
    assert told(daemon.round(LEAK)) == [(THE_IP, Verdict.RELEASED)]
    assert THE_IP not in daemon.names
    assert daemon.round().outcomes == ()


def test_a_healthy_node_is_cleaned_of_nothing() -> None:
    daemon = Daemon()
    for _ in range(3):
        assert daemon.round().outcomes == ()
    assert daemon.book.read() == Journal()


def test_a_sandbox_is_released_whole_with_one_entry() -> None:
    dual = reservation("fd00::9")
    cidrs = [Node("worker-1", ("10.244.1.0/24", "fd00::/64"), 110)]
    daemon = Daemon()
    daemon.round(LEAK, dual, node=cidrs)
    assert daemon.round(LEAK, dual, node=cidrs).tally() == {Verdict.RELEASED: 2}
    (written,) = daemon.book.read().entries
    assert written.ips == (THE_IP, "fd00::9")


# The second look, and what comes between


@pytest.mark.parametrize(
    ("again", "reason"),
    [
        (Owners(containers={THE_ID}), Reason.CONTAINER_EXISTS),
        (Owners(checkpoints={THE_ID}), Reason.TEARDOWN_PENDING),
        (Owners(holders={THE_IP: "process 7 (java)"}), Reason.ADDRESS_ALIVE),
    ],
)
def test_asked_once_more_an_owner_that_came_up_is_a_no(again: Owners, reason: Reason) -> None:
    daemon = Daemon(again=again)
    daemon.round(LEAK)
    cleaning = daemon.round(LEAK)
    assert (told(cleaning), why(cleaning)) == ([(THE_IP, Verdict.REFUSED)], [[reason]])
    assert THE_IP in daemon.names
    assert daemon.book.read() == Journal()


# Another cleaner


def test_while_another_cleaner_is_at_work_all_are_busy(tmp_path: Path) -> None:
    disk = Disk(tmp_path, LEAK, *leaks(2))
    with disk.book.alone(0):
        cleaning = disk.clean(disk.live())
    assert {verdict for _, verdict in told(cleaning)} == {Verdict.BUSY}
    assert all("another cleaner is at work on this node" in one.why for one in cleaning.outcomes)
    assert (len(cleaning.outcomes), cleaning.failed) == (3, True)
    assert (disk.networks / "kubenet" / THE_IP).exists()
    assert {verdict for _, verdict in told(disk.clean(disk.live()))} == {Verdict.RELEASED}


def test_nobody_waits_for_another_cleaner_where_nothing_is_to_be_released(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    with disk.book.alone(0):
        assert disk.clean(disk.live()).outcomes == ()


def test_a_lock_held_by_host_local_is_busy_and_the_next_round_tries_again(tmp_path: Path) -> None:
    disk = Disk(tmp_path, LEAK, *leaks(1))
    with (disk.networks / "kubenet" / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert {verdict for _, verdict in told(disk.clean(disk.live()))} == {Verdict.BUSY}
    assert {verdict for _, verdict in told(disk.clean(disk.live()))} == {Verdict.RELEASED}


def test_where_no_journal_can_be_begun_nothing_is_released(tmp_path: Path) -> None:
    disk = Disk(tmp_path, LEAK)
    (tmp_path / "state").write_text("a file where the directory should be")
    cleaning = disk.clean(disk.live())
    assert why(cleaning) == [[Reason.JOURNAL_UNWRITABLE]]
    assert (disk.networks / "kubenet" / THE_IP).exists()


def test_where_the_cleaners_lock_cannot_be_made_nothing_is_released(tmp_path: Path) -> None:
    disk = Disk(tmp_path, LEAK)
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "cleaner.lock").mkdir()
    cleaning = disk.clean(disk.live())
    assert why(cleaning) == [[Reason.JOURNAL_UNWRITABLE]]
    assert (disk.networks / "kubenet" / THE_IP).exists()


# Seen again


ELSEWHERE = cni_result("8" * 64, "shop/x", "10.9.0.0/24", network="storage")


@pytest.mark.parametrize(
    "again",
    [
        sandbox(THE_ID, "shop/gone"),
        sandbox(THE_ID, "shop/gone", "exited"),
        reservation(THE_IP),
        reservation("10.244.1.200"),
    ],
    ids=["its container", "its dead container", "its address", "another address"],
)
def test_a_released_id_that_is_there_again_stops_all_cleaning(again: Any) -> None:
    daemon = Daemon(Notebook(entry(LEAK)))
    other = leaks(1)
    daemon.round(*other)
    cleaning = daemon.round(again, *other)
    assert cleaning.stopped.startswith(
        "container 999999999999 is there again, after its address 10.244.1.9 was released"
    )
    assert "nodeleak restore" in cleaning.stopped
    assert all(no[0] is Reason.STOPPED for no in why(cleaning))
    assert all(one.refusals[0].why == cleaning.stopped for one in cleaning.outcomes)


def test_it_stays_stopped_though_the_id_vanishes_again() -> None:
    daemon = Daemon(Notebook(entry(LEAK)))
    first = daemon.round(LEAK).stopped
    for _ in range(4):
        cleaning = daemon.round(*leaks(2))
        assert cleaning.stopped == first
        assert {no[0] for no in why(cleaning)} == {Reason.STOPPED}
        assert len(daemon.names) == 4


def test_what_this_daemon_released_itself_is_remembered_too() -> None:
    daemon = Daemon()
    daemon.round(LEAK)
    daemon.round(LEAK)
    assert not daemon.round().stopped
    assert daemon.round(sandbox(THE_ID, "shop/gone")).stopped


def test_one_of_two_looks_is_enough_to_see_it_again() -> None:
    judge = Judge(limits(), NONE, Notebook(entry(LEAK)), "clean")
    judge.before_look(NOW)
    looks = (node(LEAK), node())
    assert judge.case(looks, scanned(*looks)).stopped


def test_a_trial_stops_itself_too() -> None:
    daemon = Daemon(Notebook(entry(LEAK)))
    daemon.cleaner = DryRun(daemon.judge)
    assert daemon.round(LEAK).stopped


@pytest.mark.parametrize(
    "harmless",
    [
        entry(LEAK, restored=NOW),
        entry(LEAK, Verdict.FAILED),
        entry(LEAK, Verdict.CHANGED),
        entry(LEAK, None),
        entry(empty_file(THE_IP)),
        entry(reservation(THE_IP, "8" * 64)),
        entry(reservation(THE_IP, network="storage")),
    ],
    ids=["restored", "failed", "changed", "half", "an empty file", "another id", "another network"],
)
def test_what_was_not_released_or_was_restored_may_be_there(harmless: Entry) -> None:
    daemon = Daemon(Notebook(harmless))
    # Of half an entry nobody knows yet how it ended; that is settled first, with the files of the node as they are.
    daemon.files.files = {("kubenet", THE_IP): kept(LEAK)}
    assert daemon.round(LEAK).stopped == ""


def test_an_empty_file_may_be_there_again_after_one_was_released() -> None:
    daemon = Daemon(Notebook(entry(empty_file(THE_IP))))
    assert daemon.round(empty_file(THE_IP)).stopped == ""


def test_an_id_released_in_one_network_may_still_be_in_another_but_no_container_of_it() -> None:
    other = reservation("10.9.0.2", network="storage")
    daemon = Daemon(Notebook(entry(other)))
    assert daemon.round(LEAK, ELSEWHERE).stopped == ""
    assert daemon.round(LEAK, sandbox(THE_ID, "shop/gone")).stopped != ""


def test_what_another_released_while_we_looked_is_not_there_again() -> None:
    """Our look saw the file, another's `clean` removed it, and only then do we read of it."""
    daemon = Daemon()
    daemon.round(LEAK)
    cleaning = daemon.round(LEAK, meanwhile=[entry(LEAK, by="clean", at=NOW + SECOND)])
    assert cleaning.stopped == ""
    assert daemon.round().stopped == ""


def test_what_another_released_before_our_look_is_gone_from_it_and_that_is_well() -> None:
    daemon = Daemon()
    daemon.round(LEAK)
    cleaning = daemon.round(meanwhile=[entry(LEAK, by="clean", at=NOW + SECOND)])
    assert (cleaning.stopped, cleaning.outcomes) == ("", ())


def test_what_another_released_between_our_look_and_our_lock_is_gone() -> None:
    daemon = Daemon()
    daemon.round(LEAK)

    class Late(Files):
        """Somebody is quicker than we are."""

        def check(self, networks: Sequence[str]) -> None:
            super().check(networks)
            self.files.pop(("kubenet", THE_IP), None)

    daemon.files = Late()
    cleaning = daemon.round(LEAK)
    assert told(cleaning) == [(THE_IP, Verdict.GONE)]
    assert not cleaning.failed
    assert daemon.book.read() == Journal()


def test_what_was_restored_while_we_looked_is_not_there_again() -> None:
    released = entry(LEAK)
    daemon = Daemon(Notebook(released))
    assert daemon.round(LEAK, meanwhile=[replace(released, restored=NOW)]).stopped == ""


def test_what_was_restored_and_released_once_more_while_we_looked_is_not_there_again() -> None:
    released = entry(LEAK)
    daemon = Daemon(Notebook(released))
    once_more = entry(LEAK, by="clean", at=NOW + SECOND)
    assert daemon.round(LEAK, meanwhile=[replace(released, restored=NOW), once_more]).stopped == ""


def test_one_that_was_restored_hides_no_other_that_is_there_again() -> None:
    first, second = leaks(2)
    released = entry(first)
    daemon = Daemon(Notebook(released, entry(second)))
    cleaning = daemon.round(first, second, meanwhile=[replace(released, restored=NOW)])
    assert cleaning.stopped.startswith("container 020202020202 is there again, after its address 10.244.1.12")


def test_where_the_journal_cannot_be_read_once_more_what_it_said_before_the_look_stands() -> None:
    class Failing(Notebook):
        """It can be read once a round."""

        def read(self) -> Journal:
            journal, self.unreadable = super().read(), "it broke"
            return journal

    assert "is there again" in Daemon(Failing(entry(LEAK))).round(LEAK).stopped


# The journal


def test_while_the_journal_cannot_be_read_nothing_is_released(tmp_path: Path) -> None:
    disk = Disk(tmp_path, LEAK)
    (tmp_path / "state" / "journal" / "journal.jsonl").mkdir(parents=True)
    cleaning = disk.clean(disk.live())
    assert why(cleaning) == [[Reason.JOURNAL_UNWRITABLE]]
    assert cleaning.outcomes[0].refusals[0].why.startswith("journal: ")
    assert (disk.networks / "kubenet" / THE_IP).exists()
    (tmp_path / "state" / "journal" / "journal.jsonl").rmdir()
    assert told(disk.clean(disk.live())) == [(THE_IP, Verdict.RELEASED)]


def test_a_journal_that_can_be_read_again_ends_the_refusals_of_a_daemon() -> None:
    book = Notebook()
    daemon = Daemon(book)
    daemon.round(LEAK)
    book.unreadable = "journal: it broke"
    assert why(daemon.round(LEAK)) == [[Reason.JOURNAL_UNWRITABLE]]
    book.unreadable = ""
    assert told(daemon.round(LEAK)) == [(THE_IP, Verdict.RELEASED)]


def test_a_full_disk_is_a_refusal_of_each() -> None:
    class Full(Notebook):
        """It says so only when it is written to."""

        def trouble(self) -> str:
            return ""

    book = Full()
    book.unwritable = "No space left on device"
    daemon = Daemon(book)
    daemon.round(*leaks(2))
    cleaning = daemon.round(*leaks(2))
    assert why(cleaning) == [[Reason.JOURNAL_UNWRITABLE]] * 2
    assert len(daemon.names) == 4


def test_damage_is_told_and_stops_nothing(tmp_path: Path) -> None:
    disk = Disk(tmp_path, LEAK)
    (tmp_path / "state" / "journal").mkdir(parents=True)
    (tmp_path / "state" / "journal" / "journal.jsonl").write_text("{ torn\n")
    cleaning = disk.clean(disk.live())
    assert [warning.split(":")[0] for warning in cleaning.warnings] == ["journal"]
    assert told(cleaning) == [(THE_IP, Verdict.RELEASED)]


# What we died in the middle of


def test_a_half_entry_whose_file_is_gone_was_a_release_and_is_settled_before_the_look() -> None:
    book = Notebook(entry(LEAK, None))
    daemon = Daemon(book)
    cleaning = daemon.round()
    assert [one.verdict for one in book.read().entries] == [Verdict.RELEASED]
    assert cleaning.warnings == ()
    assert daemon.round(LEAK).stopped != ""


def test_a_half_entry_whose_file_is_in_place_released_nothing() -> None:
    book = Notebook(entry(LEAK, None))
    daemon = Daemon(book)
    daemon.files = Files([LEAK])
    daemon.round(LEAK)
    assert [one.verdict for one in book.read().entries] == [Verdict.FAILED]
    assert told(daemon.round(LEAK)) == [(THE_IP, Verdict.RELEASED)]


def test_half_a_sandbox_is_put_back() -> None:
    dual = reservation("fd00::9")
    book = Notebook(replace(entry(LEAK, None), files=(kept(LEAK), kept(dual))))
    daemon = Daemon(book)
    daemon.files = Files([dual])
    daemon.cleaner.before_look(NOW)
    assert daemon.names == [THE_IP, "fd00::9"]
    assert [one.verdict for one in book.read().entries] == [Verdict.FAILED]


def test_a_half_entry_that_cannot_be_settled_keeps_no_other_from_it() -> None:
    lost, found = entry(reservation("10.9.0.2", network="storage"), None), entry(LEAK, None)
    book = Notebook(lost, found)
    daemon = Daemon(book)
    daemon.files.broken = {"storage"}
    cleaning = daemon.round()
    assert [one.verdict for one in book.read().entries] == [None, Verdict.RELEASED]
    assert cleaning.warnings == (f"journal: entry {lost.name} never ended; the next cleaning settles it",)


def test_a_half_entry_is_left_to_another_cleaner_that_is_at_work() -> None:
    book = Notebook(entry(LEAK, None))
    book.other = "another cleaner is at work"
    daemon = Daemon(book)
    assert len(daemon.round().warnings) == 1
    assert book.read().half()
    book.other = ""
    assert daemon.round().warnings == ()


# Budgets


BUDGET = Budget(per_round=("--max-per-round", 2), per_hour=("--max-per-hour", 3))


def test_a_round_releases_so_many_and_the_next_goes_on_with_the_rest() -> None:
    daemon = Daemon(budget=Budget(per_round=("--max-per-round", 2)))
    daemon.round(*leaks(5))
    left = leaks(5)
    for expected in (2, 2, 1):
        cleaning = daemon.round(*left)
        assert cleaning.tally()[Verdict.RELEASED] == expected
        assert told(cleaning)[:expected] == [(one.ip, Verdict.RELEASED) for one in left[:expected]]
        left = left[expected:]


def test_an_hour_releases_so_many_and_a_daemon_that_restarts_does_not_forget_them() -> None:
    book = Notebook()
    released = 0
    left = leaks(9)
    for _ in range(3):
        daemon = Daemon(book, budget=BUDGET)
        for _ in range(3):
            released += daemon.round(*left).tally()[Verdict.RELEASED]
            left = [one for one in left if one.ip in daemon.names]
    assert released == 3
    over = daemon.round(*left).outcomes[0].refusals[0]
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
        ([{"at": NOW, "files": (kept(LEAK), kept(reservation("fd00::9")))}], 1),
        ([{"at": NOW - n * SECOND} for n in range(5)], -2),
    ],
    ids=[
        "nothing", "within the hour", "an hour ago", "within it by a second", "the clock was set back", "by hand",
        "restored", "failed", "two addresses", "a lower bound than before",
    ],
)  # fmt: skip
def test_the_hour_is_counted_from_what_the_journal_says(before: list[dict[str, Any]], left: int) -> None:
    journal = Journal(tuple(entry(LEAK, **one) for one in before))
    spent = BUDGET.spent(journal, NOW, "run")
    assert spent == {"--max-per-hour": 3 - left}
    assert BUDGET.left(spent) == (("--max-per-round", 2), ("--max-per-hour", left))


def test_without_bounds_nothing_is_counted() -> None:
    assert NONE.left(NONE.spent(Journal((entry(LEAK),)), NOW, "clean")) == ()


def test_what_failed_has_its_turn_after_all_that_did_not() -> None:
    first, second, third = leaks(3)
    daemon = Daemon(budget=Budget(per_round=("--max-per-round", 1)))
    daemon.round(first, second, third)
    daemon.files.broken = {first.ip}
    cleaning = daemon.round(first, second, third)
    assert told(cleaning)[0] == (first.ip, Verdict.FAILED)
    assert cleaning.failed
    assert first.ip in daemon.names
    assert told(daemon.round(first, second, third))[0] == (second.ip, Verdict.RELEASED)
    assert told(daemon.round(first, third))[0] == (third.ip, Verdict.RELEASED)
    daemon.files.broken = set()
    rounds = [told(daemon.round(first)) for _ in range(2)]
    assert rounds.count([(first.ip, Verdict.RELEASED)]) == 1, "what failed is tried in every other round"


def test_a_failure_is_forgotten_when_the_address_is_released() -> None:
    judge = Judge(limits(), NONE, Notebook(), "run")
    candidate = Candidate((LEAK,))
    for verdict, failed in (
        (Verdict.FAILED, 1),
        (Verdict.BUSY, 2),
        (Verdict.REFUSED, 2),
        (Verdict.RELEASED, 0),
        (Verdict.BUSY, 1),
        (Verdict.GONE, 0),
    ):
        judge.learn([Outcome(candidate, verdict)])
        assert judge.case((node(),), scanned(node())).failures.get(f"kubenet/{THE_IP}", 0) == failed


def test_a_sandbox_of_which_one_file_cannot_be_removed_stays_whole() -> None:
    dual = reservation("fd00::9")
    cidrs = [Node("worker-1", ("10.244.1.0/24", "fd00::/64"), 110)]
    daemon = Daemon()
    daemon.files.broken = {"fd00::9"}
    daemon.round(LEAK, dual, node=cidrs)
    cleaning = daemon.round(LEAK, dual, node=cidrs)
    assert told(cleaning) == [(THE_IP, Verdict.FAILED)]
    assert {THE_IP, "fd00::9"} <= set(daemon.names)


# What is told


def free(cleaning: Cleaning, network: str = "kubenet") -> tuple[int | None, int | None]:
    return cleaning.free_before[network], cleaning.free_after[network]


def test_free_addresses_are_those_before_and_those_without_what_was_released() -> None:
    daemon = Daemon(budget=Budget(per_round=("--max-per-round", 2)))
    assert free(daemon.round(*leaks(3))) == (248, 248)
    assert free(daemon.round(*leaks(3))) == (248, 250)
    assert free(daemon.round(leaks(3)[2])) == (250, 251)
    assert free(daemon.round()) == (251, 251)


def test_free_addresses_are_not_known_where_the_range_or_the_directory_is_not() -> None:
    daemon = Daemon()
    assert free(daemon.round(LEAK, node=[], cni_results=[])) == (None, None)
    judge = Judge(limits(), NONE, Notebook(), "run")
    silent = without(node(LEAK), "reservations")
    assert free(judge.cleaning(scanned(silent), (), applied=True)) == (None, None)


def test_an_address_outside_of_the_range_frees_nothing_in_it() -> None:
    odd = reservation("10.250.0.9")
    daemon = Daemon(bold=limits(only=frozenset({odd.ip})), by="clean")
    daemon.round(odd)
    cleaning = daemon.round(odd)
    assert told(cleaning) == [(odd.ip, Verdict.RELEASED)]
    assert free(cleaning) == (251, 251)


def test_what_could_not_be_read_is_told_and_nothing_was_touched() -> None:
    daemon = Daemon()
    daemon.round(LEAK)
    judge, silent = daemon.judge, without(node(LEAK), "pods")
    report = scanned(silent)
    cleaning = DryRun(judge).after_look((silent,), report)
    assert [one.source for one in cleaning.unread] == ["pods"]
    assert {no[0] for no in why(cleaning)} == {Reason.SOURCE_UNREAD}


def test_docker_that_lost_most_of_its_list_between_two_rounds_is_not_believed_until_it_has_settled() -> None:
    daemon = Daemon()
    crowd = [sandbox(f"{n:064x}", "") for n in range(100, 120)]
    daemon.round(LEAK, *crowd)
    for _ in range(20):
        assert why(daemon.round(LEAK)) == [[Reason.RUNTIME_DOUBTFUL]]
    assert why(daemon.round(LEAK)) == [[Reason.RUNTIME_DOUBTFUL]], "five minutes, and not a moment less"
    assert told(daemon.round(LEAK)) == [(THE_IP, Verdict.RELEASED)]


def test_every_step_is_taken_to_the_outcome() -> None:
    taken: list[Step] = []

    def steps() -> Iterable[Step]:
        for step in Step:
            taken.append(step)
            yield step
        return Outcome(Candidate((LEAK,)), Verdict.GONE)  # type: ignore[return-value]

    outcome = through(steps())  # type: ignore[arg-type]
    assert (taken, outcome.verdict) == (list(Step), Verdict.GONE)


def test_a_checkpoint_that_comes_between_two_rounds_is_waited_for() -> None:
    daemon = Daemon()
    daemon.round(LEAK)
    assert why(daemon.round(LEAK, Checkpoint(THE_ID, "shop/gone")))[0][0] is Reason.TEARDOWN_PENDING
    daemon.round(LEAK)
    assert told(daemon.round(LEAK)) == [(THE_IP, Verdict.RELEASED)]

"""A disk that hangs in the middle of a write of the journal: nothing is released for it, and recovery resolves it."""

import fcntl
import itertools
import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from agent.cleanup.cleaner import ApplyingCleaner
from agent.cleanup.journal_store import JournalStore
from agent.sources.deadline import Deadline
from agent.sources.source_error import SourceError
from tests.cleanup.file_operations import Owners
from tests.cleanup.leaks import leaks
from tests.cleanup.slow_disk import slow_disk
from tests.cleanup.stores import in_child, may_mount, mount
from tests.cleanup.syncs import entry
from tests.cleanup.test_cleaner import Disk
from tests.wire import until

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

SECONDS: Final = 1.5
LATE: Final = f"state: no complete response within {SECONDS:g} s"
IN_PLACE: Final = ["failed", "this release was interrupted; all reservations are in place"]
WAITING: Final = "state: still waiting for an earlier response"


class Node(Disk):
    """Its state directory is on a disk that can hang, and there are two leaks."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, *leaks(2))
        self.journal_store = JournalStore(home / "state", Deadline("state", SECONDS))
        ticks = (self.now + timedelta(milliseconds=n) for n in itertools.count())
        self.cleaner = ApplyingCleaner(
            self.session(), Owners(), self.file_ops, self.journal_store, lambda: next(ticks), lock_timeout=0.05
        )

    def sync(self) -> list[list[str]]:
        """Return what became of each leak, and why."""
        outcomes = self.clean(self.cleaner).outcomes
        return [[one.verdict.value, *[refusal.why for refusal in one.refusals], one.why] for one in outcomes]

    def begin(self) -> None:
        """Leave an entry as an agent does that dies before it removes the address."""
        JournalStore(self.home / "state").begin(entry(leaks(2)[0], None), ())

    def entries(self) -> list[list[str]]:
        """As another process reads them."""
        found = JournalStore(self.home / "state").read()
        assert not found.damage
        return [[one.verdict.value if one.verdict else "unfinished", one.why] for one in found.entries]

    def addresses(self) -> int:
        return len(list((self.networks / "kubenet").glob("10.*")))

    def answers(self) -> bool:
        try:
            self.journal_store.read()
        except SourceError:
            return False
        return True


@dataclass(frozen=True)
class Seen:
    """What a test saw while the disk hung, and after it."""

    syncs: list[list[list[str]]]
    locked: bool
    """Whether another cleaner had to wait."""
    left: int
    entries: list[list[str]]
    """As soon as the disk answered."""
    free: bool
    after: list[list[str]]
    entries_after: list[list[str]]
    left_after: int


def hanging(tmp_path: Path, operation: str, count: int = 1, *, unfinished: bool = False) -> Seen:
    """Let two syncs run into a disk that hangs, and one after it."""
    may_mount()
    behind, at = tmp_path / "behind", tmp_path / "node"
    behind.mkdir()

    def child() -> list[Any]:
        node = Node(at)
        (at / "state").mkdir()
        mount("-t", "tmpfs", "none", behind)
        with slow_disk(at / "state", behind) as disk:
            lock = os.open(at / "state" / "cleaner.lock", os.O_RDWR | os.O_CREAT)
            if unfinished:
                node.begin()
            disk.hang(operation, count)
            syncs = [node.sync(), node.sync()]
            disk.wait()
            during = [syncs, not locks(lock), node.addresses()]
            disk.go()
            until(node.answers, "the disk answers")
            return [*during, node.entries(), locks(lock), node.sync(), node.entries(), node.addresses()]

    return Seen(*in_child(child))


def locks(handle: int) -> bool:
    """Tell whether another cleaner could take the lock."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(handle, fcntl.LOCK_UN)
    return True


@pytest.mark.parametrize("operation", ["mkdir", "write", "fsync"])
def test_nothing_is_released_for_an_entry_that_may_be_written(tmp_path: Path, operation: str) -> None:
    seen = hanging(tmp_path, operation)
    assert seen.syncs == [[["refused", LATE, ""], ["refused", WAITING, ""]], [["refused", WAITING, ""]] * 2]
    assert (seen.left, seen.locked, seen.free) == (2, True, True), "the lock is held until the write has ended"
    # Where its directory was late, the whole entry was written late.
    assert seen.entries == [["unfinished", ""]]
    assert seen.after == [["released", ""]] * 2
    assert seen.entries_after == [[*IN_PLACE], ["released", ""], ["released", ""]]
    assert seen.left_after == 0


def test_an_outcome_that_may_be_written_is_found_by_the_next_recovery(tmp_path: Path) -> None:
    seen = hanging(tmp_path, "write", 2)
    why = f"the journal does not record the outcome: {LATE}"
    assert seen.syncs == [[["released", why], ["refused", WAITING, ""]], [["refused", WAITING, ""]]]
    assert (seen.left, seen.locked, seen.free) == (1, True, True)
    assert seen.entries == [["released", ""]]
    assert (seen.after, seen.left_after) == ([["released", ""]], 0)
    assert seen.entries_after == [["released", ""]] * 2


@pytest.mark.parametrize(("operation", "count"), [("open", 1), ("write", 1)], ids=["reading", "recording"])
def test_nothing_is_released_while_a_recovery_hangs(tmp_path: Path, operation: str, count: int) -> None:
    """What cannot be read is neither an empty journal nor one without unfinished entries."""
    seen = hanging(tmp_path, operation, count, unfinished=True)
    assert [verdict for one in seen.syncs for verdict, *_ in one] == ["refused"] * 4
    assert {why for one in seen.syncs for _, why, _ in one} <= {LATE, WAITING}
    assert (seen.left, seen.free) == (2, True)
    assert seen.locked == (operation == "write"), "to read, no lock is needed"
    assert seen.entries == [IN_PLACE if operation == "write" else ["unfinished", ""]]
    assert seen.after == [["released", ""]] * 2
    assert seen.entries_after == [[*IN_PLACE], ["released", ""], ["released", ""]]

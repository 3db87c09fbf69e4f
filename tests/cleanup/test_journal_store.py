"""The journal on a real disk: what was written is read, and damage is reported and affects no other entry."""

import errno
import json
import os
import stat
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cleanup.journal import RESERVATION, Entry, FileImage, Journal, JournalFull
from agent.cleanup.journal_store import Busy, JournalStore
from agent.model.release import Verdict
from agent.sources.source_error import SourceError
from tests.builders import GONE, NOW
from tests.cleanup.stores import (
    Store,
    another_process_locks,
    in_child,
    just_before,
    let_go,
    may_mount,
    mount,
    synced,
)
from tests.wire import as_nobody, needs, open_directory

KEPT = FileImage(
    RESERVATION,
    "kubenet",
    "10.244.1.9",
    f"{GONE}\r\neth0".encode(),
    0o644,
    0,
    0,
    17,
    1_700_000_000_123_456_789,
)
ENTRY = Entry("20260326T200000.000000Z-999999999999", NOW, "clean", GONE, "shop/old", (KEPT,))


@pytest.fixture
def journal(tmp_path: Path) -> JournalStore:
    return JournalStore(tmp_path / "state")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "journal" / f"{ENTRY.name}.json"


def named(name: str, **more: Any) -> Entry:
    return replace(ENTRY, name=name, **more)


def read_anew(file: Path) -> Journal:
    return JournalStore(file.parent.parent).read()


def test_an_entry_is_read_back_as_it_was_written(journal: JournalStore, file: Path) -> None:
    journal.begin(ENTRY, ("docker said so",))
    assert journal.read() == Journal((ENTRY,)) == read_anew(file)
    assert journal.read().unfinished() == (ENTRY,)
    ended = ENTRY.ended(Verdict.RELEASED, "why")
    assert (ended.ips, ended.reservations, ended.released) == (("10.244.1.9",), (KEPT,), True)
    begun = ended.restoration_began(NOW)
    assert (begun.released, begun.unfinished) == (False, True)
    restored = replace(begun, restoring=None, restored=NOW)
    halted = replace(restored, halted=NOW, resumed=NOW)
    for entry in (ended, begun, begun.ended(Verdict.RELEASED, "not restored"), restored, halted):
        journal.update(entry, NOW)
        assert journal.read() == Journal((entry,)) == read_anew(file)
    assert journal.read().released_from() == {}, "it was restored"


def test_an_entry_is_readable_by_people_and_keeps_its_evidence_word_for_word(
    journal: JournalStore, file: Path
) -> None:
    with journal.exclusive(0):
        journal.begin(ENTRY, ("docker said so",))
    journal.update(ENTRY.ended(Verdict.RELEASED, ""), NOW + timedelta(seconds=1))
    journal.update(replace(ENTRY.ended(Verdict.RELEASED, ""), halted=NOW), NOW + timedelta(days=1))
    document = json.loads(file.read_text())
    assert (document["schema"], document["evidence"]) == ("nodeleak.journal/v1", ["docker said so"])
    assert (document["began"], document["ended"]) == (
        "2026-03-26T20:00:00.000000Z",
        "2026-03-26T20:00:01.000000Z",
    )
    assert document["versions"].keys() == {"nodeleak", "python", "kernel"}
    assert document["files"] == [
        {
            "place": "reservation", "network": "kubenet", "name": "10.244.1.9", "text": f"{GONE}\r\neth0",
            "mode": "0644", "uid": 0, "gid": 0, "inode": 17,
            "mtime": "2023-11-14T22:13:20.123456Z", "mtime_ns": 1_700_000_000_123_456_789,
        }
    ]  # fmt: skip
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode)
        for path in (file.parent.parent, file.parent, file)
    }
    assert modes == {"state": 0o700, "journal": 0o700, file.name: 0o600}


def test_every_new_name_is_synced_to_disk_before_the_entry_starts(tmp_path: Path) -> None:
    state = tmp_path / "a" / "state"
    found = synced(lambda: JournalStore(state).begin(ENTRY, ()), lambda: None)
    directories = [path for path, _ in found if path.is_dir()]
    assert directories == [tmp_path, tmp_path / "a", state, state / "journal"]
    assert found[-2][0] not in directories, "the file itself, before its name"


def test_what_may_not_be_on_disk_is_taken_back(journal: JournalStore, file: Path) -> None:
    def act() -> list[str]:
        def broken(_: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        journal.begin(named("first"), ())
        os.fsync = broken  # type: ignore[assignment]
        try:
            journal.begin(named("second"), ())
        except OSError as error:
            return [error.filename, error.strerror]
        return []

    assert in_child(act) == [str(file.with_name("second.json")), "Input/output error"]
    assert [entry.name for entry in read_anew(file).entries] == ["first"]


DAMAGES = (
    b"", b"garbage", b"\x00\x01\xff\xfe", b"[]", b"7", b"null", b"{}", b"[" * 100_000,
    b'{"schema": "nodeleak.journal/v2", "entry": "x"}', b'{"schema": "nodeleak.journal/v1", "entry": "x"}',
)  # fmt: skip
TAMPERED: tuple[dict[str, Any], ...] = (
    *({"name": name} for name in ("../../../etc/passwd", "/etc/passwd", "", ".", "..", 7)),
    *({"name": name} for name in ("\0", "\ud800")),
    *({"network": name} for name in ("../../etc", "", None)),
    *({"text": text} for text in (7, None, "\ud800")),
    *({"data_dir": path} for path in ("../etc", ["/x"])),
    *({"mode": mode} for mode in ("rwx", "777777", "-1")),
    *({"mtime_ns": time} for time in (1.5, 2**63 * 10**9)),
    {"uid": -1},
    {"gid": 2**32},
)
WRONG_TYPES: tuple[dict[str, Any], ...] = (
    *({"entry": name} for name in (7, "../../other", "another")),
    *({"container_id": id_} for id_ in (5, ["x"], "\ud800")),
    *({"pod": name} for name in (["x"], None)),
    {"files": {}},
    {"files": [7]},
    *({"outcome": verdict} for verdict in (1, "done")),
    *({"began": time} for time in (7, "2026-03-26T20:00:00")),
    {"why": ["x"]},
    {"by": {}},
    {"restorations": "2"},
    {"restored": "soon"},
    {"halted": "9999-12-31T23:59:59-23:00"},
)


def test_a_damaged_entry_or_one_of_a_file_elsewhere_affects_no_other(
    journal: JournalStore, file: Path
) -> None:
    journal.begin(ENTRY, ())
    document = json.loads(file.read_text())
    damaged = file.with_name("20260326T200001.json")
    document |= {"entry": damaged.stem, "halted": document["began"]}
    changed = [{**document, "files": [document["files"][0] | part]} for part in TAMPERED]
    changed += [document | wrong for wrong in WRONG_TYPES]
    for damage in (*DAMAGES, *(json.dumps(tree).encode() for tree in changed)):
        damaged.write_bytes(damage)
        journal.update(ENTRY.ended(Verdict.RELEASED, ""), NOW)
        read = journal.read()
        assert [(entry.name, entry.verdict) for entry in read.entries] == [
            (ENTRY.name, Verdict.RELEASED)
        ]
        (message,) = read.damage
        assert message.startswith(f"{damaged}: ")
        assert damaged.read_bytes() == damage
        # Its words are those of any journal: nothing that reads them may fail.
        read.active_since(Journal())
        assert (read.halting_entries(), read.restored_sandboxes()) == ((), frozenset())
    damaged.write_text(json.dumps(document))
    assert [entry.name for entry in journal.read().halting_entries()] == [damaged.stem]


def test_entries_that_earlier_versions_wrote_are_read() -> None:
    state = Path(__file__).parent / "written_before"
    journal = JournalStore(state).read()
    assert journal.damage == ()
    first, second, third = journal.entries
    assert (first.verdict, first.restored, first.pod) == (Verdict.RELEASED, None, "shop/web")
    assert [image.place for image in first.files[:2]] == [RESERVATION] * 2
    assert (second.restored is not None, second.restorations) == (True, 1)
    assert (second.files[0].content, second.files[0].mode) == (b"\xff\xfe" + b"1" * 4, 0o640)
    assert (third.unfinished, third.directories) == (True, ("/run/cni-ipam-state/net1",))


def test_a_release_in_doubt_has_the_word_of_earlier_versions_on_disk(
    journal: JournalStore, file: Path
) -> None:
    journal.begin(ENTRY, ())
    in_doubt = ENTRY.ended(Verdict.IN_DOUBT, "")
    journal.update(in_doubt, NOW)
    assert json.loads(file.read_text())["outcome"] == "interrupted"
    assert read_anew(file).entries == (in_doubt,)


def test_what_others_wrote_is_read_and_what_a_killed_one_left_is_removed(
    journal: JournalStore, file: Path
) -> None:
    journal.begin(ENTRY, ())
    JournalStore(file.parent.parent).update(ENTRY.ended(Verdict.GONE, ""), NOW)
    assert journal.read().entries[0].verdict is Verdict.GONE
    left = file.with_name(f".{file.name}.x.nodeleak")
    left.write_text("{")
    file.unlink()
    assert journal.read() == Journal()
    with journal.exclusive(0):
        assert (left.exists(), journal.read()) == (False, Journal())


def test_a_journal_that_is_no_file_is_unavailable_without_waiting(
    journal: JournalStore, file: Path
) -> None:
    file.parent.mkdir(parents=True)
    makers: tuple[Callable[[Path], None], ...] = (
        Path.mkdir,
        lambda path: path.symlink_to("elsewhere"),
        os.mkfifo,
    )
    for number, make in enumerate(makers):
        make(file)
        start = time.perf_counter()
        with pytest.raises(SourceError, match=str(file)):
            journal.read()
        assert time.perf_counter() - start < 30
        file.rename(file.with_name(str(number)))


def test_a_file_that_is_too_large_is_damage_like_any_other(
    journal: JournalStore, file: Path
) -> None:
    """Whoever has to resume or restore must not have to remove it first."""
    journal.begin(ENTRY, ())
    huge = file.with_name("huge.json")
    with huge.open("wb") as content:
        content.truncate(16 * 1024 * 1024 + 1)
    read = journal.read()
    assert read.entries == (ENTRY,)
    (message,) = read.damage
    assert message.startswith(f"{huge}: ")
    assert "it has more than the limit of 16,777,216 bytes" in message
    assert JournalStore(file.parent.parent, max_entries=2).why_full(NOW) is not None


def test_an_entry_that_goes_while_the_journal_is_read_is_none(
    journal: JournalStore, file: Path
) -> None:
    """Another cleaner drops it, because the journal is full."""
    for name in ("a", "b", "c"):
        journal.begin(named(name), ())
    gone = file.with_name("a.json")

    content = gone.read_bytes()

    def opening() -> list[str]:
        just_before(
            "open",
            lambda arguments: (
                gone.unlink(missing_ok=True) if str(arguments[0]) == str(gone) else None
            ),
        )
        return [entry.name for entry in read_anew(file).entries]

    assert in_child(opening) == ["b", "c"]
    gone.write_bytes(content)
    lstat = Path.lstat

    def listing() -> list[str]:
        def drop(path: Path) -> os.stat_result:
            gone.unlink(missing_ok=True)
            return lstat(path)

        Path.lstat = drop  # type: ignore[assignment, method-assign]
        return [entry.name for entry in read_anew(file).entries]

    assert in_child(listing) == ["b", "c"]


def test_an_unreadable_journal_is_unavailable() -> None:
    needs(os.geteuid() == 0, "root, to be somebody else")
    with open_directory() as directory:
        JournalStore(directory).begin(ENTRY, ())
        for mode in (0o755, 0o700):
            (directory / "journal").chmod(mode)
            with (
                as_nobody(),
                pytest.raises(SourceError, match=r"permission denied \(run as root\)"),
            ):
                JournalStore(directory).read()
        with as_nobody():
            store = JournalStore(directory)
            assert store.why_unwritable() is not None
            assert (store.size(), store.why_full(NOW)) == (None, None)


def test_a_disk_without_room_is_known_before_a_release(tmp_path: Path) -> None:
    may_mount()

    def full() -> list[str | None]:
        mount("-t", "tmpfs", "-o", "size=8k", "none", tmp_path)
        empty = JournalStore(tmp_path / "state").why_unwritable()
        (tmp_path / "filler").write_bytes(b"x" * 8192)
        return [empty, JournalStore(tmp_path / "state").why_unwritable()]

    assert in_child(full) == [None, f"{tmp_path}: no space left on device"]


def released(name: str, **more: Any) -> Entry:
    return named(name, **more).ended(Verdict.RELEASED, "")


def written(journal: JournalStore, file: Path, entry: Entry, ago: timedelta) -> Path:
    """Write an entry as it was so long ago. Return its file."""
    journal.begin(replace(entry, verdict=None, restored=None, at=NOW - ago), ["x"])
    if entry.verdict:
        journal.update(entry, NOW - ago)
    path = file.with_name(f"{entry.name}.json")
    os.utime(path, ((NOW - ago).timestamp(),) * 2)
    return path


DAYS = timedelta(days=30)


def test_no_release_of_the_last_day_is_ever_dropped(tmp_path: Path, file: Path) -> None:
    journal, day = JournalStore(tmp_path / "state", max_entries=3), timedelta(hours=24)
    for number in range(3):
        assert journal.why_full(NOW) is None
        written(journal, file, released(str(number)), day - timedelta(seconds=number))
    full = f"the journal is full until {file.with_name('0.json')} is 24 hours old"
    assert journal.why_full(NOW) == full
    with pytest.raises(OSError, match=full):
        journal.begin(named("3"), ())
    journal.update(released("0"), NOW)  # what has begun can be ended, and was just written to
    os.utime(file.with_name("0.json"), (NOW.timestamp(),) * 2)
    assert journal.why_full(NOW + timedelta(seconds=2)) is None
    journal.begin(named("3", at=NOW + timedelta(seconds=2)), ())
    assert [entry.name for entry in read_anew(file).entries] == ["0", "2", "3"]


def test_what_a_protection_needs_is_never_dropped(tmp_path: Path) -> None:
    """Restored, unfinished, halted, or damaged, and thirty days old."""
    for number, kept in enumerate(
        (
            replace(released("0"), restored=NOW - DAYS),
            named("0"),
            released("0").restoration_began(NOW - DAYS),
            replace(released("0"), halted=NOW - DAYS),
            None,
        )
    ):
        state = tmp_path / str(number)
        journal = JournalStore(state, max_entries=3)
        file = state / "journal" / "x.json"
        path = written(journal, file, kept or released("0"), DAYS)
        if kept is None:
            path.write_bytes(path.read_bytes()[:-3])
            os.utime(path, ((NOW - DAYS).timestamp(),) * 2)
        content = path.read_bytes()
        for more in range(1, 9):
            written(journal, file, released(str(more)), DAYS - timedelta(days=more))
        assert path.read_bytes() == content
        assert sorted(found.name for found in file.parent.iterdir()) == [
            "0.json",
            "7.json",
            "8.json",
        ]
        read = JournalStore(state).read()
        assert len(read.damage) == (kept is None)
        assert kept is None or kept.name in {entry.name for entry in read.entries}


def test_a_journal_that_may_drop_nothing_says_so_and_what_to_do(tmp_path: Path, file: Path) -> None:
    journal = JournalStore(tmp_path / "state", max_entries=3)
    path = written(journal, file, replace(released("0"), restored=NOW - DAYS), DAYS)
    written(journal, file, named("1"), DAYS)
    written(journal, file, replace(released("2"), halted=NOW - DAYS), DAYS)
    full = (
        "the journal is full, and none of its 3 entries may be dropped "
        "(1 restored, 1 unfinished, 1 halted): "
        f"move those that are not needed any more out of {file.parent}"
    )
    assert journal.why_full(NOW) == full
    with pytest.raises(JournalFull) as raised:
        journal.begin(named("3"), ())
    assert str(raised.value) == full
    path.rename(tmp_path / path.name)
    assert journal.why_full(NOW) is None
    journal.begin(named("3"), ())
    # One that cleanup was resumed from is like any other.
    journal.update(replace(released("2"), halted=NOW - DAYS, resumed=NOW), NOW)
    os.utime(file.with_name("2.json"), ((NOW - DAYS).timestamp(),) * 2)
    assert journal.why_full(NOW) is None


def test_an_entry_of_a_full_journal_is_read_once(tmp_path: Path, file: Path) -> None:
    journal = JournalStore(tmp_path / "state", max_entries=20)
    for number in range(20):
        written(journal, file, released(f"{number:02}"), DAYS)

    def act() -> list[int]:
        opened: list[str] = []
        journal.read()
        just_before("open", lambda arguments: opened.append(str(arguments[0])))
        counts = []
        for number in range(20, 23):
            opened.clear()
            journal.begin(named(str(number)), ["x"])
            journal.read()
            counts.append(sum(name.endswith(".json") for name in opened))
        return counts

    assert max(in_child(act)) <= 2, "the one that was written since"


def test_entries_of_the_same_microsecond_have_different_names(store: Store) -> None:
    sandboxes = [
        (store.reserve(), store.reserve("fd00::9")),
        (store.reserve("10.244.1.8", "8" * 64),),
        *(
            (store.reserve(ip, "", content=b""),)
            for ip in ("10.244.1.10", "10.244.1.11", "fd00::a")
        ),
        (store.reserve("10.244.1.10", "", content=b"", network="net1"),),
    ]
    for reserved in sandboxes:
        assert store.release(*reserved, at=NOW).verdict is Verdict.RELEASED
    names = [entry.name for entry in store.journal().entries]
    assert len(names) == len(sandboxes)
    assert "20260326T200000.000000Z-999999999999" in names
    assert all(not set(name) & set(" /'\"$\\*") for name in names), "it can be typed"


@given(
    content=st.binary(max_size=60)
    | st.text().map(lambda text: text.encode(errors="surrogatepass")),
    mode=st.integers(0, 0o7777),
    owner=st.integers(0, 2**32 - 2),
    mtime_ns=st.integers(-(2**63) * 10**9 + 1, 2**63 * 10**9 - 1),
    data_dir=st.sampled_from(["", "/run/cni-ipam-state"]),
)
def test_any_file_is_stored_byte_for_byte(
    tmp_path_factory: pytest.TempPathFactory,
    content: bytes,
    mode: int,
    owner: int,
    mtime_ns: int,
    data_dir: str,
) -> None:
    image = FileImage(
        RESERVATION, "kubenet", "10.244.1.9", content, mode, owner, owner, 17, mtime_ns, data_dir
    )
    entry = replace(ENTRY, files=(image,))
    state = tmp_path_factory.mktemp("state")
    JournalStore(state).begin(entry, ())
    assert JournalStore(state).read() == Journal((entry,))


def test_only_one_cleaner_runs_at_a_time(journal: JournalStore, tmp_path: Path) -> None:
    with ExitStack() as stack:
        stack.enter_context(journal.exclusive(0))
        with pytest.raises(Busy, match=r"another cleaner is running .*cleaner\.lock"):
            stack.enter_context(JournalStore(tmp_path / "state").exclusive(0))
    with another_process_locks(tmp_path / "state" / "cleaner.lock") as other:
        start = time.perf_counter()
        with pytest.raises(Busy), journal.exclusive(0.1):
            pytest.fail("two cleaners")
        assert time.perf_counter() - start >= 0.1
        let_go(other)
        with journal.exclusive(5):
            assert other.wait() == 0
    # An error under the lock is not reported as another cleaner.
    with pytest.raises(BlockingIOError), journal.exclusive(0):
        raise BlockingIOError
    with journal.exclusive(0):
        assert journal.read() == Journal()


def test_a_lock_that_is_a_symlink_is_not_followed(journal: JournalStore, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "cleaner.lock").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic links"), journal.exclusive(0):
        pytest.fail("it was followed")
    assert not (tmp_path / "victim").exists()

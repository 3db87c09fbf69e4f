"""The journal on a real disk: what was written is read, damage is reported, and no line affects another."""

import base64
import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cleanup import journal
from agent.cleanup import journal_store as journal_store_module
from agent.cleanup.journal import JOURNAL_SCHEMA, Entry, Journal, entry_name, file_document
from agent.cleanup.journal_store import RETENTION, Busy, JournalStore
from agent.cleanup.release import RESERVATION, FileImage, JournalFull
from agent.config import all_settings
from agent.model.release import ReleaseRequest, Verdict
from agent.sources.source_error import SourceError
from tests.builders import GONE, NOW, WEB_ID, reservation
from tests.cleanup.stores import another_process_locks, handles, in_child, let_go, may_mount, mount
from tests.wire import as_nobody, needs, open_directory

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

KEPT = FileImage(
    RESERVATION, "kubenet", "10.244.1.9", f"{GONE}\r\neth0".encode(), 0o644, 0, 0, 17, 1_700_000_000_123_456_789
)
ENTRY = Entry("20260326T200000.000000Z-999999999999", NOW, "clean", GONE, "shop/old", (KEPT,))


@pytest.fixture
def journal_store(tmp_path: Path) -> JournalStore:
    return JournalStore(tmp_path / "state")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "journal" / f"{ENTRY.name}.json"


@pytest.fixture(autouse=True)
def _no_handle_is_left_open() -> Iterator[None]:
    before = handles()
    yield
    assert handles() == before


def named(name: str, **more: Any) -> Entry:
    return replace(ENTRY, name=name, **more)


def read_anew(file: Path) -> Journal:
    return JournalStore(file.parent.parent).read()


def error_of(act: Callable[[], object]) -> str:
    with pytest.raises(SourceError) as raised:
        act()
    return str(raised.value)


def test_a_finished_entry_is_read_back_unchanged(journal_store: JournalStore, file: Path) -> None:
    journal_store.begin(ENTRY, ("docker said so",))
    assert journal_store.read() == Journal((ENTRY,))
    assert journal_store.read().unfinished() == (ENTRY,)
    journal_store.end(ENTRY.name, Verdict.RELEASED, "why", NOW)
    ended = replace(ENTRY, verdict=Verdict.RELEASED, why="why")
    assert journal_store.read() == Journal((ended,)) == read_anew(file)
    assert (ended.ips, ended.reservations, ended.released) == (("10.244.1.9",), (KEPT,), True)
    assert journal_store.read().released_from() == {GONE: ended}
    journal_store.restoring(ENTRY.name, NOW)
    begun = replace(ended, restoring=NOW, restorations=1)
    assert journal_store.read() == Journal((begun,)) == read_anew(file)
    assert (begun.released, journal_store.read().unfinished()) == (False, (begun,))
    journal_store.end(ENTRY.name, Verdict.RELEASED, "not restored", NOW)
    failed = replace(ended, why="not restored", restorations=1)
    assert journal_store.read() == Journal((failed,)) == read_anew(file)
    assert (failed.released, journal_store.read().unfinished()) == (True, ())
    journal_store.restoring(ENTRY.name, NOW)
    journal_store.restored(ENTRY.name, NOW)
    assert journal_store.read() == Journal((replace(failed, restored=NOW, restorations=2),)) == read_anew(file)
    assert not journal_store.read().entries[0].released
    assert journal_store.read().released_from() == {}


def test_a_line_is_human_readable(journal_store: JournalStore, file: Path) -> None:
    journal_store.begin(ENTRY, ("docker said so",))
    line = json.loads(file.read_text())
    assert (line["schema"], line["began"], line["evidence"]) == (
        JOURNAL_SCHEMA,
        "2026-03-26T20:00:00.000000Z",
        ["docker said so"],
    )
    (document,) = line["files"]
    assert (document["text"], document["mode"]) == (f"{GONE}\r\neth0", "0644")
    assert document["mtime"] == "2023-11-14T22:13:20.123456Z"


def test_a_missing_journal_is_empty(journal_store: JournalStore) -> None:
    assert journal_store.read() == Journal()
    assert journal_store.trouble() == ""


def test_the_journal_is_readable_only_by_its_owner(journal_store: JournalStore, file: Path) -> None:
    with journal_store.exclusive(0):
        journal_store.begin(ENTRY, ())
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (file.parent.parent, file.parent, file)}
    assert modes == {"state": 0o700, "journal": 0o700, file.name: 0o600}


def test_every_new_name_is_synced_to_disk_before_the_entry_starts(tmp_path: Path) -> None:
    def act() -> list[str]:
        synced: list[str] = []
        fsync = os.fsync

        def record_fsync(handle: int) -> None:
            synced.append(str(Path(f"/proc/self/fd/{handle}").readlink()))
            fsync(handle)

        os.fsync = record_fsync  # type: ignore[assignment]
        journal_store = JournalStore(tmp_path / "a" / "state")
        journal_store.begin(ENTRY, ())
        return [one if Path(one).is_dir() else "the file" for one in synced]

    state = tmp_path / "a" / "state"
    assert in_child(act) == [*map(str, (tmp_path, tmp_path / "a", state)), "the file", str(state / "journal")]


# Damage.


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (b"", "incomplete, or not JSON"),
        (b"garbage", "incomplete, or not JSON"),
        (b"\x00\x01\xff\xfe", "incomplete, or not JSON"),
        (b"[]", "not a valid entry"),
        (b"7", "not a valid entry"),
        (b"null", "not a valid entry"),
        (b"{}", "not a valid entry"),
        (b'{"schema": "nodeleak.journal/v2", "entry": "x"}', "schema nodeleak.journal/v2 is not"),
        (b'{"schema": "%b"}' % (b"x" * 10_000), "schema xxxxx"),
        (b'{"schema": "nodeleak.journal/v1", "entry": "x"}', "not a valid entry"),
        (b"[" * 100_000, "incomplete, or not JSON"),
    ],
)
def test_a_damaged_entry_is_reported_and_affects_no_other(
    journal_store: JournalStore, file: Path, damage: bytes, expected: str
) -> None:
    journal_store.begin(ENTRY, ())
    damaged = file.with_name("20260326T200001.json")
    damaged.write_bytes(damage)
    journal_store.end(ENTRY.name, Verdict.RELEASED, "", NOW)
    image = journal_store.read()
    assert [(entry.name, entry.verdict) for entry in image.entries] == [(ENTRY.name, Verdict.RELEASED)]
    (message,) = image.damage
    assert message.startswith(f"{damaged}: ")
    assert expected in message
    assert len(message) < len(str(file)) + 300
    with pytest.raises(OSError, match="damaged") as raised:
        journal_store.restoring(damaged.stem, NOW)
    assert raised.value.filename == str(damaged)
    assert damaged.read_bytes() == damage, "it stays as it is"


def test_what_another_process_wrote_is_read(journal_store: JournalStore, file: Path) -> None:
    journal_store.begin(ENTRY, ())
    assert journal_store.read() == Journal((ENTRY,))
    JournalStore(file.parent.parent).end(ENTRY.name, Verdict.GONE, "", NOW)
    assert journal_store.read().entries[0].verdict is Verdict.GONE
    file.unlink()
    assert journal_store.read() == Journal()


def test_a_temporary_file_of_an_agent_that_died_is_no_entry(journal_store: JournalStore, file: Path) -> None:
    journal_store.begin(ENTRY, ())
    file.with_name(f".{file.name}.x.nodeleak").write_text("{")
    assert journal_store.read() == Journal((ENTRY,))


def make_directory(file: Path) -> None:
    file.mkdir()


def make_link(file: Path) -> None:
    file.with_name("elsewhere").write_text("")
    file.symlink_to("elsewhere")


def make_fifo(file: Path) -> None:
    os.mkfifo(file)


@pytest.mark.parametrize("make", [make_directory, make_link, make_fifo])
@pytest.mark.parametrize("name", ["20260326T200000.json"])
def test_a_journal_that_is_no_file_is_unavailable_without_waiting(
    journal_store: JournalStore, file: Path, make: Callable[[Path], None], name: str
) -> None:
    file.parent.mkdir(parents=True)
    make(file.with_name(name))
    start = time.perf_counter()
    assert error_of(journal_store.read).startswith(f"cannot read {file.with_name(name)}: ")
    assert time.perf_counter() - start < 1


@pytest.mark.parametrize("part", ["state", "state/journal"])
def test_a_file_in_place_of_the_directory_is_an_error(journal_store: JournalStore, tmp_path: Path, part: str) -> None:
    (tmp_path / part).parent.mkdir(exist_ok=True)
    (tmp_path / part).write_text("")
    assert journal_store.trouble() == f"{tmp_path / part} is not a directory"
    assert journal_store.read() == Journal()
    with pytest.raises(OSError, match=r"Not a directory|File exists"):
        journal_store.begin(ENTRY, ())


def test_an_unreadable_journal_is_unavailable() -> None:
    needs(os.geteuid() == 0, "root, to be somebody else")
    with open_directory() as directory:
        journal_store = JournalStore(directory)
        journal_store.begin(ENTRY, ())
        (directory / "journal").chmod(0o755)
        with as_nobody():
            file = directory / "journal" / f"{ENTRY.name}.json"
            assert error_of(JournalStore(directory).read) == f"cannot read {file}: permission denied (run as root)"
        (directory / "journal").chmod(0o700)
        with as_nobody():
            assert "permission denied" in error_of(JournalStore(directory).read)
            assert JournalStore(directory).trouble() != ""


def test_a_read_only_directory_is_an_error(tmp_path: Path) -> None:
    may_mount()

    def act() -> str:
        mount("-t", "tmpfs", "-o", "ro", "none", tmp_path)
        return JournalStore(tmp_path / "state").trouble()

    assert in_child(act) == f"{tmp_path} is mounted read-only"


def test_missing_parent_directories_are_created() -> None:
    assert JournalStore(Path("nowhere/at/all")).trouble() == ""


# Room.


def test_no_release_of_the_last_day_is_ever_dropped(
    journal_store: JournalStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_store_module, "MOST_ENTRIES", 3)
    names = ["0", "1", "2"]
    for number, name in enumerate(names):
        assert journal_store.room(NOW) == 3 - number
        journal_store.begin(named(name), ())
        os.utime(file.with_name(f"{name}.json"), (NOW.timestamp(), NOW.timestamp()))
    late = NOW + RETENTION
    assert journal_store.room(late) == 0
    with pytest.raises(JournalFull, match=rf"the journal is full until {file.with_name('0.json')} is 24 hours old"):
        journal_store.begin(named("3", at=late), ())
    journal_store.end("0", Verdict.RELEASED, "", NOW)
    journal_store.restoring("0", NOW)
    journal_store.restored("0", NOW)
    assert read_anew(file).entries[0].restored == NOW, "what is begun can be ended, and restored"
    os.utime(file.with_name("0.json"), (NOW.timestamp(), NOW.timestamp()))
    later = late + timedelta(seconds=1)
    assert journal_store.room(later) == 3
    journal_store.begin(named("3", at=later), ())
    assert [entry.name for entry in read_anew(file).entries] == ["1", "2", "3"]


def test_the_room_of_an_empty_journal_is_enough_for_what_the_daemon_releases_in_a_day(
    journal_store: JournalStore,
) -> None:
    assert journal_store.room(NOW) > 24 * int(all_settings()["max_per_hour"].default)


def test_the_size_is_that_of_all_files(journal_store: JournalStore, file: Path) -> None:
    assert journal_store.size() is None
    journal_store.begin(ENTRY, ())
    file.with_name("other.json").write_text("x" * 1000)
    assert journal_store.size() == file.stat().st_size + 1000


def test_a_size_that_cannot_be_told_is_not_known(tmp_path: Path) -> None:
    assert JournalStore(tmp_path / ("x" * 300)).size() is None


def test_a_journal_whose_directory_cannot_be_read_has_no_room(tmp_path: Path) -> None:
    assert JournalStore(tmp_path / ("x" * 300)).room(NOW) == 0


# Names and contents.


def test_entries_of_the_same_microsecond_have_different_ids() -> None:
    candidates = [
        ReleaseRequest((reservation("10.244.1.9"),)),
        ReleaseRequest((reservation("10.244.1.9", WEB_ID),)),
        ReleaseRequest((reservation("10.244.1.9", ""),)),
        ReleaseRequest((reservation("10.244.1.10", ""),)),
        ReleaseRequest((reservation("10.244.1.10", "", network="net1"),)),
        ReleaseRequest((reservation("fd00::9", ""),)),
    ]
    names = [entry_name(NOW, one) for one in candidates]
    assert len(set(names)) == len(names)
    assert names[0] == "20260326T200000.000000Z-999999999999"
    assert all(not set(name) & set(" /'\"$\\*") for name in names), "it can be typed"
    assert entry_name(NOW + timedelta(microseconds=1), candidates[0]) > names[0]


@given(
    content=st.binary(max_size=60) | st.text().map(lambda text: text.encode(errors="surrogatepass")),
    mode=st.integers(0, 0o7777),
    owner=st.integers(0, 2**32 - 2),
    mtime_ns=st.integers(-(2**63) * 10**9 + 1, 2**63 * 10**9 - 1),
)
def test_any_file_is_stored_byte_for_byte(content: bytes, mode: int, owner: int, mtime_ns: int) -> None:
    image = replace(KEPT, content=content, mode=mode, uid=owner, gid=owner, mtime_ns=mtime_ns)
    read = journal._file_image(json.loads(json.dumps(file_document(image))))  # noqa: SLF001 (a disk for each would take minutes)
    assert read == image


def test_a_lone_surrogate_in_a_pod_name_is_stored(journal_store: JournalStore) -> None:
    """JSON may hold it, UTF-8 may not."""
    journal_store.begin(replace(ENTRY, pod="shop/\ud800"), ())
    journal_store.end(ENTRY.name, Verdict.RELEASED, "/var/\udcff: gone", NOW)
    assert journal_store.read().damage == ()
    assert journal_store.read().entries[0].pod == "shop/\ud800"


@pytest.mark.parametrize(
    "tampered",
    [
        {"name": "../../../etc/passwd"},
        {"name": "/etc/passwd"},
        {"name": ""},
        {"name": "."},
        {"name": ".."},
        {"name": "10.244.1.9\0"},
        {"name": "lock"},
        {"name": "\ud800"},
        {"name": 7},
        {"name": ["10.244.1.9"]},
        {"network": "../../etc"},
        {"network": ""},
        {"network": None},
        {"text": 7},
        {"text": "\ud800"},
        {"mode": "rwx"},
        {"mode": "-1"},
        {"mode": "10000000"},
        {"mode": 420},
        {"uid": -1},
        {"uid": 2**32},
        {"gid": "root"},
        {"gid": float("inf")},
        {"mtime_ns": 10**40},
        {"mtime_ns": None},
        {"inode": "x"},
    ],
)
def test_an_entry_with_a_changed_file_is_damaged(
    journal_store: JournalStore, file: Path, tampered: dict[str, object]
) -> None:
    journal_store.begin(ENTRY, ())
    tree = json.loads(file.read_text())
    tree["files"][0] |= tampered
    file.write_text(json.dumps(tree))
    image = journal_store.read()
    assert image.entries == ()
    assert len(image.damage) == 1


@pytest.mark.parametrize(
    "line",
    [
        {"began": "yesterday"},
        {"began": "2026-03-26T20:00:00"},
        {"began": 7},
        {"files": [{}]},
        {"files": None},
        {"files": [{**file_document(KEPT), "base64": "?"}]},
    ],
)
def test_a_changed_start_of_an_entry_is_damaged(journal_store: JournalStore, file: Path, line: dict[str, Any]) -> None:
    journal_store.begin(ENTRY, ())
    whole = json.loads(file.read_text()) | line
    for one in whole["files"] or ():
        if "base64" in one:
            del one["text"]
    file.write_text(json.dumps(whole) + "\n")
    assert (journal_store.read().entries, len(journal_store.read().damage)) == ((), 1)


def test_binary_content_is_stored_as_base64() -> None:
    document = file_document(replace(KEPT, content=b"\xff\x00"))
    assert base64.b64decode(document["base64"]) == b"\xff\x00"
    assert "text" not in document


# Queries.


def test_releases_within_the_hour_are_counted(journal_store: JournalStore) -> None:
    hour_ago = NOW - timedelta(hours=1)
    for name, at, by, verdict in (
        ("old", hour_ago, "run", Verdict.RELEASED),
        ("new", NOW, "run", Verdict.RELEASED),
        ("later", NOW + timedelta(days=1), "run", Verdict.RELEASED),
        ("by hand", NOW, "clean", Verdict.RELEASED),
        ("busy", NOW, "run", Verdict.BUSY),
        ("restored", NOW, "run", Verdict.RELEASED),
    ):
        journal_store.begin(named(name, at=at, by=by, files=(KEPT, replace(KEPT, name="fd00::9"))), ())
        journal_store.end(name, verdict, "", at)
    journal_store.restored("restored", NOW)
    assert journal_store.read().released_since(hour_ago, "run") == 4


def test_an_empty_file_has_no_container_that_could_reappear(journal_store: JournalStore) -> None:
    journal_store.begin(replace(ENTRY, container_id=""), ())
    journal_store.end(ENTRY.name, Verdict.RELEASED, "", NOW)
    assert journal_store.read().released_from() == {}


# The cleaner's lock.


def test_only_one_cleaner_runs_at_a_time(journal_store: JournalStore, tmp_path: Path) -> None:
    with (
        journal_store.exclusive(0),
        pytest.raises(Busy, match=r"another cleaner is running .*cleaner\.lock"),
        JournalStore(tmp_path / "state").exclusive(0),
    ):
        pytest.fail("two cleaners")
    with another_process_locks(tmp_path / "state" / "cleaner.lock") as other:
        start = time.perf_counter()
        with pytest.raises(Busy), journal_store.exclusive(0.1):
            pytest.fail("two cleaners")
        assert time.perf_counter() - start >= 0.1
        let_go(other)
        with journal_store.exclusive(5):
            assert other.wait() == 0


def test_an_error_under_the_lock_is_not_reported_as_another_cleaner(journal_store: JournalStore) -> None:
    with pytest.raises(BlockingIOError), journal_store.exclusive(0):
        raise BlockingIOError
    with journal_store.exclusive(0):
        assert journal_store.read() == Journal()


def test_a_lock_that_is_a_symlink_is_not_followed(journal_store: JournalStore, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "cleaner.lock").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic links"), journal_store.exclusive(0):
        pytest.fail("it was followed")
    assert not (tmp_path / "victim").exists()


def test_a_failed_write_names_the_journal(journal_store: JournalStore, file: Path) -> None:
    def act() -> str:
        def broken(_: int) -> None:
            raise OSError(5, os.strerror(5))

        journal_store.begin(named("first"), ())
        os.fsync = broken  # type: ignore[assignment]
        try:
            journal_store.begin(named("second"), ())
        except OSError as error:
            return f"{error.filename}: {error.strerror}"
        return ""

    assert in_child(act) == f"{file.with_name('second.json')}: Input/output error"
    assert [entry.name for entry in read_anew(file).entries] == ["first"], "what may not be on disk is taken back"


def test_a_path_that_cannot_be_checked_is_an_error(tmp_path: Path) -> None:
    assert JournalStore(tmp_path / ("x" * 300)).trouble().endswith(": file name too long")

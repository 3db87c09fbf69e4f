"""The journal on a real disk: what was written is read, damage is reported, and no line affects another."""

import base64
import contextlib
import itertools
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
from agent.cleanup.journal import JOURNAL_SCHEMA, Entry, Journal, entry_name, file_document
from agent.cleanup.journal_store import BYTES_PER_ADDRESS, FILES, MAX_JOURNAL_BYTES, RETENTION, Busy, JournalStore
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
    return tmp_path / "state" / "journal" / "journal.jsonl"


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
    assert modes == {"state": 0o700, "journal": 0o700, "journal.jsonl": 0o600}


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
        first = len(synced)
        journal_store.end(ENTRY.name, Verdict.RELEASED, "", NOW)
        assert len(synced) == first + 1
        return synced

    state = tmp_path / "a" / "state"
    assert in_child(act) == [
        str(path)
        for path in (
            tmp_path, tmp_path / "a", state, state / "journal" / "journal.jsonl", state / "journal",
            state / "journal" / "journal.jsonl",
        )
    ]  # fmt: skip


def test_a_name_that_could_not_be_synced_is_synced_before_the_next_entry_starts(journal_store: JournalStore) -> None:
    def act() -> list[str]:
        attempts: list[str] = []
        fsync = os.fsync

        def fails_once(handle: int) -> None:
            attempts.append(Path(f"/proc/self/fd/{handle}").readlink().name)
            if attempts.count("journal") == 1 and attempts[-1] == "journal":
                raise OSError(5, os.strerror(5))
            fsync(handle)

        os.fsync = fails_once  # type: ignore[assignment]
        with contextlib.suppress(OSError):
            journal_store.begin(named("first"), ())
            attempts.append("the first was begun")
        journal_store.begin(named("second"), ())
        journal_store.begin(named("third"), ())
        return attempts[attempts.index("journal.jsonl") :]

    assert in_child(act) == ["journal.jsonl", "journal", "journal.jsonl", "journal", "journal.jsonl"]


# Damage.


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (b"garbage\n", "incomplete, or not JSON"),
        (b"\x00\x01\xff\xfe\n", "incomplete, or not JSON"),
        (b"[]\n", "not a valid entry"),
        (b"7\n", "not a valid entry"),
        (b"null\n", "not a valid entry"),
        (b"{}\n", "not a valid entry"),
        (b'{"schema": "nodeleak.journal/v2", "entry": "x"}\n', "schema nodeleak.journal/v2 is not"),
        (b'{"schema": "%b"}\n' % (b"x" * 10_000), "schema xxxxx"),
        (b'{"schema": "nodeleak.journal/v1", "entry": "x"}\n', ""),
        (b"[" * 100_000 + b"\n", "incomplete, or not JSON"),
    ],
)
def test_a_damaged_line_is_reported_with_file_and_line_and_affects_no_other(
    journal_store: JournalStore, file: Path, damage: bytes, expected: str
) -> None:
    journal_store.begin(ENTRY, ())
    with file.open("ab") as written:
        written.write(b"\n  \n" + damage)
    journal_store.end(ENTRY.name, Verdict.RELEASED, "", NOW)
    journal_store.begin(named("second"), ())
    image = journal_store.read()
    assert [(entry.name, entry.verdict) for entry in image.entries] == [
        (ENTRY.name, Verdict.RELEASED), ("second", None),
    ]  # fmt: skip
    if not expected:
        assert image.damage == ()
        return
    (message,) = image.damage
    assert message.startswith(f"{file}, line 4: ")
    assert expected in message
    assert len(message) < len(str(file)) + 300
    assert damage in file.read_bytes(), "it stays where it is"


@pytest.mark.parametrize("cut", [1, 2, 100, 400])
def test_after_an_incomplete_last_line_the_next_one_is_complete(
    journal_store: JournalStore, file: Path, cut: int
) -> None:
    journal_store.begin(named("first"), ())
    journal_store.begin(named("second"), ())
    whole = file.read_bytes()
    file.write_bytes(whole[:-cut])
    assert [entry.name for entry in journal_store.read().entries] == (["first", "second"] if cut == 1 else ["first"])
    journal_store.begin(named("third"), ())
    journal_store.end("first", Verdict.RELEASED, "", NOW)
    image = read_anew(file)
    assert [entry.name for entry in image.entries][-1] == "third"
    assert image.entries[0].verdict is Verdict.RELEASED
    assert len(image.damage) == (0 if cut == 1 else 1)


def make_directory(file: Path) -> None:
    file.mkdir()


def make_link(file: Path) -> None:
    file.with_name("elsewhere").write_text("")
    file.symlink_to("elsewhere")


def make_fifo(file: Path) -> None:
    os.mkfifo(file)


@pytest.mark.parametrize("make", [make_directory, make_link, make_fifo])
@pytest.mark.parametrize("name", ["journal.jsonl", "journal.2.jsonl"])
def test_a_journal_that_is_no_file_is_unavailable_without_waiting(
    journal_store: JournalStore, file: Path, make: Callable[[Path], None], name: str
) -> None:
    file.parent.mkdir(parents=True)
    make(file.with_name(name))
    start = time.perf_counter()
    assert error_of(journal_store.read).startswith(f"cannot read {file.with_name(name)}: ")
    assert time.perf_counter() - start < 1


@pytest.mark.parametrize("make", [make_directory, make_link, make_fifo])
def test_a_journal_that_is_no_file_is_not_written_to(
    journal_store: JournalStore, file: Path, make: Callable[[Path], None]
) -> None:
    file.parent.mkdir(parents=True)
    make(file)
    with pytest.raises(OSError, match=r".") as raised:
        journal_store.begin(ENTRY, ())
    assert raised.value.filename == str(file)
    assert not file.with_name("elsewhere").exists() or file.with_name("elsewhere").read_text() == ""


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
            file = directory / "journal" / "journal.jsonl"
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


def test_an_unchanged_journal_is_not_parsed_again(journal_store: JournalStore, file: Path) -> None:
    journal_store.begin(ENTRY, ())
    first = journal_store.read()
    assert journal_store.read() is first
    JournalStore(file.parent.parent).end(ENTRY.name, Verdict.GONE, "", NOW)
    assert journal_store.read().entries[0].verdict is Verdict.GONE
    file.unlink()
    assert journal_store.read() == Journal()


# Rotation.


def big(name: str) -> Entry:
    return named(name, files=(replace(KEPT, place="/cache", name="result", content=b"x" * 200_000), KEPT))


def age(file: Path, by: timedelta = RETENTION + timedelta(minutes=1)) -> None:
    """Let every file of the journal be last written to at NOW, or so long before it."""
    at = (NOW - by).timestamp()
    for path in file.parent.iterdir():
        os.utime(path, (at, at))


def test_the_journal_is_bounded_and_entries_survive_rotation(journal_store: JournalStore, file: Path) -> None:
    for number in range(80):
        entry = big(f"{number:02}")
        journal_store.begin(entry, ())
        journal_store.end(entry.name, Verdict.RELEASED, "", NOW)
        age(file)
    names = sorted(path.name for path in file.parent.iterdir())
    assert names == [*(f"journal.{number}.jsonl" for number in range(1, FILES)), "journal.jsonl"]
    assert all(path.stat().st_size < MAX_JOURNAL_BYTES + 210_000 for path in file.parent.iterdir())
    image = read_anew(file)
    assert image.damage == ()
    assert [entry.name for entry in image.entries] == [f"{number:02}" for number in range(80 - len(image.entries), 80)]
    assert len(image.entries) >= 9
    assert all(entry.released for entry in image.entries)
    assert image.entries[-1] == replace(big("79"), verdict=Verdict.RELEASED)


def test_no_release_of_the_last_day_is_ever_dropped(journal_store: JournalStore, file: Path) -> None:
    begun: list[str] = []
    room: list[int] = []
    full = f"the journal is full until {file.with_name('journal.7.jsonl')} is 24 hours old"

    def fill() -> None:
        for number in itertools.count():
            room.append(journal_store.room(NOW))
            journal_store.begin(big(f"{number:02}"), ())
            begun.append(f"{number:02}")
            age(file, RETENTION)

    with pytest.raises(JournalFull, match=full):
        fill()
    assert [entry.name for entry in read_anew(file).entries] == begun
    assert len(begun) * 200_000 > FILES * MAX_JOURNAL_BYTES
    assert room == sorted(room, reverse=True)
    assert room.count(0) * 210_000 > MAX_JOURNAL_BYTES, "it says that it is full while a file is to spare"
    journal_store.end("00", Verdict.RELEASED, "", NOW)
    journal_store.restoring("00", NOW)
    journal_store.restored("00", NOW)
    assert read_anew(file).entries[0].restored == NOW, "what is begun can be ended, and restored"
    age(file, RETENTION)
    later = NOW + timedelta(seconds=1)
    assert journal_store.room(later) > 0
    journal_store.begin(replace(big("later"), at=later), ())


def test_the_room_of_an_empty_journal_is_enough_for_what_the_daemon_releases_in_a_day(
    journal_store: JournalStore,
) -> None:
    assert journal_store.room(NOW) == (FILES - 1) * MAX_JOURNAL_BYTES // BYTES_PER_ADDRESS
    assert journal_store.room(NOW) > 24 * int(all_settings()["max_per_hour"].default)


def test_the_size_is_that_of_all_files(journal_store: JournalStore, file: Path) -> None:
    assert journal_store.size() is None
    journal_store.begin(ENTRY, ())
    file.with_name("journal.3.jsonl").write_text("x" * 1000)
    assert journal_store.size() == file.stat().st_size + 1000


def test_a_size_that_cannot_be_told_is_not_known(tmp_path: Path) -> None:
    assert JournalStore(tmp_path / ("x" * 300)).size() is None


def test_a_journal_whose_directory_cannot_be_read_has_no_room(tmp_path: Path) -> None:
    assert JournalStore(tmp_path / ("x" * 300)).room(NOW) == 0


def test_an_agent_that_died_while_it_rotated_has_dropped_nothing(journal_store: JournalStore, file: Path) -> None:
    """After each of its renames; the next rotation closes the gap."""
    for gap in range(1, FILES):
        journal_store.begin(ENTRY, ())
        for number in range(1, FILES):
            if number != gap:
                path = file.with_name(f"journal.{number}.jsonl")
                path.write_text(file.read_text().replace(ENTRY.name, f"{FILES - number:02}"))
        with file.open("a") as current:
            current.write(" " * MAX_JOURNAL_BYTES + "\n")
        before = [entry.name for entry in read_anew(file).entries]
        assert len(before) == FILES - 1
        journal_store.begin(named("next"), ())
        assert [entry.name for entry in read_anew(file).entries] == [*before, "next"]
        for path in file.parent.iterdir():
            path.unlink()


def test_an_entry_may_end_in_another_file_than_it_started_in(journal_store: JournalStore, file: Path) -> None:
    journal_store.begin(named("old"), ())
    for number in range(6):
        journal_store.begin(big(str(number)), ())
    journal_store.begin(named("new"), ())
    assert file.with_name("journal.1.jsonl").exists()
    journal_store.end("old", Verdict.RELEASED, "settled", NOW)
    journal_store.restored("old", NOW)
    image = read_anew(file)
    assert (image.entries[0].name, image.entries[0].verdict, image.entries[0].restored) == (
        "old", Verdict.RELEASED, NOW,
    )  # fmt: skip


def test_an_end_whose_start_was_rotated_away_is_no_damage(journal_store: JournalStore) -> None:
    journal_store.begin(ENTRY, ())
    journal_store.end("dropped", Verdict.RELEASED, "", NOW)
    journal_store.restoring("dropped", NOW)
    journal_store.restored("dropped", NOW)
    assert journal_store.read() == Journal((ENTRY,))


def test_if_rotation_fails_no_entry_is_written(journal_store: JournalStore, file: Path) -> None:
    for number in range(6):
        journal_store.begin(big(str(number)), ())
    for number in range(1, FILES - 1):
        file.with_name(f"journal.{number}.jsonl").touch()
    file.with_name(f"journal.{FILES - 1}.jsonl").mkdir()
    age(file)
    with pytest.raises(OSError, match="Is a directory"):
        journal_store.begin(ENTRY, ())
    assert len(file.read_text().splitlines()) == 6


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


@given(pod=st.text(alphabet=st.characters(), max_size=20), why_=st.text(alphabet=st.characters(), max_size=20))
def test_any_pod_name_is_stored_on_one_line(pod: str, why_: str) -> None:
    line = json.dumps(journal.beginning(replace(ENTRY, pod=pod, why=why_), ()))
    assert len(line.encode().splitlines()) == 1
    assert json.loads(line)["pod"] == pod


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
    line = json.loads(file.read_text())
    line["files"][0] |= tampered
    file.write_text(json.dumps(line) + "\n")
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


@pytest.mark.parametrize(
    "line", [{"ended": "x", "outcome": "vanished", "why": ""}, {"ended": "x"}, {"restored": "x"}, {"restoring": "x"}]
)
def test_a_changed_outcome_is_damaged_and_the_entry_stays_unfinished(
    journal_store: JournalStore, file: Path, line: dict[str, str]
) -> None:
    journal_store.begin(ENTRY, ())
    with file.open("a") as written:
        written.write(json.dumps({"schema": JOURNAL_SCHEMA, "entry": ENTRY.name, **line}) + "\n")
    image = journal_store.read()
    assert (image.unfinished(), len(image.damage)) == ((ENTRY,), 1)


@given(lines=st.lists(st.binary(max_size=40) | st.just(b'{"schema":"nodeleak.journal/v1","entry":7}'), max_size=5))
def test_any_bytes_of_a_journal_can_be_read(lines: list[bytes]) -> None:
    read = journal.parse_journal([iter([("line", line) for line in lines])])
    assert read.entries == ()
    assert len(read.damage) <= len(lines)


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

    assert in_child(act) == f"{file}: Input/output error"
    assert [entry.name for entry in read_anew(file).entries] == ["first"], "what may not be on disk is taken back"


def test_a_path_that_cannot_be_checked_is_an_error(tmp_path: Path) -> None:
    assert JournalStore(tmp_path / ("x" * 300)).trouble().endswith(": file name too long")

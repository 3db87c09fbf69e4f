"""docs/limits.md has the limit of every input, and what stands there is what the code does."""

import ast
import json
import re
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.cleanup import journal_store
from agent.cleanup.journal_store import JournalStore
from agent.cli import scan
from agent.cli.parser import make_parser
from agent.config import UsageError
from agent.model.nesting import MAX_LEVELS, parse_json
from agent.model.runtime import RuntimeNetwork
from agent.sources.host import cni_cache, directory, flannel, processes
from agent.sources.host.checkpoints import CheckpointDirectories
from agent.sources.host.cni_cache import CniResults
from agent.sources.host.device_plugins import DeviceManager
from agent.sources.kube import client
from agent.sources.source_error import SourceError
from tests.fuzz.wire_server import Replies
from tests.wire import ID, kubeconfig

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/limits.md").read_text()
ROW = re.compile(r"^\| [^|]+ \| `([\w.]+)\.(\w+)` \| ([\d,]+)(?: (KiB|MiB))?[^|]* \| [^|]+ \| [^|]+ \|$", re.MULTILINE)
ROWS = {f"{module}.{name}": (number, unit) for module, name, number, unit in ROW.findall(PAGE)}


def marked() -> set[str]:
    """Return every constant of the code that is marked as the bound of an input."""
    found = set()
    for path in (ROOT / "agent").rglob("*.py"):
        if "InputLimit" not in (text := path.read_text()):
            continue
        module = ".".join(path.relative_to(ROOT / "agent").with_suffix("").parts)
        for line in ast.parse(text).body:
            if isinstance(line, ast.AnnAssign) and "InputLimit" in ast.unparse(line.annotation):
                found.add(f"{module}.{ast.unparse(line.target)}")
    return found - {"model.input_limit.InputLimit"}


def test_every_marked_constant_is_on_the_page() -> None:
    assert len(marked()) > 15
    assert marked() <= ROWS.keys()


def test_every_row_of_the_page_was_read() -> None:
    assert len(ROWS) == len(re.findall(r"^\| [^|]+ \| `[\w.]+` \|", PAGE, re.MULTILINE))


@pytest.mark.parametrize("name", ROWS)
def test_a_limit_on_the_page_is_that_of_the_code(name: str) -> None:
    module, _, constant = name.rpartition(".")
    number, unit = ROWS[name]
    scale = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20}[unit]
    assert int(number.replace(",", "")) * scale == getattr(import_module(f"agent.{module}"), constant)


def test_readme_and_security_policy_link_the_page() -> None:
    for page in ("README.md", "SECURITY.md"):
        assert "(docs/limits.md)" in (ROOT / page).read_text()


# What happens beyond a limit.


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "MAX_ENTRIES", 2)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    "read",
    [
        lambda path: CniResults([path]).read(),
        lambda path: CheckpointDirectories([path]).read((), 0),
        lambda path: DeviceManager(path, path, lambda: SimpleNamespace(transitions=(), trouble="")).read(),  # type: ignore[arg-type,return-value]
    ],
)
def test_a_directory_with_too_many_entries_is_not_read_in_part(tmp_path: Path, read: Any) -> None:
    for name in "ab":
        (tmp_path / name).touch()
    read(tmp_path)
    (tmp_path / "c").touch()
    with pytest.raises(SourceError, match=f"{tmp_path} has more than 2 entries and was not read: find out what fills"):
        read(tmp_path)


def test_a_cached_result_that_is_too_large_is_not_skipped(tmp_path: Path) -> None:
    path = tmp_path / f"kubenet-{ID}-eth0"
    path.write_bytes(b" " * (cni_cache._LARGEST + 1))  # noqa: SLF001
    with pytest.raises(SourceError, match=f"{path} has 262145 bytes, more than the limit of 262144"):
        CniResults([tmp_path]).read()


def test_a_command_line_that_is_too_long_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    for size, known in ((processes.MAX_COMMAND_LINE_BYTES, True), (processes.MAX_COMMAND_LINE_BYTES + 1, False)):
        (tmp_path / "7/cmdline").write_bytes(b"x" * size)
        assert (processes._command_line(tmp_path, 7) is not None) is known  # noqa: SLF001


def test_a_subnet_of_a_file_that_is_too_large_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "flannel").mkdir()
    file, network = tmp_path / "flannel/subnet.env", RuntimeNetwork("cbr0", ("flannel",))
    for filler, ranges in ((0, 1), (flannel._LARGEST, 0)):  # noqa: SLF001
        file.write_text("#" * filler + "\nFLANNEL_SUBNET=10.244.1.1/24\n")
        assert len(next(iter(flannel.with_subnet([network], tmp_path))).ranges) == ranges


def test_a_journal_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    path = tmp_path / "journal/journal.jsonl"
    with path.open("wb") as file:
        file.truncate(journal_store.MAX_READ_BYTES + 1)
    with pytest.raises(SourceError, match=f"cannot read {path}: more than 16777216 bytes"):
        JournalStore(tmp_path).read()


def test_a_recording_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "node.json"
    path.write_text("{}" * 100)
    monkeypatch.setattr(scan, "MAX_RECORDING", 100)
    with pytest.raises(UsageError, match="more than 100 characters: 'nodeleak record' writes fewer"):
        scan.execute(make_parser("scan").parse_args([f"--recording={path}"]))


def test_a_document_that_is_nested_too_deeply_is_no_document() -> None:
    deepest = "[" * MAX_LEVELS + "]" * MAX_LEVELS
    assert parse_json(deepest)
    for deeper in (f"[{deepest}]", "[" * 5000 + "]" * 5000):
        with pytest.raises(ValueError, match="nested too deeply"):
            parse_json(deeper)


def test_an_event_that_is_too_large_ends_the_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LARGEST_OBJECT", 1000)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
    with Replies(None, {}, waits=True).serving() as replies:
        api = client.Api(kubeconfig(tmp_path / "config", f"http://127.0.0.1:{replies.port}"), 5.0)
        lines = [json.dumps({"n": number}).encode() for number in range(300)]
        replies.content = head + b"\n".join((*lines, b""))
        assert list(api.stream("/api/v1/pods", (), 5.0)) == lines
        replies.content = head + lines[0] + b"\n" + b"x" * 1001
        with pytest.raises(SourceError, match="an event of the watch is larger than 1,000 bytes"):
            list(api.stream("/api/v1/pods", (), 5.0))
        api.close()

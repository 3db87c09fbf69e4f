"""What is larger than any node has it is not read in part: the source says so."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cleanup.journal_store import JournalStore
from agent.model.nesting import MAX_LEVELS, parse_json
from agent.sources.kube import client
from agent.sources.source_error import SourceError
from tests.sources.kube.connections import connect
from tests.wire import CHUNKED, FakeServer, Request, kubeconfig


def test_a_journal_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    path = tmp_path / "journal/x.json"
    with path.open("wb") as file:
        file.truncate(16 * 1024 * 1024 + 1)
    with pytest.raises(SourceError, match=f"cannot read {path}: more than 16777216 bytes"):
        JournalStore(tmp_path).read()


def test_a_document_that_is_nested_too_deeply_is_no_document() -> None:
    deepest = "[" * MAX_LEVELS + "]" * MAX_LEVELS
    assert parse_json(deepest)
    for deeper in (f"[{deepest}]", "[" * 5000 + "]" * 5000):
        with pytest.raises(ValueError, match="nested too deeply"):
            parse_json(deeper)


def test_a_chunk_of_any_length_is_not_read_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LARGEST_OBJECT", 1 << 20)
    sent: list[int] = []

    def endless(_: Request) -> Iterator[bytes]:
        yield CHUNKED + b"40000000\r\n"
        while not server.closing.is_set():
            sent.append(1 << 16)
            yield b"x" * sent[-1]

    server = FakeServer(endless)
    with server:
        api = connect(kubeconfig(tmp_path / "config", server.url))
        with pytest.raises(SourceError, match="an event of the watch is larger than 1,048,576 bytes"):
            list(api.stream("/api/v1/pods", (), 5.0))
        api.close()
    assert sum(sent) < 1 << 26, "the rest of the chunk, 1 GiB, was not waited for"

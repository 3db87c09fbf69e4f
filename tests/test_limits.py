"""What is larger than any node has it is not read in part: the source says so."""

import base64
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.cleanup.journal import JournalStore
from agent.cli import scan
from agent.cli.parser import make_parser
from agent.config import UsageError
from agent.model.device_history import StoredHistory
from agent.model.nesting import MAX_LEVELS, parse_json
from agent.model.runtime import RuntimeNetwork
from agent.model.snapshot import Damage, DamagedResult, Known, Reading, Reservation, Unavailable
from agent.sources.host import (
    addresses,
    cni_cache,
    device_checkpoint,
    directory,
    flannel,
    network_directories,
    processes,
    reservations,
)
from agent.sources.host.checkpoints import CheckpointDirectories
from agent.sources.host.cni_cache import CniResults
from agent.sources.host.device_plugins import DeviceManager
from agent.sources.host.kubelet_runtime import flag
from agent.sources.kube import client
from agent.sources.source_error import SourceError
from tests.fuzz.wire_server import Replies
from tests.wire import CHUNKED, ID, FakeServer, Request, kubeconfig


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


def test_a_cached_result_that_is_too_large_is_told(tmp_path: Path) -> None:
    (tmp_path / f"kubenet-{ID}-eth0").write_bytes(b" " * (cni_cache._LARGEST + 1))  # noqa: SLF001
    results = CniResults([tmp_path])
    assert results.read() == ()
    assert results.damaged == (DamagedResult("kubenet", ID, "eth0", Damage.TOO_LARGE),)


ADDRESS = {"address": "10.1.0.7/24"}


def cached(**more: object) -> str:
    return json.dumps({"kind": "cniCacheV1", "networkName": "kubenet", "containerId": ID, **more})


def test_files_of_the_cache_without_a_result_are_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = base64.b64encode(json.dumps({"type": "multus", "delegates": []}).encode()).decode()
    (tmp_path / f"kubenet-{ID}-eth0").write_text(cached(config=config))
    (tmp_path / f"kubenet-{ID}-net1").write_text("{")
    results = CniResults([tmp_path])
    assert results.read() == ()
    monkeypatch.setattr(cni_cache, "parse_result", lambda *_: pytest.fail("it did not change"))
    assert results.read() == ()
    assert [(one.ifname, one.damage) for one in results.damaged] == [("net1", Damage.MALFORMED)]
    (tmp_path / f"kubenet-{ID}-net1").unlink()
    results.read()
    assert results.damaged == ()


def test_the_namespaces_are_not_read_if_they_have_too_many_routes_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    route = "  |-- 10.244.1.{}\n     /32 host LOCAL\n"
    for pid in (7, 8):
        (tmp_path / f"{pid}/task/{pid}/net").mkdir(parents=True)
        (tmp_path / f"{pid}/task/{pid}/net/fib_trie").write_text(route.format(pid))
    monkeypatch.setattr(addresses, "_MOST_BYTES", 2 * len(route) - 2)
    assert {one.ip for one in addresses.read_addresses(tmp_path)} == {"10.244.1.7", "10.244.1.8"}
    monkeypatch.setattr(addresses, "_MOST_BYTES", 2 * len(route) - 3)
    with pytest.raises(SourceError, match=r"/fib_trie: the namespaces up to this one have over 0 MiB of routes"):
        addresses.read_addresses(tmp_path)


def test_a_command_line_of_too_many_words_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    for words, expected in ((processes.MOST_WORDS, "kubenet"), (processes.MOST_WORDS + 1, None)):
        line = ["kubelet", "--network-plugin=kubenet", *[""] * (words - 2)]
        (tmp_path / "7/cmdline").write_text("\0".join(line) + "\0")
        read = processes._command_line(tmp_path, 7)  # noqa: SLF001
        assert (None if read is None else flag("network-plugin", read)) == expected


def test_of_too_many_networks_only_those_that_settings_or_the_runtime_name_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reservations, "MAX_NETWORKS", 3)
    monkeypatch.setattr(network_directories, "MAX_NETWORKS", 3)

    def read(*settings: str) -> dict[str, Reading[tuple[Reservation, ...]]]:
        named = Known((RuntimeNetwork("cbr0", ("bridge",)),))
        stores = network_directories.read_all(["auto", "mine", *settings], named, tmp_path, lambda path: path)
        return {one.network: one.reading for one in stores}

    for name in ("cbr0", "mine", "other"):
        (tmp_path / name).mkdir()
    assert read() == dict.fromkeys(("mine", "cbr0", "other"), Known(()))
    (tmp_path / "one-more").mkdir()
    why = f"{tmp_path} has more than 3 directories: find out what makes them"
    monkeypatch.setattr(network_directories, "DEFAULT_DATA_DIR", tmp_path)
    named = {"mine": Known(()), "cbr0": Known(()), "auto": Unavailable("reservations", why)}
    assert read() == read("cbr0") == named, "the others are missing, and something says so"


def test_more_device_plugins_than_the_history_can_follow_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_checkpoint, "MOST_PLUGINS", 2)
    manager = DeviceManager(tmp_path, tmp_path, StoredHistory)

    def plug(*names: str) -> None:
        for name in names:
            with socket.socket(socket.AF_UNIX) as plugin:
                plugin.bind(str(tmp_path / name))

    def register(number: int) -> None:
        resources = {f"example.com/d{one}": ["0"] for one in range(number)}
        tree = {"Data": {"PodDeviceEntries": None, "RegisteredDevices": resources}}
        (tmp_path / device_checkpoint.NAME).write_text(json.dumps(tree))

    plug("kubelet.sock", "a.sock", "b.sock")
    register(2)
    assert (len(manager.read().sockets), len(manager.read().registered)) == (2, 2)
    register(3)
    with pytest.raises(SourceError, match="kubelet_internal_checkpoint: resources: 3, more than the limit of 2"):
        manager.read()
    plug("c.sock")
    with pytest.raises(SourceError, match=f"{tmp_path}: sockets: 3, more than the limit of 2"):
        manager.read()


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
    path = tmp_path / "journal/x.json"
    with path.open("wb") as file:
        file.truncate(16 * 1024 * 1024 + 1)
    with pytest.raises(SourceError, match=f"{path}: it has 16777217 bytes, more than the limit of 16777216"):
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
        api = client.Api(kubeconfig(tmp_path / "config", server.url), 5.0)
        with pytest.raises(SourceError, match="an event of the watch is larger than 1,048,576 bytes"):
            list(api.stream("/api/v1/pods", (), 5.0))
        api.close()
    assert sum(sent) < 1 << 26, "the rest of the chunk, 1 GiB, was not waited for"

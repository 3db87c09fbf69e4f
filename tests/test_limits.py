"""docs/limits.md has the limit of every input, and what stands there is what the code does."""

import ast
import base64
import json
import re
import socket
from collections.abc import Iterator
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


def test_a_cached_result_that_is_too_large_is_told(tmp_path: Path) -> None:
    (tmp_path / f"kubenet-{ID}-eth0").write_bytes(b" " * (cni_cache._LARGEST + 1))  # noqa: SLF001
    results = CniResults([tmp_path])
    assert results.read() == ()
    assert results.damaged == (DamagedResult("kubenet", ID, "eth0", Damage.TOO_LARGE),)


@pytest.mark.parametrize(
    "read", [lambda path: CniResults([path]).read(), lambda path: CheckpointDirectories([path]).read((), 0)]
)
def test_files_that_are_too_large_together_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Any
) -> None:
    monkeypatch.setattr(directory, "MAX_TOTAL_BYTES", 1 << 20)
    for number in range(16):
        (tmp_path / f"kubenet-{number:064x}-eth0").write_bytes(b"{" + b" " * (1 << 16))
        if number == 14:
            read(tmp_path)
    with pytest.raises(SourceError, match=f"{tmp_path} has files of more than 1 MiB together: find out what fills it"):
        read(tmp_path)


ADDRESS = {"address": "10.1.0.7/24"}


def cached(**more: object) -> str:
    return json.dumps({"kind": "cniCacheV1", "networkName": "kubenet", "containerId": ID, **more})


@pytest.mark.parametrize(
    ("most", "too_much"),
    [
        ({"netns": "/" * 512}, {"netns": "/" * 513}),
        ({"netns": "/" + "é" * 127}, {"netns": "/" + "é" * 128}),
        ({"result": {"ips": [ADDRESS] * 150}}, {"result": {"ips": [ADDRESS] * 151}}),
    ],
)
def test_a_cached_result_with_too_much_in_it_is_told(
    tmp_path: Path, most: dict[str, Any], too_much: dict[str, Any]
) -> None:
    path = tmp_path / f"kubenet-{ID}-eth0"
    path.write_text(cached(**most))
    assert len(CniResults([tmp_path]).read()) == 1
    path.write_text(cached(**too_much))
    results = CniResults([tmp_path])
    assert (results.read(), [one.damage for one in results.damaged]) == ((), [Damage.TOO_LARGE])


@pytest.mark.parametrize("ports", [150, 1000])
def test_the_forwarded_ports_of_a_nodes_pods_cost_at_most_their_own_results(tmp_path: Path, ports: int) -> None:
    # Each pod may name any ports that no other pod of the node has.
    config = base64.b64encode(json.dumps({"type": "portmap", "capabilities": {"portMappings": True}}).encode()).decode()
    forwarded = {"portMappings": [{"hostPort": port} for port in range(1, ports + 1)]}
    for number in range(110):
        text = cached(containerId=f"{number:064x}", config=config, capabilityArgs=forwarded)
        (tmp_path / f"kubenet-{number:064x}-eth0").write_text(text)
    results = CniResults([tmp_path])
    assert (len(results.read()), len(results.damaged)) == ((110, 0) if ports <= 150 else (0, 110))


def test_cached_results_with_too_many_ranges_together_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cni_cache, "_MOST_PARTS_OF_ALL", 20)
    results = CniResults([tmp_path])
    for number in range(7):
        others = [{"address": f"10.{number}.{other}.7/24"} for other in range(3)]
        written = cached(containerId=f"{number:064x}", result={"ips": others})
        for copy in range(2):  # equal ranges are kept once
            (tmp_path / f"kubenet-{number:064x}-eth{copy}").write_text(written)
        if number < 6:
            assert len(results.read()) == 2 * (number + 1)
    for read in (results.read, CniResults([tmp_path]).read):
        with pytest.raises(SourceError, match=f"{tmp_path}: over 20 ranges and ports in all"):
            read()


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


def test_of_a_journal_with_many_damaged_lines_some_are_described_and_all_counted(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal/journal.jsonl").write_bytes(b"x\n" * 1234)
    read = JournalStore(tmp_path).read()
    assert (read.damaged, len(read.damage)) == (1234, 101)
    assert read.damage[-1] == "1,134 more lines are damaged; they are skipped and kept"


def test_a_name_that_is_too_long_is_not_kept_of_a_checkpoint(tmp_path: Path) -> None:
    for name, pod in (("web-0", "shop/web-0"), ("x" * 60_000, "")):
        (tmp_path / ID).write_text(json.dumps({"version": "v1", "name": name, "namespace": "shop", "data": {}}))
        assert [one.pod for one in CheckpointDirectories([tmp_path]).read((), 0)] == [pod]


def test_results_that_did_not_change_are_the_same_objects(tmp_path: Path) -> None:
    results = CniResults([tmp_path])
    for number in range(3):
        network = {"type": "bridge", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}]]}}
        config = base64.b64encode(json.dumps(network).encode()).decode()
        (tmp_path / f"kubenet-{number:064x}-eth0").write_text(cached(containerId=f"{number:064x}", config=config))
    first, second = results.read(), results.read()
    assert len(first) == 3
    assert list(map(id, first)) == list(map(id, second))
    assert len({id(one.ranges) for one in first}) == 1, "60,000 results would not fit into the container's memory"


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

"""The parsers of what nodeleak itself has written, or is asked: anybody may have changed it, and anybody may ask."""

import errno
import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from prometheus_client import CollectorRegistry

from agent.checks.engine import replay
from agent.cleanup.journal import Journal, JournalStore, parse_entry
from agent.config import UsageError, all_settings, load, variable
from agent.exporters.json.clean import journal_document
from agent.exporters.json.scan import scan_document
from agent.exporters.text.clean import journal_table
from agent.exporters.text.scan import scan_table
from agent.exporters.text.status import status_table
from agent.exporters.web.page import Page
from agent.exporters.web.server import HttpExporter
from agent.fleet import inventory, prometheus, reading
from agent.fleet.answers import answer_of
from agent.fleet.kubectl import KubectlError
from agent.fleet.series import QUERIES
from agent.fleet.status import node_status, worst_first
from agent.fleet.status_table import status_table as fleet_table
from agent.model.codec import Damaged
from agent.model.device_history import dump_history, load_history
from agent.model.devices import TransitionKind
from agent.model.last_seen import dump_last_seen, load_last_seen
from agent.model.recording import loads
from agent.model.release import Verdict
from agent.model.status import Malformed, checked
from agent.sources.daemon import DaemonClient
from tests.builders import NOW, last_seen, transition
from tests.cleanup.test_journal import ENTRY
from tests.fleet.kubectl import pod_line
from tests.fleet.kubectl import status as fleet_status
from tests.fleet.test_inventory import NODES
from tests.fuzz.fuzzer import Fuzzer, Parse, pure
from tests.fuzz.wire_server import Replies
from tests.model.test_status import GOOD
from tests.wire import http

_RECORDINGS: Final = (
    "docker-silent",
    "registration-wrong-name",
    "dual-stack",
    "volumes-lost",
    "devices-plugin-missing",
)


def _entries() -> Iterator[bytes]:
    """Yield the file of an entry as it begins, and after a halt during its restoration."""
    with TemporaryDirectory() as directory:
        store = JournalStore(Path(directory))
        store.begin(ENTRY, ("no container",))
        (file,) = Path(directory).rglob("*.json")
        yield file.read_bytes()
        store.update(replace(ENTRY.ended(Verdict.RELEASED, "").restoration_began(NOW), halted=NOW), NOW)
        yield file.read_bytes()


def _dumped(*trees: Any) -> tuple[bytes, ...]:
    return tuple(json.dumps(tree).encode() for tree in trees)


def _recording(content: bytes) -> Any:
    """Read a recording, and assess it as `nodeleak scan --recording` does."""
    recording = loads(content.decode(errors="surrogateescape"))
    report = replay(recording.snapshots, grace=recording.grace, confirm_after=recording.confirm_after)
    assert scan_table(report, verbose=True)
    assert json.dumps(scan_document(report))
    return recording.snapshots


def _history(content: bytes) -> Any:
    found = load_history(content)
    assert load_history(dump_history(found.transitions)).transitions == found.transitions
    return found.transitions


def _last_seen(content: bytes) -> Any:
    found = load_last_seen(content)
    assert load_last_seen(dump_last_seen(found)) == found


def _journal(content: bytes) -> Any:
    if not (entry := parse_entry(content)):
        raise ValueError("not an entry")
    found = Journal((entry,))
    assert journal_table(found)
    assert json.dumps(journal_document(found))
    assert found.released_since(NOW, "clean") >= 0


@contextmanager
def _daemon(directory: Path) -> Iterator[Parse]:  # noqa: ARG001 (it needs none)
    with Replies(None, {}, waits=True).serving() as replies:

        def parse(content: bytes) -> Any:
            replies.content = content
            client = DaemonClient(("127.0.0.1", replies.port))
            document = client.status()
            assert status_table(document)
            return document

        yield parse


@contextmanager
def _daemon_report(directory: Path) -> Iterator[Parse]:  # noqa: ARG001 (it needs none)
    with Replies(None, {}, waits=True).serving() as replies:

        def parse(content: bytes) -> Any:
            replies.content = http(content)
            return DaemonClient(("127.0.0.1", replies.port)).pods()

        yield parse


def _status(content: bytes) -> Any:
    document = checked(json.loads(content))
    assert status_table(document)


def _node_answers(content: bytes) -> Any:
    target = inventory.targets(NODES, inventory.agents_in(_PODS))[0]
    for code, output, errors in (
        (0, content, b""),
        (3, content, b"x\ncommand terminated with exit code 3"),
        (1, b"", content),
    ):
        answer = answer_of("worker-1", code, output.decode(errors="replace"), errors.decode(errors="replace"))
        assert json.dumps(answer.entry())
        status = node_status(target, answer)
        assert fleet_table(worst_first([status]), wide=True)
        assert json.dumps(reading._status_entry(status), allow_nan=False)  # noqa: SLF001
        with redirect_stdout(StringIO()) as printed, redirect_stderr(printed):
            reading._print(answer, several=True)  # noqa: SLF001
        lines = printed.getvalue().split("\n")
        assert all(line.startswith("worker-1: ") for line in lines[:-1])
        assert not _CONTROL.search(printed.getvalue()), "what a terminal interprets"


_CONTROL: Final = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]")


def _prometheus(content: bytes) -> Any:
    """Each query in turn has this answer, and the others have good ones."""
    found = inventory.targets(NODES, ())
    known = {one.node: one.node for one in found}
    for query in QUERIES:
        answers = _ANSWERS | {query: content.decode(errors="replace")}
        try:
            statuses = prometheus.read(found, known, answers.items())
        except (ValueError, KubectlError, UsageError) as error:
            why = str(error)
            statuses = []
        else:
            why = ""
        assert len(why) < 1000, "an operator reads it"
        assert fleet_table(worst_first(statuses), wide=True)
        assert json.dumps([one.answer.entry() for one in statuses if one.answer], allow_nan=False)


def _result(value: str, **labels: str) -> dict[str, Any]:
    target = {"job": "nodeleak", "instance": "10.0.0.1:9747", "node": "worker-1"}
    return {"metric": {**target, **labels}, "value": [1000.5, value]}


def _answer(*results: dict[str, Any], **more: Any) -> str:
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": results}, **more})


_ANSWERS: Final = {
    "value": _answer(
        _result("1", __name__="nodeleak_build_info", version="0.1.0"),
        _result("1", __name__="nodeleak_mode_info", mode="off"),
        _result("990.25", __name__="nodeleak_last_sync_timestamp_seconds"),
        *(
            _result(value, __name__=f"nodeleak_{name}", network="cbr0", **labels)
            for value, name, labels in (
                ("253", "range_addresses", {}),
                ("12", "range_free_addresses", {}),
                ("3", "reservations", {"state": "leaked"}),
            )
        ),
    ),
    "finding": _answer(_result("3", detector="leaked_reservation", severity="warning", phase="confirmed")),
    "unavailable": _answer(_result("0", source="pods")),
    "sources": _answer(_result("11")),
    "failed": _answer(_result("1", stage="check")),
    "stalled": _answer(_result("0")),
}
_REFUSED: Final = json.dumps({"status": "error", "errorType": "bad_data", "error": "parse error"})


_PODS: Final = f"{pod_line('worker-1')}\nnodeleak-worker-1\n"


def _agents(content: bytes) -> Any:
    text = content.decode(errors="replace")
    assert all(one.unreachable is not None for one in inventory.targets(NODES, inventory.agents_in(text)))


def _nodes(content: bytes) -> Any:
    found = inventory.targets(content.decode(errors="replace"), inventory.agents_in(_PODS))
    assert sorted(found, key=lambda one: inventory.natural(one.node)) or not found


def _environment(content: bytes) -> Any:
    text = content.decode(errors="surrogateescape").replace("\0", "")
    for name in all_settings():
        try:
            load("run", {}, {variable("node"): "worker-1", variable(name): text})
        except UsageError:
            continue


@contextmanager
def _requests(directory: Path) -> Iterator[Parse]:  # noqa: ARG001 (it needs none)
    exporter = HttpExporter(("127.0.0.1", 0), CollectorRegistry(), lambda: True, Page(lambda: ((), ())))
    exporter.start()
    printed = StringIO()

    def parse(content: bytes) -> Any:
        with redirect_stderr(printed), socket.create_connection(("127.0.0.1", exporter.port), timeout=10) as client:
            try:
                client.sendall(content)
                client.shutdown(socket.SHUT_WR)
                while client.recv(65536):
                    pass
            except OSError as error:
                if error.errno not in {errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN}:
                    raise
                # it need not read the whole request
        assert printed.getvalue() == ""

    try:
        yield parse
        assert b"200" in _asked(exporter.port)
    finally:
        exporter.close()


def _asked(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        return client.recv(65536)


_REQUEST: Final = (
    b"GET /api/v1/report?refresh=off HTTP/1.1\r\nHost: 127.0.0.1:9747\r\nAccept: */*\r\nConnection: close\r\n\r\n"
)
_SETTINGS: Final = (
    b"5m",
    b"10.0.0.1:9747",
    b"[::1]:9747",
    b"50%",
    b"/var/lib/cni",
    b"kubenet,cbr0",
    b"auto",
    b"unix:///run/x.sock",
)

FUZZERS: Final = (
    Fuzzer(
        "recording",
        tuple((Path(__file__).parents[1] / f"nodes/{name}.json").read_bytes() for name in _RECORDINGS),
        pure(_recording),
        (Damaged,),
    ),
    Fuzzer("device-history", (dump_history([transition(TransitionKind.KUBELET_STARTED)]).encode(),), pure(_history)),
    Fuzzer("last-node", (dump_last_seen(last_seen()).encode(),), pure(_last_seen), (Damaged,)),
    Fuzzer("journal-entry", tuple(_entries()), pure(_journal), (ValueError,)),
    Fuzzer("daemon-answer", (http(json.dumps(GOOD)),), _daemon, as_json=False),
    Fuzzer("daemon-report", _dumped({"reservations": [{"container_id": "a", "pod": "shop/web-0"}]}), _daemon_report),
    Fuzzer("status", _dumped(GOOD), pure(_status), (Malformed, ValueError, RecursionError)),
    Fuzzer("node-answer", _dumped(fleet_status(), GOOD), pure(_node_answers)),
    Fuzzer(
        "prometheus",
        tuple(one.encode() for one in (*_ANSWERS.values(), _answer(warnings=["x"]), _REFUSED)),
        pure(_prometheus),
    ),
    Fuzzer("agent-pods", (_PODS.encode(),), pure(_agents), (inventory.Untrusted,), as_json=False),
    Fuzzer("node-names", (NODES.encode(),), pure(_nodes), (inventory.Untrusted,), as_json=False),
    Fuzzer("settings", _SETTINGS, pure(_environment), as_json=False),
    Fuzzer(
        "http-request",
        (_REQUEST, b"GET / HTTP/1.0\r\n\r\n", b"HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        _requests,
        as_json=False,
    ),
)

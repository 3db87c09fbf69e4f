"""All fuzzers: those of the node, of runtimes and of the API server, and of what people hand to the tool."""

import errno
import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry

from agent.checks.engine import replay
from agent.cleanup import journal
from agent.cleanup.journal import Journal
from agent.config import UsageError
from agent.exporters.json.clean import journal_document
from agent.exporters.json.scan import scan_document
from agent.exporters.text.clean import journal_table
from agent.exporters.text.scan import scan_table
from agent.exporters.web.page import Page
from agent.exporters.web.server import HttpExporter
from agent.fleet import inventory, prometheus
from agent.fleet.answers import answer_of
from agent.fleet.kubectl import KubectlError
from agent.fleet.status import node_status, status_table, worst_first
from agent.model.codec import Damaged
from agent.model.documents import loads
from tests.builders import NOW
from tests.fuzz import host_parsers, kube_parsers, runtime_parsers
from tests.fuzz.fuzzer import Fuzzer, Parse, pure

_NODES: Final = "worker-1 Ready\n"
_CONTROL: Final = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]")
"""What a terminal interprets."""


def _recording(content: bytes) -> Any:
    """Read a recording, and assess it as `nodeleak scan --recording` does."""
    recording = loads(content.decode(errors="surrogateescape"))
    report = replay(recording.snapshots, grace=recording.grace, confirm_after=recording.confirm_after)
    assert scan_table(report, verbose=True)
    assert json.dumps(scan_document(report))
    return recording.snapshots


def _journal(content: bytes) -> Any:
    entry = journal.parse_entry(content)
    found = Journal((entry,) if entry else ())
    assert journal_table(found)
    assert json.dumps(journal_document(found))
    assert found.released_since(NOW, "clean") >= 0


def _node_answer(content: bytes) -> Any:
    """An agent is asked through `kubectl exec`, whose output is anything."""
    (target,) = inventory.targets(_NODES, ())
    text = content.decode(errors="replace")
    for code, output, errors in ((0, text, ""), (3, text, "x\ncommand terminated with exit code 3"), (1, "", text)):
        answer = answer_of("worker-1", code, output, errors)
        assert json.dumps(answer.entry())
        assert not _CONTROL.search(status_table(worst_first([node_status(target, answer)]), wide=True))


def _prometheus(content: bytes) -> Any:
    """Each query in turn has this answer, and the others have none."""
    found = inventory.targets(_NODES, ())
    nothing = json.dumps({"status": "success", "data": {"resultType": "vector", "result": []}})
    for query in prometheus.QUERIES:
        answers = dict.fromkeys(prometheus.QUERIES, nothing) | {query: content.decode(errors="replace")}
        try:
            statuses = prometheus.read(found, {"worker-1": "worker-1"}, answers.items())
        except (ValueError, KubectlError, UsageError):
            continue
        assert status_table(worst_first(statuses), wide=True)
        assert json.dumps([status.entry for status in statuses], allow_nan=False)


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
            except OSError as error:  # it need not read the whole request
                if error.errno not in {errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN}:
                    raise
        assert printed.getvalue() == ""

    try:
        yield parse
        with socket.create_connection(("127.0.0.1", exporter.port), timeout=10) as client:
            client.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            assert b"200" in client.recv(65536), "it still answers"
    finally:
        exporter.close()


_RECORDINGS: Final = (
    "docker-silent", "registration-wrong-name", "dual-stack", "volumes-lost", "devices-plugin-missing",
)  # fmt: skip

FUZZERS: Final[tuple[Fuzzer, ...]] = (
    *host_parsers.FUZZERS,
    *runtime_parsers.FUZZERS,
    *kube_parsers.FUZZERS,
    Fuzzer("recording", pure(_recording), (Damaged,), recordings=_RECORDINGS),
    Fuzzer("journal-entry", pure(_journal)),
    Fuzzer("node-answer", pure(_node_answer)),
    Fuzzer("prometheus", pure(_prometheus)),
    Fuzzer("http-request", _requests, as_json=False),
)

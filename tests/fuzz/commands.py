"""All fuzzers: those of the sources, and of what commands, kubectl and browsers are handed."""

import errno
import json
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Final
from urllib.parse import unquote_plus

from prometheus_client import CollectorRegistry

from agent.cli import main as nodeleak
from agent.exporters.web.page import Page
from agent.exporters.web.server import HttpExporter
from agent.fleet.command import main as kubectl_nodeleak
from tests.fakes import host, nodes
from tests.fakes.engine import engine
from tests.fuzz import sources
from tests.fuzz.fuzzer import SAMPLES, Fuzzer, Opening, Parse, Refused
from tests.wire import FakeServer, Request, http

_CONTROL: Final = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]")
"""What a terminal interprets."""
_KUBECTL: Final = """\
#!/bin/sh
case "$*" in
get*nodes*) echo worker-1 Ready; echo worker-2 Ready; echo worker-3 Ready;;
get*pods*) cat pods;;
*nodeleak-1*) cat content;;
*nodeleak-2*) cat content; echo 'x\ncommand terminated with exit code 3' >&2; exit 3;;
*) cat content >&2; exit 1;;
esac
"""
"""Three agents answer with the content: one as a success, one with an exit code, and one as an error of kubectl."""
_QUERIES: Final = {
    "value": "nodeleak_(build_info|",
    "finding": "nodeleak_findings",
    "unavailable": "nodeleak_source_up{} == 0",
    "sources": "count without (source)",
    "failed": "nodeleak_sync_failures_total",
    "stalled": "changes(",
}
"""A part of each query that no other has, in the order of their samples."""


def _run(main: Callable[[list[str]], int], *arguments: str) -> str:
    """Return what a command prints, as text and as JSON. Raises Refused."""
    printed = []
    for options in ([], ["-o", "json"]):
        out, err = StringIO(), StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = main([*arguments, *options])
        if code == 2:
            raise Refused(err.getvalue())
        assert code in {0, 3}, err.getvalue()
        printed.append(out.getvalue())
    assert not _CONTROL.search(printed[0])
    if printed[1]:
        json.loads(printed[1], parse_constant=_no_json)
    return printed[0]


def _no_json(constant: str) -> None:
    raise AssertionError(constant)


def _command(file: str, *arguments: str) -> Opening:
    """Return the opening of a command that reads a file of its directory."""

    @contextmanager
    def opened(directory: Path) -> Iterator[Parse]:
        path = directory / file
        path.parent.mkdir(exist_ok=True)

        def parse(content: bytes) -> None:
            path.write_bytes(content)
            _run(nodeleak, *(argument.format(directory) for argument in arguments))

        yield parse

    return opened


@contextmanager
def _released_result(directory: Path) -> Iterator[Parse]:
    """Release a sandbox whose result in libcni's cache has the content."""
    incident = nodes.the_incident(datetime.now(UTC))
    (leaked,) = incident.leaked[:1]
    node = replace(incident, leaked=(leaked,), running=incident.running[:2])
    built = host.build(directory / "node", node)
    options = ("--apply", "--cleanup-network=kubenet", "--api=off", "--probe=off", "--confirm-after=1ms")

    def parse(content: bytes) -> None:
        shutil.rmtree(built.state, ignore_errors=True)  # or so many releases were over the budget
        host.write_store(built.store, node.reserved)
        (built.cache / f"kubenet-{leaked.id}-eth0").write_bytes(content)
        printed = _run(nodeleak, "clean", *built.options, *options)
        assert (built.store / leaked.ip).exists() == ("0 released" in printed)

    with engine(built.docker_socket, node):
        yield parse


@contextmanager
def _kubectl(directory: Path) -> Iterator[None]:
    """Have the fake kubectl on PATH."""
    program = directory / "kubectl"
    program.write_text(_KUBECTL)
    program.chmod(0o755)
    pods = [
        {
            "metadata": {"namespace": "x", "name": f"nodeleak-{n}", "creationTimestamp": ""},
            "spec": {"nodeName": f"worker-{n}", "containers": [{"name": "nodeleak"}]},
            "status": {"phase": "Running"},
        }
        for n in (1, 2, 3)
    ]
    (directory / "pods").write_text(json.dumps({"items": pods}))
    path, before = os.environ["PATH"], Path.cwd()
    os.environ["PATH"] = f"{directory}{os.pathsep}{path}"
    os.chdir(directory)
    try:
        yield
    finally:
        os.environ["PATH"] = path
        os.chdir(before)


@contextmanager
def _node_answer(directory: Path) -> Iterator[Parse]:
    def parse(content: bytes) -> None:
        (directory / "content").write_bytes(content)
        if _run(kubectl_nodeleak, "status").splitlines()[0].endswith(" ok"):
            assert json.loads(content)["state"] == "ok", "a node is healthy only if its agent says so"

    with _kubectl(directory):
        yield parse


@contextmanager
def _prometheus(directory: Path) -> Iterator[Parse]:
    """Each query in turn has the content as its answer, and the others a real one."""
    real = [(SAMPLES / f"prometheus/{number}").read_bytes() for number in range(len(_QUERIES))]
    given: dict[str, bytes] = {}

    def answers(request: Request) -> Iterable[bytes]:
        (query,) = (name for name, part in _QUERIES.items() if part in unquote_plus(request.target))
        return [http(given[query])]

    def parse(content: bytes) -> None:
        for query in _QUERIES:
            given.update(dict(zip(_QUERIES, real, strict=True)) | {query: content})
            _run(kubectl_nodeleak, "status", f"--prometheus={server.url}")

    with _kubectl(directory), FakeServer(answers) as server:
        yield parse


@contextmanager
def _requests(directory: Path) -> Iterator[Parse]:  # noqa: ARG001 (it needs none)
    exporter = HttpExporter(("127.0.0.1", 0), CollectorRegistry(), lambda: True, Page(lambda: ((), ())))
    exporter.start()
    printed = StringIO()

    def parse(content: bytes) -> None:
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
    *sources.FUZZERS,
    Fuzzer("recording", _command("node.json", "scan", "--recording={}/node.json"), recordings=_RECORDINGS),
    Fuzzer("journal-entry", _command("journal/1.json", "journal", "--state-dir={}")),
    Fuzzer("released-result", _released_result),
    Fuzzer("node-answer", _node_answer),
    Fuzzer("prometheus", _prometheus),
    Fuzzer("http-request", _requests, as_json=False),
)

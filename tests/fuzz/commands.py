"""All fuzzers: those of the sources, and of what commands, kubectl and browsers are handed."""

import errno
import json
import os
import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Final

import pytest
from prometheus_client import CollectorRegistry

from agent.cli import main as nodeleak
from agent.exporters.web.page import Page
from agent.exporters.web.server import CleanupFacts, Documents, HttpExporter, Transport
from agent.fleet.command import main as kubectl_nodeleak
from tests.fakes import host, nodes
from tests.fakes.engine import engine
from tests.fleet.kubectl import QUERIES, FakeKubectl, query_of
from tests.fuzz import sources
from tests.fuzz.fuzzer import SAMPLES, Fuzzer, Opening, Parse, Refused
from tests.wire import FakeServer, Request, http

_CONTROL: Final = re.compile(
    r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]"
)  # What a terminal interprets


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
        json.dumps(json.loads(printed[1]), allow_nan=False)
    return printed[0]


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
    options = (
        "--apply",
        "--cleanup-network=kubenet",
        "--api=off",
        "--probe=off",
        "--confirm-after=1ms",
    )

    def parse(content: bytes) -> None:
        (built.cache / f"kubenet-{leaked.id}-eth0").write_bytes(content)
        shutil.rmtree(built.state, ignore_errors=True)  # or so many releases were over the budget
        host.write_store(built.store, node.reserved)
        printed = _run(nodeleak, "clean", *built.options, *options)
        assert (built.store / leaked.ip).exists() == ("0 released" in printed)

    with engine(built.docker_socket, node):
        yield parse


@contextmanager
def _kubectl(directory: Path) -> Iterator[FakeKubectl]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")
        yield FakeKubectl(directory)


@contextmanager
def _node_answer(directory: Path) -> Iterator[Parse]:
    """Three agents answer: one as a success, one with an exit code, and one as an error of kubectl."""
    with _kubectl(directory) as kubectl:

        def parse(content: bytes) -> None:
            text = content.decode(errors="replace")
            kubectl.clear()
            kubectl.node("worker-1", output=text)
            kubectl.node("worker-2", output=text, code=3)
            kubectl.node("worker-3", error=text, own_code=1)
            if _run(kubectl_nodeleak, "status").splitlines()[0].endswith(" ok"):
                assert json.loads(text)["state"] == "ok", (
                    "a node is healthy only if its agent says so"
                )

        yield parse


@contextmanager
def _prometheus(directory: Path) -> Iterator[Parse]:
    """Each query in turn has the content as its answer, and the others a real one."""
    real = {query: SAMPLES / f"prometheus/{number}" for number, query in enumerate(QUERIES)}
    given: dict[str, Path] = {}

    def answers(request: Request) -> Iterable[bytes]:
        return [http(given[query_of(request)].read_bytes())]

    def parse(content: bytes) -> None:
        (directory / "content").write_bytes(content)
        for query in QUERIES:
            given.update(real | {query: directory / "content"})
            _run(kubectl_nodeleak, "status", f"--prometheus={server.url}")

    with _kubectl(directory) as kubectl, FakeServer(answers) as server:
        kubectl.replace("echo worker-1 Ready")
        yield parse


@contextmanager
def _requests(directory: Path) -> Iterator[Parse]:  # noqa: ARG001 (it needs none)
    exporter = HttpExporter(
        Transport(("127.0.0.1", 0)),
        CollectorRegistry(),
        Documents(
            alive=lambda: True,
            facts=lambda _: CleanupFacts({}, (), ()),
            status=lambda *_: {},
            page=Page(),
        ),
        report_bug=lambda bug: print(bug.traceback, file=sys.stderr),
        warn=lambda event, **_: print(event, file=sys.stderr),
    )
    exporter.start()
    printed = StringIO()

    def parse(content: bytes) -> None:
        with (
            redirect_stderr(printed),
            socket.create_connection(("127.0.0.1", exporter.port), timeout=10) as client,
        ):
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
    Fuzzer(
        "recording",
        _command("node.json", "scan", "--recording={}/node.json"),
        recordings=_RECORDINGS,
    ),
    Fuzzer("journal-entry", _command("journal/1.json", "journal", "--state-dir={}")),
    Fuzzer("released-result", _released_result),
    Fuzzer("node-answer", _node_answer),
    Fuzzer("prometheus", _prometheus),
    Fuzzer("http-request", _requests, as_json=False),
)

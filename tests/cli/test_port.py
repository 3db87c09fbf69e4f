"""The port of a real daemon: when it opens, over TLS, and what its commands ask; which thread ended it."""

import json
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.certificates import Authority, Pair
from tests.cli.commands import (
    BUG,
    DONE,
    USAGE,
    Daemon,
    SmallNode,
    api_server,
    environment,
    no_objects,
    nodeleak,
    running,
    served,
    syncs,
)
from tests.wire import kubeconfig, until

QUICK = ("--interval=100ms", "--cni-networks-dir=/nowhere")
HANGING_PLUGIN = """\
{exec: {apiVersion: client.authentication.k8s.io/v1, command: sh, interactiveMode: Never, \
args: ["-c", "while kill -0 $PPID; do sleep 0.1; done"]}}"""
"""It ends with the agent."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.sign("agent")


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port: int = held.getsockname()[1]
    return port


def open_port(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_the_port_answers_while_the_credentials_for_the_api_server_are_awaited(
    tmp_path: Path, free_port: int
) -> None:
    config = kubeconfig(tmp_path / "config", "http://127.0.0.1:1", user=HANGING_PLUGIN)
    options = ("--node=worker-1", f"--kubeconfig={config}", f"--state-dir={tmp_path}/state")
    with running(*options, f"--listen=127.0.0.1:{free_port}"):
        until(lambda: open_port(free_port), "the port is open")
        assert served(free_port, "/healthz") == (200, "ok\n")
        assert served(free_port, "/readyz")[0] == 503
        assert served(free_port, "/metrics")[0] == 200


FAILING_WATCH = """
import sys
from agent.cli import main
from agent.sources.kube.list_watch import Reflector

def run(self, stop):
    raise ZeroDivisionError("a bug")

Reflector.run = run
sys.exit(main(sys.argv[1:]))
"""


def test_a_thread_that_fails_ends_the_agent_and_is_named(tmp_path: Path) -> None:
    with api_server(tmp_path, no_objects) as api:
        command = [sys.executable, "-c", FAILING_WATCH, "run", *api, "--listen=127.0.0.1:0"]
        done = subprocess.run(  # noqa: S603 (ours)
            [*command, f"--state-dir={tmp_path}/state"], env=environment({}), capture_output=True,
            text=True, timeout=30, check=False,
        )  # fmt: skip
    assert done.returncode == BUG
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    line = next(line for line in lines if line["event"] == "agent.failed")
    assert line["thread"] in {"pods", "node"}
    assert line["error"] == "ZeroDivisionError: a bug"
    assert "Traceback" in done.stderr


FAILING_EXPORTERS = """
import sys
from agent.cli import main
from agent.exporters.log import LogExporter
from agent.state.stores import DeviceHistoryStore, LastSeenExporter

def fail(*_):
    raise ZeroDivisionError("a bug")

LogExporter.export = LastSeenExporter.export = DeviceHistoryStore.export = fail
sys.exit(main(sys.argv[1:]))
"""


def test_exporters_that_fail_are_reported_and_end_neither_the_agent_nor_another(
    node: SmallNode, free_port: int
) -> None:
    options = (*QUICK[:1], "--api=off", f"--listen=127.0.0.1:{free_port}", *node.options)
    counted = re.compile(r'^nodeleak_internal_errors_total{part="exporter"} (\S+)$', re.MULTILINE)

    def errors() -> float:
        found = counted.search(served(free_port, "/metrics")[1])
        return float(found[1]) if found else 0

    with subprocess.Popen(  # noqa: S603 (ours)
        [sys.executable, "-c", FAILING_EXPORTERS, "run", *options],
        env=environment({}), stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        agent = Daemon(process)
        try:
            agent.log_event("internal_error")
            until(lambda: syncs(free_port) >= 3, "the metrics go on")
            until(lambda: errors() >= 9, "each bug is counted in each sync")
            assert served(free_port, "/healthz")[0] == 200
            assert "10.244.1.9" in served(free_port, "/api/v1/report")[1]
        finally:
            agent.stop(signal.SIGTERM)
    bugs = [event for event in agent.events if event["event"] == "internal_error"]
    assert {bug["part"] for bug in bugs} == {"exporter"}
    names = sorted(bug["name"] for bug in bugs)
    assert names == ["DeviceHistoryStore", "LastSeenExporter", "LogExporter"]


@pytest.fixture
def tls_agent(node: SmallNode, authority: Authority, pair: Pair) -> Iterator[tuple[int, str]]:
    """Run a daemon with TLS and a client CA; yield its port, and the option that says where it listens."""
    options = (
        *("--api=off", "--listen=127.0.0.1:0", "--interval=100ms"),
        f"--tls-cert-file={pair.certificate}",
        f"--tls-key-file={pair.key}",
        f"--tls-client-ca-file={authority.certificate}",
    )
    with running(*options, *node.options) as agent:
        port = agent.log_event("agent.started")["port"]
        agent.log_event("finding.opened")
        context = ssl.create_default_context(cafile=str(authority.certificate))

        def status() -> str:
            url = f"https://127.0.0.1:{port}/api/v1/status"
            with urlopen(url, timeout=5, context=context) as answer:
                return str(answer.read())

        until(lambda: '"detector"' in status(), "the report of the log is served, too")
        yield port, f"--listen=127.0.0.1:{port}"
        assert agent.end() == 0


def test_commands_ask_a_daemon_with_tls(tls_agent: tuple[int, str], node: SmallNode) -> None:
    port, listen = tls_agent
    done = nodeleak("status", listen)
    assert (done.code, done.err) == (DONE, "")
    assert "1 leaked pod address" in done.said
    scan = nodeleak(
        "scan", "-o", "json", "--api=off", *node.options, NODELEAK_LISTEN=f"127.0.0.1:{port}"
    )
    assert json.loads(scan.out)["findings"]


def test_the_key_is_not_asked_for_a_password(tmp_path: Path, pair: Pair) -> None:
    locked = tmp_path / "locked.key"
    command = ["openssl", "ec", "-in", str(pair.key), "-aes256", "-passout", "pass:x"]
    subprocess.run([*command, "-out", str(locked)], check=True, capture_output=True)  # noqa: S603
    options = (f"--tls-cert-file={pair.certificate}", f"--tls-key-file={locked}")
    done = nodeleak("run", "--api=off", "--listen=127.0.0.1:0", *options)
    assert (done.code, done.out, len(done.err.splitlines())) == (USAGE, "", 1)
    assert f"{locked}: the key has a password: store it without one" in done.err

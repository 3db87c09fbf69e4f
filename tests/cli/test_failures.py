"""Commands as processes when something fails: output, exit code, and duration."""

import base64
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.cli.commands import (
    AGENT,
    BUG,
    DONE,
    FOUND,
    LEAKED,
    UNAVAILABLE,
    SmallNode,
    api_server,
    environment,
    hanging_api,
    no_objects,
    nodeleak,
    running,
    served,
)
from tests.sources.kube.old_server import Etcd, Server
from tests.wire import (
    HTML,
    ID,
    Answer,
    Request,
    hang,
    http,
    kubeconfig,
    needs,
    only_with,
    open_directory,
    refusing_port,
    self_signed,
    until,
)

# Wrong usage


def test_all_mistakes_are_reported_at_once() -> None:
    done = nodeleak(
        *(
            "scan",
            "--node",
            "Worker_1",
            "--grace",
            "5",
            "--docker-timeout",
            "0s",
            "--cni-networks-dir",
            "var/lib",
        ),
        *("--network", "../etc", "--api", "maybe"),
        NODELEAK_GRAACE="5m",
        NODELEAK_API_TIMEOUT="soon",
    )
    assert (done.code, done.out) == (2, "")
    lines = done.err.splitlines()
    assert all(line.startswith("nodeleak: ") for line in lines)
    for part in (
        '--node: invalid value "Worker_1": expected a node name', '--grace: invalid value "5": expected a duration',
        '--docker-timeout: invalid value "0s": expected a duration from 1ms to 1h',
        '--cni-networks-dir: invalid value "var/lib": expected an absolute path',
        '--network: invalid value "../etc": expected a CNI network', '--api: invalid value "maybe": expected one of:',
        'NODELEAK_GRAACE: unknown setting: did you mean "NODELEAK_GRACE"?',
        'NODELEAK_API_TIMEOUT: invalid value "soon": expected a duration',
    ):  # fmt: skip
        assert sum(part in line for line in lines) == 1, part
    assert len(lines) == 8


def test_what_cannot_be_used_is_named_with_the_remedy(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    both = f"{first}:{second}"
    missing = nodeleak("run", "--node", "worker-1", "--listen=127.0.0.1:0", KUBECONFIG=both)
    assert f": cannot read {both}: no such file or directory; use --api=off" in missing.err
    second.write_text("not: [valid")
    done = nodeleak("run", "--node", "worker-1", "--listen=127.0.0.1:0", KUBECONFIG=both)
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert f'cannot read {both}: while parsing a flow sequence in "{second}", line 1' in done.err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        done = nodeleak("run", "--api", "off", "--listen", where)
    assert done.code == 2
    assert (
        done.err
        == f"nodeleak: --listen (NODELEAK_LISTEN): cannot listen on {where}: Address already in use\n"
    )
    done = nodeleak("scan", "--api", "off", DOCKER_HOST="nonsense://x")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(
        "nodeleak: --docker-host (NODELEAK_DOCKER_HOST, DOCKER_HOST): invalid docker host: Invalid bind"
    )
    done = nodeleak("scan", "--node", "worker-1")
    assert done.code == 2
    assert (
        "no service account is mounted, and neither --kubeconfig nor KUBECONFIG is set" in done.err
    )
    assert "use --api=off to run without the API server" in done.err


# Sources that do not respond


def test_an_unknown_name_and_a_refusal_are_reported_and_pods_are_unavailable(
    node: SmallNode,
) -> None:
    done = nodeleak("scan", "--api", "off", "--network", "kubnet", *node.options)
    done.shows(3, "kubnet does not exist", "(networks found: cbr0, kubenet)")
    with api_server(node.home, lambda _: [http(HTML, "403 Forbidden", "text/html")]) as api:
        done = nodeleak("scan", *api, *node.options)
    assert (done.code, "  pods, node: API server: 403 Forbidden\n" in done.out) == (3, True)
    with refusing_port() as port:
        config = kubeconfig(node.home / "kubeconfig", f"http://127.0.0.1:{port}")
    for command, times in (("scan", 2), ("clean", 1)):
        done = nodeleak(command, "--node=worker-1", f"--kubeconfig={config}", *node.options)
        count = done.said.count("cannot connect to the API server at ")
        assert (done.code, done.err, count) == (3, "", times), (
            "it is named once for all its sources"
        )
        assert re.search(r"pods, node: \S.*: connection refused", done.said)
    with api_server(node.home, no_objects) as api:
        done = nodeleak("scan", "-o", "json", *api, *node.options)
    assert done.code == 3
    document = json.loads(done.out)
    why = "the API server has no Node named worker-1: check --node"
    assert {"source": "pods", "why": why} in document["unavailable"]
    states = {one["ip"]: one["state"] for one in document["reservations"]}
    assert (states, document["findings"]) == ({"10.244.1.2": "in_use", "10.244.1.9": "unknown"}, [])


def test_a_docker_that_hangs_or_lists_nothing_while_pods_run_is_unavailable(
    node: SmallNode,
) -> None:
    pod = {
        "metadata": {"name": "web-0", "namespace": "shop", "uid": "u", "resourceVersion": "4"},
        "status": {"phase": "Running", "podIP": "10.244.1.2"},
    }
    worker = {"metadata": {"name": "worker-1", "uid": "n", "resourceVersion": "4"}}

    def server(request: Request) -> Answer:
        item = pod if "pods" in request.path else worker
        return [http(json.dumps({"metadata": {"resourceVersion": "5"}, "items": [item]}))]

    for listed in ("[]", "{}"):
        answers = {"/version": '{"ApiVersion": "1.41"}'}
        node.docker.answers = lambda request: [http(answers.get(request.path, listed))]  # noqa: B023 (called at once)
        with api_server(node.home, server) as api:
            done = nodeleak("scan", "-o", "json", "--grace", "0s", *api, *node.options)
        assert done.code == 3
        document = json.loads(done.out)
        assert "containers" in [one["source"] for one in document["unavailable"]]
        assert {one["state"] for one in document["reservations"]} == {"unknown"}
    node.docker.answers = lambda _: hang(node.docker)
    done = nodeleak("scan", "--api", "off", "--docker-timeout", "300ms", *node.options)
    assert (done.code, "2 unknown" in done.said) == (3, True)
    # A slow machine gets as far as the limit of the whole response.
    assert "timed out" in done.said or "no complete response within" in done.said, done.out


def test_a_directory_without_permission_is_reported(node: SmallNode) -> None:
    nobody: tuple[str, ...] = ()
    if os.geteuid() == 0:
        needs(Path("/usr/bin/setpriv").exists(), "setpriv, to be nobody")
        nobody = ("setpriv", "--reuid=65534", "--clear-groups")
        only_with(nodeleak("--version", prefix=nobody).code == 0, "a Python that nobody may run")
    with open_directory() as home:
        (home / "networks/kubenet").mkdir(parents=True)
        (home / "networks").chmod(0o000)
        options = [*node.options, "--cni-networks-dir", f"{home}/networks"]
        done = nodeleak("scan", "--api", "off", *options, prefix=nobody)
    done.shows(3, f"cannot read {home}/networks: permission denied (run as root)")


# Recordings


def test_an_anonymous_recording_has_no_text_of_the_node(node: SmallNode, tmp_path: Path) -> None:
    kubenet = node.home / "networks/kubenet"
    (kubenet / "10.244.1.7").write_text("hunter2 is the secret")
    (kubenet / "acme-notes").write_text("hunter2")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    access = ("--node", "acme-7", "--kubeconfig", str(kubeconfig(tmp_path / "kubeconfig", url)))
    options = (*node.options, "--network", "kubenet,acme-net", *access)
    plain, hidden = (nodeleak("record", *more, *options) for more in ((), ("--anonymous",)))
    assert (plain.code, hidden.code) == (0, 0)
    telltale = ("hunter2", "secret", "acme", str(node.home), "10.244", "127.0.0.1", ID, LEAKED)
    assert [text for text in telltale if text not in plain.said] == []
    assert [text for text in telltale if text in hidden.said] == []
    scans = (
        nodeleak("scan", "-o", "json", "--recording", "-", given=one.out) for one in (plain, hidden)
    )
    reports = [json.loads(one.out) for one in scans]
    for key in ("detector", "severity", "cause"):
        assert (
            len(
                {json.dumps([finding[key] for finding in report["findings"]]) for report in reports}
            )
            == 1
        )
    assert (
        len({json.dumps([one["state"] for one in report["reservations"]]) for report in reports})
        == 1
    )


# Standard output


def test_neither_the_exit_code_nor_the_daemon_needs_a_reader_of_the_errors(node: SmallNode) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    options = [*node.options, f"--docker-host=unix://{node.home}/missing.sock"]
    for command, code in (
        (["scan", "--interval"], 2),
        (["scan", "-o", "name"], 3),
        (["clean", "-o", "name"], 3),
    ):
        done = subprocess.run(  # noqa: S603 (ours)
            [*AGENT, *command, *options], stdout=subprocess.PIPE, stderr=writer, check=False,
            env=environment({"NODELEAK_API": "off"}),
        )  # fmt: skip
        assert done.returncode == code
    os.close(writer)
    reader, writer = os.pipe()
    os.close(reader)
    with refusing_port() as port:
        listen = f"--listen=127.0.0.1:{port}"
    command = [*AGENT, "run", "--api=off", listen, "--interval=100ms", *node.options]
    with subprocess.Popen(command, stderr=writer, env=environment({})) as agent:  # noqa: S603 (ours)
        until(
            lambda: nodeleak("status", listen, "--exit-code").code == FOUND,
            "it has found the leak",
            20,
        )
        agent.send_signal(signal.SIGTERM)
    os.close(writer)
    assert agent.returncode == DONE


def test_other_characters_are_escaped_on_an_ascii_terminal(node: SmallNode) -> None:
    kubenet = node.home / "networks/kubenet"
    (kubenet / "fünf\x1b[2J").write_text("")
    for last in range(20, 80):  # more than a table lists
        (kubenet / f"10.244.1.{last}").write_text("")
    done = nodeleak("scan", "--api", "off", *node.options, PYTHONIOENCODING="ascii")
    assert done.code == 0
    assert "\x1b" not in done.said


def test_without_docstrings_every_command_is_refused_in_one_sentence() -> None:
    """They describe the findings. With -O alone, everything works."""
    refused = (
        "nodeleak: python -OO (PYTHONOPTIMIZE=2) removes docstrings, which describe the findings: "
        "use -O, or neither\n"
    )
    for command in (("--help",), ("version",), ("scan", "--api=off"), ("run",)):
        done = nodeleak(*command, prefix=("env", "PYTHONOPTIMIZE=2"))
        assert (done.code, done.out, done.err) == (2, "", refused), command
        assert nodeleak("version", prefix=("env", "PYTHONOPTIMIZE=1")).code == DONE


# The daemon


@pytest.fixture
def quick(node: SmallNode) -> list[str]:
    return ["--listen", "127.0.0.1:0", "--interval", "100ms", *node.options]


def test_a_signal_ends_the_daemon(quick: list[str]) -> None:
    for number, expected in ((signal.SIGTERM, 0), (signal.SIGINT, 130)):
        with running("--api", "off", *quick) as agent:
            port = agent.log_event("agent.started")["port"]
            until(lambda: served(port, "/readyz")[0] == 200, "one sync")  # noqa: B023 (called at once)
            assert agent.end(number) == expected
        assert list(agent.events[-1])[:3] == ["timestamp", "level", "event"]
        assert agent.events[-1]["event"] == "agent.stopped"
    with running("--api", "off", *quick, "--log-format=text") as agent:
        until(
            lambda: [
                line for line in agent.lines if "agent.started" in line and "mode=observe" in line
            ],
            "a line",
        )
        assert agent.end() == 0
    assert not [line for line in agent.lines if "\x1b" in line]


def test_health_is_served_while_all_sources_hang_and_sigterm_ends_it_at_any_time(
    node: SmallNode, quick: list[str]
) -> None:
    node.docker.answers = lambda _: hang(node.docker)
    with hanging_api(node.home) as api:
        for delay in (0.0, 0.1, 0.3):
            with running(*api, *quick, "--api-timeout=10m") as agent:
                until(agent.handles_sigterm, "Python has begun")
                threading.Event().wait(delay)
                assert agent.end() == 0
        with running(*api, *quick, "--docker-timeout=10m") as agent:
            port = agent.log_event("agent.started")["port"]
            assert served(port, "/healthz") == (200, "ok\n")
            assert served(port, "/readyz")[0] == 503
            assert served(port, "/metrics")[0] == 200
            until(lambda: node.docker.requests, "docker was asked", 20)
            assert agent.end() == 0


def test_docker_may_start_after_the_daemon(node: SmallNode, quick: list[str]) -> None:
    good, node.docker.answers = node.docker.answers, lambda _: []
    with running("--api", "off", *quick) as agent:
        port = agent.log_event("agent.started")["port"]
        assert agent.log_event("source.unavailable")["source"] == "containers"
        until(
            lambda: 'source_up{source="containers"} 0.0' in served(port, "/metrics")[1],
            "the metrics agree",
        )
        assert (
            'nodeleak_findings{detector="leaked_reservation"' not in served(port, "/metrics")[1]
        ), "it is not 0"
        node.docker.answers = good
        assert agent.log_event("source.recovered")["source"] == "containers"
        until(
            lambda: 'source_up{source="containers"} 1.0' in served(port, "/metrics")[1],
            "the metrics agree",
        )
        assert agent.log_event("finding.opened")["detector"] == "leaked_reservation"
        assert agent.end() == 0


def test_an_api_server_that_sends_old_versions_is_found(node: SmallNode, quick: list[str]) -> None:
    etcd, nodes = Etcd(), Etcd()
    for name in ("oldest", "web-0"):
        etcd.create(name)
    nodes.create("worker-1")

    def answers(request: Request) -> Answer:
        nodes.revision = etcd.revision  # they stand for one etcd
        return Server(nodes if request.path == "/api/v1/nodes" else etcd, old=True).answer(request)

    with (
        api_server(node.home, answers) as api,
        running(*api, *quick, "--confirm-after", "0s") as agent,
    ):
        port = agent.log_event("agent.started")["port"]
        until(
            lambda: '"server_version": "v1.9.2"' in served(port, "/api/v1/report")[1], "it is asked"
        )
        etcd.delete("uid-0")
        until(
            lambda: [one for one in agent.events if one.get("detector") == "replayed_watch"],
            "it is found",
        )
        (opened,) = [one for one in agent.events if one.get("detector") == "replayed_watch"]
        assert (opened["subject"], opened["severity"]) == ("pods deleted_below", "warning")
        assert (
            "the API server (v1.9.2) sent a DELETED event with version 101 after 102 on the same"
            in opened["text"]
        )
        metrics = served(port, "/metrics")[1]
        assert re.search(r'nodeleak_watch_regressions_total{resource="pods"} [1-9]', metrics)
        assert 'nodeleak_source_up{source="watches"} 1.0' in metrics
        assert agent.end() == 0


# A file system that is read-only everywhere


def test_a_scan_and_the_daemon_write_nowhere(
    node: SmallNode, quick: list[str], read_only: tuple[str, ...]
) -> None:
    done = nodeleak("scan", "--api", "off", "--exit-code", *node.options, prefix=read_only)
    done.shows(1, "leaked_reservation")
    with api_server(node.home, no_objects) as api:
        done = nodeleak("scan", *api, *node.options, prefix=read_only)
    done.shows(3, "the API server has no Node named worker-1")
    with running("--api", "off", *quick, prefix=read_only) as agent:
        assert agent.log_event("finding.opened")["detector"] == "leaked_reservation"
        assert agent.end() == 0


def test_credentials_that_need_a_place_to_write_say_so(
    node: SmallNode, read_only: tuple[str, ...]
) -> None:
    # The kubernetes package puts certificates that are part of a kubeconfig into temporary files.
    _, certificate = self_signed(node.home)
    inline = f"certificate-authority-data: {base64.b64encode(certificate.read_bytes()).decode()}"
    path = kubeconfig(node.home / "kubeconfig", "https://127.0.0.1:1", cluster=inline)
    nodeleak(
        "scan", "--node", "worker-1", "--kubeconfig", str(path), *node.options, prefix=read_only
    ).fails(2, f"{path}: no usable temporary directory found")


WITHOUT_THREADS = """
import sys, threading
from agent.cli import main
threading.stack_size(1 << 60)  # as where the memory is used up: the kernel has none for the stack of a thread
sys.exit(main(sys.argv[1:]))
"""


def test_what_can_start_no_thread_says_so(node: SmallNode) -> None:
    """A daemon would serve no probe and no metric, and nobody would know: it ends."""

    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-c", WITHOUT_THREADS, *words, *node.options, "--api=off"]
        return subprocess.run(  # noqa: S603
            command, env=environment({}), capture_output=True, text=True, check=False, timeout=60
        )

    daemon, scan = run("run", "--listen=127.0.0.1:0"), run("scan")
    assert (daemon.returncode, daemon.stderr.splitlines()[-1]) == (
        BUG,
        "RuntimeError: can't start new thread",
    )
    why = "cannot start a thread (can't start new thread): no memory is left, or no process (pids.max)"
    assert (scan.returncode, why in scan.stdout) == (UNAVAILABLE, True)

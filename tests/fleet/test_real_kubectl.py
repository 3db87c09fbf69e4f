"""The real kubectl with a fake API server: its lists, how exec ends, and how many requests it makes."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import Done
from tests.fakes.cluster import FakeCluster, Ran
from tests.fleet.kubectl import ROOT, finding, status
from tests.processes import environment
from tests.wire import needs, self_signed

NODES = ["worker-1", "worker-2", "worker-3"]
_CREDENTIAL = "client.authentication.k8s.io/v1"
_KUBECONFIG = """\
current-context: here
contexts:
- {{name: here, context: {{cluster: here, user: us}}}}
- {{name: elsewhere, context: {{cluster: elsewhere, user: us}}}}
clusters:
- {{name: here, cluster: {{server: "{url}", certificate-authority: "{authority}"}}}}
- {{name: elsewhere, cluster: {{server: "http://127.0.0.1:9"}}}}
users:
- name: us
  user: {user}
"""


def answer(node: str, command: Sequence[str]) -> Ran:
    """`status` of worker-3 is worst; `scan` fails on worker-2; the journal is long."""
    match node, command[1]:
        case "worker-3", "status":
            worst = status(
                node, state="findings", findings=[finding("critical", "exhausted_range")]
            )
            return Ran(json.dumps(worst))
        case _, "status":
            return Ran(json.dumps(status(node)))
        case "worker-2", "scan":
            return Ran("Incomplete\n", "nodeleak: a warning\n", 3)
        case _, "journal":
            return Ran(json.dumps({"schema": "nodeleak.journal/v1", "padding": "é" * 200_000}))
        case _:
            return Ran(" ".join(command) + "\n")


@pytest.fixture
def cluster() -> FakeCluster:
    found = shutil.which("kubectl")
    needs(found is not None, "kubectl 1.31 or newer, whose exec uses WebSockets")
    version = subprocess.run(  # noqa: S603 (the operator's own kubectl)
        [str(found), "version", "--client", "-o", "json"],
        capture_output=True,
        text=True,
        env=environment(),
        check=True,
    ).stdout
    minor = re.match(r"v1\.(\d+)", json.loads(version)["clientVersion"]["gitVersion"])
    needs(
        minor is not None and int(minor[1]) >= 31,
        "kubectl 1.31 or newer, whose exec uses WebSockets",
    )
    return FakeCluster(NODES, answer)


@pytest.fixture
def served(cluster: FakeCluster) -> Iterator[FakeCluster]:
    with cluster.serve():
        yield cluster


def run(
    cluster: FakeCluster,
    home: Path,
    *arguments: str,
    user: str = "{token: none}",
    authority: str = "",
) -> Done:
    """Run the program as kubectl does: as a plugin on PATH."""
    (home / "config").write_text(
        _KUBECONFIG.format(url=cluster.url, user=user, authority=authority)
    )
    plugin = home / "kubectl-nodeleak"
    plugin.write_text(
        f"#!{sys.executable}\nimport sys\nfrom agent.fleet.command import main\nsys.exit(main())\n"
    )
    plugin.chmod(0o755)
    path = f"{home}{os.pathsep}{os.environ['PATH']}"
    env = environment(
        PATH=path, HOME=str(home), KUBECONFIG=str(home / "config"), PYTHONPATH=str(ROOT)
    )
    command = ["kubectl", "nodeleak", *arguments]
    done = subprocess.run(  # noqa: S603 (the operator's own kubectl)
        command,
        capture_output=True,
        text=True,
        env=env,
        cwd=home,
        check=False,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def test_a_status_needs_two_requests_for_each_node_and_two_lists(
    served: FakeCluster, tmp_path: Path
) -> None:
    done = run(served, tmp_path, "status")
    assert done.out == (
        "3 nodes: 1 critical, 2 ok\n"
        "\n"
        "NODE      AGENT  NETWORK  FREE    LEAKED  RELEASABLE  AGE  FINDINGS\n"
        "worker-3  0.1.0  cbr0     12/253  0       -           12s  critical: exhausted_range\n"
        "worker-1  0.1.0  cbr0     12/253  0       -           12s  none\n"
        "worker-2  0.1.0  cbr0     12/253  0       -           12s  none\n"
    )
    assert (done.code, done.err) == (0, "")
    served.requests.clear()
    run(served, tmp_path, "status")
    assert served.requests == {"list nodes": 1, "list pods": 1, "get pods": 3, "exec pods": 3}


def test_a_status_through_the_api_server_needs_one_list_and_six_queries(
    served: FakeCluster, tmp_path: Path
) -> None:
    asked: list[str] = []

    def proxied(path: str) -> dict[str, Any]:
        asked.append(path)
        labels = {"__name__": "nodeleak_build_info", "instance": "worker-1", "version": "0.1.0"}
        result = [{"metric": labels, "value": [1, "1"]}] if "build_info" in path else []
        return {"status": "success", "data": {"resultType": "vector", "result": result}}

    served.proxied = proxied
    done = run(served, tmp_path, "status", "--prometheus-service=monitoring/prometheus:9090")
    assert done.out.splitlines()[0] == "3 nodes: 3 unknown", done
    assert "worker-1  no report" in done.out
    assert (done.code, done.err) == (3, "")
    served.requests.pop("discovery")
    assert served.requests == {"list nodes": 1, "proxy monitoring/prometheus:9090": 6}
    assert all(path.startswith("/api/v1/query?query=") for path in asked)


def test_what_a_command_prints_and_its_exit_code_are_those_of_the_node(
    served: FakeCluster, tmp_path: Path
) -> None:
    done = run(served, tmp_path, "scan", "worker-1", "worker-2", "--", "--verbose")
    assert (done.code, done.err) == (3, "worker-2: nodeleak: a warning\n")
    assert sorted(done.out.splitlines()) == [
        "worker-1: nodeleak scan --verbose",
        "worker-2: Incomplete",
    ]
    (node,) = json.loads(run(served, tmp_path, "journal", "worker-1", "-o", "json").out)["nodes"]
    assert node["document"]["padding"] == "é" * 200_000, "a long document arrives whole"


def test_a_connection_that_breaks_is_no_success_and_a_context_is_used(
    served: FakeCluster, tmp_path: Path
) -> None:
    """Some versions of kubectl end with exit code 0."""
    served.run = lambda _node, _command: Ran(
        '{"schema": "nodeleak.clean/v1", "applied"', broken=True
    )
    done = run(served, tmp_path, "clean", "worker-1", "--apply", "--yes")
    done.shows(4, "worker-1: UNEXPECTED: ")
    assert "release leaked addresses on 1 node of here (worker-1), in 1 wave" in done.err
    assert served.requests["exec pods"] == 1
    served.requests.clear()
    run(served, tmp_path, "status", "--context=elsewhere").fails(
        3, "127.0.0.1:9", "nodeleak: cannot list nodes: kubectl ended with exit code 1, see above"
    )
    assert served.requests == {}


def test_a_credential_plugin_runs_once_for_each_kubectl(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    context, certificate = self_signed(tmp_path)
    credential = {"apiVersion": _CREDENTIAL, "kind": "ExecCredential", "status": {"token": "t"}}
    plugin = tmp_path / "plugin"
    plugin.write_text(
        f"#!/bin/sh\necho asked >> {tmp_path}/asked\necho '{json.dumps(credential)}'\n"
    )
    plugin.chmod(0o755)
    user = (
        f"{{exec: {{apiVersion: {_CREDENTIAL}, command: {plugin}, interactiveMode: IfAvailable}}}}"
    )
    with cluster.serve(context):
        done = run(cluster, tmp_path, "status", user=user, authority=str(certificate))
    assert done.out.splitlines()[0] == "3 nodes: 1 critical, 2 ok", done.out
    assert done.code == 0
    assert (tmp_path / "asked").read_text().splitlines() == ["asked"] * 5

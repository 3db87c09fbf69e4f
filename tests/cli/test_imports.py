"""A command imports what it needs: in a pod, it shares the memory limit of the daemon."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests import processes
from tests.bench.surroundings import fake_node
from tests.cli import commands
from tests.cli.commands import syncs
from tests.wire import until

CLIENTS = {
    *("docker", "h2", "jinja2", "kubernetes", "prometheus_client", "requests", "structlog"),
    *("tenacity", "urllib3"),
}
PROFILED = {"PYTHONPROFILEIMPORTTIME": "1"}  # each module that is imported, on standard error
CONTAINERD = "containerd://1.6.20~ds1"


def modules(lines: Sequence[str]) -> set[str]:
    return {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}


def imported(command: Sequence[str], **variables: str) -> set[str]:
    """Return the modules that a command imports."""
    done = subprocess.run(  # noqa: S603 (ours)
        command,
        env=processes.environment(**PROFILED, **variables),
        capture_output=True,
        text=True,
        check=False,
    )
    found = modules(done.stderr.splitlines())
    assert "agent.cli" in found, done.stderr[-2000:]
    return found


def test_a_command_that_reads_no_node_imports_no_client_and_no_detector() -> None:
    program = [*commands.AGENT]
    start = "import sys; from agent.fleet.command import main; sys.exit(main())"
    fleet_program = [commands.AGENT[0], "-c", start]
    for arguments in (
        [*program, "status", "--listen=127.0.0.1:1"],
        [*program, "version"],
        [*program, "status", "--help"],
        [*program, "--help"],
        [*fleet_program, "--help"],
        [*fleet_program, "--version"],
    ):
        found = imported(arguments)
        assert not CLIENTS & found, arguments
        assert not {name for name in found if name.startswith("agent.checks")}, arguments
        assert "ssl" not in found, arguments


def test_the_options_of_a_command_are_known_without_clients() -> None:
    """The archive of kubectl nodeleak has none, and names these options in its errors."""
    for name in ("scan", "timeline", "clean", "restore", "journal"):
        assert not CLIENTS & imported([*commands.AGENT, name, "--help"]), name


def test_a_scan_imports_the_clients_of_what_it_reads() -> None:
    with fake_node(3, "10.64.0.0/20", runtime=CONTAINERD) as (host, _):
        scan = ["scan", "--node=worker-1", *host.options_without_docker]
        found = imported([*commands.AGENT, *scan, "--api=off"])
        assert CLIENTS & found <= {"h2", "tenacity"}
        in_pod = host.in_pod(Path(commands.AGENT[0]))
        found = imported([*in_pod, *scan], **host.pod_environment)
        assert CLIENTS & found <= {"h2", "tenacity", "urllib3"}
        assert "agent.sources.kube.api" in found
        found = imported([*commands.AGENT, *scan, f"--kubeconfig={host.kubeconfig}"])
        assert "kubernetes" in found


def test_a_daemon_in_a_pod_with_containerd_imports_neither_kubernetes_nor_docker() -> None:
    with fake_node(3, "10.64.0.0/20", runtime=CONTAINERD) as (host, _):
        run = ("--node=worker-1", "--listen=127.0.0.1:0", "--interval=100ms")
        variables = [f"{name}={value}" for name, value in (PROFILED | host.pod_environment).items()]
        prefix = ("env", *variables)
        program = tuple(host.in_pod(Path(commands.AGENT[0])))
        options = (*run, *host.options_without_docker)
        with commands.running(*options, prefix=prefix, program=program) as agent:
            port = agent.log_event("agent.started")["port"]
            until(lambda: syncs(port) > 1, "it syncs", 20)
            found = modules(agent.lines)
    assert "agent.sources.kube.list_watch" in found
    assert not {"kubernetes", "docker", "requests", "yaml"} & found

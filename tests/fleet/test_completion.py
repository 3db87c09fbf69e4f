"""What kubectl offers after `kubectl nodeleak`, as the program `kubectl_complete-nodeleak` answers it."""

import os
import subprocess
import sys
import tomllib

from agent.fleet import command
from tests.fleet.kubectl import ROOT, FakeKubectl


def offered(kubectl: FakeKubectl, *words: str) -> list[str]:
    done = kubectl.run("__complete", *words)
    assert (done.code, done.err) == (0, "")
    *lines, directive = done.out.splitlines()
    assert directive in {":0", ":4"}, "kubectl reads it"
    return [line.partition("\t")[0] for line in lines]


def test_commands_options_and_those_of_the_command_on_the_node(kubectl: FakeKubectl) -> None:
    assert offered(kubectl, "cl") == ["clean", "clean-job"]
    assert offered(kubectl, "frob", "") == offered(kubectl, "version", "") == []
    assert offered(kubectl, "status", "-o", "") == ["table", "wide", "json", "yaml"]
    assert "--prometheus" in offered(kubectl, "status", "--")
    assert offered(kubectl, "clean-job", "worker-1", "--", "--max-s") == ["--max-share"]


def test_names_come_from_the_cluster_and_a_cluster_that_fails_has_none(
    kubectl: FakeKubectl,
) -> None:
    kubectl.replace('echo "$@" >>calls; printf "node/worker-1\\nnode/worker-2\\nnode/db-1\\n"')
    assert offered(kubectl, "scan", "work") == ["worker-1", "worker-2"]
    assert offered(kubectl, "scan", "worker-1", "--context=a", "") == ["worker-2", "db-1"]
    offered(kubectl, "scan", "--context", "")
    offered(kubectl, "scan", "-n", "")
    called = (kubectl.home / "calls").read_text().splitlines()
    assert called == [
        "get nodes --output=name",
        "get nodes --output=name --context=a",
        "config get-contexts --output=name",
        "get namespaces --output=name",
    ]
    kubectl.replace("echo node/worker-1; echo broken >&2; exit 1")
    assert offered(kubectl, "scan", "") == []


def test_krew_users_get_the_program_that_kubectl_runs(kubectl: FakeKubectl) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["kubectl_complete-nodeleak"] == "agent.fleet.command:complete"
    assert callable(command.complete)
    program = kubectl.home / "kubectl_complete-nodeleak"
    program.write_text(kubectl.run("completion").out)
    program.chmod(0o755)
    start = "from agent.fleet.command import main; import sys; sys.exit(main())"
    kubectl.replace(f"shift; exec {sys.executable} -c '{start}' \"$@\"")
    done = subprocess.run(  # noqa: S603 (ours)
        [program, "jour"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "journal\tList past releases of nodes\n:4\n"

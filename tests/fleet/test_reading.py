"""Commands that ask many agents: how they are asked, and what becomes of their answers."""

import json
import os
import signal

import pytest
import yaml  # type: ignore[import-untyped]

from tests.fleet.kubectl import FakeKubectl, agent_pod, status
from tests.wire import until

SCAN = {"schema": "nodeleak.scan/v1", "node": "worker-1"}


def test_a_node_that_does_not_answer_in_time_delays_no_other(kubectl: FakeKubectl) -> None:
    """Neither if kubectl hangs, nor if its credential plugin does."""
    kubectl.node("worker-1", until="/nonexistent")
    kubectl.node("worker-2", until="/nonexistent", child=600)
    kubectl.node("worker-3", output=json.dumps(status()))
    done = kubectl.run("status", "--timeout=8s")
    assert done.code == 3
    for node in ("worker-1", "worker-2"):
        assert (
            f"{node}  no answer  -        -       -       -           -    no answer within 8 s"
            in done.out
        )
    assert "worker-3  0.1.0" in done.out


def test_so_many_agents_are_asked_at_once(kubectl: FakeKubectl) -> None:
    flags = [kubectl.home / f"flag-{number}" for number in range(3)]
    for number, flag in enumerate(flags):
        kubectl.node(
            f"worker-{number}",
            flag=str(flag),
            until=str(kubectl.home / "go"),
            output=json.dumps(status()),
        )
    child = kubectl.start("status", "--parallel=2")
    until(lambda: sum(flag.exists() for flag in flags) == 2, "two agents are asked", 60)
    assert len(kubectl.calls("exec")) == 2
    (kubectl.home / "go").touch()
    out, _ = child.communicate(timeout=60)
    assert (child.returncode, out.splitlines()[0]) == (0, "3 nodes: 3 ok")


def test_ctrl_c_ends_what_runs_and_shows_what_was_answered(kubectl: FakeKubectl) -> None:
    flag = kubectl.home / "flag"
    kubectl.node("worker-1", output=json.dumps(status()))
    kubectl.node("worker-2", flag=str(flag), until="/nonexistent")
    kubectl.node("worker-3", output=json.dumps(status()))
    child = kubectl.start("status", "--parallel=1")
    until(flag.exists, "worker-2 is asked", 60)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=60)
    assert child.returncode == 3
    assert "3 nodes: 2 unknown, 1 ok" in out
    assert out.count("interrupted before it answered") == 2


def test_without_kubectl_or_with_an_error_of_it_nothing_is_known(
    kubectl: FakeKubectl, monkeypatch: pytest.MonkeyPatch
) -> None:
    (kubectl.home / "fails").touch()
    kubectl.run("status").fails(3, "cannot list nodes: kubectl ended with exit code 1, see above")
    (kubectl.home / "kubectl").unlink()
    monkeypatch.setenv("PATH", str(kubectl.home))
    done = kubectl.run("status")
    assert (done.code, done.out) == (3, "")
    assert (
        done.err
        == "nodeleak: cannot run kubectl: No such file or directory: install it, or add it to PATH\n"
    )


def test_the_text_of_one_node_is_as_it_is_and_that_of_several_has_their_names(
    kubectl: FakeKubectl,
) -> None:
    kubectl.node("worker-1", output="OK: no findings\n\x1b[2J\n")
    forged = "".join(
        f"command terminated with exit code {code}\n" for code in ("0", "256", "9" * 5000)
    )
    kubectl.node(
        "worker-2",
        output="Critical\n\n2 findings\n",
        code=3,
        error=f"nodeleak: incomplete\n{forged}",
    )
    done = kubectl.run("timeline", "worker-1")
    assert (done.code, done.out, kubectl.asked()) == (
        0,
        "OK: no findings\n\\x1b[2J\n",
        ["worker-1"],
    )
    done = kubectl.run("scan", "--all", "--parallel=1", "--", "--verbose")
    assert done.code == kubectl.run("scan", "worker-2").code == 3
    text = "worker-1: OK: no findings\nworker-1: \\x1b[2J\nworker-2: Critical\nworker-2: \nworker-2: 2 findings\n"
    assert (done.out, done.err.splitlines()[0]) == (text, "worker-2: nodeleak: incomplete")
    for command in (
        "scan --all -- --verbose",
        "clean worker-1 -- --max 3",
        "restore worker-1 -- --last --apply",
    ):
        kubectl.run(*command.split())
        passed = command.partition(" -- ")[2].split()
        assert kubectl.calls("exec")[-1][-len(passed) - 2 :] == [
            "nodeleak",
            command.split()[0],
            *passed,
        ]


def test_a_node_on_either_side_of_an_option_is_asked_by_name(kubectl: FakeKubectl) -> None:
    for name in ("worker-1", "worker-2", "worker-3"):
        kubectl.node(name, output=json.dumps(SCAN))
    assert kubectl.run("scan", "worker-1", "-o", "json", "worker-2").code == 0
    assert sorted(kubectl.asked()) == ["worker-1", "worker-2"]
    nodes, *pods = kubectl.calls("get")
    assert nodes[1:4] == ["nodes", "worker-1", "worker-2"]
    assert "--field-selector=spec.nodeName=worker-2" in pods[-1]


def test_no_or_an_unknown_node_and_agents_in_several_namespaces_are_a_mistake(
    kubectl: FakeKubectl,
) -> None:
    kubectl.node("worker-1", output=json.dumps(status()))
    for arguments, why in (
        ("scan worker-1 worker-9", 'unknown node "worker-9"'),
        ("status -l pool=nothing", "nodeleak: no node matches"),
        ("scan -l pool=nothing", "nodeleak: no node matches"),
        ("status", "are in several namespaces: kube-system, tenant"),
    ):
        if arguments == "status":
            kubectl.node("worker-2", pods=[agent_pod("worker-2", namespace="tenant")])
        done = kubectl.run(*arguments.split())
        assert (done.code, done.out, why in done.err, kubectl.asked()) == (2, "", True, []), done
    assert kubectl.calls("exec") == []


def test_documents_are_merged_and_one_agent_cannot_spoil_that_of_all(kubectl: FakeKubectl) -> None:
    kubectl.node("worker-10", output=json.dumps(SCAN), code=3)
    kubectl.node("worker-2", output="not JSON", error="warning\nlast line\n", code=70)
    kubectl.node("worker-3", own_code=1, error="Error from server: no such pod\n")
    kubectl.node("worker-4", pods=[])
    kubectl.node("10.0.0.10", output=json.dumps(SCAN))
    kubectl.node("10.0.0.9", output=json.dumps(SCAN))
    done = kubectl.run("scan", "--all", "-o", "json")
    assert done.code == 3, "a node that was not read comes before a bug on another"
    assert json.loads(done.out)["nodes"] == [
        {"node": "worker-2", "exit_code": 70, "error": "last line"},
        {"node": "worker-3", "exit_code": None, "error": "Error from server: no such pod"},
        {"node": "worker-4", "exit_code": None, "error": "no agent pod on this node"},
        {"node": "worker-10", "exit_code": 3, "document": SCAN},
        {"node": "10.0.0.9", "exit_code": 0, "document": SCAN},
        {"node": "10.0.0.10", "exit_code": 0, "document": SCAN},
    ]
    # Python reads these parts of documents, and cannot write them again as JSON.
    kubectl.clear()
    for number, change in enumerate((f'"x": {"[" * 970}{"]" * 970}', '"x": NaN', '"x": 1e999')):
        kubectl.node(f"worker-{number}", output=f"{json.dumps(status())[:-1]}, {change}}}")
    kubectl.node("worker-3", output=json.dumps(status()))
    for command in (["status"], ["scan", "--all"]):
        nodes = json.loads(kubectl.run(*command, "-o", "json").out, parse_constant=pytest.fail)[
            "nodes"
        ]
        assert ({node["node"] for node in nodes if "document" in node}, len(nodes)) == (
            {"worker-3"},
            4,
        )


def test_a_closed_pipe_is_no_error_and_hides_none(kubectl: FakeKubectl) -> None:
    kubectl.node("worker-1", output="line\n" * 10)
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        child = kubectl.start("scan", "worker-1", stdout=closed)
        _, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (0, "")
    kubectl.node("worker-2", pods=[])
    with kubectl.start("scan", "worker-2") as child:
        assert child.stderr is not None
        child.stderr.close()
    assert child.returncode == 3, "a node that was not read counts also if nobody reads the errors"


def test_yaml_is_the_document_of_json_which_every_agent_can_answer(kubectl: FakeKubectl) -> None:
    kubectl.node("worker-1", output=json.dumps(SCAN))
    as_json, as_yaml = (kubectl.run("scan", "--all", "-o", name) for name in ("json", "yaml"))
    assert yaml.safe_load(as_yaml.out) == json.loads(as_json.out)
    kubectl.node("worker-1", output=json.dumps(status()))
    as_json, as_yaml = (kubectl.run("status", "-o", name) for name in ("json", "yaml"))
    assert yaml.safe_load(as_yaml.out) == json.loads(as_json.out)
    asked = kubectl.calls("exec")
    assert all(call[-2:] == ["-o", "json"] for call in asked)


def test_a_text_of_an_agent_that_yaml_cannot_have_hides_no_other_node(kubectl: FakeKubectl) -> None:
    kubectl.node("worker-1", output=json.dumps(SCAN | {"node": "\udcff", "\ud800": 1}))
    kubectl.node("worker-2", output=json.dumps(SCAN))
    done = kubectl.run("scan", "--all", "-o", "yaml")
    first, second = yaml.safe_load(done.out)["nodes"]
    assert first["document"]["node"] == "\\udcff"
    assert second["document"] == SCAN

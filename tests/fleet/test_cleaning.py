"""`clean --apply` on many nodes: the question, waves, and the first surprise."""

import json
import os
import pty
import signal
from typing import Any

import pytest

from tests.fleet.kubectl import HOSTILE, FakeKubectl, agent_pod, clean, text
from tests.wire import until

APPLY = ("clean", "--all", "--apply", "--yes", "--pause=0s", "--max-nodes=2")


def add(kubectl: FakeKubectl, *documents: dict[str, Any], **more: Any) -> None:
    for number, document in enumerate(documents, len(kubectl.nodes) + 1):
        kubectl.node(f"worker-{number}", output=text(document), **more)


def test_every_node_is_cleaned_in_waves_and_reported(kubectl: FakeKubectl) -> None:
    add(kubectl, clean("released"), clean("refused"), clean())
    done = kubectl.run(*APPLY, "--", "--max", "3")
    assert done.code == 0
    assert sorted(done.out.splitlines()) == [
        "worker-1: 1 released; free addresses in cbr0: 0 before, 1 after",
        "worker-2: 0 released; refused: not_confirmed (1); free addresses in cbr0: 0 before, 0 after",
        "worker-3: nothing to release",
    ]
    what = "release leaked addresses on 3 nodes of staging (worker-1, worker-2, worker-3), in 2 waves"
    assert done.err.splitlines() == [
        f"nodeleak: {what}",
        "nodeleak: 1 address released, 3 nodes done",
    ]
    assert kubectl.calls("exec")[0][-6:] == ["clean", "--apply", "--max", "3", "-o", "json"]
    assert sorted(kubectl.asked()[:2]) == ["worker-1", "worker-2"]


def test_it_stops_after_the_wave_with_the_first_surprise_and_says_how_to_go_on(kubectl: FakeKubectl) -> None:
    add(kubectl, clean("released"), clean("failed"), clean("released"), clean("released"), clean("released"))
    done = kubectl.run(*APPLY, "--", "--max=3")
    assert done.code == 4
    assert "worker-2: UNEXPECTED: 10.244.1.2 in cbr0: failed: why failed" in done.out.splitlines()
    assert done.err.splitlines()[1:] == [
        "nodeleak: 1 address released, 1 node done, 1 unexpected, 3 not asked",
        "nodeleak: unexpected results on worker-2: inspect them first",
        "nodeleak: to go on: kubectl nodeleak clean --apply worker-3 worker-4 worker-5 -- --max=3",
    ]
    assert sorted(kubectl.asked()) == ["worker-1", "worker-2"]


@pytest.mark.parametrize(
    "surprise",
    [
        {"output": text(clean(halted="a container reappeared"))},
        {"output": text(clean(unavailable=[{"source": "pods", "why": "timed out"}])), "code": 3},
        {"error": "nodeleak: --cleanup-network: missing\nrun ...\n", "code": 2},
        {"error": "Error from server: pod is gone\n", "own_code": 1},
        {"output": "no JSON"},
        {"until": "/nonexistent"},
    ],
)
def test_every_unexpected_result_stops(surprise: dict[str, Any], kubectl: FakeKubectl) -> None:
    kubectl.node("worker-1", **surprise)
    add(kubectl, clean("released"))
    timeout = "1s" if "until" in surprise else "1m"
    done = kubectl.run("clean", "--all", "--apply", "--yes", "--max-nodes=1", f"--timeout={timeout}")
    assert done.code == 4
    assert kubectl.asked() == ["worker-1"]
    assert "1 unexpected, 1 not asked" in done.err


@pytest.mark.parametrize("kept", [0, 30])
def test_an_output_that_kubectl_lost_is_unexpected_and_never_requested_again(kept: int, kubectl: FakeKubectl) -> None:
    kubectl.node("worker-1", output=text(clean("released")), lost=1, kept=kept)
    done = kubectl.run(*APPLY)
    assert done.code == 4
    assert "it is not known what it released: kubectl nodeleak journal worker-1" in done.out
    assert kubectl.asked() == ["worker-1"]


def test_a_node_without_agent_is_left_out(kubectl: FakeKubectl) -> None:
    kubectl.node("worker-1", pods=[])
    add(kubectl, clean("released"))
    done = kubectl.run(*APPLY)
    assert done.code == 3
    assert "nodeleak: worker-1 is skipped: no agent pod on this node" in done.err.splitlines()
    assert "1 node done, 1 skipped" in done.err


def test_the_output_can_be_one_document(kubectl: FakeKubectl) -> None:
    add(kubectl, clean("released"))
    kubectl.node("worker-2", pods=[])
    done = kubectl.run(*APPLY, "-o", "json")
    assert json.loads(done.out) == {
        "schema": "nodeleak.fleet/v1",
        "command": "clean",
        "nodes": [
            {"node": "worker-1", "exit_code": 0, "document": clean("released")},
            {"node": "worker-2", "exit_code": None, "error": "no agent pod on this node"},
        ],
    }


def test_the_document_is_printed_also_if_no_node_can_be_asked(kubectl: FakeKubectl) -> None:
    kubectl.node("worker-1", pods=[])
    done = kubectl.run(*APPLY, "-o", "json")
    error = {"node": "worker-1", "exit_code": None, "error": "no agent pod on this node"}
    assert (done.code, json.loads(done.out)["nodes"]) == (3, [error])


def test_why_a_node_is_left_out_cannot_control_the_terminal(kubectl: FakeKubectl) -> None:
    kubectl.node("worker-1", pods=[agent_pod("worker-1", waiting="\x1b[2JErrImagePull")])
    assert "is not running: \\x1b[2JErrImagePull" in kubectl.run(*APPLY).err


@pytest.mark.parametrize("change", HOSTILE)
def test_a_document_that_cannot_be_written_again_loses_no_result(change: str, kubectl: FakeKubectl) -> None:
    kubectl.node("worker-1", output=f"{text(clean('released'))[:-1]}, {change}}}")
    add(kubectl, clean("released"))
    done = kubectl.run(*APPLY, "-o", "json")
    assert done.code == 4
    assert [one.get("document") for one in json.loads(done.out)["nodes"]] == [None, clean("released")]


# The question


def answered(kubectl: FakeKubectl, line: bytes) -> tuple[int, str]:
    ours, theirs = pty.openpty()
    try:
        child = kubectl.start("clean", "--all", "--apply", stdin=theirs)
        os.write(ours, line)
        out, _ = child.communicate(timeout=60)
    finally:
        os.close(ours)
        os.close(theirs)
    return child.returncode, out


def test_it_asks_once_and_begins_after_yes(kubectl: FakeKubectl) -> None:
    add(kubectl, clean("released"))
    assert answered(kubectl, b"yes\n")[0] == 0
    assert kubectl.asked() == ["worker-1"]


@pytest.mark.parametrize("line", [b"y\n", b"no\n", b"\n", b"\x04"])
def test_every_other_answer_ends_it_without_a_trace(line: bytes, kubectl: FakeKubectl) -> None:
    add(kubectl, clean("released"))
    assert answered(kubectl, line) == (2, "")
    assert kubectl.asked() == []


def test_without_a_terminal_it_needs_a_yes(kubectl: FakeKubectl) -> None:
    add(kubectl, clean("released"))
    done = kubectl.run("clean", "--all", "--apply")
    assert (done.code, kubectl.asked()) == (2, [])
    assert "add --yes" in done.err


# Interruptions


def test_ctrl_c_waits_for_the_wave_and_begins_no_other(kubectl: FakeKubectl) -> None:
    flag, go = kubectl.home / "flag", kubectl.home / "go"
    add(kubectl, clean("released"), flag=str(flag), until=str(go))
    add(kubectl, clean("released"))
    child = kubectl.start(*APPLY[:-1], "--max-nodes=1")
    until(flag.exists, "worker-1 is cleaned", 60)
    child.send_signal(signal.SIGINT)
    assert child.stderr is not None
    lines = [child.stderr.readline(), child.stderr.readline()]
    assert "interrupted: waiting for the nodes of this wave" in lines[-1]
    go.touch()
    _, err = child.communicate(timeout=60)
    assert child.returncode == 5
    assert kubectl.asked() == ["worker-1"]
    assert "to go on: kubectl nodeleak clean --apply worker-2" in err


def test_ctrl_c_ends_a_pause(kubectl: FakeKubectl) -> None:
    add(kubectl, clean("released"), clean("released"))
    child = kubectl.start(*APPLY[:-2], "--max-nodes=1", "--pause=1h")
    assert child.stdout is not None
    assert child.stdout.readline().startswith("worker-1: 1 released")
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=60)
    assert (child.returncode, kubectl.asked()) == (5, ["worker-1"])

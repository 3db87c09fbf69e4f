"""`clean --apply` on many nodes: the question, waves, and the first unexpected result."""

import json
import os
import pty
import signal
import subprocess
import sys
from typing import Any

from tests.fleet.kubectl import FakeKubectl, agent_pod, clean
from tests.wire import until

APPLY = ("clean", "--all", "--apply", "--yes", "--pause=0s", "--max-nodes=2")


def add(kubectl: FakeKubectl, *documents: dict[str, Any], **more: Any) -> None:
    for number, document in enumerate(documents, len(kubectl.nodes) + 1):
        kubectl.node(f"worker-{number}", output=json.dumps(document), **more)


def test_nodes_are_cleaned_in_waves_until_an_unexpected_result_and_it_says_how_to_go_on(
    kubectl: FakeKubectl,
) -> None:
    add(kubectl, clean("released"), clean("refused", "released", reason="over_budget"), clean())
    done = kubectl.run(*APPLY, "--", "--max", "3")
    assert done.code == 0
    assert sorted(done.out.splitlines()) == [
        "worker-1: 1 released; free addresses in cbr0: 0 before, 1 after",
        "worker-2: 1 released; refused: over_budget (1); free addresses in cbr0: 0 before, 1 after",
        "worker-3: nothing to release",
    ]
    assert done.err.splitlines() == [
        "nodeleak: release leaked addresses on 3 nodes of staging (worker-1, worker-2, worker-3), in 2 waves",
        "nodeleak: 2 addresses released, 3 nodes done",
    ]
    assert kubectl.calls("exec")[0][-6:] == ["clean", "--apply", "--max", "3", "-o", "json"]
    assert sorted(kubectl.asked()[:2]) == ["worker-1", "worker-2"]
    kubectl.clear()
    add(
        kubectl,
        clean("released"),
        clean("failed"),
        clean("released"),
        clean("released"),
        clean("released"),
    )
    done = kubectl.run(*APPLY, "--", "--max=3")
    assert done.code == 4
    assert "worker-2: UNEXPECTED: 10.244.1.2 in cbr0: failed: why failed" in done.out.splitlines()
    assert done.err.splitlines()[1:] == [
        "nodeleak: 1 address released, 1 node done, 1 unexpected, 3 not asked",
        "nodeleak: unexpected results on worker-2: inspect them first",
        "nodeleak: to go on: kubectl nodeleak clean --apply worker-3 worker-4 worker-5 -- --max=3",
    ]
    assert sorted(kubectl.asked()) == ["worker-1", "worker-2"]


def test_a_node_whose_result_is_not_known_stops_and_is_not_asked_again(
    kubectl: FakeKubectl,
) -> None:
    released = json.dumps(clean("released"))
    answers: list[dict[str, Any]] = [
        {"error": "Error from server: pod is gone\n", "own_code": 1},
        {"output": released, "lost": 1},
        {"output": released, "lost": 1, "kept": 30},
        {"until": "/nonexistent"},
    ]
    for number, answer in enumerate(answers, 1):
        node, following = f"worker-{number}", f"worker-{number}-b"
        kubectl.node(node, **answer)
        kubectl.node(following, output=released)
        timeout = "1s" if "until" in answer else "1m"
        done = kubectl.run(
            "clean", node, following, "--apply", "--yes", "--max-nodes=1", f"--timeout={timeout}"
        )
        assert (done.code, kubectl.asked()[number - 1 :]) == (4, [node])
        assert "1 unexpected, 1 not asked" in done.err
        assert f"it is not known what it released: kubectl nodeleak journal {node}" in done.out


def test_a_node_without_agent_is_skipped_and_hides_no_unexpected_result(
    kubectl: FakeKubectl,
) -> None:
    kubectl.node("worker-1", pods=[])
    kubectl.node("worker-2", pods=[agent_pod("worker-2", waiting="\x1b[2JErrImagePull")])
    alone = kubectl.run(*APPLY, "-o", "json")
    assert (alone.code, [node["node"] for node in json.loads(alone.out)["nodes"]]) == (
        3,
        ["worker-1", "worker-2"],
    )
    add(kubectl, clean("released"))
    done = kubectl.run(*APPLY, "-o", "json")
    assert done.code == 3
    assert "nodeleak: worker-1 is skipped: no agent pod on this node" in done.err.splitlines()
    assert "is not running: \\x1b[2JErrImagePull" in done.err
    assert "1 node done, 2 skipped (worker-1, worker-2)" in done.err
    document = json.loads(done.out)
    assert (document["schema"], document["command"]) == ("nodeleak.fleet/v1", "clean")
    first, _, last = document["nodes"]
    assert first == {"node": "worker-1", "exit_code": None, "error": "no agent pod on this node"}
    assert last == {"node": "worker-3", "exit_code": 0, "document": clean("released")}
    add(kubectl, clean("failed"), clean("released"))
    done = kubectl.run(*APPLY[:-1], "--max-nodes=1", "-o", "json")
    assert (done.code, "1 unexpected, 2 skipped (worker-1, worker-2), 1 not asked" in done.err) == (
        4,
        True,
    )
    assert [(node["exit_code"], node.get("error")) for node in json.loads(done.out)["nodes"]][2:] == [
        (0, None), (0, None), (None, "not asked: cleaning stopped before it"),
    ]  # fmt: skip


def test_only_a_release_a_refusal_and_nothing_to_release_are_expected(kubectl: FakeKubectl) -> None:
    odd = [{"network": "cbr0", "free_before": "x", "free_after": 0}]
    documents: dict[str, tuple[Any, str]] = {
        "halted": (
            clean(halted="container 950b9e02 reappeared"),
            "cleanup halted: container 950b9e02 reappeared",
        ),
        "source": (
            clean(unavailable=[{"source": "pods", "why": "timed out"}]),
            "pods unavailable: timed out",
        ),
        "dry": (clean("refused", applied=False), "it was a dry run"),
        "newer": (
            {"schema": "nodeleak.clean/v2"},
            "answered with schema nodeleak.clean/v2, and this command reads",
        ),
        "empty": ({"schema": "nodeleak.clean/v1"}, "cannot read its nodeleak.clean/v1"),
        "odd-network": (clean("released", networks=odd), "cannot read"),
        "odd-addresses": (clean("released", addresses=1), "cannot read"),
    }
    for verdict in (
        "changed",
        "gone",
        "busy",
        "interrupted",
        "failed",
        "would_release",
        "something",
    ):
        documents[verdict] = (
            clean("released", verdict),
            f"10.244.1.3 in cbr0: {verdict}: why {verdict}",
        )
    for node, (document, _) in documents.items():
        kubectl.node(node, output=json.dumps(document))
    usage = "nodeleak: --cleanup-network: not set"
    kubectl.node("usage", output="[]", code=2, error=f"{usage}\nrun ...\n")
    kubectl.node("disk", output=json.dumps(clean("released")), code=74)
    done = kubectl.run(*APPLY[:-1], "--max-nodes=50")
    lines = dict(line.split(": UNEXPECTED: ") for line in done.out.splitlines())
    shown = {node: why for node, (_, why) in documents.items()} | {
        "usage": usage,
        "disk": "exit code 74",
    }
    assert (lines.keys(), [why for node, why in shown.items() if why not in lines[node]]) == (
        shown.keys(),
        [],
    )
    assert f"9 addresses released, 0 nodes done, {len(shown)} unexpected" in done.err


# The question, and interruptions


def test_it_asks_once_and_begins_after_yes_and_needs_one_without_a_terminal(
    kubectl: FakeKubectl,
) -> None:
    add(kubectl, clean("released"))
    done = kubectl.run("clean", "--all", "--apply")
    assert (done.code, kubectl.asked(), "add --yes" in done.err) == (2, [], True)
    for line in (b"y\n", b"\n", b"\x04", b"yes\n"):
        assert kubectl.asked() == []
        ours, theirs = pty.openpty()
        try:
            child = kubectl.start("clean", "--all", "--apply", stdin=theirs)
            os.write(ours, line)
            out, _ = child.communicate(timeout=60)
        finally:
            os.close(ours)
            os.close(theirs)
        assert (child.returncode, bool(out)) == ((0, True) if line == b"yes\n" else (2, False))
    assert kubectl.asked() == ["worker-1"]


def test_a_signal_may_come_at_any_moment_of_a_pause() -> None:
    """A handler that interrupts `threading.Event.wait` while that has the lock never returns."""
    program = (
        "import signal\n"
        "from agent.fleet.cleaning import _stopping\n"
        "for turn in range(200):\n"
        "    with _stopping() as stop:\n"
        "        signal.signal(signal.SIGALRM, signal.getsignal(signal.SIGTERM))\n"
        "        signal.setitimer(signal.ITIMER_REAL, 1e-6 * (1 + turn % 50))\n"
        "        assert stop.wait(3600)\n"
    )
    ran = subprocess.run(  # noqa: S603 (our own program)
        [sys.executable, "-c", program], capture_output=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stderr.count(b"interrupted")) == (0, 200), ran.stderr


def test_ctrl_c_waits_for_the_wave_begins_no_other_and_ends_a_pause(kubectl: FakeKubectl) -> None:
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
    child = kubectl.start(*APPLY[:-2], "--max-nodes=1", "--pause=1h")
    assert child.stdout is not None
    assert child.stdout.readline().startswith("worker-1: 1 released")
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=60)
    assert (child.returncode, kubectl.asked()) == (5, ["worker-1"] * 2)

"""`clean --apply` on many nodes: the question, waves, the first surprise, and going on."""

import json
import os
import pty
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.kubectl import HOSTILE, FakeKubectl, clean, pod_line, text
from tests.wire import until

APPLY = ("clean", "--all", "--apply", "--yes", "--pause=0s", "--max-nodes=2")
REPORT = "nodeleak-clean-1.json"


def add(kubectl: FakeKubectl, *documents: dict[str, Any], **more: Any) -> None:
    for number, document in enumerate(documents, len(kubectl.nodes) + 1):
        kubectl.node(f"worker-{number}", output=text(document), **more)


def states(kubectl: FakeKubectl, name: str = REPORT) -> dict[str, str]:
    return {one["node"]: one["state"] for one in report(kubectl, name)["nodes"]}


def report(kubectl: FakeKubectl, name: str = REPORT) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads((kubectl.home / name).read_text())
    return tree


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
        f"nodeleak: 1 address released, 3 nodes done; report: {REPORT}",
    ]
    assert kubectl.calls("exec")[0][-6:] == ["clean", "--apply", "--max", "3", "-o", "json"]
    assert sorted(kubectl.asked()[:2]) == ["worker-1", "worker-2"]
    assert set(states(kubectl).values()) == {"done"}
    assert report(kubectl)["nodes"][0]["result"]["document"] == clean("released")
    assert (kubectl.home / REPORT).stat().st_mode & 0o777 == 0o600


def test_it_stops_after_the_wave_with_the_first_surprise_and_goes_on_with_the_others(kubectl: FakeKubectl) -> None:
    add(kubectl, clean("released"), clean("failed"), clean("released"), clean("released"), clean("released"))
    done = kubectl.run(*APPLY, "--", "--max=3")
    assert done.code == 4
    assert "worker-2: UNEXPECTED: 10.244.1.2 in cbr0: failed: why failed" in done.out.splitlines()
    assert done.err.splitlines()[1:] == [
        f"nodeleak: 1 address released, 1 node done, 1 to look at, 3 not asked; report: {REPORT}",
        "nodeleak: no expected result: look at worker-2 first; --continue does not clean these again",
        f"nodeleak: to go on: kubectl nodeleak clean --apply --continue {REPORT}",
    ]
    assert sorted(kubectl.asked()) == ["worker-1", "worker-2"]

    again = kubectl.run("clean", "--apply", "--yes", "--pause=0s", "--max-nodes=1", "--continue", REPORT)
    assert again.code == 4  # worker-2 is still to be looked at
    assert sorted(kubectl.asked()[2:]) == ["worker-3", "worker-4", "worker-5"]
    assert kubectl.calls("exec")[-1][-5:] == ["clean", "--apply", "--max=3", "-o", "json"]
    assert [*states(kubectl).values()] == ["done", "surprise", "done", "done", "done"]

    once_more = kubectl.run("clean", "--apply", "--yes", "--continue", REPORT)
    assert (once_more.code, once_more.err) == (4, "nodeleak: no node to clean\n")


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
    assert states(kubectl) == {"worker-1": "surprise", "worker-2": "pending"}


@pytest.mark.parametrize("kept", [0, 30])
def test_an_output_that_kubectl_lost_is_unexpected_and_never_requested_again(kept: int, kubectl: FakeKubectl) -> None:
    kubectl.node("worker-1", output=text(clean("released")), lost=1, kept=kept)
    done = kubectl.run(*APPLY)
    assert done.code == 4
    assert "it is not known what it released: kubectl nodeleak journal worker-1" in done.out
    assert kubectl.asked() == ["worker-1"]


def test_a_node_without_agent_is_left_out(kubectl: FakeKubectl) -> None:
    kubectl.node("worker-1", pod="")
    add(kubectl, clean("released"))
    done = kubectl.run(*APPLY)
    assert done.code == 3
    assert "nodeleak: worker-1 is left out: no agent pod on this node" in done.err.splitlines()
    assert states(kubectl) == {"worker-1": "left_out", "worker-2": "done"}


def test_a_node_that_was_left_out_is_cleaned_when_it_goes_on(kubectl: FakeKubectl) -> None:
    kubectl.node("worker-1", pod="", output=text(clean("released")))
    add(kubectl, clean("released"))
    done = kubectl.run(*APPLY)
    assert done.err.splitlines()[-1] == f"nodeleak: to go on: kubectl nodeleak clean --apply --continue {REPORT}"
    still = kubectl.run("clean", "--apply", "--yes", "--continue", REPORT)
    assert (still.code, states(kubectl)) == (3, {"worker-1": "left_out", "worker-2": "done"})

    kubectl.pods.append(pod_line("worker-1"))
    kubectl.node("worker-9")  # writes the list
    assert kubectl.run("clean", "--apply", "--yes", "--continue", REPORT).code == 0
    assert states(kubectl) == {"worker-1": "done", "worker-2": "done"}
    assert kubectl.asked() == ["worker-2", "worker-1"]


def test_a_second_run_with_the_same_report_is_refused(kubectl: FakeKubectl) -> None:
    flag, go = kubectl.home / "flag", kubectl.home / "go"
    kubectl.node("worker-1", flag=str(flag), until=str(go), output=text(clean("released")))
    child = kubectl.start(*APPLY)
    until(flag.exists, "worker-1 is asked", 60)
    (kubectl.home / "link.json").symlink_to(REPORT)
    for name in (REPORT, "link.json"):
        second = kubectl.run("clean", "--apply", "--yes", "--continue", name)
        assert (second.code, second.out) == (2, "")
        assert f"{name} is used by another run of this command: wait until it has ended" in second.err
    go.touch()
    child.communicate(timeout=60)
    assert (child.returncode, kubectl.asked()) == (0, ["worker-1"])
    assert list(kubectl.home.glob(".*")) == []
    assert kubectl.run("clean", "--apply", "--yes", "--continue", REPORT).err == "nodeleak: no node to clean\n"


def test_a_report_that_is_continued_by_a_link_is_locked_until_the_end(kubectl: FakeKubectl) -> None:
    kubectl.node("worker-1", pod="")
    add(kubectl, clean("released"))
    assert kubectl.run(*APPLY).code == 3
    link, flag, go = kubectl.home / "link.json", kubectl.home / "flag", kubectl.home / "go"
    link.symlink_to(REPORT)
    kubectl.node("worker-1", flag=str(flag), until=str(go), output=text(clean("released")))
    child = kubectl.start("clean", "--apply", "--yes", "--continue", "link.json")
    until(flag.exists, "worker-1 is asked", 60)
    for name in (REPORT, "link.json"):
        assert "is used by another run" in kubectl.run("clean", "--apply", "--yes", "--continue", name).err
    go.touch()
    child.communicate(timeout=60)
    assert link.is_symlink()
    assert states(kubectl) == {"worker-1": "done", "worker-2": "done"}


def test_a_node_that_is_gone_is_left_out_when_it_goes_on(kubectl: FakeKubectl) -> None:
    add(kubectl, clean("failed"), clean("released"), clean("released"))
    assert kubectl.run(*APPLY, "--max-nodes=1").code == 4
    kubectl.nodes.pop()
    kubectl.node("other")
    assert kubectl.run("clean", "--apply", "--yes", "--continue", REPORT).code == 4
    assert states(kubectl) == {"worker-1": "surprise", "worker-2": "done", "worker-3": "left_out"}


def test_the_output_can_be_one_document(kubectl: FakeKubectl) -> None:
    add(kubectl, clean("released"))
    kubectl.node("worker-2", pod="")
    done = kubectl.run(*APPLY, "-o", "json")
    assert json.loads(done.out) == {
        "schema": "nodeleak.fleet/v1",
        "command": "clean",
        "nodes": [
            {"node": "worker-1", "exit_code": 0, "document": clean("released")},
            {"node": "worker-2", "exit_code": None, "error": "no agent pod on this node"},
        ],
    }


def test_an_answer_is_parsed_once(kubectl: FakeKubectl, monkeypatch: pytest.MonkeyPatch) -> None:
    add(kubectl, clean("released"))
    parsed, loads = list[str](), json.loads

    def counted(given: str, **options: Any) -> Any:
        parsed.append(given)
        return loads(given, **options)

    monkeypatch.setattr(json, "loads", counted)
    assert kubectl.run(*APPLY, "-o", "json").code == 0
    assert parsed.count(text(clean("released"))) == 1


def test_the_document_is_printed_also_if_no_node_can_be_asked(kubectl: FakeKubectl) -> None:
    kubectl.node("worker-1", pod="")
    done = kubectl.run(*APPLY, "-o", "json")
    error = {"node": "worker-1", "exit_code": None, "error": "no agent pod on this node"}
    assert (done.code, json.loads(done.out)["nodes"]) == (3, [error])


def test_why_a_node_is_left_out_cannot_control_the_terminal(kubectl: FakeKubectl) -> None:
    kubectl.node("worker-1", pod=pod_line("worker-1", waiting="\x1b[2JErrImagePull"))
    assert "is not running: \\x1b[2JErrImagePull" in kubectl.run(*APPLY).err


@pytest.mark.parametrize("change", HOSTILE)
def test_a_document_that_cannot_be_written_again_loses_no_result(change: str, kubectl: FakeKubectl) -> None:
    kubectl.node("worker-1", output=f"{text(clean('released'))[:-1]}, {change}}}")
    add(kubectl, clean("released"))
    done = kubectl.run(*APPLY, "-o", "json")
    assert done.code == 4
    assert states(kubectl) == {"worker-1": "surprise", "worker-2": "done"}
    assert [one.get("document") for one in json.loads(done.out)["nodes"]] == [None, clean("released")]


def test_an_output_that_cannot_be_written_loses_no_result(kubectl: FakeKubectl) -> None:
    add(kubectl, clean("released"))
    with Path("/dev/full").open("w") as full:
        child = kubectl.start(*APPLY, stdout=full)
        child.communicate(timeout=60)
    assert child.returncode == 74
    assert states(kubectl) == {"worker-1": "done"}


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
    assert list(kubectl.home.glob("*.json")) == []


def test_without_a_terminal_it_needs_a_yes(kubectl: FakeKubectl) -> None:
    add(kubectl, clean("released"))
    done = kubectl.run("clean", "--all", "--apply")
    assert (done.code, kubectl.asked()) == (2, [])
    assert "add --yes" in done.err


# Reports


def test_no_report_is_overwritten(kubectl: FakeKubectl) -> None:
    add(kubectl, clean())
    (kubectl.home / REPORT).write_text("mine")
    assert kubectl.run(*APPLY).code == 0
    assert (kubectl.home / REPORT).read_text() == "mine"
    assert states(kubectl, "nodeleak-clean-2.json") == {"worker-1": "done"}
    done = kubectl.run(*APPLY, "--report", REPORT)
    assert done.code == 2
    assert f"--report: {REPORT} exists: name another file, or continue it" in done.err


@pytest.mark.parametrize("content", ["", "[]", '{"schema": "nodeleak.fleet/v1"}'])
def test_another_file_cannot_be_continued(content: str, kubectl: FakeKubectl) -> None:
    (kubectl.home / "x.json").write_text(content)
    done = kubectl.run("clean", "--apply", "--yes", "--continue", "x.json")
    assert done.code == 2
    assert "--continue: x.json: " in done.err
    assert "cannot read missing.json" in kubectl.run("clean", "--apply", "--continue", "missing.json").err


def test_a_report_of_another_cluster_cannot_be_continued(kubectl: FakeKubectl) -> None:
    add(kubectl, clean("failed"), clean("released"))
    done = kubectl.run(*APPLY, "--max-nodes=1", "--context=production")
    assert f"to go on: kubectl nodeleak clean --apply --continue {REPORT} --context=production" in done.err
    again = kubectl.run("clean", "--apply", "--yes", "--continue", REPORT)
    assert again.code == 2
    assert 'is of the context "production", not "staging": add --context=production' in again.err
    assert kubectl.run("clean", "--apply", "--yes", "--continue", REPORT, "--context=production").code == 4
    assert kubectl.asked() == ["worker-1", "worker-2"]


def test_without_a_place_for_the_report_nothing_begins(kubectl: FakeKubectl) -> None:
    add(kubectl, clean("released"))
    done = kubectl.run(*APPLY, "--report", "/nonexistent/x.json")
    assert (done.code, kubectl.asked()) == (2, [])
    assert "cannot create the report in /nonexistent: no such file or directory" in done.err


def test_a_report_that_cannot_be_written_stops_it(kubectl: FakeKubectl) -> None:
    place = kubectl.home / "reports"
    place.mkdir()
    add(kubectl, clean("released"), clean("released"), flag=str(kubectl.home / "flag"), until=str(kubectl.home / "go"))
    child = kubectl.start(*APPLY, "--max-nodes=1", "--report=reports/x.json")
    until((kubectl.home / "flag").exists, "worker-1 is cleaned", 60)
    shutil.rmtree(place)
    place.write_text("a file")
    (kubectl.home / "go").touch()
    _, err = child.communicate(timeout=60)
    assert (child.returncode, kubectl.asked()) == (74, ["worker-1"])
    assert "nodeleak: cannot write the report: " in err


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
    assert states(kubectl) == {"worker-1": "done", "worker-2": "pending"}
    assert f"to go on: kubectl nodeleak clean --apply --continue {REPORT}" in err


def test_ctrl_c_ends_a_pause(kubectl: FakeKubectl) -> None:
    add(kubectl, clean("released"), clean("released"))
    child = kubectl.start(*APPLY[:-2], "--max-nodes=1", "--pause=1h")
    until(lambda: states_or_none(kubectl.home / REPORT) == ["done", "pending"], "the first wave is done", 60)
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=60)
    assert (child.returncode, kubectl.asked()) == (5, ["worker-1"])


def states_or_none(path: Path) -> list[str] | None:
    try:
        return [one["state"] for one in json.loads(path.read_text())["nodes"]]
    except (OSError, ValueError):
        return None


def test_after_a_kill_the_nodes_of_the_wave_are_not_cleaned_again(kubectl: FakeKubectl) -> None:
    flag = kubectl.home / "flag"
    add(kubectl, clean("released"), flag=str(flag), until=str(kubectl.home / "go"))
    add(kubectl, clean("released"))
    child = kubectl.start(*APPLY[:-1], "--max-nodes=1")
    until(flag.exists, "worker-1 is cleaned", 60)
    child.kill()
    child.communicate()
    (kubectl.home / "go").touch()
    assert states(kubectl) == {"worker-1": "asked", "worker-2": "pending"}
    done = kubectl.run("clean", "--apply", "--yes", "--continue", REPORT)
    assert done.code == 4
    assert kubectl.asked() == ["worker-1", "worker-2"]
    assert states(kubectl) == {"worker-1": "asked", "worker-2": "done"}
    assert "look at worker-1 first" in done.err

"""`brake`: which ConfigMap it makes, deletes and reads, and what it says when that cannot be."""

import json
from typing import Any

import pytest

from tests.deploy.manifests import AGENTS
from tests.fleet.kubectl import FakeKubectl, status
from tests.fleet.test_clean_job import container, daemon_set


@pytest.fixture(autouse=True)
def off(kubectl: FakeKubectl) -> None:
    (kubectl.home / "configmaps").write_text("")
    kubectl.daemon_sets(daemon_set())


def test_on_makes_the_object_that_the_agents_read_and_off_deletes_it(kubectl: FakeKubectl) -> None:
    assert kubectl.run("brake").code == 0
    done = kubectl.run("brake", "on", "--reason", "incident 42", "--context=staging")
    assert (done.code, done.err) == (0, "")
    made = json.loads((kubectl.home / "configmaps").read_text())
    named = {"name": "nodeleak-brake", "namespace": "kube-system"}
    assert made["kind"] == "ConfigMap"
    assert made["metadata"].items() >= named.items()
    assert made["data"] == {"reason": "incident 42"}
    assert "--context=staging" in kubectl.calls("apply")[0]

    shown = kubectl.run("brake")
    assert shown.code == 1
    assert 'kube-system/nodeleak-brake is on: "incident 42"' in shown.out
    assert kubectl.run("brake", "off").code == 0
    assert "configmap" in kubectl.calls("delete")[0]
    assert "--namespace=kube-system" in kubectl.calls("delete")[0]
    assert "and was before" in kubectl.run("brake", "off").out
    assert kubectl.run("brake").code == 0


def test_an_odd_object_is_on_and_its_reason_cannot_control_the_terminal(
    kubectl: FakeKubectl,
) -> None:
    for data in (None, {}, {"reason": "a\x1b[2Jb"}):
        item = {"metadata": {"creationTimestamp": "2026-03-26T19:20:00Z"}, "data": data}
        (kubectl.home / "configmaps").write_text(json.dumps(item))
        done = kubectl.run("brake")
        assert done.code == 1
        assert "has been on since 2026-03-26T19:20:00Z" in done.out
        assert "\x1b" not in done.out


def test_it_is_unknown_while_it_cannot_be_read(kubectl: FakeKubectl) -> None:
    (kubectl.home / "fails").touch()
    done = kubectl.run("brake")
    assert (done.code, done.out) == (3, "")


def test_the_name_is_that_of_the_daemon_sets_wherever_they_have_it(kubectl: FakeKubectl) -> None:
    for name in AGENTS:
        kubectl.daemon_sets(daemon_set(name))
        done = kubectl.run("brake")
        if name == "overlays/no-api":
            assert "kube-system/nodeleak reads no brake" in done.err
        else:
            assert "kube-system/nodeleak-brake is off" in done.out
    other = daemon_set(args=["run", "--brake=ops/stop"])
    other["metadata"]["namespace"] = "monitoring"
    kubectl.daemon_sets(other)
    assert "The brake ops/stop is off" in kubectl.run("brake").out
    container(other)["args"] = ["run", "--brake", "ops/wait", "--interval=30s"]
    kubectl.daemon_sets(other)
    assert "The brake ops/wait is off" in kubectl.run("brake").out
    renamed = daemon_set(env=[{"name": "NODELEAK_BRAKE", "value": "stop"}])
    renamed["metadata"]["namespace"] = "monitoring"
    kubectl.daemon_sets(renamed, renamed)
    assert "The brake monitoring/stop is off" in kubectl.run("brake").out
    cases: tuple[tuple[list[dict[str, Any]], str], ...] = (
        ([], "expected one brake of the agents, found: none"),
        ([daemon_set(), renamed], "found: kube-system/nodeleak-brake, monitoring/stop"),
        ([daemon_set(env=[])], "the DaemonSet kube-system/nodeleak reads no brake"),
        ([daemon_set(args=["run", "--brake=off"])], "reads no brake"),
        ([daemon_set(), daemon_set(args=["run", "--brake=A B"])], "reads no brake"),
    )
    for daemon_sets, text in cases:
        kubectl.daemon_sets(*daemon_sets)
        done = kubectl.run("brake", "on", "--reason=x")
        assert done.code == 2
        assert text in done.err
        assert not kubectl.calls("apply")


def test_pods_that_a_rollout_has_not_reached_may_read_another_one(kubectl: FakeKubectl) -> None:
    for generation, updated, text in (
        (2, 7, ""),
        (2, 5, "kube-system/nodeleak is being rolled out: 2 pods may have earlier settings"),
        (3, 7, "kube-system/nodeleak is being rolled out: 7 pods may have earlier settings"),
    ):
        rolled_out = daemon_set()
        rolled_out["metadata"]["generation"] = generation
        rolled_out["status"] = {
            "observedGeneration": 2,
            "desiredNumberScheduled": 7,
            "updatedNumberScheduled": updated,
        }
        kubectl.daemon_sets(rolled_out)
        done = kubectl.run("brake", "on", "--reason=x")
        assert done.code == 0
        assert text in done.err if text else not done.err
        assert "is on. No agent begins a release" in done.out


def test_a_sidecar_before_the_agent_is_not_asked(kubectl: FakeKubectl) -> None:
    both = daemon_set()
    agent = container(both)
    both["spec"]["template"]["spec"]["containers"] = [{"name": "proxy"}, agent]
    kubectl.daemon_sets(both)
    assert kubectl.run("brake").code == 0


def test_bad_usage_names_the_remedy(kubectl: FakeKubectl) -> None:
    cases = (
        (("on",), "brake on needs --reason"),
        (("on", "--reason", " "), "brake on needs --reason"),
        (("off", "--reason=x"), "--reason belongs to brake on"),
        (("pause",), "invalid"),
        (("on", "worker-1", "--reason=x"), "unexpected argument"),
        (("off", "--", "--ip=x"), "brake takes no options after --"),
    )
    for arguments, text in cases:
        done = kubectl.run("brake", *arguments)
        assert done.code == 2
        assert text in done.err, arguments
    assert not kubectl.calls("apply")


def test_status_counts_the_agents_that_see_it(kubectl: FakeKubectl) -> None:
    for node, brake in (("a", "on"), ("b", "on"), ("c", "unknown"), ("d", "off"), ("e", None)):
        cleanup = status()["cleanup"] | {"brake": brake}
        kubectl.node(node, output=json.dumps(status(node, cleanup=cleanup)))
    _, on, unknown, *_ = kubectl.run("status").out.splitlines()
    assert on.startswith("The brake is on for 2 of 5 agents, which release nothing")
    assert unknown == "1 of 5 agents cannot read the brake, and release nothing"

"""The Job that cleans one node, from the DaemonSets of deploy/, and the Roles of docs/kubectl.md."""

import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml  # type: ignore[import-untyped]

from agent.config import UsageError
from agent.fleet.clean_job import clean_job
from agent.fleet.inventory import LABELS
from tests.deploy.manifests import AGENTS, of_kind
from tests.deploy.test_manifests import VERSIONS
from tests.fleet.kubectl import Done, FakeKubectl


def daemon_set(name: str = "base") -> dict[str, Any]:
    (only,) = of_kind(name, "DaemonSet")
    return only


def job(name: str = "base", *options: str, apply: bool = True) -> dict[str, Any]:
    return clean_job(daemon_set(name), "worker-1", options, apply=apply)


def container(of: dict[str, Any]) -> dict[str, Any]:
    (only,) = of["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = only
    return found


@pytest.mark.parametrize("name", AGENTS)
def test_the_job_of_a_daemon_set_is_valid_and_does_not_take_its_port(name: str) -> None:
    found = job(name)
    assert {kubernetes_validate.validate(found, version, strict=True) for version in VERSIONS}
    assert not {"ports", "livenessProbe", "readinessProbe"} & container(found).keys()
    spec = found["spec"]["template"]["spec"]
    assert (spec["nodeName"], spec["restartPolicy"], spec["hostNetwork"]) == ("worker-1", "Never", True)


@pytest.mark.parametrize("name", AGENTS)
def test_only_the_store_becomes_writable(name: str) -> None:
    before, after, dry = (
        {mount["name"]: mount.get("readOnly", False) for mount in container(owner)["volumeMounts"]}
        for owner in (daemon_set(name), job(name), job(name, apply=False))
    )
    assert (after, dry) == (before | {"cni": False}, before)


@pytest.mark.parametrize(
    ("name", "options", "apply", "arguments"),
    [
        ("base", (), True, ["clean", "--apply", "--cleanup-network=auto"]),
        ("base", (), False, ["clean"]),
        ("base", ("--max", "3"), True, ["clean", "--max", "3", "--apply", "--cleanup-network=auto"]),
        ("base", ("--cleanup-network=cbr0",), True, ["clean", "--cleanup-network=cbr0", "--apply"]),
        ("overlays/cleanup-exec", (), True, ["clean", "--apply"]),
    ],
)
def test_the_command_names_the_networks_unless_the_daemon_set_does(
    name: str, options: tuple[str, ...], apply: bool, arguments: list[str]
) -> None:
    assert container(job(name, *options, apply=apply))["args"] == arguments


def test_the_settings_of_the_daemon_set_hold_in_the_job() -> None:
    source = deepcopy(daemon_set())
    (agent,) = source["spec"]["template"]["spec"]["containers"]
    agent["args"] = ["run", "--cleanup-network=cbr0", "--max-share", "10%", "--settle=1h", "--interval=5s"]
    found = container(clean_job(source, "worker-1", ["--settle=2h"], apply=True))
    assert found["args"] == ["clean", "--cleanup-network=cbr0", "--max-share", "10%", "--settle=2h", "--apply"]


def test_a_job_does_not_allow_more_networks_than_an_environment_that_is_not_seen() -> None:
    source = deepcopy(daemon_set())
    (agent,) = source["spec"]["template"]["spec"]["containers"]
    agent["envFrom"] = [{"configMapRef": {"name": "nodeleak"}}]
    assert container(clean_job(source, "worker-1", (), apply=True))["args"] == ["clean", "--apply"]


def test_the_job_is_not_taken_for_an_agent() -> None:
    labels = job()["spec"]["template"]["metadata"]["labels"]
    assert not dict(label.split("=") for label in LABELS.split(",")).items() <= labels.items()
    selector = daemon_set()["spec"]["selector"]["matchLabels"]
    assert not selector.items() <= labels.items()


def test_a_sidecar_is_left_out() -> None:
    source = deepcopy(daemon_set())
    source["spec"]["template"]["spec"]["containers"].insert(0, {"name": "mesh", "image": "x"})
    assert container(clean_job(source, "worker-1", (), apply=True))["name"] == "nodeleak"


def test_another_daemon_set_is_refused() -> None:
    agent = {"name": "nodeleak", "volumeMounts": []}
    for containers, message in (([], "container"), ([agent], "mounts no hostPath /var/lib/cni")):
        spec = {"containers": containers, "volumes": []}
        changed = {"metadata": {"namespace": "x"}, "spec": {"template": {"spec": spec}}}
        with pytest.raises(UsageError, match=message):
            clean_job(changed, "worker-1", (), apply=True)


def test_it_is_printed_as_a_manifest(kubectl: FakeKubectl) -> None:
    kubectl.node("worker-1")
    (kubectl.home / "daemonsets").write_text(json.dumps({"items": [daemon_set()]}))
    done = kubectl.run("clean-job", "worker-1", "--apply", "--context=staging", "--", "--max", "3")
    assert (done.code, done.err) == (0, "")
    assert yaml.safe_load(done.out) == job("base", "--max", "3")
    again = "kubectl nodeleak clean-job worker-1 --apply --run --context=staging -- --max 3"
    assert done.out.splitlines()[0].endswith(f": {again}")
    assert kubectl.calls("exec") == []


# --run


def job_pod(**state: Any) -> dict[str, Any]:
    """Return the Job's pod with the state of its container, beside a sidecar that never ends."""
    statuses = [{"name": "mesh", "state": {"running": {}}}, {"name": "nodeleak", "state": state}]
    phase = "Pending" if "waiting" in state else "Running"
    return {"metadata": {"name": "nodeleak-clean-x1-abc"}, "status": {"phase": phase, "containerStatuses": statuses}}


PULLING = {"reason": "ErrImagePull", "message": "no such host"}


def run_job(kubectl: FakeKubectl, *looks: Any, timeout: str = "1m") -> Done:
    """Run the Job on worker-1. `looks`: what each list of its pods shows, the last one for ever."""
    kubectl.node("worker-1")
    (kubectl.home / "daemonsets").write_text(json.dumps({"items": [daemon_set()]}))
    (kubectl.home / "looks").write_text(json.dumps([[look] if look else [] for look in looks]))
    (kubectl.home / "log").write_text("2 released\n\x1b[2J\n")
    return kubectl.run("clean-job", "worker-1", "--apply", "--run", f"--timeout={timeout}", "--", "--max", "3")


def test_run_creates_the_job_and_ends_with_its_log_and_exit_code(kubectl: FakeKubectl) -> None:
    done = run_job(kubectl, None, job_pod(waiting=PULLING), job_pod(running={}), job_pod(terminated={"exitCode": 4}))
    assert (done.code, done.out) == (4, "2 released\n\\x1b[2J\n")
    assert json.loads((kubectl.home / "created").read_text()) == job("base", "--max", "3")
    assert done.err.splitlines() == [
        "nodeleak: created Job nodeleak-clean-x1 in namespace kube-system",
        "nodeleak: pod nodeleak-clean-x1-abc waits: ErrImagePull: no such host",
    ]
    (logs,) = kubectl.calls("logs")
    assert logs[1:] == ["nodeleak-clean-x1-abc", "--namespace=kube-system", "--container=nodeleak"]


PENDING = {"metadata": {"name": "p"}, "status": {"phase": "Pending"}}
NOT_MOUNTED = {"reason": "FailedMount", "message": "no such volume", "lastTimestamp": "2026-03-26T19:20:00Z"}
SCHEDULED = {"reason": "Scheduled", "lastTimestamp": "2026-03-26T19:19:00Z"}


@pytest.mark.parametrize(
    ("look", "event", "why"),
    [
        (job_pod(waiting=PULLING), [], "pod nodeleak-clean-x1-abc: ErrImagePull: no such host"),
        (None, [{"reason": "FailedCreate", "message": "forbidden"}], "it has no pod: FailedCreate: forbidden"),
        (PENDING, [NOT_MOUNTED, SCHEDULED], "pod p: FailedMount: no such volume"),
    ],
)
def test_a_job_that_does_not_start_says_why(look: Any, event: Any, why: str, kubectl: FakeKubectl) -> None:
    (kubectl.home / "events").write_text(json.dumps({"items": event}))
    done = run_job(kubectl, look, timeout="1s")
    assert (done.code, done.out) == (3, "")
    assert done.err.splitlines()[-2:] == [
        "nodeleak: the Job may go on; to stop it: kubectl --namespace=kube-system delete job nodeleak-clean-x1",
        f"nodeleak: Job nodeleak-clean-x1 did not end within 1 s: {why}",
    ]


def test_a_pod_that_the_kubelet_refuses_ends_the_wait(kubectl: FakeKubectl) -> None:
    status = {"phase": "Failed", "reason": "OutOfmemory", "message": "the node is full"}
    done = run_job(kubectl, {"metadata": {"name": "p"}, "status": status})
    assert (done.code, done.err.splitlines()[-1]) == (3, "nodeleak: pod p failed: OutOfmemory: the node is full")


def test_without_a_daemon_set_there_is_no_job(kubectl: FakeKubectl) -> None:
    kubectl.node("worker-1")
    (kubectl.home / "daemonsets").write_text(json.dumps({"items": []}))
    done = kubectl.run("clean-job", "worker-1")
    assert (done.code, done.out) == (2, "")
    assert "found: none" in done.err


def test_the_roles_of_the_page_are_valid() -> None:
    page = (Path(__file__).parents[2] / "docs" / "kubectl.md").read_text()
    (roles,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    for version in VERSIONS:
        assert {kubernetes_validate.validate(role, version, strict=True) for role in yaml.safe_load_all(roles)}

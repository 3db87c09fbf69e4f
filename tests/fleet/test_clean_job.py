"""The Job that cleans one node, from the DaemonSets of deploy/, and the Roles of docs/kubectl.md."""

import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml  # type: ignore[import-untyped]

from tests.cli.commands import Done
from tests.deploy.manifests import AGENTS, of_kind
from tests.deploy.test_manifests import VERSIONS
from tests.fleet.kubectl import FakeKubectl

MAX = ("--", "--max", "3")


def daemon_set(name: str = "base", **agent: Any) -> dict[str, Any]:
    """Return a DaemonSet of deploy/. `agent`: fields of its container."""
    (only,) = of_kind(name, "DaemonSet")
    changed = deepcopy(only)
    container(changed).update(agent)
    return changed


def container(of: dict[str, Any]) -> dict[str, Any]:
    (only,) = of["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = only
    return found


def job(kubectl: FakeKubectl, source: dict[str, Any], *options: str) -> dict[str, Any]:
    kubectl.daemon_sets(source)
    done = kubectl.run("clean-job", "worker-1", *options)
    assert (done.code, done.err) == (0, "")
    found: dict[str, Any] = yaml.safe_load(done.out)
    return found


@pytest.fixture(autouse=True)
def node(kubectl: FakeKubectl) -> None:
    kubectl.node("worker-1")


def test_the_job_of_each_daemon_set_needs_only_a_writable_store_and_it_and_the_roles_of_the_page_are_valid(
    kubectl: FakeKubectl,
) -> None:
    for name in AGENTS:
        source = daemon_set(name)
        applied, dry = job(kubectl, source, "--apply"), job(kubectl, source)
        assert {kubernetes_validate.validate(applied, version, strict=True) for version in VERSIONS}
        assert not {"ports", "livenessProbe", "readinessProbe"} & container(applied).keys()
        spec, labels = (
            applied["spec"]["template"]["spec"],
            applied["spec"]["template"]["metadata"]["labels"],
        )
        # The kubelet rejects a pod whose node they exclude, such as one of the chart's pool.
        assert not {"affinity", "nodeSelector", "priorityClassName"} & spec.keys()
        assert (spec["nodeName"], spec["restartPolicy"], spec["hostNetwork"]) == (
            "worker-1",
            "Never",
            True,
        )
        before, after, unchanged = (
            {
                mount["name"]: mount.get("readOnly", False)
                for mount in container(owner)["volumeMounts"]
            }
            for owner in (source, applied, dry)
        )
        assert (after, unchanged) == (before | {"cni": False}, before)
        agents = {"app.kubernetes.io/name": "nodeleak", "app.kubernetes.io/component": "agent"}
        for selector in (agents, source["spec"]["selector"]["matchLabels"]):
            assert not selector.items() <= labels.items(), "it is taken for an agent"
    page = (Path(__file__).parents[2] / "docs" / "kubectl.md").read_text()
    (roles,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    for version in VERSIONS:
        assert {
            kubernetes_validate.validate(role, version, strict=True)
            for role in yaml.safe_load_all(roles)
        }


def test_the_command_has_the_settings_of_the_daemon_set_and_names_the_networks_unless_it_does(
    kubectl: FakeKubectl,
) -> None:
    settings = [
        "run",
        "--cleanup-network=cbr0",
        "--max-share",
        "10%",
        "--settle=1h",
        "--interval=5s",
    ]
    cases: list[tuple[dict[str, Any], tuple[str, ...], list[str]]] = [
        (daemon_set(), ("--apply",), ["clean", "--apply", "--cleanup-network=auto"]),
        (daemon_set(), (), ["clean"]),
        (
            daemon_set(),
            ("--apply", *MAX),
            ["clean", "--max", "3", "--apply", "--cleanup-network=auto"],
        ),
        (
            *(daemon_set(), ("--apply", "--", "--cleanup-network=cbr0")),
            ["clean", "--cleanup-network=cbr0", "--apply"],
        ),
        (daemon_set("overlays/cleanup-exec"), ("--apply",), ["clean", "--apply"]),
        # What is not seen may name networks, and a Job must not allow more.
        (
            daemon_set(envFrom=[{"configMapRef": {"name": "nodeleak"}}]),
            ("--apply",),
            ["clean", "--apply"],
        ),
        (
            *(daemon_set(args=settings), ("--apply", "--", "--settle=2h")),
            ["clean", "--cleanup-network=cbr0", "--max-share", "10%", "--settle=2h", "--apply"],
        ),
    ]
    for source, options, command in cases:
        assert container(job(kubectl, source, *options))["args"] == command
    source = daemon_set()
    source["spec"]["template"]["spec"]["containers"].insert(0, {"name": "mesh", "image": "x"})
    assert container(job(kubectl, source))["name"] == "nodeleak", "a sidecar is left out"
    done = kubectl.run("clean-job", "worker-1", "--apply", "--context=staging", *MAX)
    again = "kubectl nodeleak clean-job worker-1 --apply --run --context=staging -- --max 3"
    assert done.out.splitlines()[0].endswith(f": {again}")
    assert kubectl.calls("exec") == []


def test_another_daemon_set_is_refused(kubectl: FakeKubectl) -> None:
    agent = {"name": "nodeleak", "volumeMounts": []}
    for containers, message in (([], "container"), ([agent], "mounts no hostPath /var/lib/cni")):
        spec = {"containers": containers, "volumes": []}
        kubectl.daemon_sets({"metadata": {"namespace": "x"}, "spec": {"template": {"spec": spec}}})
        done = kubectl.run("clean-job", "worker-1", "--apply")
        assert (done.code, done.out, message in done.err) == (2, "", True)
    kubectl.daemon_sets()
    done = kubectl.run("clean-job", "worker-1")
    assert (done.code, done.out, "deploy/clean-one-node.yaml" in done.err) == (2, "", True)


# --run


def job_pod(**state: Any) -> dict[str, Any]:
    """Return the Job's pod with the state of its container, beside a sidecar that never ends."""
    statuses = [{"name": "mesh", "state": {"running": {}}}, {"name": "nodeleak", "state": state}]
    phase = "Pending" if "waiting" in state else "Running"
    return {
        "metadata": {"name": "nodeleak-clean-x1-abc"},
        "status": {"phase": phase, "containerStatuses": statuses},
    }


PULLING = {"reason": "ErrImagePull", "message": "no such host"}


def run_job(kubectl: FakeKubectl, *looks: Any, timeout: str = "1m") -> Done:
    """Run the Job on worker-1. `looks`: what each list of its pods shows, the last one for ever."""
    kubectl.daemon_sets(daemon_set())
    (kubectl.home / "looks").write_text(json.dumps([[look] if look else [] for look in looks]))
    (kubectl.home / "log").write_text("2 released\n\x1b[2J\n")
    return kubectl.run("clean-job", "worker-1", "--apply", "--run", f"--timeout={timeout}", *MAX)


def test_run_creates_the_job_and_ends_with_its_log_and_exit_code(kubectl: FakeKubectl) -> None:
    done = run_job(
        kubectl,
        None,
        job_pod(waiting=PULLING),
        job_pod(running={}),
        job_pod(terminated={"exitCode": 4}),
    )
    assert (done.code, done.out) == (4, "2 released\n\\x1b[2J\n")
    assert json.loads((kubectl.home / "created").read_text()) == job(
        kubectl, daemon_set(), "--apply", *MAX
    )
    assert done.err.splitlines() == [
        "nodeleak: created Job nodeleak-clean-x1 in namespace kube-system",
        "nodeleak: pod nodeleak-clean-x1-abc waits: ErrImagePull: no such host",
    ]
    (logs,) = kubectl.calls("logs")
    assert logs[1:] == ["nodeleak-clean-x1-abc", "--namespace=kube-system", "--container=nodeleak"]


def test_a_job_that_does_not_start_says_why(kubectl: FakeKubectl) -> None:
    pending = {"metadata": {"name": "p"}, "status": {"phase": "Pending"}}
    not_mounted = {
        "reason": "FailedMount",
        "message": "no such volume",
        "lastTimestamp": "2026-03-26T19:20:00Z",
    }
    scheduled = {"reason": "Scheduled", "lastTimestamp": "2026-03-26T19:19:00Z"}
    cases: list[tuple[Any, list[Any], str]] = [
        (job_pod(waiting=PULLING), [], "pod nodeleak-clean-x1-abc: ErrImagePull: no such host"),
        (
            None,
            [{"reason": "FailedCreate", "message": "forbidden"}],
            "it has no pod: FailedCreate: forbidden",
        ),
        (pending, [not_mounted, scheduled], "pod p: FailedMount: no such volume"),
    ]
    for look, events, why in cases:
        (kubectl.home / "events").write_text(json.dumps({"items": events}))
        done = run_job(kubectl, look, timeout="1s")
        assert (done.code, done.out) == (3, "")
        assert done.err.splitlines()[-2:] == [
            "nodeleak: the Job may go on; to stop it: kubectl --namespace=kube-system delete job nodeleak-clean-x1",
            f"nodeleak: Job nodeleak-clean-x1 did not end within 1 s: {why}",
        ]
    status = {"phase": "Failed", "reason": "OutOfmemory", "message": "the node is full"}
    done = run_job(
        kubectl, {"metadata": {"name": "p"}, "status": status}
    )  # which the kubelet refused
    assert (done.code, done.err.splitlines()[-1]) == (
        3,
        "nodeleak: pod p failed: OutOfmemory: the node is full",
    )

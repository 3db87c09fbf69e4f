"""Why a kubelet of today rejects pods for a device: what the first screen says, and what to do."""

import json
import re
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.device_plugin import DIRECTORY, REGISTRY, DevicePlugin
from tests.e2e.node import deployment_of, eventually, forget_resource, pod_with
from tests.e2e.nodeleak import Daemon, Report
from tests.wire import only_with

from .node import ModernNode

pytestmark = [pytest.mark.e2e, pytest.mark.any_runtime]
_EAGER: Final = ("--interval=500ms", "--confirm-after=1ms")
_MANIFESTS: Final = "/etc/kubernetes/manifests"
_PREFIX: Final = "devices.example.com"
_NOT_MOUNTED: Final = 32
"""The exit code of umount."""
_SOCKETS: Final = {
    "gpu.intel.com/i915": "gpu.intel.com-i915.sock",
    "amd.com/gpu": "amd.com_gpu",
    "squat.ai/video": "gdp-c3F1YXQuYWkvdmlkZW8-1774551600.sock",
    "intel.com/intel_sriov": "intel.com_intel_sriov.sock",
}
"""Resources, and the sockets that their vendors' plugins bind."""
_WATCHED: Final = "intel.com/intel_sriov"
"""Its plugin has its socket in the kubelet's registry, and the kubelet comes to it."""


@pytest.fixture(scope="module", autouse=True)
def _node_as_found(running_node: ModernNode) -> Iterator[None]:
    """Remove the resources from kubelet and API server afterwards."""
    only_with(running_node.profile != "k3s", "a runtime with which this is enough")
    yield
    with running_node.stopped("kubelet"):
        files = ("kubelet_internal_checkpoint", "*kvm*", "*gpu*", "gdp-*")
        watched = REGISTRY / _SOCKETS[_WATCHED]
        running_node.run("sh", "-c", f"cd {DIRECTORY} && rm -f {' '.join(files)} {watched}")
    status = running_node.cluster.described_node()["status"]
    for resource in status["capacity"]:
        if "/" in resource:
            forget_resource(running_node.cluster, resource)


@contextmanager
def _offered(
    node: ModernNode, log: Path, resource: str, *options: str, socket: str = ""
) -> Iterator[DevicePlugin]:
    """Run a plugin, once the Node offers its resource.

    Each test has a resource of its own: a kubelet keeps those that it has known.
    """
    socket = socket or f"{resource.rpartition('/')[2]}-kvm.sock"
    with DevicePlugin(log, node.inside, *options, resource=resource, socket=socket) as plugin:
        count = "0" if "--unhealthy" in options else "3"
        eventually(lambda: _allocatable(node, resource), equal=count)
        yield plugin


def _allocatable(node: ModernNode, resource: str) -> str | None:
    status = node.cluster.described_node()["status"]
    value: str | None = status["allocatable"].get(resource)
    return value


def _name() -> str:
    return f"e2e-device-{secrets.token_hex(3)}"


def _ask(node: ModernNode, resource: str, **spec: object) -> str:
    """Create a pod that asks for a device, past the scheduler; return its name."""
    name = _name()
    pod = pod_with(node.cluster, name, {resource: 1})
    pod["spec"] |= spec
    node.cluster.apply(pod)
    return name


def _refused(node: ModernNode, resource: str, **spec: object) -> str:
    """Create a pod that the kubelet rejects; return its name."""
    name = _ask(node, resource, **spec)
    eventually(lambda: _is_failed(node, name))
    return name


def _is_failed(node: ModernNode, name: str) -> None:
    status = node.pod(name)["status"]
    assert status["phase"] == "Failed", status


def _found(report: Report, pod: str) -> dict[str, Any]:
    """Return the finding about a rejected pod."""
    (found,) = (
        one
        for one in report.findings
        if one["detector"] == "rejected_pod" and one.get("pod") == f"default/{pod}"
    )
    return found


def _screen(node: ModernNode) -> str:
    screen = node.screen()
    print(screen)  # noqa: T201 (shown if the test fails)
    assert not screen.startswith("OK"), screen
    return re.sub(r"\s+", " ", screen)


def test_a_plugin_without_a_healthy_device(node: ModernNode, tmp_path: Path) -> None:
    resource = f"{_PREFIX}/unhealthy"
    with _offered(node, tmp_path / "log", resource, "--unhealthy"):
        name = _refused(node, resource)
        found = eventually(lambda: _found(node.scan(codes=(0, 1)), name))
        assert found["cause"] in {"unhealthy", "unverified"}
        screen = _screen(node)
        assert "no healthy device" in screen
        assert "has not been registered since" not in screen


def test_a_plugin_that_crashes_in_allocate(node: ModernNode, tmp_path: Path) -> None:
    resource = f"{_PREFIX}/crash"
    with _offered(node, tmp_path / "log", resource, "--crash"):
        name = _refused(node, resource)
        found = eventually(lambda: _found(node.scan(codes=(0, 1)), name))
        assert found["cause"] == "plugin_restart"
        print(found["message"])  # noqa: T201
        assert re.search("EOF|Unavailable|connection", _screen(node))


def test_plugins_that_restart_under_the_names_of_four_vendors(
    node: ModernNode, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        plugins = [
            stack.enter_context(
                _offered(
                    node,
                    tmp_path / socket,
                    resource,
                    *(["--watched"] if resource == _WATCHED else []),
                    socket=socket,
                )
            )
            for resource, socket in _SOCKETS.items()
        ]
        daemon = stack.enter_context(node.daemon(*_EAGER))
        eventually(lambda: _registered(daemon), equal=dict.fromkeys(_SOCKETS, 1))
        for plugin, (resource, socket) in zip(plugins, _SOCKETS.items(), strict=True):
            plugin.kill()
            directory = REGISTRY if resource == _WATCHED else DIRECTORY
            node.run("rm", "-f", str(directory / socket))
        eventually(lambda: _registered(daemon), equal=dict.fromkeys(_SOCKETS, 0))
        names = [_refused(node, resource) for resource in _SOCKETS]
        for plugin in plugins:
            plugin.start()
        eventually(lambda: _registered(daemon), equal=dict.fromkeys(_SOCKETS, 1))
        for name in names:
            _has_cause(node, name, "plugin_restart")


def _has_cause(node: ModernNode, pod: str, cause: str) -> None:
    """Wait until a scan, which reads the daemon's history, finds the cause of a rejection."""
    eventually(lambda: _found(node.scan(codes=(0, 1)), pod)["cause"], equal=cause)


def _registered(daemon: Daemon) -> dict[str, float | None]:
    metrics = daemon.metrics()
    return {
        resource: metrics.get("device_plugin_registered", resource=resource)
        for resource in _SOCKETS
    }


def test_a_full_disk_under_the_checkpoint(node: ModernNode, tmp_path: Path) -> None:
    """A small tmpfs stands for a full disk."""
    resource = f"{_PREFIX}/disk"
    with _small_disk(node), _offered(node, tmp_path / "log", resource):
        node.run("sh", "-c", f"head -c 1m /dev/zero >{DIRECTORY}/full 2>/dev/null; true")
        name = _refused(node, resource)
        found = eventually(lambda: _found(node.scan(codes=(0, 1)), name))
        assert "no space left on device" in found["message"]
        assert "no space left on device" in _screen(node)


@contextmanager
def _small_disk(node: ModernNode) -> Iterator[None]:
    """Mount it over the kubelet's directory, and unmount it even if the kubelet does not start on it."""
    try:
        with node.stopped("kubelet"):
            node.run("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(DIRECTORY))
        yield
    finally:
        with node.stopped("kubelet"):
            node.run("umount", "-l", str(DIRECTORY), codes=(0, _NOT_MOUNTED))


def test_a_controller_that_sends_pods_all_the_time(node: ModernNode, tmp_path: Path) -> None:
    """Its pods name the node, so that nothing but the kubelet decides."""
    resource = f"{_PREFIX}/storm"
    with _offered(node, tmp_path / "log", resource, "--unhealthy"):
        pod = pod_with(node.cluster, _name(), {resource: 1})
        deployment = deployment_of(pod)
        deployment["spec"]["template"]["spec"]["nodeName"] = node.cluster.node
        node.cluster.apply(deployment)
        try:
            eventually(lambda: _failed(node) >= 200, seconds=600, equal=True)
            screen = eventually(lambda: _storm(node))
            assert re.search("cordon|taint", screen)
            assert "at your convenience" not in screen
        finally:
            node.kubectl("delete", "deployment", deployment["metadata"]["name"])


def _storm(node: ModernNode) -> str:
    """Return the first screen once a single finding is about a hundred pods or more."""
    report = node.scan(codes=(0, 1, 2))
    (storm,) = (one for one in report.findings if one["detector"] == "rejected_pod")
    assert re.search(r"\b\d{3,} pods of ReplicaSet/", storm["message"].replace(",", "")), storm
    assert storm["severity"] in {"warning", "critical"}
    return _screen(node)


def _failed(node: ModernNode) -> int:
    """Return how many pods of tests have failed on this node."""
    *own, selector = node.own_pods
    failed = f"{selector},status.phase=Failed"
    return len(node.kubectl("get", "pods", *own, failed, "-o", "name").split())


def test_after_a_restart_of_the_node_no_bug_of_the_kubelet_is_claimed(
    node: ModernNode, tmp_path: Path
) -> None:
    """Its kernel goes on, so for the agent the kubelet alone has started again."""
    resource = f"{_PREFIX}/restart"
    containers = pod_with(node.cluster, "x", {resource: 1})["spec"]["containers"]
    init = {**containers[0], "name": "init", "command": ["true"]}
    sidecar = {**containers[0], "name": "side", "restartPolicy": "Always"}
    plain = [{**containers[0], "resources": {}}]
    with ExitStack() as stack:
        plugin = stack.enter_context(_offered(node, tmp_path / "log", resource))
        names = [
            stack.enter_context(_pod_of_a_job(node, resource, initContainers=[init])),
            _ask(node, resource, containers=plain, initContainers=[sidecar]),
            stack.enter_context(_static_pod(node, resource)),
        ]
        eventually(lambda: node.ready(names))
        plugin.kill()
        node.reboot()
        eventually(lambda: {node.pod(name)["status"]["phase"] for name in names}, equal={"Failed"})
        plugin.start()
        screen = eventually(lambda: _after_reboot(node, names))
        assert "manifest" in screen
        assert "requested its init container" not in screen
        assert "completed" not in screen


@contextmanager
def _pod_of_a_job(node: ModernNode, resource: str, **spec: object) -> Iterator[str]:
    """Let a Job run a pod, which it does not replace; yield the pod's name."""
    pod = pod_with(node.cluster, _name(), {resource: 1})
    name = pod["metadata"]["name"]
    template = {
        "metadata": {"labels": pod["metadata"]["labels"]},
        "spec": pod["spec"] | {"restartPolicy": "Never"} | spec,
    }
    node.cluster.apply(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"backoffLimit": 0, "template": template},
        }
    )
    try:
        yield eventually(lambda: _of_job(node, name))
    finally:
        node.kubectl("delete", "job", name, "--cascade=foreground")


def _of_job(node: ModernNode, job: str) -> str:
    (name,) = node.kubectl(
        "get", "pods", "-l", f"job-name={job}", "-o", "jsonpath={.items[*].metadata.name}"
    ).split()
    return name


@contextmanager
def _static_pod(node: ModernNode, resource: str) -> Iterator[str]:
    """Let the kubelet run a pod of a file; yield the name of its mirror."""
    name = _name()
    pod = pod_with(node.cluster, name, {resource: 1})
    del pod["spec"]["nodeName"]
    node.write(f"{_MANIFESTS}/{name}.json", json.dumps(pod))
    try:
        yield f"{name}-{node.cluster.node}"
    finally:
        node.start()  # if a reboot failed: the file would stay
        node.run("rm", f"{_MANIFESTS}/{name}.json")


def _after_reboot(node: ModernNode, names: list[str]) -> str:
    """Return the first screen once it reports all pods, each with a cause that fits."""
    report = node.scan(codes=(0, 1, 2))
    found = [one for one in report.findings if one["detector"] == "rejected_pod"]
    told = {one["pod"] for one in found}
    assert {f"default/{name}" for name in names} <= told, found
    assert {one["cause"] for one in found} <= {"kubelet_restart", "node_reboot", "unverified"}
    return _screen(node)

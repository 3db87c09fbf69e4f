"""The changes of the soak: what happens on nodes every day, and faults that must be found."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.e2e.agent import Nodeleak
from tests.e2e.device_plugin import RESOURCE, DevicePlugin
from tests.e2e.node import Cluster, Pods, applied, deployment_of, eventually, forget_resource, pod_with

_PLUGINS: Final = Path("/var/lib/kubelet/device-plugins")
_BATCH: Final = "batch/v1beta1"  # of Kubernetes 1.20


@dataclass(frozen=True, slots=True)
class Node:
    cluster: Cluster
    pods: Pods
    nodeleak: Nodeleak
    directory: Path


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    change: Callable[[Node], None]
    """Returns when the node is as before, apart from what a cleanup of `provokes` has to do."""
    provokes: frozenset[str] = frozenset()
    """Detectors whose findings are expected from the beginning of the step until its end."""
    afterwards: Callable[[Node], None] = lambda _: None
    """Makes the node as before where this is a change of its own, whose findings are not counted."""


def rollout(node: Node) -> None:
    with _deployment(node, 20) as name:
        for version in ("2", "3"):
            patch = {"spec": {"template": {"metadata": {"annotations": {"version": version}}}}}
            node.cluster.kubectl("patch", "deployment", name, "-p", json.dumps(patch))
            _rolled_out(node, name)
        node.cluster.kubectl("scale", "deployment", name, "--replicas=3")
        _rolled_out(node, name)


def restart_of(part: str) -> Callable[[Node], None]:
    def change(node: Node) -> None:
        with _deployment(node, 10) as name:
            with node.cluster.stopped(part):
                time.sleep(5)
            _rolled_out(node, name)

    return change


def kill_of(part: str) -> Callable[[Node], None]:
    """Kill a part while pods come and go."""

    def change(node: Node) -> None:
        with _deployment(node, 10) as name:
            node.cluster.kubectl("rollout", "restart", f"deployment/{name}")
            os.kill(node.cluster.pid(part), signal.SIGKILL)
            time.sleep(2)
            node.cluster.start(part)
            _rolled_out(node, name)

    return change


def drain(node: Node) -> None:
    with _deployment(node, 10) as name:
        try:
            _drain(node)
            time.sleep(20)
        finally:
            node.cluster.kubectl("uncordon", node.cluster.node)
        _rolled_out(node, name)


def planned_removal(node: Node) -> None:
    """Drain the node and delete its Node object; the machine stays for a minute, as an autoscaler's does."""
    try:
        _drain(node)
        taint = "ToBeDeletedByClusterAutoscaler=1:NoSchedule"
        node.cluster.kubectl("taint", "node", node.cluster.node, taint, "--overwrite")
        time.sleep(20)
        node.cluster.kubectl("delete", "node", node.cluster.node)
        time.sleep(60)
    finally:
        node.cluster.kubectl("delete", "node", node.cluster.node, "--ignore-not-found")
        _registered_again(node)


def _drain(node: Node) -> None:
    node.cluster.kubectl("drain", node.cluster.node, "--ignore-daemonsets", "--delete-emptydir-data", "--force")


def unplanned_removal(node: Node) -> None:
    """Delete the Node object under a running kubelet with pods."""
    with _deployment(node, 5) as name:
        node.cluster.kubectl("delete", "node", node.cluster.node)
        time.sleep(60)
        _registered_again(node)
        _rolled_out(node, name)


def failing_pods(node: Node) -> None:
    """Run pods that exit, pods without an image and pods of a missing ConfigMap, for two minutes."""
    pods = []
    for number in range(4):
        exits, no_image, no_config = (
            pod_with(node.cluster, f"soak-{kind}-{number}", {}) for kind in ("exits", "image", "config")
        )
        exits["spec"]["containers"][0]["command"] = ["sh", "-c", "exit 1"]
        no_image["spec"]["containers"][0]["image"] = "nodeleak/missing:1"
        no_config["spec"]["containers"][0]["envFrom"] = [{"configMapRef": {"name": "missing"}}]
        pods += [exits, no_image, no_config]
    applied(node.cluster, *pods)
    time.sleep(120)
    node.cluster.kubectl("delete", "pods", *(pod["metadata"]["name"] for pod in pods))


def cron_jobs(node: Node) -> None:
    """Start three pods each minute, for three minutes."""
    applied(node.cluster, _cron_job(node))
    time.sleep(190)
    node.cluster.kubectl("delete", "cronjob", "soak")
    node.cluster.kubectl("wait", "pods", "-l", "soak=cron", "--for=delete", "--timeout=120s")


def pods_of_a_device(node: Node) -> None:
    """Restart the kubelet and the device plugin in the usual order while a pod has a device."""
    with DevicePlugin(node.directory / "plugin.log") as plugin:
        eventually(lambda: _allocatable(node), 60)
        try:
            applied(node.cluster, pod_with(node.cluster, "soak-device", {RESOURCE: 1}))
            node.pods.wait_for(["soak-device"], "condition=Ready")
            node.cluster.kubectl("delete", "pod", "soak-device")
            with node.cluster.stopped("kubelet"):
                plugin.kill()
            plugin.start()
            eventually(lambda: _allocatable(node), 60)
        finally:
            node.cluster.kubectl("delete", "pod", "soak-device", "--ignore-not-found")


def forget_the_device(node: Node) -> None:
    """Remove the plugin for good: it is rightly late until a kubelet starts that had dropped its resource before."""
    eventually(_dropped, 480)
    time.sleep(10)  # the daemon sees it
    with node.cluster.stopped("kubelet"):
        pass
    forget_resource(node.cluster, RESOURCE)


def leak(node: Node) -> None:
    """Leak the addresses of ten pods, let the findings be confirmed, and release them."""
    with _deployment(node, 10) as name:
        node.cluster.leak()
        _rolled_out(node, name)
        time.sleep(60)
        node.nodeleak.clean("--apply", "--grace=0s", "--settle=0s")
        _nothing_leaked(node)


STEPS: Final[Sequence[Step]] = (
    Step("Deployment of 20 pods, two rollouts, scaled down", rollout),
    Step("kubelet restarted under 10 pods", restart_of("kubelet")),
    Step("CronJob with 3 pods each minute", cron_jobs),
    Step("docker restarted under 10 pods", restart_of("docker")),
    Step("node drained and uncordoned", drain),
    Step("pods that exit, lack an image or a ConfigMap", failing_pods),
    Step("API server away for 5 s under 10 pods", restart_of("apiserver")),
    Step("kubelet killed during a rollout", kill_of("kubelet")),
    Step("kubelet and device plugin restarted", pods_of_a_device, afterwards=forget_the_device),
    Step("planned removal: drained, tainted, Node deleted, registered again", planned_removal),
    Step("docker killed during a rollout", kill_of("docker")),
    Step("etcd restarted under 10 pods", restart_of("etcd")),
    Step(
        "leak: pod containers removed while the kubelet is stopped",
        leak,
        frozenset({"leaked_reservation", "exhausted_range"}),
    ),
    Step("Node deleted under a running kubelet with pods", unplanned_removal, frozenset({"unregistered_node"})),
)


@contextmanager
def _deployment(node: Node, replicas: int) -> Iterator[str]:
    """Run a Deployment during the block, then delete it and wait until its pods are gone."""
    name = "soak"
    made: dict[str, Any] = deployment_of(pod_with(node.cluster, name, {}))
    made["spec"]["replicas"] = replicas
    made["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1
    applied(node.cluster, made)
    try:
        _rolled_out(node, name)
        yield name
    finally:
        node.cluster.start()
        node.cluster.kubectl("delete", "deployment", name)
        node.cluster.kubectl("wait", "pods", "-l", f"deployment={name}", "--for=delete", "--timeout=120s")


def _rolled_out(node: Node, name: str) -> None:
    node.cluster.kubectl("rollout", "status", f"deployment/{name}", "--timeout=170s")


def _registered_again(node: Node) -> None:
    """Restart the kubelet, which registers the Node object again, and wait until it may get pods."""
    with node.cluster.stopped("kubelet"):
        pass
    eventually(lambda: _is_ready(node), 90)


def _is_ready(node: Node) -> None:
    found = json.loads(node.cluster.kubectl("get", "node", node.cluster.node, "-o", "json"))
    conditions = {condition["type"]: condition["status"] for condition in found["status"]["conditions"]}
    assert conditions["Ready"] == "True"
    assert not found["spec"].get("taints")


def _dropped() -> None:
    """Pass once the kubelet has dropped the device: five minutes after its plugin left."""
    kept = json.loads((_PLUGINS / "kubelet_internal_checkpoint").read_text())
    assert RESOURCE not in (kept["Data"]["RegisteredDevices"] or {})


def _allocatable(node: Node) -> None:
    found = json.loads(node.cluster.kubectl("get", "node", node.cluster.node, "-o", "json"))
    assert int(found["status"]["allocatable"].get(RESOURCE, 0))


def _nothing_leaked(node: Node) -> None:
    assert "leaked" not in node.nodeleak.scan("--grace=0s").states.values()


def _cron_job(node: Node) -> dict[str, Any]:
    pod = pod_with(node.cluster, "soak", {})
    pod["spec"]["containers"][0]["command"] = ["sh", "-c", "sleep 5"]
    template = {
        "metadata": {"labels": pod["metadata"]["labels"] | {"soak": "cron"}},
        "spec": pod["spec"] | {"restartPolicy": "Never"},
    }
    job = {"parallelism": 3, "completions": 3, "template": template}
    return {
        "apiVersion": _BATCH,
        "kind": "CronJob",
        "metadata": {"name": "soak", "namespace": "default"},
        "spec": {"schedule": "* * * * *", "successfulJobsHistoryLimit": 1, "jobTemplate": {"spec": job}},
    }

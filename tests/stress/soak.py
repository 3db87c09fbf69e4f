"""Everyday changes on the real node beside one daemon, which must report only what was provoked.

Rollouts, restarts of the kubelet and docker, drains, removals of the Node object, failing pods and CronJobs on the
cluster of hack/cluster. Exit codes: 0 nothing else was reported; 1 something was, or a step failed; 2 wrong usage.
"""

import argparse
import itertools
import json
import os
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from tests.bench.measure import write_section
from tests.e2e.device_plugin import RESOURCE, DevicePlugin
from tests.e2e.node import Cluster, Pods, deployment_of, eventually, forget_resource, pod_with
from tests.e2e.nodeleak import Daemon, Nodeleak

_OPTIONS: Final = ("--interval=3s", "--grace=0s")
"""Sharper than the defaults: five times as many snapshots, and no minimum age that hides a wrong verdict."""
_AFTERWARDS: Final = 600.0
"""Seconds to wait for the findings of a step that has restored the node, which are not those of the next one."""
_REST: Final = 45.0  # Seconds of rest after a step: longer than --confirm-after, so that its last state is judged too


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
    node.cluster.kubectl(
        "drain", node.cluster.node, "--ignore-daemonsets", "--delete-emptydir-data", "--force"
    )


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
            pod_with(node.cluster, f"soak-{kind}-{number}") for kind in ("exits", "image", "config")
        )
        exits["spec"]["containers"][0]["command"] = ["sh", "-c", "exit 1"]
        no_image["spec"]["containers"][0]["image"] = "nodeleak/missing:1"
        no_config["spec"]["containers"][0]["envFrom"] = [{"configMapRef": {"name": "missing"}}]
        pods += [exits, no_image, no_config]
    node.cluster.apply(*pods)
    time.sleep(120)
    node.cluster.kubectl("delete", "pods", *(pod["metadata"]["name"] for pod in pods))


def cron_jobs(node: Node) -> None:
    """Start three pods each minute, for three minutes."""
    node.cluster.apply(_cron_job(node))
    time.sleep(190)
    node.cluster.kubectl("delete", "cronjob", "soak")
    node.cluster.kubectl("wait", "pods", "-l", "soak=cron", "--for=delete", "--timeout=120s")


def pods_of_a_device(node: Node) -> None:
    """Restart the kubelet and the device plugin in the usual order while a pod has a device."""
    with DevicePlugin(node.directory / "plugin.log") as plugin:
        eventually(lambda: _allocatable(node), 60)
        try:
            node.cluster.apply(pod_with(node.cluster, "soak-device", {RESOURCE: 1}))
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
        assert not node.nodeleak.scan("--grace=0s").having("leaked")


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
    Step(
        "Node deleted under a running kubelet with pods",
        unplanned_removal,
        frozenset({"unregistered_node"}),
    ),
)


@contextmanager
def _deployment(node: Node, replicas: int) -> Iterator[str]:
    """Run a Deployment during the block, then delete it and wait until its pods are gone."""
    name = "soak"
    made: dict[str, Any] = deployment_of(pod_with(node.cluster, name))
    made["spec"]["replicas"] = replicas
    made["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1
    node.cluster.apply(made)
    try:
        _rolled_out(node, name)
        yield name
    finally:
        node.cluster.start()
        node.cluster.kubectl("delete", "deployment", name)
        node.cluster.kubectl(
            "wait", "pods", "-l", f"deployment={name}", "--for=delete", "--timeout=120s"
        )


def _rolled_out(node: Node, name: str) -> None:
    node.cluster.kubectl("rollout", "status", f"deployment/{name}", "--timeout=170s")


def _registered_again(node: Node) -> None:
    """Restart the kubelet, which registers the Node object again, and wait until it may get pods."""
    with node.cluster.stopped("kubelet"):
        pass
    eventually(lambda: _is_ready(node), 90)


def _is_ready(node: Node) -> None:
    found = node.cluster.described_node()
    conditions = {
        condition["type"]: condition["status"] for condition in found["status"]["conditions"]
    }
    assert conditions["Ready"] == "True"
    assert not found["spec"].get("taints")


def _dropped() -> None:
    """Pass once the kubelet has dropped the device: five minutes after its plugin left."""
    kept = json.loads((_PLUGINS / "kubelet_internal_checkpoint").read_text())
    assert RESOURCE not in (kept["Data"]["RegisteredDevices"] or {})


def _allocatable(node: Node) -> None:
    assert int(node.cluster.described_node()["status"]["allocatable"].get(RESOURCE, 0))


def _cron_job(node: Node) -> dict[str, Any]:
    pod = pod_with(node.cluster, "soak")
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
        "spec": {
            "schedule": "* * * * *",
            "successfulJobsHistoryLimit": 1,
            "jobTemplate": {"spec": job},
        },
    }


@dataclass(frozen=True, slots=True)
class Done:
    """One step that was run to its end."""

    minutes: float
    reported: tuple[str, ...]  # Confirmed findings, `detector: subject`
    wrong: tuple[str, ...]  # Those that the step does not provoke, and those that did not close
    unavailable: tuple[str, ...]  # Sources that were unavailable for a while


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stress.soak", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=45, help="begin no step after this time (45)"
    )
    parser.add_argument("--write", action="store_true", help="write the result to docs/figures.md")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, _leave)
    done: defaultdict[str, list[Done]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as directory:
        for step, result in _run(Path(directory), given.minutes * 60):
            done[step.name].append(result)
            print(
                f"{step.name}: {result.minutes} min, {'; '.join(result.reported) or 'nothing reported'}",
                flush=True,
            )
            for text in result.wrong:
                print(f"  NOT PROVOKED: {text}", flush=True)
    section = "\n".join(_section(done))
    print(section)
    if given.write:
        write_section(section)
    return int(any(result.wrong for results in done.values() for result in results))


def _leave(_signal: int, _frame: object) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)


def _section(done: Mapping[str, Sequence[Done]]) -> Iterator[str]:
    yield from (
        "## False alarms",
        "",
        "Everyday changes on one node of Kubernetes 1.20.2 with docker and kubenet, and",
    )
    yield f"what a daemon with `{' '.join(_OPTIONS)}` reported (`python -m tests.stress.soak --write`)."
    yield from (
        "",
        "| step | runs | minutes | reported | unexpected | sources unavailable for a while |",
    )
    yield "|---|---|---|---|---|---|"
    for name, results in done.items():
        cells = (
            name,
            len(results),
            f"{sum(result.minutes for result in results):.0f}",
            _names(text.partition(":")[0] for result in results for text in result.reported),
            sum(len(result.wrong) for result in results),
            _names(text for result in results for text in result.unavailable),
        )
        yield f"| {' | '.join(map(str, cells))} |"
    yield ""


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(set(names))) or "none"


def _run(directory: Path, seconds: float) -> Iterator[tuple[Step, Done]]:
    """Run steps in turn until the time is over; yield what each one caused."""
    cluster = Cluster.up()
    pods = Pods(cluster)
    pods.clear()
    logs = directory / "logs"
    logs.mkdir()
    node = Node(cluster, pods, Nodeleak(cluster, logs), directory)
    deadline = time.monotonic() + seconds
    with node.nodeleak.running(*_OPTIONS) as daemon:
        for step in itertools.cycle(STEPS):
            if time.monotonic() > deadline:
                return
            yield step, _run_step(step, node, daemon)


def _run_step(step: Step, node: Node, daemon: Daemon) -> Done:
    seen, began = len(daemon.lines()), time.monotonic()
    step.change(node)
    node.cluster.start()
    time.sleep(_REST)
    still_open = _wait_until_closed(daemon, 60)
    node.pods.clear()
    lines = daemon.lines()[seen:]
    minutes = round((time.monotonic() - began) / 60, 1)
    step.afterwards(node)
    _wait_until_closed(daemon, _AFTERWARDS)
    opened = [line for line in lines if line["event"] == "finding.opened"]
    unprovoked = [
        f"{line['detector']} ({line['severity']}): {line['text']}"
        for line in opened
        if _is_wrong(line, step)
    ]
    return Done(
        minutes,
        reported=tuple(f"{line['detector']}: {line['subject']}" for line in opened),
        wrong=(*unprovoked, *still_open),
        unavailable=tuple(
            line["source"] for line in lines if line["event"] == "source.unavailable"
        ),
    )


def _is_wrong(line: dict[str, Any], step: Step) -> bool:
    return line["detector"] not in step.provokes and line["severity"] != "info"


def _wait_until_closed(daemon: Daemon, seconds: float) -> list[str]:
    """Wait for so long until no finding is left; return those that are."""

    def nothing_found() -> None:
        assert not _findings(daemon)

    try:
        eventually(nothing_found, seconds)
    except AssertionError:
        return _findings(daemon)
    return []


def _findings(daemon: Daemon) -> list[str]:
    findings = daemon.report().findings
    return [
        f"{found['detector']}: {found['subject']}"
        for found in findings
        if found["severity"] != "info"
    ]


if __name__ == "__main__":
    sys.exit(main())

"""A real kubelet and a device plugin that is late, missing, or fully allocated: findings about the pods."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from .device_plugin import CHECKPOINT, RESOURCE, DevicePlugin, kubelet_up, plugin_up
from .node import Cluster, Pods, deployment_of, eventually, forget_resource, pod_with, throughout
from .nodeleak import Daemon, Nodeleak, Report

pytestmark = pytest.mark.e2e

OFTEN = ("--interval=500ms", "--confirm-after=1s")
FINALIZER = "example.com/hold"


@pytest.fixture(scope="module", autouse=True)
def _node_as_found(whole_cluster: Cluster) -> Iterator[None]:
    """Remove the resource from kubelet and API server afterwards."""
    yield
    with whole_cluster.stopped("kubelet"):
        CHECKPOINT.unlink(missing_ok=True)
    forget_resource(whole_cluster, RESOURCE)


@pytest.fixture
def plugin(cluster: Cluster, tmp_path: Path) -> Iterator[DevicePlugin]:
    with DevicePlugin(tmp_path / "plugin.log") as plugin:
        eventually(lambda: _offered(cluster), equal=("3", "3"))
        yield plugin


@pytest.fixture
def vms(cluster: Cluster, pods: Pods) -> Iterator["Vms"]:
    vms = Vms(cluster, pods)
    yield vms
    vms.let_go()


class Vms:
    """Pods that ask for devices."""

    def __init__(self, cluster: Cluster, pods: Pods) -> None:
        self._cluster, self._pods = cluster, pods

    def make(self, name: str, devices: int = 1, finalizers: tuple[str, ...] = ()) -> None:
        self._cluster.apply(pod_with(self._cluster, name, {RESOURCE: devices}, finalizers))

    def deploy(self, name: str) -> None:
        """Create a Deployment of one pod and wait until the pod is scheduled."""
        self._cluster.apply(deployment_of(pod_with(self._cluster, name, {RESOURCE: 1})))
        node = [self._cluster.node]
        eventually(
            lambda: [pod["spec"].get("nodeName") for pod in self.called(f"{name}-")], equal=node
        )

    def called(self, start: str) -> list[dict[str, Any]]:
        return [pod for pod in self._pods.now() if pod["metadata"]["name"].startswith(start)]

    def runs(self, name: str) -> None:
        """Wait until one runs."""
        eventually(lambda: "Running" in self._pods.phases(name), equal=True)

    def refused(self, name: str) -> None:
        """Wait until the kubelet has rejected it."""

        def reasons() -> set[str]:
            return {pod["status"].get("reason") for pod in self.called(name)}

        eventually(lambda: "UnexpectedAdmissionError" in reasons(), equal=True)

    def delete(self, name: str) -> None:
        """Delete a pod without --force and wait until it is gone."""
        self._cluster.kubectl("delete", "pod", name, "--timeout=60s")

    def begin_to_delete(self, name: str) -> None:
        self._cluster.kubectl("delete", "pod", name, "--wait=false")

    def let_go(self) -> None:
        """Delete the controllers and finalizers."""
        self._cluster.kubectl("delete", "deployments", "--all")
        for pod in self._pods.now():
            if pod["metadata"].get("finalizers"):
                self._cluster.kubectl(
                    "patch",
                    "pod",
                    pod["metadata"]["name"],
                    "-p",
                    '{"metadata":{"finalizers":null}}',
                )


def _offered(cluster: Cluster) -> tuple[str, str]:
    """Return the node's capacity of the resource, and what is allocatable."""
    status = cluster.described_node()["status"]
    return status["capacity"].get(RESOURCE), status["allocatable"].get(RESOURCE)


def _rejected(report: Report) -> dict[str, dict[str, Any]]:
    """Return the findings about rejected pods by pod."""
    return {one["pod"]: one for one in report.findings if one["detector"] == "rejected_pod"}


def _alone(daemon: Daemon, pod: str, words: str = "", **expected: str) -> dict[str, Any]:
    """Wait until a rejected pod is confirmed with these attributes."""

    def check() -> dict[str, Any]:
        found = _rejected(daemon.report()).get(pod)
        assert found is not None
        assert found["confirmed"]
        assert {name: found[name] for name in expected} == expected
        assert found["resource"] == RESOURCE
        assert words in found["message"]
        return found

    return eventually(check)


def _about(report: Report, detector: str) -> set[str]:
    return {one["pod"] for one in report.findings if one["detector"] == detector}


def _happened(nodeleak: Nodeleak, *kinds: str) -> list[str]:
    return [event["what"] for event in nodeleak.timeline("--since=10m") if event["what"] in kinds]


def test_a_pod_rejected_before_the_registration_is_reported_until_it_is_deleted(
    cluster: Cluster, pods: Pods, plugin: DevicePlugin, vms: Vms, nodeleak: Nodeleak, tmp_path: Path
) -> None:
    vms.make("healthy")
    vms.runs("healthy")
    with nodeleak.running(*OFTEN) as daemon:
        with cluster.stopped("kubelet"):
            plugin.kill()
            vms.make("refused")
            vms.deploy("web")
        vms.refused("refused")
        vms.refused("web-")
        # The daemon may read the node later than the kubelet rejects.
        eventually(lambda: _is_registered(daemon), equal=0)
        throughout(lambda: _is_registered(daemon), 3, equal=0)
        plugin.start()
        late = plugin_up() - kubelet_up()

        alone = _alone(
            daemon,
            "default/refused",
            f"{RESOURCE} was registered",
            cause="kubelet_restart",
            pod_outcome="stuck",
        )
        assert any("never with --force" in step["text"] for step in alone["steps"])
        (state,) = eventually(lambda: _registered(daemon))
        seen = time.time() - kubelet_up()  # noqa: TID251 (the kubelet's clock)
        delay = state["registration_delay_seconds"]
        assert late - 2 <= delay <= seen + 2
        output = daemon.metrics().get("device_plugin_registration_delay_seconds", resource=RESOURCE)
        assert output == pytest.approx(delay, abs=0.001)  # JSON has milliseconds
        outcome = {("kubelet_restart", "replaced_by_controller")}
        eventually(lambda: _outcomes(daemon, "/web-"), equal=outcome)
        vms.runs("web-")
        assert "default/healthy" not in _rejected(daemon.report())
        expected = ["kubelet_started", "device_manager_started", "socket_appeared", "registered"]
        eventually(lambda: _happened(nodeleak, *expected)[-4:], equal=expected)

        # An agent that starts afterwards: the files still show the last start of each.
        known = ("kubelet_restart", "stuck")
        eventually(lambda: _late_comer(nodeleak, tmp_path), equal=known)
        with cluster.stopped("kubelet"):
            plugin.kill()
        plugin.start()
        eventually(lambda: _late_comer(nodeleak, tmp_path), equal=("unverified", "stuck"))
        assert _alone(daemon, "default/refused")["cause"] == "kubelet_restart", (
            "who was there knows"
        )

        vms.delete("refused")
        eventually(lambda: _closed(daemon, "default/refused"))
        assert pods.phases("healthy") == {"Running"}


def _late_comer(nodeleak: Nodeleak, directory: Path) -> tuple[str, str]:
    """Return the cause and the outcome that an agent sees which remembers nothing."""
    forgotten = tempfile.mkdtemp(dir=directory)
    rejected = _rejected(nodeleak.scan(f"--state-dir={forgotten}", codes=(0, 1)))
    assert "default/refused" in rejected
    return rejected["default/refused"]["cause"], rejected["default/refused"]["pod_outcome"]


def _outcomes(daemon: Daemon, words: str) -> set[tuple[str, str]]:
    """Return the causes and outcomes of findings that say something."""
    found = [one for one in daemon.report().findings if words in one["message"]]
    return {(one["cause"], one["pod_outcome"]) for one in found}


def _registered(daemon: Daemon) -> list[dict[str, Any]]:
    states: list[dict[str, Any]] = daemon.report().document["device_plugins"]
    assert [(one["resource"], one["registered"]) for one in states] == [(RESOURCE, True)]
    return states


def _is_registered(daemon: Daemon) -> float | None:
    return daemon.metrics().get("device_plugin_registered", resource=RESOURCE)


def _closed(daemon: Daemon, pod: str) -> None:
    assert pod not in _rejected(daemon.report())
    assert any(line.get("subject") == f"pod {pod}" for line in daemon.events("finding.closed"))


def test_a_request_for_too_many_devices_is_exhausted_even_after_a_plugin_restart(
    pods: Pods, plugin: DevicePlugin, vms: Vms, nodeleak: Nodeleak
) -> None:
    vms.make("greedy", devices=3)
    vms.runs("greedy")
    with nodeleak.running(*OFTEN) as daemon:
        _let_clocks_tell_apart(daemon)
        vms.make("too-many")
        vms.refused("too-many")
        _alone(daemon, "default/too-many", cause="exhausted", pod_outcome="stuck")
        _let_clocks_tell_apart(daemon)

        plugin.kill()
        eventually(lambda: _is_registered(daemon), equal=0)
        throughout(lambda: _is_registered(daemon), 2, equal=0)
        vms.make("meanwhile")
        vms.refused("meanwhile")
        throughout(lambda: _is_registered(daemon), 2, equal=0)
        plugin.start()
        _alone(daemon, "default/meanwhile", cause="plugin_restart", pod_outcome="stuck")
        (state,) = eventually(lambda: _registered(daemon))
        assert (state["devices"], state["allocated"], state["connected"]) == (3, 3, True)

        kinds = ("lost", "registered", "rejected")
        expected = ["rejected", "lost", "rejected", "registered"]
        eventually(lambda: _happened(nodeleak, *kinds)[-4:], equal=expected)
        # The time at which the plugin went is unknown, but it is not the cause of earlier rejections.
        assert _rejected(daemon.report())["default/too-many"]["cause"] in {
            "exhausted",
            "unverified",
        }
        assert "default/greedy" not in _rejected(daemon.report())
        assert not _about(daemon.report(), "started_without_device")
        assert pods.phases("greedy") == {"Running"}


def _let_clocks_tell_apart(daemon: Daemon) -> None:
    """Wait: the API server has its own clock and second resolution, so events within 5 s have no order."""
    throughout(lambda: daemon.get("/healthz"), 7)


def test_a_plugin_without_a_healthy_device_is_not_called_missing(
    cluster: Cluster, vms: Vms, nodeleak: Nodeleak, tmp_path: Path
) -> None:
    with _failing_plugin(cluster, vms, tmp_path, "--unhealthy", healthy="0"):
        # The node's status may be of the plugin before: the pod may have been rejected meanwhile.
        found = eventually(lambda: _unlucky(nodeleak, "unhealthy", "unverified"))
        assert "no healthy device" in found["message"]


def test_a_plugin_that_crashes_in_allocate_is_the_cause(
    cluster: Cluster, vms: Vms, nodeleak: Nodeleak, tmp_path: Path
) -> None:
    with _failing_plugin(cluster, vms, tmp_path, "--crash", healthy="3"):
        eventually(lambda: _unlucky(nodeleak, "plugin_restart"))


def _unlucky(nodeleak: Nodeleak, *causes: str) -> dict[str, Any]:
    found = _rejected(nodeleak.scan())["default/unlucky"]
    assert found["cause"] in causes, found
    return found


@contextmanager
def _failing_plugin(
    cluster: Cluster, vms: Vms, directory: Path, option: str, healthy: str
) -> Iterator[None]:
    """Let the kubelet reject a pod because of a plugin that runs with this option."""
    with DevicePlugin(directory / "plugin.log", (), option):
        eventually(lambda: _offered(cluster), equal=("3", healthy))
        vms.make("unlucky")
        vms.refused("unlucky")
        yield


def test_a_missing_plugin_is_late_after_a_minute_and_a_blocking_finalizer_is_named(
    cluster: Cluster, plugin: DevicePlugin, vms: Vms, nodeleak: Nodeleak
) -> None:
    with nodeleak.running(*OFTEN) as daemon:
        with cluster.stopped("kubelet"):
            plugin.kill()
            vms.make("held", finalizers=(FINALIZER,))
        vms.refused("held")
        vms.begin_to_delete("held")
        seconds = kubelet_up() + 40 - time.time()  # noqa: TID251 (the kubelet's clock)
        throughout(lambda: daemon.report().subjects("late_device_plugin"), seconds, equal={})
        late = eventually(lambda: _late(daemon))
        assert f"{RESOURCE} is not registered: the kubelet started" in late["message"]
        pod = _alone(
            daemon, "default/held", cause="kubelet_restart", pod_outcome="terminating_stuck"
        )
        assert FINALIZER in pod["message"]


def _late(daemon: Daemon) -> dict[str, Any]:
    found = daemon.report().subjects("late_device_plugin")
    assert set(found) == {RESOURCE}
    assert found[RESOURCE]["confirmed"]
    return found[RESOURCE]


def test_a_kubelet_without_its_checkpoint_starts_a_pod_without_its_device(
    cluster: Cluster, plugin: DevicePlugin, vms: Vms, nodeleak: Nodeleak
) -> None:
    with nodeleak.running(*OFTEN) as daemon:
        with cluster.stopped("kubelet"):
            plugin.kill()
            CHECKPOINT.unlink()
            vms.make("without")
        vms.runs("without")
        throughout(lambda: daemon.get("/healthz"), 3)  # start times have a resolution of a second
        plugin.start()
        eventually(
            lambda: _about(daemon.report(), "started_without_device"), equal={"default/without"}
        )
        assert not _rejected(daemon.report())
        vms.make("with")
        vms.runs("with")
        assert _about(daemon.report(), "started_without_device") == {"default/without"}

"""A real etcd is restored from a backup and its API server restarted: the daemon reports the pods of the backup."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.control_plane import LEGACY, ControlPlane
from tests.wire import needs

from .node import Cluster, eventually, throughout
from .nodeleak import Daemon, Nodeleak

pytestmark = pytest.mark.e2e

NODE = "worker-1"
BOUND = 75  # Seconds: 15 until it connects again, 30 of jitter, and what a loaded machine needs


@pytest.fixture
def control_plane(tmp_path: Path) -> Iterator[ControlPlane]:
    missing = LEGACY.missing()
    needs(not missing, f"{', '.join(missing)}: run hack/cluster build")
    (tmp_path / "control-plane").mkdir()
    control_plane = ControlPlane(tmp_path / "control-plane")
    try:
        control_plane.start()
        yield control_plane
    finally:
        control_plane.stop()


@pytest.fixture
def daemon(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Daemon]:
    for directory in ("logs", "plugins", "networks"):
        (tmp_path / directory).mkdir()
    at = control_plane.kubeconfig
    nodeleak = Nodeleak(Cluster(NODE, admin=at, kubelet=at, pod_cidr=""), tmp_path / "logs")
    control_plane.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    control_plane.create(_rejected("web-of-backup"))
    control_plane.back_up()
    control_plane.kubectl("delete", "pod", "web-of-backup", "--force", "--grace-period=0")
    for number in range(60):  # raises etcd's revision, as changes of other objects do
        control_plane.etcdctl("put", "/elsewhere", str(number))
    control_plane.create(_rejected("web-after-backup"))
    with nodeleak.running(
        *("--interval=500ms", "--confirm-after=0s", "--events=off", "--provider-id=ignored"),
        *(
            f"--docker-host=unix://{tmp_path}/docker.sock",
            f"--cni-networks-dir={tmp_path}/networks",
        ),
        *(f"--device-plugins-dir={tmp_path}/plugins", "--kubelet-dir=off"),
    ) as daemon:
        eventually(lambda: _reports(daemon, "web-after-backup"))
        yield daemon


def test_after_a_restore_the_daemon_reports_the_pods_of_the_backup(
    control_plane: ControlPlane, daemon: Daemon
) -> None:
    control_plane.stop()
    control_plane.restore()
    control_plane.start()
    eventually(lambda: _reports(daemon, "web-of-backup"), BOUND)
    assert {line["resource"] for line in daemon.events("watch.reset")} >= {"pods"}
    eventually(lambda: _restored(daemon) >= 1, equal=True)
    # The watch goes on in the new history.
    control_plane.kubectl("delete", "pod", "web-of-backup", "--force", "--grace-period=0")
    control_plane.create(_rejected("web-of-today"))
    eventually(lambda: _reports(daemon, "web-of-today"))


def test_a_restart_without_a_restore_lists_nothing(
    control_plane: ControlPlane, daemon: Daemon
) -> None:
    control_plane.stop()
    control_plane.start()
    throughout(lambda: _reports(daemon, "web-after-backup"), 20)
    metrics = daemon.metrics()
    for resource in ("pods", "node"):
        assert metrics.get("watch_restarts_total", resource=resource, cause="restored") is None
    assert daemon.events("watch.reset") == []


def _restored(daemon: Daemon) -> float:
    metrics = daemon.metrics()
    restarts = [
        metrics.get("watch_restarts_total", resource=one, cause="restored")
        for one in ("pods", "node")
    ]
    return sum(one or 0 for one in restarts)


def _reports(daemon: Daemon, pod: str) -> None:
    assert daemon.report().subjects("rejected_pod").keys() == {f"pod default/{pod}"}


def _rejected(name: str) -> dict[str, Any]:
    why = "requested number of devices unavailable for fake.io/gpu. Requested: 1, Available: 0"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": NODE, "containers": [{"name": "main", "image": "none"}]},
        "status": {
            "phase": "Failed",
            "reason": "UnexpectedAdmissionError",
            "message": f"Allocate failed due to {why}, which is unexpected",
        },
    }

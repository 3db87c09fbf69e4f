"""A real etcd is restored from a backup and its API server restarted: the daemon reports the pods of the backup."""

from pathlib import Path
from typing import Any

import pytest

from tests.control_plane import ControlPlane, missing
from tests.wire import needs

from .node import Cluster, eventually, throughout
from .nodeleak import Nodeleak

pytestmark = pytest.mark.e2e

NODE = "worker-1"
BOUND = 75
"""Seconds: 15 until it connects again, 30 of jitter, and what a loaded machine needs."""
DELETED = ("--force", "--grace-period=0")


def test_after_a_restore_the_daemon_reports_the_pods_of_the_backup_and_after_a_restart_it_lists_nothing(
    tmp_path: Path,
) -> None:
    needs(not missing(), f"{', '.join(missing())}: run hack/cluster build")
    for directory in ("control-plane", "logs", "plugins", "networks"):
        (tmp_path / directory).mkdir()
    control_plane = ControlPlane(tmp_path / "control-plane")
    try:
        control_plane.start()
        _check(control_plane, tmp_path)
    finally:
        control_plane.stop()


def _check(control_plane: ControlPlane, directory: Path) -> None:
    config = control_plane.kubeconfig
    nodeleak = Nodeleak(Cluster(NODE, admin=config, kubelet=config, pod_cidr=""), directory / "logs")
    control_plane.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    control_plane.create(_rejected("of-backup"))
    control_plane.back_up()
    control_plane.kubectl("delete", "pod", "of-backup", *DELETED)
    for number in range(60):  # raises etcd's revision, as changes of other objects do
        control_plane.etcdctl("put", "/elsewhere", str(number))
    control_plane.create(_rejected("after-backup"))
    with nodeleak.running(
        *("--interval=500ms", "--confirm-after=0s", "--events=off", "--provider-id=ignored"),
        *(f"--docker-host=unix://{directory}/docker.sock", f"--cni-networks-dir={directory}/networks"),
        *(f"--device-plugins-dir={directory}/plugins", "--kubelet-dir=off"),
    ) as daemon:

        def reported() -> set[str]:
            return {*daemon.report().subjects("rejected_pod")}

        def restored() -> list[float | None]:
            metrics = daemon.metrics()
            return [metrics.get("watch_restarts_total", resource=one, cause="restored") for one in ("pods", "node")]

        eventually(reported, 30, equal={"pod default/after-backup"})
        control_plane.stop()
        control_plane.start()
        throughout(reported, 20, equal={"pod default/after-backup"})
        assert (restored(), daemon.events("watch.reset")) == ([None, None], [])

        control_plane.stop()
        control_plane.restore()
        control_plane.start()
        eventually(reported, BOUND, equal={"pod default/of-backup"})
        assert {line["resource"] for line in daemon.events("watch.reset")} >= {"pods"}
        assert sum(times or 0 for times in restored()) >= 1
        # The watch goes on in the new history.
        control_plane.kubectl("delete", "pod", "of-backup", *DELETED)
        control_plane.create(_rejected("of-today"))
        eventually(reported, 10, equal={"pod default/of-today"})


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

"""What a scan reports of the device plugins of a node, and of the pods that its kubelet rejected."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from agent.exporters.json.scan import scan_document
from agent.model.devices import DeviceTransition
from agent.model.rejections import RejectedPod
from agent.model.snapshot import Known, Pod, Snapshot
from tests.builders import device_plugins, node, scanned


def seconds(n: float) -> timedelta:
    return timedelta(seconds=n)


def with_plugins(
    *records: Any, kubelet: float | None, written: float | None, **others: Any
) -> Snapshot:
    """A node with records of its plugins and with pods; times of files are seconds ago."""
    pods = [record for record in records if isinstance(record, Pod)]
    devices = device_plugins(
        *(record for record in records if not isinstance(record, Pod)),
        kubelet_socket=None if kubelet is None else seconds(kubelet),
        checkpoint_written=None if written is None else seconds(written),
    )
    return node(*pods, device_plugins=devices, **others)


def history_of(snapshot: Snapshot) -> tuple[DeviceTransition, ...]:
    """Return the stored transitions, and those that the snapshot adds."""
    return scanned(snapshot).assessment.snapshot.device_plugins.known().history


def following(before: Snapshot, now: Snapshot) -> Snapshot:
    """Return `now` with the stored history of the snapshot before."""
    return replace(
        now, device_plugins=Known(replace(now.device_plugins.known(), history=history_of(before)))
    )


def resources_of(snapshot: Snapshot) -> dict[str, dict[str, Any]]:
    """Return how each resource stands."""
    return {
        state["resource"]: state for state in scan_document(scanned(snapshot))["device_plugins"]
    }


def rejected_pods(snapshot: Snapshot) -> tuple[RejectedPod, ...]:
    findings = (tracked.finding for tracked in scanned(snapshot).findings)
    return tuple(pod for finding in findings for pod in finding.rejected_pods)

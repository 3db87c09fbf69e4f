"""The address of the runbook of a finding, where the installed package says where its documents are."""

from functools import cache
from importlib.metadata import metadata
from typing import Final

from agent.checks.addresses import (
    exhausted_range,
    failing_plugin,
    leaked_reservation,
    overlapping_ranges,
    shared_ip,
    stuck_teardown,
    unexplained_exhaustion,
    unmanaged_address,
    unreserved_pod_ip,
)
from agent.checks.devices import late_device_plugin, rejected_pod, started_without_device
from agent.checks.registration import unregistered_node
from agent.checks.volumes import detached_volume
from agent.checks.watches import replayed_watch
from agent.model.finding import Severity

_EXHAUSTED: Final = "NodeleakRangeExhausted"
RUNBOOKS: Final = {
    leaked_reservation.NAME: "NodeleakLeakedAddresses",
    unreserved_pod_ip.NAME: "NodeleakUnreservedAddress",
    shared_ip.NAME: "NodeleakSharedAddress",
    unmanaged_address.NAME: "NodeleakUnmanagedAddress",
    stuck_teardown.NAME: "NodeleakStuckTeardown",
    failing_plugin.NAME: "NodeleakFailingPlugin",
    unexplained_exhaustion.NAME: "NodeleakUnexplainedExhaustion",
    exhausted_range.NAME: "NodeleakRangeTooSmall",
    overlapping_ranges.NAME: "NodeleakOverlappingRanges",
    late_device_plugin.NAME: "NodeleakLateDevicePlugin",
    rejected_pod.NAME: "NodeleakRejectedPods",
    started_without_device.NAME: "NodeleakStartedWithoutDevice",
    unregistered_node.NAME: "NodeleakNodeUnregistered",
    replayed_watch.NAME: "NodeleakWatchReplayed",
    detached_volume.NAME: "NodeleakVolumeLost",
}
"""By detector. `left_over_network` has no alert."""


def runbook(detector: str, severity: Severity) -> str:
    """Return a URL; empty if there is none."""
    critical = (detector, severity) == (exhausted_range.NAME, Severity.CRITICAL)
    name = _EXHAUSTED if critical else RUNBOOKS.get(detector, "")
    return f"{_repository()}/blob/main/docs/runbooks/{name}.md" if name and _repository() else ""


@cache
def _repository() -> str:
    given: list[str] = metadata("nodeleak").get_all("Project-URL") or []
    urls = dict(one.split(", ", 1) for one in given)
    return urls.get("Repository", "").rstrip("/")

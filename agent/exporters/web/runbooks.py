"""The address of the runbook of a finding, where the installed package says where its documents are."""

from functools import cache
from importlib.metadata import metadata, version
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

_EXHAUSTED: Final = "Ranges.md#nodeleakrangeexhausted"
RUNBOOKS: Final = {
    leaked_reservation.NAME: "LeakedAddresses.md#nodeleakleakedaddresses",
    unreserved_pod_ip.NAME: "AddressesInUse.md#nodeleakunreservedaddress",
    shared_ip.NAME: "AddressesInUse.md#nodeleaksharedaddress",
    unmanaged_address.NAME: "AddressesInUse.md#nodeleakunmanagedaddress",
    stuck_teardown.NAME: "StuckTeardown.md#nodeleakstuckteardown",
    failing_plugin.NAME: "FailingPlugin.md#nodeleakfailingplugin",
    unexplained_exhaustion.NAME: "Networks.md#nodeleakunexplainedexhaustion",
    exhausted_range.NAME: "Ranges.md#nodeleakrangetoosmall",
    overlapping_ranges.NAME: "Networks.md#nodeleakoverlappingranges",
    late_device_plugin.NAME: "Devices.md#nodeleaklatedeviceplugin",
    rejected_pod.NAME: "Devices.md#nodeleakrejectedpods",
    started_without_device.NAME: "Devices.md#nodeleakstartedwithoutdevice",
    unregistered_node.NAME: "NodeUnregistered.md#nodeleaknodeunregistered",
    replayed_watch.NAME: "WatchReplayed.md#nodeleakwatchreplayed",
    detached_volume.NAME: "VolumeLost.md#nodeleakvolumelost",
}
"""Page and section, by detector. `left_over_network` has no alert."""


def runbook(detector: str, severity: Severity) -> str:
    """Return a URL; empty if there is none."""
    critical = (detector, severity) == (exhausted_range.NAME, Severity.CRITICAL)
    section = _EXHAUSTED if critical else RUNBOOKS.get(detector, "")
    return f"{_repository()}/blob/v{version('nodeleak')}/docs/runbooks/{section}" if section and _repository() else ""


@cache
def _repository() -> str:
    given: list[str] = metadata("nodeleak").get_all("Project-URL") or []
    urls = dict(one.split(", ", 1) for one in given)
    return urls.get("Repository", "").rstrip("/")

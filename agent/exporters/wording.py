"""What outputs say about the findings of each detector, beside their messages."""

from typing import Final, NamedTuple


class Wording(NamedTuple):
    runbook: str
    """Page and section; empty: no alert is about them."""
    singular: str = ""
    plural: str = ""
    """What they are, after their number."""
    says_what_to_do: bool = False
    """Whether the messages end with what to do."""


WORDING: Final = {
    "unregistered_node": Wording(
        "NodeUnregistered.md#nodeleaknodeunregistered",
        "node that is not registered correctly",
        "nodes that are not registered correctly",
        says_what_to_do=True,
    ),
    "exhausted_range": Wording(
        "Ranges.md#nodeleakrangetoosmall", "range with too few free addresses", "ranges with too few free addresses"
    ),
    "shared_ip": Wording(
        "AddressesInUse.md#nodeleaksharedaddress",
        "pod address in use by two pods",
        "pod addresses in use by two pods each",
    ),
    "unreserved_pod_ip": Wording(
        "AddressesInUse.md#nodeleakunreservedaddress",
        "pod uses an address that is not reserved",
        "pods use unreserved addresses",
    ),
    "detached_volume": Wording(
        "VolumeLost.md#nodeleakvolumelost",
        "volume missing from the node's volumesAttached",
        "volumes missing from the node's volumesAttached",
        says_what_to_do=True,
    ),
    "rejected_pod": Wording(
        "Devices.md#nodeleakrejectedpods",
        "pod rejected by the kubelet for a device",
        "pods rejected by the kubelet for a device",
        says_what_to_do=True,
    ),
    "started_without_device": Wording(
        "Devices.md#nodeleakstartedwithoutdevice",
        "pod started without its device",
        "pods started without their devices",
        says_what_to_do=True,
    ),
    "late_device_plugin": Wording(
        "Devices.md#nodeleaklatedeviceplugin", "device plugin not registered", "device plugins not registered"
    ),
    "leaked_reservation": Wording(
        "LeakedAddresses.md#nodeleakleakedaddresses", "leaked pod address", "leaked pod addresses"
    ),
    "unmanaged_address": Wording(
        "AddressesInUse.md#nodeleakunmanagedaddress",
        "address used by a process that the runtime does not know",
        "addresses used by processes that the runtime does not know",
    ),
    "stuck_teardown": Wording(
        "StuckTeardown.md#nodeleakstuckteardown",
        "address of a sandbox whose teardown does not complete",
        "addresses of sandboxes whose teardown does not complete",
    ),
    "overlapping_ranges": Wording(
        "Networks.md#nodeleakoverlappingranges",
        "pair of networks with overlapping ranges",
        "pairs of networks with overlapping ranges",
    ),
    "failing_plugin": Wording(
        "FailingPlugin.md#nodeleakfailingplugin",
        "network whose CNI plugin fails and leaks addresses",
        "networks whose CNI plugin fails and leaks addresses",
    ),
    "unexplained_exhaustion": Wording(
        "Networks.md#nodeleakunexplainedexhaustion",
        "range that pods find exhausted and that was not judged so",
        "ranges that pods find exhausted and that were not judged so",
    ),
    "left_over_network": Wording("", "left-over network directory", "left-over network directories"),
    "replayed_watch": Wording(
        "WatchReplayed.md#nodeleakwatchreplayed",
        "watch that sends outdated events",
        "watches that send outdated events",
    ),
}
"""By detector, the most direct effect on pods first."""

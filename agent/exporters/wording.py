"""What outputs say about the findings of each detector, beside their messages."""

from typing import Final, NamedTuple


class Wording(NamedTuple):
    alert: str
    """The alert whose runbook is about them; empty: there is none."""
    singular: str = ""
    plural: str = ""
    """Their consequence in the headline, after their number; empty: `headline` has a sentence of its own."""
    says_what_to_do: bool = False
    """Whether the messages end with what to do."""


WORDING: Final = {
    "unregistered_node": Wording("NodeleakNodeUnregistered", says_what_to_do=True),
    "exhausted_range": Wording("NodeleakRangeTooSmall"),
    "shared_ip": Wording(
        "NodeleakSharedAddress", "pod address in use by two pods", "pod addresses in use by two pods each"
    ),
    "unreserved_pod_ip": Wording(
        "NodeleakUnreservedAddress", "pod uses an address that is not reserved", "pods use unreserved addresses"
    ),
    "detached_volume": Wording(
        "NodeleakVolumeLost",
        "volume missing from the node's volumesAttached",
        "volumes missing from the node's volumesAttached",
        says_what_to_do=True,
    ),
    "rejected_pod": Wording(
        "NodeleakRejectedPods",
        "pod rejected by the kubelet for a device",
        "pods rejected by the kubelet for a device",
        says_what_to_do=True,
    ),
    "started_without_device": Wording(
        "NodeleakStartedWithoutDevice",
        "pod started without its device",
        "pods started without their devices",
        says_what_to_do=True,
    ),
    "late_device_plugin": Wording(
        "NodeleakLateDevicePlugin", "device plugin not registered", "device plugins not registered"
    ),
    "leaked_reservation": Wording("NodeleakLeakedAddresses", "leaked pod address", "leaked pod addresses"),
    "unmanaged_address": Wording(
        "NodeleakUnmanagedAddress",
        "address used by a process that the runtime does not know",
        "addresses used by processes that the runtime does not know",
    ),
    "stuck_teardown": Wording(
        "NodeleakStuckTeardown",
        "address of a sandbox whose teardown does not complete",
        "addresses of sandboxes whose teardown does not complete",
    ),
    "overlapping_ranges": Wording(
        "NodeleakOverlappingRanges",
        "pair of networks with overlapping ranges",
        "pairs of networks with overlapping ranges",
    ),
    "failing_plugin": Wording(
        "NodeleakFailingPlugin",
        "network whose CNI plugin fails and leaks addresses",
        "networks whose CNI plugin fails and leaks addresses",
    ),
    "unexplained_exhaustion": Wording(
        "NodeleakUnexplainedExhaustion",
        "range that pods find exhausted and that was not judged so",
        "ranges that pods find exhausted and that were not judged so",
    ),
    "left_over_network": Wording("", "left-over network directory", "left-over network directories"),
    "replayed_watch": Wording("NodeleakWatchReplayed"),
}
"""By detector, the most direct effect on pods first."""

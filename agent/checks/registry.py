"""The list of detectors: a module for each kind of problem."""

from typing import Final

from agent.checks.addresses import (
    broken_cni_config,
    exhausted_range,
    failing_plugin,
    hanging_plugin,
    leaked_reservation,
    left_over_network,
    overlapping_ranges,
    shared_ip,
    stopped_kubelet,
    stuck_teardown,
    unmanaged_address,
    unreserved_pod_ip,
    wrong_range,
)
from agent.checks.cluster import detached_volume, replayed_watch, unregistered_node
from agent.checks.detector import Detector, Grouping
from agent.checks.devices import (
    device_conflict,
    late_device_plugin,
    missing_kubelet_socket,
    rejected_pod,
    started_without_device,
)
from agent.checks.waiting import waiting_pods

DETECTORS: Final[tuple[Detector, ...]] = (
    leaked_reservation, unreserved_pod_ip, shared_ip, unmanaged_address, stuck_teardown,
    stopped_kubelet, exhausted_range, failing_plugin, hanging_plugin, waiting_pods,
    left_over_network, overlapping_ranges, wrong_range, broken_cni_config, late_device_plugin,
    missing_kubelet_socket, rejected_pod,
    started_without_device, device_conflict, unregistered_node, replayed_watch, detached_volume,
)  # fmt: skip
"""The order in which they run, and in which they are listed."""

_GROUPING: Final[tuple[Grouping, ...]] = (leaked_reservation, rejected_pod, stuck_teardown)
"""Those that show several findings in one line."""
_DIRECT_EFFECT: Final[tuple[Detector, ...]] = (
    unregistered_node, stopped_kubelet, exhausted_range, waiting_pods, broken_cni_config,
    hanging_plugin, shared_ip, unreserved_pod_ip, wrong_range, detached_volume, rejected_pod,
    started_without_device, device_conflict,
    missing_kubelet_socket, late_device_plugin, leaked_reservation, unmanaged_address,
    stuck_teardown, overlapping_ranges,
)  # fmt: skip
"""Those with an effect on pods, the most direct one first."""

DETECTOR: Final = {detector.NAME: detector for detector in DETECTORS}
GROUPING: Final = {detector.NAME: detector for detector in _GROUPING}
BY_EFFECT: Final = tuple(dict.fromkeys(detector.NAME for detector in _DIRECT_EFFECT + DETECTORS))
"""The names of all in this order: a headline is about the first that found something."""

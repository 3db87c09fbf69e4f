"""The list of detectors: a module for each kind of problem."""

from collections.abc import Iterator
from typing import Final, Protocol

from agent.checks.addresses import (
    exhausted_range,
    failing_plugin,
    leaked_reservation,
    left_over_network,
    overlapping_ranges,
    shared_ip,
    stuck_teardown,
    unexplained_exhaustion,
    unmanaged_address,
    unreserved_pod_ip,
)
from agent.checks.cluster import detached_volume, replayed_watch, unregistered_node
from agent.checks.devices import (
    late_device_plugin,
    missing_kubelet_socket,
    rejected_pod,
    started_without_device,
)
from agent.model.assessment import Assessment
from agent.model.finding import Finding, Severity


class Detector(Protocol):
    """A module. Its docstring is its `explain` page, with a line `Means:` and a line `Do:`.

    The metrics have a zero for each of the severities. `find` yields each problem, and raises InsufficientData where a
    source it needs is unavailable.
    """

    @property
    def NAME(self) -> str: ...
    @property
    def SEVERITIES(self) -> tuple[Severity, ...]: ...
    @property
    def __doc__(self) -> str | None: ...  # type: ignore[override]
    def find(self, assessment: Assessment) -> Iterator[Finding]: ...


DETECTORS: Final[tuple[Detector, ...]] = (
    leaked_reservation, unreserved_pod_ip, shared_ip, unmanaged_address, stuck_teardown,
    exhausted_range, failing_plugin, unexplained_exhaustion, left_over_network, overlapping_ranges,
    late_device_plugin, missing_kubelet_socket, rejected_pod, started_without_device,
    unregistered_node, replayed_watch, detached_volume,
)  # fmt: skip

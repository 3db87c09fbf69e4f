"""The state of a node in one sentence, which names the worst consequence. Text and page share it."""

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Final

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
from agent.checks.devices import late_device_plugin, rejected_pod, started_without_device
from agent.checks.registration import unregistered_node
from agent.checks.registry import DETECTORS
from agent.checks.volumes import detached_volume
from agent.checks.watches import replayed_watch
from agent.model.assessment import State
from agent.model.finding import Finding, Severity, total
from agent.model.report import NetworkSummary, Report
from agent.model.text import count_of, format_number


class Status(StrEnum):
    HEALTHY = "healthy"
    UNCONFIRMED = "unconfirmed"
    """A problem was seen that has not lasted yet."""
    PROBLEM = "problem"
    INCOMPLETE = "incomplete"
    """Something could not be read, so nothing is known to be healthy."""


def status_of(report: Report, *, alive: bool = True) -> Status:
    """`alive`: whether the daemon still takes snapshots."""
    if any(one.confirmed for one in report.problems) or (report.cleaning and report.cleaning.halted):
        return Status.PROBLEM
    if report.unavailable or not report.complete or not alive:
        return Status.INCOMPLETE
    return Status.UNCONFIRMED if report.problems else Status.HEALTHY


def headline(report: Report, *, alive: bool = True) -> str:
    match status_of(report, alive=alive):
        case Status.HEALTHY:
            return f"OK: {_informational(report)}"
        case Status.UNCONFIRMED:
            return f"Unconfirmed: {_worst(report, confirmed=False)[1]}"
        case Status.INCOMPLETE:
            return f"Incomplete: {incomplete(report) if alive else 'the nodeleak agent is up but has stopped scanning'}"
        case Status.PROBLEM:
            return _problem(report)


def incomplete(report: Report) -> str:
    """Say which checks could not run, with the first reason; empty where all did."""
    failed = [gap for gap in report.gaps if not gap.chosen]
    if failed:
        why = report.unavailable[0].why if report.unavailable else f"{failed[0].detector}: {failed[0].why}"
        return f"{len(failed)} of {len(DETECTORS)} checks could not run: {why}"
    if report.unavailable:
        return f"every check ran, but {report.unavailable[0].source} is unavailable: {report.unavailable[0].why}"
    return ""


def _informational(report: Report) -> str:
    found = count_of(total(report.findings), "informational finding") if report.findings else "no findings"
    unknown = sum((network.states or {}).get(State.UNKNOWN, 0) for network in report.networks)
    return f"{found} ({count_of(unknown, 'address', 'addresses')} unknown)" if unknown else found


def _problem(report: Report) -> str:
    severity, text = _worst(report, confirmed=True)
    if severity is not Severity.CRITICAL and report.cleaning is not None and report.cleaning.halted:
        return f"Critical: cleanup halted: {report.cleaning.halted}"
    return f"{severity.value.capitalize()}: {text}"


def _worst(report: Report, *, confirmed: bool) -> tuple[Severity, str]:
    """Describe the most severe findings; of several kinds, the one with the most direct effect on pods."""
    findings = [one.finding for one in report.problems if one.confirmed or not confirmed]
    severity = max((one.severity for one in findings), key=list(Severity).index, default=Severity.WARNING)
    for detector, describe in _CONSEQUENCES.items():
        if found := [one for one in findings if one.detector == detector and one.severity is severity]:
            return severity, describe(report, found)
    return severity, count_of(sum(one.count for one in findings), "finding")


def _exhausted(report: Report, found: Sequence[Finding]) -> str:
    names = {one.network for one in found}
    return "; ".join(_free_addresses(one, report) for one in _networks(report, names))


def _networks(report: Report, names: set[str]) -> Iterator[NetworkSummary]:
    return (one for one in report.networks if one.name in names)


def _free_addresses(network: NetworkSummary, report: Report) -> str:
    where = f" in {network.name}" if len(report.networks) > 1 else ""
    left = "no free pod addresses" if not network.free else f"{_count_free(network.free)} left"
    leaked, unknown = (report.assessment.taken(network.name, one) for one in (State.LEAKED, State.UNKNOWN))
    not_known = f", {format_number(unknown)} unknown" if unknown else ""
    return f"{left}{where} ({format_number(leaked)} of {format_number(network.usable)} leaked{not_known})"


def _count_free(free: int) -> str:
    return f"only {count_of(free, 'free pod address', 'free pod addresses')}"


def _leaked(report: Report, found: Sequence[Finding]) -> str:
    node = report.assessment.snapshot.node_name
    return f"{count_of(sum(one.count for one in found), 'leaked pod address', 'leaked pod addresses')} on {node}"


def _rejected(_report: Report, found: Sequence[Finding]) -> str:
    count = sum(max(1, len(one.rejected_pods)) for one in found)
    return f"{count_of(count, 'pod')} rejected by the kubelet for a device"


def _counting(noun: str, plural: str) -> Callable[[Report, Sequence[Finding]], str]:
    return lambda _, found: count_of(len(found), noun, plural)


def _unregistered(_report: Report, found: Sequence[Finding]) -> str:
    critical = any(one.severity is Severity.CRITICAL for one in found)
    return "this node is not registered correctly" + (
        ": the cluster-autoscaler may delete the instance" if critical else ""
    )


_CONSEQUENCES: Final[dict[str, Callable[[Report, Sequence[Finding]], str]]] = {
    unregistered_node.NAME: _unregistered,
    exhausted_range.NAME: _exhausted,
    shared_ip.NAME: _counting("pod address in use by two pods", "pod addresses in use by two pods each"),
    unreserved_pod_ip.NAME: _counting("pod uses an address that is not reserved", "pods use unreserved addresses"),
    detached_volume.NAME: _counting(
        "volume missing from the node's volumesAttached", "volumes missing from the node's volumesAttached"
    ),
    rejected_pod.NAME: _rejected,
    started_without_device.NAME: _counting("pod started without its device", "pods started without their devices"),
    late_device_plugin.NAME: _counting("device plugin not registered", "device plugins not registered"),
    leaked_reservation.NAME: _leaked,
    unmanaged_address.NAME: _counting(
        "address used by a process that the runtime does not know",
        "addresses used by processes that the runtime does not know",
    ),
    stuck_teardown.NAME: _counting(
        "address of a sandbox whose teardown does not complete",
        "addresses of sandboxes whose teardown does not complete",
    ),
    overlapping_ranges.NAME: _counting(
        "pair of networks with overlapping ranges", "pairs of networks with overlapping ranges"
    ),
    failing_plugin.NAME: _counting(
        "network whose CNI plugin fails and leaks addresses", "networks whose CNI plugin fails and leaks addresses"
    ),
    unexplained_exhaustion.NAME: _counting(
        "range that pods find exhausted and that was not judged so",
        "ranges that pods find exhausted and that were not judged so",
    ),
    left_over_network.NAME: _counting("left-over network directory", "left-over network directories"),
    replayed_watch.NAME: lambda _report, _found: "the API server sends outdated watch events",
}
"""By detector, the most direct effect on pods first."""

"""A report in one sentence, which names the worst consequence, and each finding, or those of one cause, in one line."""

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from agent.checks import kubelet_runtime as runtimes
from agent.checks.addresses import exhausted_range, host_ports, leaked_reservation
from agent.checks.cluster import replayed_watch, unregistered_node
from agent.checks.devices import missing_kubelet_socket
from agent.checks.registry import DETECTORS
from agent.exporters.json.status import NodeState
from agent.model.assessment import State
from agent.model.finding import RESTARTS, Finding, LeakCause, Severity, TrackedFinding, total
from agent.model.ranges import runs
from agent.model.rejections import PodOutcome
from agent.model.report import NetworkSummary, Report
from agent.model.text import count_of, format_number, format_time

LONGEST_LIST: Final = 40
"""Names in one line, and lines of one kind."""
NOUNS: Final = {
    "unregistered_node": (
        "node that is not registered correctly",
        "nodes that are not registered correctly",
    ),
    "exhausted_range": ("range with too few free addresses", "ranges with too few free addresses"),
    "shared_ip": ("pod address in use by two pods", "pod addresses in use by two pods each"),
    "unreserved_pod_ip": (
        "pod uses an address that is not reserved",
        "pods use unreserved addresses",
    ),
    "detached_volume": (
        "volume missing from the node's volumesAttached",
        "volumes missing from the node's volumesAttached",
    ),
    "rejected_pod": (
        "pod rejected by the kubelet for a device",
        "pods rejected by the kubelet for a device",
    ),
    "started_without_device": (
        "pod started without its device",
        "pods started without their devices",
    ),
    "missing_kubelet_socket": (
        "kubelet without its socket for device plugins",
        "kubelets without their sockets for device plugins",
    ),
    "late_device_plugin": ("device plugin not registered", "device plugins not registered"),
    "leaked_reservation": ("leaked pod address", "leaked pod addresses"),
    "unmanaged_address": (
        "address used by a process that the runtime does not know",
        "addresses used by processes that the runtime does not know",
    ),
    "stuck_teardown": (
        "address of a sandbox whose teardown does not complete",
        "addresses of sandboxes whose teardown does not complete",
    ),
    "overlapping_ranges": (
        "pair of networks with overlapping ranges",
        "pairs of networks with overlapping ranges",
    ),
    "failing_plugin": ("CNI plugin that fails or hangs", "CNI plugins that fail or hang"),
    "unexplained_exhaustion": (
        "range that pods find exhausted and that was not judged so",
        "ranges that pods find exhausted and that were not judged so",
    ),
    "left_over_network": ("left-over network directory", "left-over network directories"),
    "replayed_watch": ("watch that sends outdated events", "watches that send outdated events"),
}
"""What they are, after their number: of one, and of several. By detector, the most direct effect on pods first."""


class FindingLine(NamedTuple):
    severity: Severity
    text: str
    confirmed: bool


def finding_lines(report: Report, *, verbose: bool = False) -> dict[str, list[FindingLine]]:
    """Return the lines by detector, the most urgent first. `verbose`: one line for each finding."""
    groups: dict[object, list[TrackedFinding]] = {}
    for number, tracked in enumerate(report.sorted_findings):
        # By number, because two findings of a damaged source can be equal.
        groups.setdefault((not verbose and _group(tracked)) or number, []).append(tracked)
    lines: dict[str, list[FindingLine]] = {}
    for group in groups.values():
        finding, text = group[0].finding, group[0].finding.message
        if len(group) > 1 and isinstance(finding.cause, LeakCause):
            text = _leaks(group, finding.cause, runtimes.name_of(report.assessment.snapshot))
        elif len(group) > 1:
            text = _rejected(group)
        lines.setdefault(finding.detector, []).append(
            FindingLine(finding.severity, text, group[0].confirmed)
        )
    return lines


def _problems(finding: Finding) -> int:
    """Return for how many leaks, pods or others a finding stands."""
    return max(finding.count, len(finding.rejected_pods))


def count_by_severity(report: Report) -> str:
    """Count the findings: `1 critical: no free addresses; 7 warnings: leaked pod addresses`."""
    counts: dict[Severity, Counter[str]] = {}
    for tracked in report.sorted_findings:
        finding = tracked.finding
        counts.setdefault(finding.severity, Counter())[finding.detector] += _problems(finding)
    return "; ".join(_count(severity, detectors) for severity, detectors in counts.items())


def _count(severity: Severity, detectors: Counter[str]) -> str:
    nouns = {detector: NOUNS[detector][count != 1] for detector, count in detectors.items()}
    if severity is Severity.CRITICAL and exhausted_range.NAME in nouns:
        nouns[exhausted_range.NAME] = "no free addresses"
    if len(nouns) > 1:
        nouns = {
            detector: f"{noun} ({format_number(detectors[detector])})"
            for detector, noun in nouns.items()
        }
    plural = "warnings" if severity is Severity.WARNING else severity.value
    return f"{count_of(detectors.total(), severity.value, plural)}: {', '.join(nouns.values())}"


def _group(tracked: TrackedFinding) -> tuple[object, ...] | None:
    """Return what the findings of one line have in common; None: this one has a line of its own."""
    finding = tracked.finding
    if isinstance(finding.cause, LeakCause):
        # A restart has one time; without one, each leak has the time of its file.
        start = finding.cause_at if finding.cause in RESTARTS else None
        return finding.network, finding.cause, start, tracked.confirmed
    # A finding about many pods of one controller is a line already; each pod that cannot end has its own advice.
    if (
        finding.rejected_pods
        and finding.pod
        and finding.pod_outcome is not PodOutcome.TERMINATING_STUCK
    ):
        return finding.resource, finding.cause, finding.pod_outcome, tracked.confirmed
    return None


def _leaks(group: Sequence[TrackedFinding], cause: LeakCause, runtime: str) -> str:
    first, times = (
        group[0],
        sorted({tracked.finding.cause_at or tracked.since for tracked in group}),
    )
    time = format_time(times[0]) + (" (the oldest)" if len(times) > 1 else "")
    why = leaked_reservation.describe_cause(cause, time, runtime)
    # A finding for the leaks beyond those that are listed names the network.
    leaks = [
        tracked.finding for tracked in group if tracked.finding.subject != tracked.finding.network
    ]
    ips = [leak.subject.rpartition("/")[2] for leak in leaks]
    addresses = f": {_addresses(ips, total(group) - len(leaks))}" if leaks else ""
    forwarded = [
        f"{port} to {ip}"
        for ip, leak in zip(ips, leaks, strict=True)
        for port in leak.port_mappings
    ]
    ports = host_ports.describe(_listed(forwarded))
    count = count_of(total(group), "address", "addresses")
    return f"{count} in {first.finding.network} leaked, {why}{addresses}{ports}"


def _rejected(group: Sequence[TrackedFinding]) -> str:
    first, pods = (
        group[0].finding.rejected_pods[0],
        _listed([tracked.finding.pod for tracked in group]),
    )
    what = f"{len(group)} pods were rejected for {first.resource or 'a device'} ({pods})"
    return f"{what}; for the first of them: {first.why}; {first.do}"


def _addresses(ips: Sequence[str], unnamed: int) -> str:
    listed = runs(ips)
    return _listed(listed if len(listed) <= LONGEST_LIST else ips, unnamed)


def _listed(names: Sequence[str], unnamed: int = 0) -> str:
    more = max(0, len(names) - LONGEST_LIST) + unnamed
    return ", ".join(names[:LONGEST_LIST]) + (f" and {more} more" if more > 0 else "")


def state_of(report: Report, *, alive: bool = True) -> NodeState:
    if any(tracked.confirmed for tracked in report.problems) or (
        report.cleaning and report.cleaning.halted
    ):
        return NodeState.FINDINGS
    return (
        NodeState.INCOMPLETE
        if report.unavailable or not report.complete or not alive
        else NodeState.OK
    )


def headline(report: Report, *, alive: bool = True) -> str:
    state = state_of(report, alive=alive)
    if state is NodeState.FINDINGS:
        severity, text = _worst(report, confirmed=True)
        if (
            severity is not Severity.CRITICAL
            and report.cleaning is not None
            and report.cleaning.halted
        ):
            return f"Critical: cleanup halted: {report.cleaning.halted}"
        return f"{severity.value.capitalize()}: {text}"
    if state is NodeState.INCOMPLETE:
        return f"Incomplete: {incomplete(report) if alive else 'the nodeleak agent is up but has stopped scanning'}"
    return (
        f"Unconfirmed: {_worst(report, confirmed=False)[1]}"
        if report.problems
        else f"OK: {_informational(report)}"
    )


def incomplete(report: Report) -> str:
    """Say which checks could not run, with the reason of most of them; empty where all did."""
    failed = [gap for gap in report.gaps if not gap.chosen]
    if failed:
        whys = [source.why for source in report.unavailable] or [
            f"{failed[0].detector}: {failed[0].why}"
        ]
        why = max(whys, key=lambda why: sum(why in gap.why for gap in failed))
        return f"{len(failed)} of {len(DETECTORS)} checks could not run: {why}"
    if report.unavailable:
        return f"every check ran, but {report.unavailable[0].source} is unavailable: {report.unavailable[0].why}"
    return ""


def _informational(report: Report) -> str:
    found = (
        count_of(total(report.findings), "informational finding")
        if report.findings
        else "no findings"
    )
    unknown = sum((network.states or {}).get(State.UNKNOWN, 0) for network in report.networks)
    return f"{found} ({count_of(unknown, 'address', 'addresses')} unknown)" if unknown else found


def _worst(report: Report, *, confirmed: bool) -> tuple[Severity, str]:
    """Describe the most severe findings; of several kinds, the one with the most direct effect on pods."""
    findings = [
        tracked.finding for tracked in report.problems if tracked.confirmed or not confirmed
    ]
    severity = max(
        (finding.severity for finding in findings),
        key=list(Severity).index,
        default=Severity.WARNING,
    )
    for detector in NOUNS:
        if found := [
            each for each in findings if (each.detector, each.severity) == (detector, severity)
        ]:
            return severity, _consequence(detector, report, found)
    return severity, "no findings"


def _consequence(detector: str, report: Report, found: Sequence[Finding]) -> str:
    match detector:
        case exhausted_range.NAME:
            names = {finding.network for finding in found}
            return "; ".join(
                _free_addresses(network, report)
                for network in report.networks
                if network.name in names
            )
        case unregistered_node.NAME:
            # All of one severity.
            critical = found[0].severity is Severity.CRITICAL
            deleted = ": the cluster-autoscaler may delete the instance" if critical else ""
            return f"this node is not registered correctly{deleted}"
        case missing_kubelet_socket.NAME:
            return "no device plugin can register, because kubelet.sock was removed"
        case replayed_watch.NAME:
            return "the API server sends outdated watch events"
        case _:
            where = (
                f" on {report.assessment.snapshot.node_name}"
                if detector == leaked_reservation.NAME
                else ""
            )
            return f"{count_of(sum(map(_problems, found)), *NOUNS[detector])}{where}"


def _free_addresses(network: NetworkSummary, report: Report) -> str:
    where = f" in {network.name}" if len(report.networks) > 1 else ""
    left = (
        f"only {count_of(network.free, 'free pod address', 'free pod addresses')} left"
        if network.free
        else ""
    )
    leaked, unknown = (
        report.assessment.taken(network.name, state) for state in (State.LEAKED, State.UNKNOWN)
    )
    not_known = f", {format_number(unknown)} unknown" if unknown else ""
    taken = f"({format_number(leaked)} of {format_number(network.usable)} leaked{not_known})"
    return f"{left or 'no free pod addresses'}{where} {taken}"

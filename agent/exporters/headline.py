"""The state of a node in one sentence, which names the worst consequence. Text and page share it."""

from collections.abc import Sequence
from enum import StrEnum

from agent.checks.addresses import exhausted_range, leaked_reservation
from agent.checks.registration import unregistered_node
from agent.checks.registry import DETECTORS
from agent.checks.watches import replayed_watch
from agent.exporters.finding_lines import NOUNS, problems
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
    if any(tracked.confirmed for tracked in report.problems) or (report.cleaning and report.cleaning.halted):
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
    """Say which checks could not run, with the reason of most of them; empty where all did."""
    failed = [gap for gap in report.gaps if not gap.chosen]
    if failed:
        whys = [source.why for source in report.unavailable] or [f"{failed[0].detector}: {failed[0].why}"]
        why = max(whys, key=lambda why: sum(why in gap.why for gap in failed))
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
    findings = [tracked.finding for tracked in report.problems if tracked.confirmed or not confirmed]
    severity = max((finding.severity for finding in findings), key=list(Severity).index, default=Severity.WARNING)
    for detector in NOUNS:
        if found := [each for each in findings if (each.detector, each.severity) == (detector, severity)]:
            return severity, _consequence(detector, report, found)
    return severity, "no findings"


def _consequence(detector: str, report: Report, found: Sequence[Finding]) -> str:
    match detector:
        case exhausted_range.NAME:
            names = {finding.network for finding in found}
            return "; ".join(_free_addresses(network, report) for network in report.networks if network.name in names)
        case unregistered_node.NAME:
            # All of one severity.
            critical = found[0].severity is Severity.CRITICAL
            deleted = ": the cluster-autoscaler may delete the instance" if critical else ""
            return f"this node is not registered correctly{deleted}"
        case replayed_watch.NAME:
            return "the API server sends outdated watch events"
        case _:
            where = f" on {report.assessment.snapshot.node_name}" if detector == leaked_reservation.NAME else ""
            return f"{count_of(sum(map(problems, found)), *NOUNS[detector])}{where}"


def _free_addresses(network: NetworkSummary, report: Report) -> str:
    where = f" in {network.name}" if len(report.networks) > 1 else ""
    left = f"only {count_of(network.free, 'free pod address', 'free pod addresses')} left" if network.free else ""
    leaked, unknown = (report.assessment.taken(network.name, state) for state in (State.LEAKED, State.UNKNOWN))
    not_known = f", {format_number(unknown)} unknown" if unknown else ""
    taken = f"({format_number(leaked)} of {format_number(network.usable)} leaked{not_known})"
    return f"{left or 'no free pod addresses'}{where} {taken}"

"""A report in one sentence, which names the worst consequence, and its findings in lines."""

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from agent.checks.addresses import exhausted_range, leaked_reservation
from agent.checks.registry import BY_EFFECT, DETECTOR, DETECTORS, GROUPING
from agent.exporters.json.status import NodeState
from agent.model.assessment import State
from agent.model.finding import WAITING_PODS, Finding, Severity, TrackedFinding, total
from agent.model.report import NetworkSummary, Report
from agent.model.text import count_of, format_number

_MAX_WORDS: Final = 30
"""Of a message that is read as one sentence."""


class FindingLine(NamedTuple):
    """What a list says of one finding, or of several that are alike."""

    severity: Severity
    text: str
    confirmed: bool
    details: tuple[str, ...]
    """What follows from or proves it, each in a line of its own."""


def finding_lines(report: Report, *, verbose: bool = False) -> dict[str, list[FindingLine]]:
    """Return the lines by detector, the most urgent first. `verbose`: one line for each finding."""
    groups: dict[object, list[TrackedFinding]] = {}
    for number, tracked in enumerate(report.sorted_findings):
        finding = tracked.finding
        key: object = (finding.detector, finding.group, tracked.confirmed)
        if verbose or finding.group is None:
            key = number  # two findings of a damaged source can be equal
        groups.setdefault(key, []).append(tracked)

    lines: dict[str, list[FindingLine]] = {}
    for group in groups.values():
        findings = [tracked.finding for tracked in group]
        first = findings[0]

        if len(findings) > 1:
            message = GROUPING[first.detector].describe_group(findings, report.assessment)
            text, details = _by_thought(message)
        elif first.details:
            text, details = first.lead or first.headline, first.details
        else:
            text, details = _by_thought(first.message)

        line = FindingLine(first.severity, text, group[0].confirmed, details)
        lines.setdefault(first.detector, []).append(line)
    return lines


def _by_thought(message: str) -> tuple[str, tuple[str, ...]]:
    """Return the beginning of a long message, and each of its other clauses for a line."""
    if len(message.split()) <= _MAX_WORDS:
        return message, ()
    first, *others = message.split("; ")
    return first, tuple(others)


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
    """Count the findings of one severity. `detectors`: how many problems each has found."""
    nouns = []
    for detector, count in detectors.items():
        noun = DETECTOR[detector].NOUN
        text = noun.several if count != 1 else noun.one
        if severity is Severity.CRITICAL and detector == exhausted_range.NAME:
            text = "no free addresses"
        if len(detectors) > 1:
            text += f" ({format_number(count)})"
        nouns.append(text)

    plural = "warnings" if severity is Severity.WARNING else severity.value
    return f"{count_of(detectors.total(), severity.value, plural)}: {', '.join(nouns)}"


def state_of(report: Report, *, alive: bool = True) -> NodeState:
    """Return the state of the node. `alive`: whether the daemon still takes snapshots."""
    if report.halted or any(tracked.confirmed for tracked in report.problems):
        return NodeState.FINDINGS
    if report.unavailable or not report.complete or not alive:
        return NodeState.INCOMPLETE
    # Never OK, though it may be too early for a warning, or not a matter of this agent.
    return NodeState.WAITING if _waiting(report) else NodeState.OK


def is_critical(report: Report) -> bool:
    """Return whether the headline says that something is critical."""
    return bool(report.halted) or _worst(report, confirmed=True)[0] is Severity.CRITICAL


def _waiting(report: Report) -> list[Finding]:
    """Return the reasons why pods wait, confirmed or not, the most urgent first."""
    return [
        tracked.finding
        for tracked in report.sorted_findings
        if tracked.finding.detector == WAITING_PODS
    ]


def headline(report: Report, *, alive: bool = True) -> str:
    """Return the report in one sentence, which begins with a severity or a state."""
    state = state_of(report, alive=alive)
    if state is NodeState.FINDINGS:
        severity, text = _worst(report, confirmed=True)
        if report.halted and severity is not Severity.CRITICAL:
            return f"Critical: cleanup halted: {report.halted}"
        return f"{severity.value.capitalize()}: {text}"

    if state is NodeState.INCOMPLETE:
        stalled = "the nodeleak agent is up but has stopped scanning"
        return f"Incomplete: {incomplete(report) if alive else stalled}"
    if report.problems:
        return f"Unconfirmed: {_worst(report, confirmed=False)[1]}"
    if state is NodeState.WAITING:
        return f"Info: {_in_headline(_waiting(report))}"
    return f"OK: {_informational(report)}"


def incomplete(report: Report) -> str | None:
    """Return how many checks could not run, with the reason of most of them, or None."""
    failed = [gap for gap in report.gaps if not gap.chosen]
    if failed:
        # Of two reasons for as many checks, the source that is listed first counts.
        reasons = Counter({source.why: 0 for source in report.unavailable})
        reasons.update(gap.missing.why for gap in failed if gap.missing)
        count = f"{len(failed)} of {len(DETECTORS)} checks could not run"
        if not reasons:
            return f"{count}: {failed[0].detector} ({failed[0].why})"
        return f"{count}: {max(reasons, key=reasons.__getitem__)}"

    if report.unavailable:
        first = report.unavailable[0]
        return f"every check ran, but {first.source} is unavailable: {first.why}"
    return None


def _informational(report: Report) -> str:
    """Say what there is although nothing is wrong."""
    text = "no findings"
    if report.findings:
        text = count_of(total(report.findings), "informational finding")
    unknown = sum((network.states or {}).get(State.UNKNOWN, 0) for network in report.networks)
    return f"{text} ({count_of(unknown, 'address', 'addresses')} unknown)" if unknown else text


def _worst(report: Report, *, confirmed: bool) -> tuple[Severity, str]:
    """Describe the most severe findings; of several kinds, the one with the most direct effect.

    `confirmed`: leave out those that are not.
    """
    findings = [
        tracked.finding for tracked in report.problems if tracked.confirmed or not confirmed
    ]
    severities = [finding.severity for finding in findings]
    severity = max(severities, key=lambda severity: severity.rank, default=Severity.WARNING)

    most_severe = [finding for finding in findings if finding.severity is severity]
    for detector in BY_EFFECT:
        of_detector = [finding for finding in most_severe if finding.detector == detector]
        if of_detector:
            return severity, _consequence(detector, severity, report, of_detector)
    return severity, "no findings"


def _consequence(
    detector: str, severity: Severity, report: Report, findings: Sequence[Finding]
) -> str:
    """Describe findings of one detector and severity for the headline."""
    if detector == exhausted_range.NAME:
        names = {finding.network for finding in findings}
        full = [network for network in report.networks if network.name in names]
        return "; ".join(_free_addresses(network, report) for network in full)

    if findings[0].headline:
        return _in_headline(findings)

    noun = DETECTOR[detector].NOUN
    if severity is Severity.CRITICAL and noun.critical_headline:
        return noun.critical_headline
    if noun.headline:
        return noun.headline

    text = count_of(sum(map(_problems, findings)), noun.one, noun.several)
    if detector == leaked_reservation.NAME:
        text += f" on {report.snapshot.node_name}"
    return text


def _in_headline(findings: Sequence[Finding]) -> str:
    """Return what the first finding says of itself, and how many more there are."""
    text = findings[0].headline
    more = sum(map(_problems, findings[1:]))
    if more:
        noun = DETECTOR[findings[0].detector].NOUN
        text += f"; and {count_of(more, f'other {noun.one}', f'other {noun.several}')}"
    return text


def _free_addresses(network: NetworkSummary, report: Report) -> str:
    """Say how many addresses a network has left, and how many are leaked or may be."""
    left = "no free pod addresses"
    if network.free:
        left = f"only {count_of(network.free, 'free pod address', 'free pod addresses')} left"
    where = f" in {network.name}" if len(report.networks) > 1 else ""

    leaked = format_number(report.assessment.taken(network.name, State.LEAKED))
    unknown = report.assessment.taken(network.name, State.UNKNOWN)
    not_known = f", {format_number(unknown)} unknown" if unknown else ""
    return f"{left}{where} ({leaked} of {format_number(network.usable)} leaked{not_known})"

"""What to do about the findings of a detector; for addresses, what this node needs."""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import timedelta
from functools import cache
from importlib.metadata import metadata, version
from inspect import cleandoc
from itertools import groupby
from shlex import quote
from typing import Final

from agent.checks.addresses import (
    exhausted_range,
    failing_plugin,
    host_ports,
    leaked_reservation,
    stuck_teardown,
)
from agent.checks.detector import Step
from agent.checks.kubelet_service import LOG_FILES
from agent.checks.registry import DETECTOR
from agent.cleanup import guards
from agent.cleanup.guards import GuardContext, RuntimeHistory
from agent.cleanup.plan import Plan, make_plan
from agent.exporters.release_commands import ON_NODE, Release
from agent.exporters.release_steps import blocked_step, release_steps
from agent.model.assessment import State
from agent.model.finding import RESTARTS, WAITING_PODS, Finding, LeakCause, Severity
from agent.model.release import Reason, Refusal
from agent.model.report import NetworkSummary, Report
from agent.model.runtime import CRI_O, DOCKER
from agent.model.settings import AUTO
from agent.model.snapshot import NotRequested, known_or
from agent.model.text import count_of

_TEARDOWN: Final = 'grep -iE "failed \\(delete\\)|tear ?down"'
"""What prints the lines of a log about teardowns that fail."""

_DISTRIBUTIONS: Final = {
    "k3s": ("k3s*", "rke2*"),
    "microk8s": ("snap.microk8s.*",),
    "k0s": ("k0s*",),
}
"""What the path of the runtime's socket contains where a distribution starts the runtime itself,
and the units of its log."""

_AROUND: Final = timedelta(minutes=10)
"""What is read of a log before and after a restart."""


def advice(detector: str, report: Report, release: Release = ON_NODE) -> list[Step]:
    """Return what to do, in order. An exhausted range with leaks has the steps of the leaks."""
    findings = [tracked.finding for tracked in report.findings]
    own = [finding for finding in findings if finding.detector == detector]
    names = {finding.detector for finding in findings}

    steps: list[Step] = []
    if failing_plugin.NAME in names:
        plugin = f"the CNI plugin that fails first (see {failing_plugin.NAME})"
        steps.append(Step(f"Repair {plugin}, or addresses leak again."))
    if detector == leaked_reservation.NAME:
        return [*steps, *_about_leaks(report, own, release)]
    if detector == exhausted_range.NAME:
        return [] if leaked_reservation.NAME in names else [*steps, *_about_ranges(report, own)]

    told_by = {finding.told_by for finding in own if finding.told_by in names}
    untold = [finding for finding in own if finding.told_by not in told_by]
    references = list(_references(told_by, names))
    if references and not untold:
        return references

    of_detector = DETECTOR[detector].ADVICE
    general = () if of_detector.in_findings else of_detector.steps
    severities = {finding.severity for finding in untold}
    kinds = {kind for finding in untold for kind in finding.kinds}
    applicable = (step for step in general if step.applies(severities, kinds))
    return [*references, *_of_findings(untold), *applicable]


def _references(told_by: AbstractSet[str], names: AbstractSet[str]) -> Iterator[Step]:
    """Refer to the detectors whose steps apply."""
    if leaked_reservation.NAME in names:
        told_by = {
            leaked_reservation.NAME if name == exhausted_range.NAME else name for name in told_by
        }
    for name in sorted(told_by):
        yield Step(f"Do what {name} says. The kubelet then tries again by itself.")


def _of_findings(findings: Sequence[Finding]) -> Iterator[Step]:
    """Yield the steps of the findings themselves, each once; one step for those of one text."""
    remedies = dict.fromkeys(remedy for finding in findings for remedy in finding.steps)
    for text, alike in groupby(remedies, key=lambda remedy: remedy.text):
        yield Step(text, tuple(remedy.command for remedy in alike if remedy.command))


def description(detector: str) -> str:
    """Return what a detector reports: the first line of its page."""
    return cleandoc(DETECTOR[detector].__doc__ or "").partition("\n")[0]


def _cordon(report: Report) -> Iterator[Step]:
    """Keep new pods away, unless that is done."""
    node = known_or(report.snapshot.node, None)
    if node is not None and node.unschedulable:
        return
    name = quote(report.snapshot.node_name)
    yield Step(
        "No address is free, and pods that start now fail. Keep new pods away:",
        (f"kubectl cordon {name}",),
    )


def _about_leaks(report: Report, leaks: Sequence[Finding], release: Release) -> Iterator[Step]:
    """Yield first what makes room, then the releases, and last how to find the reason."""
    leaking = {leak.network for leak in leaks}
    networks = [network for network in report.networks if network.name in leaking]
    plan = release_plan(report, release)

    # A command that releases at once is faster. Few pods wait for a secondary network.
    full = [network.name for network in networks if network.free == 0]
    is_full = any(not exhausted_range.is_secondary(report.assessment, name) for name in full)
    is_cordoned = is_full and not any(batch.at_once for batch in plan.batches)
    if is_cordoned:
        yield from _cordon(report)

    forwarded = [leak.subject.rpartition("/")[2] for leak in leaks if leak.port_mappings]
    if forwarded:
        yield Step(
            "Delete the rules of the host ports that are named above, or the next pod gets their "
            "traffic. This shows them on the node:",
            (host_ports.show_rules(forwarded),),
        )

    node = report.snapshot.node_name

    yield from release_steps(
        plan,
        release,
        node,
        urgency=_urgency(report, networks),
        docker=DOCKER in report.assessment.runtime.names,
    )
    yield from map(blocked_step, plan.blocked)
    if is_cordoned and plan.batches:
        uncordon = f"kubectl uncordon {quote(node)}"
        yield Step("When the waiting pods run, let new ones come:", (uncordon,))

    yield _find_out(report, leaks)
    yield Step("Never delete reservation files by hand: addresses in use have such files too.")


def release_plan(report: Report, release: Release) -> Plan:
    """Return what commands would release of the leaks, as the guards decide on this snapshot.

    It is what a dry run finds with the settings of `release`, without a probe. An old recording
    does not say which networks `auto` allows: there it allows those that were read.
    """
    limits = release.limits
    snapshot = report.snapshot
    if isinstance(snapshot.networks, NotRequested) and AUTO in limits.networks:
        read = {store.network for store in snapshot.reservations}
        limits = replace(limits, networks=limits.networks | read)

    context = GuardContext(
        report=report,
        runtime_history=RuntimeHistory(),  # as that of the next command
        limits=limits,
        actor="",
        journal=release.journal,
        journal_error=release.journal_error,
    )
    decisions = guards.decide(context)

    if report.halted and not context.halted:
        refusal = Refusal(Reason.HALTED, report.halted)
        return make_plan((request, (refusal,)) for request, _ in decisions)
    leaked = set(report.assessment.leaked)
    return make_plan(
        (request, refusals)
        for request, refusals in decisions
        if leaked.issuperset(request.reservations)
    )


def _find_out(report: Report, leaks: Sequence[Finding]) -> Step:
    """Say where to look for the reason of the leaks, by their likely causes."""
    causes = dict.fromkeys(leak.cause for leak in leaks if isinstance(leak.cause, LeakCause))
    commands = [f"nodeleak explain {cause}" for cause in causes if cause is not LeakCause.UNKNOWN]

    units = _units(report)
    restarts = [leak.cause_at for leak in leaks if leak.cause in RESTARTS and leak.cause_at]
    if restarts:
        start = max(restarts)
        since = f"{start - _AROUND:%Y-%m-%d %H:%M} UTC"
        until = f"{start + _AROUND:%Y-%m-%d %H:%M} UTC"
        commands.append(f'journalctl {units} --since "{since}" --until "{until}"')

    text = "Find out why it happened, or addresses will leak again. The logs are on the node:"
    if causes.keys() & {LeakCause.TEARDOWN_SKIPPED, LeakCause.SETUP_FAILED}:
        text = (
            "Find out whether a CNI plugin fails in DEL, or who removes sandboxes with `ctr`, or "
            "addresses will leak again. The logs are on the node, and that of Multus if it calls "
            "the network:"
        )

    if causes.keys() - RESTARTS - {LeakCause.EMPTY_FILE}:
        commands.append("kubectl get events -A --field-selector reason=FailedKillPod")
        commands.append(f"journalctl {units} | {_TEARDOWN} | tail")
        if _runs_within(report, "k3s"):
            commands.append(f"{_TEARDOWN} -h {LOG_FILES} | tail")

    return Step(text, tuple(commands))


def _runs_within(report: Report, distribution: str) -> bool:
    """Return whether a distribution starts the runtime, as the path of its socket shows."""
    snapshot = report.snapshot
    sockets = [runtime.endpoint for runtime in known_or(snapshot.runtimes, ())]
    processes = known_or(snapshot.processes, None)
    if processes and processes.runtime:
        sockets.append(processes.runtime)
    return any(distribution in socket for socket in sockets)


def _units(report: Report) -> str:
    """Return the options of journalctl for the logs of the kubelet and of the runtime."""
    for distribution, units in _DISTRIBUTIONS.items():
        if _runs_within(report, distribution):
            return " ".join(f'-u "{unit}"' for unit in units)
    name = report.assessment.runtime.name
    return f"-u kubelet -u {'crio' if name == CRI_O else name}"


def _urgency(report: Report, networks: Sequence[NetworkSummary]) -> str:
    """Say how many addresses are left; not urgent only if no pod waits and no range is low."""
    free = [network.free for network in networks if network.free is not None]
    if not free or len(free) < len(networks):
        return "The number of free addresses is unknown. "
    if not min(free):
        return ""

    text = f"{count_of(min(free), 'address is', 'addresses are')} free. "
    if any(tracked.finding.detector == WAITING_PODS for tracked in report.findings):
        return f"{text}See {WAITING_PODS} for why pods wait. "

    is_low = any(
        network.free < exhausted_range.low_watermark(network.usable or 0)
        for network in networks
        if network.free is not None
    )
    problems = {tracked.finding.detector for tracked in report.problems}
    if is_low or exhausted_range.NAME in problems:
        return text
    return f"Not urgent: {text}"


def _about_ranges(report: Report, findings: Sequence[Finding]) -> Iterator[Step]:
    full = {finding.network for finding in findings if finding.severity is Severity.CRITICAL}
    if full:
        yield from _cordon(report)
        yield from _about_states(report, full)

    networks = sorted({finding.network for finding in findings})
    secondary = [name for name in networks if exhausted_range.is_secondary(report.assessment, name)]
    if len(secondary) < len(networks):
        yield Step("Lower the kubelet's --max-pods, or give the node a larger pod CIDR.")
    if secondary:
        names = ", ".join(secondary)
        yield Step(f"If more pods need an address of {names}, give it a larger range.")


def _about_states(report: Report, networks: set[str]) -> Iterator[Step]:
    """Say of full networks which addresses may become free, or that none is known to."""
    entries = [entry for entry in report.assessment.reservations if entry.network in networks]
    candidates = sum(entry.state is State.CANDIDATE for entry in entries)
    not_running = {State.NOT_READY, State.TEARDOWN_PENDING}
    ended = {entry.container_id for entry in entries if entry.state in not_running}

    if candidates:
        addresses = count_of(candidates, "address", "addresses")
        yield Step(
            f"{addresses} may be leaked: this is known after the grace period (--grace). Then scan "
            "again."
        )

    if ended:
        sandboxes = count_of(len(ended), "ended sandbox still has", "ended sandboxes still have")
        yield Step(
            f"{sandboxes} an address. If this lasts, teardowns fail, and deleting pods makes it "
            f"worse: the runtime's log says why (see {stuck_teardown.NAME})."
        )

    if not candidates and not ended:
        yield Step(
            "No address is known to be leaked. Delete pods here that can run on other nodes, "
            "those that wait first."
        )


def runbook(detector: str, severity: Severity) -> str:
    """Return the URL of a runbook.

    Empty if there is none, or if the package does not say where its documents are.
    """
    section = DETECTOR[detector].ADVICE.runbook
    if (detector, severity) == (exhausted_range.NAME, Severity.CRITICAL):
        section = "Ranges.md#nodeleakrangeexhausted"
    if not section or not _repository():
        return ""
    return f"{_repository()}/blob/v{version('nodeleak')}/docs/runbooks/{section}"


@cache
def _repository() -> str:
    urls: list[str] = metadata("nodeleak").get_all("Project-URL") or []
    return dict(url.split(", ", 1) for url in urls).get("Repository", "").rstrip("/")

"""What to do about the findings of a detector; for addresses, what this node needs."""

from collections.abc import Iterator, Sequence
from functools import cache
from importlib.metadata import metadata, version
from inspect import cleandoc
from shlex import quote

from agent.checks.addresses import (
    exhausted_range,
    failing_plugin,
    leaked_reservation,
    leaked_share,
    stuck_teardown,
)
from agent.checks.detector import Step
from agent.checks.registry import DETECTOR
from agent.exporters.release_commands import BY_JOB, ON_NODE, Release
from agent.model.assessment import State
from agent.model.finding import WAITING_PODS, Finding, Severity
from agent.model.ranges import covers
from agent.model.report import NetworkSummary, Report
from agent.model.settings import MAX_SHARE
from agent.model.text import count_of


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

    severities = {finding.severity for finding in own}
    kinds = {kind for finding in own for kind in finding.kinds}
    general = DETECTOR[detector].ADVICE.steps
    return [*_of_findings(own), *(step for step in general if step.applies(severities, kinds))]


def _of_findings(findings: Sequence[Finding]) -> Iterator[Step]:
    """Yield the steps of the findings themselves, each once."""
    for remedy in dict.fromkeys(remedy for finding in findings for remedy in finding.steps):
        yield Step(remedy.text, (remedy.command,) if remedy.command else ())


def description(detector: str) -> str:
    return cleandoc(DETECTOR[detector].__doc__ or "").partition("\n")[0]


def _cordon(report: Report) -> Step:
    node = quote(report.assessment.snapshot.node_name)
    return Step(
        "No address is free, and pods that start now fail. Cordon the node:",
        (f"kubectl cordon {node}",),
    )


def _about_leaks(report: Report, leaks: Sequence[Finding], release: Release) -> Iterator[Step]:
    node = quote(report.assessment.snapshot.node_name)
    leaking = {leak.network for leak in leaks}
    networks = [network for network in report.networks if network.name in leaking]
    is_full = any(network.free == 0 for network in networks)
    if is_full:
        yield _cordon(report)
    if report.assessment.snapshot.unavailable_about_addresses():
        yield Step("Restore what is unavailable (below): nothing is released before.")
    if any(leak.port_mappings for leak in leaks):
        yield Step(
            "Delete the rules of the host ports that are named above, or the next pod gets their "
            "traffic."
        )
    if doubt := _doubt(report, networks):
        yield Step(
            f"So much looks leaked that the runtime's list may be incomplete: {doubt}. "
            "Check first that `crictl pods` or `docker ps -a` has none of these containers."
        )
        release = release.with_share()
    where = BY_JOB if release.by_job else ""
    waits = any(tracked.finding.detector == WAITING_PODS for tracked in report.findings)
    urgency = "" if is_full else _urgency(networks, waits=waits)
    commands = (release.preview, release.apply_on(report.assessment.snapshot.node_name))
    yield Step(f"{urgency}See what would be released, then release it{where}:", commands)

    ranges = {network.name: network.ranges or () for network in networks}
    outside = [
        leak.ip
        for leak in report.assessment.leaked
        if not covers(ranges.get(leak.network, ()), leak.ip)
    ]
    if outside:
        count = len(outside)
        yield Step(
            f"Release those in no known range ({count}) by name, as with `--ip {outside[0]}`."
        )
    if is_full:
        yield Step("When the waiting pods run, let new ones come:", (f"kubectl uncordon {node}",))
    yield leaked_reservation.prevention(leaks)
    yield Step("Never delete reservation files by hand: addresses in use have such files too.")


def _doubt(report: Report, networks: Sequence[NetworkSummary]) -> str | None:
    """Return why `nodeleak clean` suspects the reading by default."""
    for network in networks:
        share = leaked_share.share(report.assessment, network.name)
        doubt = leaked_share.doubt(report.assessment, network.name)
        if share > MAX_SHARE and doubt:
            return doubt
    return None


def _urgency(networks: Sequence[NetworkSummary], *, waits: bool) -> str:
    lowest: int | None = None
    is_scarce = False
    for network in networks:
        if network.free is None:
            return "The number of free addresses is unknown. "
        lowest = network.free if lowest is None else min(lowest, network.free)
        if network.free < exhausted_range.low_watermark(network.usable or 0):
            is_scarce = True
    if lowest is None:
        return "The number of free addresses is unknown. "
    free = count_of(lowest, "address is", "addresses are")
    if waits:
        return f"{free} free; see {WAITING_PODS} for why pods wait. "
    return f"{'' if is_scarce else 'Not urgent: '}{free} free. "


def _about_ranges(report: Report, findings: Sequence[Finding]) -> Iterator[Step]:
    full = {finding.network for finding in findings if finding.severity is Severity.CRITICAL}
    if full:
        yield _cordon(report)
        yield from _about_states(report, full)
    networks = sorted({finding.network for finding in findings})
    secondary = [name for name in networks if exhausted_range.is_secondary(report.assessment, name)]
    if len(secondary) < len(networks):
        yield Step("Lower the kubelet's --max-pods, or give the node a larger pod CIDR.")
    if secondary:
        names = ", ".join(secondary)
        yield Step(f"If more pods need an address of {names}, give it a larger range.")


def _about_states(report: Report, networks: set[str]) -> Iterator[Step]:
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
            "No address is known to be leaked. Delete pods here that can run on other nodes."
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

"""What to do about a finding: the `Do:` of its detector as steps, and for addresses what this node calls for."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import metadata, version
from inspect import cleandoc
from shlex import quote
from typing import Final

from agent.checks.addresses import (
    exhausted_range,
    failing_plugin,
    leaked_reservation,
    leaked_share,
    stuck_teardown,
)
from agent.checks.detector import Step
from agent.checks.registry import DETECTOR
from agent.model.assessment import ClassifiedReservation, State
from agent.model.finding import Severity
from agent.model.ranges import covers
from agent.model.release import MAX_SHARE
from agent.model.report import NetworkSummary, Report
from agent.model.text import count_of

ON_NODE: Final = ("nodeleak clean", "nodeleak clean --apply --cleanup-network=auto")
_IN_POD: Final = ("nodeleak clean", "nodeleak clean --apply")
_AS_JOB: Final = ("nodeleak clean", "kubectl nodeleak clean-job {node} --apply --run")
ANY_SHARE: Final = "--max-share=100%"
BY_JOB: Final = (
    " with a Job, from your machine (or deploy/clean-one-node.yaml; this pod only reads)"
)


def release_commands(environment: Mapping[str, str], options: str = "") -> tuple[str, ...]:
    """Return the commands that release addresses: on a node (with `options`), in a pod that may, or from outside."""
    if "KUBERNETES_SERVICE_HOST" not in environment:
        return tuple(f"{command}{options}" for command in ON_NODE)
    return _IN_POD if environment.get("NODELEAK_CLEANUP_NETWORK") else _AS_JOB


def advice(detector: str, report: Report, release: Sequence[str] = ON_NODE) -> list[Step]:
    """Return what to do, in order, with `release` commands. An exhausted range with leaks has the steps of these."""
    if detector not in {leaked_reservation.NAME, exhausted_range.NAME}:
        return _remedy(detector, report)
    found = {tracked.finding.detector for tracked in report.findings}
    node = quote(report.assessment.snapshot.node_name)
    mend = Step(
        f"Mend the CNI plugin that fails first (see {failing_plugin.NAME}), or addresses leak again."
    )
    first = [mend] if failing_plugin.NAME in found else []
    if detector == leaked_reservation.NAME:
        return [
            *first,
            *_about_leaks(report, node, [command.replace("{node}", node) for command in release]),
        ]
    return [] if leaked_reservation.NAME in found else [*first, *_about_pods(report, node)]


def description(detector: str) -> str:
    return cleandoc(DETECTOR[detector].__doc__ or "").partition("\n")[0]


def _remedy(detector: str, report: Report) -> list[Step]:
    severities = {
        tracked.finding.severity
        for tracked in report.findings
        if tracked.finding.detector == detector
    }
    return [
        step
        for step in DETECTOR[detector].REMEDY.steps
        if step.only_for is None or step.only_for in severities
    ]


def _about_leaks(report: Report, node: str, release: Sequence[str]) -> Iterator[Step]:
    networks = _leaking_networks(report)
    is_full = any(network.free == 0 for network in networks)
    if is_full:
        yield Step(
            "No address is free, and pods that start now fail. Cordon the node:",
            (f"kubectl cordon {node}",),
        )
    if report.assessment.snapshot.unavailable_about_addresses():
        yield Step("Restore what is unavailable (below): nothing is released before.")
    if any(tracked.finding.port_mappings for tracked in report.findings):
        yield Step(
            "Delete the rules of the host ports that are named above, or the next pod gets their traffic."
        )
    where = BY_JOB if "clean-job" in release[-1] else ""
    urgency = "" if is_full else _urgency(networks)
    if doubt := _doubt(report, networks):
        yield Step(
            f"So much looks leaked that the runtime's list may be incomplete: {doubt}. "
            "Check first that `crictl pods` or `docker ps -a` has none of these containers."
        )
        release = [with_share(command) for command in release]
    yield Step(f"{urgency}See what would be released, then release it{where}:", tuple(release))
    yield from _about_outside(report, networks)
    if is_full:
        yield Step("When the waiting pods run, let new ones come:", (f"kubectl uncordon {node}",))
    yield Step("Find out why it happened at the time shown, or addresses will leak again.")
    yield Step("Never delete reservation files by hand: addresses in use have such files too.")


def _doubt(report: Report, networks: Iterable[NetworkSummary]) -> str:
    """Return why `nodeleak clean` suspects the reading by default; empty if it does not."""
    for network in networks:
        share = leaked_share.share(report.assessment, network.name)
        doubt = leaked_share.doubt(report.assessment, network.name)
        if share > MAX_SHARE and doubt:
            return doubt
    return ""


def with_share(command: str) -> str:
    """Return a command that releases, or shows what it would release, however much looks leaked."""
    return f"{command} -- {ANY_SHARE}" if "clean-job" in command else f"{command} {ANY_SHARE}"


def _about_outside(report: Report, networks: Sequence[NetworkSummary]) -> Iterator[Step]:
    ranges = {network.name: network.ranges or () for network in networks}
    if outside := [
        leak.ip
        for leak in report.assessment.leaked
        if not covers(ranges.get(leak.network, ()), leak.ip)
    ]:
        yield Step(
            f"Release those in no known range ({len(outside)}) by name, as with `--ip {outside[0]}`."
        )


def _urgency(networks: Sequence[NetworkSummary]) -> str:
    free = [network.free for network in networks if network.free is not None]
    if len(free) < len(networks) or not free:
        return "The number of free addresses is unknown. "
    is_scarce = any(
        (network.free or 0) < exhausted_range.low_watermark(network.usable or 0)
        for network in networks
    )
    return f"{'' if is_scarce else 'Not urgent: '}{count_of(min(free), 'address is', 'addresses are')} free. "


def _about_pods(report: Report, node: str) -> Iterator[Step]:
    found = [
        tracked.finding
        for tracked in report.findings
        if tracked.finding.detector == exhausted_range.NAME
    ]
    if full := {finding.network for finding in found if finding.severity is Severity.CRITICAL}:
        yield Step(
            "No address is free, and pods that start now fail. Cordon the node:",
            (f"kubectl cordon {node}",),
        )
        yield from _about_states(
            [entry for entry in report.assessment.reservations if entry.network in full]
        )
    networks = sorted({finding.network for finding in found})
    secondary = [name for name in networks if exhausted_range.is_secondary(report.assessment, name)]
    if len(secondary) < len(networks):
        yield Step("Lower the kubelet's --max-pods, or give the node a larger pod CIDR.")
    if secondary:
        yield Step(
            f"If more pods need an address of {', '.join(secondary)}, give it a larger range."
        )


def _about_states(entries: Sequence[ClassifiedReservation]) -> Iterator[Step]:
    candidates = sum(entry.state is State.CANDIDATE for entry in entries)
    ended = {
        entry.container_id
        for entry in entries
        if entry.state in {State.NOT_READY, State.TEARDOWN_PENDING}
    }
    if candidates:
        may_be = count_of(candidates, "address", "addresses")
        yield Step(
            f"{may_be} may be leaked: this is known after the grace period (--grace). Then scan again."
        )
    if ended:
        still = count_of(len(ended), "ended sandbox still has", "ended sandboxes still have")
        why = "If this lasts, teardowns fail, and deleting pods makes it worse: the runtime's log says why"
        yield Step(f"{still} an address. {why} (see {stuck_teardown.NAME}).")
    if not candidates and not ended:
        yield Step(
            "No address is known to be leaked. Delete pods here that can run on other nodes."
        )


def _leaking_networks(report: Report) -> list[NetworkSummary]:
    findings = (tracked.finding for tracked in report.findings)
    leaking = {
        finding.network for finding in findings if finding.detector == leaked_reservation.NAME
    }
    return [network for network in report.networks if network.name in leaking]


def runbook(detector: str, severity: Severity) -> str:
    """Return the URL of a runbook; empty if there is none, or if the package does not say where its documents are."""
    section = DETECTOR[detector].REMEDY.runbook
    if (detector, severity) == (exhausted_range.NAME, Severity.CRITICAL):
        section = "Ranges.md#nodeleakrangeexhausted"
    if not section or not _repository():
        return ""
    return f"{_repository()}/blob/v{version('nodeleak')}/docs/runbooks/{section}"


@cache
def _repository() -> str:
    urls: list[str] = metadata("nodeleak").get_all("Project-URL") or []
    return dict(url.split(", ", 1) for url in urls).get("Repository", "").rstrip("/")

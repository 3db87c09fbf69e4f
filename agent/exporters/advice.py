"""What to do about a finding: the `Do:` of its detector, and for leaks what the node's free addresses call for."""

from functools import cache
from importlib.metadata import metadata, version
from inspect import cleandoc
from typing import Final

from agent.checks.addresses import exhausted_range, failing_plugin, leaked_reservation
from agent.checks.registry import DETECTORS
from agent.exporters.wording import WORDING
from agent.model.finding import Severity
from agent.model.report import NetworkSummary, Report
from agent.model.text import count_of

_SCARCE: Final = 10
"""Less than this part of a range free is urgent: the alert NodeleakRangeNearlyExhausted has the same limit."""
_RELEASE: Final = (
    "release the leaked addresses: `nodeleak clean --dry-run`, then `nodeleak clean --apply --cleanup-network=auto` "
    "(in a pod: with the Job of `kubectl nodeleak clean-job`, or the overlay cleanup-exec); never delete "
    "reservation files by hand"
)


def advice(detector: str, report: Report) -> str:
    detectors = {tracked.finding.detector for tracked in report.findings}
    text = _leak_advice(report) if detector == leaked_reservation.NAME else _documented(detector)
    if failing_plugin.NAME in detectors and detector in {leaked_reservation.NAME, exhausted_range.NAME}:
        return f"mend the CNI plugin that fails first (see {failing_plugin.NAME}); then: {text}"
    return text


def description(detector: str) -> str:
    """Return the first line of a detector's page."""
    return _page(detector).partition("\n")[0]


def _documented(detector: str) -> str:
    """Return what follows `Do:` on a detector's page."""
    return " ".join(_page(detector).partition("\nDo: ")[2].split())


def _page(detector: str) -> str:
    (module,) = (module for module in DETECTORS if detector == module.NAME)
    return cleandoc(module.__doc__ or "")


def _leak_advice(report: Report) -> str:
    """Say how urgent the leaks are, by the fullest network that has some."""
    networks = _leaking_networks(report)
    free = [network.free for network in networks if network.free is not None]
    if 0 in free:
        return f"no address is free: pods that start now fail; cordon the node; {_RELEASE}"
    if not free or len(free) < len(networks):
        return f"the number of free addresses is unknown; {_RELEASE}"
    urgency = "" if any(map(_is_scarce, networks)) else "not urgent: "
    return (
        f"{urgency}{count_of(min(free), 'free address', 'free addresses')} left; {_RELEASE}; afterwards find out what "
        "restarted or removed containers at the time shown, or addresses will leak again"
    )


def _leaking_networks(report: Report) -> list[NetworkSummary]:
    findings = (tracked.finding for tracked in report.findings)
    leaking = {finding.network for finding in findings if finding.detector == leaked_reservation.NAME}
    return [network for network in report.networks if network.name in leaking]


def _is_scarce(network: NetworkSummary) -> bool:
    return (network.free or 0) * _SCARCE < (network.usable or 0)


def runbook(detector: str, severity: Severity) -> str:
    """Return the URL of a runbook; empty if there is none, or if the package does not say where its documents are."""
    critical = (detector, severity) == (exhausted_range.NAME, Severity.CRITICAL)
    section = "Ranges.md#nodeleakrangeexhausted" if critical else WORDING[detector].runbook
    return f"{_repository()}/blob/v{version('nodeleak')}/docs/runbooks/{section}" if section and _repository() else ""


@cache
def _repository() -> str:
    urls: list[str] = metadata("nodeleak").get_all("Project-URL") or []
    return dict(url.split(", ", 1) for url in urls).get("Repository", "").rstrip("/")

"""What to do about a finding: the `Do:` of its detector, and for leaks what the node's free addresses call for."""

from inspect import cleandoc
from typing import Final

from agent.checks.addresses import leaked_reservation
from agent.checks.registry import DETECTORS
from agent.model.report import NetworkSummary, Report
from agent.model.text import count_of

_SCARCE: Final = 10
"""Less than this part of a range free is urgent: the alert NodeleakRangeNearlyExhausted has the same limit."""
_RELEASE: Final = "`nodeleak clean --dry-run`, then `nodeleak clean --apply`"


def advice(detector: str, report: Report) -> str:
    return leak_advice(report) if detector == leaked_reservation.NAME else documented_advice(detector)


def documented_advice(detector: str) -> str:
    """Return what follows `Do:` on a detector's page."""
    (page,) = (one.__doc__ or "" for one in DETECTORS if detector == one.NAME)
    return " ".join(cleandoc(page).partition("\nDo: ")[2].split())


def leak_advice(report: Report) -> str:
    """Say how urgent the leaks are, by the fullest network that has some."""
    leaking = {one.finding.network for one in report.findings if one.finding.detector == leaked_reservation.NAME}
    networks = [network for network in report.networks if network.name in leaking]
    free = [network.free for network in networks]
    if 0 in free:
        return f"no address is free: pods that start now fail; release the leaked addresses: {_RELEASE}"
    if not free or None in free:
        return f"the number of free addresses is unknown; release the leaked addresses: {_RELEASE}"
    left = min(one for one in free if one is not None)
    urgency = "" if any(map(_scarce, networks)) else "not urgent: "
    return (
        f"{urgency}{count_of(left, 'free address', 'free addresses')} left; find what restarted or removed containers "
        f"at the time shown, then release the leaked addresses: {_RELEASE}; do not delete reservation files by hand"
    )


def _scarce(network: NetworkSummary) -> bool:
    return (network.free or 0) * _SCARCE < (network.usable or 0)

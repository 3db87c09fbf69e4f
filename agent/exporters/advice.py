"""What to do about a finding: the `Do:` of its detector, and for leaks what the node's free addresses call for."""

from inspect import cleandoc
from typing import Final

from agent.checks.addresses import exhausted_range, failing_plugin, leaked_reservation
from agent.checks.devices import rejected_pod, started_without_device
from agent.checks.registration import unregistered_node
from agent.checks.registry import DETECTORS
from agent.checks.volumes import detached_volume
from agent.model.report import NetworkSummary, Report
from agent.model.text import count_of

_SCARCE: Final = 10
"""Less than this part of a range free is urgent: the alert NodeleakRangeNearlyExhausted has the same limit."""
_RELEASE: Final = (
    "release the leaked addresses: `nodeleak clean --dry-run`, then `nodeleak clean --apply --cleanup-network=auto` "
    "(in a pod: with the Job of `kubectl nodeleak clean-job`, or the overlay cleanup-exec); never delete "
    "reservation files by hand"
)
_SAY_IT_THEMSELVES: Final = (
    rejected_pod.NAME,
    started_without_device.NAME,
    unregistered_node.NAME,
    detached_volume.NAME,
)
"""Detectors whose messages end with what to do."""


def advice(detector: str, report: Report) -> str:
    text = leak_advice(report) if detector == leaked_reservation.NAME else documented_advice(detector)
    failing = any(tracked.finding.detector == failing_plugin.NAME for tracked in report.findings)
    if failing and detector in {leaked_reservation.NAME, exhausted_range.NAME}:
        return f"mend the CNI plugin that fails first (see {failing_plugin.NAME}); then: {text}"
    return text


def advice_below(detector: str, report: Report) -> str:
    """Return what to write below the messages of a detector; empty if they say what to do."""
    return "" if detector in _SAY_IT_THEMSELVES else advice(detector, report)


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
        return f"no address is free: pods that start now fail; cordon the node; {_RELEASE}"
    if not free or None in free:
        return f"the number of free addresses is unknown; {_RELEASE}"
    left = min(one for one in free if one is not None)
    urgency = "" if any(map(_scarce, networks)) else "not urgent: "
    return (
        f"{urgency}{count_of(left, 'free address', 'free addresses')} left; {_RELEASE}; afterwards find out what "
        "restarted or removed containers at the time shown, or addresses will leak again"
    )


def _scarce(network: NetworkSummary) -> bool:
    return (network.free or 0) * _SCARCE < (network.usable or 0)

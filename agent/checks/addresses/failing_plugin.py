"""A CNI plugin fails, and each retry of a pod takes an address that nothing releases.

host-local reserves the address first. If a later plugin of the chain fails in ADD, the runtime
calls DEL for the plugins in reverse order: the same plugin fails again, and host-local is never
asked. The runtime keeps no record, and the kubelet tries again in some seconds.

Means: a pod of this node waits for its sandbox, and at least five addresses of a network were
reserved in the last ten minutes (of a full range: the ten minutes before the last reservation,
because no retry finds an address since then), after the runtime's last start, for sandboxes of
which there is neither a record nor a result in libcni's cache.
Severity critical: at this rate no address is left within the hour.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from agent.checks.detector import Advice, Noun, Step
from agent.checks.kubelet_service import LOG_FILES
from agent.checks.waiting_pods import waiting_pods
from agent.model.assessment import Assessment, State, or_none
from agent.model.finding import Finding, Severity
from agent.model.snapshot import FAILED_SANDBOX, SandboxFailure, Snapshot, known_or
from agent.model.text import count_of, format_time

NAME = "failing_plugin"
SEVERITIES: Final = (Severity.WARNING, Severity.CRITICAL)
NOUN: Final = Noun("CNI plugin that fails", "CNI plugins that fail")
ADVICE: Final = Advice(
    steps=(
        Step("Repair the plugin first: what is released before is taken again."),
        Step(
            "The message names it, if the account may list Events, and so does the runtime's log "
            f"(k3s and RKE2: `{LOG_FILES}`):",
            commands=(
                (
                    "journalctl -u containerd -u crio -u 'k3s*' -u 'rke2*' | "
                    "grep -E 'failed .(add|delete)|failed to find plugin'"
                ),
            ),
        ),
        Step("Often its binary is missing in /opt/cni/bin, or iptables is not installed."),
        Step("Then release the leaked addresses with:", commands=("nodeleak clean",)),
        Step(
            "`--cleanup=auto` waits until no such address was reserved for ten minutes; while the "
            "range is full it waits for you."
        ),
    ),
    runbook="FailingPlugin.md#nodeleakfailingplugin",
)

WINDOW: Final = timedelta(minutes=10)
MIN_LOST: Final = 5
"""Addresses in the window. One pod that is retried takes about five a minute."""
_MINUTE: Final = timedelta(minutes=1)
_SOON: Final = timedelta(hours=1)
_OPERATIONS: Final = {"add": "ADD", "delete": "DEL", "": "ADD"}


@dataclass(frozen=True, slots=True)
class RetryLeak:
    """A network that loses an address with each retry of a failing ADD."""

    count: int
    per_minute: float
    since: datetime

    def __str__(self) -> str:
        rate = f"{self.per_minute:.0f}" if self.per_minute >= 1 else f"{self.per_minute:.1f}"
        addresses = count_of(self.count, "address", "addresses")
        return f"{addresses} leaked since {format_time(self.since)}, {rate} a minute"


def find(assessment: Assessment) -> Iterator[Finding]:
    for network, leak in retry_leaks(assessment).items():
        problem = "a CNI plugin fails in ADD and DEL"
        if failure := _failure(assessment.snapshot, network):
            operation = _OPERATIONS[failure.operation]
            problem = f"plugin {failure.plugin} fails in {operation}: {failure.message}"

        free = or_none(assessment.free, network)
        ends_soon = free is not None and free <= leak.per_minute * (_SOON / _MINUTE)
        yield Finding(
            NAME,
            network,
            f"{network}: {problem}; {leak}: repair the plugin first, then release",
            severity=Severity.CRITICAL if ends_soon else Severity.WARNING,
            network=network,
            since=leak.since,
            identity=("treadmill",),
        )

    assessment.snapshot.processes.known()
    assessment.snapshot.containers.known()
    assessment.require_reservations()


def retry_leaks(assessment: Assessment) -> Mapping[str, RetryLeak]:
    """Return the networks in which addresses are being lost; raises InsufficientData."""
    started = _last_start(assessment)
    # A burst of starting pods, or of pods that the runtime has lost, may look the same.
    if not waiting_pods(assessment.snapshot) or started is None:
        return {}
    if assessment.runtime.without_record_order:
        return {}

    leaks = {}
    for store in assessment.snapshot.reservations:
        if leak := _retry_leak(assessment, store.network, started):
            leaks[store.network] = leak
    return leaks


def _retry_leak(assessment: Assessment, network: str, started: datetime) -> RetryLeak | None:
    """Return what a network loses; None: too few addresses to say so."""
    end = _last_try(assessment, network)
    lost = [
        reservation
        for reservation, entry in assessment.classified.items()
        if reservation.network == network
        and reservation.container_id
        and entry.state in {State.CANDIDATE, State.LEAKED}
        and timedelta(0) <= end - reservation.mtime <= WINDOW
    ]
    if len(lost) < MIN_LOST:
        return None

    assessment.snapshot.cni_results.known()
    completed = assessment.index.cached_networks
    failed = [
        reservation.mtime
        for reservation in lost
        if reservation.container_id not in completed and reservation.mtime > started
    ]
    if len(failed) < MIN_LOST:
        return None

    since = min(failed)
    minutes = max(end - since, _MINUTE) / _MINUTE
    return RetryLeak(len(failed), len(failed) / minutes, since)


def _last_try(assessment: Assessment, network: str) -> datetime:
    """Return until when a retry may have taken an address.

    That is now, or when the last address of the range was taken.
    """
    now = assessment.snapshot.taken_at
    free = or_none(assessment.free, network)
    times = [entry.mtime for entry in assessment.classified if entry.network == network]
    if free is None or free > 0 or not times:
        return now
    return min(now, max(times))


def _last_start(assessment: Assessment) -> datetime | None:
    """Return when the last of the runtimes started; None: that is not known of all."""
    processes = known_or(assessment.snapshot.processes, None)
    if processes is None:
        return None

    starts: list[datetime] = []
    for name in assessment.runtime.names:
        start = processes.start_of(name)
        if start is None:
            return None
        starts.append(start)
    return max(starts, default=None)


def _failure(snapshot: Snapshot, network: str) -> SandboxFailure | None:
    """Return what a waiting pod says about the network, or about one that it does not name.

    Once the range is full, waiting_pods tells that, and the failure of before is the cause.
    """
    failures = [
        failure
        for failure in known_or(snapshot.sandbox_failures, ())
        if failure.reason == FAILED_SANDBOX
        and failure.network in {network, ""}
        and failure.plugin
        and not failure.exhausted
    ]
    return max(failures, key=lambda failure: failure.network, default=None)

"""A CNI plugin fails, and each retry of a pod takes another address that nothing releases; or it hangs.

host-local reserves the address first. If a later plugin of the chain fails in ADD, the runtime calls DEL for the
plugins in reverse order: the same plugin fails again, and host-local is never asked. The runtime keeps no record, and
the kubelet tries again in some seconds.

Means: a pod of this node waits for its sandbox, and at least five addresses of a network were reserved in the last ten
minutes (of a full range: the ten minutes before the last reservation, because no retry finds an address since then),
after the runtime's last start, for sandboxes of which there is neither a record nor a result in libcni's cache.
Severity critical: at this rate no address is left within the hour.
Or a plugin has been running for a minute or more: its pod waits for it, and other pods may wait for a lock that it has.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from agent.checks.detector import Noun, Remedy, Step
from agent.checks.waiting_pods import waiting_pods
from agent.model.assessment import Assessment, State, or_none
from agent.model.finding import Finding, Severity
from agent.model.snapshot import Reservation, SandboxFailure, Snapshot, known_or
from agent.model.text import count_of, format_time

NAME = "failing_plugin"
SEVERITIES: Final = (Severity.WARNING, Severity.CRITICAL)
NOUN: Final = Noun("CNI plugin that fails or hangs", "CNI plugins that fail or hang")
REMEDY: Final = Remedy(
    steps=(
        Step("Mend the plugin first: what is released before is taken again."),
        Step(
            "The pods' Events name it (`kubectl describe pod`, or apply "
            "deploy/overlays/volume-attachments, so that nodeleak may list events), and so does "
            "the runtime's log:",
            commands=(
                (
                    "journalctl -u containerd -u crio -u k3s -u rke2-agent | "
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
        Step(
            "Of a plugin that hangs: see what it waits for (`cat /proc/PID/stack`), and its log. "
            "host-local waits for whoever holds `/var/lib/cni/networks/NETWORK/lock`: `fuser -v` "
            "on that file and on its directory, or `/proc/locks`, names the process."
        ),
    ),
    runbook="FailingPlugin.md#nodeleakfailingplugin",
)

WINDOW: Final = timedelta(minutes=10)
FEWEST: Final = 5  # Addresses in the window. One pod that retries takes about five a minute
_SOON: Final = timedelta(hours=1)
_MINUTE: Final = timedelta(minutes=1)
LONGEST_RUN: Final = timedelta(minutes=1)  # no plugin that works well takes longer
_OPERATIONS: Final = {"add": "ADD", "delete": "DEL", "": "ADD"}


@dataclass(frozen=True, slots=True)
class Treadmill:
    """A network in which failing ADDs take addresses."""

    count: int
    per_minute: float
    since: datetime

    def __str__(self) -> str:
        rate = f"{self.per_minute:.0f}" if self.per_minute >= 1 else f"{self.per_minute:.1f}"
        return f"{count_of(self.count, 'address', 'addresses')} leaked since {format_time(self.since)}, {rate} a minute"


def find(assessment: Assessment) -> Iterator[Finding]:
    yield from _hanging(assessment.snapshot)
    for network, treadmill in treadmills(assessment).items():
        what = "a CNI plugin fails in ADD and DEL"
        if failure := _failure(assessment.snapshot, network):
            what = f"plugin {failure.plugin} fails in {_OPERATIONS[failure.operation]}: {failure.message}"
        left = or_none(assessment.free, network)
        ends_soon = left is not None and left <= treadmill.per_minute * (_SOON / _MINUTE)
        severity = Severity.CRITICAL if ends_soon else Severity.WARNING
        message = f"{network}: {what}; {treadmill}: mend the plugin first, then release"
        yield Finding(
            NAME,
            network,
            message,
            severity,
            network,
            since=treadmill.since,
            identity=("treadmill",),
        )
    assessment.snapshot.containers.known()
    assessment.require_reservations()


def _hanging(snapshot: Snapshot) -> Iterator[Finding]:
    processes = snapshot.processes.known()
    for plugin in processes.plugins:
        age = snapshot.taken_at - plugin.started
        if age >= LONGEST_RUN:
            who = f"CNI plugin {plugin.command} (process {plugin.pid})"
            message = (
                f"{who} has been running for {age.total_seconds():.0f} s: new pods may wait for it"
            )
            after_boot = int(
                (plugin.started - processes.booted).total_seconds()
            )  # stays when the clock is set
            yield Finding(
                NAME, f"process {plugin.pid}", message, since=plugin.started, identity=(after_boot,)
            )


def treadmills(assessment: Assessment) -> Mapping[str, Treadmill]:
    """Return the networks in which addresses are being lost; raises InsufficientData where that cannot be told."""
    snapshot = assessment.snapshot
    started = _last_start(assessment)
    if not waiting_pods(snapshot) or started is None or assessment.runtime.without_record_order:
        return {}  # a burst of starting pods, or of pods that the runtime has lost, may look the same
    found = {
        store.network: _treadmill(assessment, store.network, started)
        for store in snapshot.reservations
    }
    return {network: treadmill for network, treadmill in found.items() if treadmill}


def _treadmill(assessment: Assessment, network: str, started: datetime) -> Treadmill | None:
    end = _end(assessment, network)
    lost = [
        leak
        for leak in _without_owner(assessment, network)
        if timedelta(0) <= end - leak.mtime <= WINDOW
    ]
    if len(lost) < FEWEST:
        return None
    assessment.snapshot.cni_results.known()
    completed = assessment.index.cached_networks
    failed = [
        leak.mtime for leak in lost if leak.container_id not in completed and leak.mtime > started
    ]
    if len(failed) < FEWEST:
        return None
    since = min(failed)
    return Treadmill(len(failed), len(failed) / (max(end - since, _MINUTE) / _MINUTE), since)


def _without_owner(assessment: Assessment, network: str) -> Iterator[Reservation]:
    for entry, classified in assessment.classified.items():
        if (
            entry.network == network
            and entry.container_id
            and classified.state in {State.CANDIDATE, State.LEAKED}
        ):
            yield entry


def _end(assessment: Assessment, network: str) -> datetime:
    """Return until when a retry may have taken an address: now, or when the last address of the range was taken."""
    now = assessment.snapshot.taken_at
    left = or_none(assessment.free, network)
    if left is None or left > 0:
        return now
    return min(
        now,
        max(
            (entry.mtime for entry in assessment.classified if entry.network == network),
            default=now,
        ),
    )


def _last_start(assessment: Assessment) -> datetime | None:
    """Return when the last of the runtimes started; None: that is not known of all."""
    processes = known_or(assessment.snapshot.processes, None)
    starts = [processes.start_of(name) for name in assessment.runtime.names] if processes else []
    known = [start for start in starts if start is not None]
    return max(known) if known and len(known) == len(starts) else None


def _failure(snapshot: Snapshot, network: str) -> SandboxFailure | None:
    """Return what a waiting pod says about the network, or about a network that it does not name."""
    of_network = (
        failure
        for failure in known_or(snapshot.sandbox_failures, ())
        if failure.network in {network, ""}
    )
    failures = (failure for failure in of_network if failure.plugin and not failure.exhausted)
    return max(failures, key=lambda failure: failure.network, default=None)

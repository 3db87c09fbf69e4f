"""A CNI plugin fails, and each retry of a pod takes another address that nothing releases.

host-local reserves the address first. If a later plugin of the chain fails in ADD, the runtime calls DEL for the
plugins in reverse order: the same plugin fails again, and host-local is never asked. The runtime keeps no record, and
the kubelet tries again in some seconds.

Means: a pod of this node waits for its sandbox, and at least five addresses of a network were reserved in the last ten
minutes (of a full range: the ten minutes before the last reservation, because no retry finds an address since then),
after the runtime's last start, for sandboxes of which there is neither a record nor a result in libcni's cache.
Severity critical: at this rate no address is left within the hour.
Do: mend the plugin first: what is released before is taken again. The pods' Events name it (`kubectl describe pod`, or
apply deploy/overlays/volume-attachments, so that nodeleak may list events), and so does the runtime's log:
`journalctl -u containerd -u crio -u k3s -u rke2-agent | grep -E 'failed .(add|delete)|failed to find plugin'`.
Often its binary is missing in /opt/cni/bin, or iptables is not installed. Then release the leaked addresses with
`nodeleak clean`. `--cleanup=auto` waits until no such address was reserved for ten minutes; while the range is full it
waits for you.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from agent.checks import runtime as runtimes
from agent.checks.addresses.classify import made_at
from agent.model.assessment import Assessment, State
from agent.model.finding import Finding, Severity
from agent.model.ranges import free
from agent.model.sandbox_failures import SandboxFailure
from agent.model.snapshot import InsufficientData, Pod, Reservation, Snapshot, known_or
from agent.model.text import count_of, format_time

NAME = "failing_plugin"
SEVERITIES: Final = (Severity.WARNING, Severity.CRITICAL)

WINDOW: Final = timedelta(minutes=10)
FEWEST: Final = 5
"""Addresses in the window. One pod that retries takes about five a minute."""
_SOON: Final = timedelta(hours=1)
_MINUTE: Final = timedelta(minutes=1)
_WAITS: Final = timedelta(minutes=1)
"""A pod that waits less may only be starting."""


@dataclass(frozen=True, slots=True)
class Treadmill:
    """A network in which failing ADDs take addresses."""

    count: int
    """In the window."""
    per_minute: float
    since: datetime

    def __str__(self) -> str:
        rate = f"{self.per_minute:.0f}" if self.per_minute >= 1 else f"{self.per_minute:.1f}"
        return f"{count_of(self.count, 'address', 'addresses')} leaked since {format_time(self.since)}, {rate} a minute"


def find(assessment: Assessment) -> Iterator[Finding]:
    for network, treadmill in treadmills(assessment).items():
        failure = _failure(assessment.snapshot, network)
        told = (
            f"plugin {failure.plugin} fails in {_OPERATIONS[failure.operation]}: {failure.message}"
            if failure
            else "a CNI plugin fails in ADD and DEL"
        )
        yield Finding(
            NAME,
            network,
            f"{network}: {told}; {treadmill}: mend the plugin first, then release",
            Severity.CRITICAL if _ends_soon(assessment, network, treadmill) else Severity.WARNING,
            network,
            since=treadmill.since,
            identity=("treadmill",),
        )
    assessment.snapshot.containers.known()
    for network in assessment.networks:
        assessment.of(network)


_OPERATIONS: Final = {"add": "ADD", "delete": "DEL", "": "ADD"}


def treadmills(assessment: Assessment) -> Mapping[str, Treadmill]:
    """Return the networks in which addresses are being lost; raises InsufficientData where that cannot be told."""
    snapshot = assessment.snapshot
    ends = {store.network: _end(assessment, store.network) for store in snapshot.reservations}
    recent = _recent(assessment, ends)
    started = _last_start(snapshot)
    if not (recent and waiting_pods(snapshot)) or started is None or runtimes.unordered(snapshot):
        return {}  # a burst of starting pods, or of pods that the runtime has lost, may look the same
    completed = {result.container_id for result in snapshot.cni_results.known()}
    completed |= {result.container_id for result in snapshot.damaged_results}
    failed = {network: _failed(entries, completed, started) for network, entries in recent.items()}
    return {network: _treadmill(times, ends[network]) for network, times in failed.items() if len(times) >= FEWEST}


def _end(assessment: Assessment, network: str) -> datetime:
    """Return until when a retry may have taken an address: now, or when the last one of the range was taken."""
    now = assessment.snapshot.taken_at
    if _left(assessment, network) != 0:
        return now
    blocking = (one.entry for one in assessment.of(network) if one.blocks)
    return min(now, max((made_at(entry) for entry in blocking if isinstance(entry, Reservation)), default=now))


def _failed(entries: Iterable[Reservation], completed: Container[str], started: datetime) -> list[datetime]:
    times = (made_at(entry) for entry in entries if entry.container_id not in completed)
    return [at for at in times if at > started]


def _treadmill(times: Sequence[datetime], end: datetime) -> Treadmill:
    since = min(times)
    return Treadmill(len(times), len(times) / (max(end - since, _MINUTE) / _MINUTE), since)


def waiting_pods(snapshot: Snapshot) -> list[Pod]:
    """Return the pods that were scheduled a minute ago or more and have no address, those first that wait longest."""
    waiting = [
        (pod.scheduled, pod)
        for pod in known_or(snapshot.pods, ())
        if pod.live and pod.scheduled and not (pod.ips or pod.host_network or pod.deleting)
    ]
    now = snapshot.taken_at + (snapshot.api_skew or timedelta(0))
    due = [(scheduled, pod) for scheduled, pod in waiting if now - scheduled >= _WAITS]
    return [pod for _, pod in sorted(due, key=lambda pair: (pair[0], pair[1].uid))]


def _recent(assessment: Assessment, ends: Mapping[str, datetime]) -> Mapping[str, list[Reservation]]:
    recent = defaultdict[str, list[Reservation]](list)
    for classified in assessment.reservations:
        entry = classified.entry
        if classified.state not in {State.CANDIDATE, State.LEAKED} or not isinstance(entry, Reservation):
            continue
        if entry.container_id and timedelta(0) <= ends[entry.network] - made_at(entry) <= WINDOW:
            recent[entry.network].append(entry)
    return {network: entries for network, entries in recent.items() if len(entries) >= FEWEST}


def _last_start(snapshot: Snapshot) -> datetime | None:
    """Return when the last of the runtimes started; None: that is not known of all."""
    processes = known_or(snapshot.processes, None)
    starts = [processes.start_of(name) for name in runtimes.names(snapshot)] if processes else []
    known = [start for start in starts if start is not None]
    return max(known) if known and len(known) == len(starts) else None


def _failure(snapshot: Snapshot, network: str) -> SandboxFailure | None:
    """Return what a waiting pod says about the network, or about one that it does not name."""
    failures = [
        failure
        for failure in known_or(snapshot.sandbox_failures, ())
        if failure.plugin and not failure.exhausted and failure.network in {network, ""}
    ]
    return max(failures, key=lambda failure: failure.network, default=None)


def _ends_soon(assessment: Assessment, network: str, treadmill: Treadmill) -> bool:
    left = _left(assessment, network)
    return left is not None and left <= treadmill.per_minute * (_SOON / _MINUTE)


def _left(assessment: Assessment, network: str) -> int | None:
    """Return for how many sandboxes there are free addresses; None: that is not known."""
    try:
        taken = (entry.name for entry in assessment.of(network) if entry.blocks)
        return max(0, free(assessment.ranges(network), taken))
    except InsufficientData:
        return None

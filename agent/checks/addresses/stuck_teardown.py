"""The kubelet does not complete the teardown of a sandbox, and its address stays reserved.

The kubelet retries a teardown until it succeeds. It fails every time if the network plugin fails: a
CNI configuration or plugin binary was removed, or kubenet has no pod CIDR. After a power cut,
libcni's cached result of a sandbox may be empty: containerd before 2.0 then cannot stop the
sandbox. With cri-dockerd, kubelets from 1.36 do not see a sandbox whose container was removed
(`docker rm -f`), and never tear it down.

Means: with docker, the reservation has had a checkpoint and no container for 15 minutes (severity
info) or an hour (warning). One scan knows it if a kubelet from 1.36 has run so long with it, or if
its pod has had a newer sandbox for so long. Or the runtime has had its sandbox for an hour (info)
or a day (warning), and it does not run: it has ended, its creation or removal hangs, or the runtime
has only its record. A container in another namespace of containerd, that of docker or nerdctl, may
run: it stays info.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from agent.checks.detector import Advice, Noun, Step
from agent.model.assessment import Assessment, ClassifiedReservation, State
from agent.model.clocks import Moment
from agent.model.finding import Finding, Severity
from agent.model.snapshot import ENDED, SANDBOX_OF_ANOTHER_CLIENT, Reservation, Snapshot, known_or
from agent.model.text import format_time
from agent.model.versions import version_numbers

NAME = "stuck_teardown"
SEVERITIES: Final = (Severity.INFO, Severity.WARNING)
NOUN: Final = Noun(
    "address of a sandbox whose teardown does not complete",
    "addresses of sandboxes whose teardown does not complete",
)
ADVICE: Final = Advice(
    steps=(
        Step(
            "Find the sandbox's ID in the kubelet's log (`journalctl -u kubelet | grep ID`), and "
            "repair what its teardown fails on."
        ),
        Step("If libcni's cached result is damaged, remove that file."),
        Step("The kubelet then releases the address itself."),
        Step("Never remove the sandbox with `ctr`: its address would leak."),
        Step(
            "One that the runtime has recorded but does not list is unknown to the kubelet: "
            "restart the runtime, which loads its records again."
        ),
        Step("If its creation or removal hangs, the runtime's log has the ID and the cause."),
        Step("If docker or nerdctl has the container, look there whether it is needed."),
        Step(
            "With cri-dockerd and Kubernetes 1.36 or newer, check that no process has the address, "
            "move the checkpoint `/var/lib/cri-dockerd/sandbox/ID` to another directory, then "
            "release it:",
            commands=("nodeleak clean",),
        ),
    ),
    runbook="StuckTeardown.md#nodeleakstuckteardown",
)

_HOUR: Final = timedelta(hours=1)
_LIMITS: Final = {State.TEARDOWN_PENDING: (_HOUR / 4, _HOUR), State.NOT_READY: (_HOUR, 24 * _HOUR)}
"""When a teardown is late, and when it is stuck. It takes up to 4 minutes; it is tried each minute.

A sandbox that does not run is torn down by a kubelet that is up: an hour leaves time to restart it,
and is far longer than the creation of one takes.
"""


def find(assessment: Assessment) -> Iterator[Finding]:
    assessment.require_reservations()
    assessment.snapshot.containers.known()
    if assessment.runtime.keeps_checkpoints:
        assessment.snapshot.checkpoints.known()
    for reservation, entry in assessment.classified.items():
        since = assessment.memory.get(reservation).pending_since
        if since is not None and entry.state in _LIMITS:
            yield from _late(entry, reservation, since, assessment)


def _late(
    entry: ClassifiedReservation, reservation: Reservation, since: Moment, assessment: Assessment
) -> Iterator[Finding]:
    snapshot = assessment.snapshot
    late, stuck = _LIMITS[entry.state]
    container = assessment.index.containers.get(reservation.container_id)
    forgotten = entry.state is State.TEARDOWN_PENDING and _forgets_checkpoints(snapshot)
    lasted = snapshot.uptime - since.uptime
    processes = known_or(snapshot.processes, None)
    if forgotten and processes and processes.kubelet:
        # For so long the kubelet has run with the reservation.
        lasted = max(lasted, snapshot.taken_at - max(processes.kubelet, reservation.mtime))
    if lasted < late:
        return

    foreign = container is not None and container.state == SANDBOX_OF_ANOTHER_CLIENT
    severity = Severity.WARNING if lasted >= stuck and not foreign else Severity.INFO
    time = format_time(since.wall)
    if forgotten:
        owner = (
            f"container {entry.container}, which no longer exists; kubelets from 1.36 never tear "
            "it down: check that no process has the address, move the checkpoint "
            f"/var/lib/cri-dockerd/sandbox/{entry.container_id} to another directory, then run "
            "nodeleak clean"
        )
    elif entry.state is State.NOT_READY:
        owner = _not_running(entry, container.state if container else "", time)
    else:
        owner = (
            f"container {entry.container}, which no longer exists; the kubelet has not completed "
            f"its teardown since {time}"
        )
    if damaged := assessment.index.damaged_results.get((entry.network, entry.container_id)):
        owner += (
            f"; likely cause: libcni's cached result {damaged.file} is damaged ({damaged.damage}); "
            "remove this file below /var/lib/cni/results or /var/lib/cni/cache"
        )
    yield Finding(
        NAME,
        str(reservation.key),
        f"{entry.name} is reserved for {owner}",
        severity=severity,
        network=entry.network,
        pod=entry.pod,
        since=since.wall,
        identity=(entry.container_id, severity),
    )


def _forgets_checkpoints(snapshot: Snapshot) -> bool:
    """Return whether the kubelet leaves a sandbox alone of which only a checkpoint is left.

    From 1.36 it lists sandboxes with an empty filter, and cri-dockerd then omits these (0.4.3).
    """
    node = known_or(snapshot.node, None)
    return node is not None and (version_numbers(node.kubelet) or ()) >= (1, 36)


def _not_running(entry: ClassifiedReservation, state: str, time: str) -> str:
    """Describe a sandbox that does not run. `state`: what the runtime calls it, since `time`."""
    if state in ENDED:
        return (
            f"sandbox {entry.container}, which has not been ready since {time} and is not torn down"
        )
    if state == SANDBOX_OF_ANOTHER_CLIENT:
        return (
            f"container {entry.container}, which is {state}, seen since {time}: docker or nerdctl "
            "has it, and the kubelet does not tear it down"
        )
    return (
        f"sandbox {entry.container}, which the runtime has called `{state or 'unnamed'}` since "
        f"{time}: it does not run, and it is not torn down"
    )

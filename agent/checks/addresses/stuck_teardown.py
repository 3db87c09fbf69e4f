"""The kubelet does not complete the teardown of a sandbox whose container is gone, and its address stays reserved.

The kubelet retries a teardown every minute, for as long as it has a checkpoint of the sandbox. It fails every time if
the network plugin fails: a CNI configuration or plugin binary that was removed, a kubenet without its pod CIDR.

Means: the reservation has had a checkpoint and no container for longer than a teardown takes: severity info after 15
minutes, warning after an hour.
Do: find the sandbox's ID in the kubelet's log, and repair what its teardown fails on. The kubelet then releases the
address itself.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from agent.checks import runtime as runtimes
from agent.model.assessment import Assessment, State
from agent.model.finding import Finding, Severity
from agent.model.text import format_time

NAME = "stuck_teardown"
SEVERITIES: Final = (Severity.INFO, Severity.WARNING)

LATE: Final = timedelta(minutes=15)
"""A teardown takes up to 4 minutes, and the kubelet starts one every minute."""
STUCK: Final = timedelta(hours=1)


def find(assessment: Assessment) -> Iterator[Finding]:
    for network in assessment.networks:
        assessment.of(network)
    assessment.snapshot.containers.known()
    if runtimes.keeps_checkpoints(assessment.snapshot):
        assessment.snapshot.checkpoints.known()
    for one in assessment.reservations:
        if one.state is not State.TEARDOWN_PENDING or one.since is None or one.lasted < LATE:
            continue
        severity = Severity.WARNING if one.lasted >= STUCK else Severity.INFO
        pod = f" of pod {one.pod}" if one.pod else ""
        yield Finding(
            detector=NAME,
            subject=f"{one.network}/{one.name}",
            message=f"{one.name} is reserved for container {one.container_id[:12]}{pod}, which no longer exists; "
            f"the kubelet has not completed its teardown since {format_time(one.since)}",
            severity=severity,
            network=one.network,
            pod=one.pod,
            since=one.since,
            identity=(one.container_id, severity),
        )

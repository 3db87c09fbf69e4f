"""An address is reserved for a container that is gone, and nothing on the node will ever give it back.

host-local keeps one file per address. The kubelet removes it when it tears the sandbox down; if the sandbox has
vanished from the runtime and the kubelet has dropped its checkpoint (it restarted before it knew its pod CIDR, say),
nobody does. Enough of them, and pods hang with `no IP addresses available in range set`.

Means: the file outlived its container: no container, no checkpoint, no process and no live pod has the address.
Do: nothing is broken while addresses are free. Find what restarted or removed containers at the time shown, then
release the address; never delete files by comparing `docker ps` with a directory listing, which takes addresses in use.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from agent.checks.addresses.classify import made_at
from agent.model.assessment import Occupancy, Scene, State
from agent.model.finding import Cause, Finding, Severity
from agent.model.snapshot import Daemons, Reservation, Seen, Unread

NAME = "leaked_reservation"
SEVERITIES: Final = (Severity.WARNING,)


def find(scene: Scene) -> Iterator[Finding]:
    snapshot = scene.snapshot
    daemons = next(iter(snapshot.daemons.items), None) if isinstance(snapshot.daemons, Seen) else None

    for occupancy in scene.occupancies:
        if occupancy.state is not State.LEAKED or not isinstance(occupancy.entry, Reservation):
            continue
        reservation = occupancy.entry
        cause, since = _origin(reservation, daemons)
        yield Finding(
            detector=NAME,
            subject=f"{reservation.network}/{reservation.ip}",
            message=f"{reservation.ip} is reserved for {_owner(occupancy)}; {_BECAUSE[cause].format(since=since)}",
            network=reservation.network,
            pod=occupancy.pod,
            cause=cause,
            since=since,
            identity=(reservation.container_id, reservation.inode, reservation.size, reservation.mtime_ns),
        )
    # Said after what was seen: with one of these unread, the leaks above need not be all.
    for store in snapshot.reservations:
        store.reading.known()
    snapshot.containers.known()
    for reading in (snapshot.checkpoints, snapshot.addresses, snapshot.pods):
        if isinstance(reading, Unread):
            reading.known()


def _owner(occupancy: Occupancy) -> str:
    if not occupancy.container_id:
        return "nobody (the file is empty)"
    pod = f" of pod {occupancy.pod}" if occupancy.pod else ""
    return f"container {occupancy.container_id[:12]}{pod}, which is gone"


_BECAUSE = {
    Cause.KUBELET_RESTART: "the kubelet restarted after it was made, at {since:%Y-%m-%d %H:%M:%S}Z",
    Cause.RUNTIME_RESTART: "the container runtime restarted after it was made, at {since:%Y-%m-%d %H:%M:%S}Z",
    Cause.NODE_REBOOT: "the node rebooted after it was made, at {since:%Y-%m-%d %H:%M:%S}Z",
    Cause.EMPTY_FILE: "a crash or a power cut left it so at {since:%Y-%m-%d %H:%M:%S}Z",
    Cause.UNKNOWN: "it was made at {since:%Y-%m-%d %H:%M:%S}Z, and no restart is known since",
}


def _origin(reservation: Reservation, daemons: Daemons | None) -> tuple[Cause, datetime]:
    """Return the likely cause, and the earliest moment at which it can have become a leak."""
    made = made_at(reservation)
    if not reservation.container_id:
        return Cause.EMPTY_FILE, made
    if daemons is None:
        return Cause.UNKNOWN, made
    if daemons.booted > made:
        return Cause.NODE_REBOOT, daemons.booted
    # The kubelet first: a runtime that restarts alone leaves the kubelet's checkpoints, and so its retries, in place.
    if daemons.kubelet is not None and daemons.kubelet > made:
        return Cause.KUBELET_RESTART, daemons.kubelet
    if daemons.docker is not None and daemons.docker > made:
        return Cause.RUNTIME_RESTART, daemons.docker
    return Cause.UNKNOWN, made

"""A directory of host-local holds reservations of an earlier setup of the node: of another runtime or network.

A node that moved from docker to containerd, or from kubenet to another network, keeps the old directory. Nothing
releases its files. They take no addresses from the network in use, but would if a network of that name returned.

Means: the CNI configuration does not name the network, no pod here uses the directory or waits for an address, its
newest file is older than every running pod or than the node's start, and no runtime lists a container with its IDs.
Do: nothing is urgent. Check on the node that no other program uses the directory (podman, a CNI configuration of that
name), and that no process has one of its addresses. Then move the whole directory away, such as
`mv /var/lib/cni/networks/NAME /var/tmp/`.
"""

from collections.abc import Iterator
from typing import Final

from agent.model.assessment import Assessment
from agent.model.finding import Finding, Severity
from agent.model.snapshot import LeftOver, NotRequested, Unavailable, from_mtime
from agent.model.text import count_of, format_time

NAME = "left_over_network"
SEVERITIES: Final = (Severity.INFO,)


def find(assessment: Assessment) -> Iterator[Finding]:
    snapshot = assessment.snapshot
    for store in snapshot.reservations:
        if isinstance(store.reading, Unavailable):
            store.reading.known()
        elif isinstance(store.reading, NotRequested) and isinstance(snapshot.containers, Unavailable):
            snapshot.containers.known()
        elif isinstance(store.reading, NotRequested) and store.left_over:
            message = f"{_described(store.left_over)}; not in use: {store.reading.why}"
            yield Finding(NAME, store.network, message, Severity.INFO, store.network)


def _described(left: LeftOver) -> str:
    pods = f", {left.pods} of them for pods according to libcni's cache" if left.pods else ""
    files = count_of(left.files, "reservation", "reservations")
    between = f"from {_time(left.oldest_ns)} to {_time(left.newest_ns)}"
    return f"{left.directory} has {files} of an earlier setup, {between}{pods}"


def _time(ns: int) -> str:
    try:
        return format_time(from_mtime(ns))
    except OverflowError:
        return "a time out of the calendar"

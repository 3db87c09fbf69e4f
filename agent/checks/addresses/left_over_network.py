"""A directory of host-local has reservations of an earlier setup: another runtime or network.

A node that moved from docker to containerd, or from kubenet to another network, keeps the old
directory. Nothing releases its files. They take no addresses from the network in use, but would if
a network of that name returned. Or it is a backup: a copy of a network's directory, which no
program reads.

Means: the CNI configuration does not name the network, no pod here uses the directory or waits for
an address, its newest file is older than every running pod or than the node's start, and no runtime
lists a container with its IDs. Of a copy: nothing names the directory, and it has the reservations
of another network's, or its name with such as `.bak`.
"""

from collections.abc import Iterator
from typing import Final

from agent.checks.detector import Advice, Noun, Step
from agent.model.assessment import Assessment
from agent.model.finding import Finding, Severity
from agent.model.snapshot import LeftOver, NotRequested, from_mtime, require_available
from agent.model.text import count_of, format_time

NAME = "left_over_network"
SEVERITIES: Final = (Severity.INFO,)
NOUN: Final = Noun("left-over network directory", "left-over network directories")
ADVICE: Final = Advice(
    steps=(
        Step("Nothing is urgent: no program reads it, and nothing in it counts as leaked."),
        Step(
            "If it is a copy, remove it when you no longer need it, and keep copies elsewhere, "
            "such as in /var/tmp."
        ),
        Step(
            "Otherwise check on the node that no other program uses the directory (podman, a CNI "
            "configuration of that name), and that no process has any of its addresses."
        ),
        Step(
            "Then move the whole directory away, such as:",
            commands=("mv /var/lib/cni/networks/NAME /var/tmp/",),
        ),
    ),
)


def find(assessment: Assessment) -> Iterator[Finding]:
    snapshot = assessment.snapshot
    for store in snapshot.reservations:
        require_available(store.reading)
        if isinstance(store.reading, NotRequested):
            require_available(snapshot.containers)
            if store.left_over:
                message = f"{_describe(store.left_over)}; not in use: {store.reading.why}"
                yield Finding(
                    NAME, store.network, message, severity=Severity.INFO, network=store.network
                )


def _describe(left: LeftOver) -> str:
    files = count_of(left.files, "reservation")
    oldest = format_time(from_mtime(left.oldest_ns))
    newest = format_time(from_mtime(left.newest_ns))
    origin = "" if left.copy_of else " of an earlier setup"
    text = f"{left.directory} has {files}{origin}, from {oldest} to {newest}"
    if left.pods:
        text += f", {left.pods} of them for pods according to libcni's cache"
    return text

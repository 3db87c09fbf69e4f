"""Whether the kubelet of a node runs, how it is started again, and where logs are. Pure.

k3s and RKE2 run it within a service of their own, of another name on servers than on agents. Their
versions of Kubernetes say so.
"""

from enum import StrEnum
from typing import Final

from agent.model.snapshot import Snapshot, known_or


class Distribution(StrEnum):
    """Who starts the kubelet."""

    K3S = "k3s"
    RKE2 = "rke2"
    OTHER = "other"


RESTARTS: Final = {
    Distribution.K3S: "systemctl try-restart 'k3s*.service'",
    Distribution.RKE2: "systemctl try-restart 'rke2-*.service'",
    Distribution.OTHER: "systemctl restart kubelet",
}

LOG_FILES: Final = "/var/lib/rancher/*/agent/*/*.log"
"""Where k3s and RKE2 write the log of containerd, and RKE2 the kubelet's. No journal has them."""


def distribution(snapshot: Snapshot) -> Distribution:
    """Return who starts the kubelet, by the version of the node or, without it, of the server."""
    version = snapshot.kubelet_version or snapshot.server_version
    for known in (Distribution.K3S, Distribution.RKE2):
        if f"+{known.value}" in version:
            return known
    return Distribution.OTHER


def restart_command(snapshot: Snapshot) -> str:
    """Return the command that restarts the kubelet of this node."""
    return RESTARTS[distribution(snapshot)]


def lacks_kubelet(snapshot: Snapshot) -> bool:
    """Return whether no kubelet was found, and the Node agrees: it may be part of a program."""
    processes = known_or(snapshot.processes, None)
    node = known_or(snapshot.node, None)
    return bool(processes and processes.kubelet is None and node and not node.ready)

"""A snapshot in which every reservation has been told what it is."""

from dataclasses import dataclass
from enum import StrEnum

from agent.model.ranges import RangeSets, subnet_range
from agent.model.snapshot import InsufficientData, Pod, Reservation, Snapshot, UnrecognizedEntry, known_or

KUBENET = "kubenet"
"""The one network whose range is the node's pod CIDR by definition."""


class State(StrEnum):
    """What a reservation is. Exactly one applies; the text of each is shown to people."""

    IN_USE = "in_use"
    """Its container runs."""
    NOT_READY = "not_ready"
    """Its container exists and does not run: the kubelet will tear it down."""
    TEARDOWN_PENDING = "teardown_pending"
    """No container, but a sandbox checkpoint: the kubelet will try again."""
    UNMANAGED = "unmanaged"
    """No container, but the address is configured in a namespace or belongs to a live pod."""
    CANDIDATE = "candidate"
    """No owner of any kind, but younger than the grace period or seen only once."""
    LEAKED = "leaked"
    """No owner of any kind, and old: nothing on this node will ever give it back."""
    UNRECOGNIZED = "unrecognized"
    """Not a reservation of host-local's: listed, never followed, never judged."""
    UNKNOWN = "unknown"
    """A source that the answer depends on was not read."""


@dataclass(frozen=True, slots=True)
class ClassifiedReservation:
    """One entry of host-local's directory and what it is."""

    entry: Reservation | UnrecognizedEntry
    state: State
    why: str
    pod: str = ""
    """`namespace/name`, from whichever record still knows it; empty where none does."""

    @property
    def name(self) -> str:
        return self.entry.ip if isinstance(self.entry, Reservation) else self.entry.name

    @property
    def container_id(self) -> str:
        return self.entry.container_id if isinstance(self.entry, Reservation) else ""

    @property
    def ifname(self) -> str:
        return self.entry.ifname if isinstance(self.entry, Reservation) else ""

    @property
    def network(self) -> str:
        return self.entry.network

    @property
    def blocks(self) -> bool:
        """Whether host-local will not give this address out because of it."""
        return self.entry.blocks if isinstance(self.entry, UnrecognizedEntry) else True


@dataclass(frozen=True, slots=True)
class Assessment:
    snapshot: Snapshot
    classified_reservations: tuple[ClassifiedReservation, ...]
    """Every entry of every network that was read."""

    def of(self, network: str) -> tuple[ClassifiedReservation, ...]:
        """Return one network's entries; blind where its directory was not read."""
        for store in self.snapshot.reservations:
            if store.network == network:
                store.reading.known()
        return tuple(classified for classified in self.classified_reservations if classified.network == network)

    def ranges(self, network: str) -> RangeSets:
        """Return what host-local may give out in a network; blind where no record says it.

        kubenet gives out the node's pod CIDRs. For others, and where the node object is not at hand, the newest
        result in libcni's cache tells: its configuration, or (libcni < 0.8) the subnet of its address.
        """
        snapshot = self.snapshot
        if network == KUBENET:
            node = known_or(snapshot.node, None)
            if node is not None and (cidrs := node.pod_cidrs):
                try:
                    return tuple((subnet_range(cidr),) for cidr in cidrs)
                except ValueError as error:
                    raise InsufficientData(f"node: its pod CIDR: {error}") from error
        told = [result for result in snapshot.cni_results.known() if result.network == network and result.ranges]
        if not told:
            raise InsufficientData(
                f"the range of network {network}: neither the node's pod CIDR nor libcni's cache tells it"
            )
        return max(told, key=lambda result: result.mtime_ns).ranges

    def networked_pods(self) -> tuple[tuple[Pod, str], ...]:
        """Return the pods that hold addresses now, each with every address it holds by the API server's word.

        Live, on the pod network, with a running sandbox. An address is left out where the sandbox has another one of
        that family reserved for its `eth0`: it was made anew, and the pod's status has not followed yet.
        """
        pods = self.snapshot.pods.known()
        sandboxes = {
            container.id: container.pod
            for container in self.snapshot.containers.known()
            if container.sandbox and container.running
        }
        reserved = {
            (sandboxes[classified.container_id], ":" in classified.name, classified.name)
            for store in self.snapshot.reservations
            for classified in self.of(store.network)
            if classified.container_id in sandboxes and classified.ifname in {"eth0", ""}
        }
        running = frozenset(sandboxes.values())
        elsewhere = {(pod, is_ipv6) for pod, is_ipv6, _ in reserved}
        return tuple(
            (pod, ip)
            for pod in pods
            if pod.live and not pod.host_network and pod.name in running
            for ip in dict.fromkeys(pod.ips)
            if (pod.name, ":" in ip) not in elsewhere or (pod.name, ":" in ip, ip) in reserved
        )

"""A snapshot in which every reservation has a state."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cached_property
from ipaddress import ip_network

from agent.model.leak import Leaks
from agent.model.ranges import IPNetwork, Range, RangeSets, free, subnet_range, usable
from agent.model.runtime import WrittenRange
from agent.model.snapshot import (
    CniResult,
    Container,
    InsufficientData,
    NotRequested,
    Pod,
    Reservation,
    Snapshot,
    UnrecognizedEntry,
    known_or,
)

KUBENET = "kubenet"
"""The network whose range is the node's pod CIDR by definition."""


LONGEST_ADD = timedelta(minutes=4)
"""How long the kubelet waits for a sandbox, and with it for its address (twice its `--runtime-request-timeout`)."""


class State(StrEnum):
    """The state of a reservation. The text of each is shown by `nodeleak explain`."""

    IN_USE = "in_use"
    """Its container runs."""
    NOT_READY = "not_ready"
    """Its container exists and does not run; the kubelet will tear the sandbox down."""
    TEARDOWN_PENDING = "teardown_pending"
    """Its container is gone, and a sandbox checkpoint remains: the kubelet will retry the teardown."""
    UNMANAGED = "unmanaged"
    """The runtime does not know its container, but a process, a mounted network namespace or a live pod uses the
    address."""
    CANDIDATE = "candidate"
    """No owner of any kind, but newer than the grace period, or seen in one snapshot only."""
    LEAKED = "leaked"
    """No owner of any kind in two snapshots, and older than the grace period: nothing will ever release it."""
    UNRECOGNIZED = "unrecognized"
    """Not written by host-local (another name, no container ID, a directory, a link, too large). nodeleak only lists it
    and never releases it."""
    UNKNOWN = "unknown"
    """A source that the state depends on is unavailable, or the file is newer than the node's clock (it was set)."""


@dataclass(frozen=True, slots=True)
class ClassifiedReservation:
    """One entry of host-local's directory and its state."""

    entry: Reservation | UnrecognizedEntry
    state: State
    why: str
    pod: str = ""
    """`namespace/name`, from any record that still has it; empty: none has."""

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
        """Whether host-local skips this address because of it."""
        return self.entry.blocks if isinstance(self.entry, UnrecognizedEntry) else True


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingTeardown(ClassifiedReservation):
    """A reservation whose teardown is pending. A class of its own, because a node may have 65,000 of the others."""

    since: datetime
    lasted: timedelta
    """How long it has been pending since, by the boot clock."""


def _created(container: Container) -> int:
    return container.created


def _written(result: CniResult) -> int:
    return result.mtime_ns


@dataclass(frozen=True)
class Assessment:
    """There is one at a time, so it has no slots, and keeps what several detectors ask for."""

    snapshot: Snapshot
    reservations: tuple[ClassifiedReservation, ...]
    """Every entry of every network that was read."""
    leaks: Leaks = field(default_factory=dict)
    """The reservations in state `leaked`; empty until they are confirmed."""

    @cached_property
    def networks(self) -> tuple[str, ...]:
        """The networks that pods here use, as far as is known. Raises SourceDisabled if they use none of them."""
        stores = self.snapshot.reservations
        used = tuple(store.network for store in stores if not isinstance(store.reading, NotRequested))
        if stores and not used:
            stores[0].reading.known()
        return used

    def of(self, network: str) -> tuple[ClassifiedReservation, ...]:
        """Return one network's entries. Raises InsufficientData where its directory is unavailable."""
        for store in self.snapshot.reservations:
            if store.network == network:
                store.reading.known()
        return self._by_network.get(network, ())

    @cached_property
    def _by_network(self) -> Mapping[str, tuple[ClassifiedReservation, ...]]:
        by_network: defaultdict[str, list[ClassifiedReservation]] = defaultdict(list)
        for one in self.reservations:
            by_network[one.network].append(one)
        return {network: tuple(entries) for network, entries in by_network.items()}

    def ranges(self, network: str) -> RangeSets:
        """Return the ranges that host-local allocates from. Raises InsufficientData where no record has them.

        The runtime's configuration comes first. kubenet uses the node's pod CIDRs. For other networks, and without the
        node object, the newest result in libcni's cache has them: in its configuration, or (libcni < 0.8, or a plugin
        that delegates) as the subnet of its address.
        """
        snapshot = self.snapshot
        for one in known_or(snapshot.networks, ()):
            if one.name == network and one.ranges:
                return tuple(tuple(map(self._range, ranges)) for ranges in one.ranges)
        node = known_or(snapshot.node, None)
        if network == KUBENET and node is not None and node.pod_cidrs:
            return self._pod_cidrs()
        return self._cached_ranges(network)

    def taken(self, network: str, state: State) -> int:
        """Count the sandboxes for which entries in this state leave no addresses. Raises InsufficientData."""
        ranges = self.ranges(network)
        return usable(ranges) - free(ranges, (one.name for one in self.of(network) if one.state is state))

    def _cached_ranges(self, network: str) -> RangeSets:
        told = [one for one in self.snapshot.cni_results.known() if one.network == network]
        newest = max((one for one in told if one.ranges or one.uses_pod_cidr), key=_written, default=None)
        if newest is None:
            raise InsufficientData(
                f"the range of network {network} is neither in the node's pod CIDR nor in libcni's cache"
            )
        return self._pod_cidrs() if newest.uses_pod_cidr else newest.ranges

    def pod_networks(self) -> tuple[IPNetwork, ...]:
        """Return the node's pod CIDRs; none if it has none. Raises InsufficientData."""
        node = self.snapshot.node.known()
        try:
            return tuple(ip_network(cidr, strict=False) for cidr in (node.pod_cidrs if node else ()))
        except ValueError as error:
            raise InsufficientData(f"node: its pod CIDR: {error}") from error

    def _pod_cidrs(self) -> RangeSets:
        """Return a set of one range for each pod CIDR of the node."""
        node = self.snapshot.node.known()
        if node is None or not node.pod_cidrs:
            raise InsufficientData("node: it has no pod CIDR")
        try:
            return tuple((subnet_range(cidr),) for cidr in node.pod_cidrs)
        except ValueError as error:
            raise InsufficientData(f"node: its pod CIDR: {error}") from error

    def _range(self, written: WrittenRange) -> Range:
        if written.subnet.startswith("usePodCidr"):
            version = 6 if written.subnet.endswith("IPv6") else 4
            found = [one for (one,) in self._pod_cidrs() if one.first.version == version]
            if not found:
                raise InsufficientData(f"node: it has no IPv{version} pod CIDR")
            return found[0]
        try:
            return subnet_range(written.subnet, written.first, written.last, written.gateway)
        except ValueError as error:
            raise InsufficientData(f"networks: {error}") from error

    @cached_property
    def networked_pods(self) -> tuple[tuple[Pod, str], ...]:
        """Each pod that has an address now, with each of its addresses according to the API server.

        Only live pods on the pod network with a running sandbox. Where a sandbox was recreated, the pod's status lags
        behind: an address is left out if the sandbox has reserved another one of that family for its `eth0`, and the
        whole pod if its sandbox may not have an address yet. Raises InsufficientData.
        """
        pods = self.snapshot.pods.known()
        running_sandboxes = [one for one in self.snapshot.containers.known() if one.sandbox and one.running]
        sandboxes = {one.id: one.pod for one in running_sandboxes}
        running = frozenset(sandboxes.values()).difference(self._without_address(running_sandboxes))
        reserved = self._reserved_by_pod(sandboxes)
        return tuple(
            (pod, ip)
            for pod in pods
            if pod.live and not pod.host_network and pod.name in running
            for ip in dict.fromkeys(pod.ips)
            if ip in reserved.get((pod.name, ":" in ip), {ip})
        )

    def _without_address(self, sandboxes: Iterable[Container]) -> Iterator[str]:
        """Yield the pods with a sandbox that may not have had an address when the reservations were read.

        A container of the pod is created only after that; without one, nothing is certain for the longest ADD.
        """
        now = self.snapshot.taken_at.timestamp()
        containers = [one for one in self.snapshot.containers.known() if not one.sandbox and one.pod]
        # Times are in whole seconds, rounded down.
        last = {one.pod: one.created for one in sorted(containers, key=_created) if one.created + 1 <= now}
        for one in sandboxes:
            if now - one.created < LONGEST_ADD.total_seconds() and last.get(one.pod, 0) < one.created:
                yield one.pod

    def _reserved_by_pod(self, sandboxes: Mapping[str, str]) -> Mapping[tuple[str, bool], set[str]]:
        """Return the addresses of each pod's `eth0`, by pod and whether they are IPv6. `sandboxes`: pods by id."""
        reserved: defaultdict[tuple[str, bool], set[str]] = defaultdict(set)
        for network in self.networks:
            for one in self.of(network):
                if one.container_id in sandboxes and one.ifname in {"eth0", ""}:
                    reserved[sandboxes[one.container_id], ":" in one.name].add(one.name)
        return reserved

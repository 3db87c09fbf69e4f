"""A snapshot in which every reservation has a state."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Final, TypeVar

from agent.model.index import SnapshotIndex
from agent.model.memory import NO_MEMORY, Memory
from agent.model.ranges import Range, RangeSets, free, subnet_range, usable
from agent.model.runtime import KubeletRuntime, WrittenRange
from agent.model.snapshot import (
    Container,
    InsufficientData,
    NotRequested,
    Pod,
    Reservation,
    Snapshot,
    UnrecognizedEntry,
    known_or,
    require_available,
)
from agent.model.word import Word

_T = TypeVar("_T")

KUBENET: Final = "kubenet"
"""The network whose range is the node's pod CIDR by definition."""
LONGEST_ADD: Final = timedelta(minutes=4)
"""How long the kubelet waits for a sandbox, and with it for its address.

That is twice its `--runtime-request-timeout`.
"""
PRIMARY: Final = frozenset({"eth0", ""})
"""The interface of a pod's own addresses; empty in the format of host-local < 0.8.0."""


class State(Word):
    """The state of a reservation. The text of each is shown by `nodeleak explain`."""

    IN_USE = "in_use", "Its container runs."
    NOT_READY = (
        "not_ready",
        """Its container exists and does not run: it has ended, is being created or removed, or
        only a record has it. Or it is in another namespace of containerd, that of docker or
        nerdctl.""",
    )
    TEARDOWN_PENDING = (
        "teardown_pending",
        "Its container is gone, and a sandbox checkpoint remains: its teardown is incomplete.",
    )
    UNMANAGED = (
        "unmanaged",
        """The runtime does not know its container, but a process, a mounted network namespace
        or a live pod uses the address.""",
    )
    CANDIDATE = (
        "candidate",
        "No owner of any kind, but newer than the grace period, or seen in one snapshot only.",
    )
    LEAKED = (
        "leaked",
        """No owner of any kind in two snapshots, and older than the grace period: nothing will
        ever release it.""",
    )
    UNRECOGNIZED = (
        "unrecognized",
        """Not written by host-local (another name, no container ID, a directory, a link, too
        large). nodeleak only lists it and never releases it.""",
    )
    UNKNOWN = (
        "unknown",
        """A source that the state depends on is unavailable, the file is newer than the node's
        clock (it was set), or libcni's cache names no pod of the sandbox.""",
    )


@dataclass(frozen=True, slots=True)
class ClassifiedReservation:
    """One entry of host-local's directory and its state."""

    entry: Reservation | UnrecognizedEntry
    state: State
    why: str
    pod: str = ""  # `namespace/name`, from any record that still has it; empty: none has

    @property
    def name(self) -> str:
        return self.entry.ip if isinstance(self.entry, Reservation) else self.entry.name

    @property
    def container_id(self) -> str:
        return self.entry.container_id if isinstance(self.entry, Reservation) else ""

    @property
    def container(self) -> str:
        """Its container and the pod of that, as messages name them."""
        return f"{self.container_id[:12]} of pod {self.pod}" if self.pod else self.container_id[:12]

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


def or_none(query: Callable[..., _T], *arguments: object) -> _T | None:
    """Return what an assessment answers, mostly about a network; None: unknown."""
    try:
        return query(*arguments)
    except InsufficientData:
        return None


@dataclass(frozen=True)
class Assessment:
    """The state of every entry of every network that was read.

    Lookups are computed on first use and cached (hence no `__slots__`). They raise InsufficientData
    if a source that they need is unavailable.
    """

    index: SnapshotIndex
    runtime: KubeletRuntime
    reservations: tuple[ClassifiedReservation, ...]
    memory: Memory = NO_MEMORY
    """What this and earlier snapshots showed of them."""

    @property
    def snapshot(self) -> Snapshot:
        return self.index.snapshot

    @cached_property
    def classified(self) -> Mapping[Reservation, ClassifiedReservation]:
        """The entries that are reservations."""
        return {
            entry.entry: entry
            for entry in self.reservations
            if isinstance(entry.entry, Reservation)
        }

    @cached_property
    def leaked(self) -> Mapping[Reservation, ClassifiedReservation]:
        return {
            reservation: entry
            for reservation, entry in self.classified.items()
            if entry.state is State.LEAKED
        }

    @cached_property
    def primary_sandboxes(self) -> Mapping[str, Sequence[Container]]:
        """The running sandboxes, by the network that they have the addresses of `eth0` from."""
        sandboxes: defaultdict[str, list[Container]] = defaultdict(list)
        for sandbox in self.index.running_sandboxes.values():
            for result in self.index.results.get(sandbox.id, ()):
                if result.ifname in PRIMARY:
                    sandboxes[result.network].append(sandbox)
        return dict(sandboxes)

    @cached_property
    def plugins(self) -> Mapping[str, tuple[str, ...]]:
        """The types of the plugins of each network, as it is configured or was last used."""
        results = sorted(
            (result for result in known_or(self.snapshot.cni_results, ()) if result.plugin),
            key=lambda result: result.mtime_ns,
        )

        types: dict[str, tuple[str, ...]] = {}
        for result in results:
            types[result.network] = (result.plugin,)
        for network in known_or(self.snapshot.networks, ()):
            types[network.name] = network.plugins
        return types

    @cached_property
    def networks(self) -> tuple[str, ...]:
        """The networks that pods here use. Raises SourceDisabled if they use none of them."""
        stores = self.snapshot.reservations
        used = tuple(
            store.network for store in stores if not isinstance(store.reading, NotRequested)
        )
        if stores and not used:
            stores[0].reading.known()
        return used

    def require_reservations(self) -> None:
        """Raise InsufficientData if the directory of a network that pods use is unavailable."""
        for store in self.snapshot.reservations:
            if store.network in self.networks:
                require_available(store.reading)

    def entries(self, network: str) -> tuple[ClassifiedReservation, ...]:
        """Return those of a network, which must have been read."""
        for store in self.snapshot.reservations:
            if store.network == network:
                store.reading.known()
        return tuple(entry for entry in self.reservations if entry.network == network)

    def ranges(self, network: str) -> RangeSets:
        """Return the ranges that host-local allocates from.

        The runtime's configuration comes first. kubenet uses the node's pod CIDRs. For other
        networks, and without the node object, the newest result in libcni's cache has them: in its
        configuration, or (libcni < 0.8, or a plugin that delegates) as the subnet of its address.
        """
        snapshot = self.snapshot
        for configured in known_or(snapshot.networks, ()):
            if configured.name == network and configured.ranges:
                return tuple(tuple(map(self._range, ranges)) for ranges in configured.ranges)

        node = known_or(snapshot.node, None)
        if network == KUBENET and node is not None and node.pod_cidrs:
            return self.pod_ranges

        results = [
            result
            for result in snapshot.cni_results.known()
            if result.network == network and (result.ranges or result.uses_pod_cidr)
        ]
        if not results:
            raise InsufficientData(
                f"the range of network {network} is neither in the node's pod CIDR nor in "
                "libcni's cache"
            )

        newest = max(results, key=lambda result: result.mtime_ns)
        return self.pod_ranges if newest.uses_pod_cidr else newest.ranges

    @cached_property
    def pod_ranges(self) -> RangeSets:
        """Each pod CIDR of the node as a set with a single range."""
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
            for (pod_range,) in self.pod_ranges:
                if pod_range.first.version == version:
                    return pod_range
            raise InsufficientData(f"node: it has no IPv{version} pod CIDR")

        try:
            return written.parse()
        except ValueError as error:
            raise InsufficientData(f"networks: {error}") from error

    def taken(self, network: str, state: State) -> int:
        """Count the sandboxes for which entries in this state leave no addresses."""
        ranges = self.ranges(network)
        names = (entry.name for entry in self.entries(network) if entry.state is state)
        return usable(ranges) - free(ranges, names)

    def free(self, network: str) -> int:
        """Count the sandboxes for which there are addresses left."""
        names = (entry.name for entry in self.entries(network) if entry.blocks)
        return free(self.ranges(network), names)

    @cached_property
    def networked_pods(self) -> tuple[tuple[Pod, str], ...]:
        """Each pod that has an address now, with each of its addresses according to the API server.

        Only live pods on the pod network with a running sandbox. If a sandbox was recreated, the
        pod's status lags behind: an address is left out if the sandbox has reserved another one of
        that family for its `eth0`, and the whole pod if its sandbox may not have an address yet, or
        no longer.
        """
        pods = self.snapshot.pods.known()
        self.snapshot.containers.known()
        running = self.index.running_sandboxes
        pods_running = {sandbox.pod for sandbox in running.values()}
        with_address = pods_running.difference(self._without_address())

        reserved: defaultdict[tuple[str, bool], set[str]] = defaultdict(set)
        for network in self.networks:
            for entry in self.entries(network):
                sandbox = running.get(entry.container_id)
                if sandbox is not None and entry.ifname in PRIMARY:
                    family = ":" in entry.name
                    reserved[sandbox.pod, family].add(entry.name)

        addresses: list[tuple[Pod, str]] = []
        for pod in pods:
            if pod.name in with_address and self._keeps_address(pod):
                for ip in dict.fromkeys(pod.ips):
                    if ip in reserved.get((pod.name, ":" in ip), {ip}):
                        addresses.append((pod, ip))  # noqa: PERF401 (a comprehension is no clearer)
        return tuple(addresses)

    def _keeps_address(self, pod: Pod) -> bool:
        """Return whether it has an address that is not free yet.

        CRI-O calls CNI DEL before it stops the sandbox, when the pod's containers have ended. Until
        DEL is completed, the API server may have no sign of it.
        """
        ending = self.index.ended.get(pod.uid, pod.deleting) and (pod.deleting or not pod.waiting)
        return pod.networked and not ending

    def _without_address(self) -> Iterator[str]:
        """Yield the pods whose sandbox may have had no address when the reservations were read.

        A container of the pod is created only after that; without a container, nothing is certain
        for the longest ADD.
        """
        now = self.snapshot.taken_at.timestamp()
        newest: dict[str, int] = {}
        for container in self.index.containers.values():
            # Times are in whole seconds, rounded down.
            if not container.sandbox and container.created + 1 <= now:
                newest[container.pod] = max(container.created, newest.get(container.pod, 0))
        for sandbox in self.index.running_sandboxes.values():
            is_new = now - sandbox.created < LONGEST_ADD.total_seconds()
            if is_new and newest.get(sandbox.pod, 0) < sandbox.created:
                yield sandbox.pod

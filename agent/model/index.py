"""What the records of a snapshot say about a container or an address."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Final

from agent.model.snapshot import (
    ENDED,
    CniResult,
    Container,
    Damage,
    DamagedResult,
    Pod,
    Reservation,
    Snapshot,
    known_or,
)


@dataclass(frozen=True)
class SnapshotIndex:
    """Lookups are computed on first use and cached (hence no `__slots__`).

    A source that was not read has no records here.
    """

    snapshot: Snapshot

    @cached_property
    def reservations(self) -> tuple[Reservation, ...]:
        """Those of every network that was read."""
        stores = self.snapshot.reservations
        return tuple(chain.from_iterable(known_or(store.reading, ()) for store in stores))

    @cached_property
    def containers(self) -> Mapping[str, Container]:
        """The containers that the runtime has, by ID."""
        return {container.id: container for container in known_or(self.snapshot.containers, ())}

    @cached_property
    def has_unowned(self) -> bool:
        """Whether a reservation has no container that the runtime knows."""
        return any(
            reservation.container_id not in self.containers for reservation in self.reservations
        )

    @cached_property
    def running_sandboxes(self) -> Mapping[str, Container]:
        """By container ID."""
        return {
            container.id: container
            for container in self.containers.values()
            if container.sandbox and container.running
        }

    @cached_property
    def ended(self) -> Mapping[str, bool]:
        """Whether all containers of a pod have ended, other than its sandboxes, by the pod's UID.

        A pod without any such container is not in it.
        """
        ended: dict[str, bool] = {}
        for container in self.containers.values():
            if not container.sandbox:
                others_ended = ended.get(container.pod_uid, True)
                ended[container.pod_uid] = others_ended and container.state in ENDED
        return ended

    @cached_property
    def checkpoints(self) -> frozenset[str]:
        """The container IDs that have a checkpoint."""
        checkpoints = known_or(self.snapshot.checkpoints, ())
        return frozenset(checkpoint.container_id for checkpoint in checkpoints)

    @cached_property
    def results(self) -> Mapping[str, list[CniResult]]:
        """Libcni's cached results, by container ID."""
        results: defaultdict[str, list[CniResult]] = defaultdict(list)
        for result in known_or(self.snapshot.cni_results, ()):
            results[result.container_id].append(result)
        return dict(results)

    def results_of(self, reservation: Reservation) -> list[CniResult]:
        """Return libcni's cached results for a reservation's sandbox in its network."""
        results = self.results.get(reservation.container_id, ())
        return [result for result in results if result.network == reservation.network]

    def primary_networks(self, container_id: str) -> set[str]:
        """Return the networks of a sandbox's `eth0`, according to libcni's cache."""
        results = self.results.get(container_id, ())
        return {result.network for result in results if result.ifname == "eth0"}

    @cached_property
    def cached_networks(self) -> Mapping[str, set[str]]:
        """The networks of which libcni's cache has a file, damaged or not, by container ID."""
        networks: defaultdict[str, set[str]] = defaultdict(set)
        for result in known_or(self.snapshot.cni_results, ()):
            networks[result.container_id].add(result.network)
        for damaged in self.snapshot.damaged_results:
            networks[damaged.container_id].add(damaged.network)
        return dict(networks)

    @cached_property
    def too_large(self) -> Mapping[str, str]:
        """The files of cached results that are too large to be read, by container ID."""
        return {
            result.container_id: result.file
            for result in self.snapshot.damaged_results
            if result.damage is Damage.TOO_LARGE
        }

    @cached_property
    def damaged_results(self) -> Mapping[tuple[str, str], DamagedResult]:
        """The cached results that libcni cannot read either, by network and container ID."""
        return {
            (result.network, result.container_id): result
            for result in self.snapshot.damaged_results
            if result.damage is not Damage.TOO_LARGE
        }

    @cached_property
    def mounted_namespaces(self) -> Mapping[str, str]:
        """Where the network namespace of each sandbox is mounted, by container ID."""
        results = known_or(self.snapshot.cni_results, ())
        return mounted_by_sandbox(results, known_or(self.snapshot.mounted_namespaces, ()))

    @cached_property
    def holders(self) -> Mapping[str, list[str]]:
        """For each address a process of every network namespace that has it, in words."""
        holders: defaultdict[str, list[str]] = defaultdict(list)
        for address in known_or(self.snapshot.addresses, ()):
            holders[address.ip].append(f"process {address.pid} ({address.command})")
        return dict(holders)

    @cached_property
    def owners(self) -> Mapping[str, list[str]]:
        """The networks that reserve an address for a container of the runtime, by address."""
        owners: defaultdict[str, list[str]] = defaultdict(list)
        for reservation in self.reservations:
            if reservation.container_id in self.containers:
                owners[reservation.ip].append(reservation.network)
        return dict(owners)

    def explaining_networks(self, ip: str) -> list[str]:
        """Return the networks whose containers explain every namespace that has an address.

        Empty if they do not explain all. Two networks may have one range; no record says which of
        them an address of a namespace is from.
        """
        owners = self.owners.get(ip, [])
        return owners if len(owners) >= len(self.holders.get(ip, [])) else []

    @cached_property
    def pods_by_uid(self) -> Mapping[str, Pod]:
        """The pods that the API server has."""
        return {pod.uid: pod for pod in known_or(self.snapshot.pods, ())}

    @cached_property
    def pods_by_name(self) -> Mapping[str, Pod]:
        """The pods that the API server has, by `namespace/name`."""
        return {pod.name: pod for pod in known_or(self.snapshot.pods, ())}

    @cached_property
    def claims(self) -> Mapping[str, str]:
        """The live pod that has an address according to the API server, by address."""
        claims: dict[str, str] = {}
        for pod in known_or(self.snapshot.pods, ()):
            if pod.networked:
                claims.update(dict.fromkeys(pod.ips, pod.name))
        return claims

    @cached_property
    def pods(self) -> Mapping[str, str]:
        """The pod of each container, by ID."""
        pods: dict[str, str] = {}
        # The runtime's record comes last: it is the best.
        for result in known_or(self.snapshot.cni_results, ()):
            if result.pod:
                pods[result.container_id] = result.pod
        for checkpoint in known_or(self.snapshot.checkpoints, ()):
            if checkpoint.pod:
                pods[checkpoint.container_id] = checkpoint.pod
        for container in self.containers.values():
            if container.pod:
                pods[container.id] = container.pod

        return pods


def named_sandboxes(results: Iterable[CniResult]) -> frozenset[str]:
    """Return the container IDs of which libcni's cache names the network namespace."""
    return frozenset(result.container_id for result in results if result.namespace)


def mounted_by_sandbox(results: Iterable[CniResult], mounted: Iterable[str]) -> dict[str, str]:
    """Return where the network namespace of each sandbox is mounted, by container ID.

    Runtimes give namespaces random names. Only these are compared, because the mount table has
    paths without symbolic links, and libcni has them as the runtime wrote them (`/var/run`).
    """
    paths = {_name(path): path for path in mounted}
    by_sandbox: dict[str, str] = {}
    for result in results:
        if result.namespace and (path := paths.get(_name(result.namespace))):
            by_sandbox[result.container_id] = path
    return by_sandbox


def unattributed_namespace(
    results: Iterable[CniResult], mounted: Iterable[str], *, docker_runs: bool
) -> str | None:
    """Return the path of a mounted network namespace that no cached result names.

    When docker starts, it removes those of its own that belong to no container. Its `default` is
    the node's.
    """
    named = {_name(result.namespace) for result in results if result.namespace}
    explained = _DOCKER if docker_runs else _NODES_OWN
    for path in mounted:
        if _name(path) not in named and not explained.search(path):
            return path
    return None


_DOCKER: Final = re.compile(
    r"/[^/]*docker[^/]*/netns/|^(?!/run/netns/|/var/run/netns/).*/netns/(?:[0-9a-f]{12}|default)$"
)
"""In `netns` below docker's --exec-root: `/run/docker`, `/run/snap.docker`, of a rootless one
`/run/user/1000/docker`, or any other. There a namespace has the first 12 digits of its container's
ID. `ip netns`, containerd and CRI-O mount theirs in `/run/netns`.
"""
_NODES_OWN: Final = re.compile(r"/[^/]*docker[^/]*/netns/default$")


def _name(path: str) -> str:
    return path.rpartition("/")[2]

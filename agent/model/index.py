"""What the records of a snapshot say about a container or an address. Each index is made once, where it is needed."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from agent.model.snapshot import (
    ENDED,
    CniResult,
    Container,
    Damage,
    DamagedResult,
    Snapshot,
    known_or,
)


@dataclass(frozen=True)
class SnapshotIndex:
    """It has no slots, and keeps what was asked for. A source that was not read has no records here."""

    snapshot: Snapshot

    @cached_property
    def containers(self) -> Mapping[str, Container]:
        """The containers that the runtime has, by ID."""
        return {container.id: container for container in known_or(self.snapshot.containers, ())}

    @cached_property
    def running_sandboxes(self) -> Mapping[str, str]:
        """Their pods, by container ID."""
        sandboxes = (container for container in self.containers.values() if container.sandbox)
        return {sandbox.id: sandbox.pod for sandbox in sandboxes if sandbox.running}

    @cached_property
    def ended(self) -> Mapping[str, bool]:
        """Whether all containers of a pod, other than its sandboxes, have ended, by the pod's UID. Some have none."""
        ended: dict[str, bool] = {}
        for container in self.containers.values():
            if not container.sandbox:
                ended[container.pod_uid] = (
                    ended.get(container.pod_uid, True) and container.state in ENDED
                )
        return ended

    @cached_property
    def checkpoints(self) -> frozenset[str]:
        """The container IDs that have a checkpoint."""
        return frozenset(
            checkpoint.container_id for checkpoint in known_or(self.snapshot.checkpoints, ())
        )

    @cached_property
    def results(self) -> Mapping[str, list[CniResult]]:
        """Libcni's cached results, by container ID."""
        by_sandbox: defaultdict[str, list[CniResult]] = defaultdict(list)
        for result in known_or(self.snapshot.cni_results, ()):
            by_sandbox[result.container_id].append(result)
        return dict(by_sandbox)

    @cached_property
    def cached_networks(self) -> Mapping[str, set[str]]:
        """The networks of which libcni's cache has a file of a sandbox, damaged or not, by container ID."""
        networks: defaultdict[str, set[str]] = defaultdict(set)
        cached: list[CniResult | DamagedResult] = [*known_or(self.snapshot.cni_results, ())]
        for result in (*cached, *self.snapshot.damaged_results):
            networks[result.container_id].add(result.network)
        return dict(networks)

    @cached_property
    def too_large(self) -> Mapping[str, str]:
        """The cached results that are too large to be read, by container ID."""
        damaged = self.snapshot.damaged_results
        return {
            result.container_id: result.file
            for result in damaged
            if result.damage is Damage.TOO_LARGE
        }

    @cached_property
    def damaged_results(self) -> Mapping[tuple[str, str], DamagedResult]:
        """The cached results that libcni cannot read either, by network and container ID."""
        damaged = (
            result
            for result in self.snapshot.damaged_results
            if result.damage is not Damage.TOO_LARGE
        )
        return {(result.network, result.container_id): result for result in damaged}

    @cached_property
    def mounted_namespaces(self) -> Mapping[str, str]:
        """Where the network namespace of each sandbox is mounted, by container ID."""
        results, mounted = (
            known_or(self.snapshot.cni_results, ()),
            known_or(self.snapshot.mounted_namespaces, ()),
        )
        return mounted_by_sandbox(results, mounted)

    @cached_property
    def holders(self) -> Mapping[str, list[str]]:
        """A process of each network namespace in which an address is configured, in words, by address."""
        holders: defaultdict[str, list[str]] = defaultdict(list)
        for address in known_or(self.snapshot.addresses, ()):
            holders[address.ip].append(f"process {address.pid} ({address.command})")
        return dict(holders)

    @cached_property
    def owners(self) -> Mapping[str, list[str]]:
        """The networks that reserve an address for a container of the runtime, by address."""
        owners: defaultdict[str, list[str]] = defaultdict(list)
        for entry in (
            entry for store in self.snapshot.reservations for entry in known_or(store.reading, ())
        ):
            if entry.container_id in self.containers:
                owners[entry.ip].append(entry.network)
        return dict(owners)

    def accounts_for(self, ip: str) -> list[str]:
        """Return the networks whose containers account for each namespace that has an address; empty: not for all.

        Two networks may have one range. Which of them an address of a namespace is from, no record says.
        """
        owners = self.owners.get(ip, [])
        return owners if len(owners) >= len(self.holders.get(ip, [])) else []

    @cached_property
    def claims(self) -> Mapping[str, str]:
        """The live pods that have an address of their own according to the API server, by address."""
        return {
            ip: pod.name
            for pod in known_or(self.snapshot.pods, ())
            if pod.networked
            for ip in pod.ips
        }

    @cached_property
    def pods(self) -> Mapping[str, str]:
        """The pod of each container, by ID. The runtime's record comes last: it is the best."""
        records = [
            *(
                (result.container_id, result.pod)
                for result in known_or(self.snapshot.cni_results, ())
            ),
            *(
                (checkpoint.container_id, checkpoint.pod)
                for checkpoint in known_or(self.snapshot.checkpoints, ())
            ),
            *((container.id, container.pod) for container in self.containers.values()),
        ]
        return {container_id: pod for container_id, pod in records if pod}


def named_sandboxes(results: Iterable[CniResult]) -> frozenset[str]:
    """Return the sandboxes, by container ID, of which libcni's cache names the network namespace."""
    return frozenset(result.container_id for result in results if result.namespace)


def mounted_by_sandbox(results: Iterable[CniResult], mounted: Iterable[str]) -> dict[str, str]:
    """Return where the network namespace of each sandbox is mounted, by container ID.

    Runtimes give namespaces random names. Only these are compared, because the mount table has paths without symbolic
    links, and libcni has them as the runtime wrote them (`/var/run`).
    """
    paths = {_name(path): path for path in mounted}
    named = (
        (result.container_id, _name(result.namespace)) for result in results if result.namespace
    )
    return {container_id: paths[name] for container_id, name in named if name in paths}


def of_nobody(results: Iterable[CniResult], mounted: Iterable[str], *, docker_runs: bool) -> str:
    """Return a mounted namespace of which no result tells whose it is; empty: there is none.

    docker itself removes, when it starts, those of its own that belong to no container. Its `default` is the node's.
    """
    named = {_name(result.namespace) for result in results if result.namespace}
    explained = _DOCKER if docker_runs else _NODES_OWN
    return next(
        (path for path in mounted if _name(path) not in named and not explained.search(path)), ""
    )


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

"""Nodes whose pods have their addresses from one CNI network or several, as snapshots."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from agent.model.assessment import KUBENET
from agent.model.node_network import CniFile, CniFiles, SubnetEnv
from agent.model.runtime import CONTAINERD, ContainerRuntime, RuntimeNetwork, WrittenRange
from agent.model.snapshot import NotRequested, Snapshot
from tests.builders import WORKER, cni_result, node, pod, processes, reservation, sandbox

DIRECTORY = "/etc/cni/net.d"


def network(
    name: str, plugin: str, *subnets: str, ipam: str = "host-local", more: Iterable[str] = ()
) -> RuntimeNetwork:
    """One set for each subnet, as in dual stack."""
    ranges = tuple((WrittenRange(subnet),) for subnet in subnets)
    return RuntimeNetwork(name, (plugin, *more), ipam, ranges=ranges)


def own_pools(name: str, plugin: str, ipam: str = "") -> RuntimeNetwork:
    return network(name, plugin, ipam=ipam)


def accepted(name: str, *networks: RuntimeNetwork) -> CniFile:
    return CniFile(name, None, networks[0].name, networks)


def refused(name: str, problem: str = "is empty") -> CniFile:
    return CniFile(name, problem)


def cni_files(
    *files: CniFile,
    exists: bool = True,
    subnet_env: SubnetEnv | None = None,
    missing_plugins: tuple[str, ...] | None = (),
) -> CniFiles:
    return CniFiles(DIRECTORY, files, exists, subnet_env, missing_plugins)


def flannel_env(*subnets: str, problem: str | None = None) -> SubnetEnv:
    return SubnetEnv("/run/flannel/subnet.env", problem, subnets)


def id_of(name: str, ip: str) -> str:
    return "".join(f"{ord(char):02x}" for char in name + ip)[:60].ljust(64, "0")


def pods_of(
    name: str,
    *ips: str,
    plugin: str = "bridge",
    ifname: str = "eth0",
    reserved: bool = True,
    subnet: str = "",
) -> dict[str, Any]:
    """Return the records of running pods, each with an address of a network.

    `subnet`: as libcni's cache has it; empty: it has none.
    """
    names = [f"apps/{name}-{number}" for number in range(len(ips))]
    ids = [id_of(name, ip) for ip in ips]
    results = [
        replace(
            cni_result(container_id, pod_name, *filter(None, [subnet]), network=name),
            plugin=plugin,
            ifname=ifname,
        )
        for container_id, pod_name in zip(ids, names, strict=True)
    ]
    files = [
        reservation(ip, container_id, network=name, ifname=ifname)
        for ip, container_id in zip(ips, ids, strict=True)
    ]
    status = [pod(pod_name, ip) for pod_name, ip in zip(names, ips, strict=True)]
    return {
        "reservations": files if reserved else [],
        "containers": [sandbox(*pair) for pair in zip(ids, names, strict=True)],
        "cni_results": results,
        "pods": status if ifname == "eth0" else [],
    }


def pod_node(
    networks: Sequence[RuntimeNetwork],
    *users: dict[str, Any],
    cidrs: Sequence[str] = ("10.244.1.0/24",),
    runtime: str = CONTAINERD,
    more: Iterable[Any] = (),
    **given: Any,
) -> Snapshot:
    """Build a node with these pod networks and the records of their pods."""
    records: dict[str, Any] = {}
    for source in ("reservations", "containers", "cni_results", "pods"):
        records[source] = tuple(record for user in users for record in user[source])
    values: dict[str, Any] = {
        "node": (replace(WORKER, pod_cidrs=tuple(cidrs)),),
        "runtimes": (ContainerRuntime(runtime, "1.7.24"),),
        "checkpoints": NotRequested("checkpoints", "the node has no docker"),
        "processes": (processes(),),
        "addresses": (),
    }
    snapshot = node(*more, networks=tuple(networks), **{**values, **records, **given})
    stores = tuple(store for store in snapshot.reservations if store.network != KUBENET)
    return replace(snapshot, reservations=stores)

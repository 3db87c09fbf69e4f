"""Creates the synthetic recordings: `python -m tests.nodes.make NAME...` writes them again.

The recordings are in the repository, because later versions must still read them. Recordings of real nodes are welcome:
add the output of `nodeleak record --anonymous` with the diagnosis that you expect.
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Final

from agent.model.documents import Recording, dumps
from agent.model.runtime import CONTAINERD, ContainerRuntime
from agent.model.snapshot import (
    SANDBOX_NOT_READY,
    Address,
    Checkpoint,
    CniResult,
    Container,
    Damage,
    DamagedResult,
    Known,
    NetworkStore,
    Node,
    NotRequested,
    PortMapping,
    ProcessStartTimes,
    Reservation,
    Snapshot,
    Unavailable,
)
from agent.model.watches import Evidence, Watch
from tests.builders import (
    GRACE,
    cni_result,
    empty_file,
    node,
    pod,
    processes,
    ranges,
    reservation,
    sandbox,
    without_api,
)
from tests.nodes import devices, registration, volumes

# The leaks of the incident report: addresses, container ids and pods.
SEED_LEAKS: Final = {
    130: ("950b9e02d470d2a3bf7c39100827b0b49ef00f251d4abf354069c78bc25e0a5f", "eventwatcher/container-exporter-m9d2r"),
    131: ("7e7a27ecd60f42446fe5ac4709e444f125ac88d6810de9dfd71e5721fdad0d71", "weimob-ops/k8s-sla-wqm6b"),
    132: (
        "4988eaaf02d8cd2164f81a94b264a7b6e03cf87cb0b3a76ae74679f1bd5d3e97",
        "weimob-ops/filebeat-applog-collection-rndhr",
    ),
    134: ("8190a101707a17793e8cfd35485785a9610d9c524f7f041b7dced457e79268e5", "weimob-ops/push-netstat-htjvj"),
    135: ("decef236193c498235ab5efc33498d06abc34bea58ee7a68d1110228e4e59df2", "debug/debug-agent-2r94g"),
    217: ("a1c4b1a54172d325df761de068e1ccb37040bfd7c175539912fa60232eca9b5e", "kube-system/fluentd-cz8qq"),
    235: (
        "0a917f395c84f42f6d060bee9bcbac403c396dceec88e7d4c9301493a7ad9233",
        "weimob-ops/filebeat-opslog-collection-c59hf",
    ),
}
SEED_CIDR: Final = "10.253.6.128/25"
KUBELET_STARTED: Final = datetime(2021, 3, 26, 19, 16, 59, tzinfo=UTC)


def incident() -> Snapshot:
    """A docker upgrade: the kubelet stopped, containers removed, docker upgraded, the kubelet started."""
    before, after = KUBELET_STARTED - timedelta(days=9), KUBELET_STARTED + timedelta(minutes=3)
    files, containers, checkpoints, pods = [], [], [], []
    for last in range(130, 255):
        ip = f"10.253.6.{last}"
        if last in SEED_LEAKS:
            files.append(_file(ip, SEED_LEAKS[last][0], before))
            continue
        name = f"saas-{last}/app-{last}"
        container_id = sha256(name.encode()).hexdigest()
        files.append(_file(ip, container_id, after))
        containers.append(Container(container_id, "running", int(after.timestamp()), name, f"uid-{last}", sandbox=True))
        checkpoints.append(Checkpoint(container_id, name))
        pods.append(pod(name, ip, uid=f"uid-{last}"))
    results = [
        CniResult("kubenet", container_id, "eth0", name, ranges(SEED_CIDR), "", int(before.timestamp()) * 10**9)
        for container_id, name in SEED_LEAKS.values()
    ]
    return Snapshot(
        node_name="10.12.97.31",
        taken_at=KUBELET_STARTED + timedelta(hours=9),
        uptime=timedelta(days=40),
        reservations=(NetworkStore("kubenet", Known(tuple(files))),),
        checkpoints=Known(tuple(checkpoints)),
        containers=Known(tuple(containers)),
        cni_results=Known(tuple(results)),
        addresses=Known((Address("10.253.6.129", 1, "systemd"), Address("10.12.97.31", 1, "systemd"))),
        pods=Known(tuple(pods)),
        node=Known(Node("10.12.97.31", (SEED_CIDR,), 125)),
        processes=Known(
            ProcessStartTimes(
                KUBELET_STARTED - timedelta(days=40),
                "boot",
                KUBELET_STARTED,
                KUBELET_STARTED - timedelta(minutes=6),
            )
        ),
    )


def _file(ip: str, container_id: str, made: datetime) -> Reservation:
    return Reservation("kubenet", ip, container_id, "eth0", 7000 + int(ip[9:]), 70, int(made.timestamp()) * 10**9)


def docker_silent() -> Snapshot:
    """docker is down: nothing is concluded from a reservation without an owner, an empty file, or a full range."""
    refused = Unavailable("containers", "cannot connect to docker at /var/run/docker.sock: connection refused")
    unasked = NotRequested(
        "addresses", "network namespaces were not read, because docker's list of containers is missing"
    )
    return node(reservation("10.244.1.9"), empty_file("10.244.1.10"), containers=refused, addresses=unasked)


def dual_stack() -> Snapshot:
    """Two sandboxes are gone: both addresses of one leaked; a process still uses the IPv6 address of the other."""
    lost, orphan = "7" * 64, "8" * 64
    return node(
        reservation("10.244.1.7", lost),
        reservation("fd00:10:244:1::7", lost),
        reservation("10.244.1.8", orphan),
        reservation("fd00:10:244:1::8", orphan),
        cni_result(lost, "shop/cart", "10.244.1.0/24", "fd00:10:244:1::/64"),
        Address("fd00:10:244:1::8", 4711, "java"),
        node=[Node("worker-1", ("10.244.1.0/24", "fd00:10:244:1::/64"), 110)],
    )


def api_off() -> Snapshot:
    """No API server credentials: classified by docker, checkpoints and namespaces."""
    gone = cni_result("9" * 64, "shop/cart", "10.244.1.0/24")
    return without_api(node(reservation("10.244.1.9"), gone))


def clock_moved() -> Snapshot:
    """The clock was set back two days: files lie in the future, and nothing is concluded from their age."""
    return replace(node(reservation("10.244.1.9")), taken_at=node().taken_at - timedelta(days=2))


def docker_upgrade_orphan() -> Snapshot:
    """docker lost a container that still runs."""
    return node(reservation("10.244.1.9"), Address("10.244.1.9", 4711, "java"))


def files_removed_by_hand() -> Snapshot:
    """The widely copied one-liner removed addresses in use, and one was assigned again."""
    return node(
        reservation("10.244.1.2", "4" * 64),
        sandbox("4" * 64, "shop/cart"),
        pod("shop/cart", "10.244.1.2"),
        reservations=[],
    )


def stuck_teardown() -> tuple[Snapshot, ...]:
    """The kubelet has retried a teardown for two hours: its CNI configuration was removed."""
    things = reservation("10.244.1.9"), Checkpoint("9" * 64, "shop/cart")
    return node(*things), node(*things, later=timedelta(hours=2))


def power_cut() -> Snapshot:
    """The node lost power while host-local was writing."""
    return node(empty_file("10.244.1.9"))


def containerd_leaks() -> Snapshot:
    """containerd: a sandbox was removed without a DEL, one's setup failed, and a power cut left one that stays."""
    endpoint = "/run/containerd/containerd.sock"
    removed, failed, stuck = "7" * 64, "8" * 64, "9" * 64
    booted = timedelta(minutes=90)
    now = node(
        reservation("10.244.1.7", removed, age=timedelta(hours=1)),
        reservation("10.244.1.8", failed, age=timedelta(hours=1)),
        reservation("10.244.1.9", stuck),
        replace(cni_result(removed, "shop/cart", "10.244.1.0/24"), port_mappings=(PortMapping(8080, "tcp"),)),
        sandbox(stuck, "shop/till", SANDBOX_NOT_READY),
        checkpoints=NotRequested("checkpoints", "the kubelet of this node has none"),
        runtimes=[ContainerRuntime(CONTAINERD, "1.7.24", endpoint)],
        processes=[replace(processes(booted=booted, kubelet=booted, docker=None), runtime=f"unix://{endpoint}")],
    )
    return replace(now, uptime=booted, damaged_results=(DamagedResult("kubenet", stuck, "eth0", Damage.EMPTY),))


def old_api_server() -> Snapshot:
    """An API server of the incident's age, as a daemon sees it: a pod was deleted, and nothing changed since."""
    now = node()
    return replace(now, server_version="v1.9.2", watches=Known((_shown(now, Evidence.DELETED_BELOW, "v1.9.2", 14),)))


def etcd_restored() -> Snapshot:
    """etcd was restored from a backup while one API server lagged: no event is replayed."""
    now = node()
    several = Evidence.RV_RESET, Evidence.OLDER_LIST
    watches = tuple(_shown(now, evidence, "v1.20.2", 1) for evidence in several)
    return replace(now, server_version="v1.20.2", watches=Known(watches))


def _shown(now: Snapshot, evidence: Evidence, server_version: str, count: int) -> Watch:
    first, last = now.taken_at - timedelta(minutes=count), now.taken_at - timedelta(seconds=20)
    uptime = now.uptime - timedelta(seconds=20)
    return Watch("pods", evidence, 48151, 1623, count, first, last, uptime, server_version)


NODES: Final[Mapping[str, Callable[[], Snapshot | tuple[Snapshot, ...]]]] = {
    "incident": incident,
    "docker-silent": docker_silent,
    "dual-stack": dual_stack,
    "api-off": api_off,
    "clock-moved": clock_moved,
    "docker-upgrade-orphan": docker_upgrade_orphan,
    "files-removed-by-hand": files_removed_by_hand,
    "power-cut": power_cut,
    "stuck-teardown": stuck_teardown,
    "containerd-leaks": containerd_leaks,
    "old-api-server": old_api_server,
    "etcd-restored": etcd_restored,
    **devices.NODES,
    **registration.NODES,
    **volumes.NODES,
}


def _again(snapshot: Snapshot) -> Snapshot:
    """The same node a second later, which confirms what was found."""
    later = timedelta(seconds=1)
    return replace(snapshot, taken_at=snapshot.taken_at + later, uptime=snapshot.uptime + later)


def write(names: Iterable[str]) -> None:
    for name in names:
        made = NODES[name]()
        snapshots = made if isinstance(made, tuple) else (made,)
        text = dumps(Recording(grace=GRACE, confirm_after=timedelta(0), snapshots=(*snapshots, _again(snapshots[-1]))))
        Path(__file__).with_name(f"{name}.json").write_text(json.dumps(json.loads(text), separators=(",", ":")) + "\n")


if __name__ == "__main__":
    write(sys.argv[1:] or NODES)

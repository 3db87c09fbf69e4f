"""The nodes of the golden files: those that are recorded, and with cleanups and a journal those that are built here."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final

from agent.checks import engine
from agent.cleanup.journal import RESERVATION, Entry, FileImage
from agent.cleanup.journal_store import JournalStore
from agent.model.devices import TransitionKind
from agent.model.documents import Recording, loads
from agent.model.node_network import RuntimeStatus
from agent.model.rejections import RejectionKind
from agent.model.release import BlockedBy, Blocker, Cleaning, Reason, Refusal, Verdict
from agent.model.report import Report
from agent.model.runtime import ContainerRuntime
from agent.model.snapshot import (
    Address,
    Checkpoint,
    Known,
    LeftOver,
    NetworkStore,
    Node,
    NotRequested,
    Reservation,
    SandboxFailure,
    Snapshot,
    Unavailable,
)
from tests import builders as b
from tests.builders import GRACE, NOW, node, reservation, unrecognized
from tests.checks.addresses import pod_network_nodes as pod_networks
from tests.exporters import cleanings as c
from tests.exporters.cleanings import cleaning, outcome, refused

HOUR: Final = timedelta(hours=1)
LOST: Final = reservation("10.244.1.9")
EVIL: Final = "<script>alert('x')</script>&\"<b onclick=x>\x1b[2J"
_UNUSED: Final = NetworkStore("storage", NotRequested("reservations", "the pods use another"))
_MIXED: Final = (
    "10.244.1.1",
    "10.244.1.10",
    "10.244.0.200",
    "fd00::10",
    "fd00::a",
    "fd00:0:1::1",
    "10.9.9.9",
)
_KINDS: Final = sorted(
    TransitionKind, key=TransitionKind.DROPPED.__eq__
)  # of a resource, the last one counts
_TRANSITIONS: Final = [
    b.transition(what, b.KVM, ago=HOUR, socket=b.KVM_SOCKET, exact=False) for what in _KINDS
]
_REJECTED: Final = [b.refused_pod(f"shop/{refused}", refused=refused) for refused in RejectionKind]


RECORDINGS: Final = {
    path.stem: path for path in sorted((Path(__file__).parents[1] / "nodes").glob("*.json"))
}


def leaks(count: int) -> tuple[Reservation, ...]:
    return tuple(reservation(f"10.244.1.{n}", f"{n:064x}") for n in range(4, 4 + count))


def small(max_pods: int) -> Node:
    """A Node of 13 pod addresses."""
    return replace(b.WORKER, pod_cidrs=("10.244.1.0/28",), max_pods=max_pods)


def restarted() -> Snapshot:
    """containerd restarted after the leaked address was reserved."""
    endpoint = "/run/containerd/containerd.sock"
    started = replace(b.processes(docker=None), containerd=NOW - HOUR, runtime=f"unix://{endpoint}")
    return node(
        LOST,
        checkpoints=NotRequested("checkpoints", "the kubelet of this node has none"),
        runtimes=[ContainerRuntime("containerd", "2.1.8", endpoint)],
        processes=[started],
    )


def failing_plugin() -> Snapshot:
    """Each retry of a waiting pod leaks an address; another pod waits for one of a range that was not read."""
    failures = (
        SandboxFailure("shop/waits", NOW, 'exec: "iptables": not found', "portmap", "", "add"),
        SandboxFailure(
            "shop/other", NOW, "no IP addresses available", exhausted="10.9.0.1-10.9.0.254"
        ),
    )
    lost = (replace(leak, mtime_ns=leak.mtime_ns + 10**9 * 6600) for leak in leaks(12))
    return replace(b.with_waiting_pod(node(*lost)), sandbox_failures=Known(failures))


def troubled_networks() -> Snapshot:
    """Two networks have one range, and another directory is left over."""
    other = b.cni_result("5" * 64, "shop/till", b.CIDR, network="cbr0")
    seen = node(
        reservation("10.244.1.20", "5" * 64, network="cbr0"),
        b.sandbox("5" * 64, "shop/till"),
        other,
    )
    left = LeftOver("/var/lib/cni/networks/old", 2, 0, 86_400 * 10**9, pods=1)
    store = NetworkStore("old", NotRequested("reservations", "no pod uses it"), left_over=left)
    return replace(seen, reservations=(*seen.reservations, store))


def full_secondary_network() -> Snapshot:
    """A running pod has the one address of its second network."""
    result = b.cni_result(b.DB_ID, "shop/db", "10.9.0.0/30", network="storage")
    return node(
        reservation("10.9.0.2", b.DB_ID, network="storage", ifname="net1"),
        replace(result, ifname="net1"),
    )


def shadowed_network() -> Snapshot:
    """Pods have their addresses from the sample of containerd, and the first file is empty."""
    sample = pod_networks.network("containerd-net", "bridge", "10.88.0.0/16")
    flannel = pod_networks.network("cbr0", "flannel", b.CIDR)
    files = pod_networks.cni_files(
        pod_networks.refused("05-mesh.conflist"),
        pod_networks.accepted("10-containerd-net.conflist", sample),
        pod_networks.accepted("20-flannel.conflist", flannel),
    )
    return pod_networks.pod_node(
        [sample],
        pod_networks.pods_of("containerd-net", "10.88.0.2", "10.88.0.3", subnet="10.88.0.0/16"),
        cni_files=files,
        runtime_status=RuntimeStatus(network_ready=True),
    )


def with_range(subnet: str, *ips: str) -> Snapshot:
    """A network with another range, and leaks in it."""
    taken = [reservation(ip, f"{n:064x}") for n, ip in enumerate(ips, 4)]
    return node(*taken, cni_results=[b.cni_result("f" * 64, "", subnet)], node=[])


NODES: Final[dict[str, Snapshot]] = {
    "healthy": node(),
    "dark": b.dark_node(),
    "without-api": b.without_api(node(LOST)),
    "without-containers": b.without(node(*leaks(9), unrecognized("notes")), "containers"),
    "without-pods-and-node": b.without(node(LOST), "pods", "node"),
    "one-network-unread": node(
        LOST, reservation("10.9.0.2", "5" * 64, network="other"), unread_networks=["other"]
    ),
    "one-network-unused": replace(node(LOST), reservations=(*node(LOST).reservations, _UNUSED)),
    "range-full": node(
        *leaks(11),
        processes=[b.processes(kubelet=HOUR)],
        node=[Node("worker-1", ("10.244.1.0/28",), 5)],
    ),
    "kubelet-stopped": node(
        b.waiting_pod("shop/till", ago=HOUR),
        processes=[b.processes(kubelet=None)],
        node=[replace(b.WORKER, ready=False, not_ready="Kubelet stopped posting node status.")],
    ),
    "every-state": node(
        LOST,
        Checkpoint(b.GONE, "shop/cart"),
        reservation("10.244.1.10", "8" * 64, age=timedelta(0)),
        reservation("10.244.1.11", "7" * 64),
        b.sandbox("7" * 64, "shop/till", "exited"),
        reservation("10.244.1.12", "6" * 64),
        Address("10.244.1.12", 7, "java"),
        b.empty_file("10.244.1.13"),
        unrecognized("notes"),
        unrecognized("10.244.1.77", blocks=True),
        reservation("10.244.1.14", "5" * 64, age=-HOUR),
    ),
    "foreign-names": node(
        LOST,
        b.cni_result(b.GONE, EVIL, b.CIDR),
        reservation("10.244.1.10", "8" * 64),
        Address("10.244.1.10", 7, EVIL),
        unrecognized(EVIL),
        device_plugins=b.device_plugins(b.plugin_socket(EVIL), b.registered(EVIL, "d0")),
    ),
    "order-of-addresses": node(
        *(reservation(ip, f"{n:064x}") for n, ip in enumerate(_MIXED, 4)), unrecognized("zebra")
    ),
    "outside-the-range": node(*(reservation(f"10.9.9.{n}", f"{n:064x}") for n in range(4, 50))),
    "shadowed-network": shadowed_network(),
    "range-23": with_range("10.0.0.0/23", "10.0.1.9"),
    "range-16": with_range("10.0.0.0/16", "10.0.255.9", "10.0.7.9", "10.0.7.10"),
    "range-v6": with_range("fd00::/64", "fd00::9"),
    "range-scarce": node(*leaks(10), node=[small(13)], cni_results=[]),
    "range-too-small": node(node=[small(110)], cni_results=[]),
    "secondary-full": full_secondary_network(),
    "range-unknown": node(LOST, node=[replace(b.WORKER, pod_cidrs=())], cni_results=[]),
    "containerd-restarted": restarted(),
    "plugin-fails": failing_plugin(),
    "networks-troubled": troubled_networks(),
    "plugin-late": node(device_plugins=b.late_plugins()),
    "without-processes": b.without(node(LOST, device_plugins=b.late_plugins()), "processes"),
    "plugins-many": node(
        device_plugins=b.device_plugins(*(b.registered(f"a.b/c{n:03}") for n in range(50)))
    ),
    "plugin-socket-gone": node(
        device_plugins=b.device_plugins(
            b.registered(b.KVM),
            b.transition(TransitionKind.SOCKET_GONE, socket="kubevirt-kvm.sock"),
            b.plugin_socket("odd.sock"),
        )
    ),
    "kubelet-socket-removed": node(
        device_plugins=b.device_plugins(
            b.plugin_socket(ago=HOUR, connected=False),
            b.transition(TransitionKind.KUBELET_STARTED, ago=b.UPTIME),
            b.transition(TransitionKind.REGISTERED, b.KVM, ago=b.UPTIME - timedelta(seconds=5)),
            b.transition(TransitionKind.SOCKET_GONE, socket="kubelet.sock", ago=HOUR, exact=False),
            b.transition(TransitionKind.LOST, b.KVM, ago=HOUR, exact=False),
            kubelet_socket=None,
        )
    ),
    "every-transition": node(device_plugins=b.device_plugins(*_TRANSITIONS)),
    "every-rejection": node(*_REJECTED),
    "storm-goes-on": node(
        *(
            b.refused_pod(
                f"shop/infer-{n}",
                ago=timedelta(minutes=4, seconds=-15 * n),
                refused=RejectionKind.OTHER,
                controller="ReplicaSet/infer",
            )
            for n in range(12)
        ),
        replace(b.refused_pod("kube-system/store-worker-1"), static=True),
    ),
    "history-damaged": node(device_plugins=b.device_plugins(trouble="not JSON")),
    "clocks-differ": replace(
        node(*(b.refused_pod(f"shop/render{n}", ago=timedelta(minutes=n)) for n in range(1, 20))),
        api_skew=timedelta(seconds=90),
    ),
}

_NO_POD_LIST: Final = "cannot connect to the API server at https://10.0.0.1: connection refused"
_AWAY: Final = (Unavailable("pods", _NO_POD_LIST), Unavailable("node", _NO_POD_LIST))
_COUNTING: Final = [
    Refusal(Reason.OVER_BUDGET, f"up to it there are {n}", f"--max={n}") for n in range(9)
]
CLEANINGS: Final[dict[str, Cleaning]] = {
    "released": cleaning(c.released()),
    "released with two addresses, left in a cache": cleaning(
        c.released(*c.DUAL, why="left in libcni's cache: /x")
    ),
    "dry run": cleaning(outcome(Verdict.WOULD_RELEASE), dry_run=True),
    "refused by two guards, one of which has no setting": cleaning(
        refused(c.CANDIDATE, c.UNMANAGED)
    ),
    "refused, and both can be overridden": cleaning(refused(c.CANDIDATE, c.BUDGET)),
    "one reason for many": cleaning(
        *(refused(c.BUDGET, of=(lost,)) for lost in c.many(16)), dry_run=True
    ),
    "reasons that count": cleaning(
        *(refused(no, of=(lost,)) for no, lost in zip(_COUNTING, c.many(9), strict=True))
    ),
    "busy and failed": cleaning(
        *(
            outcome(Verdict.BUSY, lost, why="another cleaner is at work")
            for lost in c.many(40)[::2]
        ),
        outcome(Verdict.FAILED, why="unlink: \x1b[2J", entry=c.ENTRY, waited=0.2),
    ),
    "an empty file": cleaning(refused(c.CANDIDATE, of=(b.empty_file("10.244.1.9"),))),
    "nothing": cleaning(free_before={"kubenet": 253}, free_after={"kubenet": 253}),
    "blocked everywhere": cleaning(
        outcome(Verdict.WOULD_RELEASE),
        dry_run=True,
        halted="it is there again",
        blockers=(
            Blocker(BlockedBy.NO_CLEANUP_NETWORK, "not set"),
            Blocker(BlockedBy.HALTED, "it is there again"),
        ),
    ),
    "blocked in one network": cleaning(
        outcome(Verdict.WOULD_RELEASE),
        dry_run=True,
        blockers=(
            Blocker(BlockedBy.NETWORK_UNWRITABLE, "cannot change /storage", network="storage"),
        ),
    ),
    "sources unavailable": cleaning(
        refused(
            Refusal(Reason.SOURCE_UNAVAILABLE, f"pods: {_NO_POD_LIST}; node: {_NO_POD_LIST}"),
            Refusal(Reason.NOT_CONFIRMED, f"its state is unknown: pods: {_NO_POD_LIST}"),
        ),
        unavailable=_AWAY,
        free_before={"kubenet": None, "storage": 4},
        free_after={"kubenet": None, "storage": 4},
        warnings=("journal: line 3",),
    ),
    "one address lacks a source": cleaning(
        refused(Refusal(Reason.SOURCE_UNAVAILABLE, "addresses: not read"))
    ),
}

_TEXT: Final = FileImage(
    RESERVATION,
    "kubenet",
    "10.244.1.9",
    f"{b.GONE}\r\neth0".encode(),
    0o600,
    1,
    2,
    7,
    1_700_000_000_000_001,
)
_BINARY: Final = FileImage("/var/lib/cni/results", "kubenet", "x", b"\xff\x00", 0o644, 0, 0, 8, 0)
RELEASED: Final = Entry(
    c.ENTRY, NOW - HOUR, "run", b.GONE, "shop/cart", (_TEXT, _BINARY), Verdict.RELEASED
)
_ENTRIES: Final = (
    RELEASED,
    replace(RELEASED, actor="clean", pod="", restored=NOW),
    replace(RELEASED, verdict=None, container_id=""),
    replace(RELEASED, verdict=Verdict.FAILED, why="unlink: permission denied \x1b[2J"),
    replace(RELEASED, restoring=NOW),
    replace(RELEASED, halted=NOW),
    replace(RELEASED, halted=NOW, resumed=NOW),
)


def write_journal(state: Path) -> None:
    """Write a journal with an entry of each kind, and a file that is none."""
    store = JournalStore(state)
    for number, entry in enumerate(_ENTRIES):
        named = replace(entry, name=f"20260326T19000{number}.000000Z-999999999999")
        store.begin(named, [])
        store.update(named, NOW)
    (state / "journal/torn.json").write_text("{")


def recording_of(name: str) -> Recording:
    if name in NODES:
        return Recording(GRACE, GRACE * 0, (NODES[name],) * 2)
    return loads(RECORDINGS[name].read_text())


def reports_of(recording: Recording) -> list[Report]:
    reports, memory = [], None
    for snapshot in recording.snapshots:
        report, memory = engine.run(
            snapshot, memory, grace=recording.grace, confirm_after=recording.confirm_after
        )
        reports.append(report)
    return reports

"""A healthy little node, and the words to say what is wrong with it.

`node()` runs two pods on the pod network and one on the host's; everything agrees. A test names the differences:
`node(reservation("10.244.1.9"))` has one file more, and to `without(node(), "pods")` the pods are unavailable.
No device plugin runs on it; `node(device_plugins=device_plugins(plugin_socket(), registered(KVM, "kvm0")))` has one.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

from agent.checks import engine
from agent.cleanup import guards
from agent.cleanup.guards import GuardContext, RuntimeHistory
from agent.cleanup.journal import Journal
from agent.model.assessment import Assessment, ClassifiedReservation, State
from agent.model.brake import Brake
from agent.model.devices import (
    Allocation,
    DevicePlugins,
    DeviceTransition,
    PluginSocket,
    Registered,
    TransitionKind,
)
from agent.model.documents import Recording
from agent.model.finding import Finding, SkippedCheck
from agent.model.node_network import RuntimeStatus
from agent.model.ranges import RangeSets, subnet_range
from agent.model.registration import LastSeen, Registration, Removal, Taint
from agent.model.rejections import Rejection, RejectionKind
from agent.model.release import Limits, Refusal
from agent.model.report import Report
from agent.model.runtime import DOCKER, ContainerRuntime, RuntimeNetwork
from agent.model.settings import PROVISION_TIME, Expected
from agent.model.snapshot import (
    SOURCES,
    Address,
    Checkpoint,
    CniResult,
    Container,
    Known,
    NetworkStore,
    Node,
    NotRequested,
    Pod,
    ProcessStartTimes,
    Reading,
    Reservation,
    Snapshot,
    Unavailable,
    UnrecognizedEntry,
)
from agent.model.volumes import Attachment, Attachments, Mount
from agent.model.watches import Evidence, Watch

Thing: TypeAlias = (
    Reservation | UnrecognizedEntry | Container | Checkpoint | CniResult | Address | Pod | Mount
)

NOW: Final = datetime(2026, 3, 26, 20, 0, tzinfo=UTC)
UPTIME: Final = timedelta(days=30)
GRACE: Final = timedelta(minutes=5)
OLD: Final = timedelta(hours=2)
CIDR: Final = "10.244.1.0/24"

KVM: Final = "devices.kubevirt.io/kvm"
KVM_SOCKET: Final = "kubevirt-kvm.sock"
BOOT_ID: Final = "11111111-2222-3333-4444-555555555555"

WORKER_UID: Final = "00000000-0000-0000-0000-00000000c0de"
INSTANCE: Final = "aws:///eu-central-1a/i-0123456789abcdef0"

OF_THE_API_SERVER: Final = (
    *("pods", "node", "registration", "autoscaler", "watches", "attachments", "brake"),
)
NON_ADDRESS_SOURCES: Final = (
    "device_plugins",
    "registration",
    "autoscaler",
    "watches",
    "mounts",
    "attachments",
    "sandbox_failures",
    "runtime_status",
    "cni_files",
    "links",
    "disks",
    "state",
)
"""The sources that have no say in addresses."""

WEB_ID, DB_ID, GONE = (
    "1" * 64,
    "2" * 64,
    "9" * 64,
)  # The sandboxes of the two pods, and one that nobody knows any more


def reservation(
    ip: str,
    container_id: str = GONE,
    *,
    age: timedelta = OLD,
    network: str = "kubenet",
    ifname: str = "eth0",
) -> Reservation:
    made = NOW - age
    content = f"{container_id}\r\n{ifname}" if ifname else container_id
    return Reservation(
        network=network,
        ip=ip,
        container_id=container_id,
        ifname=ifname if container_id else "",
        inode=1000 + sum(map(ord, network + ip)),
        size=len(content) if container_id else 0,
        mtime_ns=int(made.timestamp()) * 10**9,
    )


def empty_file(ip: str, *, age: timedelta = OLD) -> Reservation:
    return reservation(ip, "", age=age)


def unrecognized(
    name: str, *, blocks: bool = False, network: str = "kubenet", why: str = "it is a directory"
) -> UnrecognizedEntry:
    return UnrecognizedEntry(network, name, why, blocks)


def sandbox(container_id: str, pod_name: str, state: str = "running") -> Container:
    return Container(
        container_id,
        state,
        int((NOW - OLD).timestamp()),
        pod_name,
        f"uid of {pod_name}",
        sandbox=True,
    )


def pod(
    name: str,
    *ips: str,
    phase: str = "Running",
    host_network: bool = False,
    deleting: bool = False,
    uid: str = "",
) -> Pod:
    return Pod(name, uid or f"uid of {name}", phase, host_network, deleting, ips)


def cni_result(
    container_id: str,
    pod_name: str | None,
    *subnets: str,
    network: str = "kubenet",
    age: timedelta = OLD,
    namespace: str = "",
) -> CniResult:
    made = int((NOW - age).timestamp()) * 10**9
    return CniResult(network, container_id, "eth0", pod_name, ranges(*subnets), "", made, namespace)


def ranges(*subnets: str) -> RangeSets:
    """One set for each subnet, as in dual stack."""
    return tuple((subnet_range(subnet),) for subnet in subnets)


def processes(
    *,
    booted: timedelta = UPTIME,
    kubelet: timedelta | None = UPTIME,
    docker: timedelta | None = UPTIME,
) -> ProcessStartTimes:
    """Say how long ago each of them started."""
    return ProcessStartTimes(
        booted=NOW - booted,
        boot_id=BOOT_ID,
        kubelet=None if kubelet is None else NOW - kubelet,
        docker=None if docker is None else NOW - docker,
    )


def plugin_socket(
    name: str = KVM_SOCKET, *, ago: timedelta = OLD, connected: bool | None = True
) -> PluginSocket:
    """Say how long ago the plugin bound it."""
    return PluginSocket(name, NOW - ago, connected)


def registered(resource: str = KVM, *devices: str) -> Registered:
    """Without devices: known, and not registered again yet."""
    return Registered(resource, devices)


def allocation(
    pod_name: str, resource: str = KVM, *devices: str, container: str = "main"
) -> Allocation:
    return Allocation(f"uid of {pod_name}", container, resource, devices)


def transition(
    what: TransitionKind,
    resource: str = "",
    *,
    ago: timedelta = OLD,
    socket: str = "",
    exact: bool = True,
    boot_id: str = BOOT_ID,
) -> DeviceTransition:
    return DeviceTransition(what, NOW - ago, UPTIME - ago, boot_id, resource, socket, exact)


def device_plugins(
    *records: PluginSocket | Registered | Allocation | DeviceTransition,
    kubelet_socket: timedelta | None = UPTIME,
    checkpoint_written: timedelta | None = None,
    trouble: str | None = None,
) -> DevicePlugins:
    """Say how long ago the kubelet bound its socket and wrote its checkpoint.

    Where something is registered or allocated, the checkpoint was written 2 hours ago, unless another time is given.
    """
    listed = tuple(record for record in records if isinstance(record, Registered))
    allocated = tuple(record for record in records if isinstance(record, Allocation))
    if checkpoint_written is None and (listed or allocated):
        checkpoint_written = OLD
    return DevicePlugins(
        kubelet_socket=None if kubelet_socket is None else NOW - kubelet_socket,
        sockets=tuple(record for record in records if isinstance(record, PluginSocket)),
        checkpoint_written=None if checkpoint_written is None else NOW - checkpoint_written,
        registered=listed,
        allocations=allocated,
        history=tuple(record for record in records if isinstance(record, DeviceTransition)),
        trouble=trouble,
    )


def refused_pod(
    name: str,
    resource: str = KVM,
    *,
    ago: timedelta = OLD,
    refused: RejectionKind = RejectionKind.INSUFFICIENT,
    available: int = 0,
    controller: str = "",
    deleting: bool = False,
    uid: str = "",
) -> Pod:
    """A pod that the kubelet (1.20) did not admit, so long ago; it asked for one device, and never ran."""
    message = (
        f"Pod Allocate failed due to requested number of devices unavailable for {resource}. "
        f"Requested: 1, Available: {available}, which is unexpected"
    )
    return replace(
        pod(name, phase="Failed", deleting=deleting, uid=uid),
        created=NOW - ago - timedelta(minutes=1),
        wants=(resource,),
        rejection=Rejection(refused, resource, 1, available, NOW - ago, message),
        controller=controller,
    )


def late_plugins() -> DevicePlugins:
    """A plugin that registered three devices 9.536 s after the kubelet had started, an hour ago; one is given out."""
    hour, late = timedelta(hours=1), timedelta(seconds=9.536)
    return device_plugins(
        plugin_socket(ago=hour - late),
        registered(KVM, "kvm0", "kvm1", "kvm2"),
        allocation("shop/web", KVM, "kvm0"),
        transition(TransitionKind.KUBELET_STARTED, ago=hour),
        transition(TransitionKind.REGISTERED, KVM, ago=hour - late),
        kubelet_socket=hour,
        checkpoint_written=hour - late,
    )


def worker(
    *taints: Taint,
    provider_id: str = "",
    age: timedelta | None = OLD,
    name: str = "worker-1",
    uid: str = WORKER_UID,
) -> Node:
    """A Node that registered so long ago; without a provider ID, unless one is given."""
    created = None if age is None else NOW - age
    return Node(
        name, (CIDR,), 110, uid=uid, created=created, provider_id=provider_id, taints=taints
    )


def last_seen(
    ago: timedelta = timedelta(minutes=1),
    *,
    provider_id: str = INSTANCE,
    earlier_id: str | None = None,
    changed: timedelta | None = None,
    name: str = "worker-1",
    removal: Removal = Removal.NONE,
    gone: timedelta | None = None,
    in_use: timedelta | None = None,
) -> LastSeen:
    """Say how long ago the API server last had the Node, its provider ID changed, it was gone, and it was in use."""
    at, since, used = (None if past is None else NOW - past for past in (changed, gone, in_use))
    return LastSeen(name, WORKER_UID, provider_id, NOW - ago, earlier_id, at, removal, since, used)


def registration(
    last: LastSeen | None = None,
    *,
    expected: Expected = Expected.AUTO,
    kubelet_name: str | None = None,
    cloud_provider: str | None = None,
    listed_pods: int = 0,
    why: str | None = None,
    provision_time: timedelta = PROVISION_TIME,
) -> Registration:
    return Registration(
        expected, last, kubelet_name, cloud_provider, listed_pods, why, provision_time
    )


def shown(
    evidence: Evidence = Evidence.DELETED_BELOW,
    resource: str = "pods",
    *,
    ago: timedelta = timedelta(minutes=1),
    count: int = 1,
    server_version: str = "v1.9.2",
) -> Watch:
    """Say how long ago a watch showed it for the last time; the first time was a minute earlier for each time more."""
    first = NOW - ago - timedelta(minutes=count - 1)
    return Watch(resource, evidence, 40, 7, count, first, NOW - ago, UPTIME - ago, server_version)


DISK: Final = "kubernetes.io/csi/disk.example.com^vol-7"
CLOUD_DISK: Final = "kubernetes.io/aws-ebs/aws://zone-a/vol-8"


def waiting_pod(
    name: str = "shop/db-0",
    *volumes: str,
    claims: Iterable[str] = ("data-db-0",),
    ago: timedelta = OLD,
    uid: str = "",
) -> Pod:
    """A pod that was given to the node so long ago, and has not begun."""
    scheduled = NOW - ago
    return replace(
        pod(name, phase="Pending", uid=uid),
        scheduled=scheduled,
        claims=tuple(claims),
        volumes=tuple(volumes),
    )


def node_using(*in_use: str, attached: Iterable[str] = (), **changes: Any) -> Node:
    """The node, whose kubelet uses volumes of which the controller says that it has attached only some."""
    return replace(WORKER, volumes_in_use=in_use, volumes_attached=tuple(attached), **changes)


def attachments(
    *words: Attachment, failed_pods: Iterable[str] = (), not_requested: Iterable[str] = ()
) -> Attachments:
    return Attachments(words, tuple(failed_pods), tuple(not_requested))


CHECKPOINTS: Final = (Checkpoint(WEB_ID, "shop/web"), Checkpoint(DB_ID, "shop/db"))
CONTAINERS: Final = (
    sandbox(WEB_ID, "shop/web"),
    sandbox(DB_ID, "shop/db"),
    sandbox("a" * 64, "kube-system/proxy"),
    Container("b" * 64, "running", 0, "shop/web", "uid of shop/web", sandbox=False),
    Container("c" * 64, "exited", 0, "", "", sandbox=False),
)
ADDRESSES: Final = (
    Address("10.244.1.1", 1, "systemd"),
    Address("10.244.1.2", 71, "nginx"),
    Address("10.244.1.3", 72, "postgres"),
)
PODS: Final = (
    pod("shop/web", "10.244.1.2"),
    pod("shop/db", "10.244.1.3"),
    pod("kube-system/proxy", "192.168.0.7", host_network=True),
)
WORKER: Final = Node(
    "worker-1",
    (CIDR,),
    110,
    uid=WORKER_UID,
    created=NOW - UPTIME,
    provider_id=INSTANCE,
    ready=True,
    controller_attach=True,
)
NO_DEVICES: Final = device_plugins()
NO_BRAKE: Final = Brake("kube-system/nodeleak-brake", on=False)
_HEALTHY: Final[dict[str, Any]] = {
    "reservations": (reservation("10.244.1.2", WEB_ID), reservation("10.244.1.3", DB_ID)),
    "checkpoints": CHECKPOINTS,
    "containers": CONTAINERS,
    "runtimes": (ContainerRuntime(DOCKER),),
    "networks": (
        RuntimeNetwork("kubenet", ("bridge",), "host-local"),
    ),  # as the kubelet's flag names it
    "cni_results": (cni_result(WEB_ID, "shop/web", CIDR), cni_result(DB_ID, "shop/db", CIDR)),
    "addresses": ADDRESSES,
    "mounted_namespaces": (),
    "pods": PODS,
    "node": (WORKER,),
    "processes": (processes(),),
    "brake": NO_BRAKE,
    "device_plugins": NO_DEVICES,
    "registration": Registration(last=LastSeen("worker-1", WORKER_UID, INSTANCE, NOW)),
    "autoscaler": NotRequested("autoscaler", "the node is registered"),
    "watches": (),
    "mounts": (),
    "attachments": Attachments(),
    "runtime_status": RuntimeStatus(network_ready=None),
    "cni_files": NotRequested("cni_files", "kubenet needs no CNI configuration"),
    "links": NotRequested("links", "no pod waits"),
    "disks": NotRequested("disks", "no pod waits"),
}
_KINDS: Final[dict[str, type]] = {
    "reservations": Reservation, "checkpoints": Checkpoint, "containers": Container, "cni_results": CniResult,
    "addresses": Address, "pods": Pod, "mounts": Mount,
}  # fmt: skip


def node(
    *records: Thing,
    unread_networks: Iterable[str] = (),
    later: timedelta = timedelta(0),
    clock_set_by: timedelta = timedelta(0),
    **given: Any,
) -> Snapshot:
    """Build a healthy node with some `records` more, and with these readings in place of its own."""
    values: dict[str, Any] = {
        **_HEALTHY,
        **{source: value for source, value in given.items() if value is not None},
    }

    def reading(source: str, value: Any) -> Reading[Any]:
        if isinstance(value, (Unavailable, NotRequested)):
            return value
        if source in {"node", "processes"}:
            return Known(next(iter(value), None))
        if not isinstance(value, Iterable):
            return Known(value)
        return Known(
            (*value, *(record for record in records if isinstance(record, _KINDS.get(source, ()))))
        )

    readings: dict[str, Any] = {source: reading(source, value) for source, value in values.items()}
    strange = tuple(record for record in records if isinstance(record, UnrecognizedEntry))
    stores = _stores(readings.pop("reservations"), strange, tuple(unread_networks))
    return Snapshot(
        node_name="worker-1",
        taken_at=NOW + later + clock_set_by,
        uptime=UPTIME + later,
        reservations=stores,
        state=Known(value=True),
        timings=(("reservations", 0.002), ("containers", 0.03)),
        **readings,
    )


def recorded(*snapshots: Snapshot) -> Recording:
    return Recording(grace=GRACE, confirm_after=timedelta(0), snapshots=snapshots)


def the_node(snapshot: Snapshot) -> Node:
    """Return the Node object of a snapshot that has one."""
    present = snapshot.node.known()
    assert present is not None
    return present


def _stores(
    promised: Reading[tuple[Reservation, ...]],
    strange: tuple[UnrecognizedEntry, ...],
    unread_networks: tuple[str, ...],
) -> tuple[NetworkStore, ...]:
    if not isinstance(promised, Known):
        return (NetworkStore("kubenet", promised),)
    found = (*(entry.network for entry in promised.value), *(entry.network for entry in strange))
    stores = (
        NetworkStore(
            network,
            Known(tuple(entry for entry in promised.value if entry.network == network)),
            tuple(entry for entry in strange if entry.network == network),
        )
        for network in dict.fromkeys(["kubenet", *found])
        if network not in unread_networks
    )
    return (
        *stores,
        *(NetworkStore(network, unavailable("reservations")) for network in unread_networks),
    )


def unavailable(source: str) -> Unavailable:
    return Unavailable(source, "it gave no word")


def without(snapshot: Snapshot, *sources: str) -> Snapshot:
    """Say of a node that these sources could not be read."""
    unavailable_sources: dict[str, Any] = {source: unavailable(source) for source in sources}
    if "reservations" in unavailable_sources:
        stores = (
            replace(store, reading=unavailable("reservations"), unrecognized=())
            for store in snapshot.reservations
        )
        unavailable_sources["reservations"] = tuple(stores)
    return replace(snapshot, **unavailable_sources)


def dark_node() -> Snapshot:
    """Not one source answered."""
    return without(node(), *SOURCES)


def without_api(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with the API server disabled."""
    off: dict[str, Any] = {
        source: NotRequested(source, "--api=off") for source in OF_THE_API_SERVER
    }
    return replace(snapshot, **off)


def assessment(snapshot: Snapshot, grace: timedelta = GRACE) -> Assessment:
    return scanned(snapshot, grace=grace).assessment


def classify_one(
    snapshot: Snapshot, ip: str, network: str = "kubenet", grace: timedelta = GRACE
) -> ClassifiedReservation:
    """Say what one entry is."""
    (classified,) = (
        entry for entry in assessment(snapshot, grace).entries(network) if entry.name == ip
    )
    return classified


def state(snapshot: Snapshot, ip: str, network: str = "kubenet", grace: timedelta = GRACE) -> State:
    return classify_one(snapshot, ip, network, grace).state


def findings_of(detector: str, *snapshots: Snapshot) -> list[Finding]:
    """Return what a scan reports of a detector that could check everything."""
    report = scanned(*snapshots)
    assert [gap for gap in report.gaps if gap.detector == detector] == []
    return [tracked.finding for tracked in report.findings if tracked.finding.detector == detector]


def the_finding(detector: str, *snapshots: Snapshot) -> Finding:
    (finding,) = findings_of(detector, *snapshots)
    return finding


def subjects_of(detector: str, *snapshots: Snapshot) -> list[str]:
    return [finding.subject for finding in findings_of(detector, *snapshots)]


def findings_and_gap(detector: str, snapshot: Snapshot) -> tuple[list[Finding], SkippedCheck]:
    """Return what a scan reports of a detector without enough data, and what it lacks."""
    report = scanned(snapshot)
    (gap,) = (gap for gap in report.gaps if gap.detector == detector)
    assert not gap.broken
    return [
        tracked.finding for tracked in report.findings if tracked.finding.detector == detector
    ], gap


def gap_of(detector: str, snapshot: Snapshot) -> str:
    """Return why a detector found nothing."""
    findings, gap = findings_and_gap(detector, snapshot)
    assert findings == []
    return gap.why


def scanned(*snapshots: Snapshot, grace: timedelta = GRACE) -> Report:
    """Assess a node as `nodeleak scan` does: one snapshot counts twice, unless several are given."""
    if len(snapshots) == 1:
        snapshots = (snapshots[0], snapshots[0])
    return engine.replay(snapshots, grace=grace, confirm_after=timedelta(0))


def make_limits(**changes: Any) -> Limits:
    """Be as limits as the defaults are."""
    usual: dict[str, Any] = {
        "networks": frozenset({"kubenet"}),
        "grace": GRACE,
        "settle": GRACE,
        "max_share": 0.5,
    }
    return Limits(**(usual | changes))


def guard_context(*snapshots: Snapshot, limits: Limits | None = None, **known: Any) -> GuardContext:
    """Return the context of the guards after these snapshots."""
    limits = limits or make_limits()
    runtime_history = RuntimeHistory()
    for snapshot in snapshots:
        runtime_history = runtime_history.after(snapshot)
    usual: dict[str, Any] = {"actor": "run", "journal": Journal(), "journal_error": None}
    return GuardContext(
        report=scanned(*snapshots, grace=limits.grace),
        runtime_history=runtime_history,
        limits=limits,
        **(usual | known),
    )


def verdicts(context: GuardContext) -> dict[str, tuple[Refusal, ...]]:
    """Return the refusals of each release request by its addresses, in order."""
    decided = guards.decide(context)
    return {
        " ".join(file.ip for file in request.reservations): refusals
        for request, refusals in decided
    }


def with_waiting_pod(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with a pod that has waited for its sandbox for five minutes."""
    waits = replace(pod("shop/waits", phase="Pending"), scheduled=NOW - timedelta(minutes=5))
    return replace(snapshot, pods=Known((*snapshot.pods.known(), waits)))

"""READING. Each file fills the snapshot's field it is named for. Nothing under here changes anything."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from agent.checks.devices.history import with_history
from agent.checks.volumes import lost_volumes
from agent.model.devices import DevicePlugins
from agent.model.registration import Autoscaler, Registration
from agent.model.snapshot import (
    Address,
    Checkpoint,
    CniResult,
    Container,
    Known,
    Node,
    NotRequested,
    Pod,
    ProcessStartTimes,
    Reading,
    Snapshot,
    Store,
    Timing,
    Unavailable,
)
from agent.model.volumes import Attachments, Mount
from agent.model.watches import Watch
from agent.sources import crosscheck
from agent.sources.error import SourceError

T = TypeVar("T")


class Sources(Protocol):
    """Where each field of a snapshot comes from. What cannot be read raises Unavailable."""

    def reservations(self) -> tuple[Store, ...]: ...
    def checkpoints(self) -> tuple[Checkpoint, ...]: ...
    def containers(self) -> tuple[Container, ...]: ...
    def cni_results(self) -> tuple[CniResult, ...]: ...
    def processes(self) -> tuple[ProcessStartTimes, ...]: ...
    def addresses(self) -> tuple[Address, ...]: ...
    def pods(self) -> Reading[Pod]: ...
    def node(self) -> Reading[Node]: ...
    def device_plugins(self) -> Reading[DevicePlugins]: ...
    def registration(self, node: Reading[Node], pods: Reading[Pod], at: datetime, /) -> Reading[Registration]: ...
    def autoscaler(self, node: Reading[Node], registration: Reading[Registration], /) -> Reading[Autoscaler]: ...
    def watches(self) -> Reading[Watch]: ...
    def mounts(self) -> Reading[Mount]: ...
    def attachments(self, volumes: Sequence[str], pods: Sequence[Pod]) -> Reading[Attachments]: ...
    def api_skew(self) -> timedelta | None: ...
    def server_version(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Moment:
    """Now, by both clocks of the node."""

    wall: datetime
    uptime: timedelta


def take_snapshot(sources: Sources, node_name: str, now: Moment, clock: Callable[[], float]) -> Snapshot:
    """Read each source once, in the safe order. `clock`: seconds, to time the reading with."""
    timed = _Timed(clock)
    # Promises before owners: on docker (dockershim and cri-dockerd) a sandbox exists before its address is reserved,
    # so a race can hide a new reservation but never orphan a live one. Not so on containerd and CRI-O, where the
    # sandbox is listed only after the address is reserved: there only the grace period protects.
    stores = timed("reservations", sources.reservations)
    # Checkpoints are written after the container is made and removed after it is gone, so either order would do.
    checkpoints = timed("checkpoints", lambda: _ask("checkpoints", sources.checkpoints))
    containers = timed("containers", lambda: _ask("containers", sources.containers))
    cni_results = timed("cni_results", lambda: _ask("cni_results", sources.cni_results))
    processes = timed("processes", lambda: _ask("processes", sources.processes))
    device_plugins = timed("device_plugins", sources.device_plugins)
    # The API server last: its word may only save an address, and the later it speaks the more it has heard.
    pods = timed("pods", sources.pods)
    node = timed("node", sources.node)
    registration = timed("registration", lambda: sources.registration(node, pods, now.wall))
    watches = timed("watches", sources.watches)
    # Both clock and version are known from the API server's answers, so they are asked for after those.
    api_skew = sources.api_skew()

    containers = crosscheck.containers(crosscheck.runtime(containers, node), pods)
    checkpoints = crosscheck.checkpoints(checkpoints, containers)
    stores = crosscheck.reservations(stores, processes, node)
    cni_results = crosscheck.cni_results(cni_results, stores)
    pods = crosscheck.pods(pods, node, registration, node_name)
    device_plugins = crosscheck.device_plugins(device_plugins, containers, pods, node)
    addresses: Reading[Address] = NotRequested("addresses", "no reservation is known to be without an owner")
    if _some_without_owner(stores, checkpoints, containers):
        addresses = timed("addresses", lambda: _ask("addresses", sources.addresses))
        addresses = crosscheck.addresses(addresses, processes)
    mounts: Reading[Mount] = NotRequested("mounts", "no volume is missing from the node's volumesAttached")
    if isinstance(node, Known) and any(map(lost_volumes.missing, node.items)):
        mounts = crosscheck.mounts(timed("mounts", sources.mounts), processes)
    attachments: Reading[Attachments] = NotRequested("attachments", "no pod waits for a volume that is missing")
    if isinstance(node, Known) and isinstance(pods, Known):
        asked = lost_volumes.question(node.items, pods.items, now.wall, api_skew)
        if asked is not None:
            attachments = timed("attachments", lambda: sources.attachments(asked.volumes, asked.pods))
    # It may take its time, and nothing that was read before has to wait for it.
    autoscaler = timed("autoscaler", lambda: sources.autoscaler(node, registration))
    snapshot = Snapshot(
        node_name=node_name,
        taken_at=now.wall,
        uptime=now.uptime,
        reservations=stores,
        checkpoints=checkpoints,
        containers=containers,
        cni_results=cni_results,
        addresses=addresses,
        pods=pods,
        node=node,
        processes=processes,
        device_plugins=device_plugins,
        registration=registration,
        autoscaler=autoscaler,
        watches=watches,
        mounts=mounts,
        attachments=attachments,
        api_skew=api_skew,
        server_version=sources.server_version(),
        timings=tuple(timed.timings),
    )
    return with_history(snapshot)


def _ask(source: str, read: Callable[[], tuple[T, ...]]) -> Reading[T]:
    try:
        return Known(read())
    except SourceError as error:
        return Unavailable(source, str(error))


def _some_without_owner(
    stores: tuple[Store, ...], checkpoints: Reading[Checkpoint], containers: Reading[Container]
) -> bool:
    """Tell whether namespaces have anything to say. A healthy node never pays for looking into them."""
    if not isinstance(containers, Known):
        return False
    owned = {container.id for container in containers.items}
    if isinstance(checkpoints, Known):
        owned |= {checkpoint.container_id for checkpoint in checkpoints.items}
    return any(
        reservation.container_id not in owned
        for store in stores
        if isinstance(store.reading, Known)
        for reservation in store.reading.items
    )


class _Timed:
    """Keeps how long each source took."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.timings: list[Timing] = []
        self._clock = clock

    def __call__(self, source: str, read: Callable[[], T]) -> T:
        start = self._clock()
        answer = read()
        self.timings.append(Timing(source, self._clock() - start))
        return answer

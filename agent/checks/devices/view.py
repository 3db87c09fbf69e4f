"""The device plugins of one snapshot, with the history of their kubelet. Pure.

Without a battery-backed clock, a node boots with a wrong time that is corrected later. So not all
times can be compared.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from itertools import pairwise
from typing import Final

from agent.checks.devices.pairing import pair, stem
from agent.model.clocks import CLOCK_STEP
from agent.model.devices import (
    KUBELET_SOCKET,
    SURELY_DROPPED_AFTER,
    Allocation,
    DevicePlugins,
    DeviceTransition,
    TransitionKind,
)
from agent.model.snapshot import Known, NodeDevices, Pod, Snapshot, known_or

REGISTERS_WITHIN: Final = timedelta(seconds=1)
"""From the bind of a plugin's socket to its registration: 0.2 s on a real node."""
NODE_STATUS_DELAY: Final = timedelta(seconds=60)
"""From a registration to the node's status that shows it: the kubelet sends one every 10 s."""


@dataclass(frozen=True)
class KubeletRun:
    """A start of the kubelet's device manager, and the transitions until its next start.

    Lookups are computed on first use and cached (hence no `__slots__`): each of a thousand rejected
    pods asks for them.
    """

    start: DeviceTransition
    history: tuple[DeviceTransition, ...]
    end: datetime | None  # when the kubelet started again; None: this is the last run

    @cached_property
    def _by_resource(self) -> Mapping[str, tuple[DeviceTransition, ...]]:
        changes: defaultdict[str, list[DeviceTransition]] = defaultdict(list)
        for change in self.history:
            changes[change.resource].append(change)
        return {resource: tuple(listed) for resource, listed in changes.items()}

    @cached_property
    def bound(self) -> tuple[tuple[str, datetime], ...]:
        """The stem of each socket that a plugin bound, and when."""
        return tuple(
            (stem(change.socket), change.at)
            for change in self.history
            if change.what is TransitionKind.SOCKET_APPEARED
        )

    def changes(self, resource: str) -> tuple[DeviceTransition, ...]:
        return self._by_resource.get(resource, ())

    def first_registration(self, resource: str) -> DeviceTransition | None:
        for change in self.changes(resource):
            if change.what is TransitionKind.REGISTERED:
                return change
        return None


def last_by_resource(history: Iterable[DeviceTransition]) -> dict[str, DeviceTransition]:
    return {change.resource: change for change in history if change.resource}


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """Which healthy devices of one resource are allocated to pods, according to the checkpoint."""

    healthy: frozenset[str]
    allocated: frozenset[str]
    """All that have an entry. The entries of pods that have ended stay for a while."""
    of_live_pods: frozenset[str]
    of_unlisted_pods: frozenset[str]
    """Of pods that run and that the API server does not have, as after a restored etcd."""


@dataclass(frozen=True)
class DeviceView:
    """What is known of the device plugins of a snapshot.

    Lookups are computed on first use and cached (hence no `__slots__`).
    """

    snapshot: Snapshot
    plugins: DevicePlugins
    history: tuple[DeviceTransition, ...]  # oldest first

    @classmethod
    def of(cls, snapshot: Snapshot) -> "DeviceView":
        """Raises InsufficientData if the device plugins are unavailable."""
        plugins = snapshot.device_plugins.known()
        return cls(snapshot, plugins, plugins.history)

    @cached_property
    def boot_id(self) -> str:
        """The ID of this boot; empty if unavailable."""
        processes = known_or(self.snapshot.processes, None)
        return processes.boot_id if processes else ""

    @cached_property
    def runs(self) -> tuple[KubeletRun, ...]:
        """The known starts of the kubelet with what followed each, oldest first."""
        starts = [
            index
            for index, change in enumerate(self.history)
            if change.what is TransitionKind.KUBELET_STARTED
        ]

        runs = []
        for start, end in pairwise([*starts, len(self.history)]):
            next_start = self.history[end].at if end < len(self.history) else None
            changes = self.history[start + 1 : end]
            runs.append(KubeletRun(self.history[start], changes, next_start))
        return tuple(runs)

    def run_before(self, at: datetime) -> KubeletRun | None:
        """Return the last run that began before a time."""
        return next((run for run in reversed(self.runs) if run.start.at < at), None)

    @property
    def start(self) -> DeviceTransition | None:
        """The kubelet's last known start."""
        return self.runs[-1].start if self.runs else None

    @property
    def since_start(self) -> tuple[DeviceTransition, ...]:
        return self.runs[-1].history if self.runs else self.history

    @cached_property
    def last_changes(self) -> Mapping[str, DeviceTransition]:
        """The last transition of each resource."""
        return last_by_resource(self.history)

    @cached_property
    def dropped(self) -> frozenset[str]:
        """The resources that the kubelet has dropped, and that have not been registered since."""
        return frozenset(
            resource
            for resource, last in self.last_changes.items()
            if last.what is TransitionKind.DROPPED
        )

    def allocations(self, resource: str) -> list[Allocation]:
        """Return the checkpoint's entries of a resource."""
        return [entry for entry in self.plugins.allocations if entry.resource == resource]

    @cached_property
    def plugin_resources(self) -> frozenset[str]:
        """The resources that a device plugin offers or has offered, by a record of this node.

        A controller may set any other in the node's status.
        """
        allocated = (entry.resource for entry in self.plugins.allocations)
        return frozenset({*self.healthy, *self.last_changes, *allocated})

    @cached_property
    def last_in_run(self) -> Mapping[str, DeviceTransition]:
        """The last transition of each resource since the kubelet's last start."""
        return last_by_resource(self.since_start)

    def has_registered(self, resource: str) -> bool:
        """Whether that is the last transition of the resource since the kubelet's last start."""
        last = self.last_in_run.get(resource)
        return last is not None and last.what is TransitionKind.REGISTERED

    @cached_property
    def healthy(self) -> Mapping[str, tuple[str, ...]]:
        """The healthy devices of each resource in the checkpoint."""
        return {resource.resource: resource.devices for resource in self.plugins.registered}

    @cached_property
    def node_devices(self) -> Mapping[str, NodeDevices]:
        """What the node's status has of each resource; empty if that is unknown or not current."""
        node = known_or(self.snapshot.node, None)
        if node is None or not node.ready:
            return {}
        return {device.resource: device for device in node.devices}

    def node_denies(self, resource: str) -> bool:
        """Whether the kubelet reports that it has nothing of a resource to give.

        False too if the status may be older than what the kubelet last wrote.
        """
        device = self.node_devices.get(resource)
        if device is None or device.allocatable:
            return False

        changes = [self.plugins.checkpoint_written, self.plugins.kubelet_socket]
        own = self.sockets.get(resource)
        changes += [socket.made for socket in self.plugins.sockets if socket.name == own]

        return all(
            change is None or self.snapshot.taken_at - change > NODE_STATUS_DELAY
            for change in changes
        )

    @cached_property
    def connected(self) -> Mapping[str, bool | None]:
        """Whether the kubelet is connected to each socket that exists."""
        return {socket.name: socket.connected for socket in self.plugins.sockets}

    @cached_property
    def sockets(self) -> Mapping[str, str]:
        """The socket of each resource of which the evidence names one. It need not exist now."""
        resources = {*self.healthy, *self.last_changes}
        return pair(
            resources=resources,
            sockets=self.plugins.sockets,
            history=self.history,
            expected=resources - self.dropped,
        )

    @cached_property
    def assigned_sockets(self) -> frozenset[str]:
        """The stems of the sockets whose resource is known."""
        return frozenset(map(stem, self.sockets.values()))

    def is_connected(self, resource: str) -> bool | None:
        """Whether the kubelet has the stream of the resource's plugin open; None: unknown."""
        return self.connected.get(self.sockets.get(resource, ""))

    def socket_bound_at(
        self, run: KubeletRun, resource: str, since: datetime, until: datetime
    ) -> datetime | None:
        """Return when the plugin of a resource first bound its socket in that time.

        Of an unknown plugin, it may be any socket that is not assigned to another resource.
        """
        own = self.sockets.get(resource)
        plugin = stem(own) if own else None

        times = (
            at
            for name, at in run.bound
            if (name == plugin if plugin else name not in self.assigned_sockets)
        )
        return min((at for at in times if since <= at <= until), default=None)

    @cached_property
    def live_pods(self) -> Mapping[str, Pod]:
        """The pods that the API server has and that have not ended, by uid."""
        return {pod.uid: pod for pod in known_or(self.snapshot.pods, ()) if pod.live}

    @cached_property
    def running_unlisted(self) -> Mapping[str, str]:
        """The names, by UID, of pods that run and that the API server does not have.

        Empty also if the pods or the containers are unavailable.
        """
        if not isinstance(self.snapshot.pods, Known):
            return {}

        listed = {"", *(pod.uid for pod in self.snapshot.pods.value)}
        return {
            container.pod_uid: container.pod
            for container in known_or(self.snapshot.containers, ())
            if container.sandbox and container.running and container.pod_uid not in listed
        }

    @cached_property
    def uses(self) -> Mapping[str, DeviceUse]:
        """The devices of each resource that has healthy ones, and who has them."""
        uses = {}
        for resource, devices in self.healthy.items():
            entries = self.allocations(resource)
            healthy = frozenset(devices)
            uses[resource] = DeviceUse(
                healthy=healthy,
                allocated=healthy & _devices_of(entries),
                of_live_pods=healthy & _devices_of(entries, self.live_pods),
                of_unlisted_pods=healthy & _devices_of(entries, self.running_unlisted),
            )
        return uses

    def covers(self, run: KubeletRun, until: datetime) -> bool:
        """Whether the history of a run is complete until a time: it was short, or snapshots saw it.

        A plugin whose last registration is minutes after the kubelet's start has registered once.
        """
        start = run.start
        if until - start.at <= SURELY_DROPPED_AFTER:
            return True
        if start.boot_id != self.boot_id:
            return start.boot_id != ""

        seen_at = self.snapshot.taken_at - (self.snapshot.uptime - start.uptime)
        return seen_at - start.at <= SURELY_DROPPED_AFTER

    def in_this_boot(self, at: datetime) -> bool:
        """Whether the wall clock, as it is set now, can have shown this time since the boot."""
        now = self.snapshot.taken_at
        return now - self.snapshot.uptime - CLOCK_STEP <= at <= now + CLOCK_STEP

    @property
    def kubelet_of_this_boot(self) -> bool:
        """Whether the kubelet has bound its socket since the boot: the file outlives a reboot.

        A socket that a snapshot of this boot saw first is of this boot, whatever the clock says.
        """
        bound = self.plugins.kubelet_socket
        if bound is None:
            return False

        start = self.start
        seen = start is not None and start.at == bound and start.boot_id == self.boot_id != ""
        return seen or self.in_this_boot(bound)

    @property
    def kubelet_up_for(self) -> timedelta | None:
        """How long the kubelet's device manager has been up; None: not since the boot."""
        start = self.start
        if start is None or not self.kubelet_of_this_boot:
            return None

        by_wall = self.snapshot.taken_at - start.at
        seen_for = timedelta(0)
        if start.boot_id == self.boot_id:
            seen_for = self.snapshot.uptime - start.uptime

        # The wall clock counts only if the boot clock confirms it.
        confirmed = self.in_this_boot(start.at) and by_wall >= seen_for - CLOCK_STEP
        return by_wall if confirmed else seen_for

    @property
    def is_of_running_kubelet(self) -> bool:
        """Whether the directory is certainly that of the running kubelet, without `kubelet.sock`.

        A snapshot saw this kubelet's socket in it, or this kubelet wrote the checkpoint, or it
        listens on a socket of this directory that has no file now. An empty directory proves less:
        it may be one that was removed and created again elsewhere, and is only mounted here.
        """
        processes = known_or(self.snapshot.processes, None)
        if processes is None or processes.kubelet is None:
            return False

        written = self.plugins.checkpoint_written
        if written and processes.kubelet <= written <= self.snapshot.taken_at + CLOCK_STEP:
            return True

        is_empty = not self.plugins.sockets and written is None
        if self.plugins.listens_without_file and not is_empty:
            return True

        if self.start is None or self.start.boot_id != self.boot_id or not self.boot_id:
            return False
        if self.in_this_boot(self.start.at):
            return self.start.at >= processes.kubelet - CLOCK_STEP
        # The clock was set since: the kubelet ran already when a snapshot first saw the socket.
        return self.start.uptime >= processes.kubelet - processes.booted

    @property
    def kubelet_socket_gone(self) -> DeviceTransition | None:
        """When `kubelet.sock` was first seen to be gone; None: it is there, or never was."""
        changes = (change for change in self.since_start if change.socket == KUBELET_SOCKET)
        return next(changes, None) if self.plugins.kubelet_socket is None else None

    @property
    def written_since_start(self) -> bool | None:
        """Whether the running kubelet has written the checkpoint.

        None: there is no such file, or its time cannot be compared with the kubelet's start.
        """
        written = self.plugins.checkpoint_written
        bound = self.plugins.kubelet_socket
        if written is None or bound is None or not self.in_this_boot(bound):
            return None

        is_in_future = written > self.snapshot.taken_at + CLOCK_STEP
        return None if is_in_future else written >= bound


def _devices_of(
    entries: Iterable[Allocation], pods: Container[str] | None = None
) -> frozenset[str]:
    """Return the devices of some entries; `pods`: only those of these uids."""
    return frozenset(
        device
        for entry in entries
        if pods is None or entry.pod_uid in pods
        for device in entry.devices
    )

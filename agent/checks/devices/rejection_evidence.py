"""What the records show around a rejection: of the kubelet, of the plugin and of pods. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from agent.checks.devices.explanation import Window
from agent.checks.devices.kubelet_versions import checks_health
from agent.checks.devices.pairing import stem
from agent.checks.devices.view import REGISTERS_WITHIN, DeviceView, KubeletRun
from agent.model.clocks import STATUS_DELAY, WHOLE_SECOND
from agent.model.devices import ENDPOINT_GRACE, DeviceTransition, TransitionKind
from agent.model.rejections import Rejection, RejectionKind
from agent.model.snapshot import Pod, known_or
from agent.model.text import format_time, join_names

BETWEEN_SNAPSHOTS: Final = timedelta(seconds=60)
"""What a snapshot saw first may have happened this much earlier."""
BOOTING: Final = timedelta(minutes=15)
"""A kubelet that starts this soon after the node was started by its boot."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the records show around a rejection by a run of the kubelet.

    Times are windows; where they overlap, only the message can decide.
    """

    view: DeviceView
    run: KubeletRun
    pod: Pod
    rejection: Rejection
    resource: str
    at: datetime
    window: Window

    @property
    def when(self) -> str:
        return f"at {format_time(self.at)}"

    @property
    def version(self) -> str:
        """The version of the kubelet that rejected the pod; empty: unknown."""
        return "" if self.run.end else self.view.snapshot.kubelet_version

    @property
    def implies_no_device(self) -> bool:
        """Whether a kubelet says this only if it knows no healthy device of the resource."""
        return self.rejection.refused not in {
            RejectionKind.INSUFFICIENT,
            RejectionKind.POD_DEVICES_UNHEALTHY,
        }

    @property
    def implies_device(self) -> bool:
        """Whether this kubelet says this only if it knows a healthy device of the resource."""
        by_version = not self.implies_no_device and checks_health(self.version) is True
        return by_version or self.rejection.refused is RejectionKind.POD_DEVICES_UNHEALTHY

    def window_of(self, change: DeviceTransition, previous: DeviceTransition) -> Window:
        """Return when a change happened; `previous`: the one before, of the same resource."""
        if change.what is TransitionKind.REGISTERED:
            bound = self.view.socket_bound_at(self.run, self.resource, previous.at, change.at)
            if change.exact and (bound is None or change.at - bound > REGISTERS_WITHIN):
                bound = change.at
            return Window(bound or min(change.at, previous.at), change.at)

        earliest = change.at
        if not change.exact:
            seen_together = change.uptime == previous.uptime
            earliest = previous.at if seen_together else change.at - BETWEEN_SNAPSHOTS
        return Window(earliest, change.at)

    def holder_before(self, at: datetime) -> Pod | None:
        """Return a pod that this run of the kubelet gave a device of the resource before a time."""
        since = self.run.start.at
        if self.started_by_boot():  # pods may have been created before this, but not have run
            since = self._booted

        for entry in self.view.allocations(self.resource):
            pod = self.view.live_pods.get(entry.pod_uid)
            if pod is None or pod.created is None or pod.started is None:
                continue
            is_of_this_run = pod.created - since > STATUS_DELAY and pod.started > self.run.start.at
            if is_of_this_run and at - pod.started > WHOLE_SECOND:
                return pod

        return None

    def idle_since(self) -> datetime | None:
        """Return when a plugin that is connected without a healthy device bound its socket."""
        view = self.view
        is_listed = view.healthy.get(self.resource) == ()
        if self.run.end or not is_listed or not view.written_since_start:
            return None
        if view.is_connected(self.resource) is not True:
            return None

        name = view.sockets.get(self.resource)
        return next((socket.made for socket in view.plugins.sockets if socket.name == name), None)

    def node_status(self) -> str:
        """Return what the node's status has of the resource, in parentheses; empty: nothing."""
        node = known_or(self.view.snapshot.node, None)
        for device in node.devices if node else ():
            if device.resource == self.resource:
                return (
                    f" (the node's status has capacity {device.capacity}, "
                    f"allocatable {device.allocatable})"
                )
        return ""

    @property
    def _booted(self) -> datetime:
        return self.view.snapshot.taken_at - self.view.snapshot.uptime

    def started_by_boot(self) -> bool:
        """Whether no pod has had the resource since the boot that started this kubelet."""
        start = self.run.start
        for run in self.view.runs:
            is_earlier = run.start.at < start.at and run.start.boot_id == start.boot_id != ""
            if is_earlier and run.first_registration(self.resource):
                return False

        if start.boot_id and start.uptime <= BOOTING:
            return True
        return self.view.in_this_boot(start.at) and start.at - self._booted <= BOOTING

    def admitted_before(self) -> datetime | None:
        """Return when an earlier kubelet had admitted a pod that may have run until this start.

        None: nothing shows it. If the node or its runtime started in between, nothing ran; without
        the processes, it is unknown whether the runtime did.
        """
        processes = known_or(self.view.snapshot.processes, None)
        if processes is None:
            return None

        runtimes = (processes.docker, processes.containerd, processes.crio)
        began = max([self._booted, *(start for start in runtimes if start is not None)])
        for at in (self.rejection.start_time, self.pod.started):
            if at is not None and at >= began and self.run.start.at - at > WHOLE_SECOND:
                return at
        return None

    def is_same_plugin(self) -> bool:
        """Whether the plugin has been connected since before the rejection.

        Its socket is known and was not bound anew after it.
        """
        if self.resource not in self.view.sockets:
            return False
        return self.run.end is not None or self.view.is_connected(self.resource) is True

    def plugin_gone(self, lost: datetime, later: list[DeviceTransition]) -> bool | None:
        """Return whether the plugin bound its socket anew, or has not returned. None: unknown."""
        socket = self.view.sockets.get(self.resource)
        if socket is None:
            return None

        for change in later:
            if change.what is TransitionKind.REGISTERED:
                return self.socket_bound_at(lost, change.at) is not None

        if self.run.end:
            return None

        connected = self.view.connected.get(socket, False)
        if connected is not True:
            return None if connected is None else True
        bound = self.socket_bound_at(lost, self.view.snapshot.taken_at)
        return bound is not None and bound >= self.window.earliest

    def socket_bound_at(self, since: datetime, until: datetime) -> datetime | None:
        """Return when the known socket of the plugin was bound in that time."""
        if self.resource not in self.view.sockets:
            return None
        return self.view.socket_bound_at(self.run, self.resource, since, until)

    def other_sockets_bound(self, since: datetime) -> str:
        """Return what plugins of unknown resources did around the rejection, in words."""
        until = self.window.latest + ENDPOINT_GRACE
        bound = list(self._unassigned_sockets(since, until))
        if self.resource in self.view.sockets or not bound:
            return ""
        sockets = [f"{change.socket} at {format_time(change.at)}" for change in bound]
        return f"; plugins bound their sockets again: {join_names(sockets)}"

    def _unassigned_sockets(self, since: datetime, until: datetime) -> Iterator[DeviceTransition]:
        """Yield the sockets of unknown resources that were bound in that time."""
        assigned = self.view.assigned_sockets
        for change in self.run.history:
            is_bound = change.what is TransitionKind.SOCKET_APPEARED
            if is_bound and stem(change.socket) not in assigned and since <= change.at <= until:
                yield change

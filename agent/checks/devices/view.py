"""The device plugins of one snapshot, with their history in runs of the kubelet's device manager. Pure.

A node without a battery boots in the past, and its clock is set later: not all times can be compared.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from itertools import pairwise
from typing import Final

from agent.model.devices import DevicePlugins, DeviceTransition, TransitionKind
from agent.model.snapshot import Snapshot, known_or

SLACK: Final = timedelta(seconds=5)
"""How far the wall clock may drift from the boot clock; a larger difference means that it was set."""


@dataclass(frozen=True, slots=True)
class KubeletRun:
    """A start of the kubelet's device manager, and the transitions until its next start."""

    start: DeviceTransition
    history: tuple[DeviceTransition, ...]
    end: datetime | None
    """When the kubelet started again; None: this is the last run."""

    def of(self, resource: str) -> tuple[DeviceTransition, ...]:
        return tuple(transition for transition in self.history if transition.resource == resource)

    def first_registration(self, resource: str) -> DeviceTransition | None:
        registrations = (change for change in self.of(resource) if change.what is TransitionKind.REGISTERED)
        return next(registrations, None)

    def socket_bound(
        self, resource: str, sockets: Mapping[str, str], since: datetime, until: datetime
    ) -> datetime | None:
        """Return when the plugin of a resource first bound its socket in that time.

        A socket that is not known may be any but those of other resources.
        """
        socket, known = sockets.get(resource), set(sockets.values())
        appeared = (transition for transition in self.history if transition.what is TransitionKind.SOCKET_APPEARED)
        own = (
            transition.at
            for transition in appeared
            if (transition.socket == socket if socket else transition.socket not in known)
        )
        return min((at for at in own if since <= at <= until), default=None)


def kubelet_runs(history: tuple[DeviceTransition, ...]) -> tuple[KubeletRun, ...]:
    starts = [index for index, transition in enumerate(history) if transition.what is TransitionKind.KUBELET_STARTED]
    return tuple(
        KubeletRun(history[start], history[start + 1 : end], history[end].at if end < len(history) else None)
        for start, end in pairwise([*starts, len(history)])
    )


def last_by_resource(history: Iterable[DeviceTransition]) -> dict[str, DeviceTransition]:
    return {transition.resource: transition for transition in history if transition.resource}


@dataclass(frozen=True)
class DeviceView:
    """It has no slots, and keeps what was asked for. Raises InsufficientData where device plugins are unavailable."""

    snapshot: Snapshot
    history: tuple[DeviceTransition, ...]

    @classmethod
    def of(cls, snapshot: Snapshot) -> "DeviceView":
        return cls(snapshot, snapshot.device_plugins.known().history)

    @cached_property
    def plugins(self) -> DevicePlugins:
        return self.snapshot.device_plugins.known()

    @cached_property
    def boot_id(self) -> str:
        """The ID of this boot; empty if unavailable."""
        processes = known_or(self.snapshot.processes, None)
        return processes.boot_id if processes else ""

    @cached_property
    def runs(self) -> tuple[KubeletRun, ...]:
        return kubelet_runs(self.history)

    @property
    def start(self) -> DeviceTransition | None:
        """The kubelet's last known start."""
        return self.runs[-1].start if self.runs else None

    @property
    def since_start(self) -> tuple[DeviceTransition, ...]:
        return self.runs[-1].history if self.runs else self.history

    @cached_property
    def last(self) -> Mapping[str, DeviceTransition]:
        """The last transition of each resource since the kubelet's last start."""
        return last_by_resource(self.since_start)

    @cached_property
    def healthy(self) -> Mapping[str, tuple[str, ...]]:
        """The healthy devices of each resource in the checkpoint."""
        return {resource.resource: resource.devices for resource in self.plugins.registered}

    @cached_property
    def connected(self) -> Mapping[str, bool | None]:
        """Whether the kubelet is connected to each socket that exists."""
        return {socket.name: socket.connected for socket in self.plugins.sockets}

    @cached_property
    def sockets(self) -> Mapping[str, str]:
        """The socket of each resource, where known; the socket need not exist now.

        No file says it: some plugins follow a convention.
        """
        resources = dict.fromkeys([*self.healthy, *last_by_resource(self.history)])
        names = {*self.connected, *(transition.socket for transition in self.history)}
        paired = {resource: socket for resource in resources for socket in _conventional(resource) if socket in names}
        if len(resources) == len(self.connected) == 1 and not paired:
            return dict(zip(resources, self.connected, strict=True))
        return paired

    def in_this_boot(self, at: datetime) -> bool:
        """Whether the wall clock, as it is set now, can have shown this time since the node booted."""
        return self.snapshot.taken_at - self.snapshot.uptime - SLACK <= at <= self.snapshot.taken_at + SLACK

    @property
    def kubelet_of_this_boot(self) -> bool:
        """Whether the kubelet has bound its socket since the boot: a socket file outlives a reboot.

        A socket that a snapshot of this boot saw appear is of this boot, however the clock was set since.
        """
        bound, start = self.plugins.kubelet_socket, self.start
        if bound is None:
            return False
        seen = start is not None and start.at == bound and start.boot_id == self.boot_id != ""
        return self.in_this_boot(bound) or seen

    @property
    def written_since_start(self) -> bool | None:
        """Whether the running kubelet has written the checkpoint; None: the two times cannot be compared."""
        written, bound = self.plugins.checkpoint_written, self.plugins.kubelet_socket
        if written is None or bound is None or not self.in_this_boot(bound):
            return None
        return None if written > self.snapshot.taken_at + SLACK else written >= bound


def _conventional(resource: str) -> Iterator[str]:
    """KubeVirt (`generic_device.go`, `pci_device.go`) and NVIDIA (`internal/plugin/server.go`)."""
    vendor, _, name = resource.partition("/")
    if vendor == "devices.kubevirt.io":
        yield f"kubevirt-{name}.sock"
    if vendor == "nvidia.com":
        yield f"nvidia-{name}.sock"
    yield f"kubevirt-{resource.replace('/', '-')}.sock"

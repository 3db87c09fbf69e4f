"""The device plugins of one snapshot, with their history in runs of the kubelet, and the state of each resource. Pure.

A node without a battery boots in the past, and its clock is set later: not all times can be compared.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from itertools import pairwise
from typing import Final

from agent.model.bug import bug_of
from agent.model.clocks import CLOCK_STEP
from agent.model.devices import (
    ENDPOINT_GRACE,
    KUBELET_SOCKET,
    DevicePlugins,
    DeviceTransition,
    ResourceState,
    TransitionKind,
)
from agent.model.snapshot import Known, Snapshot, Unavailable, known_or

REGISTERED, DROPPED = TransitionKind.REGISTERED, TransitionKind.DROPPED


@dataclass(frozen=True, slots=True)
class KubeletRun:
    """A start of the kubelet's device manager, and the transitions until its next start."""

    start: DeviceTransition
    history: tuple[DeviceTransition, ...]
    end: datetime | None  # when the kubelet started again; None: this is the last run

    def of(self, resource: str) -> tuple[DeviceTransition, ...]:
        return tuple(transition for transition in self.history if transition.resource == resource)

    def first_registration(self, resource: str) -> DeviceTransition | None:
        registrations = (
            change for change in self.of(resource) if change.what is TransitionKind.REGISTERED
        )
        return next(registrations, None)


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
        history = self.history
        starts = [
            index
            for index, change in enumerate(history)
            if change.what is TransitionKind.KUBELET_STARTED
        ]
        return tuple(
            KubeletRun(
                history[start],
                history[start + 1 : end],
                history[end].at if end < len(history) else None,
            )
            for start, end in pairwise([*starts, len(history)])
        )

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
    def ever(self) -> Mapping[str, DeviceTransition]:
        """The last transition of each resource."""
        return last_by_resource(self.history)

    @cached_property
    def last(self) -> Mapping[str, DeviceTransition]:
        """The last transition of each resource since the kubelet's last start."""
        return last_by_resource(self.since_start)

    @cached_property
    def registered(self) -> frozenset[str]:
        """The resources that are registered, according to their last transition since the kubelet's last start."""
        return frozenset(
            resource for resource, last in self.last.items() if last.what is REGISTERED
        )

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
        """The socket of each resource, where a convention or its being the only one tells it; it need not exist now."""
        resources = dict.fromkeys([*self.healthy, *self.ever])
        names = {*self.connected, *(transition.socket for transition in self.history)}
        paired = {
            resource: socket
            for resource in resources
            for socket in _conventional(resource)
            if socket in names
        }
        if len(resources) == len(self.connected) == 1 and not paired:
            return dict(zip(resources, self.connected, strict=True))
        return paired

    def socket_bound(
        self, run: KubeletRun, resource: str, since: datetime, until: datetime
    ) -> datetime | None:
        """Return when a plugin first bound its socket in that time: if it is not known, any but those of others."""
        socket, known = self.sockets.get(resource), set(self.sockets.values())
        appeared = (
            change for change in run.history if change.what is TransitionKind.SOCKET_APPEARED
        )
        own = (
            change.at
            for change in appeared
            if (change.socket == socket if socket else change.socket not in known)
        )
        return min((at for at in own if since <= at <= until), default=None)

    def transition(
        self,
        what: TransitionKind,
        at: datetime | None = None,
        resource: str = "",
        socket: str = "",
        exact: bool = False,
    ) -> DeviceTransition:
        """Return a transition that this snapshot sees first. Without a time: it was seen now."""
        now, uptime = self.snapshot.taken_at, self.snapshot.uptime
        return DeviceTransition(what, at or now, uptime, self.boot_id, resource, socket, exact)

    def in_this_boot(self, at: datetime) -> bool:
        """Whether the wall clock, as it is set now, can have shown this time since the node booted."""
        return (
            self.snapshot.taken_at - self.snapshot.uptime - CLOCK_STEP
            <= at
            <= self.snapshot.taken_at + CLOCK_STEP
        )

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
        """Whether the running kubelet has written the checkpoint; None: the two times cannot be compared."""
        written, bound = self.plugins.checkpoint_written, self.plugins.kubelet_socket
        if written is None or bound is None or not self.in_this_boot(bound):
            return None
        return None if written > self.snapshot.taken_at + CLOCK_STEP else written >= bound


def _conventional(resource: str) -> Iterator[str]:
    """KubeVirt (`generic_device.go`, `pci_device.go`) and NVIDIA (`internal/plugin/server.go`)."""
    vendor, _, name = resource.partition("/")
    if vendor == "devices.kubevirt.io":
        yield f"kubevirt-{name}.sock"
    if vendor == "nvidia.com":
        yield f"nvidia-{name}.sock"
    yield f"kubevirt-{resource.replace('/', '-')}.sock"


def resource_states(snapshot: Snapshot) -> tuple[ResourceState, ...]:
    """Return every resource that the kubelet knows or should know, by name.

    A resource that only the Node names is expected if its capacity is 0, as the kubelet leaves it when it drops the
    resource, and a pod requests it: the 0 stays forever after a plugin is uninstalled. Any other capacity was set by
    hand. A resource that was dropped before the kubelet's last start is not expected: its plugin was removed. One that
    another has replaced is expected only if it is still requested.
    """
    view = DeviceView.of(snapshot)
    optional = optional_resources(view)
    names = {
        *view.ever,
        *view.healthy,
        *(resource for resource, requested in optional.items() if requested),
    }
    names -= {resource for resource, requested in optional.items() if requested is False}
    names -= {
        resource
        for resource, last in view.ever.items()
        if last.what is DROPPED and resource not in view.last
    }
    return tuple(_state(resource, view) for resource in sorted(names))


def optional_resources(view: DeviceView) -> dict[str, bool | None]:
    """Return what is expected only if it is requested, and whether it is; None: not known."""
    node = known_or(view.snapshot.node, None)
    without_capacity = (
        {device.resource for device in node.devices if not device.capacity} if node else set()
    )
    dropped = (resource for resource, last in view.ever.items() if last.what is DROPPED)
    replaced = {resource for resource in dropped if _is_replaced(resource, view)}
    optional = replaced | without_capacity.difference(view.ever, view.healthy)
    return {resource: _requested(resource, view.snapshot) for resource in optional}


def _is_replaced(resource: str, view: DeviceView) -> bool:
    """Whether the plugin of a dropped resource offers it under another name now, as after a change of MIG.

    That is if a resource of the vendor registered for the first time after the loss. If a resource that had registered
    before outlasts the loss, the vendor has several plugins, and the new resource may be that of another plugin.
    """
    vendor, lost = resource.partition("/")[0] + "/", _last_loss(resource, view.history)
    before, since = set[str](), set[str]()
    for index, change in enumerate(view.history if lost else ()):
        if change.what is REGISTERED and change.resource.startswith(vendor):
            if index >= lost or change.resource in view.registered:
                since.add(change.resource)
            # The snapshot that saw the loss may have seen the new resource too, as earlier of the two.
            if index < lost and change.uptime != view.history[lost].uptime:
                before.add(change.resource)
    return bool(since) and since.isdisjoint(before)


def _last_loss(resource: str, history: Sequence[DeviceTransition]) -> int:
    """Return the index of what ended the last registration of a dropped resource; 0: no registration is known."""
    lost, registered = 0, False
    for index, change in enumerate(history):
        if change.resource == resource and change.what is REGISTERED:
            registered = True
        elif registered and (
            change.resource == resource or change.what is TransitionKind.KUBELET_STARTED
        ):
            lost, registered = index, False
    return lost


def _requested(resource: str, snapshot: Snapshot) -> bool | None:
    """Whether a pod requests a resource, or the node's status has some of it; None: not known."""
    node, pods = known_or(snapshot.node, None), known_or(snapshot.pods, ())
    capacity = {device.resource for device in node.devices if device.capacity} if node else set()
    if resource in capacity or any(
        resource in pod.wants for pod in pods if pod.live or pod.rejection is not None
    ):
        return True
    return None if Unavailable in {type(snapshot.pods), type(snapshot.node)} else False


def kubelet_up_for(view: DeviceView) -> timedelta | None:
    """Return how long the kubelet's device manager has been up; None: it has not started since the boot."""
    start, snapshot = view.start, view.snapshot
    if start is None or not view.kubelet_of_this_boot:
        return None
    seen_for = snapshot.uptime - start.uptime if start.boot_id == view.boot_id else timedelta(0)
    by_wall = snapshot.taken_at - start.at
    # The wall clock, if the boot clock confirms it; otherwise how long it has been seen.
    return by_wall if view.in_this_boot(start.at) and by_wall >= seen_for - CLOCK_STEP else seen_for


def _state(resource: str, view: DeviceView) -> ResourceState:
    socket = view.sockets.get(resource, "")
    healthy, connected = len(view.healthy.get(resource, ())), view.connected.get(socket)
    registered, last = _registered(resource, healthy, connected, view), view.last.get(resource)
    return ResourceState(
        resource=resource,
        devices=None if registered is None else healthy if registered else 0,
        allocated=_allocated(resource, view),
        registered=registered,
        registered_since=last.at if registered and last and last.what is REGISTERED else None,
        delay=_delay(resource, view),
        socket=socket,
        socket_present=socket in view.connected if socket else None,
        connected=connected,
    )


def _registered(
    resource: str, healthy: int, connected: bool | None, view: DeviceView
) -> bool | None:
    last = view.last.get(resource)
    if view.plugins.kubelet_socket is None:
        # Nothing can register. A stream that is open stays open; no file says that it has ended.
        without_device = resource in view.healthy and not healthy
        was_registered = last.what is REGISTERED if last is not None else bool(healthy)
        return connected if was_registered and not without_device else False
    if not view.kubelet_of_this_boot:
        # By the current clock. If it was set since, only the open stream proves a registration.
        return bool(healthy) and connected is True
    if last is not None:
        return last.what is REGISTERED and connected is not False
    if not healthy:
        return False
    return connected if view.written_since_start is None else connected is True


def _allocated(resource: str, view: DeviceView) -> int | None:
    if not isinstance(view.snapshot.pods, Known):
        return None
    live = {pod.uid for pod in view.snapshot.pods.value if pod.live}
    own = (allocation for allocation in view.plugins.allocations if allocation.resource == resource)
    # An init container's device may be given to another container of its pod: then it has two entries.
    given = {(allocation.pod_uid, device) for allocation in own for device in allocation.devices}
    return sum(pod_uid in live for pod_uid, _ in given)


def _delay(resource: str, view: DeviceView) -> timedelta | None:
    run = view.runs[-1] if view.runs else None
    first = run.first_registration(resource) if run else None
    if run is None or first is None:
        return None
    at: datetime | None = first.at
    if not first.exact:  # a plugin binds its socket a moment before it registers
        at = (
            view.socket_bound(run, resource, run.start.at, first.at)
            if resource in view.sockets
            else None
        )
    return at - run.start.at if at is not None and at >= run.start.at else None


MAX_TRANSITIONS: Final = 256
LATE: Final = timedelta(
    seconds=60
)  # a checkpoint older than this need not be the first version with its content
PROMPTLY: Final = timedelta(seconds=1)
"""A plugin registers this soon after it bound its socket: within 0.2 s on a real node."""


def with_history(snapshot: Snapshot) -> Snapshot:
    """Add the transitions of a snapshot to the history in it. Doing it again adds nothing."""
    if not isinstance(snapshot.device_plugins, Known) or snapshot.device_plugins.value.complete:
        return snapshot
    try:
        history = derive(snapshot)
    except Exception as error:  # noqa: BLE001 (of every source, only this one is unavailable then)
        bug = bug_of("source", "device_plugins", error)
        unread = Unavailable("device_plugins", bug.reason)
        return replace(snapshot, device_plugins=unread, bugs=(*snapshot.bugs, bug))
    completed = replace(snapshot.device_plugins.value, history=history, complete=True)
    return replace(snapshot, device_plugins=Known(completed))


def derive(snapshot: Snapshot) -> tuple[DeviceTransition, ...]:
    """Return the transitions up to this snapshot, oldest first."""
    past = DeviceView.of(snapshot)
    in_files = [*_kubelet(past), *_sockets(past)]
    with_files = DeviceView(snapshot, (*past.history, *_in_order(in_files, past)))
    return _bounded((*past.history, *_in_order([*in_files, *_resources(with_files)], past)), past)


def _kubelet(view: DeviceView) -> Iterator[DeviceTransition]:
    bound = view.plugins.kubelet_socket
    if bound is not None and (view.start is None or view.start.at != bound):
        # A socket that is older than this boot is of an unknown boot.
        boot = view.boot_id if view.in_this_boot(bound) else ""
        yield DeviceTransition(TransitionKind.KUBELET_STARTED, bound, view.snapshot.uptime, boot)
    if bound is None and view.start is not None and view.kubelet_socket_gone is None:
        yield view.transition(TransitionKind.SOCKET_GONE, socket=KUBELET_SOCKET)


def _sockets(view: DeviceView) -> Iterator[DeviceTransition]:
    last = {transition.socket: transition for transition in view.history if transition.socket}
    known = {
        name: before.at
        for name, before in last.items()
        if before.what is not TransitionKind.SOCKET_GONE and name != KUBELET_SOCKET
    }
    present = {socket.name: socket.made for socket in view.plugins.sockets}
    for name, made in sorted(present.items()):
        if known.get(name) != made:
            yield view.transition(TransitionKind.SOCKET_APPEARED, made, socket=name, exact=True)
    for name in known:
        if name not in present:
            yield view.transition(TransitionKind.SOCKET_GONE, socket=name)


def _resources(view: DeviceView) -> list[DeviceTransition]:
    """Return what a snapshot adds to the history of resources. `view`: with the transitions of files.

    The kubelet writes its checkpoint when a plugin reports devices or a pod is given some, not when it starts and not
    when a plugin disconnects. So it proves a registration only if the running kubelet wrote it.
    """
    if view.plugins.kubelet_socket is None and view.is_of_running_kubelet:
        return [*_losses(view, view.last)]
    if not view.kubelet_of_this_boot:
        return []
    registered = [*_registrations(view)]
    dropped = [*_drops(view)]
    last = {**view.last, **last_by_resource(registered)}
    for transition in dropped:
        last.pop(transition.resource, None)
    return [*registered, *_losses(view, last), *dropped]


def _registrations(view: DeviceView) -> Iterator[DeviceTransition]:
    by_file = []
    for resource, devices in view.healthy.items():
        before = view.last.get(resource)
        if not devices or resource in view.registered:
            continue
        if view.written_since_start and _written_after(view, before):
            by_file.append(resource)
        # The plugin's stream shows a registration that the file need not have.
        elif (before is not None or view.written_since_start is None) and _connected(
            view, resource
        ) is True:
            yield view.transition(REGISTERED, resource=resource)
    # Several registrations can be in the same version of the file, which has a single time.
    for resource in by_file:
        at, exact = _registration_time(view, resource, alone=len(by_file) == 1)
        yield view.transition(REGISTERED, at, resource=resource, exact=exact)


def _registration_time(view: DeviceView, resource: str, *, alone: bool) -> tuple[datetime, bool]:
    """Return when the checkpoint's registration was, and whether that is exact.

    The kubelet also writes the file whenever it gives a device to a pod. So the file's time is the registration's
    only if it follows the plugin's socket, or if an earlier snapshot saw that the resource was not registered.
    """
    plugins, now = view.plugins, view.snapshot.taken_at
    written = plugins.checkpoint_written or now
    if bound := _bound_for_registration(view, resource, written):
        return (written if written - bound <= PROMPTLY else bound), True
    start = DeviceView.of(view.snapshot).start
    run_seen_before = start is not None and start.at == plugins.kubelet_socket
    return written, alone and run_seen_before and abs(now - written) <= LATE


def _bound_for_registration(view: DeviceView, resource: str, written: datetime) -> datetime | None:
    """Return when the plugin bound its socket for this registration, as far as earlier snapshots tell."""
    appeared = TransitionKind.SOCKET_APPEARED, view.sockets.get(resource)
    bound = [change for change in view.history if (change.what, change.socket) == appeared]
    lost = view.last.get(resource)
    since = view.plugins.kubelet_socket if lost is None else lost.at
    if not bound or since is None or not since < bound[-1].at <= written:
        return None
    # An earlier snapshot may have seen the socket, and that the resource was not registered promptly.
    since_bound = view.snapshot.taken_at - bound[-1].at
    seen_after = since_bound - (view.snapshot.uptime - bound[-1].uptime)
    seen_unregistered = bound[-1] in view.plugins.history and seen_after > PROMPTLY
    return None if seen_unregistered else bound[-1].at


def _losses(view: DeviceView, last: Mapping[str, DeviceTransition]) -> Iterator[DeviceTransition]:
    for resource, before in last.items():
        if before.what is not REGISTERED:
            continue
        if resource in view.healthy and not view.healthy[resource]:
            yield _in_checkpoint(view, TransitionKind.LOST, before)
        elif _connected(view, resource) is False:
            yield view.transition(TransitionKind.LOST, resource=resource)


def _drops(view: DeviceView) -> Iterator[DeviceTransition]:
    bound, now = view.plugins.kubelet_socket, view.snapshot.taken_at
    if bound is None or not view.written_since_start or now - bound < ENDPOINT_GRACE:
        return
    for resource, before in view.ever.items():
        if resource not in view.healthy and before.what is not DROPPED:
            yield _in_checkpoint(view, DROPPED, before)


def _connected(view: DeviceView, resource: str) -> bool | None:
    return view.connected.get(view.sockets.get(resource, ""))


def _written_after(view: DeviceView, before: DeviceTransition | None) -> bool:
    written = view.plugins.checkpoint_written
    return written is not None and (before is None or written > before.at)


def _in_checkpoint(
    view: DeviceView, what: TransitionKind, before: DeviceTransition
) -> DeviceTransition:
    written = view.plugins.checkpoint_written
    if written is None or not _written_after(view, before):
        return view.transition(what, resource=before.resource)
    exact = abs(view.snapshot.taken_at - written) <= LATE
    return view.transition(what, written, resource=before.resource, exact=exact)


def _in_order(transitions: list[DeviceTransition], view: DeviceView) -> list[DeviceTransition]:
    """Sort by time, or by rank if the clock was set in between: when the kubelet starts, it removes every socket."""
    comparable, ranks = (
        all(view.in_this_boot(transition.at) for transition in transitions),
        list(TransitionKind),
    )

    def sort_key(transition: DeviceTransition) -> tuple[object, ...]:
        at, rank = transition.at, ranks.index(transition.what)
        return *((at, rank) if comparable else (rank, at)), transition.resource, transition.socket

    return sorted(transitions, key=sort_key)


def _bounded(
    history: tuple[DeviceTransition, ...], view: DeviceView
) -> tuple[DeviceTransition, ...]:
    """Drop the oldest transitions, but keep the last of each subject: without it, it would be found again."""
    older, recent = history[:-MAX_TRANSITIONS], history[-MAX_TRANSITIONS:]
    # A transition without resource and socket is a start of the kubelet.
    last = {transition.resource or transition.socket: transition for transition in history}
    present = {
        change
        for change in last.values()
        if change.socket in view.connected or change.socket in {"", KUBELET_SOCKET}
    }
    kept = [change for change in older if change in present]
    return (*kept[-MAX_TRANSITIONS:], *recent)

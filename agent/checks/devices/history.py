"""The device history: the transitions that earlier snapshots saw, and those that this snapshot adds. Pure.

The kubelet writes its checkpoint when a plugin reports devices or a pod is given some, not when it starts and not when
a plugin disconnects. So devices in a checkpoint prove a registration only if the running kubelet wrote the checkpoint.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from agent.checks.devices.state import DeviceView, kubelet_runs, last_by_resource
from agent.model.devices import ENDPOINT_GRACE, DeviceTransition, TransitionKind
from agent.model.snapshot import Known, Snapshot

MAX_TRANSITIONS: Final = 256
LATE: Final = timedelta(seconds=60)
"""A checkpoint older than this need not be the first version with its content."""
PROMPTLY: Final = timedelta(seconds=1)
"""A plugin registers this soon after it bound its socket: within 0.2 s on a real node."""


def with_history(snapshot: Snapshot) -> Snapshot:
    """Add the transitions of a snapshot to the history in it. Doing it again adds nothing."""
    if not isinstance(snapshot.device_plugins, Known) or snapshot.device_plugins.value.complete:
        return snapshot
    completed = replace(snapshot.device_plugins.value, history=derive(snapshot), complete=True)
    return replace(snapshot, device_plugins=Known(completed))


def derive(snapshot: Snapshot) -> tuple[DeviceTransition, ...]:
    """Return the transitions up to this snapshot, oldest first."""
    past = DeviceView.of(snapshot)
    in_files = [*_kubelet(past), *_sockets(past)]
    with_files = DeviceView(snapshot, (*past.history, *_in_order(in_files, past)))
    in_resources = _Resources(with_files).changes()
    return _bounded((*past.history, *_in_order([*in_files, *in_resources], past)), past)


def _kubelet(view: DeviceView) -> Iterator[DeviceTransition]:
    bound = view.plugins.kubelet_socket
    if bound is not None and (view.start is None or view.start.at != bound):
        # A socket that is older than this boot is of an unknown boot.
        boot = view.boot_id if view.in_this_boot(bound) else ""
        yield DeviceTransition(TransitionKind.KUBELET_STARTED, bound, view.snapshot.uptime, boot)


def _sockets(view: DeviceView) -> Iterator[DeviceTransition]:
    last = {transition.socket: transition for transition in view.history if transition.socket}
    known = {name: before.at for name, before in last.items() if before.what is not TransitionKind.SOCKET_GONE}
    present = {socket.name: socket.made for socket in view.plugins.sockets}
    for name, made in sorted(present.items()):
        if known.get(name) != made:
            yield _transition(view, TransitionKind.SOCKET_APPEARED, made, socket=name)
    for name in known:
        if name not in present:
            yield _transition(view, TransitionKind.SOCKET_GONE, view.snapshot.taken_at, socket=name, exact=False)


@dataclass(frozen=True, slots=True)
class _Resources:
    """What a snapshot adds to the history of resources."""

    view: DeviceView
    """With the transitions of files."""

    def changes(self) -> list[DeviceTransition]:
        if not self.view.kubelet_of_this_boot:
            return []
        registered = [*self._registered()]
        last = {**self.view.last, **last_by_resource(registered)}
        return [*registered, *self._lost(last), *self._dropped([*self.view.history, *registered])]

    def _registered(self) -> Iterator[DeviceTransition]:
        written = self.view.written_since_start
        # Several registrations can be in the same version of the file, which has a single time.
        by_file, by_stream = [], []
        for resource, devices in self.view.healthy.items():
            before = self.view.last.get(resource)
            if not devices or (before is not None and before.what is TransitionKind.REGISTERED):
                continue
            if written and self._written_after(before):
                by_file.append(resource)
            elif self._shown_by_stream(resource, before):
                by_stream.append(self._change(TransitionKind.REGISTERED, resource))
        for resource in by_file:
            at, exact = self._registration_time(resource, alone=len(by_file) == 1)
            yield self._change(TransitionKind.REGISTERED, resource, at, exact)
        yield from by_stream

    def _shown_by_stream(self, resource: str, before: DeviceTransition | None) -> bool:
        """Whether the plugin's stream shows a registration that the file need not have."""
        lost_or_unclear = before is not None or self.view.written_since_start is None
        return lost_or_unclear and self._connected(resource) is True

    def _registration_time(self, resource: str, *, alone: bool) -> tuple[datetime, bool]:
        """Return when the checkpoint's registration was, and whether that is exact.

        The kubelet also writes the file whenever it gives a device to a pod. So the file's time is the registration's
        only if it follows the plugin's socket, or if an earlier snapshot saw that the resource was not registered.
        """
        plugins, now = self.view.plugins, self.view.snapshot.taken_at
        written = plugins.checkpoint_written or now
        if bound := self._socket_bound(resource, written):
            return (written if written - bound <= PROMPTLY else bound), True
        known = kubelet_runs(plugins.history)
        run_seen_before = bool(known) and known[-1].start.at == plugins.kubelet_socket
        return written, alone and run_seen_before and abs(now - written) <= LATE

    def _socket_bound(self, resource: str, written: datetime) -> datetime | None:
        """Return when the plugin bound its socket for this registration, as far as earlier snapshots tell."""
        view, socket = self.view, self.view.sockets.get(resource)
        appeared = TransitionKind.SOCKET_APPEARED, socket
        bound = [change for change in view.history if (change.what, change.socket) == appeared]
        lost = view.last.get(resource)
        since = view.plugins.kubelet_socket if lost is None else lost.at
        if not bound or since is None or not since < bound[-1].at <= written:
            return None
        # An earlier snapshot may have seen the socket, and that the resource was not registered promptly.
        seen = view.snapshot.taken_at - (view.snapshot.uptime - bound[-1].uptime)
        seen_unregistered = bound[-1] in view.plugins.history and seen - bound[-1].at > PROMPTLY
        return None if seen_unregistered else bound[-1].at

    def _lost(self, last: dict[str, DeviceTransition]) -> Iterator[DeviceTransition]:
        for resource, before in last.items():
            if before.what is not TransitionKind.REGISTERED or resource not in self.view.healthy:
                continue
            if not self.view.healthy[resource]:
                yield self._in_checkpoint(TransitionKind.LOST, resource, before)
            elif self._connected(resource) is False:
                yield self._change(TransitionKind.LOST, resource)

    def _dropped(self, history: Iterable[DeviceTransition]) -> Iterator[DeviceTransition]:
        bound, now = self.view.plugins.kubelet_socket, self.view.snapshot.taken_at
        if bound is None or not self.view.written_since_start or now - bound < ENDPOINT_GRACE:
            return
        for resource, before in last_by_resource(history).items():
            if resource not in self.view.healthy and before.what is not TransitionKind.DROPPED:
                yield self._in_checkpoint(TransitionKind.DROPPED, resource, before)

    def _connected(self, resource: str) -> bool | None:
        return self.view.connected.get(self.view.sockets.get(resource, ""))

    def _written_after(self, before: DeviceTransition | None) -> bool:
        written = self.view.plugins.checkpoint_written
        return written is not None and (before is None or written > before.at)

    def _in_checkpoint(self, what: TransitionKind, resource: str, before: DeviceTransition) -> DeviceTransition:
        written = self.view.plugins.checkpoint_written
        if written is None or not self._written_after(before):
            return self._change(what, resource)
        return self._change(what, resource, written, abs(self.view.snapshot.taken_at - written) <= LATE)

    def _change(
        self, what: TransitionKind, resource: str, at: datetime | None = None, exact: bool = False
    ) -> DeviceTransition:
        """Without a time: it was seen now."""
        return _transition(self.view, what, at or self.view.snapshot.taken_at, resource, exact=exact)


def _transition(
    view: DeviceView, what: TransitionKind, at: datetime, resource: str = "", socket: str = "", exact: bool = True
) -> DeviceTransition:
    return DeviceTransition(what, at, view.snapshot.uptime, view.boot_id, resource, socket, exact)


def _in_order(transitions: list[DeviceTransition], view: DeviceView) -> list[DeviceTransition]:
    """Sort by time, or by rank if the clock was set in between: when the kubelet starts, it removes every socket."""
    comparable, ranks = all(view.in_this_boot(transition.at) for transition in transitions), list(TransitionKind)

    def sort_key(transition: DeviceTransition) -> tuple[object, ...]:
        at, rank = transition.at, ranks.index(transition.what)
        return *((at, rank) if comparable else (rank, at)), transition.resource, transition.socket

    return sorted(transitions, key=sort_key)


def _bounded(history: tuple[DeviceTransition, ...], view: DeviceView) -> tuple[DeviceTransition, ...]:
    """Drop the oldest transitions, but keep the last of each subject: without it, it would be found again."""
    older, recent = history[:-MAX_TRANSITIONS], history[-MAX_TRANSITIONS:]
    # A transition without resource and socket is a start of the kubelet.
    last = {transition.resource or transition.socket: transition for transition in history}
    present = {
        transition for transition in last.values() if not transition.socket or transition.socket in view.connected
    }
    kept = [transition for transition in older if transition in present]
    return (*kept[-MAX_TRANSITIONS:], *recent)

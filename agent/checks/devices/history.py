"""The device history: the transitions that earlier snapshots saw, and those that this snapshot adds. Pure.

The kubelet writes its checkpoint when a plugin reports devices or a pod is given one, not when it starts and not when a
plugin disconnects. So devices in a checkpoint prove a registration only if the running kubelet wrote the checkpoint.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from agent.checks.devices.clocks import boot_id, in_this_boot, kubelet_of_this_boot, plugins, written_since_start
from agent.checks.devices.registration import LATE, by_files
from agent.checks.devices.sockets import socket_pairs
from agent.model.devices import ENDPOINT_GRACE, DevicePlugins, DeviceTransition, TransitionKind
from agent.model.snapshot import Known, Snapshot

MAX_TRANSITIONS: Final = 256


def with_history(snapshot: Snapshot) -> Snapshot:
    """Add the transitions of a snapshot to the history in it. Doing it again adds nothing."""
    if not isinstance(snapshot.device_plugins, Known) or snapshot.device_plugins.value.complete:
        return snapshot
    completed = replace(snapshot.device_plugins.value, history=derive(snapshot), complete=True)
    return replace(snapshot, device_plugins=Known(completed))


def derive(snapshot: Snapshot) -> tuple[DeviceTransition, ...]:
    """Return the transitions up to this snapshot, oldest first."""
    past = plugins(snapshot).history
    changes = _Changes(snapshot)
    in_files = [*changes.kubelet(last_start(past)), *changes.sockets(_last_by_socket(past))]
    history = (*past, *_in_order(in_files, snapshot))
    in_resources = [*changes.resources(history)]
    return _bounded((*past, *_in_order([*in_files, *in_resources], snapshot)), plugins(snapshot))


def last_start(history: Iterable[DeviceTransition]) -> DeviceTransition | None:
    starts = [one for one in history if one.what is TransitionKind.KUBELET_STARTED]
    return starts[-1] if starts else None


def since_start(history: Iterable[DeviceTransition]) -> tuple[DeviceTransition, ...]:
    """Return the transitions after the kubelet's last start."""
    history = tuple(history)
    starts = [place for place, one in enumerate(history, 1) if one.what is TransitionKind.KUBELET_STARTED]
    return history[starts[-1] :] if starts else history


def last_by_resource(history: Iterable[DeviceTransition]) -> dict[str, DeviceTransition]:
    return {one.resource: one for one in history if one.resource}


def _last_by_socket(history: Iterable[DeviceTransition]) -> dict[str, DeviceTransition]:
    return {one.socket: one for one in history if one.socket}


@dataclass(frozen=True, slots=True)
class _Changes:
    """What one snapshot adds to the history."""

    snapshot: Snapshot

    @property
    def devices(self) -> DevicePlugins:
        return plugins(self.snapshot)

    def kubelet(self, last: DeviceTransition | None) -> Iterator[DeviceTransition]:
        bound = self.devices.kubelet_socket
        if bound is not None and (last is None or last.at != bound):
            # A socket that is older than this boot is of an unknown one.
            boot = boot_id(self.snapshot) if in_this_boot(bound, self.snapshot) else ""
            yield DeviceTransition(TransitionKind.KUBELET_STARTED, bound, self.snapshot.uptime, boot)

    def sockets(self, last: Mapping[str, DeviceTransition]) -> Iterator[DeviceTransition]:
        present = {one.name: one.made for one in self.devices.sockets}
        for name, made in sorted(present.items()):
            before = last.get(name)
            if before is None or before.what is TransitionKind.SOCKET_GONE or before.at != made:
                yield self._transition(TransitionKind.SOCKET_APPEARED, made, socket=name)
        for name, before in last.items():
            if name not in present and before.what is not TransitionKind.SOCKET_GONE:
                yield self._transition(TransitionKind.SOCKET_GONE, self.snapshot.taken_at, socket=name, exact=False)

    def resources(self, history: tuple[DeviceTransition, ...]) -> Iterator[DeviceTransition]:
        if not kubelet_of_this_boot(self.snapshot, last_start(history)):
            return
        last = last_by_resource(since_start(history))
        registered = [*self._registered(history, last)]
        yield from registered
        last |= last_by_resource(registered)
        yield from self._lost(history, last)
        yield from self._dropped(last_by_resource((*history, *registered)))

    def _registered(
        self, history: tuple[DeviceTransition, ...], last: Mapping[str, DeviceTransition]
    ) -> Iterator[DeviceTransition]:
        connected = self._connected(history)
        # Several registrations can be in one version of the file, which has one time only.
        by_file, by_stream = {}, []
        for one in self.devices.registered:
            before = last.get(one.resource)
            if not one.devices or (before is not None and before.what is TransitionKind.REGISTERED):
                continue
            if written_since_start(self.snapshot) and self._written_after(before):
                by_file[one.resource] = before
            elif connected.get(one.resource) and (before is not None or written_since_start(self.snapshot) is None):
                by_stream.append(one.resource)
        for resource, lost in by_file.items():
            at, exact = by_files(resource, history, self.snapshot, lost=lost, alone=len(by_file) == 1)
            yield self._transition(TransitionKind.REGISTERED, at, resource=resource, exact=exact)
        for resource in by_stream:
            yield self._seen_now(TransitionKind.REGISTERED, resource)

    def _lost(
        self, history: tuple[DeviceTransition, ...], last: Mapping[str, DeviceTransition]
    ) -> Iterator[DeviceTransition]:
        connected = self._connected(history)
        healthy = {one.resource: one.devices for one in self.devices.registered}
        for resource, before in last.items():
            if before.what is not TransitionKind.REGISTERED or resource not in healthy:
                continue
            if not healthy[resource]:
                yield self._in_checkpoint(TransitionKind.LOST, resource, before)
            elif connected.get(resource) is False:
                yield self._seen_now(TransitionKind.LOST, resource)

    def _dropped(self, last: Mapping[str, DeviceTransition]) -> Iterator[DeviceTransition]:
        bound = self.devices.kubelet_socket
        if bound is None or not written_since_start(self.snapshot) or self.snapshot.taken_at - bound < ENDPOINT_GRACE:
            return
        listed = {one.resource for one in self.devices.registered}
        for resource, before in last.items():
            if resource not in listed and before.what is not TransitionKind.DROPPED:
                yield self._in_checkpoint(TransitionKind.DROPPED, resource, before)

    def _connected(self, history: tuple[DeviceTransition, ...]) -> dict[str, bool | None]:
        streams = {one.name: one.connected for one in self.devices.sockets}
        return {resource: streams.get(socket) for resource, socket in socket_pairs(history, self.devices).items()}

    def _written_after(self, before: DeviceTransition | None) -> bool:
        written = self.devices.checkpoint_written
        return written is not None and (before is None or written > before.at)

    def _in_checkpoint(self, what: TransitionKind, resource: str, before: DeviceTransition) -> DeviceTransition:
        written = self.devices.checkpoint_written
        if written is None or not self._written_after(before):
            return self._seen_now(what, resource)
        return self._transition(what, written, resource=resource, exact=abs(self.snapshot.taken_at - written) <= LATE)

    def _seen_now(self, what: TransitionKind, resource: str) -> DeviceTransition:
        return self._transition(what, self.snapshot.taken_at, resource=resource, exact=False)

    def _transition(
        self, what: TransitionKind, at: datetime, resource: str = "", socket: str = "", exact: bool = True
    ) -> DeviceTransition:
        return DeviceTransition(what, at, self.snapshot.uptime, boot_id(self.snapshot), resource, socket, exact)


_RANK: Final = (
    TransitionKind.KUBELET_STARTED,
    TransitionKind.SOCKET_APPEARED,
    TransitionKind.REGISTERED,
    TransitionKind.LOST,
    TransitionKind.DROPPED,
    TransitionKind.SOCKET_GONE,
)
"""The order in which the kubelet and its plugins act: when the kubelet starts, it removes every socket."""


def _in_order(transitions: Iterable[DeviceTransition], snapshot: Snapshot) -> list[DeviceTransition]:
    """Sort the transitions of one snapshot by time, or by rank if the clock was set in between."""
    transitions = list(transitions)
    comparable = all(in_this_boot(one.at, snapshot) for one in transitions)
    early = datetime.min.replace(tzinfo=snapshot.taken_at.tzinfo)
    return sorted(
        transitions,
        key=lambda one: (one.at if comparable else early, _RANK.index(one.what), one.at, one.resource, one.socket),
    )


def _bounded(history: tuple[DeviceTransition, ...], devices: DevicePlugins) -> tuple[DeviceTransition, ...]:
    """Drop the oldest transitions, but keep the last of each subject: without it, it would be found again."""
    if len(history) <= MAX_TRANSITIONS:
        return history
    present = {one.name for one in devices.sockets}
    current = {
        last_start(history),
        *last_by_resource(history).values(),
        *(one for name, one in _last_by_socket(history).items() if name in present),
    }
    most_wanted_first = sorted(range(len(history)), key=lambda place: (history[place] not in current, -place))
    return tuple(history[place] for place in sorted(most_wanted_first[:MAX_TRANSITIONS]))

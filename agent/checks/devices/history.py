"""The course of things: the milestones of earlier looks, and those that this look adds by what has changed. Pure.

The kubelet writes its checkpoint when a plugin speaks or a pod is given a device, not when it starts, and not when a
plugin goes. So devices in a checkpoint mean a registration only where this kubelet has written it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from agent.checks.devices.clocks import boot_id, in_this_boot, kubelet_of_this_boot, plugins, written_since_start
from agent.checks.devices.registration import LATE, by_files
from agent.checks.devices.sockets import socket_pairs
from agent.model.devices import DevicePlugins, DeviceTransition, TransitionKind
from agent.model.snapshot import Snapshot

MOST: Final = 256
"""How many milestones are kept."""
PATIENCE: Final = timedelta(minutes=5)
"""How long the kubelet keeps a resource whose plugin is gone (`endpointStopGracePeriod`)."""


def device_history(snapshot: Snapshot) -> tuple[DeviceTransition, ...]:
    """Return the milestones up to this look, oldest first. Blind where the device plugins were not read."""
    past = plugins(snapshot).history
    look = _Look(snapshot)
    files = [*look.kubelet(last_start(past)), *look.sockets(_last_by_socket(past))]
    history = (*past, *_in_order(files, snapshot))
    changes = [*look.resources(history)]
    return _bounded((*past, *_in_order([*files, *changes], snapshot)), plugins(snapshot))


def last_start(history: Iterable[DeviceTransition]) -> DeviceTransition | None:
    return _last(one for one in history if one.what is TransitionKind.KUBELET_STARTED)


def since_start(history: Iterable[DeviceTransition]) -> tuple[DeviceTransition, ...]:
    """Return what came after the kubelet's last start."""
    history = tuple(history)
    starts = [place for place, one in enumerate(history, 1) if one.what is TransitionKind.KUBELET_STARTED]
    return history[starts[-1] :] if starts else history


def last_by_resource(history: Iterable[DeviceTransition]) -> dict[str, DeviceTransition]:
    return {one.resource: one for one in history if one.resource}


def _last_by_socket(history: Iterable[DeviceTransition]) -> dict[str, DeviceTransition]:
    return {one.socket: one for one in history if one.socket}


def _last(transitions: Iterable[DeviceTransition]) -> DeviceTransition | None:
    return next(reversed(tuple(transitions)), None)


@dataclass(frozen=True, slots=True)
class _Look:
    """What one look adds to what is known."""

    snapshot: Snapshot

    @property
    def devices(self) -> DevicePlugins:
        return plugins(self.snapshot)

    def kubelet(self, last: DeviceTransition | None) -> Iterator[DeviceTransition]:
        bound = self.devices.kubelet_socket
        if bound is not None and (last is None or last.at != bound):
            # A file of before the boot was not made in this one, and neither is it known in which.
            boot = boot_id(self.snapshot) if in_this_boot(bound, self.snapshot) else ""
            yield DeviceTransition(TransitionKind.KUBELET_STARTED, bound, self.snapshot.uptime, boot)

    def sockets(self, last: Mapping[str, DeviceTransition]) -> Iterator[DeviceTransition]:
        there = {one.name: one.made for one in self.devices.sockets}
        for name, made in sorted(there.items()):
            before = last.get(name)
            if before is None or before.what is TransitionKind.SOCKET_GONE or before.at != made:
                yield self._milestone(TransitionKind.SOCKET_APPEARED, made, socket=name)
        for name, before in last.items():
            if name not in there and before.what is not TransitionKind.SOCKET_GONE:
                yield self._milestone(TransitionKind.SOCKET_GONE, self.snapshot.taken_at, socket=name, exact=False)

    def resources(self, history: tuple[DeviceTransition, ...]) -> Iterator[DeviceTransition]:
        if not kubelet_of_this_boot(self.snapshot, last_start(history)):
            return
        now = last_by_resource(since_start(history))
        came = [*self._came(history, now)]
        yield from came
        now |= last_by_resource(came)
        yield from self._lost(history, now)
        yield from self._dropped(last_by_resource((*history, *came)))

    def _came(
        self, history: tuple[DeviceTransition, ...], now: Mapping[str, DeviceTransition]
    ) -> Iterator[DeviceTransition]:
        connected = self._connected(history)
        # Registrations whose order the file has folded into one have no time of their own.
        by_file, by_stream = {}, []
        for one in self.devices.registered:
            before = now.get(one.resource)
            if not one.devices or (before is not None and before.what is TransitionKind.REGISTERED):
                continue
            if written_since_start(self.snapshot) and self._written_after(before):
                by_file[one.resource] = before
            elif connected.get(one.resource) and (before is not None or written_since_start(self.snapshot) is None):
                by_stream.append(one.resource)
        for resource, lost in by_file.items():
            at, exact = by_files(resource, history, self.snapshot, lost=lost, alone=len(by_file) == 1)
            yield self._milestone(TransitionKind.REGISTERED, at, resource=resource, exact=exact)
        for resource in by_stream:
            yield self._seen_now(TransitionKind.REGISTERED, resource)

    def _lost(
        self, history: tuple[DeviceTransition, ...], now: Mapping[str, DeviceTransition]
    ) -> Iterator[DeviceTransition]:
        connected = self._connected(history)
        healthy = {one.resource: one.devices for one in self.devices.registered}
        for resource, before in now.items():
            if before.what is not TransitionKind.REGISTERED or resource not in healthy:
                continue
            if not healthy[resource]:
                by_file = self._written_after(before)
                yield (self._by_checkpoint if by_file else self._seen_now)(TransitionKind.LOST, resource)
            elif connected.get(resource) is False:
                yield self._seen_now(TransitionKind.LOST, resource)

    def _dropped(self, ever: Mapping[str, DeviceTransition]) -> Iterator[DeviceTransition]:
        bound = self.devices.kubelet_socket
        if bound is None or not written_since_start(self.snapshot) or self.snapshot.taken_at - bound < PATIENCE:
            return
        listed = {one.resource for one in self.devices.registered}
        for resource, before in ever.items():
            if resource not in listed and before.what is not TransitionKind.DROPPED:
                by_file = self._written_after(before)
                yield (self._by_checkpoint if by_file else self._seen_now)(TransitionKind.DROPPED, resource)

    def _connected(self, history: tuple[DeviceTransition, ...]) -> dict[str, bool | None]:
        streams = {one.name: one.connected for one in self.devices.sockets}
        return {resource: streams.get(socket) for resource, socket in socket_pairs(history, self.devices).items()}

    def _written_after(self, before: DeviceTransition | None) -> bool:
        written = self.devices.checkpoint_written
        return written is not None and (before is None or written > before.at)

    def _by_checkpoint(self, what: TransitionKind, resource: str) -> DeviceTransition:
        at = self.devices.checkpoint_written or self.snapshot.taken_at
        return self._milestone(what, at, resource=resource, exact=abs(self.snapshot.taken_at - at) <= LATE)

    def _seen_now(self, what: TransitionKind, resource: str) -> DeviceTransition:
        return self._milestone(what, self.snapshot.taken_at, resource=resource, exact=False)

    def _milestone(
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
"""The order in which the kubelet and its plugins do things: its start takes every socket away."""


def _in_order(news: Iterable[DeviceTransition], snapshot: Snapshot) -> list[DeviceTransition]:
    """Sort what one look saw by time; by what must come first where the clock was set in between."""
    news = list(news)
    sound = all(in_this_boot(one.at, snapshot) for one in news)
    early = datetime.min.replace(tzinfo=snapshot.taken_at.tzinfo)
    return sorted(
        news, key=lambda one: (one.at if sound else early, _RANK.index(one.what), one.at, one.resource, one.socket)
    )


def _bounded(history: tuple[DeviceTransition, ...], devices: DevicePlugins) -> tuple[DeviceTransition, ...]:
    """Forget the oldest, but not how things stand: who forgets that would see it happen again."""
    if len(history) <= MOST:
        return history
    there = {one.name for one in devices.sockets}
    standing = {
        last_start(history),
        *last_by_resource(history).values(),
        *(one for name, one in _last_by_socket(history).items() if name in there),
    }
    dearest_first = sorted(range(len(history)), key=lambda place: (history[place] not in standing, -place))
    return tuple(history[place] for place in sorted(dearest_first[:MOST]))

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
from agent.model.devices import DevicePlugins, Happening, Milestone
from agent.model.snapshot import Snapshot

MOST: Final = 256
"""How many milestones are kept."""
PATIENCE: Final = timedelta(minutes=5)
"""How long the kubelet keeps a resource whose plugin is gone (`endpointStopGracePeriod`)."""


def transitions(snapshot: Snapshot) -> tuple[Milestone, ...]:
    """Return the milestones up to this look, oldest first. Blind where the device plugins were not read."""
    past = plugins(snapshot).history
    look = _Look(snapshot)
    files = [*look.kubelet(last_start(past)), *look.sockets(_last_by_socket(past))]
    course = (*past, *_in_order(files, snapshot))
    changes = [*look.resources(course)]
    return _bounded((*past, *_in_order([*files, *changes], snapshot)), plugins(snapshot))


def last_start(course: Iterable[Milestone]) -> Milestone | None:
    return _last(one for one in course if one.what is Happening.KUBELET_STARTED)


def since_start(course: Iterable[Milestone]) -> tuple[Milestone, ...]:
    """Return what came after the kubelet's last start."""
    course = tuple(course)
    starts = [place for place, one in enumerate(course, 1) if one.what is Happening.KUBELET_STARTED]
    return course[starts[-1] :] if starts else course


def last_by_resource(course: Iterable[Milestone]) -> dict[str, Milestone]:
    return {one.resource: one for one in course if one.resource}


def _last_by_socket(course: Iterable[Milestone]) -> dict[str, Milestone]:
    return {one.socket: one for one in course if one.socket}


def _last(milestones: Iterable[Milestone]) -> Milestone | None:
    return next(reversed(tuple(milestones)), None)


@dataclass(frozen=True, slots=True)
class _Look:
    """What one look adds to what is known."""

    snapshot: Snapshot

    @property
    def devices(self) -> DevicePlugins:
        return plugins(self.snapshot)

    def kubelet(self, last: Milestone | None) -> Iterator[Milestone]:
        bound = self.devices.kubelet_socket
        if bound is not None and (last is None or last.at != bound):
            # A file of before the boot was not made in this one, and neither is it known in which.
            boot = boot_id(self.snapshot) if in_this_boot(bound, self.snapshot) else ""
            yield Milestone(Happening.KUBELET_STARTED, bound, self.snapshot.uptime, boot)

    def sockets(self, last: Mapping[str, Milestone]) -> Iterator[Milestone]:
        there = {one.name: one.made for one in self.devices.sockets}
        for name, made in sorted(there.items()):
            before = last.get(name)
            if before is None or before.what is Happening.SOCKET_GONE or before.at != made:
                yield self._milestone(Happening.SOCKET_APPEARED, made, socket=name)
        for name, before in last.items():
            if name not in there and before.what is not Happening.SOCKET_GONE:
                yield self._milestone(Happening.SOCKET_GONE, self.snapshot.taken_at, socket=name, exact=False)

    def resources(self, course: tuple[Milestone, ...]) -> Iterator[Milestone]:
        if not kubelet_of_this_boot(self.snapshot, last_start(course)):
            return
        now = last_by_resource(since_start(course))
        came = [*self._came(course, now)]
        yield from came
        now |= last_by_resource(came)
        yield from self._lost(course, now)
        yield from self._dropped(last_by_resource((*course, *came)))

    def _came(self, course: tuple[Milestone, ...], now: Mapping[str, Milestone]) -> Iterator[Milestone]:
        connected = self._connected(course)
        # Registrations whose order the file has folded into one have no time of their own.
        by_file, by_stream = {}, []
        for one in self.devices.registered:
            before = now.get(one.resource)
            if not one.devices or (before is not None and before.what is Happening.REGISTERED):
                continue
            if written_since_start(self.snapshot) and self._written_after(before):
                by_file[one.resource] = before
            elif connected.get(one.resource) and (before is not None or written_since_start(self.snapshot) is None):
                by_stream.append(one.resource)
        for resource, lost in by_file.items():
            at, exact = by_files(resource, course, self.snapshot, lost=lost, alone=len(by_file) == 1)
            yield self._milestone(Happening.REGISTERED, at, resource=resource, exact=exact)
        for resource in by_stream:
            yield self._seen_now(Happening.REGISTERED, resource)

    def _lost(self, course: tuple[Milestone, ...], now: Mapping[str, Milestone]) -> Iterator[Milestone]:
        connected = self._connected(course)
        healthy = {one.resource: one.devices for one in self.devices.registered}
        for resource, before in now.items():
            if before.what is not Happening.REGISTERED or resource not in healthy:
                continue
            if not healthy[resource]:
                by_file = self._written_after(before)
                yield (self._by_checkpoint if by_file else self._seen_now)(Happening.LOST, resource)
            elif connected.get(resource) is False:
                yield self._seen_now(Happening.LOST, resource)

    def _dropped(self, ever: Mapping[str, Milestone]) -> Iterator[Milestone]:
        bound = self.devices.kubelet_socket
        if bound is None or not written_since_start(self.snapshot) or self.snapshot.taken_at - bound < PATIENCE:
            return
        listed = {one.resource for one in self.devices.registered}
        for resource, before in ever.items():
            if resource not in listed and before.what is not Happening.DROPPED:
                by_file = self._written_after(before)
                yield (self._by_checkpoint if by_file else self._seen_now)(Happening.DROPPED, resource)

    def _connected(self, course: tuple[Milestone, ...]) -> dict[str, bool | None]:
        streams = {one.name: one.connected for one in self.devices.sockets}
        return {resource: streams.get(socket) for resource, socket in socket_pairs(course, self.devices).items()}

    def _written_after(self, before: Milestone | None) -> bool:
        written = self.devices.checkpoint_written
        return written is not None and (before is None or written > before.at)

    def _by_checkpoint(self, what: Happening, resource: str) -> Milestone:
        at = self.devices.checkpoint_written or self.snapshot.taken_at
        return self._milestone(what, at, resource=resource, exact=abs(self.snapshot.taken_at - at) <= LATE)

    def _seen_now(self, what: Happening, resource: str) -> Milestone:
        return self._milestone(what, self.snapshot.taken_at, resource=resource, exact=False)

    def _milestone(
        self, what: Happening, at: datetime, resource: str = "", socket: str = "", exact: bool = True
    ) -> Milestone:
        return Milestone(what, at, self.snapshot.uptime, boot_id(self.snapshot), resource, socket, exact)


_RANK: Final = (
    Happening.KUBELET_STARTED,
    Happening.SOCKET_APPEARED,
    Happening.REGISTERED,
    Happening.LOST,
    Happening.DROPPED,
    Happening.SOCKET_GONE,
)
"""The order in which the kubelet and its plugins do things: its start takes every socket away."""


def _in_order(news: Iterable[Milestone], snapshot: Snapshot) -> list[Milestone]:
    """Sort what one look saw by time; by what must come first where the clock was set in between."""
    news = list(news)
    sound = all(in_this_boot(one.at, snapshot) for one in news)
    early = datetime.min.replace(tzinfo=snapshot.taken_at.tzinfo)
    return sorted(
        news, key=lambda one: (one.at if sound else early, _RANK.index(one.what), one.at, one.resource, one.socket)
    )


def _bounded(course: tuple[Milestone, ...], devices: DevicePlugins) -> tuple[Milestone, ...]:
    """Forget the oldest, but not how things stand: who forgets that would see it happen again."""
    if len(course) <= MOST:
        return course
    there = {one.name for one in devices.sockets}
    standing = {
        last_start(course),
        *last_by_resource(course).values(),
        *(one for name, one in _last_by_socket(course).items() if name in there),
    }
    dearest_first = sorted(range(len(course)), key=lambda place: (course[place] not in standing, -place))
    return tuple(course[place] for place in sorted(dearest_first[:MOST]))

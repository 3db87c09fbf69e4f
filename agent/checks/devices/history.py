"""The history of device plugins: what a snapshot adds to what earlier snapshots saw. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from agent.checks.devices.pairing import stem
from agent.checks.devices.view import REGISTERS_WITHIN, DeviceView, last_by_resource
from agent.model.bug import bug_of
from agent.model.devices import (
    ENDPOINT_GRACE,
    KUBELET_SOCKET,
    DeviceTransition,
    TransitionKind,
)
from agent.model.snapshot import Known, Snapshot, Unavailable

MAX_TRANSITIONS: Final = 256
_FRESH: Final = timedelta(seconds=60)
"""A checkpoint that is older need not be the first version with its content."""


def with_history(snapshot: Snapshot) -> Snapshot:
    """Add the transitions of a snapshot to those of earlier ones. Doing it again adds nothing."""
    if not isinstance(snapshot.device_plugins, Known):
        return snapshot

    plugins = snapshot.device_plugins.value
    try:
        history = advance(plugins.history, snapshot)
    except Exception as error:  # noqa: BLE001 (of every source, only this one is unavailable then)
        bug = bug_of("source", "device_plugins", error)
        unread = Unavailable("device_plugins", bug.reason)
        return replace(snapshot, device_plugins=unread, bugs=(*snapshot.bugs, bug))
    return replace(snapshot, device_plugins=Known(replace(plugins, history=history)))


def advance(before: Sequence[DeviceTransition], now: Snapshot) -> tuple[DeviceTransition, ...]:
    """Return the transitions up to a snapshot, oldest first. Raises InsufficientData.

    `before`: those up to the snapshot before.
    """
    view = DeviceView(now, now.device_plugins.known(), tuple(before))

    by_files = [*_kubelet_changes(view), *_socket_changes(view)]

    with_files = replace(view, history=(*before, *_in_order(by_files, view)))

    changes = [*by_files, *_resource_changes(with_files)]
    return _bounded((*before, *_in_order(changes, view)), view)


def _seen_now(
    view: DeviceView, what: TransitionKind, *, resource: str = "", socket: str = ""
) -> DeviceTransition:
    """Return a transition without a time of its own: it happened since the snapshot before."""
    return DeviceTransition(
        what=what,
        at=view.snapshot.taken_at,
        uptime=view.snapshot.uptime,
        boot_id=view.boot_id,
        resource=resource,
        socket=socket,
        exact=False,
    )


def _kubelet_changes(view: DeviceView) -> Iterator[DeviceTransition]:
    """Yield a new start of the kubelet, or that its socket is gone."""
    bound = view.plugins.kubelet_socket
    start = view.start
    if bound is None:
        if start is not None and view.kubelet_socket_gone is None:
            yield _seen_now(view, TransitionKind.SOCKET_GONE, socket=KUBELET_SOCKET)
    elif start is None or start.at != bound:
        # A socket that is older than this boot is of an unknown boot.
        boot_id = view.boot_id if view.in_this_boot(bound) else ""
        uptime = view.snapshot.uptime
        yield DeviceTransition(TransitionKind.KUBELET_STARTED, bound, uptime, boot_id)


def _socket_changes(view: DeviceView) -> Iterator[DeviceTransition]:
    """Yield the sockets of plugins that were bound, or bound anew, or are gone."""
    last = {change.socket: change for change in view.history if change.socket}
    last.pop(KUBELET_SOCKET, None)

    bound_at = {
        name: change.at
        for name, change in last.items()
        if change.what is not TransitionKind.SOCKET_GONE
    }

    for socket in view.plugins.sockets:
        if bound_at.get(socket.name) != socket.made:
            appeared = _seen_now(view, TransitionKind.SOCKET_APPEARED, socket=socket.name)
            yield replace(appeared, at=socket.made, exact=True)

    for name in bound_at:
        if name not in view.connected:
            yield _seen_now(view, TransitionKind.SOCKET_GONE, socket=name)


def _resource_changes(view: DeviceView) -> list[DeviceTransition]:
    """Return what a snapshot adds to the history of resources. `view`: with its files' changes.

    The kubelet writes its checkpoint when a plugin reports devices or a pod is given some, not when
    it starts and not when a plugin disconnects. So it proves a registration only if the running
    kubelet wrote it.
    """
    if view.plugins.kubelet_socket is None and view.is_of_running_kubelet:
        return [*_losses(view, view.last_in_run)]

    if not view.kubelet_of_this_boot:
        return []

    registered = [*_registrations(view)]
    dropped = [*_drops(view)]

    last = {**view.last_in_run, **last_by_resource(registered)}
    for change in dropped:
        last.pop(change.resource, None)

    return [*registered, *_losses(view, last), *dropped]


def _registrations(view: DeviceView) -> Iterator[DeviceTransition]:
    """Yield what is registered now and was not before."""
    written = view.plugins.checkpoint_written
    for resource, devices in view.healthy.items():
        if not devices or view.has_registered(resource) or view.node_denies(resource):
            continue

        registered = _seen_now(view, TransitionKind.REGISTERED, resource=resource)
        before = view.last_in_run.get(resource)
        if written and view.written_since_start and (before is None or written > before.at):
            at, exact = _registration_time(view, resource, written)
            yield replace(registered, at=at, exact=exact)
            continue

        # The plugin's stream shows a registration that the file need not have.
        may_be_unwritten = before is not None or view.written_since_start is None
        if may_be_unwritten and view.is_connected(resource) is True:
            yield registered


def _registration_time(view: DeviceView, resource: str, written: datetime) -> tuple[datetime, bool]:
    """Return when the checkpoint's registration was, and whether that is exact.

    The kubelet also writes the file when it gives a device to a pod. So the file's time is exact
    only just after the plugin bound its socket; later, the socket's own time is.
    """
    bound = _bound_for_registration(view, resource, written)
    if bound is None:
        return written, False
    return written if written - bound <= REGISTERS_WITHIN else bound, True


def _bound_for_registration(view: DeviceView, resource: str, written: datetime) -> datetime | None:
    """Return when the plugin bound its socket for a registration; None: no snapshot tells."""
    socket = view.sockets.get(resource)
    if socket is None:
        return None
    appeared = None
    for change in view.history:
        if change.what is TransitionKind.SOCKET_APPEARED and stem(change.socket) == stem(socket):
            appeared = change

    lost = view.last_in_run.get(resource)
    since = view.plugins.kubelet_socket if lost is None else lost.at
    if appeared is None or since is None or not since < appeared.at <= written:
        return None

    # An earlier snapshot may have seen the socket, and that the resource did not register promptly.
    seen_for = view.snapshot.uptime - appeared.uptime
    first_seen_after = view.snapshot.taken_at - appeared.at - seen_for
    if seen_for and first_seen_after > REGISTERS_WITHIN:
        return None
    return appeared.at


def _losses(view: DeviceView, last: Mapping[str, DeviceTransition]) -> Iterator[DeviceTransition]:
    """Yield what was registered and is not any more. `last`: the last change of each resource."""
    for resource, before in last.items():
        if before.what is not TransitionKind.REGISTERED:
            continue
        if resource in view.healthy and not view.healthy[resource]:
            yield _in_checkpoint(view, TransitionKind.LOST, before)
        elif view.is_connected(resource) is False or view.node_denies(resource):
            yield _seen_now(view, TransitionKind.LOST, resource=resource)


def _drops(view: DeviceView) -> Iterator[DeviceTransition]:
    """Yield what the running kubelet has removed from its checkpoint."""
    bound = view.plugins.kubelet_socket
    if bound is None or not view.written_since_start:
        return
    if view.snapshot.taken_at - bound < ENDPOINT_GRACE:
        return

    for resource, before in view.last_changes.items():
        if resource not in view.healthy and before.what is not TransitionKind.DROPPED:
            yield _in_checkpoint(view, TransitionKind.DROPPED, before)


def _in_checkpoint(
    view: DeviceView, what: TransitionKind, before: DeviceTransition
) -> DeviceTransition:
    """Return a transition that the checkpoint shows, at its time if it is newer than `before`."""
    change = _seen_now(view, what, resource=before.resource)
    written = view.plugins.checkpoint_written
    if written is None or written <= before.at:
        return change

    return replace(change, at=written, exact=abs(change.at - written) <= _FRESH)


def _in_order(changes: Sequence[DeviceTransition], view: DeviceView) -> list[DeviceTransition]:
    """Sort by time, or by kind if the clock was set in between.

    Of changes at one time the kind decides: when the kubelet starts, it removes every socket.
    """
    kinds = list(TransitionKind)

    comparable = all(view.in_this_boot(change.at) for change in changes)

    def sort_key(change: DeviceTransition) -> tuple[object, ...]:
        rank = kinds.index(change.what)
        time_and_rank = (change.at, rank) if comparable else (rank, change.at)
        return *time_and_rank, change.resource, change.socket

    return sorted(changes, key=sort_key)


def _bounded(
    history: tuple[DeviceTransition, ...], view: DeviceView
) -> tuple[DeviceTransition, ...]:
    """Drop the oldest transitions, but keep the last of each subject: else it would be new.

    Returns at most twice `MAX_TRANSITIONS`.
    """
    # A transition without resource and socket is a start of the kubelet.
    last = {change.resource or change.socket: change for change in history}

    current = {*view.connected, "", KUBELET_SOCKET}
    needed = {change for change in last.values() if change.socket in current}

    kept = [change for change in history[:-MAX_TRANSITIONS] if change in needed]
    return (*kept[-MAX_TRANSITIONS:], *history[-MAX_TRANSITIONS:])

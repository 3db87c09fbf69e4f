"""The state of each resource that device plugins offer, or should offer. Pure."""

from datetime import datetime, timedelta

from agent.checks.devices.dra import dra_resources
from agent.checks.devices.view import DeviceView, KubeletRun
from agent.model.clocks import CONTAINER_START
from agent.model.devices import ResourceState, TransitionKind
from agent.model.snapshot import Known, Snapshot, Unavailable, known_or


def resource_states(view: DeviceView) -> tuple[ResourceState, ...]:
    """Return every resource that the kubelet knows or should know, by name.

    A resource that only the Node names is expected if its capacity is 0, as the kubelet leaves it
    when it drops the resource, and a pod requests it: the 0 stays forever after a plugin is
    uninstalled. Any other capacity was set by hand. A resource that was dropped before the
    kubelet's last start is not expected: its plugin was removed. One that another has replaced is
    expected only if it is still requested, and one that DRA serves is not expected.
    """
    names = {*view.last_changes, *view.healthy}
    for resource, requested in optional_resources(view).items():
        if requested:
            names.add(resource)
        elif requested is False:
            names.discard(resource)

    names -= view.dropped.difference(view.last_in_run)
    names -= dra_resources(view)
    return tuple(_state(resource, view) for resource in sorted(names))


def optional_resources(view: DeviceView) -> dict[str, bool | None]:
    """Return whether each resource that matters only if it is requested is; None: unknown."""
    node = known_or(view.snapshot.node, None)
    devices = node.devices if node else ()
    optional = {device.resource for device in devices if not device.capacity}
    optional.difference_update(view.last_changes, view.healthy)

    # Without the pods, it is unknown whether DRA serves what the kubelet dropped.
    is_unclear = isinstance(view.snapshot.pods, Unavailable)
    optional.update(name for name in view.dropped if is_unclear or _is_replaced(name, view))
    optional -= dra_resources(view)
    return {resource: is_requested(resource, view.snapshot) for resource in optional}


def _is_replaced(resource: str, view: DeviceView) -> bool:
    """Whether its plugin now offers a dropped resource under other names, as after a change of MIG.

    That is if each resource that the vendor offers now registered for the first time after the
    loss. Otherwise the vendor has several plugins, and the new resource may be another plugin's.
    """
    own = [
        index
        for index, change in enumerate(view.history)
        if change.resource == resource and change.what is TransitionKind.REGISTERED
    ]
    if not own:
        return False

    lost = own[-1] + 1
    while view.history[lost].resource != resource:
        if view.history[lost].what is TransitionKind.KUBELET_STARTED:
            break
        lost += 1

    # The snapshot that saw the loss may have seen the new resource too, as earlier of the two.
    seen_at = view.history[lost].uptime
    older = {
        change.resource
        for change in view.history[:lost]
        if change.what is TransitionKind.REGISTERED and change.uptime != seen_at
    }

    vendor = resource.partition("/")[0]
    offered = {
        name
        for name in view.last_in_run
        if view.has_registered(name) and name.partition("/")[0] == vendor
    }
    return bool(offered) and offered.isdisjoint(older)


def is_requested(resource: str, snapshot: Snapshot) -> bool | None:
    """Whether a pod requests a resource, or the node's status has some of it; None: unknown."""
    node = known_or(snapshot.node, None)
    if node and any(device.capacity for device in node.devices if device.resource == resource):
        return True

    for pod in known_or(snapshot.pods, ()):
        was_rejected = pod.rejection is not None and pod.rejection.for_device
        if resource in pod.wants and (pod.live or was_rejected):
            return True

    failed = isinstance(snapshot.pods, Unavailable) or isinstance(snapshot.node, Unavailable)
    return None if failed else False


def _state(resource: str, view: DeviceView) -> ResourceState:
    registered = _is_registered(resource, view)
    devices = len(view.healthy.get(resource, ())) if registered else 0
    since = None
    if registered and view.has_registered(resource):
        since = view.last_in_run[resource].at
    delay = registration_delay(resource, view.runs[-1], view) if view.runs else None
    socket = view.sockets.get(resource)
    return ResourceState(
        resource=resource,
        devices=None if registered is None else devices,
        allocated=_allocated(resource, view),
        registered=registered,
        registered_since=since,
        delay=delay,
        socket=socket,
        socket_present=socket in view.connected if socket else None,
        connected=view.is_connected(resource),
    )


def _is_registered(resource: str, view: DeviceView) -> bool | None:
    """Whether the kubelet knows healthy devices of a resource; None: not known."""
    if view.node_denies(resource):
        return False

    healthy = bool(view.healthy.get(resource))
    connected = view.is_connected(resource)
    last = view.last_in_run.get(resource)

    if view.plugins.kubelet_socket is None:
        # Nothing can register. A stream that is open stays open; no file says that it has ended.
        without_device = resource in view.healthy and not healthy
        was_registered = view.has_registered(resource) if last is not None else healthy
        return connected if was_registered and not without_device else False
    if not view.kubelet_of_this_boot:
        # By the current clock. If it was set since, only the open stream proves a registration.
        return healthy and connected is True

    if last is not None:
        return view.has_registered(resource) and connected is not False
    if not healthy:
        return False
    return connected if view.written_since_start is None else connected is True


def _allocated(resource: str, view: DeviceView) -> int | None:
    """Count the devices of pods that run, listed or not; None: the pods are not known."""
    if not isinstance(view.snapshot.pods, Known):
        return None

    live = view.live_pods.keys() | view.running_unlisted.keys()
    # An init container's device may be given to another container of its pod: then it has two
    # entries.
    allocated = set[tuple[str, str]]()
    for entry in view.allocations(resource):
        if entry.pod_uid in live:
            allocated.update((entry.pod_uid, device) for device in entry.devices)
    return len(allocated)


def registration_delay(resource: str, run: KubeletRun, view: DeviceView) -> timedelta | None:
    """Return the time from a kubelet's start to the registration of a resource after it.

    None: it has not registered, or nobody knows whether that was the first time since the start. An
    agent that is installed later sees the last registration only, as after a plugin's update.
    """
    first = run.first_registration(resource)
    if first is None:
        return None

    at = first.at
    if not first.exact:  # a plugin binds its socket a moment before it registers
        bound = view.socket_bound_at(run, resource, run.start.at, first.at)
        if bound is None or resource not in view.sockets:
            return None
        at = bound

    if at < run.start.at or not view.covers(run, at) or _had_device(resource, run, at, view):
        return None
    return at - run.start.at


def _had_device(resource: str, run: KubeletRun, at: datetime, view: DeviceView) -> bool:
    """Return whether a pod that runs was given a device of a resource before a time."""
    holders = {entry.pod_uid for entry in view.allocations(resource)}
    starts = (view.live_pods[uid].started for uid in holders & view.live_pods.keys())
    return any(
        started >= run.start.at and at - started >= CONTAINER_START for started in starts if started
    )

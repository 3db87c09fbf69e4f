"""A device plugin has not registered since the kubelet started.

Pods that request its devices are rejected. When the kubelet starts, it knows no plugin and removes
their sockets. Each plugin has to notice, bind its socket again and register. Until then the kubelet
has none of its devices, although the node's status may still list some.

What DRA (dynamic resource allocation) serves is not checked: then a pod has a claim, and the
capacity of 0 that a device plugin left on the node is no fault. A pod whose claim cannot be
prepared waits: see waiting_pods.

Means: the kubelet started a minute or more ago, it should offer this resource, and it has no device
of it.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from agent.checks.detector import Advice, Noun, Step
from agent.checks.devices.resources import optional_resources, resource_states
from agent.checks.devices.view import DeviceView, last_by_resource
from agent.model.assessment import Assessment
from agent.model.devices import (
    ENDPOINT_GRACE,
    SURELY_DROPPED_AFTER,
    DeviceTransition,
    ResourceState,
    TransitionKind,
)
from agent.model.finding import Finding, Severity
from agent.model.snapshot import Snapshot, known_or, require_available
from agent.model.text import format_age, format_time

NAME = "late_device_plugin"
SEVERITIES: Final = (Severity.WARNING,)
NOUN: Final = Noun("device plugin not registered", "device plugins not registered")
ADVICE: Final = Advice(
    steps=(
        Step(
            "Check the plugin's pod on this node: does it run, and does its version notice a "
            "kubelet restart? If not, restart the pod."
        ),
        Step(
            "If the plugin was removed on purpose, silence the alert; do not restart the kubelet "
            "for it, which can leak addresses."
        ),
        Step(
            "If the plugin offers its devices under another name, change the pods that request the "
            "old name: the finding ends when the kubelet has dropped it and no pod requests it."
        ),
    ),
    runbook="Devices.md#nodeleaklatedeviceplugin",
)

GRACE: Final = timedelta(seconds=60)


def find(assessment: Assessment) -> Iterator[Finding]:
    snapshot = assessment.snapshot
    view = DeviceView.of(snapshot)
    start = view.start
    up = view.kubelet_up_for
    optional = optional_resources(view)
    unclear = {resource for resource, requested in optional.items() if requested is None}
    if up is not None and start is not None:
        for state in resource_states(view):
            if state.registered is False and state.resource not in unclear:
                yield from _late(state, start, up, view)
    # Last: the node's status may name a resource that no file here has.
    require_available(snapshot.node)
    if unclear:
        snapshot.pods.known()


def _late(
    state: ResourceState, start: DeviceTransition, up: timedelta, view: DeviceView
) -> Iterator[Finding]:
    # When the kubelet drops a resource, it has been gone for long.
    changes = (change for change in view.since_start if change.what is not TransitionKind.DROPPED)
    lost = last_by_resource(changes).get(state.resource)
    missing_for = up
    since = start.at
    what = f"the kubelet started {format_age(up)} ago, at {format_time(since)}"
    if lost is not None:
        missing_for = min(up, view.snapshot.uptime - lost.uptime)
        since = lost.at
        what = f"the kubelet started at {format_time(start.at)} and lost it at {format_time(since)}"
    if missing_for < GRACE:
        return
    is_listed = state.resource in view.healthy
    if is_listed and not view.healthy[state.resource] and _is_present(state, missing_for):
        return  # its devices are unhealthy, and the plugin is not late
    effect = "the kubelet stops offering it after 5 minutes"
    if not is_listed or missing_for >= ENDPOINT_GRACE:
        effect = f"the kubelet no longer offers it{_node_status(state.resource, view.snapshot)}"
    message = f"{state.resource} is not registered: {what}{_socket(state)}; {effect}"
    yield Finding(NAME, state.resource, message, since=since, resource=state.resource)


def _is_present(state: ResourceState, missing_for: timedelta) -> bool:
    """Whether the plugin of a listed resource is there."""
    if state.connected is None:  # the kubelet would have dropped the resource
        return missing_for >= SURELY_DROPPED_AFTER
    return state.connected


def _socket(state: ResourceState) -> str:
    if not state.socket:
        return ""
    if not state.socket_present:
        return f", and its plugin's socket {state.socket} is gone"
    if state.connected is False:
        return f", and the kubelet is not connected to its plugin's socket {state.socket}"
    return f", although its plugin's socket {state.socket} exists"


def _node_status(resource: str, snapshot: Snapshot) -> str:
    node = known_or(snapshot.node, None)
    if node is None:
        return ""
    for device in node.devices:
        if device.resource == resource:
            amounts = f"capacity {device.capacity}, allocatable {device.allocatable}"
            return f", and the node's status has {amounts}"
    return ", and the node's status does not list it"

"""The kubelet has no device of a resource: its plugin has not registered, or reports none healthy.

Pods that request its devices are rejected. When the kubelet starts, it knows no plugin and removes
their sockets. Each plugin has to notice, bind its socket again and register. A plugin that ends
later takes its devices with it: the node's status has allocatable 0 at once, and capacity 0 after
5 minutes.

What DRA (dynamic resource allocation) serves is not checked: then a pod has a claim, and the
capacity of 0 that a device plugin left on the node is not a fault. A pod whose claim cannot be
prepared waits: see waiting_pods.

Means: for a minute or more, the kubelet has had no healthy device of a resource that it should
offer.
Severity info: a device of KubeVirt that was never healthy here, and that no pod requests. KubeVirt
offers its devices on every node, and as unhealthy where the node has no such file in /dev.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from agent.checks.detector import Advice, Noun, Step
from agent.checks.devices.resources import is_requested, optional_resources, resource_states
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
from agent.model.snapshot import Known, Snapshot, known_or, require_available
from agent.model.text import format_age, format_number, format_time

NAME = "late_device_plugin"
_MISSING: Final = "missing"  # the plugin is away
_UNHEALTHY: Final = "unhealthy"  # the plugin is there, and none of its devices is healthy
_UNUSED: Final = "unused"  # the same, and nothing shows that this node should have a healthy one
_ONLY_IN_NODE: Final = "only_in_node"  # no file and no snapshot has it: it may have no plugin
SEVERITIES: Final = (Severity.INFO, Severity.WARNING)
NOUN: Final = Noun(
    "resource without a healthy device of its plugin",
    "resources without a healthy device of their plugins",
)
ADVICE: Final = Advice(
    steps=(
        Step(
            "Check the plugin's pod on this node: does it run, and does its version notice a "
            "kubelet restart? If not, restart the pod.",
            kind=_MISSING,
        ),
        Step(
            "If a controller sets it in the node's status, and not a plugin of this node, ask the "
            "owner of the controller: nothing here can register it.",
            kind=_ONLY_IN_NODE,
        ),
        Step(
            "If the plugin was removed on purpose, silence the alert; do not restart the kubelet "
            "for it, which can leak addresses.",
            kind=_MISSING,
        ),
        Step(
            "If the plugin offers its devices under another name, change the pods that request the "
            "old name: the finding ends when the kubelet has dropped it and no pod requests it.",
            kind=_MISSING,
        ),
        Step(
            "Read the log of the plugin's pod for why no device is healthy: the driver, its "
            "configuration, or the hardware.",
            kind=_UNHEALTHY,
        ),
        Step(
            "If no VM is to run on this node, do nothing. Otherwise see whether /dev has the file: "
            "/dev/kvm needs virtualization in the firmware, or nested virtualization in a VM.",
            kind=_UNUSED,
        ),
    ),
    runbook="Devices.md#nodeleaklatedeviceplugin",
)

GRACE: Final = timedelta(seconds=60)
_KUBEVIRT: Final = "devices.kubevirt.io/"


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
    if not all(view.healthy.values()):
        require_available(snapshot.pods)  # do they request what has no device?
    if unclear:
        snapshot.pods.known()


def _late(
    state: ResourceState, start: DeviceTransition, up: timedelta, view: DeviceView
) -> Iterator[Finding]:
    resource = state.resource
    # When the kubelet drops a resource, it has been gone for long.
    changes = (change for change in view.since_start if change.what is not TransitionKind.DROPPED)
    lost = last_by_resource(changes).get(resource)

    missing_for = up
    since: datetime | None = start.at
    what = f"the kubelet started {format_age(up)} ago, at {format_time(start.at)}"
    is_empty = resource in view.healthy and not view.healthy[resource]
    if lost is not None:
        missing_for = min(up, view.snapshot.uptime - lost.uptime)
        since = lost.at
        what = f"the kubelet started at {format_time(start.at)} and lost it at {format_time(since)}"
    elif view.written_since_start and not is_empty and resource in view.healthy:
        since = None
        what = "the kubelet had it, and no snapshot saw when it lost it"

    if missing_for < GRACE:
        return
    if is_empty and _is_present(state, missing_for):
        yield from _unhealthy(state, lost, view)
        return

    effect = "the kubelet stops offering it after 5 minutes"
    denied = view.node_denies(resource)
    if denied or resource not in view.healthy or missing_for >= ENDPOINT_GRACE:
        effect = f"the kubelet no longer offers it{_node_status(resource, view.snapshot)}"

    problem = "is not registered"
    if is_empty and lost is not None and state.connected is None:
        problem = "has no healthy device (its plugin is away, or reports none as healthy)"
    message = f"{resource} {problem}: {what}{_socket(state)}; {effect}"
    kinds = (_MISSING,) if resource in view.plugin_resources else (_MISSING, _ONLY_IN_NODE)
    yield Finding(NAME, resource, message, since=since, resource=resource, kinds=kinds)


def _unhealthy(
    state: ResourceState, lost: DeviceTransition | None, view: DeviceView
) -> Iterator[Finding]:
    """Yield a finding about a plugin that is there and has no healthy device.

    A plugin without any device is none if nothing here had or requests one.
    """
    resource = state.resource
    device = view.node_devices.get(resource)
    capacity = device.capacity if device else 0
    if not capacity and lost is None and not is_requested(resource, view.snapshot):
        return

    reports = "reports no healthy device"
    if capacity == 1:
        reports = "reports its only device as unhealthy"
    elif capacity:
        reports = f"reports none of its {format_number(capacity)} devices as healthy"
    elif device:
        reports = "reports no device"

    plugin = "its plugin is there"
    if state.socket:
        plugin += f" (socket {state.socket})"

    since = lost.at if lost else None
    when = f" since {format_time(since)}" if since else ""
    message = f"{resource} has no healthy device{when}: {plugin} and {reports}"

    severity = Severity.WARNING
    kind = _UNHEALTHY
    if _is_unused(resource, view):
        severity = Severity.INFO
        kind = _UNUSED
        message += "; no pod here requests it, and no snapshot saw one that was healthy"
    yield Finding(
        NAME,
        resource,
        message,
        severity=severity,
        since=since,
        resource=resource,
        identity=(severity.value,),
        kinds=(kind,),
    )


def _is_unused(resource: str, view: DeviceView) -> bool:
    """Whether it is a device of KubeVirt that was never healthy here, and that no pod requests."""
    pods = view.snapshot.pods
    if not resource.startswith(_KUBEVIRT) or not isinstance(pods, Known):
        return False

    is_known = any(entry.resource == resource for entry in view.plugins.allocations)
    was_healthy = resource in view.last_changes
    is_wanted = any(resource in pod.wants for pod in pods.value)
    return not (is_known or was_healthy or is_wanted)


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

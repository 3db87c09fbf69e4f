"""A device plugin has not registered again since the kubelet started: pods that ask for its devices are refused.

The kubelet knows no plugin when it starts, and removes their sockets. Each has to notice, bind its socket anew and
register. Until then the kubelet has no device of it, though the node's status may still tell of some.

Means: the kubelet has been up for a minute or more, it or the node should have the resource, and has no device of it.
Do: look at the plugin's pod on this node: is it running, is it new enough to notice that the kubelet was restarted?
Restart it if it does not. If the plugin was taken away on purpose, the kubelet's next restart ends the finding.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from agent.checks.devices.clocks import plugins
from agent.checks.devices.history import device_history, last_by_resource, last_start, since_start
from agent.checks.devices.resource_state import kubelet_up_for, resource_states
from agent.model.assessment import Assessment
from agent.model.devices import DeviceTransition, ResourceState
from agent.model.finding import Finding, Severity, format_time
from agent.model.snapshot import Snapshot, Unavailable, known_or

NAME = "late_device_plugin"
SEVERITIES: Final = (Severity.WARNING,)

PATIENCE: Final = timedelta(seconds=60)
DROPPED: Final = timedelta(minutes=5)
"""The kubelet's own patience (`endpointStopGracePeriod`)."""
SURELY_DROPPED: Final = timedelta(minutes=6)
"""What the kubelet still lists by then has a plugin: its devices are not healthy, and it is not late."""


def find(assessment: Assessment) -> Iterator[Finding]:
    snapshot = assessment.snapshot
    history, up = device_history(snapshot), kubelet_up_for(snapshot)
    start, lost = last_start(history), last_by_resource(since_start(history))
    listed = {one.resource: one.devices for one in plugins(snapshot).registered}

    for state in resource_states(snapshot):
        if state.registered is not False or up is None or start is None:
            continue
        last = lost.get(state.resource)
        missing = up if last is None else min(up, snapshot.uptime - last.uptime)
        if missing < PATIENCE or (listed.get(state.resource) == () and _only_unhealthy(state, missing)):
            continue
        dropped = state.resource not in listed or missing >= DROPPED
        yield Finding(
            detector=NAME,
            subject=state.resource,
            message=f"{state.resource} is not registered: {_since(last, start.at, up)}{_socket(state)}; "
            + (f"the kubelet has dropped it{_told_by_node(state.resource, snapshot)}" if dropped else _WAITS),
            since=start.at if last is None else last.at,
            resource=state.resource,
        )
    # Said after what was seen: the node's status may tell of a resource that no file here remembers.
    if isinstance(snapshot.node, Unavailable):
        snapshot.node.known()


_WAITS: Final = "the kubelet drops it after five minutes"


def _only_unhealthy(state: ResourceState, missing: timedelta) -> bool:
    """Tell whether its plugin is there and has no healthy device: another trouble, which the plugin tells of."""
    return state.connected is True or (state.connected is None and missing >= SURELY_DROPPED)


def _since(last: DeviceTransition | None, started: datetime, up: timedelta) -> str:
    if last is None:
        return f"the kubelet started {up.total_seconds():.0f} s ago, at {format_time(started)}"
    return f"the kubelet started at {format_time(started)} and has lost it since, at {format_time(last.at)}"


def _socket(state: ResourceState) -> str:
    if not state.socket:
        return ""
    if not state.socket_present:
        return f", and its plugin's socket {state.socket} is gone"
    if state.connected is False:
        return f", and it is not connected to its plugin's socket {state.socket}"
    return f", though its plugin's socket {state.socket} is there"


def _told_by_node(resource: str, snapshot: Snapshot) -> str:
    node = known_or(snapshot.node, None)
    if node is None:
        return ""
    told = [one for one in node.devices if one.resource == resource]
    if not told:
        return ", and the node's status does not name it"
    return f", and the node's status says capacity {told[0].capacity}, allocatable {told[0].allocatable}"

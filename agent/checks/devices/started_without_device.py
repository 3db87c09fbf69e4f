"""A pod that asks for a device was started without one: the kubelet did not know the resource when it admitted it.

A kubelet that knows nothing of a resource drops the request and starts the pod; up to 1.24 so it does too with a pod
whose devices it had noted before. The pod runs, and finds no device, or one that the next pod is given as well.

Means: it started after the kubelet did and before the resource was registered, and the checkpoint has no device of it.
Do: delete the pod, so that another is admitted properly. A kubelet >= 1.28 (1.27.6) asks its devices first; older ones
need a taint on the node until the resource is there.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from agent.checks.devices.clocks import in_this_boot, plugins
from agent.checks.devices.history import transitions
from agent.checks.devices.kubelet_runs import Epoch, epochs
from agent.checks.devices.sockets import socket_pairs
from agent.model.assessment import Scene
from agent.model.devices import DevicePlugins
from agent.model.finding import Finding, Severity, in_words
from agent.model.snapshot import Snapshot

NAME = "started_without_device"
SEVERITIES: Final = (Severity.WARNING,)

GRAIN: Final = timedelta(seconds=2)
"""Starts are whole seconds, and a container starts a while after the kubelet has admitted its pod."""


def find(scene: Scene) -> Iterator[Finding]:
    snapshot = scene.snapshot
    devices, course = plugins(snapshot), transitions(snapshot)
    runs = epochs(course)
    pods = snapshot.pods.known()
    if devices.checkpoint_written is None:
        return  # who has a device is written nowhere
    sockets = socket_pairs(course, devices)
    by_plugins = _by_plugins(devices) | {one.resource for one in course if one.resource}
    given = {(one.pod_uid, one.resource) for one in devices.allocations}

    for pod in pods:
        # What the kubelet gave to one that is being deleted may be given back already.
        if not pod.live or pod.deleting or pod.started is None:
            continue
        # It starts its first pods within a second, and what the kubelet before it started is older than that second.
        epoch = next((one for one in reversed(runs) if one.start.at.replace(microsecond=0) <= pod.started), None)
        if epoch is None or not in_this_boot(epoch.start.at, snapshot):
            continue
        for resource in sorted(set(pod.wants) & by_plugins):
            others = (socket for other, socket in sockets.items() if other != resource)
            bound = epoch.bound(sockets.get(resource, ""), others, epoch.start.at, snapshot.taken_at)
            until = _unknown_until(epoch, resource, bound, snapshot)
            if (pod.uid, resource) in given or until is None or pod.started + GRAIN >= until:
                continue
            yield Finding(
                detector=NAME,
                subject=f"{resource} of pod {pod.name}",
                message=f"pod {pod.name} asks for {resource} and was started without it at {in_words(pod.started)}: "
                f"the kubelet started at {in_words(epoch.start.at)}, and {_when(epoch, resource)}{_SILENTLY}",
                pod=pod.name,
                since=pod.started,
                identity=(pod.uid,),
                resource=resource,
            )


_SILENTLY: Final = "; kubelets up to 1.24 start it in silence, and newer ones that knew nothing of the resource"


def _by_plugins(devices: DevicePlugins) -> set[str]:
    """Return the resources that plugins offer; a capacity written by hand needs no device."""
    return {one.resource for one in devices.registered} | {one.resource for one in devices.allocations}


def _unknown_until(epoch: Epoch, resource: str, bound: datetime | None, snapshot: Snapshot) -> datetime | None:
    """Return until when the kubelet certainly knew no device of the resource; None: nobody saw."""
    came = epoch.came(resource)
    if came is None:
        # Registered or not, this kubelet has not written that it is.
        return epoch.end or snapshot.taken_at + GRAIN
    return came.at if came.exact else bound


def _when(epoch: Epoch, resource: str) -> str:
    came = epoch.came(resource)
    if came is None:
        return f"{resource} was not registered then"
    return f"{resource} was registered {(came.at - epoch.start.at).total_seconds():.1f} s later"

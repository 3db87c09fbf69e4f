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
from agent.checks.devices.history import device_history
from agent.checks.devices.kubelet_runs import KubeletRun, kubelet_runs
from agent.checks.devices.sockets import socket_pairs
from agent.model.assessment import Assessment
from agent.model.devices import DevicePlugins
from agent.model.finding import Finding, Severity, format_time
from agent.model.snapshot import Snapshot

NAME = "started_without_device"
SEVERITIES: Final = (Severity.WARNING,)

GRAIN: Final = timedelta(seconds=2)
"""Starts are whole seconds, and a container starts a while after the kubelet has admitted its pod."""


def find(assessment: Assessment) -> Iterator[Finding]:
    snapshot = assessment.snapshot
    devices, history = plugins(snapshot), device_history(snapshot)
    runs = kubelet_runs(history)
    pods = snapshot.pods.known()
    if devices.checkpoint_written is None:
        return  # who has a device is written nowhere
    sockets = socket_pairs(history, devices)
    by_plugins = _by_plugins(devices) | {one.resource for one in history if one.resource}
    given = {(one.pod_uid, one.resource) for one in devices.allocations}

    for pod in pods:
        # What the kubelet gave to one that is being deleted may be given back already.
        if not pod.live or pod.deleting or pod.started is None:
            continue
        # It starts its first pods within a second, and what the kubelet before it started is older than that second.
        kubelet_run = next((one for one in reversed(runs) if one.start.at.replace(microsecond=0) <= pod.started), None)
        if kubelet_run is None or not in_this_boot(kubelet_run.start.at, snapshot):
            continue
        for resource in sorted(set(pod.wants) & by_plugins):
            others = (socket for other, socket in sockets.items() if other != resource)
            bound = kubelet_run.bound(sockets.get(resource, ""), others, kubelet_run.start.at, snapshot.taken_at)
            until = _unknown_until(kubelet_run, resource, bound, snapshot)
            if (pod.uid, resource) in given or until is None or pod.started + GRAIN >= until:
                continue
            yield Finding(
                detector=NAME,
                subject=f"{resource} of pod {pod.name}",
                message=f"pod {pod.name} asks for {resource} and was started without it at {format_time(pod.started)}: "
                f"the kubelet started at {format_time(kubelet_run.start.at)}, "
                f"and {_when(kubelet_run, resource)}{_SILENTLY}",
                pod=pod.name,
                since=pod.started,
                identity=(pod.uid,),
                resource=resource,
            )


_SILENTLY: Final = "; kubelets up to 1.24 start it in silence, and newer ones that knew nothing of the resource"


def _by_plugins(devices: DevicePlugins) -> set[str]:
    """Return the resources that plugins offer; a capacity written by hand needs no device."""
    return {one.resource for one in devices.registered} | {one.resource for one in devices.allocations}


def _unknown_until(
    kubelet_run: KubeletRun, resource: str, bound: datetime | None, snapshot: Snapshot
) -> datetime | None:
    """Return until when the kubelet certainly knew no device of the resource; None: nobody saw."""
    came = kubelet_run.came(resource)
    if came is None:
        # Registered or not, this kubelet has not written that it is.
        return kubelet_run.end or snapshot.taken_at + GRAIN
    return came.at if came.exact else bound


def _when(kubelet_run: KubeletRun, resource: str) -> str:
    came = kubelet_run.came(resource)
    if came is None:
        return f"{resource} was not registered then"
    return f"{resource} was registered {(came.at - kubelet_run.start.at).total_seconds():.1f} s later"

"""The kubelet's record of devices contradicts the plugin, the API server, or itself.

A running pod has a device that its plugin does not offer any more; two pods have the same device;
a pod that the API server does not have, as after a restore of etcd, runs and keeps its devices; or
a pod that requests a device runs, and the kubelet has no record of one: it starts without its
records if it cannot read them.
Then the node seems to have free devices, and pods that request them are rejected, or share one.

The record keeps the entries of pods that have ended until the next pod is given a device. They are
no conflict.

Means: the checkpoint of the kubelet gives a device to a pod that runs, and the plugin's devices,
the list of pods or another entry contradict it; or it has none for a pod that ran before the
kubelet started. It is a warning where the node's status proves that the plugin's devices are
current, or where two pods are involved.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import MAXYEAR
from typing import Final

from agent.checks.detector import Advice, Noun, Step
from agent.checks.devices.dra import dra_resources_of
from agent.checks.devices.kubelet_versions import DRAIN_FIRST
from agent.checks.devices.view import DeviceView
from agent.model.assessment import Assessment
from agent.model.clocks import WHOLE_SECOND
from agent.model.finding import Finding, Severity
from agent.model.snapshot import Pod, require_available
from agent.model.text import format_time, join_names

NAME = "device_conflict"
SEVERITIES: Final = (Severity.WARNING, Severity.INFO)
NOUN: Final = Noun("conflict over devices", "conflicts over devices")
_LOST: Final = "lost"
_SHARED: Final = "shared"
_UNLISTED: Final = "unlisted"
_UNHEALTHY: Final = "unhealthy"
_UNRECORDED: Final = "unrecorded"
ADVICE: Final = Advice(
    steps=(
        Step(
            "Delete a pod whose device is not offered any more, so that its replacement gets one "
            "that is. Drain the node before the plugin's configuration changes its devices.",
            kind=_LOST,
        ),
        Step(
            "Delete one of the pods that share a device; its controller makes another.",
            kind=_SHARED,
        ),
        Step(
            "A pod that was deleted with --force ends within its grace period. If it runs on, "
            f"restart the kubelet, which then ends it. {DRAIN_FIRST} Plugins must register again, "
            "and with docker a restart can leak addresses: run `nodeleak scan` afterwards.",
            kind=_UNLISTED,
        ),
        Step(
            "If the device is unhealthy, the log of its plugin's pod says why. A replacement gets "
            "another device; its owner has to look at the hardware.",
            kind=_UNHEALTHY,
        ),
        Step(
            "Delete the pod without a record, so that its replacement gets a device of its own. "
            "The kubelet's log says at its start whether it could read its checkpoint.",
            kind=_UNRECORDED,
        ),
    ),
    runbook="Devices.md#nodeleakdeviceconflict",
)

_NAMED: Final = 3
"""How many devices a message names."""


def find(assessment: Assessment) -> Iterator[Finding]:
    view = DeviceView.of(assessment.snapshot)
    pods = assessment.snapshot.pods.known()
    live = view.live_pods

    held = _held(view)
    lost = [
        finding
        for (uid, resource), devices in held.items()
        if uid in live
        for finding in _lost(live[uid], resource, devices, view)
    ]
    yield from lost
    yield from _shared(held, live)
    for pod in live.values():
        yield from _unrecorded(pod, held, view)

    listed = {pod.uid for pod in pods}
    unlisted = {key: devices for key, devices in held.items() if key[0] not in listed}
    if unlisted:
        require_available(assessment.snapshot.containers)
    for (uid, resource), devices in unlisted.items():
        if uid in view.running_unlisted:
            yield _unlisted(uid, resource, devices, view)

    # Last: the Node decides how severe a loss is, and whether DRA serves what a pod requests.
    if lost or any(pod.has_resource_claims and pod.wants for pod in live.values()):
        require_available(assessment.snapshot.node)


def _held(view: DeviceView) -> dict[tuple[str, str], set[str]]:
    """Return the devices of each pod's UID and resource, those of all its containers together."""
    held: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for entry in view.plugins.allocations:
        held[entry.pod_uid, entry.resource].update(entry.devices)
    return dict(sorted(held.items()))


def _lost(pod: Pod, resource: str, devices: set[str], view: DeviceView) -> Iterator[Finding]:
    """Yield a finding about devices that the plugin does not offer, while it offers others."""
    offered = view.healthy.get(resource, ())
    missing = devices.difference(offered)
    if not missing or not offered or not view.written_since_start or pod.deleting:
        return

    node = view.node_devices.get(resource)
    if view.is_connected(resource) is False or (node and not node.allocatable):
        return  # the plugin is away, and late_device_plugin says so

    is_current = node is not None and node.allocatable == len(offered)
    is_gone = is_current and node is not None and node.capacity == len(offered)
    problem = "which its plugin does not offer any more"
    if not is_gone:
        problem = "which its plugin reports as unhealthy or does not offer any more"

    yield Finding(
        NAME,
        f"{resource} of pod {pod.name}",
        f"pod {pod.name} has {_named(missing)} of {resource}, {problem}; it offers {len(offered)}",
        severity=Severity.WARNING if is_current else Severity.INFO,
        pod=pod.name,
        identity=(pod.uid, _LOST),
        resource=resource,
        kinds=(_LOST,) if is_gone else (_LOST, _UNHEALTHY),
    )


def _shared(held: Mapping[tuple[str, str], set[str]], live: Mapping[str, Pod]) -> Iterator[Finding]:
    """Yield a finding about each group of live pods that have the same devices."""
    holders: defaultdict[tuple[str, str], list[Pod]] = defaultdict(list)
    for (uid, resource), devices in held.items():
        if uid in live:
            for device in devices:
                holders[resource, device].append(live[uid])

    shared: defaultdict[tuple[str, tuple[Pod, ...]], set[str]] = defaultdict(set)
    for (resource, device), pods in holders.items():
        if len(pods) > 1:
            ordered = sorted(pods, key=lambda pod: (pod.name, pod.uid))
            shared[resource, tuple(ordered)].add(device)

    for (resource, group), devices in sorted(shared.items(), key=lambda item: item[0][0]):
        names = [pod.name for pod in group]
        yield Finding(
            NAME,
            f"{resource} of pods {', '.join(names)}",
            f"{len(names)} pods have the same {_named(devices)} of {resource}: {join_names(names)}",
            identity=tuple(pod.uid for pod in group),
            resource=resource,
            pods=tuple(names),
            kinds=(_SHARED,),
        )


def _unrecorded(
    pod: Pod, held: Mapping[tuple[str, str], set[str]], view: DeviceView
) -> Iterator[Finding]:
    """Yield a finding about each resource of which a pod should have had a device before a start.

    started_without_device tells of pods that started after the kubelet and before the plugin.
    """
    start = view.start
    started = pod.started
    if start is None or started is None or pod.deleting or not view.written_since_start:
        return
    if started.year == MAXYEAR or started + WHOLE_SECOND >= start.at:
        return

    wanted = set(pod.wants).difference(pod.wants_in_init, dra_resources_of(pod, view))
    run = view.run_before(started + WHOLE_SECOND)
    for resource in sorted(wanted):
        first = run.first_registration(resource) if run else None
        is_early = run is not None and (first is None or first.at > started)
        if is_early or (pod.uid, resource) in held or not view.healthy.get(resource):
            continue

        yield Finding(
            NAME,
            f"record of {resource} of pod {pod.name}",
            f"pod {pod.name} requests {resource} and has run since {format_time(started)}, and the "
            f"kubelet, which started at {format_time(start.at)}, has no record of its device: it "
            "may give the same device to another pod",
            pod=pod.name,
            since=start.at,
            identity=(pod.uid, _UNRECORDED),
            resource=resource,
            kinds=(_UNRECORDED,),
        )


def _unlisted(uid: str, resource: str, devices: set[str], view: DeviceView) -> Finding:
    name = view.running_unlisted[uid]
    pod = f"pod {name}" if name else "a pod"
    message = (
        f"{pod} (uid {uid}) has {_named(devices)} of {resource} and runs, and the API server does "
        "not have it: the scheduler counts its devices as free"
    )
    return Finding(
        NAME,
        f"{resource} of {pod}",
        message,
        pod=name,
        identity=(uid, _UNLISTED),
        resource=resource,
        kinds=(_UNLISTED,),
    )


def _named(devices: set[str]) -> str:
    ordered = sorted(devices)
    names = ", ".join(ordered[:_NAMED])
    if len(ordered) > _NAMED:
        names += f" and {len(ordered) - _NAMED} more"
    return f"device{'s' if len(ordered) > 1 else ''} {names}"

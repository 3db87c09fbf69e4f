"""Why too few devices were free while a resource was registered, by the checkpoint. Pure.

The kubelet marks devices as given out before it asks the plugin. Of a failed request it forgets
some of these marks only when it restarts (kubernetes#130145). Nothing shows the marks, but its
checkpoint has who was given devices.
"""

from collections.abc import Collection
from datetime import datetime

from agent.checks.devices.explanation import Explanation, Window, unverified
from agent.checks.devices.view import DeviceUse, DeviceView
from agent.model.rejections import Rejection, RejectionCause
from agent.model.snapshot import Known
from agent.model.text import count_of, format_time, join_names


def explain_shortage(
    view: DeviceView, rejection: Rejection, resource: str, window: Window, *, by_predicate: bool
) -> Explanation:
    """Return why the kubelet had too few devices of a registered resource for a pod.

    `by_predicate`: it counted the requests of its pods and not the devices, and knows no leak.
    """
    when = f"at {format_time(rejection.at or window.earliest)}"
    available = rejection.available or 0
    needed = 1 if rejection.requested is None else rejection.requested
    in_use = f"{resource} was registered, but all its devices were in use {when}"
    too_few = f"the kubelet had no device of {resource} free {when}"
    if available:
        in_use = (
            f"too few devices of {resource} were free {when} ({needed} wanted, {available} free)"
        )
        too_few = f"the kubelet had {count_of(available, 'device')} of {resource} free {when}"

    devices = view.uses.get(resource)
    if devices is None or not devices.healthy:
        if by_predicate or available:
            return Explanation(RejectionCause.EXHAUSTED, in_use)
        return unverified(f"{too_few}, and the checkpoint now has none to compare")

    held = _describe_use(view, resource, devices)
    free = devices.healthy - devices.of_live_pods
    if len(free) < needed:
        return Explanation(RejectionCause.EXHAUSTED, f"{in_use}; {held}")

    unlisted = free & devices.of_unlisted_pods
    if len(free - unlisted) < needed:
        evidence = f"{too_few}: {held}, and {_describe_unlisted(view, resource, unlisted)}"
        return Explanation(RejectionCause.UNLISTED_POD, evidence)

    held += _describe_others(view, devices)
    if by_predicate:
        return unverified(f"{too_few}, but {held}: pods that had the others may have ended since")

    never_given = len(devices.healthy - devices.allocated)
    if never_given > available and (written := _unchanged_since(view, resource, window)):
        evidence = (
            f"{too_few}, but {held}, and it has not changed since {format_time(written)}: the "
            "kubelet holds devices that no pod has (kubernetes#130145)"
        )
        return Explanation(RejectionCause.DEVICES_LEAKED, evidence)
    return unverified(
        f"{too_few}, but {held}: either pods that had the others have ended since, or the kubelet "
        "holds devices that no pod has (kubernetes#130145)"
    )


def _describe_unlisted(view: DeviceView, resource: str, unlisted: Collection[str]) -> str:
    holders = {
        view.running_unlisted[entry.pod_uid] or f"a pod with the uid {entry.pod_uid}"
        for entry in view.allocations(resource)
        if entry.pod_uid in view.running_unlisted
    }
    run, them = ("it runs", "it") if len(holders) == 1 else ("they run", "them")
    return (
        f"{len(unlisted)} more {_is_or_are(unlisted)} with {join_names(sorted(holders))}: {run}, "
        f"and the API server does not have {them}"
    )


def _describe_others(view: DeviceView, devices: DeviceUse) -> str:
    others = devices.allocated - devices.of_live_pods
    if not others:
        return ""
    text = (
        f", and {len(others)} {_is_or_are(others)} recorded for pods that the API server does not "
        "have as live"
    )
    if not isinstance(view.snapshot.containers, Known):
        text += " (the containers are unavailable: some of these pods may still run)"
    return text


def _describe_use(view: DeviceView, resource: str, devices: DeviceUse) -> str:
    held = f"by the checkpoint now, pods have {len(devices.of_live_pods)} of {len(devices.healthy)}"
    if ending := _ending_holders(view, resource):
        held += f" (of them, {join_names(ending)} {_is_or_are(ending)} being deleted)"
    return held


def _ending_holders(view: DeviceView, resource: str) -> list[str]:
    """Return the pods that are being deleted and that have a device until they have ended."""
    uids = {entry.pod_uid for entry in view.allocations(resource)}
    pods = (view.live_pods[uid] for uid in uids & view.live_pods.keys())
    return sorted(pod.name for pod in pods if pod.deleting)


def _is_or_are(things: Collection[str]) -> str:
    return "is" if len(things) == 1 else "are"


def _unchanged_since(view: DeviceView, resource: str, window: Window) -> datetime | None:
    """Return the time of the checkpoint if it is certainly as it was at a rejection.

    Everything that gives a device to a pod, or changes which are healthy, writes it.
    """
    written = view.plugins.checkpoint_written
    if written is None or written >= window.earliest or not view.written_since_start:
        return None
    return None if view.is_connected(resource) is False else written

"""A pod requests a device and was started without it.

The kubelet did not know the resource when it admitted the pod. Then it ignores the request and
starts the pod. Up to 1.24 it also starts a pod whose devices were allocated before. The pod runs
without a device, or with a device that the next pod is given too.

Means: the pod started after the kubelet and before the resource was registered, and the checkpoint
lists no device.
"""

from collections.abc import Iterator
from datetime import MAXYEAR, datetime
from typing import Final

from agent.checks.detector import Advice, Noun, Step
from agent.checks.devices.dra import dra_resources_of
from agent.checks.devices.resources import registration_delay
from agent.checks.devices.view import DeviceView
from agent.model.assessment import Assessment
from agent.model.clocks import CONTAINER_START, WHOLE_SECOND
from agent.model.finding import Finding, Severity
from agent.model.snapshot import Pod, require_available
from agent.model.text import format_time

NAME = "started_without_device"
SEVERITIES: Final = (Severity.WARNING,)
NOUN: Final = Noun("pod started without its device", "pods started without their devices")
ADVICE: Final = Advice(
    steps=(
        Step(
            "Delete the pod, so that its replacement gets a device:",
            ("kubectl delete pod -n NAMESPACE POD",),
        ),
        Step(
            "Kubelet 1.28 (1.27.6) and later checks the devices first; for older ones, taint the "
            "node until the resource is registered."
        ),
    ),
    runbook="Devices.md#nodeleakstartedwithoutdevice",
)


def find(assessment: Assessment) -> Iterator[Finding]:
    view = DeviceView.of(assessment.snapshot)
    pods = assessment.snapshot.pods.known()
    if view.plugins.checkpoint_written is None:
        return  # no file says which pod has a device

    allocated = {(entry.pod_uid, entry.resource) for entry in view.plugins.allocations}
    for pod in pods:
        # The kubelet may have taken back the devices of a pod that is being deleted.
        if pod.live and not pod.deleting and pod.started is not None:
            # A capacity that was set by hand is of no plugin, and needs no device.
            wanted = view.plugin_resources.intersection(pod.wants) - dra_resources_of(pod, view)
            for resource in sorted(wanted):
                if (pod.uid, resource) not in allocated:
                    yield from _find_early_start(pod, pod.started, resource, view)

    # The Node may show that DRA serves what they request. Without it, no finding means nothing.
    if any(pod.live and pod.has_resource_claims for pod in pods):
        require_available(assessment.snapshot.node)


def _find_early_start(
    pod: Pod, started: datetime, resource: str, view: DeviceView
) -> Iterator[Finding]:
    """Yield a finding if the pod certainly started before the resource was registered."""
    if started.year == MAXYEAR:
        return  # no kubelet says so, and to this time nothing can be added
    # `started` has no fraction. If a kubelet started within that second, it also started the pod: a
    # kubelet starts its first pods at once, and the one before starts none in that second.
    run = view.run_before(started + WHOLE_SECOND)
    if run is None or not view.in_this_boot(run.start.at):
        return

    # Until `unknown_until`, the kubelet certainly knew no device of the resource. Without a
    # registration, that is the end of the run; if its time is not exact, when the plugin bound its
    # socket.
    registration = run.first_registration(resource)
    unknown_until: datetime | None = run.end or view.snapshot.taken_at + CONTAINER_START
    when_registered = "was not registered then"
    if registration is not None:
        when_registered = f"was registered at {format_time(registration.at)}"
        if delay := registration_delay(resource, run, view):
            when_registered = f"was registered {delay.total_seconds():.1f} s later"
        bound_at = view.socket_bound_at(run, resource, run.start.at, view.snapshot.taken_at)
        unknown_until = registration.at if registration.exact else bound_at

    if unknown_until is None or started + CONTAINER_START >= unknown_until:
        return

    lead = (
        f"pod {pod.name} requests {resource} and was started without it at {format_time(started)}"
    )
    cause = f"the kubelet started at {format_time(run.start.at)}, and {resource} {when_registered}"
    versions = (
        "kubelets up to 1.24 start such a pod without an error, newer ones only if they never knew "
        "the resource"
    )
    remedy = "delete the pod, so that its replacement gets a device"
    yield Finding(
        NAME,
        f"{resource} of pod {pod.name}",
        f"{lead}: {cause}; {versions}; {remedy}",
        lead=lead,
        details=(cause, versions),
        pod=pod.name,
        since=started,
        identity=(pod.uid,),
        resource=resource,
    )

"""A pod requests a device and was started without one: the kubelet did not know the resource when it admitted the pod.

A kubelet that does not know a resource ignores the request and starts the pod. Up to 1.24 it also starts a pod whose
devices were allocated before. The pod runs without a device, or with one that the next pod is given too.

Means: the pod started after the kubelet and before the resource was registered, and the checkpoint lists no device.
Do: delete the pod, so that its replacement is admitted properly. Kubelet 1.28 (1.27.6) and later checks the devices
first; for older ones, taint the node until the resource is registered.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from agent.checks.devices.clocks import in_this_boot, plugins
from agent.checks.devices.kubelet_runs import KubeletRun, kubelet_runs
from agent.checks.devices.sockets import socket_pairs
from agent.model.assessment import Assessment
from agent.model.devices import DevicePlugins
from agent.model.finding import Finding, Severity, format_time
from agent.model.snapshot import Pod, Snapshot

NAME = "started_without_device"
SEVERITIES: Final = (Severity.WARNING,)

_GRAIN: Final = timedelta(seconds=2)
"""Start times are whole seconds, and a container starts a moment after the kubelet admitted its pod."""


def find(assessment: Assessment) -> Iterator[Finding]:
    snapshot = assessment.snapshot
    devices = plugins(snapshot)
    runs = kubelet_runs(devices.history)
    pods = snapshot.pods.known()
    if devices.checkpoint_written is None:
        return  # no file says which pod has a device
    of_plugins = _plugin_resources(devices)
    allocated = {(one.pod_uid, one.resource) for one in devices.allocations}
    for pod in pods:
        # The kubelet may have taken back the devices of a pod that is being deleted.
        if not pod.live or pod.deleting or pod.started is None:
            continue
        run = _run_that_started(pod.started, runs)
        if run is None or not in_this_boot(run.start.at, snapshot):
            continue
        for resource in sorted(of_plugins.intersection(pod.wants)):
            admission = _Admission(pod, pod.started, resource, run, snapshot)
            if (pod.uid, resource) not in allocated and admission.too_early():
                yield admission.finding()


def _plugin_resources(devices: DevicePlugins) -> set[str]:
    """Return the resources of plugins; a capacity that was set by hand needs no device."""
    registered = {one.resource for one in devices.registered} | {one.resource for one in devices.history}
    return (registered | {one.resource for one in devices.allocations}) - {""}


def _run_that_started(at: datetime, runs: tuple[KubeletRun, ...]) -> KubeletRun | None:
    # A kubelet starts its first pods within its first second; no earlier kubelet starts one in that second.
    return next((run for run in reversed(runs) if run.start.at.replace(microsecond=0) <= at), None)


@dataclass(frozen=True, slots=True)
class _Admission:
    """A pod that one run of the kubelet started."""

    pod: Pod
    started: datetime
    resource: str
    run: KubeletRun
    snapshot: Snapshot

    def too_early(self) -> bool:
        until = self._unknown_until()
        return until is not None and self.started + _GRAIN < until

    def _unknown_until(self) -> datetime | None:
        """Return until when the kubelet certainly knew no device of the resource; None: not known."""
        registration = self.run.first_registration(self.resource)
        if registration is None:
            # Registered or not: this kubelet has not written that it is.
            return self.run.end or self.snapshot.taken_at + _GRAIN
        return registration.at if registration.exact else self._socket_bound()

    def _socket_bound(self) -> datetime | None:
        devices = plugins(self.snapshot)
        sockets = socket_pairs(devices.history, devices)
        others = (socket for other, socket in sockets.items() if other != self.resource)
        return self.run.socket_bound(sockets.get(self.resource, ""), others, self.run.start.at, self.snapshot.taken_at)

    def finding(self) -> Finding:
        return Finding(
            detector=NAME,
            subject=f"{self.resource} of pod {self.pod.name}",
            message=f"pod {self.pod.name} requests {self.resource} and was started without it at "
            f"{format_time(self.started)}: the kubelet started at {format_time(self.run.start.at)}, "
            f"and {self._when_registered()}; {_NO_REJECTION}",
            pod=self.pod.name,
            since=self.started,
            identity=(self.pod.uid,),
            resource=self.resource,
        )

    def _when_registered(self) -> str:
        registration = self.run.first_registration(self.resource)
        if registration is None:
            return f"{self.resource} was not registered then"
        return f"{self.resource} was registered {(registration.at - self.run.start.at).total_seconds():.1f} s later"


_NO_REJECTION: Final = (
    "kubelets up to 1.24 start such a pod without an error, newer ones only if they never knew the resource; delete "
    "the pod, so that its replacement gets a device"
)

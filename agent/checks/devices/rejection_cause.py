"""Why a pod was rejected. Time windows are compared; where two overlap, only the kubelet's message can decide. Pure.

The race: the kubelet admits pods as soon as its device manager has started, but knows no device until each plugin has
noticed, bound its socket again and registered.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from agent.checks.devices import outages
from agent.checks.devices.clocks import boot_id, in_this_boot, plugins
from agent.checks.devices.kubelet_runs import KubeletRun, kubelet_runs
from agent.checks.devices.outages import Outage, TimeWindow
from agent.checks.devices.sockets import socket_pairs
from agent.model.devices import ENDPOINT_GRACE, SURELY_DROPPED_AFTER, DeviceTransition
from agent.model.finding import format_time
from agent.model.rejections import Rejection, RejectionCause, RejectionKind
from agent.model.snapshot import Pod, Snapshot, known_or

BOOTING: Final = timedelta(minutes=15)
"""A kubelet that starts this soon after the node was started by its boot."""

_NODE_FULL: Final = "enough resource:"
"""Said by the scheduler predicate, which counts the node's capacity, and not by the device manager."""
_SINCE_1_26: Final = "Pod was rejected: "
_NOT_SEEN: Final = "no snapshot saw when the resource was registered"

Explanation: TypeAlias = tuple[RejectionCause, str]
"""The cause, and the evidence in words."""


@dataclass(frozen=True, slots=True)
class _Case:
    """One rejection."""

    pod: Pod
    rejection: Rejection
    resource: str
    at: datetime
    window: TimeWindow

    @property
    def no_device_known(self) -> bool:
        """Whether no kubelet says this while it has healthy devices of the resource."""
        return self.rejection.refused is not RejectionKind.INSUFFICIENT

    def exhausted(self) -> Explanation:
        what = f"{self.resource} was registered, but all its devices were in use at {format_time(self.at)}"
        return RejectionCause.EXHAUSTED, what


@dataclass(frozen=True, slots=True)
class RejectionAnalysis:
    """What the node's records say about rejections."""

    snapshot: Snapshot
    kubelet_runs: tuple[KubeletRun, ...]
    sockets: Mapping[str, str]

    @classmethod
    def of(cls, snapshot: Snapshot) -> "RejectionAnalysis":
        devices = plugins(snapshot)
        return cls(snapshot, kubelet_runs(devices.history), socket_pairs(devices.history, devices))

    def cause(self, pod: Pod, rejection: Rejection, resource: str) -> Explanation:
        if rejection.at is None:
            return _unverified("no record says when")
        if not resource:
            return _unverified("no record names the device")
        if (by_message := _by_message(rejection, rejection.at)) is not None:
            return by_message
        window = outages.rejection_window(rejection, rejection.at, self.snapshot.api_skew)
        return self._by_time(_Case(pod, rejection, resource, rejection.at, window))

    def _by_time(self, case: _Case) -> Explanation:
        """Decide by the kubelet run that the rejection fell into; if it may be one of several, they have to agree."""
        candidates = [
            (run, window) for run in self.kubelet_runs if (window := outages.within_run(case.window, run)) is not None
        ]
        if not candidates:
            return _unverified(f"at {format_time(case.at)}, before the oldest known start of the kubelet")
        if not case.rejection.by_api or case.no_device_known:
            # A kubelet needs more than a second to start: in that second, no earlier one was there to reject a pod.
            return self._in_run(*candidates[-1], case)
        causes = [self._in_run(run, window, case) for run, window in candidates]
        all_known = self.kubelet_runs[0].start.at <= case.window.earliest
        if all_known and len({cause for cause, _ in causes}) == 1:
            return causes[-1]
        if self._all_in_use(case):
            return case.exhausted()
        return _unverified(f"it is not known whether the kubelet had started at {format_time(case.at)}")

    def _in_run(self, run: KubeletRun, window: TimeWindow, case: _Case) -> Explanation:
        if self._clock_was_set_since(run.start):
            return _unverified("the node's clock was set since: times cannot be compared")
        registration = run.first_registration(case.resource)
        before = registration is None or window.latest <= registration.at
        if before and not case.no_device_known and window.earliest - run.start.at >= SURELY_DROPPED_AFTER:
            # If it had not been registered, the kubelet would have dropped it, and its message would say so.
            return _unverified(_NOT_SEEN)
        if registration is None:
            return self._race(run, None, case)
        registered = self._registration_window(run, registration, run.start.at, case)
        if window.before(registered):
            return self._race(run, registration, case)
        if window.after(registered):
            return self._after_registration(run, window, case)
        return self._during_registration(run, registration, window, case)

    def _during_registration(
        self, run: KubeletRun, registration: DeviceTransition, window: TimeWindow, case: _Case
    ) -> Explanation:
        soon = registration.exact or window.earliest <= run.start.at + ENDPOINT_GRACE
        if case.no_device_known and soon:
            return self._race(run, registration, case)
        if self._all_in_use(case):
            return case.exhausted()
        if not registration.exact:
            return _unverified(_NOT_SEEN)
        return _unverified(f"{case.resource} was being registered at {format_time(case.at)}")

    def _race(self, run: KubeletRun, registration: DeviceTransition | None, case: _Case) -> Explanation:
        """Explain a rejection between the kubelet's start and the registration."""
        started = f"started at {format_time(run.start.at)} and {case.resource} {_registered_when(run, registration)}"
        rejected = f"the pod was rejected before that, at {format_time(case.at)}"
        if self._had_run(case.pod) and case.rejection.message.startswith(_SINCE_1_26):
            if case.pod.controller.startswith("Job/"):
                again = "it had run, and the kubelet admitted the Job's completed pod again"
                return RejectionCause.READMITTED_AFTER_COMPLETION, f"the kubelet {started}; {rejected}: {again}"
            if case.resource in case.pod.wants_in_init:
                again = "it was running, and the kubelet requested its init container's devices again"
                return RejectionCause.INIT_CONTAINER, f"the kubelet {started}; {rejected}: {again}"
        if self._started_by_boot(run.start):
            return RejectionCause.NODE_REBOOT, f"the node booted, its kubelet {started}; {rejected}"
        return RejectionCause.KUBELET_RESTART, f"the kubelet {started}; {rejected}"

    def _after_registration(self, run: KubeletRun, window: TimeWindow, case: _Case) -> Explanation:
        if (in_outage := self._in_outage(run, window, case)) is not None:
            return in_outage
        at = format_time(case.at)
        if not case.no_device_known:
            if case.rejection.available is None:
                return _unverified(f"it is unknown whether all devices were in use at {at}")
            return case.exhausted()
        restarted = self._socket_bound(run, case, window.earliest, window.latest + ENDPOINT_GRACE)
        if restarted or case.rejection.refused is RejectionKind.PLUGIN_GONE:
            return RejectionCause.PLUGIN_RESTART, f"the plugin of {case.resource} was restarting at {at}"
        if case.rejection.refused is RejectionKind.NO_HEALTHY:
            return (
                RejectionCause.UNHEALTHY,
                f"{case.resource} was registered, but none of its devices was healthy at {at}",
            )
        return _unverified(f"{case.resource} was registered at {at}, according to the known history")

    def _in_outage(self, run: KubeletRun, window: TimeWindow, case: _Case) -> Explanation | None:
        for outage in outages.outages_in(run.of(case.resource)):
            back = None
            if outage.back is not None:
                back = self._registration_window(run, outage.back, outage.lost.at, case)
            contained = outage.contains(window, back)
            if contained or (contained is None and case.no_device_known):
                return self._outage(run, outage, case)
            if contained is None:
                if self._all_in_use(case):
                    return case.exhausted()
                return _unverified(f"it is unknown whether all devices were in use at {format_time(case.at)}")
        return None

    def _outage(self, run: KubeletRun, outage: Outage, case: _Case) -> Explanation:
        at = format_time(case.at)
        words = f"the kubelet had no healthy device of {case.resource} since {format_time(outage.lost.at)}"
        if outage.back is None:
            plugin_gone = self._disconnected(case.resource)
        else:
            plugin_gone = self._socket_bound(run, case, outage.lost.at, outage.back.at)
        unknown = case.rejection.refused in {RejectionKind.PLUGIN_GONE, RejectionKind.UNREGISTERED}
        if plugin_gone or outage.dropped or unknown:
            return RejectionCause.PLUGIN_RESTART, f"{words}: its plugin was gone when the pod was rejected, at {at}"
        return RejectionCause.UNHEALTHY, f"{words}: its plugin was connected when the pod was rejected, at {at}"

    def _registration_window(
        self, run: KubeletRun, registration: DeviceTransition, since: datetime, case: _Case
    ) -> TimeWindow:
        """Return when a registration was. `since`: the start, or the loss, before it."""
        socket = self.sockets.get(case.resource, "")
        others = (one for other, one in self.sockets.items() if other != case.resource)
        bound = run.socket_bound(socket, others, since, registration.at)
        # This message proves that it was not registered; soon after the start, that it had not been yet.
        missing_until = since + ENDPOINT_GRACE if case.no_device_known else since
        return outages.registration_window(run, registration, bound, missing_until)

    def _clock_was_set_since(self, start: DeviceTransition) -> bool:
        boot = boot_id(self.snapshot)
        return bool(boot) and start.boot_id == boot and not in_this_boot(start.at, self.snapshot)

    def _had_run(self, pod: Pod) -> bool:
        allocations = plugins(self.snapshot).allocations
        return pod.started is not None or any(one.pod_uid == pod.uid for one in allocations)

    def _started_by_boot(self, start: DeviceTransition) -> bool:
        if start.boot_id and start.uptime <= BOOTING:
            return True
        booted = self.snapshot.taken_at - self.snapshot.uptime
        return in_this_boot(start.at, self.snapshot) and start.at - booted <= BOOTING

    def _socket_bound(self, run: KubeletRun, case: _Case, since: datetime, until: datetime) -> bool:
        socket = self.sockets.get(case.resource, "")
        return bool(socket) and run.socket_bound(socket, (), since, until) is not None

    def _disconnected(self, resource: str) -> bool:
        socket = self.sockets.get(resource)
        streams = {one.name: one.connected for one in plugins(self.snapshot).sockets}
        return socket is not None and streams.get(socket, False) is False

    def _all_in_use(self, case: _Case) -> bool:
        """Whether live pods that ran already when this one was rejected have all devices of the resource."""
        if case.no_device_known or case.rejection.available != 0:
            return False
        registered = plugins(self.snapshot).registered
        devices = {device for one in registered if one.resource == case.resource for device in one.devices}
        return bool(devices) and devices <= self._in_use(case)

    def _in_use(self, case: _Case) -> set[str]:
        pods = known_or(self.snapshot.pods, ())
        running = {pod.uid for pod in pods if pod.live and pod.started is not None and pod.started <= case.at}
        return {
            device
            for one in plugins(self.snapshot).allocations
            if one.resource == case.resource and one.pod_uid in running
            for device in one.devices
        }


def _unverified(why: str) -> Explanation:
    return RejectionCause.UNVERIFIED, why


def _by_message(rejection: Rejection, at: datetime) -> Explanation | None:
    """Return the cause if the kubelet's message alone proves it."""
    if rejection.refused is RejectionKind.OTHER:
        return _unverified(f"the kubelet reported: {rejection.message}")
    if rejection.refused is not RejectionKind.INSUFFICIENT:
        return None
    if _NODE_FULL in rejection.message:
        return RejectionCause.EXHAUSTED, f"too few devices were left at {format_time(at)}"
    if rejection.available:
        requested = "" if rejection.requested is None else f"requested {rejection.requested}, "
        return RejectionCause.EXHAUSTED, f"{requested}available {rejection.available} at {format_time(at)}"
    return None


def _registered_when(run: KubeletRun, registration: DeviceTransition | None) -> str:
    if registration is not None:
        return f"was registered {(registration.at - run.start.at).total_seconds():.1f} s later"
    if run.end is not None:
        return "was not registered before the kubelet started again"
    return "has not been registered since"

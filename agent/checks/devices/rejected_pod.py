"""The kubelet rejected a pod because it had no device for it, and the pod stays Failed: nothing admits it again.

After a restart, a kubelet admits pods before the device plugins have registered again. It rejects pods in between with
`UnexpectedAdmissionError` (or `OutOf…`), even pods that had run. The scheduler does not know that and may send more.

Means: the kubelet rejected the pod, which is Failed. The message gives the cause, by the times of the rejection and of
the plugin's registration; `unverified` if they do not prove it. Five pods of one controller in ten minutes share one.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain, pairwise
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

from agent.checks.detector import Noun, Remedy, Step
from agent.checks.devices.resources import resource_states
from agent.checks.devices.view import REGISTERS_WITHIN, DeviceView, KubeletRun
from agent.model.assessment import Assessment
from agent.model.clocks import SKEW_ERROR, STATUS_DELAY, WHOLE_SECOND
from agent.model.devices import (
    ENDPOINT_GRACE,
    SURELY_DROPPED_AFTER,
    DeviceTransition,
    TransitionKind,
)
from agent.model.finding import Finding, Severity
from agent.model.rejections import PodOutcome, RejectedPod, Rejection, RejectionCause, RejectionKind
from agent.model.snapshot import Known, Pod, Snapshot
from agent.model.text import format_time, join_names

NAME = "rejected_pod"
SEVERITIES: Final = (Severity.WARNING,)
NOUN: Final = Noun(
    "pod rejected by the kubelet for a device", "pods rejected by the kubelet for a device"
)
REMEDY: Final = Remedy(
    steps=(
        Step(
            "If nothing replaces the pod, save its manifest, and delete it when the devices are "
            "healthy again (`kubectl delete pod`); never with --force, which can leak the address "
            "of a pod that had run."
        ),
        Step("If its controller replaces it, delete the leftover at your convenience."),
        Step(
            "To prevent it, give the plugin the priority class system-node-critical, taint nodes "
            "until their devices are registered, and run kubelet 1.27.6, 1.28 or later."
        ),
    ),
    runbook="Devices.md#nodeleakrejectedpods",
    in_messages=True,
)

STORM_PODS: Final = 5
STORM_WITHIN: Final = timedelta(minutes=10)
_NAMED: Final = 3  # how many pods of a storm a message names

OVERDUE: Final = timedelta(seconds=60)  # how long after its deletionTimestamp a pod may still exist
REPLACED_WITHIN: Final = {
    **dict.fromkeys(("ReplicaSet", "ReplicationController", "Job")),
    "StatefulSet": timedelta(minutes=2),
    "DaemonSet": timedelta(minutes=16),
}
"""Controllers that replace failed pods. The last two delete the pod first, so an older pod is
stuck."""

NO_FORCE: Final = "never use --force, which can leak the address of a pod that had run"
_LEFTOVER: Final = f"delete the failed pod at your convenience; {NO_FORCE}"

BETWEEN_SNAPSHOTS: Final = timedelta(seconds=60)
"""What a snapshot saw first may have happened this much earlier."""
BOOTING: Final = timedelta(minutes=15)
"""A kubelet that starts this soon after the node was started by its boot."""

_YEARS: Final = range(1970, 9001)  # nearer to the end of the calendar no span can be added
_COMPARABLE: Final = timedelta(days=365)  # clocks that differ by more tell nothing of each other
_NODE_FULL: Final = "enough resource:"
"""Said by the scheduler predicate, which counts the node's capacity, and not by the device manager.

"""
_SINCE_1_26: Final = "Pod was rejected: "
_NOT_SEEN: Final = "no snapshot saw when the resource was registered"

Explanation: TypeAlias = tuple[RejectionCause, str]  # the cause, and the evidence in words


class Window(NamedTuple):
    earliest: datetime  # it happened then or later
    latest: datetime  # and before that


@dataclass(frozen=True, slots=True)
class _Case:
    """A rejection by a run of the kubelet. Times are windows; where they overlap, only the message can decide."""

    view: DeviceView
    run: KubeletRun
    pod: Pod
    rejection: Rejection
    resource: str
    at: datetime
    window: Window

    @property
    def no_device_known(self) -> bool:
        """Whether no kubelet says this while it has healthy devices of the resource."""
        return self.rejection.refused is not RejectionKind.INSUFFICIENT

    def explain(self) -> Explanation:
        start = self.run.start
        if (
            start.boot_id
            and start.boot_id == self.view.boot_id
            and not self.view.in_this_boot(start.at)
        ):
            return _unverified("the node's clock was set since: times cannot be compared")
        before, during, after = self._sides()
        registration = self.run.first_registration(self.resource)
        if registration not in before:
            return self._race(registration, certain=registration not in during)
        known = max(
            index for index, change in enumerate(before) if change.what is TransitionKind.REGISTERED
        )
        losses = [
            change
            for change in (*before[known + 1 :], *during)
            if change.what is not TransitionKind.REGISTERED
        ]
        if losses:
            return self._outage(losses, [*during, *after], certain=not during)
        return self._while_registered()

    def _sides(
        self,
    ) -> tuple[list[DeviceTransition], list[DeviceTransition], list[DeviceTransition]]:
        """Return the changes before the rejection, those that may have been at that moment, and those after it."""
        before, during, after = (
            list[DeviceTransition](),
            list[DeviceTransition](),
            list[DeviceTransition](),
        )
        for previous, change in pairwise((self.run.start, *self.run.changes(self.resource))):
            window = self._window(change, previous)
            is_before, is_after = (
                window.latest <= self.window.earliest,
                self.window.latest <= window.earliest,
            )
            (before if is_before else after if is_after else during).append(change)
        return before, during, after

    def _window(self, change: DeviceTransition, previous: DeviceTransition) -> Window:
        if change.what is not TransitionKind.REGISTERED:
            if change.exact:
                return Window(change.at, change.at)
            seen_together = change.uptime == previous.uptime
            return Window(
                previous.at if seen_together else change.at - BETWEEN_SNAPSHOTS, change.at
            )
        bound = self.view.socket_bound(self.run, self.resource, previous.at, change.at)
        if change.exact and (bound is None or change.at - bound > REGISTERS_WITHIN):
            bound = change.at
        return Window(bound or min(change.at, previous.at), change.at)

    def _race(self, registration: DeviceTransition | None, *, certain: bool) -> Explanation:
        """Explain a rejection between the kubelet's start and the registration."""
        if why := self._doubt(None if certain else registration):
            return _unverified(why)
        start, when = self.run.start, "has not been registered since"
        if self.run.end:
            when = "was not registered before the kubelet started again"
        if registration is not None:
            when = f"was registered {(registration.at - start.at).total_seconds():.1f} s later"
        started = f"started at {format_time(start.at)} and {self.resource} {when}"
        rejected = f"the pod was rejected before that, at {format_time(self.at)}"
        if (again := self._admitted_again()) is not None:
            return again[0], f"the kubelet {started}; {rejected}: {again[1]}"
        if self._started_by_boot():
            return RejectionCause.NODE_REBOOT, f"the node booted, its kubelet {started}; {rejected}"
        return RejectionCause.KUBELET_RESTART, f"the kubelet {started}; {rejected}"

    def _doubt(self, registration: DeviceTransition | None) -> str:
        """Say why it may not have been before the registration; empty: it was. None: that was later, or never."""
        since_start = self.window.earliest - self.run.start.at
        before = registration is None or self.window.latest <= registration.at
        if before and not self.no_device_known and since_start >= SURELY_DROPPED_AFTER:
            # If it had not been registered, the kubelet would have dropped it, and its message
            # would say so.
            return _NOT_SEEN
        if registration is None:
            return ""
        if self.no_device_known and (registration.exact or since_start <= ENDPOINT_GRACE):
            return ""
        return (
            f"{self.resource} was being registered at {format_time(self.at)}"
            if registration.exact
            else _NOT_SEEN
        )

    def _admitted_again(self) -> Explanation | None:
        """Return why a newer kubelet rejects a pod that had run."""
        given_devices = {allocation.pod_uid for allocation in self.view.plugins.allocations}
        had_run = self.pod.started is not None or self.pod.uid in given_devices
        if not had_run or not self.rejection.message.startswith(_SINCE_1_26):
            return None
        if self.pod.controller.startswith("Job/"):
            why = "it had run, and the kubelet admitted the Job's completed pod again"
            return RejectionCause.READMITTED_AFTER_COMPLETION, why
        if self.resource in self.pod.wants_in_init:
            why = "it was running, and the kubelet requested its init container's devices again"
            return RejectionCause.INIT_CONTAINER, why
        return None

    def _started_by_boot(self) -> bool:
        start, booted = self.run.start, self.view.snapshot.taken_at - self.view.snapshot.uptime
        seen = start.boot_id and start.uptime <= BOOTING
        return bool(seen) or (self.view.in_this_boot(start.at) and start.at - booted <= BOOTING)

    def _outage(
        self, losses: list[DeviceTransition], later: list[DeviceTransition], *, certain: bool
    ) -> Explanation:
        """Explain a rejection after a resource that had been registered was lost."""
        if not certain and not self.no_device_known:
            return _unverified(
                f"it is unknown whether all devices were in use at {format_time(self.at)}"
            )
        what = f"the kubelet had no healthy device of {self.resource} since {format_time(losses[0].at)}"
        back = next(
            (change.at for change in later if change.what is TransitionKind.REGISTERED), None
        )
        said_so = self.rejection.refused in {RejectionKind.PLUGIN_GONE, RejectionKind.UNREGISTERED}
        dropped = any(loss.what is TransitionKind.DROPPED for loss in losses)
        if said_so or dropped or self._plugin_gone(losses[0].at, back):
            why = (
                f"{what}: its plugin was gone when the pod was rejected, at {format_time(self.at)}"
            )
            return RejectionCause.PLUGIN_RESTART, why
        why = (
            f"{what}: its plugin was connected when the pod was rejected, at {format_time(self.at)}"
        )
        return RejectionCause.UNHEALTHY, why

    def _plugin_gone(self, lost: datetime, back: datetime | None) -> bool:
        """Return whether the plugin bound its socket anew, or has not returned."""
        if back is not None:
            return self._socket_bound(lost, back)
        socket = self.view.sockets.get(self.resource)
        return socket is not None and self.view.connected.get(socket, False) is False

    def _while_registered(self) -> Explanation:
        what, at = f"{self.resource} was registered, but", format_time(self.at)
        if not self.no_device_known:
            if self.rejection.available is None:
                return _unverified(f"it is unknown whether all devices were in use at {at}")
            return RejectionCause.EXHAUSTED, f"{what} all its devices were in use at {at}"
        restarted = self._socket_bound(self.window.earliest, self.window.latest + ENDPOINT_GRACE)
        if restarted or self.rejection.refused is RejectionKind.PLUGIN_GONE:
            return (
                RejectionCause.PLUGIN_RESTART,
                f"the plugin of {self.resource} was restarting at {at}",
            )
        if self.rejection.refused is RejectionKind.NO_HEALTHY:
            return RejectionCause.UNHEALTHY, f"{what} none of its devices was healthy at {at}"
        return _unverified(
            f"{self.resource} was registered at {at}, according to the known history"
        )

    def _socket_bound(self, since: datetime, until: datetime) -> bool:
        bound = self.view.socket_bound(self.run, self.resource, since, until)
        return self.resource in self.view.sockets and bound is not None


def explain(view: DeviceView | None, pod: Pod, rejection: Rejection, resource: str) -> Explanation:
    at = rejection.at
    if view is None:
        return _unverified("the node's device plugins are unavailable")
    if at is None or at.year not in _YEARS:
        return _unverified("no record says when")
    if not resource:
        return _unverified("no record names the device")
    return _by_message(rejection, at) or _by_time(view, pod, rejection, resource, at)


def _by_time(
    view: DeviceView, pod: Pod, rejection: Rejection, resource: str, at: datetime
) -> Explanation:
    window = Window(at, at + WHOLE_SECOND)
    if rejection.by_api:  # when it was by the node's clock, as the files' times are
        off = abs(view.snapshot.api_skew or timedelta(0))
        if off > _COMPARABLE:
            return _unverified("the clocks of the node and of the API server cannot be compared")
        slack = STATUS_DELAY + (off if off > SKEW_ERROR else timedelta(0))
        window = Window(window.earliest - slack, window.latest + slack)
    # A kubelet needs more than a second to start: in that second, no earlier kubelet was there to
    # reject a pod.
    run = view.run_before(window.latest)
    if run is None:
        return _unverified(f"at {format_time(at)}, before the oldest known start of the kubelet")
    if (
        window.earliest < run.start.at
        and rejection.by_api
        and rejection.refused is RejectionKind.INSUFFICIENT
    ):
        return _unverified(f"it is not known whether the kubelet had started at {format_time(at)}")
    window = Window(
        max(window.earliest, run.start.at), min(window.latest, run.end or window.latest)
    )
    return _Case(view, run, pod, rejection, resource, at, window).explain()


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
        return (
            RejectionCause.EXHAUSTED,
            f"{requested}available {rejection.available} at {format_time(at)}",
        )
    return None


def _unverified(why: str) -> Explanation:
    return RejectionCause.UNVERIFIED, why


def find(assessment: Assessment) -> Iterator[Finding]:
    rejected = [*rejected_pods(assessment.snapshot)]
    storms = [*_storms(rejected)]
    in_storms = {pod for storm in storms for pod in storm}
    yield from map(_finding, [*storms, *((pod,) for pod in rejected if pod not in in_storms)])
    # Last: without the device plugins the pods are known, but not the causes.
    assessment.snapshot.device_plugins.known()


def rejected_pods(snapshot: Snapshot) -> Iterator[RejectedPod]:
    """Yield every rejected pod that is not being deleted in time. Without the device plugins, causes are unverified."""
    view: DeviceView | None = None
    by_socket, healthy = dict[str, str](), set[str]()
    if isinstance(snapshot.device_plugins, Known):
        view = DeviceView.of(snapshot)
        by_socket = {socket: resource for resource, socket in view.sockets.items()}
        healthy = {state.resource for state in resource_states(view) if state.registered}
    for pod in snapshot.pods.known():
        if (
            pod.phase == "Failed"
            and pod.rejection
            and (not pod.deleting or _overdue(pod, snapshot))
        ):
            # If the message names a socket and no resource, the rejection's resource is a guess
            # from the spec.
            rejection, resource = (
                pod.rejection,
                by_socket.get(pod.rejection.socket, pod.rejection.resource),
            )
            cause, why = explain(view, pod, rejection, resource)
            outcome, do = _outcome(pod, rejection, cause, snapshot, healthy=resource in healthy)
            yield RejectedPod(
                pod.name, pod.uid, pod.controller, resource, rejection.at, cause, outcome, why, do
            )


def _overdue(pod: Pod, snapshot: Snapshot) -> datetime | None:
    """Return since when a deleted pod should be gone, by the API server's clock; None: it may still exist."""
    return (
        pod.deletion
        if pod.deletion is not None and snapshot.api_time - pod.deletion > OVERDUE
        else None
    )


def _outcome(
    pod: Pod, rejection: Rejection, cause: RejectionCause, snapshot: Snapshot, *, healthy: bool
) -> tuple[PodOutcome, str]:
    """Return the outcome, and the advice. `healthy`: the kubelet has healthy devices of the resource now."""
    if since := _overdue(pod, snapshot):
        do = f"deleted, and should have been gone by {format_time(since)}, but {_held_by(pod)}"
        return PodOutcome.TERMINATING_STUCK, do
    when = "(its devices are healthy again)" if healthy else "once its devices are healthy again"
    if cause is RejectionCause.EXHAUSTED:
        when = "once a device is free"
    delete = f"delete it {when}; {NO_FORCE}"
    kind = pod.controller.partition("/")[0]
    if kind not in REPLACED_WITHIN:
        whose = (
            f"{pod.controller} need not replace it" if pod.controller else "it has no controller"
        )
        return PodOutcome.STUCK, f"{whose}, so it stays Failed: {delete}"
    if (
        (grace := REPLACED_WITHIN[kind])
        and rejection.at
        and snapshot.taken_at - rejection.at > grace
    ):
        return PodOutcome.STUCK, f"{pod.controller} should have replaced it by now: {delete}"
    does = "counts it as a failure and retries" if kind == "Job" else "replaces it"
    return PodOutcome.REPLACED_BY_CONTROLLER, f"{pod.controller} {does}; {_LEFTOVER}"


def _held_by(pod: Pod) -> str:
    if pod.finalizers:
        return f"its finalizers remain: {', '.join(pod.finalizers)}; the controller that owns them must remove them"
    return (
        "the kubelet has not finished deleting it; only a kubelet restart makes it try again, and every device plugin "
        f"must then register again: ask the owner of the node first; {NO_FORCE}"
    )


def _finding(pods: Sequence[RejectedPod]) -> Finding:
    """Return the finding about a pod, or about a storm: then the advice is that for most of its pods."""
    commonest, _ = Counter((pod.cause, pod.pod_outcome) for pod in pods).most_common(1)[0]
    typical, single = (
        next(pod for pod in pods if (pod.cause, pod.pod_outcome) == commonest),
        len(pods) == 1,
    )
    subject, why = f"pod {typical.pod}", f"{typical.why}; {typical.do}"
    message = f"{subject} was rejected{_for(typical.resource)}: {why}"
    if not single:
        subject, names = (
            f"pods of {_controller(typical)}",
            ", ".join(pod.pod for pod in pods[:_NAMED]),
        )
        names += f" and {len(pods) - _NAMED} more" if len(pods) > _NAMED else ""
        message = f"{len(pods)} {subject} were rejected{_for(typical.resource)} ({names}); for the first of them: {why}"
    return Finding(
        NAME,
        subject,
        message,
        pod=typical.pod if single else "",
        cause=typical.cause,
        since=pods[0].at,
        identity=(typical.uid,) if single else (),
        group=_group(typical) if single else None,
        resource=typical.resource,
        pod_outcome=typical.pod_outcome,
        rejected_pods=tuple(pods),
    )


def _group(pod: RejectedPod) -> tuple[object, ...] | None:
    # Each pod that cannot end has its own advice.
    if pod.pod_outcome is PodOutcome.TERMINATING_STUCK:
        return None
    return pod.resource, pod.cause, pod.pod_outcome


def describe_group(findings: Sequence[Finding], _assessment: Assessment) -> str:
    """Describe several pods that were rejected for one resource and cause."""
    first = findings[0].rejected_pods[0]
    pods = join_names([finding.pod for finding in findings])
    rejected = f"{len(findings)} pods were rejected for {first.resource or 'a device'} ({pods})"
    return f"{rejected}; for the first of them: {first.why}; {first.do}"


def _storms(rejected: Iterable[RejectedPod]) -> Iterator[tuple[RejectedPod, ...]]:
    """Yield the pods of each controller of which many were rejected in a short time."""
    by_controller: defaultdict[str, list[tuple[datetime, str, str, RejectedPod]]] = defaultdict(
        list
    )
    for pod in rejected:
        if pod.controller and pod.at is not None:
            by_controller[_controller(pod)].append((pod.at, pod.pod, pod.uid, pod))
    for pods in by_controller.values():
        pods.sort(key=itemgetter(0, 1, 2))
        windows = (pods[start : start + STORM_PODS] for start in range(len(pods) - STORM_PODS + 1))
        close = (window for window in windows if window[-1][0] - window[0][0] <= STORM_WITHIN)
        if storm := dict.fromkeys(chain.from_iterable(close)):
            yield tuple(pod for *_, pod in storm)


def _controller(pod: RejectedPod) -> str:
    return f"{pod.controller} in {pod.pod.partition('/')[0]}"


def _for(resource: str) -> str:
    return f" for {resource}" if resource else " for a device"

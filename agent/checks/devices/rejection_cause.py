"""Why the kubelet rejected a pod for a device, by the times of both and by its message. Pure."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final, NamedTuple

from agent.checks.devices.view import REGISTERS_WITHIN, DeviceView, KubeletRun
from agent.model.clocks import SKEW_ERROR, STATUS_DELAY, WHOLE_SECOND
from agent.model.devices import (
    ENDPOINT_GRACE,
    SURELY_DROPPED_AFTER,
    DeviceTransition,
    TransitionKind,
)
from agent.model.rejections import Rejection, RejectionCause, RejectionKind
from agent.model.snapshot import Pod
from agent.model.text import format_time

BETWEEN_SNAPSHOTS: Final = timedelta(seconds=60)
"""What a snapshot saw first may have happened this much earlier."""
BOOTING: Final = timedelta(minutes=15)
"""A kubelet that starts this soon after the node was started by its boot."""

_YEARS: Final = range(1970, 9001)
"""Nearer to the ends of the calendar, adding a duration overflows."""
_COMPARABLE: Final = timedelta(days=365)
"""Clocks that differ by more tell nothing of each other."""
_NODE_FULL: Final = "enough resource:"
"""Said by the scheduler predicate, which counts the node's capacity, not by the device manager."""
_SINCE_1_26: Final = "Pod was rejected: "
_NOT_SEEN: Final = "no snapshot saw when the resource was registered"


class Explanation(NamedTuple):
    cause: RejectionCause
    evidence: str  # in words


class Window(NamedTuple):
    earliest: datetime  # it happened then or later
    latest: datetime  # and before that


def explain(view: DeviceView | None, pod: Pod, rejection: Rejection, resource: str) -> Explanation:
    """Return the cause of a rejection; `view`: None if the device plugins are unavailable."""
    at = rejection.at
    if view is None:
        return _unverified("the node's device plugins are unavailable")
    if at is None or at.year not in _YEARS:
        return _unverified("no record says when")
    if not resource:
        return _unverified("no record names the device")
    return _by_message(rejection, at) or _by_time(view, pod, rejection, resource, at)


def _unverified(reason: str) -> Explanation:
    return Explanation(RejectionCause.UNVERIFIED, reason)


def _by_message(rejection: Rejection, at: datetime) -> Explanation | None:
    """Return the cause if the kubelet's message alone proves it."""
    if rejection.refused is RejectionKind.OTHER:
        return _unverified(f"the kubelet reported: {rejection.message}")
    if rejection.refused is not RejectionKind.INSUFFICIENT:
        return None
    when = f"at {format_time(at)}"
    if _NODE_FULL in rejection.message:
        return Explanation(RejectionCause.EXHAUSTED, f"too few devices were left {when}")
    if not rejection.available:
        return None
    requested = "" if rejection.requested is None else f"requested {rejection.requested}, "
    amounts = f"{requested}available {rejection.available}"
    return Explanation(RejectionCause.EXHAUSTED, f"{amounts} {when}")


def _by_time(
    view: DeviceView, pod: Pod, rejection: Rejection, resource: str, at: datetime
) -> Explanation:
    earliest = at
    latest = at + WHOLE_SECOND
    if rejection.by_api:  # in the node's time, as the files' times are
        skew = abs(view.snapshot.api_skew or timedelta(0))
        if skew > _COMPARABLE:
            return _unverified("the clocks of the node and of the API server cannot be compared")
        # A smaller skew counts as none: it changes with every snapshot.
        tolerance = STATUS_DELAY + (skew if skew > SKEW_ERROR else timedelta(0))
        earliest -= tolerance
        latest += tolerance
    # A kubelet needs more than a second to start: in that second, no earlier kubelet rejected pods.
    run = view.run_before(latest)
    if run is None:
        return _unverified(f"at {format_time(at)}, before the oldest known start of the kubelet")
    is_insufficient = rejection.refused is RejectionKind.INSUFFICIENT
    if rejection.by_api and is_insufficient and earliest < run.start.at:
        return _unverified(f"it is not known whether the kubelet had started at {format_time(at)}")
    window = Window(max(earliest, run.start.at), min(latest, run.end or latest))
    return _Case(view, run, pod, rejection, resource, at, window).explain()


@dataclass(frozen=True, slots=True)
class _Case:
    """A rejection by a run of the kubelet.

    Times are windows; where they overlap, only the message can decide.
    """

    view: DeviceView
    run: KubeletRun
    pod: Pod
    rejection: Rejection
    resource: str
    at: datetime
    window: Window

    @property
    def when(self) -> str:
        return f"at {format_time(self.at)}"

    @property
    def implies_no_device(self) -> bool:
        """Whether a kubelet says this only if it knows no healthy device of the resource."""
        return self.rejection.refused is not RejectionKind.INSUFFICIENT

    def explain(self) -> Explanation:
        start = self.run.start
        is_of_this_boot = start.boot_id != "" and start.boot_id == self.view.boot_id
        if is_of_this_boot and not self.view.in_this_boot(start.at):
            return _unverified("the node's clock was set since: times cannot be compared")
        before: list[DeviceTransition] = []
        during: list[DeviceTransition] = []
        after: list[DeviceTransition] = []
        for previous, change in pairwise((start, *self.run.changes(self.resource))):
            window = self._window_of(change, previous)
            if window.latest <= self.window.earliest:
                before.append(change)
            elif self.window.latest <= window.earliest:
                after.append(change)
            else:
                during.append(change)
        registration = self.run.first_registration(self.resource)
        if registration not in before:
            return self._explain_race(registration, certain=registration not in during)
        losses: list[DeviceTransition] = []
        for change in before:
            losses = [] if change.what is TransitionKind.REGISTERED else [*losses, change]
        losses += [change for change in during if change.what is not TransitionKind.REGISTERED]
        if losses:
            return self._explain_outage(losses, [*during, *after], certain=not during)
        return self._explain_while_registered()

    def _window_of(self, change: DeviceTransition, previous: DeviceTransition) -> Window:
        """Return when a change happened; `previous`: the one before, of the same resource."""
        if change.what is TransitionKind.REGISTERED:
            bound = self.view.socket_bound(self.run, self.resource, previous.at, change.at)
            if change.exact and (bound is None or change.at - bound > REGISTERS_WITHIN):
                bound = change.at
            return Window(bound or min(change.at, previous.at), change.at)
        earliest = change.at
        if not change.exact:
            seen_together = change.uptime == previous.uptime
            earliest = previous.at if seen_together else change.at - BETWEEN_SNAPSHOTS
        return Window(earliest, change.at)

    def _explain_race(self, registration: DeviceTransition | None, *, certain: bool) -> Explanation:
        """Explain a rejection between the kubelet's start and the registration.

        Not `certain`: it may have been at the moment of the registration.
        """
        if doubt := self._doubt_about_order(None if certain else registration):
            return _unverified(doubt)
        start = self.run.start
        registered = "has not been registered since"
        if self.run.end:
            registered = "was not registered before the kubelet started again"
        if registration is not None:
            delay = (registration.at - start.at).total_seconds()
            registered = f"was registered {delay:.1f} s later"
        kubelet = f"kubelet started at {format_time(start.at)} and {self.resource} {registered}"
        rejected = f"the pod was rejected before that, {self.when}"
        if again := self._admitted_again():
            return Explanation(again.cause, f"the {kubelet}; {rejected}: {again.evidence}")
        if self._started_by_boot():
            evidence = f"the node booted, its {kubelet}; {rejected}"
            return Explanation(RejectionCause.NODE_REBOOT, evidence)
        return Explanation(RejectionCause.KUBELET_RESTART, f"the {kubelet}; {rejected}")

    def _doubt_about_order(self, registration: DeviceTransition | None) -> str | None:
        """Return why the rejection may not precede the registration; None: it does.

        `registration`: None if that was later, or never.
        """
        since_start = self.window.earliest - self.run.start.at
        precedes = registration is None or self.window.latest <= registration.at
        if precedes and not self.implies_no_device and since_start >= SURELY_DROPPED_AFTER:
            # A kubelet drops a resource that never registered, and its message would say so.
            return _NOT_SEEN
        if registration is None:
            return None
        if self.implies_no_device and (registration.exact or since_start <= ENDPOINT_GRACE):
            return None
        being_registered = f"{self.resource} was being registered {self.when}"
        return being_registered if registration.exact else _NOT_SEEN

    def _admitted_again(self) -> Explanation | None:
        """Return why a newer kubelet rejects a pod that had run."""
        had_devices = any(
            allocation.pod_uid == self.pod.uid for allocation in self.view.plugins.allocations
        )
        had_run = self.pod.started is not None or had_devices
        if not had_run or not self.rejection.message.startswith(_SINCE_1_26):
            return None
        if self.pod.controller.startswith("Job/"):
            evidence = "it had run, and the kubelet admitted the Job's completed pod again"
            return Explanation(RejectionCause.READMITTED_AFTER_COMPLETION, evidence)
        if self.resource in self.pod.wants_in_init:
            evidence = (
                "it was running, and the kubelet requested its init container's devices again"
            )
            return Explanation(RejectionCause.INIT_CONTAINER, evidence)
        return None

    def _started_by_boot(self) -> bool:
        start = self.run.start
        if start.boot_id and start.uptime <= BOOTING:
            return True
        booted = self.view.snapshot.taken_at - self.view.snapshot.uptime
        return self.view.in_this_boot(start.at) and start.at - booted <= BOOTING

    def _explain_outage(
        self, losses: list[DeviceTransition], later: list[DeviceTransition], *, certain: bool
    ) -> Explanation:
        """Explain a rejection after a resource that had been registered was lost."""
        if not certain and not self.implies_no_device:
            return _unverified(f"it is unknown whether all devices were in use {self.when}")
        lost = losses[0].at
        said_so = self.rejection.refused in {RejectionKind.PLUGIN_GONE, RejectionKind.UNREGISTERED}
        dropped = any(loss.what is TransitionKind.DROPPED for loss in losses)
        cause = RejectionCause.UNHEALTHY
        plugin = "connected"
        if said_so or dropped or self._plugin_gone(lost, later):
            cause = RejectionCause.PLUGIN_RESTART
            plugin = "gone"
        evidence = (
            f"the kubelet had no healthy device of {self.resource} since {format_time(lost)}: "
            f"its plugin was {plugin} when the pod was rejected, {self.when}"
        )
        return Explanation(cause, evidence)

    def _plugin_gone(self, lost: datetime, later: list[DeviceTransition]) -> bool:
        """Return whether the plugin bound its socket anew, or has not returned."""
        for change in later:
            if change.what is TransitionKind.REGISTERED:
                return self._socket_bound(lost, change.at)
        socket = self.view.sockets.get(self.resource)
        return socket is not None and self.view.connected.get(socket, False) is False

    def _explain_while_registered(self) -> Explanation:
        refused = self.rejection.refused
        registered = f"{self.resource} was registered"
        if not self.implies_no_device:
            if self.rejection.available is None:
                return _unverified(f"it is unknown whether all devices were in use {self.when}")
            evidence = f"{registered}, but all its devices were in use {self.when}"
            return Explanation(RejectionCause.EXHAUSTED, evidence)
        restarted = self._socket_bound(self.window.earliest, self.window.latest + ENDPOINT_GRACE)
        if restarted or refused is RejectionKind.PLUGIN_GONE:
            evidence = f"the plugin of {self.resource} was restarting {self.when}"
            return Explanation(RejectionCause.PLUGIN_RESTART, evidence)
        if refused is RejectionKind.NO_HEALTHY:
            evidence = f"{registered}, but none of its devices was healthy {self.when}"
            return Explanation(RejectionCause.UNHEALTHY, evidence)
        return _unverified(f"{registered} {self.when}, according to the known history")

    def _socket_bound(self, since: datetime, until: datetime) -> bool:
        """Return whether the known socket of the plugin was bound in that time."""
        bound = self.view.socket_bound(self.run, self.resource, since, until)
        return self.resource in self.view.sockets and bound is not None

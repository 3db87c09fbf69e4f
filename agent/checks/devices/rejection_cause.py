"""Why the kubelet rejected a pod for a device, by its message and by the times of both. Pure.

The order is that of what excludes what: after a boot nothing runs, so no bug about running or
completed pods can be the cause; after a start of the kubelet no plugin has registered, so none has
restarted; and only a registered plugin has unhealthy or too few devices.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

from agent.checks.devices.explanation import Explanation, Window, unverified
from agent.checks.devices.kubelet_versions import (
    readmits_completed_pods,
    rejects_running_pods,
    requests_init_devices_again,
)
from agent.checks.devices.rejection_evidence import Evidence
from agent.checks.devices.shortage import explain_shortage
from agent.checks.devices.view import DeviceView
from agent.model.clocks import SKEW_ERROR, STATUS_DELAY, WHOLE_SECOND
from agent.model.devices import (
    ENDPOINT_GRACE,
    SURELY_DROPPED_AFTER,
    DeviceTransition,
    TransitionKind,
)
from agent.model.rejections import Rejection, RejectionCause, RejectionKind
from agent.model.snapshot import Pod
from agent.model.text import count_of, format_time, join_names

_YEARS: Final = range(1970, 9001)
"""Nearer to the ends of the calendar, adding a duration overflows."""
_COMPARABLE: Final = timedelta(days=365)
"""Clocks that differ by more tell nothing of each other."""
_NODE_FULL: Final = "enough resource:"
"""Said by the scheduler predicate, which counts the node's capacity, not by the device manager."""
_NOT_SEEN: Final = "no snapshot saw when the resource was registered"

_BY_WORDS: Final[Mapping[RejectionKind, tuple[RejectionCause, str]]] = {
    RejectionKind.PLUGIN_CRASHED: (
        RejectionCause.PLUGIN_RESTART,
        "the device plugin went away while the kubelet asked it for a device",
    ),
    RejectionKind.PLUGIN_ERROR: (
        RejectionCause.PLUGIN_ERROR,
        "the device plugin did not give the kubelet the device that it asked for",
    ),
    RejectionKind.REQUEST_REFUSED: (
        RejectionCause.PLUGIN_ERROR,
        "the device plugin refuses what the pod requests, and would do so on every such node",
    ),
    RejectionKind.REQUEST_CHANGED: (
        RejectionCause.REQUEST_CHANGED,
        "the kubelet has a record of an earlier pod with the same uid and another request",
    ),
    RejectionKind.CHECKPOINT_FAILED: (
        RejectionCause.CHECKPOINT_FAILED,
        "the kubelet could not write to its disk: no device is at fault",
    ),
}
"""Causes that the kubelet's message alone proves."""


def explain(view: DeviceView | None, pod: Pod, rejection: Rejection, resource: str) -> Explanation:
    """Return the cause of a rejection; `view`: None if the device plugins are unavailable."""
    by_words = _BY_WORDS.get(rejection.refused)
    found = Explanation(*by_words) if by_words else _by_records(view, pod, rejection, resource)
    if rejection.message and (by_words or found.cause is RejectionCause.UNVERIFIED):
        evidence = f"{found.evidence}; the kubelet reported: {rejection.message}"
        return Explanation(found.cause, evidence)
    return found


def _by_records(
    view: DeviceView | None, pod: Pod, rejection: Rejection, resource: str
) -> Explanation:
    """Return the cause by the times of both, or why they prove none."""
    at = rejection.at
    if view is None:
        return unverified("the node's device plugins are unavailable")
    if at is None or at.year not in _YEARS:
        return unverified("no record says when")

    if not resource:
        return unverified("no record names the device")
    if resource in pod.dra_resources:
        return unverified(
            f"the scheduler serves {resource} to the pod by DRA (it has a claim), and this kubelet "
            "asks a device plugin for it, as one does that knows no extended resources of DRA: "
            "enable its feature gate DRAExtendedResource, or keep such pods away from the node"
        )
    if rejection.refused is RejectionKind.OTHER:
        return unverified("its message proves no cause")

    window = _window_of(view, rejection, at)
    if window is None:
        return unverified("the clocks of the node and of the API server cannot be compared")

    by_predicate = _NODE_FULL in rejection.message
    has_some = bool(rejection.available)
    if rejection.refused is RejectionKind.INSUFFICIENT and (by_predicate or has_some):
        return explain_shortage(view, rejection, resource, window, by_predicate=by_predicate)
    return _by_time(view, pod, rejection, resource, at, window)


def _window_of(view: DeviceView, rejection: Rejection, at: datetime) -> Window | None:
    """Return when a pod was rejected, in the node's time. None: it cannot be compared."""
    if not rejection.by_api:
        return Window(at, at + WHOLE_SECOND)
    skew = abs(view.snapshot.api_skew or timedelta(0))
    if skew > _COMPARABLE:
        return None
    # A smaller skew counts as none: it changes with every snapshot.
    tolerance = STATUS_DELAY + (skew if skew > SKEW_ERROR else timedelta(0))
    return Window(at - tolerance, at + WHOLE_SECOND + tolerance)


def _by_time(
    view: DeviceView,
    pod: Pod,
    rejection: Rejection,
    resource: str,
    at: datetime,
    window: Window,
) -> Explanation:
    """Explain a rejection by the run of the kubelet that it was in."""
    # A kubelet needs more than a second to start: in that second, no earlier kubelet rejected pods.
    run = view.run_before(window.latest)
    if run is None:
        return unverified(f"at {format_time(at)}, before the oldest known start of the kubelet")

    is_insufficient = rejection.refused is RejectionKind.INSUFFICIENT
    if rejection.by_api and is_insufficient and window.earliest < run.start.at:
        return unverified(f"it is not known whether the kubelet had started at {format_time(at)}")

    earliest = max(window.earliest, run.start.at)
    latest = min(window.latest, run.end or window.latest)
    return _Case(view, run, pod, rejection, resource, at, Window(earliest, latest)).explain()


class _Case(Evidence):
    """A rejection that the records of its run of the kubelet explain."""

    __slots__ = ()

    def explain(self) -> Explanation:
        """Return the cause by what happened before, during and after the rejection."""
        start = self.run.start
        is_of_this_boot = start.boot_id == self.view.boot_id != ""
        if is_of_this_boot and not self.view.in_this_boot(start.at):
            return unverified("the node's clock was set since: times cannot be compared")

        before: list[DeviceTransition] = []
        during: list[DeviceTransition] = []
        after: list[DeviceTransition] = []
        for previous, change in pairwise((start, *self.run.changes(self.resource))):
            window = self.window_of(change, previous)
            if window.latest <= self.window.earliest:
                before.append(change)
            elif self.window.latest <= window.earliest:
                after.append(change)
            else:
                during.append(change)

        registration = self.run.first_registration(self.resource)
        if registration not in before:
            return self._explain_unregistered(registration, certain=registration not in during)

        losses: list[DeviceTransition] = []
        for change in before:
            losses = [] if change.what is TransitionKind.REGISTERED else [*losses, change]
        losses += [change for change in during if change.what is not TransitionKind.REGISTERED]
        if losses:
            return self._explain_outage(losses, [*during, *after], certain=not during)
        return self._explain_while_registered()

    # Before the first known registration

    def _explain_unregistered(
        self, registration: DeviceTransition | None, *, certain: bool
    ) -> Explanation:
        """Explain a rejection between the kubelet's start and the first known registration.

        Not `certain`: it may have been at the moment of the registration.
        """
        if contradiction := self._had_registered():
            return self._explain_unseen(contradiction)
        if idle := self._explain_idle_plugin():
            return idle
        if not self.view.covers(self.run, self.window.latest):
            return unverified(f"no snapshot saw whether {self.resource} had been registered before")
        if doubt := self._doubt_about_order(None if certain else registration):
            return unverified(doubt)
        return self._explain_race(registration)

    def _had_registered(self) -> str | None:
        """Return what proves that the resource had been registered; None: nothing does.

        The first known registration may be a later one: the agent need not have seen the first.
        """
        if self.implies_device:
            return f"the kubelet had healthy devices of {self.resource} {self.when}"

        kept = self.rejection.refused in {RejectionKind.NO_HEALTHY, RejectionKind.PLUGIN_GONE}
        if kept and self.window.earliest - self.run.start.at >= SURELY_DROPPED_AFTER:
            return (
                f"{self.resource} had been registered before, or the kubelet would have dropped it "
                "5 minutes after its start"
            )

        holder = self.holder_before(self.window.earliest)
        if holder is not None and holder.started is not None:
            started = format_time(holder.started)
            return f"pod {holder.name} has had {self.resource} since {started}"
        return None

    def _explain_unseen(self, contradiction: str) -> Explanation:
        """Explain a rejection after a registration that no snapshot saw."""
        if self.implies_device:
            return self._explain_while_registered()
        if idle := self._explain_idle_plugin():
            return idle

        until = self.window.latest + ENDPOINT_GRACE
        bound = self.socket_bound_at(self.window.earliest, until)
        if bound is not None and self.rejection.refused is not RejectionKind.UNREGISTERED:
            evidence = (
                f"the plugin of {self.resource} was restarting {self.when}, and bound its socket "
                f"again at {format_time(bound)}: {contradiction}"
            )
            return Explanation(RejectionCause.PLUGIN_RESTART, evidence)
        return unverified(f"{contradiction}{self.other_sockets_bound(self.window.earliest)}")

    def _explain_idle_plugin(self) -> Explanation | None:
        """Explain a rejection by a plugin that is connected and reports no healthy device.

        None: there is none, or it bound its socket later.
        """
        bound = self.idle_since()
        if bound is None or self.window.latest <= bound:
            return None
        if self.rejection.refused is RejectionKind.UNREGISTERED:
            return None

        evidence = (
            f"the plugin of {self.resource} bound its socket at {format_time(bound)}, is connected "
            f"and reports no healthy device{self.node_status()}; the pod was rejected {self.when}"
        )
        if self.window.earliest < bound + WHOLE_SECOND:
            return unverified(f"{evidence}, which may have been before the plugin had registered")
        if self.rejection.refused is RejectionKind.PLUGIN_GONE:
            return unverified(f"{evidence}, and the kubelet said that the plugin was gone")
        return Explanation(RejectionCause.UNHEALTHY, evidence)

    def _explain_race(self, registration: DeviceTransition | None) -> Explanation:
        """Explain a rejection before the first registration since the kubelet's start."""
        start = self.run.start
        if not self._was_ever_offered():
            return unverified(
                f"no device plugin has registered {self.resource} since the kubelet's start at "
                f"{format_time(start.at)}, and nothing here shows one that ever did"
                f"{self.node_status()}: a controller may set it in the node's status instead"
            )

        kubelet = (
            f"kubelet started at {format_time(start.at)} and "
            f"{self.resource} {self._registered_later(registration)}"
        )
        rejected = f"the pod was rejected before that, {self.when}"

        if self.started_by_boot():
            evidence = f"the node booted, its {kubelet}; {rejected}"
            return Explanation(RejectionCause.NODE_REBOOT, evidence)
        if again := self._admitted_again():
            return Explanation(again.cause, f"the {kubelet}; {rejected}: {again.evidence}")
        return Explanation(RejectionCause.KUBELET_RESTART, f"the {kubelet}; {rejected}")

    def _was_ever_offered(self) -> bool:
        """Whether a record or the message shows that a device plugin has offered the resource.

        The device manager only speaks of resources of plugins.
        """
        is_by_plugin = self.rejection.refused is not RejectionKind.NO_CAPACITY
        return is_by_plugin or self.resource in self.view.plugin_resources

    def _registered_later(self, registration: DeviceTransition | None) -> str:
        if registration is not None and self.view.covers(self.run, registration.at):
            delay = (registration.at - self.run.start.at).total_seconds()
            return f"was registered {delay:.1f} s later"
        if registration is not None:
            return f"was registered later, at {format_time(registration.at)} or before"

        if self.run.end:
            return "was not registered before the kubelet started again"
        if bound := self.idle_since():
            return (
                "has had no healthy device since, although its plugin is connected (it bound its "
                f"socket at {format_time(bound)}){self.node_status()}"
            )
        return "has not been registered since"

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
        """Return the bug of this kubelet's version that makes it reject a pod that had run.

        An entry in the checkpoint does not prove a run: the kubelet also writes it for a pod that
        it rejects then, and it outlives a reboot.
        """
        version = self.version
        first = self.admitted_before()
        if first is None or rejects_running_pods(version):
            return None

        admitted = f"an earlier kubelet had admitted it at {format_time(first)}"
        if self.pod.controller.startswith("Job/") and readmits_completed_pods(version):
            evidence = (
                f"{admitted}, and kubelet {version} admits completed pods again (kubernetes#117955)"
            )
            return Explanation(RejectionCause.READMITTED_AFTER_COMPLETION, evidence)
        if self.resource in self.pod.wants_in_init and requests_init_devices_again(version):
            evidence = (
                f"{admitted}, and kubelet {version} requests the devices of init containers again "
                "(kubernetes#124345)"
            )
            return Explanation(RejectionCause.INIT_CONTAINER, evidence)
        return None

    # After a registration

    def _explain_outage(
        self, losses: list[DeviceTransition], later: list[DeviceTransition], *, certain: bool
    ) -> Explanation:
        """Explain a rejection after a resource that had been registered was lost."""
        if not certain and not self.implies_no_device:
            return unverified(f"it is unknown whether all devices were in use {self.when}")

        lost = losses[0].at
        none = f"the kubelet had no healthy device of {self.resource} since {format_time(lost)}"
        if self.implies_device:
            return unverified(f"{none}, by the known history")

        said_so = self.rejection.refused in {RejectionKind.PLUGIN_GONE, RejectionKind.UNREGISTERED}
        dropped = any(loss.what is TransitionKind.DROPPED for loss in losses)
        came_back = any(change.what is TransitionKind.REGISTERED for change in later)
        if not (said_so or dropped or came_back) and (idle := self._explain_idle_plugin()):
            return idle

        gone = said_so or dropped or self.plugin_gone(lost, later)
        if gone is None:
            sockets = self.other_sockets_bound(lost)
            return unverified(f"{none}; it is unknown whether its plugin was there{sockets}")

        cause = RejectionCause.PLUGIN_RESTART if gone else RejectionCause.UNHEALTHY
        plugin = "gone" if gone else "connected"
        evidence = f"{none}: its plugin was {plugin} when the pod was rejected, {self.when}"
        return Explanation(cause, evidence)

    def _explain_while_registered(self) -> Explanation:
        """Explain a rejection while the resource was registered, as far as is known."""
        refused = self.rejection.refused
        registered = f"{self.resource} was registered"
        if refused is RejectionKind.POD_DEVICES_UNHEALTHY:
            return self._explain_unhealthy_devices_of_pod()

        if not self.implies_no_device:
            if self.rejection.available is None:
                return unverified(f"it is unknown whether all devices were in use {self.when}")
            return explain_shortage(
                self.view, self.rejection, self.resource, self.window, by_predicate=False
            )

        bound = self.socket_bound_at(self.window.earliest, self.window.latest + ENDPOINT_GRACE)
        if bound is not None or refused is RejectionKind.PLUGIN_GONE:
            evidence = f"the plugin of {self.resource} was restarting {self.when}"
            return Explanation(RejectionCause.PLUGIN_RESTART, evidence)
        if refused is RejectionKind.NO_HEALTHY and self.is_same_plugin():
            evidence = f"{registered}, but none of its devices was healthy {self.when}"
            return Explanation(RejectionCause.UNHEALTHY, evidence)

        sockets = self.other_sockets_bound(self.window.earliest)
        return unverified(f"{registered} {self.when}, according to the known history{sockets}")

    def _explain_unhealthy_devices_of_pod(self) -> Explanation:
        healthy = self.view.healthy.get(self.resource, ())
        had = [
            device
            for entry in self.view.allocations(self.resource)
            if entry.pod_uid == self.pod.uid
            for device in entry.devices
        ]

        missing = sorted(set(had).difference(healthy))

        evidence = (
            f"{self.resource} had healthy devices {self.when}, but not all that the pod had before"
        )
        if missing:
            total = count_of(len(healthy), "healthy device")
            evidence += f"; by the checkpoint now, its {total} lack {join_names(missing)}"
        return Explanation(RejectionCause.UNHEALTHY, evidence)

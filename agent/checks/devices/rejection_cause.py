"""Why a pod was refused. Spans of time are compared, and where two overlap only the kubelet's words can decide. Pure.

The race: the kubelet admits pods as soon as its device manager has started, and knows no device until each plugin has
noticed, bound its socket anew and registered.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from agent.checks.devices import outages
from agent.checks.devices.clocks import boot_id, in_this_boot, plugins
from agent.checks.devices.history import device_history
from agent.checks.devices.kubelet_runs import KubeletRun, kubelet_runs
from agent.checks.devices.outages import Outage, TimeWindow
from agent.checks.devices.sockets import socket_pairs
from agent.model.devices import DeviceTransition
from agent.model.finding import format_time
from agent.model.rejections import Rejection, RejectionCause, RejectionKind
from agent.model.snapshot import Pod, Snapshot, known_or

BOOTING: Final = timedelta(minutes=15)
"""A kubelet that starts so soon after the node did was started by that."""
FORGETS: Final = timedelta(minutes=5)
"""How long the kubelet keeps a resource that is not registered; then it refuses in other words."""
SURELY_FORGOTTEN: Final = timedelta(minutes=6)
"""It forgets when it next tells of the node's status."""

_ALL_GIVEN_OUT: Final = RejectionKind.INSUFFICIENT
"""The one refusal that a registered resource can get as well as one that is not."""
_BY_NODE: Final = "enough resource:"
"""The predicate counts what the node has and pods ask for; the device manager lets pass what is not a plugin's."""
_SINCE_1_26: Final = "Pod was rejected: "

Explanation: TypeAlias = tuple[RejectionCause, str]


@dataclass(frozen=True, slots=True)
class _Refusal:
    pod: Pod
    rejection: Rejection
    resource: str
    at: datetime
    window: TimeWindow

    @property
    def says_there_is_none(self) -> bool:
        """Tell whether no kubelet says this while it has healthy devices of the resource."""
        return self.rejection.refused is not _ALL_GIVEN_OUT


@dataclass(frozen=True, slots=True)
class RejectionAnalysis:
    """What the node's records can say about refusals."""

    snapshot: Snapshot
    kubelet_runs: tuple[KubeletRun, ...]
    sockets: Mapping[str, str]

    @classmethod
    def of(cls, snapshot: Snapshot) -> "RejectionAnalysis":
        history = device_history(snapshot)
        return cls(snapshot, kubelet_runs(history), socket_pairs(history, plugins(snapshot)))

    def cause(self, pod: Pod, rejection: Rejection, resource: str) -> Explanation:
        """Return why a pod was refused, and in words what speaks for it."""
        if rejection.at is None:
            return RejectionCause.UNVERIFIED, "no record says when"
        if not resource:
            return RejectionCause.UNVERIFIED, "no record says for which device"
        if rejection.refused is _ALL_GIVEN_OUT and _BY_NODE in rejection.message:
            return RejectionCause.EXHAUSTED, f"the node had too few left, at {format_time(rejection.at)}"
        if rejection.refused is _ALL_GIVEN_OUT and (rejection.available or 0) > 0:
            asked = "" if rejection.requested is None else f" of the {rejection.requested} it asked for"
            return (
                RejectionCause.EXHAUSTED,
                f"only {rejection.available}{asked} were free then, at {format_time(rejection.at)}",
            )
        if rejection.refused is RejectionKind.OTHER:
            return RejectionCause.UNVERIFIED, f"the kubelet says: {rejection.message}"
        window = outages.of_refusal(rejection, rejection.at, self.snapshot.api_skew)
        return self._whenever(_Refusal(pod, rejection, resource, rejection.at, window))

    def _whenever(self, refusal: _Refusal) -> Explanation:
        """Judge it by the run of the kubelet that it was in. Where several may be, by all of them."""
        parts = [
            (kubelet_run, part)
            for kubelet_run in self.kubelet_runs
            if (part := outages.in_epoch(refusal.window, kubelet_run)) is not None
        ]
        if not parts:
            return (
                RejectionCause.UNVERIFIED,
                f"at {format_time(refusal.at)}, before the oldest start of the kubelet that is known",
            )
        if not refusal.rejection.by_api or refusal.says_there_is_none:
            # A kubelet takes longer than a second to start: in that second, none was there before it to refuse.
            return self._in(*parts[-1], refusal)
        verdicts = [self._in(kubelet_run, part, refusal) for kubelet_run, part in parts]
        all_known = self.kubelet_runs[0].start.at <= refusal.window.earliest
        if all_known and len({cause for cause, _ in verdicts}) == 1:
            return verdicts[-1]
        if self._all_given(refusal):
            return _exhausted(refusal)
        return (
            RejectionCause.UNVERIFIED,
            f"whether the kubelet had started yet at {format_time(refusal.at)} is not known",
        )

    def _in(self, kubelet_run: KubeletRun, window: TimeWindow, refusal: _Refusal) -> Explanation:
        start, now = kubelet_run.start, boot_id(self.snapshot)
        if bool(now) and start.boot_id == now and not in_this_boot(start.at, self.snapshot):
            return RejectionCause.UNVERIFIED, "the node's clock was set since: times cannot be compared"
        came = kubelet_run.came(refusal.resource)
        unseen = came is None or window.latest <= came.at
        if unseen and not refusal.says_there_is_none and window.earliest - start.at >= SURELY_FORGOTTEN:
            # Had it not been registered, the kubelet would say by then that it does not know it.
            return RejectionCause.UNVERIFIED, "nobody saw when the resource was registered"
        if came is None:
            return self._race(kubelet_run, came, refusal)
        known = self._registered(kubelet_run, came, start.at, refusal)
        if window.before(known):
            return self._race(kubelet_run, came, refusal)
        if window.after(known):
            return self._later(kubelet_run, window, refusal)
        if refusal.says_there_is_none and (came.exact or window.earliest <= start.at + FORGETS):
            return self._race(kubelet_run, came, refusal)
        if self._all_given(refusal):
            return _exhausted(refusal)
        if not came.exact:
            return RejectionCause.UNVERIFIED, "nobody saw when the resource was registered"
        return RejectionCause.UNVERIFIED, f"{refusal.resource} was being registered at {format_time(refusal.at)}"

    def _registered(
        self, kubelet_run: KubeletRun, came: DeviceTransition, since: datetime, refusal: _Refusal
    ) -> TimeWindow:
        """Return when a registration was. `since`: the start, or the loss, that it came after."""
        socket = self.sockets.get(refusal.resource, "")
        others = (one for other, one in self.sockets.items() if other != refusal.resource)
        bound = kubelet_run.bound(socket, others, since, came.at)
        # In these words it was not registered; and soon after the start, that it had not yet been.
        return outages.of_registration(
            kubelet_run, came, bound, otherwise=since + FORGETS if refusal.says_there_is_none else since
        )

    def _all_given(self, refusal: _Refusal) -> bool:
        """Tell whether pods that live, and ran already when another was refused, have all devices there are."""
        devices = plugins(self.snapshot)
        there = {one for state in devices.registered if state.resource == refusal.resource for one in state.devices}
        pods = known_or(self.snapshot.pods, ())
        ran = {pod.uid for pod in pods if pod.live and pod.started is not None and pod.started <= refusal.at}
        given = {
            device
            for one in devices.allocations
            if one.resource == refusal.resource and one.pod_uid in ran
            for device in one.devices
        }
        nothing_left = refusal.rejection.refused is _ALL_GIVEN_OUT and refusal.rejection.available == 0
        return nothing_left and bool(there) and there <= given

    def _race(self, kubelet_run: KubeletRun, came: DeviceTransition | None, refusal: _Refusal) -> Explanation:
        pod = refusal.pod
        late = (
            "is not registered since"
            if came is None
            else f"was registered {_span(came.at - kubelet_run.start.at)} later"
        )
        if kubelet_run.end is not None and came is None:
            late = "was not registered before it started again"
        started = f"started at {format_time(kubelet_run.start.at)} and {refusal.resource} {late}"
        in_between = f"the pod was refused before that, at {format_time(refusal.at)}"
        if self._had_run(pod) and refusal.rejection.message.startswith(_SINCE_1_26):
            if pod.controller.startswith("Job/"):
                again = "it had run, and the kubelet admits a Job's pod again that has completed"
                return RejectionCause.READMITTED_AFTER_COMPLETION, f"the kubelet {started}; {in_between}: {again}"
            if refusal.resource in pod.wants_in_init:
                again = "it was running, and the kubelet asks again for the devices of its init container"
                return RejectionCause.INIT_CONTAINER, f"the kubelet {started}; {in_between}: {again}"
        if self._by_reboot(kubelet_run.start):
            return RejectionCause.NODE_REBOOT, f"the node booted, its kubelet {started}; {in_between}"
        return RejectionCause.KUBELET_RESTART, f"the kubelet {started}; {in_between}"

    def _had_run(self, pod: Pod) -> bool:
        given = plugins(self.snapshot).allocations
        return pod.started is not None or any(one.pod_uid == pod.uid for one in given)

    def _by_reboot(self, start: DeviceTransition) -> bool:
        if start.boot_id and start.uptime <= BOOTING:
            return True
        booted = self.snapshot.taken_at - self.snapshot.uptime
        return in_this_boot(start.at, self.snapshot) and start.at - booted <= BOOTING

    def _later(self, kubelet_run: KubeletRun, window: TimeWindow, refusal: _Refusal) -> Explanation:
        """Judge a refusal that came when the resource had been registered."""
        at, resource = format_time(refusal.at), refusal.resource
        for away in outages.outages_in(kubelet_run.of(resource)):
            back = None if away.back is None else self._registered(kubelet_run, away.back, away.lost.at, refusal)
            held = away.holds(window, back)
            if held or (held is None and refusal.says_there_is_none):
                return self._away(kubelet_run, away, refusal)
            if held is None:
                if self._all_given(refusal):
                    return _exhausted(refusal)
                return RejectionCause.UNVERIFIED, f"whether all devices were given out at {at} is not known"
        if not refusal.says_there_is_none:
            if refusal.rejection.available is None:
                return RejectionCause.UNVERIFIED, f"whether all devices were given out at {at} is not known"
            return _exhausted(refusal)
        made_anew = self._made(kubelet_run, refusal, window.earliest, window.latest + FORGETS)
        if made_anew or refusal.rejection.refused is RejectionKind.PLUGIN_GONE:
            return RejectionCause.PLUGIN_RESTART, f"the plugin of {resource} was being restarted at {at}"
        if refusal.rejection.refused is RejectionKind.NO_HEALTHY:
            return RejectionCause.UNHEALTHY, f"{resource} was registered, and no device of it was healthy at {at}"
        return RejectionCause.UNVERIFIED, f"{resource} was registered at {at}, as far as is known"

    def _away(self, kubelet_run: KubeletRun, away: Outage, refusal: _Refusal) -> Explanation:
        at = format_time(refusal.at)
        words = f"the kubelet knew no healthy device of {refusal.resource} from {format_time(away.lost.at)} on"
        if away.back is None:
            gone = self._disconnected(refusal.resource)
        else:
            gone = self._made(kubelet_run, refusal, away.lost.at, away.back.at)
        if gone or away.dropped or refusal.rejection.refused in {RejectionKind.PLUGIN_GONE, RejectionKind.UNREGISTERED}:
            return RejectionCause.PLUGIN_RESTART, f"{words}: its plugin was gone when the pod was refused, at {at}"
        return RejectionCause.UNHEALTHY, f"{words}: its plugin was there when the pod was refused, at {at}"

    def _made(self, kubelet_run: KubeletRun, refusal: _Refusal, since: datetime, until: datetime) -> bool:
        socket = self.sockets.get(refusal.resource, "")
        return bool(socket) and kubelet_run.bound(socket, (), since, until) is not None

    def _disconnected(self, resource: str) -> bool:
        socket = self.sockets.get(resource)
        streams = {one.name: one.connected for one in plugins(self.snapshot).sockets}
        return socket is not None and streams.get(socket, False) is False


def _exhausted(refusal: _Refusal) -> Explanation:
    what = f"{refusal.resource} was registered, and all its devices were given out at {format_time(refusal.at)}"
    return RejectionCause.EXHAUSTED, what


def _span(window: timedelta) -> str:
    return f"{window.total_seconds():.1f} s"

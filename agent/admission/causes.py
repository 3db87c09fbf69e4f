"""Why a pod was refused. Clocks are compared only within what they can tell; what is not proven is unverified. Pure.

The race: the kubelet admits pods as soon as its device manager has started, and knows no device until each plugin has
noticed, bound its socket anew and registered.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from agent import history
from agent.admission.epochs import Epoch, epochs
from agent.history.clocks import boot_id, in_this_boot, plugins
from agent.model.admission import Cause, Refused, Rejection
from agent.model.devices import Happening, Milestone
from agent.model.snapshot import Pod, Snapshot

BY_KUBELET: Final = timedelta(seconds=2)
"""The kubelet writes whole seconds, by the clock that dates the files too."""
BY_API: Final = timedelta(seconds=5)
"""Besides what its clock is known to differ: a status takes a while to get there."""
BOOTING: Final = timedelta(minutes=15)
"""A kubelet that starts so soon after the node did was started by that."""
FORGETS: Final = timedelta(minutes=5)
"""How long the kubelet keeps a resource that is not registered; then it refuses in other words."""
BETWEEN_LOOKS: Final = timedelta(seconds=60)
"""What a look saw first may have happened so much earlier."""

_ALL_GIVEN_OUT: Final = Refused.INSUFFICIENT
"""The one refusal that a registered resource can get as well as one that is not."""
_BY_NODE: Final = "enough resource:"
"""The predicate counts what the node has and pods ask for; the device manager lets pass what is not a plugin's."""
_SINCE_1_26: Final = "Pod was rejected: "

Verdict: TypeAlias = tuple[Cause, str]


@dataclass(frozen=True, slots=True)
class Witness:
    """What the node's records can say about refusals."""

    snapshot: Snapshot
    epochs: tuple[Epoch, ...]
    sockets: Mapping[str, str]

    @classmethod
    def of(cls, snapshot: Snapshot) -> "Witness":
        course = history.of(snapshot)
        return cls(snapshot, epochs(course), history.pairs(course, plugins(snapshot)))

    def cause(self, pod: Pod, rejection: Rejection, resource: str) -> Verdict:
        """Return why a pod was refused, and in words what speaks for it."""
        if rejection.at is None:
            return Cause.UNVERIFIED, "no record says when"
        if not resource:
            return Cause.UNVERIFIED, "no record says for which device"
        if rejection.refused is _ALL_GIVEN_OUT and _BY_NODE in rejection.message:
            return Cause.EXHAUSTED, f"the node had too few left, at {_time(rejection.at)}"
        if rejection.refused is Refused.OTHER:
            return Cause.UNVERIFIED, f"the kubelet says: {rejection.message}"
        slack = self._slack(rejection)
        epoch = next((one for one in reversed(self.epochs) if one.start.at - slack <= rejection.at), None)
        if epoch is None:
            return Cause.UNVERIFIED, f"at {_time(rejection.at)}, before the oldest start of the kubelet that is known"
        if self._clock_was_set_since(epoch):
            return Cause.UNVERIFIED, "the node's clock was set since: times cannot be compared"
        return self._within(epoch, pod, rejection, _Refusal(resource, rejection.at, slack))

    def _slack(self, rejection: Rejection) -> timedelta:
        if not rejection.by_api:
            return BY_KUBELET
        return BY_API + abs(self.snapshot.api_skew or timedelta(0))

    def _clock_was_set_since(self, epoch: Epoch) -> bool:
        start, now = epoch.start, boot_id(self.snapshot)
        same_boot = bool(now) and start.boot_id == now
        return same_boot and not in_this_boot(start.at, self.snapshot)

    def _within(self, epoch: Epoch, pod: Pod, rejection: Rejection, refusal: "_Refusal") -> Verdict:
        came = epoch.came(refusal.resource)
        if refusal.at - refusal.slack <= self._unknown_until(epoch, came, rejection, refusal.resource):
            return self._race(epoch, came, pod, rejection, refusal)
        if rejection.refused is _ALL_GIVEN_OUT and (rejection.available or 0) > 0:
            asked = "" if rejection.requested is None else f" of the {rejection.requested} it asked for"
            return Cause.EXHAUSTED, f"only {rejection.available}{asked} were free then, at {_time(refusal.at)}"
        if came is None or refusal.at <= came.at + refusal.slack:
            return Cause.UNVERIFIED, "nobody saw when the resource was registered"
        return self._later(epoch, rejection, refusal)

    def _unknown_until(self, epoch: Epoch, came: Milestone | None, rejection: Rejection, resource: str) -> datetime:
        """Return until when the kubelet certainly knew no device of the resource."""
        if came is None:
            return epoch.end or datetime.max.replace(tzinfo=epoch.start.at.tzinfo)
        if came.exact:
            return came.at
        socket = self.sockets.get(resource, "")
        bound = epoch.bound(socket, (one for other, one in self.sockets.items() if other != resource))
        if bound is not None:
            return min(bound, came.at)
        # Nobody saw when. In these words, it was not registered; and soon after the start, that it had not yet been.
        surely = epoch.start.at if rejection.refused is _ALL_GIVEN_OUT else epoch.start.at + FORGETS
        return min(surely, came.at)

    def _race(
        self, epoch: Epoch, came: Milestone | None, pod: Pod, rejection: Rejection, refusal: "_Refusal"
    ) -> Verdict:
        if rejection.refused is _ALL_GIVEN_OUT and (rejection.available or 0) > 0:
            return Cause.EXHAUSTED, f"only {rejection.available} were free then, at {_time(refusal.at)}"
        late = "is not registered since" if came is None else f"was registered {_span(came.at - epoch.start.at)} later"
        if epoch.end is not None and came is None:
            late = "was not registered before it started again"
        started = f"started at {_time(epoch.start.at)} and {refusal.resource} {late}"
        in_between = f"the pod was refused before that, at {_time(refusal.at)}"
        if self._had_run(pod) and rejection.message.startswith(_SINCE_1_26):
            if pod.controller.startswith("Job/"):
                again = "it had run, and the kubelet admits a Job's pod again that has completed"
                return Cause.READMITTED_AFTER_COMPLETION, f"the kubelet {started}; {in_between}: {again}"
            if refusal.resource in pod.wants_in_init:
                again = "it was running, and the kubelet asks again for the devices of its init container"
                return Cause.INIT_CONTAINER, f"the kubelet {started}; {in_between}: {again}"
        if self._by_reboot(epoch.start):
            return Cause.NODE_REBOOT, f"the node booted, its kubelet {started}; {in_between}"
        return Cause.KUBELET_RESTART, f"the kubelet {started}; {in_between}"

    def _had_run(self, pod: Pod) -> bool:
        given = plugins(self.snapshot).allocations
        return pod.started is not None or any(one.pod_uid == pod.uid for one in given)

    def _by_reboot(self, start: Milestone) -> bool:
        if start.boot_id and start.uptime <= BOOTING:
            return True
        booted = self.snapshot.taken_at - self.snapshot.uptime
        return in_this_boot(start.at, self.snapshot) and start.at - booted <= BOOTING

    def _later(self, epoch: Epoch, rejection: Rejection, refusal: "_Refusal") -> Verdict:
        """Judge a refusal that came when the resource had been registered."""
        gap = _gap(epoch.of(refusal.resource), refusal)
        restarted = self._socket_made_after(epoch, refusal)
        at, resource = _time(refusal.at), refusal.resource
        if gap is not None:
            away = f"the kubelet knew no healthy device of {resource} from {_time(gap.at)} on"
            gone = restarted or gap.what is Happening.DROPPED or self._disconnected(resource)
            if gone or rejection.refused in {Refused.PLUGIN_GONE, Refused.UNREGISTERED}:
                return Cause.PLUGIN_RESTART, f"{away}: its plugin was gone when the pod was refused, at {at}"
            return Cause.UNHEALTHY, f"{away}: its plugin was there when the pod was refused, at {at}"
        if rejection.refused is _ALL_GIVEN_OUT:
            if rejection.available is None or _about_to_go(epoch.of(resource), refusal):
                return Cause.UNVERIFIED, f"whether all devices were given out at {at} is not known"
            return Cause.EXHAUSTED, f"{resource} was registered, and all its devices were given out at {at}"
        if restarted or rejection.refused is Refused.PLUGIN_GONE:
            return Cause.PLUGIN_RESTART, f"the plugin of {resource} was being restarted at {at}"
        if rejection.refused is Refused.NO_HEALTHY:
            return Cause.UNHEALTHY, f"{resource} was registered, and no device of it was healthy at {at}"
        return Cause.UNVERIFIED, f"{resource} was registered at {at}, as far as is known"

    def _socket_made_after(self, epoch: Epoch, refusal: "_Refusal") -> bool:
        socket = self.sockets.get(refusal.resource, "")
        return any(
            one.what is Happening.SOCKET_APPEARED
            and one.socket == socket
            and -refusal.slack <= one.at - refusal.at <= FORGETS
            for one in epoch.course
        )

    def _disconnected(self, resource: str) -> bool:
        socket = self.sockets.get(resource)
        streams = {one.name: one.connected for one in plugins(self.snapshot).sockets}
        return socket is not None and streams.get(socket, False) is False


@dataclass(frozen=True, slots=True)
class _Refusal:
    resource: str
    at: datetime
    slack: timedelta


def _gap(changes: tuple[Milestone, ...], refusal: _Refusal) -> Milestone | None:
    """Return the loss of the resource that a refusal came after, if it was not yet back."""
    lost: Milestone | None = None
    for one in changes:
        if one.what is Happening.REGISTERED:
            if lost is not None and refusal.at <= one.at + refusal.slack:
                return lost
            lost = None
        elif lost is None and one.at - refusal.slack <= refusal.at:
            lost = one
    return lost


def _about_to_go(changes: tuple[Milestone, ...], refusal: _Refusal) -> bool:
    """Tell whether the resource was lost so soon after that it may have been lost before: nobody saw when."""
    return any(
        not one.exact and one.what is not Happening.REGISTERED and refusal.at <= one.at <= refusal.at + BETWEEN_LOOKS
        for one in changes
    )


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}Z"


def _span(span: timedelta) -> str:
    return f"{span.total_seconds():.1f} s"

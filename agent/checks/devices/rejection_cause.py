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
from agent.checks.devices.history import transitions
from agent.checks.devices.kubelet_runs import Epoch, epochs
from agent.checks.devices.outages import Away, Span
from agent.checks.devices.sockets import socket_pairs
from agent.model.devices import Milestone
from agent.model.finding import in_words
from agent.model.rejections import Cause, Refused, Rejection
from agent.model.snapshot import Pod, Seen, Snapshot

BOOTING: Final = timedelta(minutes=15)
"""A kubelet that starts so soon after the node did was started by that."""
FORGETS: Final = timedelta(minutes=5)
"""How long the kubelet keeps a resource that is not registered; then it refuses in other words."""
SURELY_FORGOTTEN: Final = timedelta(minutes=6)
"""It forgets when it next tells of the node's status."""

_ALL_GIVEN_OUT: Final = Refused.INSUFFICIENT
"""The one refusal that a registered resource can get as well as one that is not."""
_BY_NODE: Final = "enough resource:"
"""The predicate counts what the node has and pods ask for; the device manager lets pass what is not a plugin's."""
_SINCE_1_26: Final = "Pod was rejected: "

Verdict: TypeAlias = tuple[Cause, str]


@dataclass(frozen=True, slots=True)
class _Refusal:
    pod: Pod
    rejection: Rejection
    resource: str
    at: datetime
    span: Span

    @property
    def says_there_is_none(self) -> bool:
        """Tell whether no kubelet says this while it has healthy devices of the resource."""
        return self.rejection.refused is not _ALL_GIVEN_OUT


@dataclass(frozen=True, slots=True)
class Witness:
    """What the node's records can say about refusals."""

    snapshot: Snapshot
    epochs: tuple[Epoch, ...]
    sockets: Mapping[str, str]

    @classmethod
    def of(cls, snapshot: Snapshot) -> "Witness":
        course = transitions(snapshot)
        return cls(snapshot, epochs(course), socket_pairs(course, plugins(snapshot)))

    def cause(self, pod: Pod, rejection: Rejection, resource: str) -> Verdict:
        """Return why a pod was refused, and in words what speaks for it."""
        if rejection.at is None:
            return Cause.UNVERIFIED, "no record says when"
        if not resource:
            return Cause.UNVERIFIED, "no record says for which device"
        if rejection.refused is _ALL_GIVEN_OUT and _BY_NODE in rejection.message:
            return Cause.EXHAUSTED, f"the node had too few left, at {in_words(rejection.at)}"
        if rejection.refused is _ALL_GIVEN_OUT and (rejection.available or 0) > 0:
            asked = "" if rejection.requested is None else f" of the {rejection.requested} it asked for"
            return Cause.EXHAUSTED, f"only {rejection.available}{asked} were free then, at {in_words(rejection.at)}"
        if rejection.refused is Refused.OTHER:
            return Cause.UNVERIFIED, f"the kubelet says: {rejection.message}"
        span = outages.of_refusal(rejection, rejection.at, self.snapshot.api_skew)
        return self._whenever(_Refusal(pod, rejection, resource, rejection.at, span))

    def _whenever(self, refusal: _Refusal) -> Verdict:
        """Judge it by the run of the kubelet that it was in. Where several may be, by all of them."""
        parts = [(epoch, part) for epoch in self.epochs if (part := outages.in_epoch(refusal.span, epoch)) is not None]
        if not parts:
            return Cause.UNVERIFIED, f"at {in_words(refusal.at)}, before the oldest start of the kubelet that is known"
        if not refusal.rejection.by_api or refusal.says_there_is_none:
            # A kubelet takes longer than a second to start: in that second, none was there before it to refuse.
            return self._in(*parts[-1], refusal)
        verdicts = [self._in(epoch, part, refusal) for epoch, part in parts]
        all_known = self.epochs[0].start.at <= refusal.span.earliest
        if all_known and len({cause for cause, _ in verdicts}) == 1:
            return verdicts[-1]
        if self._all_given(refusal):
            return _exhausted(refusal)
        return Cause.UNVERIFIED, f"whether the kubelet had started yet at {in_words(refusal.at)} is not known"

    def _in(self, epoch: Epoch, span: Span, refusal: _Refusal) -> Verdict:
        start, now = epoch.start, boot_id(self.snapshot)
        if bool(now) and start.boot_id == now and not in_this_boot(start.at, self.snapshot):
            return Cause.UNVERIFIED, "the node's clock was set since: times cannot be compared"
        came = epoch.came(refusal.resource)
        unseen = came is None or span.latest <= came.at
        if unseen and not refusal.says_there_is_none and span.earliest - start.at >= SURELY_FORGOTTEN:
            # Had it not been registered, the kubelet would say by then that it does not know it.
            return Cause.UNVERIFIED, "nobody saw when the resource was registered"
        if came is None:
            return self._race(epoch, came, refusal)
        known = self._registered(epoch, came, start.at, refusal)
        if span.before(known):
            return self._race(epoch, came, refusal)
        if span.after(known):
            return self._later(epoch, span, refusal)
        if refusal.says_there_is_none and (came.exact or span.earliest <= start.at + FORGETS):
            return self._race(epoch, came, refusal)
        if self._all_given(refusal):
            return _exhausted(refusal)
        if not came.exact:
            return Cause.UNVERIFIED, "nobody saw when the resource was registered"
        return Cause.UNVERIFIED, f"{refusal.resource} was being registered at {in_words(refusal.at)}"

    def _registered(self, epoch: Epoch, came: Milestone, since: datetime, refusal: _Refusal) -> Span:
        """Return when a registration was. `since`: the start, or the loss, that it came after."""
        socket = self.sockets.get(refusal.resource, "")
        others = (one for other, one in self.sockets.items() if other != refusal.resource)
        bound = epoch.bound(socket, others, since, came.at)
        # In these words it was not registered; and soon after the start, that it had not yet been.
        return outages.of_registration(
            epoch, came, bound, otherwise=since + FORGETS if refusal.says_there_is_none else since
        )

    def _all_given(self, refusal: _Refusal) -> bool:
        """Tell whether pods that live, and ran already when another was refused, have all devices there are."""
        devices = plugins(self.snapshot)
        there = {one for state in devices.registered if state.resource == refusal.resource for one in state.devices}
        pods = self.snapshot.pods.items if isinstance(self.snapshot.pods, Seen) else ()
        ran = {pod.uid for pod in pods if pod.live and pod.started is not None and pod.started <= refusal.at}
        given = {
            device
            for one in devices.allocations
            if one.resource == refusal.resource and one.pod_uid in ran
            for device in one.devices
        }
        nothing_left = refusal.rejection.refused is _ALL_GIVEN_OUT and refusal.rejection.available == 0
        return nothing_left and bool(there) and there <= given

    def _race(self, epoch: Epoch, came: Milestone | None, refusal: _Refusal) -> Verdict:
        pod = refusal.pod
        late = "is not registered since" if came is None else f"was registered {_span(came.at - epoch.start.at)} later"
        if epoch.end is not None and came is None:
            late = "was not registered before it started again"
        started = f"started at {in_words(epoch.start.at)} and {refusal.resource} {late}"
        in_between = f"the pod was refused before that, at {in_words(refusal.at)}"
        if self._had_run(pod) and refusal.rejection.message.startswith(_SINCE_1_26):
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

    def _later(self, epoch: Epoch, span: Span, refusal: _Refusal) -> Verdict:
        """Judge a refusal that came when the resource had been registered."""
        at, resource = in_words(refusal.at), refusal.resource
        for away in outages.aways(epoch.of(resource)):
            back = None if away.back is None else self._registered(epoch, away.back, away.lost.at, refusal)
            held = away.holds(span, back)
            if held or (held is None and refusal.says_there_is_none):
                return self._away(epoch, away, refusal)
            if held is None:
                if self._all_given(refusal):
                    return _exhausted(refusal)
                return Cause.UNVERIFIED, f"whether all devices were given out at {at} is not known"
        if not refusal.says_there_is_none:
            if refusal.rejection.available is None:
                return Cause.UNVERIFIED, f"whether all devices were given out at {at} is not known"
            return _exhausted(refusal)
        made_anew = self._made(epoch, refusal, span.earliest, span.latest + FORGETS)
        if made_anew or refusal.rejection.refused is Refused.PLUGIN_GONE:
            return Cause.PLUGIN_RESTART, f"the plugin of {resource} was being restarted at {at}"
        if refusal.rejection.refused is Refused.NO_HEALTHY:
            return Cause.UNHEALTHY, f"{resource} was registered, and no device of it was healthy at {at}"
        return Cause.UNVERIFIED, f"{resource} was registered at {at}, as far as is known"

    def _away(self, epoch: Epoch, away: Away, refusal: _Refusal) -> Verdict:
        at = in_words(refusal.at)
        words = f"the kubelet knew no healthy device of {refusal.resource} from {in_words(away.lost.at)} on"
        if away.back is None:
            gone = self._disconnected(refusal.resource)
        else:
            gone = self._made(epoch, refusal, away.lost.at, away.back.at)
        if gone or away.dropped or refusal.rejection.refused in {Refused.PLUGIN_GONE, Refused.UNREGISTERED}:
            return Cause.PLUGIN_RESTART, f"{words}: its plugin was gone when the pod was refused, at {at}"
        return Cause.UNHEALTHY, f"{words}: its plugin was there when the pod was refused, at {at}"

    def _made(self, epoch: Epoch, refusal: _Refusal, since: datetime, until: datetime) -> bool:
        socket = self.sockets.get(refusal.resource, "")
        return bool(socket) and epoch.bound(socket, (), since, until) is not None

    def _disconnected(self, resource: str) -> bool:
        socket = self.sockets.get(resource)
        streams = {one.name: one.connected for one in plugins(self.snapshot).sockets}
        return socket is not None and streams.get(socket, False) is False


def _exhausted(refusal: _Refusal) -> Verdict:
    what = f"{refusal.resource} was registered, and all its devices were given out at {in_words(refusal.at)}"
    return Cause.EXHAUSTED, what


def _span(span: timedelta) -> str:
    return f"{span.total_seconds():.1f} s"

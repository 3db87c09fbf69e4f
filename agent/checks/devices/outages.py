"""When a pod was rejected, and when a resource was registered: as time windows, as precise as the clocks are. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from agent.checks.devices.kubelet_runs import KubeletRun
from agent.checks.devices.registration import PROMPTLY
from agent.model.devices import DeviceTransition, TransitionKind
from agent.model.rejections import Rejection

_GRAIN: Final = timedelta(seconds=1)
"""The kubelet and the API server write times in whole seconds."""
API_DELAY: Final = timedelta(seconds=5)
"""A pod's status reaches the API server this much later, at most."""
SKEW_ERROR: Final = timedelta(seconds=2.5)
"""The error of a measured skew, at most. A smaller skew counts as none: it changes with every snapshot."""
BETWEEN_SNAPSHOTS: Final = timedelta(seconds=60)
"""What a snapshot saw first may have happened this much earlier."""

_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)
_LATEST: Final = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """It happened at `earliest` or later, and before `latest`."""

    earliest: datetime
    latest: datetime

    def before(self, other: "TimeWindow") -> bool:
        return self.latest <= other.earliest

    def after(self, other: "TimeWindow") -> bool:
        return self.earliest >= other.latest


def rejection_window(rejection: Rejection, at: datetime, skew: timedelta | None) -> TimeWindow:
    """Return when it was by the node's clock, as the files' times are. `skew`: how far the API server's is ahead."""
    if not rejection.by_api:
        return TimeWindow(at, _add(at, _GRAIN))
    off = abs(skew or timedelta(0))
    slack = API_DELAY + (off if off > SKEW_ERROR else timedelta(0))
    return TimeWindow(_add(at, -slack), _add(at, _GRAIN + slack))


def within_run(window: TimeWindow, run: KubeletRun) -> TimeWindow | None:
    """Return the part of a window in which this run of the kubelet can have rejected a pod; None: there is none."""
    earliest = max(window.earliest, run.start.at)
    latest = window.latest if run.end is None else min(window.latest, run.end)
    return TimeWindow(earliest, latest) if earliest < latest else None


def registration_window(
    run: KubeletRun, registration: DeviceTransition, socket_bound: datetime | None, missing_until: datetime
) -> TimeWindow:
    """Return when a resource was registered.

    `socket_bound`: when its plugin had bound its socket before. `missing_until`: until when the resource certainly was
    not registered, for a registration that no file dates and no socket precedes.
    """
    if not registration.exact:
        return TimeWindow(
            min(registration.at, missing_until if socket_bound is None else socket_bound), registration.at
        )
    if socket_bound is None or registration.at - socket_bound > PROMPTLY:
        return TimeWindow(registration.at, registration.at)
    by_socket = any(one.what is TransitionKind.SOCKET_APPEARED and one.at == registration.at for one in run.history)
    return TimeWindow(socket_bound, _add(socket_bound, PROMPTLY) if by_socket else registration.at)


@dataclass(frozen=True, slots=True)
class Outage:
    """A time in which the kubelet had no healthy device of a resource that it had known."""

    registered: DeviceTransition
    """The registration before."""
    lost: DeviceTransition
    dropped: bool
    back: DeviceTransition | None
    """The registration after; None: it still lasts, or the kubelet restarted."""

    def contains(self, rejection: TimeWindow, back: TimeWindow | None) -> bool | None:
        """Whether a rejection fell into it; None: it may have. `back`: when the outage ended."""
        if rejection.latest <= self.lost.at:
            return None if not self.lost.exact and self._may_have_begun_at(rejection.latest) else False
        if back is not None and rejection.after(back):
            return False
        surely = rejection.earliest >= self.lost.at and (back is None or rejection.before(back))
        return True if surely else None

    def _may_have_begun_at(self, at: datetime) -> bool:
        return self.lost.at - at < BETWEEN_SNAPSHOTS or self.lost.uptime == self.registered.uptime


def outages_in(transitions: tuple[DeviceTransition, ...]) -> Iterator[Outage]:
    """Find the outages in the transitions of one resource."""
    registered: DeviceTransition | None = None
    lost: DeviceTransition | None = None
    dropped = False
    for one in transitions:
        if one.what is TransitionKind.REGISTERED:
            if registered is not None and lost is not None:
                yield Outage(registered, lost, dropped, one)
            registered, lost, dropped = one, None, False
        else:
            lost, dropped = lost or one, dropped or one.what is TransitionKind.DROPPED
    if registered is not None and lost is not None:
        yield Outage(registered, lost, dropped, None)


def _add(at: datetime, span: timedelta) -> datetime:
    try:
        return at + span
    except OverflowError:
        return _LATEST if span > timedelta(0) else _EARLIEST

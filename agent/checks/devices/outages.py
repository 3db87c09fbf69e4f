"""When a refusal was, and when a resource was registered: as spans, for no clock tells more. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from agent.checks.devices.kubelet_runs import KubeletRun
from agent.model.devices import DeviceTransition, TransitionKind
from agent.model.rejections import Rejection

GRAIN: Final = timedelta(seconds=1)
"""The kubelet and the API server cut their times to the second."""
BY_API: Final = timedelta(seconds=5)
"""Besides what its clock is known to differ: a status takes a while to get there."""
NOISE: Final = timedelta(seconds=2.5)
"""So far off is a measured skew at most. A smaller one is none: it would be another at every look."""
PROMPTLY: Final = timedelta(seconds=1)
"""A plugin that has bound its socket is registered so soon after."""
BETWEEN_LOOKS: Final = timedelta(seconds=60)
"""What a look saw first may have happened so much earlier."""

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


def of_refusal(rejection: Rejection, at: datetime, skew: timedelta | None) -> TimeWindow:
    """Return when it was by the node's clock, which dates the files too. `skew`: how far the API server's is ahead."""
    if not rejection.by_api:
        return TimeWindow(at, _moved(at, GRAIN))
    off = abs(skew or timedelta(0))
    slack = BY_API + (off if off > NOISE else timedelta(0))
    return TimeWindow(_moved(at, -slack), _moved(at, GRAIN + slack))


def in_epoch(refusal: TimeWindow, kubelet_run: KubeletRun) -> TimeWindow | None:
    """Return the part of it in which this run of the kubelet can have refused; None: there is none."""
    earliest = max(refusal.earliest, kubelet_run.start.at)
    latest = refusal.latest if kubelet_run.end is None else min(refusal.latest, kubelet_run.end)
    return TimeWindow(earliest, latest) if earliest < latest else None


def of_registration(
    kubelet_run: KubeletRun, came: DeviceTransition, bound: datetime | None, otherwise: datetime
) -> TimeWindow:
    """Return when a resource was registered.

    `bound`: when its plugin had bound its socket before. `otherwise`: until when it certainly was not, where nobody
    saw it and no socket tells.
    """
    if not came.exact:
        return TimeWindow(min(came.at, otherwise if bound is None else bound), came.at)
    if bound is None or came.at - bound > PROMPTLY:
        return TimeWindow(came.at, came.at)
    by_socket = any(one.what is TransitionKind.SOCKET_APPEARED and one.at == came.at for one in kubelet_run.history)
    return TimeWindow(bound, _moved(bound, PROMPTLY) if by_socket else came.at)


@dataclass(frozen=True, slots=True)
class Outage:
    """A time in which the kubelet had no healthy device of a resource that it had known."""

    came: DeviceTransition
    """The registration before."""
    lost: DeviceTransition
    dropped: bool
    back: DeviceTransition | None

    def holds(self, refusal: TimeWindow, back: TimeWindow | None) -> bool | None:
        """Tell whether a refusal was in it; None: it may have been."""
        if refusal.latest <= self.lost.at:
            near = self.lost.at - refusal.latest < BETWEEN_LOOKS or self.lost.uptime == self.came.uptime
            return None if near and not self.lost.exact else False
        if back is not None and refusal.after(back):
            return False
        surely = refusal.earliest >= self.lost.at and (back is None or refusal.before(back))
        return True if surely else None


def outages_in(changes: tuple[DeviceTransition, ...]) -> Iterator[Outage]:
    """Find them in what happened to one resource."""
    came: DeviceTransition | None = None
    lost: DeviceTransition | None = None
    dropped = False
    for one in changes:
        if one.what is TransitionKind.REGISTERED:
            if came is not None and lost is not None:
                yield Outage(came, lost, dropped, one)
            came, lost, dropped = one, None, False
        else:
            lost, dropped = lost or one, dropped or one.what is TransitionKind.DROPPED
    if came is not None and lost is not None:
        yield Outage(came, lost, dropped, None)


def _moved(at: datetime, by: timedelta) -> datetime:
    try:
        return at + by
    except OverflowError:
        return _LATEST if by > timedelta(0) else _EARLIEST

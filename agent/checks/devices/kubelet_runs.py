"""One run of the kubelet's device manager: its start, and the transitions until its next start. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from agent.model.devices import DeviceTransition, TransitionKind


@dataclass(frozen=True, slots=True)
class KubeletRun:
    start: DeviceTransition
    history: tuple[DeviceTransition, ...]
    end: datetime | None
    """When the kubelet started again; None: this is the last run."""

    def of(self, resource: str) -> tuple[DeviceTransition, ...]:
        return tuple(one for one in self.history if one.resource == resource)

    def first_registration(self, resource: str) -> DeviceTransition | None:
        return next((one for one in self.of(resource) if one.what is TransitionKind.REGISTERED), None)

    def socket_bound(self, socket: str, others: Iterable[str], since: datetime, until: datetime) -> datetime | None:
        """Return when the plugin first bound its socket in that time.

        An unknown socket (empty) may be any but `others`, the sockets of other plugins.
        """
        taken = frozenset(others)
        times = [
            one.at
            for one in self.history
            if one.what is TransitionKind.SOCKET_APPEARED
            and since <= one.at <= until
            and (one.socket == socket if socket else one.socket not in taken)
        ]
        return min(times, default=None)


def kubelet_runs(history: tuple[DeviceTransition, ...]) -> tuple[KubeletRun, ...]:
    starts = [place for place, one in enumerate(history) if one.what is TransitionKind.KUBELET_STARTED]
    return tuple(
        KubeletRun(history[place], history[place + 1 : after], history[after].at if after < len(history) else None)
        for place, after in pairwise([*starts, len(history)])
    )

"""One run of the kubelet's device manager, as the history tells it: its start, and what came until the next. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from agent.model.devices import Happening, Milestone


@dataclass(frozen=True, slots=True)
class Epoch:
    start: Milestone
    course: tuple[Milestone, ...]
    end: datetime | None
    """When the kubelet started again; None: this is the last run."""

    def of(self, resource: str) -> tuple[Milestone, ...]:
        return tuple(one for one in self.course if one.resource == resource)

    def came(self, resource: str) -> Milestone | None:
        """Return the first registration of a resource."""
        return next((one for one in self.of(resource) if one.what is Happening.REGISTERED), None)

    def bound(self, socket: str, others: Iterable[str], since: datetime, until: datetime) -> datetime | None:
        """Return when the plugin first bound its socket in that time: of a socket that is not known, when any did.

        `others`: the sockets of other plugins.
        """
        taken = frozenset(others)
        times = [
            one.at
            for one in self.course
            if one.what is Happening.SOCKET_APPEARED
            and since <= one.at <= until
            and (one.socket == socket if socket else one.socket not in taken)
        ]
        return min(times, default=None)


def epochs(course: tuple[Milestone, ...]) -> tuple[Epoch, ...]:
    return tuple(_epochs(course))


def _epochs(course: tuple[Milestone, ...]) -> Iterator[Epoch]:
    starts = [place for place, one in enumerate(course) if one.what is Happening.KUBELET_STARTED]
    for place, after in pairwise([*starts, len(course)]):
        end = course[after].at if after < len(course) else None
        yield Epoch(course[place], course[place + 1 : after], end)

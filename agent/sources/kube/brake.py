"""Reads the brake: a ConfigMap that stops every release while it exists.

It is listed, never requested by its name: an empty list says that there is none, while 404 can come
from a proxy or a wrong address too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from agent.model.brake import MAX_AGE_SECONDS, Brake
from agent.model.snapshot import Known, Reading, Snapshot, Unavailable
from agent.model.text import escape, truncate
from agent.sources.kube.api import Resource
from agent.sources.kube.fields import Object, moment
from agent.sources.source import Source
from agent.sources.source_error import SourceError

_LONGEST_REASON: Final = 200
"""Characters."""


def brake_object(brake: str) -> Resource[Brake]:
    """Return the resource of the one object. `brake`: its `namespace/name`."""
    namespace, _, name = brake.partition("/")
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    selector = ("fieldSelector", f"metadata.name={name}")
    return Resource("brake", path, (selector,), _parse)


def _parse(item: Object) -> Brake:
    """Return the brake that an object is: on, whatever is in it."""
    metadata = item["metadata"]
    data = item.get("data")
    reason = data.get("reason") if isinstance(data, dict) else None

    return Brake(
        name=f"{metadata['namespace']}/{metadata['name']}",
        on=True,
        reason=escape(truncate(reason or "", _LONGEST_REASON)),
        since=moment(metadata.get("creationTimestamp")),
    )


@dataclass
class BrakeSource(Source):
    """The brake as a snapshot has it, and as a release reads it again. For one thread."""

    brake: str
    """Its `namespace/name`."""
    request: Callable[[], Sequence[Brake]]
    """Lists it, read through to etcd. Raises SourceError."""
    clock: Callable[[], float]
    """Returns seconds since the boot, which go on while the node is suspended."""
    watched: Callable[[], Reading[Sequence[Brake]]] | None = None
    """Returns what the daemon's watch says; None: a command watches nothing."""
    name = "brake"
    _last: Reading[Brake] | None = None
    _requested_at: float = 0.0

    def read(self, _: Snapshot) -> Reading[Brake]:
        """Return what a watch says, which may be as old as `--stale-after`, or else a request."""
        if self.watched is None:
            return self._requested()

        reading = self.watched()
        return Known(self._of(reading.value)) if isinstance(reading, Known) else reading

    def read_now(self) -> Reading[Brake]:
        """Return a reading that permits a release only if it is at most `MAX_AGE_SECONDS` old.

        A watch does not count.
        """
        reading = self._requested()
        if isinstance(reading, Known) and not reading.value.on and self._age > MAX_AGE_SECONDS:
            why = (
                f"the API server took {self._age:.1f} s to answer (at most {MAX_AGE_SECONDS:g} s), "
                "and the brake may have been set since"
            )
            return Unavailable(self.name, why)
        return reading

    @property
    def _age(self) -> float:
        """Seconds since the last request: a reading is as old as its request."""
        return self.clock() - self._requested_at

    def _requested(self) -> Reading[Brake]:
        """Return the last reading while it is new, or else request another."""
        if self._last and self._age <= MAX_AGE_SECONDS:
            return self._last

        self._last = None  # whatever the request raises, what was read before is no answer to it
        self._requested_at = self.clock()
        try:
            self._last = Known(self._of(self.request()))
        except SourceError as error:
            self._last = Unavailable(self.name, str(error))
        return self._last

    def _of(self, listed: Sequence[Brake]) -> Brake:
        """Return the brake, which is on if it is listed."""
        return listed[0] if listed else Brake(self.brake, on=False)

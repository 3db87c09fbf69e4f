"""Why sandboxes of this node's pods could not be created, from Events. They are asked for only while pods wait.

No permission is required: without `list events` the answer is that it is not requested.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol
from urllib.parse import quote

from agent.model.snapshot import Known, NotRequested, Pod, Reading, SandboxFailure, Unavailable
from agent.model.text import escape, truncate
from agent.sources.kube.client import ApiError, Query
from agent.sources.kube.fields import moment
from agent.sources.source_error import SourceError
from agent.sources.ttl_cache import TTLCache

MAX_PODS: Final = 4
"""Pods whose Events are listed, once a minute: those of one node fail for the same reason."""
KEPT_FOR: Final = 60.0
"""Seconds."""
_LONGEST_READ: Final = 4096
"""Characters; the kubelet cuts at 1,024."""
_FORBIDDEN: Final = 403
_REASON: Final = "FailedCreatePodSandBox"

# libcni since 1.0, in the Events of kubelets with containerd, CRI-O and cri-dockerd alike.
_PLUGIN = re.compile(
    r'plugin type="(?P<plugin>[^"\s]{1,100})"(?: name="(?P<network>[^"\s]{1,253})")? '
    r"failed \((?P<operation>add|delete)\): (?P<message>.+)",
    re.DOTALL,
)
# Before 1.0, libcni names a plugin only if it has no binary.
_NO_BINARY = re.compile(r'(?P<message>failed to find plugin "(?P<plugin>[^"\s]{1,100})" in path .+)', re.DOTALL)
_CRI_O_NETWORK = re.compile(r'(?:to|from) CNI network "([^"\s]{1,253})"')
_EXHAUSTED = re.compile(r"no IP addresses available in range set: ([0-9A-Fa-f.:,-]{1,400})")


class Connection(Protocol):
    def get(self, path: str, query: Query = ()) -> bytes: ...
    def close(self) -> None: ...


class SandboxFailuresSource:
    """Lists the Events of some waiting pods, and keeps the answer, or the failure, for a minute."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        within: Callable[[Callable[[], Reading[tuple[SandboxFailure, ...]]]], Reading[tuple[SandboxFailure, ...]]],
        clock: Callable[[], float],
    ) -> None:
        """`connect`: opens a connection. `within`: bounds all its requests. `clock`: seconds."""
        self._connect, self._within = connect, within
        self._cache = TTLCache[Reading[tuple[SandboxFailure, ...]]](clock, KEPT_FOR)

    def read(self, waiting: Sequence[Pod]) -> Reading[tuple[SandboxFailure, ...]]:
        try:
            return self._cache.get(lambda: self._within(lambda: self._ask(waiting[:MAX_PODS])))
        except SourceError as error:
            return Unavailable("sandbox_failures", str(error))

    def _ask(self, pods: Sequence[Pod]) -> Reading[tuple[SandboxFailure, ...]]:
        connection = self._connect()
        try:
            return Known(tuple(failure for pod in pods for failure in _last_failures(connection, pod)))
        except ApiError as error:
            if error.status != _FORBIDDEN:
                raise
            return NotRequested("sandbox_failures", "the account may not list events")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise SourceError(f"API server: malformed event ({truncate(repr(error))})") from error
        finally:
            connection.close()


def _last_failures(connection: Connection, pod: Pod) -> Iterator[SandboxFailure]:
    """Yield the last failure; before one that says that the range is full, the last one with another cause."""
    path = f"/api/v1/namespaces/{quote(pod.name.partition('/')[0], safe='')}/events"
    selector = f"involvedObject.uid={pod.uid},reason={_REASON}"
    items = json.loads(connection.get(path, (("fieldSelector", selector), ("limit", "500")))).get("items") or []
    failures = [read_failure(pod.name, item) for item in items]
    others = [failure for failure in failures if not failure.exhausted]
    last = max(failures, key=_time, default=None)
    if last and last.exhausted and others:
        yield max(others, key=_time)
    if last:
        yield last


def _time(failure: SandboxFailure) -> float:
    return failure.at.timestamp() if failure.at else 0.0


def read_failure(pod: str, event: Mapping[str, Any]) -> SandboxFailure:
    at = max(filter(None, map(moment, _times(event))), default=None)
    words = event.get("message")
    words = words[:_LONGEST_READ] if isinstance(words, str) else ""
    exhausted = _EXHAUSTED.search(words)
    found = _PLUGIN.search(words) or _NO_BINARY.search(words)
    parts = found.groupdict() if found else {}
    by_cri_o = _CRI_O_NETWORK.search(words)
    return SandboxFailure(
        pod=pod,
        at=at,
        message=escape(truncate(parts.get("message") or words, 300)),
        plugin=escape(parts.get("plugin") or ""),
        network=escape(parts.get("network") or (by_cri_o[1] if by_cri_o else "")),
        operation=parts.get("operation") or "",
        exhausted=exhausted[1].rstrip(".:,-") if exhausted else "",
    )


def _times(event: Mapping[str, Any]) -> Iterator[Any]:
    yield event.get("lastTimestamp")
    yield event.get("eventTime")
    yield (event.get("series") or {}).get("lastObservedTime")

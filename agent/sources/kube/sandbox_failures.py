"""Why sandboxes of this node's pods could not be created, from Events. They are asked for only while pods wait."""

import json
import re
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Final
from urllib.parse import quote

from agent.checks.waiting_pods import waiting_pods
from agent.model.snapshot import NotRequested, Pod, SandboxFailure, Snapshot
from agent.model.text import escape, truncate
from agent.sources.kube.client import CachedRequest, Get, Inquire
from agent.sources.kube.errors import FORBIDDEN, ApiError
from agent.sources.kube.fields import Object, moment
from agent.sources.source import Source

MAX_PODS: Final = (
    4  # pods whose Events are listed, once a minute: those of one node fail for the same reason
)
KEPT_FOR: Final = 60.0  # seconds
_LONGEST_READ: Final = 4096  # characters; the kubelet cuts at 1,024

# libcni since 1.0, in the Events of kubelets with containerd, CRI-O and cri-dockerd alike.
_PLUGIN: Final = re.compile(
    r'plugin type="(?P<plugin>[^"\s]{1,100})"(?: name="(?P<network>[^"\s]{1,253})")? '
    r"failed \((?P<operation>add|delete)\): (?P<message>.+)",
    re.DOTALL,
)
# Before 1.0, libcni names a plugin only if it has no binary.
_NO_BINARY: Final = re.compile(
    r'(?P<message>failed to find plugin "(?P<plugin>[^"\s]{1,100})" in path .+)', re.DOTALL
)
# In the words of CRI-O and of Multus.
_NETWORK: Final = re.compile(r'(?:to|from) (?:CNI )?network "([^"\s]{1,253})"')
_EXHAUSTED: Final = re.compile(r"no IP addresses available in range set: ([0-9A-Fa-f.:,-]{1,400})")


class SandboxFailuresSource(Source):
    """Lists the Events of some waiting pods, at most once a minute."""

    def __init__(self, inquire: Inquire, clock: Callable[[], float]) -> None:
        self._cached = CachedRequest[tuple[SandboxFailure, ...]](inquire, clock, KEPT_FOR)

    name = "sandbox_failures"

    def reason_not_needed(self, snapshot: Snapshot) -> str | None:
        return None if waiting_pods(snapshot) else "no pod waits for its sandbox"

    def read(self, snapshot: Snapshot) -> tuple[SandboxFailure, ...] | NotRequested:
        """Raises SourceError. Without the right to list events they are not requested."""
        pods = waiting_pods(snapshot)[:MAX_PODS]
        try:
            return self._cached.get(
                lambda get: tuple(chain.from_iterable(_last_failures(get, pod) for pod in pods))
            )
        except ApiError as error:
            if error.status != FORBIDDEN:
                raise
            return NotRequested("sandbox_failures", "the account may not list events")


def _last_failures(get: Get, pod: Pod) -> Iterator[SandboxFailure]:
    """Yield the last failure; if that says that the range is full, the last failure with another cause before it."""
    path = f"/api/v1/namespaces/{quote(pod.name.partition('/')[0], safe='')}/events"
    selector = f"involvedObject.uid={pod.uid},reason=FailedCreatePodSandBox"
    items = (
        json.loads(get(path, (("fieldSelector", selector), ("limit", "500")))).get("items") or []
    )
    found = (_failure(pod.name, item) for item in items)
    failures = sorted(found, key=lambda failure: failure.at.timestamp() if failure.at else 0.0)
    others = [failure for failure in failures if not failure.exhausted]
    if failures and failures[-1].exhausted:
        yield from others[-1:]
    yield from failures[-1:]


def _failure(pod: str, event: Object) -> SandboxFailure:
    times = (
        event.get("lastTimestamp"),
        event.get("eventTime"),
        (event.get("series") or {}).get("lastObservedTime"),
    )
    words = str(event.get("message") or "")[:_LONGEST_READ]
    exhausted = _EXHAUSTED.search(words)
    found = _plugin(words) or _NO_BINARY.search(words)
    parts = found.groupdict("") if found else {}
    network = _NETWORK.search(found.string if found else words)
    return SandboxFailure(
        pod=pod,
        at=max(filter(None, map(moment, times)), default=None),
        message=escape(truncate(parts.get("message", words), 300)),
        plugin=escape(parts.get("plugin", "")),
        network=escape(parts.get("network") or (network[1] if network else "")),
        operation=parts.get("operation", ""),
        exhausted=exhausted[1].rstrip(".:,-") if exhausted else "",
    )


def _plugin(words: str) -> re.Match[str] | None:
    """Return which plugin failed, by its match: of Multus, the plugin that it called."""
    found = _PLUGIN.search(words)
    if found and found["plugin"].startswith("multus"):
        return _plugin(found["message"]) or found
    return found

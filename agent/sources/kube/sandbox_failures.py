"""Why sandboxes of this node's pods could not be created, from Events.

They are requested only while pods wait.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import quote

from agent.checks.waiting_pods import waiting_pods
from agent.model.snapshot import NotRequested, Pod, SandboxFailure, Snapshot
from agent.model.text import escape, truncate
from agent.sources.kube.cached_request import CachedRequest, Get, OpenSession
from agent.sources.kube.errors import FORBIDDEN, ApiError
from agent.sources.kube.fields import Object, moment
from agent.sources.source import Source

MAX_PODS: Final = 4
"""Pods whose Events are listed, once a minute: those of one node fail for the same reason."""
CACHED_FOR: Final = 60.0
"""Seconds."""
_LONGEST_READ: Final = 4096
"""Characters; the kubelet cuts at 1,024."""

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

    def __init__(self, open_session: OpenSession, clock: Callable[[], float]) -> None:
        self._cached = CachedRequest[tuple[SandboxFailure, ...]](open_session, clock, CACHED_FOR)

    name = "sandbox_failures"

    def reason_not_needed(self, snapshot: Snapshot) -> str | None:
        return None if waiting_pods(snapshot) else "no pod waits for its sandbox"

    def read(self, snapshot: Snapshot) -> tuple[SandboxFailure, ...] | NotRequested:
        """Raises SourceError. Without the right to list events they are not requested."""
        pods = waiting_pods(snapshot)[:MAX_PODS]
        try:
            return self._cached.get(
                lambda get: tuple(failure for pod in pods for failure in _last_failures(get, pod))
            )
        except ApiError as error:
            if error.status != FORBIDDEN:
                raise
            return NotRequested("sandbox_failures", "the account may not list events")


def _last_failures(get: Get, pod: Pod) -> Iterator[SandboxFailure]:
    """Yield the last failure, after the last with another cause if it is that the range is full."""
    path = f"/api/v1/namespaces/{quote(pod.name.partition('/')[0], safe='')}/events"
    selector = f"involvedObject.uid={pod.uid},reason=FailedCreatePodSandBox"
    tree = json.loads(get(path, (("fieldSelector", selector), ("limit", "500"))))
    failures = sorted(
        (_failure(pod.name, item) for item in tree.get("items") or []),
        key=lambda failure: failure.at.timestamp() if failure.at else 0.0,
    )
    if failures and failures[-1].exhausted:
        yield from [failure for failure in failures if not failure.exhausted][-1:]
    yield from failures[-1:]


def _failure(pod: str, event: Object) -> SandboxFailure:
    times = (
        event.get("lastTimestamp"),
        event.get("eventTime"),
        (event.get("series") or {}).get("lastObservedTime"),
    )
    text = str(event.get("message") or "")[:_LONGEST_READ]
    exhausted = _EXHAUSTED.search(text)
    failed = _failed_plugin(text) or _NO_BINARY.search(text)
    groups = failed.groupdict("") if failed else {}
    network = _NETWORK.search(failed.string if failed else text)
    return SandboxFailure(
        pod=pod,
        at=max(filter(None, map(moment, times)), default=None),
        message=escape(truncate(groups.get("message", text), 300)),
        plugin=escape(groups.get("plugin", "")),
        network=escape(groups.get("network") or (network[1] if network else "")),
        operation=groups.get("operation", ""),
        exhausted=exhausted[1].rstrip(".:,-") if exhausted else "",
    )


def _failed_plugin(text: str) -> re.Match[str] | None:
    """Return the match of the plugin that failed: of Multus, the plugin that it called."""
    found = _PLUGIN.search(text)
    if found and found["plugin"].startswith("multus"):
        return _failed_plugin(found["message"]) or found
    return found

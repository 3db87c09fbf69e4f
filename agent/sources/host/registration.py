"""What this node itself knows about its registration: the last seen Node and, if it is incomplete, kubelet flags."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from agent.model.documents import LAST_SEEN_FILE, Damaged, load_last_seen
from agent.model.registration import (
    NO_CLOUD,
    TO_BE_DELETED,
    Expected,
    LastSeen,
    Registration,
    Removal,
    remember,
    with_removal,
)
from agent.model.snapshot import Known, Node, NotRequested, Pod, Reading, known_or
from agent.sources.host.files import read_file
from agent.sources.source_error import SourceError, cannot_read

PODS_LEFT_FOR: Final = timedelta(
    seconds=40
)  # how long the API server keeps the pods of a deleted Node
HOSTNAME, CLOUD = "hostname-override", "cloud-provider"


@dataclass
class RegistrationTracker:
    """Remembers the last seen Node, starting with that in the state directory."""

    name: str
    expected: Expected
    state_dir: Path
    flags: Callable[
        ..., Mapping[str, str]
    ]  # returns those of these that the kubelet has; raises SourceError
    proc: Path
    latest: Callable[[], Node | None] = lambda: None
    """Returns the Node as the API server last sent it, also between two snapshots."""
    _last: LastSeen | None = None

    def read(
        self, node: Reading[Node | None], pods: Reading[tuple[Pod, ...]], at: datetime
    ) -> Reading[Registration]:
        """Return what is known; `at`: the node's wall clock at this snapshot. A failed read is reported in `why`."""
        if isinstance(node, NotRequested):
            return NotRequested("registration", node.why)
        why = self._recall(at)
        if not isinstance(node, Known):
            return Known(Registration(self.expected, self._last, why=why))
        found, listed = node.value, known_or(pods, None)
        if found is not None:
            seen, (removal, in_use) = (
                LastSeen(found.name, found.uid, found.provider_id, at),
                _removal(found, listed),
            )
            self._last = remember(self._last, seen, removal, in_use=in_use)
            if found.provider_id:
                return Known(Registration(self.expected, self._last, why=why))
        elif self._last is not None and self._last.gone is None:
            self._last = self._without_node(self._last, listed, at)
        flags: Mapping[str, str] = {}
        with suppress(SourceError):  # the kubelet may have ended meanwhile
            flags = self.flags(HOSTNAME, CLOUD)
        name, cloud, count = (
            self._kubelet_name(flags),
            flags.get(CLOUD, ""),
            0 if found else len(listed or ()),
        )
        return Known(Registration(self.expected, self._last, name, cloud, count, why))

    def _without_node(self, last: LastSeen, pods: tuple[Pod, ...] | None, at: datetime) -> LastSeen:
        """Add when the Node was found to be gone, and what happened to it since the last snapshot that had it."""
        latest = self.latest()
        if latest is not None and latest.uid == last.uid:
            listed = pods if timedelta(0) <= at - last.at < PODS_LEFT_FOR else None
            removal, in_use = _removal(latest, listed)
            last = with_removal(last, last, removal, in_use=in_use)
        return replace(last, gone=at)

    def _recall(self, at: datetime) -> str:
        """Read the stored Node if none is remembered yet; returns why it cannot be read."""
        if self._last is not None:
            return ""
        file = self.state_dir / LAST_SEEN_FILE
        try:
            content, _ = read_file(file)
            last = load_last_seen(content)
        except FileNotFoundError:
            return ""
        except OSError as error:
            return cannot_read(file, error)
        except (SourceError, Damaged) as error:
            return f"{LAST_SEEN_FILE}: {error}"
        if last.name == self.name:
            # If the clock was ahead then, the Node was still not seen in the future.
            self._last = replace(
                last, at=min(last.at, at), gone=None if last.gone is None else min(last.gone, at)
            )
        return ""

    def _kubelet_name(self, flags: Mapping[str, str]) -> str:
        """Return the name by which the kubelet registers; empty: not known."""
        # Without the flag it is the host's name. A container may see another host name, so the name only counts if it
        # is the expected name.
        if flags.get(CLOUD, "") not in NO_CLOUD:
            return ""
        if named := flags.get(HOSTNAME, "").strip().lower():
            return named
        try:
            host = (self.proc / "sys/kernel/hostname").read_text(errors="replace").strip().lower()
        except OSError:
            return ""
        return host if host == self.name else ""


def _removal(node: Node, pods: tuple[Pod, ...] | None) -> tuple[Removal, bool]:
    """Return how far it has come, and whether the node is in use; `pods`: None if they are not known."""
    in_use = not node.unschedulable or any(map(_is_evicted, pods or ()))
    if any(taint.key == TO_BE_DELETED for taint in node.taints):
        return Removal.SCALE_DOWN, in_use
    if not node.unschedulable:
        return Removal.NONE, in_use
    return Removal.CORDONED if in_use or pods is None else Removal.DRAINED, in_use


def _is_evicted(pod: Pod) -> bool:
    """Whether a drain evicts the pod, and has not begun to."""
    return (
        pod.live
        and not pod.deleting
        and not pod.static
        and not pod.controller.startswith("DaemonSet/")
    )

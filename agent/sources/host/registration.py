"""What this node itself knows of its registration: the Node as it was last seen, and what the kubelet was told.

A node in order costs nothing: the kubelet's flags are read only where its Node is gone, or has no provider ID.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Final

from agent.model.last_seen import FILE, loads
from agent.model.recording import Damaged
from agent.model.registration import NO_CLOUD, Expected, LastSeen, Registration, remember
from agent.model.snapshot import Known, Node, NotRequested, Pod, Reading, known_or
from agent.sources.error import SourceError
from agent.sources.host.cached_file import CachedFile

LARGEST: Final = 16 * 1024
"""Bytes of the file that remembers. A provider ID has a few hundred at most."""
HOSTNAME, CLOUD = "hostname-override", "cloud-provider"

Flags = Callable[..., Mapping[str, str]]
"""Returns those of the named flags that the kubelet was started with; raises Unavailable."""


def _remembered(text: bytes) -> LastSeen:
    try:
        return loads(text)
    except Damaged as damaged:
        raise SourceError(f"{FILE}: {damaged}") from damaged


class RegistrationTracker:
    """Remembers the Node from look to look, and what the state directory kept of it from before."""

    def __init__(self, node_name: str, expected: Expected, state_dir: Path, flags: Flags, proc: Path) -> None:
        self._name, self._expected = node_name, expected
        self._path, self._file = state_dir / FILE, CachedFile(_remembered, LARGEST)
        self._flags, self._proc = flags, proc
        self._last: LastSeen | None = None

    def read(self, node: Reading[Node | None], pods: Reading[tuple[Pod, ...]], at: datetime) -> Reading[Registration]:
        """Tell what is known; `at`: the node's wall clock at this look. Nothing of it can be unread: it is a memory."""
        if isinstance(node, NotRequested):
            return NotRequested("registration", node.why)
        why = self._recall(at)
        found = known_or(node, None)
        if found is not None:
            self._last = remember(self._last, found.name, found.uid, found.provider_id, at)
        if not isinstance(node, Known) or (found is not None and found.provider_id):
            return Known(Registration(self._expected, self._last, why=why))
        flags = self._kubelet_flags()
        return Known(
            Registration(
                expected=self._expected,
                last=self._last,
                kubelet_name=self._kubelet_name(flags),
                cloud_provider=flags.get(CLOUD, ""),
                listed_pods=len(pods.value) if found is None and isinstance(pods, Known) else 0,
                why=why,
            )
        )

    def _recall(self, at: datetime) -> str:
        """Take up what was stored, where nothing is remembered yet; returns why it cannot be read."""
        if self._last is not None:
            return ""
        try:
            stored = self._file.read(self._path)
        except SourceError as error:
            return str(error)
        if stored is not None and stored[0].name == self._name:
            # A node whose clock was ahead then has not been seen in the future.
            self._last = replace(stored[0], at=min(stored[0].at, at))
        return ""

    def _kubelet_flags(self) -> Mapping[str, str]:
        try:
            return self._flags(HOSTNAME, CLOUD)
        except SourceError:
            return {}  # it may have ended meanwhile: nothing is known of it, which accuses nobody

    def _kubelet_name(self, flags: Mapping[str, str]) -> str:
        """Return the name by which the kubelet registers, where this node can tell.

        Without the flag it is the host's name, which a container sees only where it shares it: so that name is
        believed where it is the one we look for, and no other one is taken for the host's.
        """
        if flags.get(CLOUD, "") not in NO_CLOUD:
            return ""
        if named := flags.get(HOSTNAME, "").strip().lower():
            return named
        try:
            host = (self._proc / "sys/kernel/hostname").read_text(errors="replace").strip().lower()
        except OSError:
            return ""
        return host if host == self._name else ""

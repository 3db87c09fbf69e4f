"""What this node itself knows about its registration.

That is the last seen Node and, while the Node is gone or has no provider ID, flags of the kubelet.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from agent.checks.cluster.registration import advance, advance_without_node
from agent.model.documents import LAST_SEEN_FILE, Damaged, load_last_seen
from agent.model.registration import LastSeen, Registration
from agent.model.settings import PROVISION_TIME, Expected
from agent.model.snapshot import Known, Node, NotRequested, Pod, Reading, known_or
from agent.sources.host.files import read_file
from agent.sources.source_error import SourceError, cannot_read

_HOSTNAME: Final = "hostname-override"
_CLOUD: Final = "cloud-provider"
_NO_CLOUD: Final = frozenset({"", "external"})
"""With any other `--cloud-provider` the kubelet asks that cloud for the name of its node."""


@dataclass
class RegistrationTracker:
    """Remembers the last seen Node, starting with that in the state directory."""

    name: str
    """Of the Node that this node should have."""
    expected: Expected
    """Whether it has to have a provider ID."""
    state_dir: Path
    flags: Callable[..., Mapping[str, str]]
    """Returns the kubelet's values of the given flags, where set. Raises SourceError."""
    proc: Path
    latest: Callable[[], Node | None] = lambda: None
    """Returns the Node as the API server last sent it, also between two snapshots."""
    provision_time: timedelta = PROVISION_TIME
    """The autoscaler's `--max-node-provision-time`."""
    _last: LastSeen | None = None

    def read(
        self, node: Reading[Node | None], pods: Reading[tuple[Pod, ...]], now: datetime
    ) -> Reading[Registration]:
        """Return what is known. A failure to read the stored Node is reported in `why`.

        `now`: the node's wall clock at this snapshot.
        """
        if isinstance(node, NotRequested):
            return NotRequested("registration", node.why)

        why = self._load(now)
        if not isinstance(node, Known):
            return Known(self._registration(why))

        listed = known_or(pods, None)
        if node.value is not None:
            self._last = advance(self._last, node.value, listed, now)
            if node.value.provider_id:
                return Known(self._registration(why))
        elif self._last is not None and self._last.gone is None:
            self._last = advance_without_node(self._last, self.latest(), listed, now)

        flags: Mapping[str, str] = {}
        with suppress(SourceError):  # the kubelet may have ended meanwhile
            flags = self.flags(_HOSTNAME, _CLOUD)
        registration = replace(
            self._registration(why),
            kubelet_name=self._kubelet_name(flags),
            cloud_provider=flags.get(_CLOUD) or None,
            listed_pods=0 if node.value else len(listed or ()),
        )
        return Known(registration)

    def _registration(self, why: str | None) -> Registration:
        return Registration(
            expected=self.expected,
            last=self._last,
            why=why,
            provision_time=self.provision_time,
        )

    def _load(self, now: datetime) -> str | None:
        """Read the stored Node if none is remembered; returns why it cannot be read."""
        if self._last is not None:
            return None
        file = self.state_dir / LAST_SEEN_FILE
        try:
            content, _ = read_file(file)
            last = load_last_seen(content)
        except FileNotFoundError:
            return None
        except OSError as error:
            return cannot_read(file, error)
        except (SourceError, Damaged) as error:
            return f"{LAST_SEEN_FILE}: {error}"

        if last.name == self.name:
            # If the clock was ahead then, the Node was still not seen in the future.
            gone = None if last.gone is None else min(last.gone, now)
            self._last = replace(last, at=min(last.at, now), gone=gone)
        return None

    def _kubelet_name(self, flags: Mapping[str, str]) -> str | None:
        """Return the name by which the kubelet registers; None: unknown.

        Without the flag it is the host's name. A container may see another host name, so the name
        counts only if it is the expected one.
        """
        if flags.get(_CLOUD, "") not in _NO_CLOUD:
            return None
        if name := flags.get(_HOSTNAME, "").strip().lower():
            return name

        try:
            host = (self.proc / "sys/kernel/hostname").read_text(errors="replace")
        except OSError:
            return None
        return self.name if host.strip().lower() == self.name else None

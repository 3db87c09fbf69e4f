"""What happened to the device plugins of this node, in order: what earlier looks saw, and what this one adds. Pure."""

from agent.model.devices import Milestone
from agent.model.snapshot import Snapshot


def of(snapshot: Snapshot) -> tuple[Milestone, ...]:
    """Return the milestones up to this look, oldest first. Blind where the device plugins were not read."""
    (devices,) = snapshot.device_plugins.known()
    return devices.history

"""What happened to the device plugins of this node, and how each resource stands. Pure.

`of`: what earlier looks saw, and what this one adds. `pairs`: whose socket is whose. `resources`: how it stands now.
"""

from agent.history.course import of
from agent.history.pairing import pairs
from agent.history.standing import awaited, dropped_before, kubelet_up_for, resources

__all__ = ["awaited", "dropped_before", "kubelet_up_for", "of", "pairs", "resources"]

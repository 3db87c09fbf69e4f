"""The table of device resources, which text and page share."""

from typing import Final

from agent.checks.devices.state import resource_states
from agent.model.devices import ResourceState
from agent.model.snapshot import Snapshot
from agent.model.text import format_number, rfc3339

HEADS: Final = ("Resource", "Devices", "Allocated", "Registered", "Since", "Registered after", "Socket")


def device_rows(snapshot: Snapshot) -> list[list[str]]:
    """Return a row for each resource, and for each socket of no known resource; raises InsufficientData."""
    states, plugins = resource_states(snapshot), snapshot.device_plugins.known()
    claimed = {state.socket for state in states}
    unclaimed = sorted(socket.name for socket in plugins.sockets if socket.name not in claimed)
    return [*map(_row, states), *(["?", "?", "?", "?", "?", "?", name] for name in unclaimed)]


def _row(state: ResourceState) -> list[str]:
    gone = " (gone)" if state.socket_present is False else " (not connected)" if state.connected is False else ""
    return [
        state.resource,
        format_number(state.devices),
        format_number(state.allocated),
        "?" if state.registered is None else "yes" if state.registered else "no",
        "?" if state.registered_since is None else rfc3339(state.registered_since),
        "?" if state.delay is None else f"{state.delay.total_seconds():.1f} s",
        f"{state.socket}{gone}" if state.socket else "?",
    ]

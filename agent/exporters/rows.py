"""Rows and sentences that the text for terminals, the page and the log share."""

from typing import Final

from agent.checks.devices.resources import resource_states
from agent.checks.devices.view import DeviceView
from agent.exporters.json import Document
from agent.model.devices import ResourceState
from agent.model.snapshot import Snapshot
from agent.model.text import format_number, rfc3339

WHEN_HALTED: Final = (
    "cordon the node; if the container is still there, `nodeleak restore ENTRY`, then with "
    "--apply; find out why the container runtime did not list it; only then `nodeleak resume` in "
    "the agent's pod (runbook NodeleakCleanupHalted)"
)
DEVICE_HEADS: Final = (
    "Resource",
    "Devices",
    "Allocated",
    "Registered",
    "Registered since",
    "Registered after",
    "Socket",
)


def device_rows(snapshot: Snapshot) -> list[list[str]]:
    """Return a row for each resource, and for each socket of no known resource.

    Raises InsufficientData.
    """
    view = DeviceView.of(snapshot)
    states = resource_states(view)
    rows = list(map(_device_row, states))

    claimed = {state.socket for state in states}
    sockets = {socket.name for socket in view.plugins.sockets if not socket.registry}
    unknown = ["?"] * (len(DEVICE_HEADS) - 1)
    return rows + [[*unknown, name] for name in sorted(sockets - claimed)]


def _device_row(state: ResourceState) -> list[str]:
    socket = state.socket or "?"
    if state.socket and state.socket_present is False:
        socket += " (gone)"
    elif state.socket and state.connected is False:
        socket += " (not connected)"

    registered = {None: "?", True: "yes", False: "no"}

    return [
        state.resource,
        format_number(state.devices),
        format_number(state.allocated),
        registered[state.registered],
        "?" if state.registered_since is None else rfc3339(state.registered_since),
        "-" if state.delay is None else f"{state.delay.total_seconds():.1f} s",
        socket,
    ]


def event_time(event: Document) -> str:
    """Return the time of an event of the timeline in UTC, to the millisecond where it is exact."""
    date, _, time = event["at"].removesuffix("Z").partition("T")
    return f"{date} {time if event['exact'] else time.partition('.')[0]}"

"""Why pods that wait have no sandbox, in the words of the runtime."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class SandboxFailure:
    """An Event of a pod that says why its sandbox could not be created."""

    pod: str
    """`namespace/name`."""
    at: datetime | None
    """By the API server's clock; None: not known."""
    message: str
    """What the plugin said; the whole message if it names no plugin."""
    plugin: str = ""
    """The type of the CNI plugin that failed, such as `portmap`; empty: the message names none."""
    network: str = ""
    """Empty: the message does not name it."""
    operation: str = ""
    """`add` or `delete`; empty: not known."""
    exhausted: str = ""
    """The range set without a free address, as host-local names it; empty: it is not the cause."""

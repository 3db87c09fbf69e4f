"""What the API server is asked, for those who wire it and who read it; also where there is none."""

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from agent.config import option
from agent.model.brake import Brake
from agent.model.snapshot import NotRequested, Reading
from agent.sources.source import Sources

ReadBrake: TypeAlias = Callable[[], Reading[Brake]]
"""Reads the brake right before a release."""


class ApiSources(NamedTuple):
    """What the API server is asked."""

    snapshot: Sources
    brake: ReadBrake


def no_brake() -> Reading[Brake]:
    return NotRequested("brake", f"{option('brake')}=off")


NO_API: Final = ApiSources((), no_brake)

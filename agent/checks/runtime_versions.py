"""What a version of a container runtime does. Pure."""

from typing import Final

from agent.model.runtime import CRI_O, ContainerRuntime
from agent.model.versions import Version, is_since

_FIRST_TO_DELETE: Final[tuple[Version, ...]] = ((1, 32, 0),)
"""The first CRI-O with cri-o#8245, which was not backported."""


def deletes_at_start(runtime: ContainerRuntime) -> bool:
    """Return whether it calls CNI DEL, when it starts, for results that no sandbox has any more."""
    return runtime.name == CRI_O and is_since(runtime.version, _FIRST_TO_DELETE) is True

"""What a version of a container runtime does. Pure."""

from collections.abc import Mapping
from typing import Final

from agent.model.runtime import CONTAINERD, CRI_O, ContainerRuntime
from agent.model.versions import Version, is_since

_FIRST_TO_FORGIVE: Final[Mapping[str, tuple[Version, ...]]] = {
    # libcni 1.2.0 (its commit 2d04079) ignores a cached result that it cannot decode.
    CONTAINERD: ((2, 0, 0),),
    CRI_O: ((1, 31, 0),),
}
_FIRST_TO_DELETE: Final[tuple[Version, ...]] = ((1, 32, 0),)
"""The first CRI-O with cri-o#8245, which was not backported."""


def deletes_at_start(runtime: ContainerRuntime) -> bool:
    """Return whether it calls CNI DEL, when it starts, for results that no sandbox has any more."""
    return runtime.name == CRI_O and is_since(runtime.version, _FIRST_TO_DELETE) is True


def forgives_damaged_result(runtime: ContainerRuntime) -> bool | None:
    """Return whether it can tear down a sandbox whose cached result is damaged; None: unknown."""
    return is_since(runtime.version, _FIRST_TO_FORGIVE.get(runtime.name, ()))

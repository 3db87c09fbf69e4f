"""What a version of a container runtime does. Pure."""

from collections.abc import Mapping
from typing import Final

from agent.model.runtime import CONTAINERD, CRI_O, ContainerRuntime
from agent.model.versions import Version, is_since

_FIRST_TO_RECORD: Final[Mapping[str, tuple[Version, ...]]] = {
    # Before containerd#5904, which was backported, it recorded a sandbox after its network setup.
    CONTAINERD: ((1, 5, 15), (1, 6, 9), (1, 7, 0)),
    CRI_O: ((1, 20, 0),),
}
_FIRST_TO_FORGIVE: Final[Mapping[str, tuple[Version, ...]]] = {
    # libcni 1.2.0 (its commit 2d04079) ignores a cached result that it cannot decode.
    CONTAINERD: ((2, 0, 0),),
    CRI_O: ((1, 31, 0),),
}
_FIRST_TO_DELETE: Final[tuple[Version, ...]] = ((1, 32, 0),)
"""The first CRI-O with cri-o#8245, which was not backported."""


def record_before_address(name: str, version: str) -> bool:
    """Return whether a runtime is known to record each sandbox before it requests an address.

    If it does, and reservations are read before its records, a reservation without a record has no
    owner.
    """
    return is_since(version, _FIRST_TO_RECORD.get(name, ())) is True


def deletes_at_start(runtime: ContainerRuntime) -> bool:
    """Return whether it calls CNI DEL, when it starts, for results that no sandbox has any more."""
    return runtime.name == CRI_O and is_since(runtime.version, _FIRST_TO_DELETE) is True


def forgives_damaged_result(runtime: ContainerRuntime) -> bool | None:
    """Return whether it can tear down a sandbox whose cached result is damaged; None: unknown."""
    return is_since(runtime.version, _FIRST_TO_FORGIVE.get(runtime.name, ()))

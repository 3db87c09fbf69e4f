"""How kubelets of different versions admit pods that request devices, and delete them. Pure.

`devicemanager/manager.go` and `HandlePodAdditions` of Kubernetes 1.20 to 1.37, with the patch
releases that have the changes.
"""

from typing import Final

from agent.model.versions import Version, is_since, version_numbers

_CHECKS_HEALTH: Final[tuple[Version, ...]] = ((1, 25, 10), (1, 26, 5), (1, 27, 2), (1, 28, 0))
_SPARES_RUNNING: Final[tuple[Version, ...]] = ((1, 25, 14), (1, 26, 9), (1, 27, 6), (1, 28, 0))
_SKIPS_COMPLETED: Final[tuple[Version, ...]] = (
    (1, 28, 14),
    (1, 29, 9),
    (1, 30, 5),
    (1, 31, 1),
)
_READMITS_COMPLETED: Final[Version] = (1, 22, 0)
_LEAVES_REJECTED: Final[Version] = (1, 27, 0)
_DELETES_REJECTED: Final[Version] = (1, 27, 4)

DRAIN_FIRST: Final = (
    "If the kubelet is older than 1.28 (or 1.27.6), drain the node first, because after a restart "
    "it may reject running pods that use devices."
)
"""What to do before a restart of the kubelet, if nothing shows its version."""


def checks_health(version: str) -> bool | None:
    """Return whether it rejects every pod, in words of its own, without a healthy device.

    Before, it had one message for "none is healthy" and "none is free", and admitted pods that had
    devices already. None: unknown version.
    """
    return is_since(version, _CHECKS_HEALTH)


def rejects_running_pods(version: str) -> bool:
    """Return whether it rejects running pods when it restarts (kubernetes#118559)."""
    return checks_health(version) is True and is_since(version, _SPARES_RUNNING) is False


def requests_init_devices_again(version: str) -> bool:
    """Return whether only completed init containers make it reject a running pod.

    It spares running containers, and a completed one is none (kubernetes#124345).
    """
    return is_since(version, _SPARES_RUNNING) is True


def readmits_completed_pods(version: str) -> bool:
    """Return whether it admits completed pods again when it restarts (kubernetes#117955)."""
    has_begun = is_since(version, (_READMITS_COMPLETED,)) is True
    return has_begun and is_since(version, _SKIPS_COMPLETED) is False


def deletes_only_at_restart(version: str) -> bool | None:
    """Return whether only its restart completes the deletion of a rejected pod.

    That is of one that was deleted before its rejection (kubernetes#118472). None: unknown version.
    """
    numbers = version_numbers(version)
    return None if numbers is None else _LEAVES_REJECTED <= numbers < _DELETES_REJECTED

"""The commands that release addresses, as text names them."""

from collections.abc import Mapping
from typing import Final

ON_NODE: Final = ("nodeleak clean", "nodeleak clean --apply --cleanup-network=auto")
_IN_POD: Final = ("nodeleak clean", "nodeleak clean --apply")
_AS_JOB: Final = ("nodeleak clean", "kubectl nodeleak clean-job {node} --apply --run")


def release_commands(environment: Mapping[str, str], options: str = "") -> tuple[str, ...]:
    """Return those for a node (with `options`), for a pod that may release, or for its operator."""
    if "KUBERNETES_SERVICE_HOST" not in environment:
        return tuple(f"{command}{options}" for command in ON_NODE)
    return _IN_POD if environment.get("NODELEAK_CLEANUP_NETWORK") else _AS_JOB

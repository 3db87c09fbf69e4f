"""The commands that release addresses, where this process runs."""

from collections.abc import Mapping
from typing import Final

ON_NODE: Final = ("nodeleak clean", "nodeleak clean --apply --cleanup-network=auto")
_IN_POD: Final = ("nodeleak clean", "nodeleak clean --apply")
_AS_JOB: Final = ("nodeleak clean", "kubectl nodeleak clean-job {node} --apply --run")
ANY_SHARE: Final = "--max-share=100%"
BY_JOB: Final = (
    " with a Job, from your machine (or deploy/clean-one-node.yaml; this pod only reads)"
)


def release_commands(environment: Mapping[str, str], options: str = "") -> tuple[str, ...]:
    """Return the commands for a node (with `options`), for a pod that may release, or for a Job."""
    if "KUBERNETES_SERVICE_HOST" not in environment:
        return tuple(f"{command}{options}" for command in ON_NODE)
    return _IN_POD if environment.get("NODELEAK_CLEANUP_NETWORK") else _AS_JOB


def with_share(command: str) -> str:
    """Return a command that releases, or shows what it would release, however much looks leaked."""
    return f"{command} -- {ANY_SHARE}" if "clean-job" in command else f"{command} {ANY_SHARE}"

"""The commands that release addresses, as text names them."""

from collections.abc import Mapping
from shlex import quote
from typing import Final, NamedTuple

ANY_SHARE: Final = "--max-share=100%"
BY_JOB: Final = (
    " with a Job, from your machine (or deploy/clean-one-node.yaml; this pod only reads)"
)


class Release(NamedTuple):
    """How leaked addresses are released."""

    preview: str
    """The command that shows what would be released."""
    apply: str
    """The command that releases; `{node}`: the name of the node."""
    by_job: bool = False
    """Whether it creates a Job, from the operator's machine."""

    def with_share(self) -> "Release":
        """Return the commands that preview and release however much looks leaked."""
        apply = f"{self.apply} -- {ANY_SHARE}" if self.by_job else f"{self.apply} {ANY_SHARE}"
        return Release(f"{self.preview} {ANY_SHARE}", apply, self.by_job)

    def apply_on(self, node: str) -> str:
        return self.apply.replace("{node}", quote(node))


ON_NODE: Final = Release("nodeleak clean", "nodeleak clean --apply --cleanup-network=auto")
_IN_POD: Final = Release("nodeleak clean", "nodeleak clean --apply")
_AS_JOB: Final = Release(
    "nodeleak clean", "kubectl nodeleak clean-job {node} --apply --run", by_job=True
)


def release_here(environment: Mapping[str, str], options: str = "") -> Release:
    """Return how to release: on a node (with `options`), in a pod that may, or from outside."""
    if "KUBERNETES_SERVICE_HOST" not in environment:
        return Release(f"{ON_NODE.preview}{options}", f"{ON_NODE.apply}{options}")
    return _IN_POD if environment.get("NODELEAK_CLEANUP_NETWORK") else _AS_JOB

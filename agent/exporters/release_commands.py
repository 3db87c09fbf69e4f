"""The commands that release addresses, as text names them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from shlex import join
from typing import Final

from agent.cleanup.journal import Journal
from agent.cleanup.plan import Batch
from agent.model.release import Limits
from agent.model.settings import AUTO, GRACE, MAX_SHARE, SETTLE
from agent.model.text import count_of

_SHARE: Final = "--max-share"
ANY_SHARE: Final = f"{_SHARE}=100%"
_NETWORK: Final = "--cleanup-network"

_DEFAULTS: Final = Limits(
    networks=frozenset({AUTO}), grace=GRACE, settle=SETTLE, max_share=MAX_SHARE
)
_NO_JOURNAL: Final = Journal()


@dataclass(frozen=True, slots=True)
class Release:
    """How leaked addresses are released from where a report is read."""

    in_pod: bool = False
    """Whether this command runs in a pod."""
    by_job: bool = False
    """Whether it takes a Job, created from the operator's machine: this pod only reads."""
    options: tuple[str, ...] = ()
    """Those of this command that the next one needs too."""
    has_networks: bool = False
    """Whether the environment of the next command names the networks that may be cleaned."""
    limits: Limits = _DEFAULTS
    """Those of the next command."""
    journal: Journal = _NO_JOURNAL
    """Of this node, as far as it is known: what somebody restored, and whether cleanup halted."""
    journal_error: str | None = None
    """Why the next command cannot use the journal, if that is known."""
    probes: bool = True
    """Whether the next command probes each address."""

    def preview(self, node: str, batch: Batch) -> str:
        """Return the command that shows what would be released."""
        options = self._options(batch)
        if not self.by_job:
            return join(["nodeleak", "clean", *options])
        return join(["kubectl", "nodeleak", "clean-job", node, "--run", *_after_dashes(options)])

    def apply(self, node: str, batch: Batch) -> str:
        """Return the command that releases a batch."""
        if self.by_job:
            job = ["kubectl", "nodeleak", "clean-job", node, "--apply", "--run"]
            return join([*job, *_after_dashes(self._options(batch))])

        options = self._options(batch, all_networks=not self.has_networks)
        return join(["nodeleak", "clean", "--apply", *options])

    def only_by_job(self, node: str) -> str:
        """Return what to do instead of a release in this pod."""
        job = self.apply(node or "NODE", Batch(()))
        return (
            f"this pod only reads. To release addresses, run on your machine: {job} (without the "
            "DaemonSet or the plugin: deploy/clean-one-node.yaml)"
        )

    def manifest_options(self, batch: Batch) -> str:
        """Return the value of OPTIONS for deploy/clean-one-node.yaml."""
        return " ".join(self._options(batch, all_networks=True))

    def _options(self, batch: Batch, *, all_networks: bool = False) -> list[str]:
        """Return the options, those that say what may be released first.

        `all_networks`: allow those of the pods if no option names networks.
        """
        first = [word for word in self.options if word.startswith(_NETWORK)]
        share = [word for word in self.options if word.startswith(_SHARE)]
        others = [word for word in self.options if not word.startswith((_NETWORK, _SHARE))]

        if batch.networks:
            networks = ",".join(sorted(self.limits.networks | batch.networks))
            first = [f"{_NETWORK}={networks}"]
        elif all_networks and not first:
            first = [f"{_NETWORK}={AUTO}"]
        if batch.any_share:
            share = [ANY_SHARE]
        names = [f"--ip={','.join(batch.ips)}"] if batch.ips else []
        return [*first, *share, *others, *names]


def _after_dashes(options: Sequence[str]) -> list[str]:
    return ["--", *options] if options else []


def count_addresses(batch: Batch) -> str:
    """Return how many addresses a batch has, and of how many sandboxes if those have several."""
    text = count_of(batch.count, "address", "addresses")
    sandboxes = len(batch.requests)
    if sandboxes == batch.count:
        return text
    return f"{text} of {count_of(sandboxes, 'sandbox', 'sandboxes')}"


def format_wait(wait: timedelta) -> str:
    """Return a wait in minutes, rounded up: the command must not be refused again."""
    return count_of(ceil(wait / timedelta(minutes=1)), "minute", "minutes")


ON_NODE: Final = Release()

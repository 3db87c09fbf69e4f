"""Whether a release is possible here at all, whatever is leaked. It asks what a release asks, and changes nothing.

host-local's locks are not tried: that could create their file, and delay an ADD.
"""

from collections.abc import Callable, Iterator

from agent.cleanup.guard_context import GuardContext
from agent.model.release import BlockedBy, Blocker
from agent.model.setting_values import AUTO
from agent.model.snapshot import Known, NetworkStore
from agent.sources.os_error import describe_os_error


def find_blockers(
    context: GuardContext, check_writable: Callable[[str], None], no_network: str = ""
) -> tuple[Blocker, ...]:
    """`check_writable`: raises OSError if nothing can be removed from a directory.

    `no_network`: why no network may be cleaned; empty if one may be.
    """
    found = [
        Blocker(BlockedBy.HALTED, f"cleanup halted: {context.halted}") if context.halted else None,
        Blocker(BlockedBy.NO_CLEANUP_NETWORK, no_network) if no_network else None,
        *_unwritable(context, check_writable),
        _journal(context),
    ]
    return tuple(filter(None, found))


def _journal(context: GuardContext) -> Blocker | None:
    if context.journal_trouble:
        why = f"{context.journal_trouble}: nothing is released without a journal, which is in --state-dir"
        return Blocker(BlockedBy.JOURNAL_UNWRITABLE, f"cannot use the journal: {why}")
    if not context.journal_room:
        why = "the journal is full: wait until its oldest entry is 24 hours old"
        return Blocker(BlockedBy.JOURNAL_FULL, why)
    return None


def _unwritable(context: GuardContext, check_writable: Callable[[str], None]) -> Iterator[Blocker]:
    stores, failed = list(_stores(context)), dict[str, str]()
    for store in stores:
        try:
            check_writable(store.directory)
        except OSError as error:
            failed[store.network] = f"cannot change {error.filename}: {describe_os_error(error)}"
    everywhere = len(failed) == len(stores)
    for network, why in failed.items():
        yield Blocker(BlockedBy.NETWORK_UNWRITABLE, why, "" if everywhere else network)


def _stores(context: GuardContext) -> Iterator[NetworkStore]:
    """Return the networks with a directory that a release could change, as far as the settings say."""
    limits = context.limits
    for store in context.snapshot.reservations:
        exists = isinstance(store.reading, Known) and not store.absent
        if exists and limits.networks & {AUTO, store.network}:
            yield store

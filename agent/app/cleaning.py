"""Who may release addresses, and who puts them back."""

from collections.abc import Callable
from contextlib import ExitStack

from agent.app import loop
from agent.app.sources import NodeSources, node_name
from agent.checks import engine
from agent.cleanup import restore as restoring
from agent.cleanup.book import Busy, JournalStore
from agent.cleanup.cleaner import ApplyingCleaner, Cleaner, DisabledCleaner, DryRunCleaner
from agent.cleanup.files import NodeFiles
from agent.cleanup.journal import Entry, Journal
from agent.cleanup.release import describe_error
from agent.cleanup.restore import Restoration
from agent.cleanup.session import Budget, CleanupSession
from agent.cleanup.signals import deferred
from agent.config import Config, UsageError, option, variable
from agent.model.release import Cleaning, Limits
from agent.model.snapshot import Unavailable
from agent.sources.error import SourceError
from agent.sources.recheck import NodeRecheck


def cleaner(
    config: Config,
    mode: str,
    by: str,
    recheck: NodeRecheck,
    limits: Limits,
    budget: Budget,
    alive: Callable[[], None] = lambda: None,
) -> Cleaner:
    """Return the cleaner of a mode: `off`, `dry-run` or `auto`. `by`: the name in the journal."""
    journal_store = JournalStore(config.state_dir)
    judge = CleanupSession(limits, budget, journal_store, by)
    match mode:
        case "off":
            return DisabledCleaner()
        case "dry-run":
            return DryRunCleaner(judge)
        case _:
            grace = config.lock_timeout.total_seconds()
            return ApplyingCleaner(judge, recheck, lambda: node_files(config), journal_store, loop.wall, grace, alive)


def limits(config: Config, only: frozenset[str] | None = None) -> Limits:
    """`only`: the addresses that were asked for by name."""
    return Limits(
        networks=frozenset(config.cleanup_network),
        grace=config.grace,
        settle=config.settle,
        max_share=config.max_share,
        only=only,
    )


def node_files(config: Config) -> NodeFiles:
    return NodeFiles(
        config.cni_networks_dir, config.cni_cache_dir, config.lock_timeout.total_seconds(), loop.clock
    )  # fmt: skip


def clean_once(
    config: Config,
    sources: NodeSources,
    until_told: ExitStack,
    *,
    only: frozenset[str] | None,
    most: int | None,
    mode: str,
) -> Cleaning:
    """Look twice, judge, and release what may be released in this mode (`dry-run` or `auto`).

    `until_told`: from the first release until it is closed, an ending waits.
    """
    budget = Budget(per_sync=None if most is None else ("--max", most))
    one = cleaner(config, mode, "clean", sources.recheck, limits(config, only), budget)
    one.before_snapshot(loop.wall())
    snapshots = loop.take_snapshots(sources.snapshot, node_name(config), config.grace, config.confirm_after)
    until_told.enter_context(deferred())
    cleaning = one.after_snapshot(
        snapshots, engine.replay(snapshots, grace=config.grace, confirm_after=config.confirm_after)
    )
    if cleaning is None:
        raise ValueError(mode)
    return cleaning


def read_journal(config: Config) -> Journal:
    try:
        return JournalStore(config.state_dir).read()
    except SourceError as error:
        raise UsageError(f"{option('state_dir')} ({variable('state_dir')}): {error}") from error


def releases(config: Config) -> tuple[tuple[Entry, ...] | Unavailable, tuple[str, ...]]:
    """Return what a timeline tells of the journal, which may be silent as any other record may, and its damage."""
    try:
        journal = JournalStore(config.state_dir).read()
    except SourceError as error:
        return Unavailable("journal", str(error)), ()
    return journal.entries, journal.damage


def restore(config: Config, entry: Entry) -> Restoration:
    """Put an entry back, as the only cleaner of the node."""
    journal_store = JournalStore(config.state_dir)
    try:
        with journal_store.exclusive(config.lock_timeout.total_seconds()), deferred():
            _check_last(journal_store.read(), entry)
            return restoring.restore(entry, node_files(config), journal_store, loop.wall())
    except (Busy, OSError, restoring.RestoreError, SourceError) as error:
        return Restoration(entry, done=False, why=describe_error(error))


def try_restore(config: Config, entry: Entry) -> Restoration:
    """Say what restoring would do, and touch nothing."""
    try:
        _check_last(read_journal(config), entry)
        restoring.missing_of(entry, node_files(config))
    except (restoring.RestoreError, OSError) as error:
        return Restoration(entry, done=False, why=describe_error(error))
    return Restoration(entry, done=True)


def _check_last(journal: Journal, entry: Entry) -> None:
    if later := journal.released_again(entry):
        raise restoring.RestoreError(f"it was restored, and released again since: restore {later.name}")

"""Wiring of cleanup: who may release addresses, and who restores them."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from agent.app import loop
from agent.app.sources import NodeSources, displayed_name, mounted_path, names_data_dir
from agent.checks import engine
from agent.cleanup import status
from agent.cleanup.journal import Entry, Journal
from agent.cleanup.journal_store import Busy, JournalStore
from agent.cleanup.recheck import Recheck
from agent.cleanup.restore import Restoration, restore
from agent.cleanup.run import Cleaner
from agent.cleanup.signals import held_signals
from agent.cleanup.unlink import NodeFiles, describe_error
from agent.config import Config, UsageError, option, variable
from agent.model.release import BlockedBy, Blocker, Cleaning, Limits
from agent.model.remedy import Remedy
from agent.model.report import Report
from agent.model.settings import AUTO
from agent.model.snapshot import Unavailable
from agent.sources.host.reservations import describe_networks
from agent.sources.source_error import SourceError, describe_os_error


def cleaner(
    config: Config,
    actor: str,
    recheck: Recheck,
    limits: Limits,
    *,
    dry_run: bool,
    heartbeat: Callable[[], None] = lambda: None,
) -> Cleaner:
    """`actor`: who releases, for the journal. `heartbeat`: see Cleaner."""
    return Cleaner(
        limits=limits,
        actor=actor,
        store=JournalStore(config.state_dir),
        recheck=recheck,
        files=node_files(config),
        now=loop.wall,
        uptime=loop.uptime,
        dry_run=dry_run,
        heartbeat=heartbeat,
        no_network=partial(_no_network, config),
    )


def limits(config: Config, only: frozenset[str] | None = None, *, dry_run: bool) -> Limits:
    """Return what may be released.

    `only`: the addresses requested by name. A dry run may show any network that the node's pods
    use. Raises UsageError where addresses would be released, and no network is named.
    """
    if not dry_run and (blocker := _no_network(config)):
        raise UsageError(blocker.why)
    return Limits(
        networks=frozenset(config.cleanup_network or {AUTO}),
        grace=config.grace,
        settle=config.settle,
        max_share=config.max_share,
        only=only,
        release_host_ports=config.release_host_ports == "on",
    )


def _no_network(config: Config) -> Blocker | None:
    """Return why no network may be cleaned, if none may be."""
    if config.cleanup_network:
        return None
    try:
        networks = describe_networks(config.cni_networks_dir) or "none"
    except OSError as error:
        networks = f"unknown: {describe_os_error(error)}"
    setting = f"{option('cleanup_network')} ({variable('cleanup_network')})"
    remedy = Remedy(
        "name the networks whose leaked addresses may be released, or auto for those that pods "
        f"of this node use (networks in {config.cni_networks_dir}: {networks})"
    )
    return Blocker(BlockedBy.NO_CLEANUP_NETWORK, f"{setting} is not set", remedy)


def node_files(config: Config) -> NodeFiles:
    return NodeFiles(
        networks_dir=config.cni_networks_dir,
        cache_dirs=tuple(config.cni_cache_dir),
        lock_timeout=config.lock_timeout.total_seconds(),
        clock=loop.clock,
        mounted=partial(mounted_path, run_dir=config.run_dir),
        names_data_dir=partial(names_data_dir, config),
    )


def clean_once(
    config: Config,
    sources: NodeSources,
    until_reported: ExitStack,
    *,
    only: frozenset[str] | None,
    limit: int | None,
    dry_run: bool,
) -> Cleaning:
    """Take two snapshots, and release what passes every guard; a dry run only reports it.

    `until_reported`: from the first release until it is closed, signals are held back.
    """
    per_sync = None if limit is None else ("--max", limit)
    allowed = replace(limits(config, only, dry_run=dry_run), per_sync=per_sync)
    session = cleaner(config, "clean", sources.recheck, allowed, dry_run=dry_run)
    session.before_snapshot()
    snapshots = loop.take_snapshots(
        sources.snapshot, displayed_name(config), config.grace, config.confirm_after
    )
    until_reported.enter_context(held_signals())
    report = engine.replay(snapshots, grace=config.grace, confirm_after=config.confirm_after)
    return session.after_snapshot(snapshots, report)


def cleanup_status(
    config: Config, report: Report, store: JournalStore | None = None
) -> dict[str, object]:
    """Return whether anything could be released from here now.

    `store`: one that has parsed its entries before.
    """
    return status.cleanup_status(
        report,
        limits(config, dry_run=True),
        mode=config.cleanup,
        store=store or JournalStore(config.state_dir),
        files=node_files(config),
        no_network=partial(_no_network, config),
    )


def releases(config: Config) -> tuple[tuple[Entry, ...] | Unavailable, tuple[str, ...]]:
    """Return the entries of the journal, or why it cannot be read, and its damage."""
    return status.read_releases(JournalStore(config.state_dir))


def read_journal(config: Config) -> Journal:
    try:
        return JournalStore(config.state_dir).read()
    except SourceError as error:
        raise _state_dir_error(error) from error


def restore_entry(config: Config, entry: Entry, journal: Journal, *, dry_run: bool) -> Restoration:
    """Recover what is unfinished, and restore an entry. A dry run only checks it."""
    store = JournalStore(config.state_dir)
    return restore(entry, journal, node_files(config), store, loop.wall, dry_run=dry_run)


def resume(config: Config) -> tuple[Entry, ...]:
    """Let cleanup go on. Return the releases that had halted it. Raises UsageError."""
    store = JournalStore(config.state_dir)
    try:
        return store.resume(loop.wall, config.lock_timeout.total_seconds())
    except (Busy, OSError, SourceError) as error:
        raise _state_dir_error(error) from error


def _state_dir_error(error: Exception) -> UsageError:
    return UsageError(f"{option('state_dir')} ({variable('state_dir')}): {describe_error(error)}")

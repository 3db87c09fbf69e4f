"""Wiring of cleanup: who may release addresses, and who restores them."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from agent.app import loop
from agent.app.sources import NodeSources, displayed_name, mounted_path, names_data_dir
from agent.checks import engine
from agent.cleanup import restore as restoring
from agent.cleanup.guards import GuardContext, RuntimeHistory
from agent.cleanup.journal import Busy, Entry, Journal, JournalStore
from agent.cleanup.recheck import Recheck
from agent.cleanup.restore import Restoration
from agent.cleanup.run import Cleaner
from agent.cleanup.signals import held_signals
from agent.cleanup.summary import find_blockers
from agent.cleanup.unlink import NodeFiles, describe_error
from agent.config import Config, UsageError, option, variable
from agent.model.release import BlockedBy, Blocker, Cleaning, Limits, Remedy
from agent.model.report import Report
from agent.model.runtime import AUTO
from agent.model.snapshot import Unavailable
from agent.sources.host.reservations import describe_networks
from agent.sources.source_error import SourceError, describe_os_error


def cleaner(
    config: Config,
    actor: str,
    recheck: Recheck,
    limits: Limits,
    *,
    applied: bool,
    heartbeat: Callable[[], None],
) -> Cleaner:
    """`actor`: who releases, for the journal. `applied`: False for a dry run. `heartbeat`: see Cleaner."""
    return Cleaner(
        limits=limits,
        actor=actor,
        journal=JournalStore(config.state_dir),
        recheck=recheck,
        files=node_files(config),
        now=loop.wall,
        uptime=loop.uptime,
        applied=applied,
        heartbeat=heartbeat,
        no_network=partial(_no_network, config),
    )


def limits(config: Config, only: frozenset[str] | None = None, *, applied: bool) -> Limits:
    """Raises UsageError where addresses would be released, and no network is named."""
    # `only`: the addresses requested by name. A dry run may show any network that the node's pods use.
    if applied and (blocker := _no_network(config)):
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
    """Return why no network may be cleaned; None if one may be."""
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
    mounted = partial(mounted_path, run_dir=config.run_dir)
    lock_timeout = config.lock_timeout.total_seconds()
    return NodeFiles(
        config.cni_networks_dir,
        tuple(config.cni_cache_dir),
        lock_timeout,
        loop.clock,
        mounted,
        names_data_dir=partial(names_data_dir, config),
    )


def clean_once(
    config: Config,
    sources: NodeSources,
    until_reported: ExitStack,
    *,
    only: frozenset[str] | None,
    limit: int | None,
    apply: bool,
) -> Cleaning:
    """Take two snapshots, and release what passes every guard; a dry run only reports it."""
    # `until_reported`: from the first release until it is closed, signals are held back.
    limited = replace(
        limits(config, only, applied=apply), per_sync=None if limit is None else ("--max", limit)
    )
    session = cleaner(
        config, "clean", sources.recheck, limited, applied=apply, heartbeat=lambda: None
    )
    session.before_snapshot()
    snapshots = loop.take_snapshots(
        sources.snapshot, displayed_name(config), config.grace, config.confirm_after
    )
    until_reported.enter_context(held_signals())
    report = engine.replay(snapshots, grace=config.grace, confirm_after=config.confirm_after)
    return session.after_snapshot(snapshots, report)


def cleanup_status(
    config: Config, report: Report, journal: JournalStore | None = None
) -> dict[str, object]:
    """Return whether anything could be released from here now.

    It promises no release: each is checked on its own. `journal`: a store that has parsed its
    entries before.
    """
    journal = journal or JournalStore(config.state_dir)
    context = _context(config, report, journal)
    blockers = find_blockers(context, node_files(config), journal, partial(_no_network, config))
    obstacles = [blocker.why for blocker in blockers if not blocker.network]
    if missing := dict.fromkeys(
        source.source for source in context.snapshot.unavailable_about_addresses()
    ):
        obstacles.append(f"unavailable sources: {', '.join(missing)}")
    unknown = [why] if (why := _unknown_networks(config, context)) else []
    return {
        "mode": config.cleanup,
        "networks": sorted(context.networks) if config.cleanup_network else [],
        "release_possible": None if unknown and not obstacles else not obstacles,
        "why_not": obstacles or unknown,
    }


def _context(config: Config, report: Report, journal: JournalStore) -> GuardContext:
    trouble, halted = journal.trouble(), report.cleaning.halted if report.cleaning else ""
    try:
        halted = next((entry.reappearance for entry in journal.read().halted()), halted)
    except SourceError as error:
        trouble = str(error)
    history, limited = RuntimeHistory(), limits(config, applied=False)
    return GuardContext(
        report=report,
        runtime_history=history,
        limits=limited,
        halted=halted,
        journal_trouble=trouble,
    )


def _unknown_networks(config: Config, context: GuardContext) -> str:
    """Return why it is not known what would be released from; empty if it is."""
    allowed = context.networks
    if not allowed:
        return "no network is known that the pods of this node use"
    existing = {store.network for store in context.snapshot.reservations if not store.absent}
    if AUTO in config.cleanup_network or allowed & existing:
        return ""
    return f"{option('cleanup_network')}: {config.cni_networks_dir} has no network {' or '.join(sorted(allowed))}"


def read_journal(config: Config) -> Journal:
    try:
        return JournalStore(config.state_dir).read()
    except SourceError as error:
        raise UsageError(f"{option('state_dir')} ({variable('state_dir')}): {error}") from error


def releases(
    config: Config, store: JournalStore | None = None
) -> tuple[tuple[Entry, ...] | Unavailable, tuple[str, ...]]:
    """Return the entries of the journal for the timeline, or why it cannot be read, and its damage.

    `store`: one that has parsed its entries before.
    """
    try:
        journal = (store or JournalStore(config.state_dir)).read()
    except SourceError as error:
        return Unavailable("journal", str(error)), ()
    return journal.entries, journal.damage


def restore_entry(config: Config, entry: Entry, journal: Journal, *, apply: bool) -> Restoration:
    """Recover what is unfinished, and restore an entry, under the cleaner's lock. Without `apply`, only check it."""
    files, store, why = node_files(config), JournalStore(config.state_dir), ""
    try:
        if apply:
            with store.exclusive(files.lock_timeout), held_signals():
                why = restoring.recover_and_restore(entry.name, files, store, loop.wall())
        else:
            restoring.require_restorable(entry, journal, files)
    except (Busy, OSError, restoring.RestoreError, SourceError) as error:
        return Restoration(entry, done=False, why=describe_error(error))
    return Restoration(entry, done=True, why=why)


def resume(config: Config) -> tuple[Entry, ...]:
    """Resume cleanup under the cleaner's lock. Return the releases that had halted it. Raises UsageError."""
    journal_store = JournalStore(config.state_dir)
    try:
        with journal_store.exclusive(config.lock_timeout.total_seconds()):
            halted = journal_store.read().halted()
            for entry in halted:
                journal_store.update(replace(entry, resumed=loop.wall()), loop.wall())
    except (Busy, OSError, SourceError) as error:
        raise UsageError(
            f"{option('state_dir')} ({variable('state_dir')}): {describe_error(error)}"
        ) from error
    return halted

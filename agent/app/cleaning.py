"""Wiring of cleanup: who may release addresses, and who restores them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

from agent.app import loop
from agent.app.sources import NodeSources, displayed_name
from agent.checks import engine
from agent.cleanup import restore as restoring
from agent.cleanup.blockers import find_blockers
from agent.cleanup.cleaner import ApplyingCleaner, Cleaner, DisabledCleaner, DryRunCleaner
from agent.cleanup.files import NodeFiles
from agent.cleanup.guard_context import allowed_networks
from agent.cleanup.journal import Entry, Journal
from agent.cleanup.journal_store import Busy, JournalStore
from agent.cleanup.release import describe_error
from agent.cleanup.restore import Restoration
from agent.cleanup.session import Budget, CleanupSession
from agent.cleanup.signals import deferred
from agent.config import Config, UsageError, option, variable
from agent.model.release import Cleaning, CleanupStatus, Limits
from agent.model.report import Report
from agent.model.setting_values import AUTO
from agent.model.snapshot import Unavailable
from agent.sources.deadline import Within, ask
from agent.sources.host.reservations import network_names
from agent.sources.recheck import NodeRecheck
from agent.sources.source_error import SourceError


def cleaner(
    config: Config,
    mode: str,
    by: str,
    recheck: NodeRecheck,
    limits: Limits,
    budget: Budget,
    beat: Callable[[], None] = lambda: None,
    within: Within = ask,
) -> Cleaner:
    """`mode`: `off`, `dry-run` or `auto`. `by`: who releases, for the journal. `beat`: see ApplyingCleaner.

    `within`: bounds reading the journal.
    """
    journal_store = JournalStore(config.state_dir, within)
    session = CleanupSession(limits, budget, journal_store, by)
    match mode:
        case "off":
            return DisabledCleaner()
        case "dry-run":
            file_ops, no_network = node_files(config), _no_network(config)
            return DryRunCleaner(session, lambda known: find_blockers(known, file_ops.check_writable, no_network))
        case _:
            lock_timeout = config.lock_timeout.total_seconds()
            return ApplyingCleaner(
                session, recheck, lambda: node_files(config), journal_store, loop.wall, lock_timeout, beat
            )


def limits(config: Config, mode: str, only: frozenset[str] | None = None) -> Limits:
    """`only`: the addresses requested by name. A dry run may show any network that the node's pods use.

    Raises UsageError where addresses would be released, and no network is named.
    """
    if mode == "auto" and (why := _no_network(config)):
        raise UsageError(why)
    return Limits(
        networks=frozenset(config.cleanup_network or {AUTO}),
        networks_dir=str(config.cni_networks_dir),
        grace=config.grace,
        settle=config.settle,
        max_share=config.max_share,
        only=only,
    )


def _no_network(config: Config) -> str:
    """Return why no network may be cleaned; empty if one may be."""
    if config.cleanup_network:
        return ""
    name = f"{option('cleanup_network')} ({variable('cleanup_network')})"
    found = ", ".join(network_names(config.cni_networks_dir)) or "none"
    return (
        f"{name} is not set: name the networks whose leaked addresses may be released, or auto for those that pods "
        f"of this node use (networks in {config.cni_networks_dir}: {found})"
    )


def node_files(config: Config) -> NodeFiles:
    return NodeFiles(config.cni_networks_dir, config.cni_cache_dir, config.lock_timeout.total_seconds(), loop.clock)


def clean_once(
    config: Config,
    sources: NodeSources,
    until_reported: ExitStack,
    *,
    only: frozenset[str] | None,
    most: int | None,
    mode: str,
) -> Cleaning:
    """Take two snapshots and, in mode `auto`, release what passes every guard; `dry-run` only reports it.

    `until_reported`: from the first release until it is closed, signals are held back.
    """
    budget = Budget(per_sync=None if most is None else ("--max", most))
    once = cleaner(config, mode, "clean", sources.recheck, limits(config, mode, only), budget)
    once.before_snapshot(loop.wall())
    snapshots = loop.take_snapshots(sources.snapshot, displayed_name(config), config.grace, config.confirm_after)
    until_reported.enter_context(deferred())
    cleaning = once.after_snapshot(
        snapshots, engine.replay(snapshots, grace=config.grace, confirm_after=config.confirm_after)
    )
    if cleaning is None:
        raise ValueError(mode)
    return cleaning


def cleanup_status(config: Config, report: Report, within: Within = ask) -> CleanupStatus:
    """Return whether anything could be released from here now. It promises no release: each is checked on its own.

    `within`: bounds reading the journal.
    """
    checked = sorted(allowed_networks(limits(config, "dry-run").networks, report.assessment.snapshot))
    obstacles = tuple(_obstacles(config, report, checked, JournalStore(config.state_dir, within)))
    unknown = () if checked else ("no network is known that the pods of this node use",)
    return CleanupStatus(
        mode=config.cleanup,
        networks=tuple(checked) if config.cleanup_network else (),
        release_possible=False if obstacles else True if checked else None,
        why_not=obstacles or unknown,
    )


def _obstacles(config: Config, report: Report, networks: Sequence[str], journal_store: JournalStore) -> Iterator[str]:
    """Yield what keeps every address from being released; what protects a single one is not here."""
    snapshot = report.assessment.snapshot
    if report.cleaning is not None and report.cleaning.halted:
        yield f"cleanup halted: {report.cleaning.halted}"
    if why := _no_network(config):
        yield why
    if missing := dict.fromkeys(one.source for one in snapshot.unavailable_about_addresses()):
        yield f"unavailable sources: {', '.join(missing)}"
    yield from _unwritable(config, networks)
    if why := journal_store.trouble():
        yield f"the journal cannot be written: {why}"
    elif not journal_store.room(snapshot.taken_at):
        yield "the journal is full until its oldest file is 24 hours old"


def _unwritable(config: Config, networks: Sequence[str]) -> Sequence[str]:
    """Return why no network can be changed; nothing if one can."""
    files, failed = node_files(config), list[str]()
    for network in networks:
        try:
            files.check_writable(network)
        except FileNotFoundError:
            continue  # nothing is reserved there
        except OSError as error:
            failed.append(describe_error(error))
        else:
            return ()
    return failed


def read_journal(config: Config) -> Journal:
    try:
        return JournalStore(config.state_dir).read()
    except SourceError as error:
        raise UsageError(f"{option('state_dir')} ({variable('state_dir')}): {error}") from error


def releases(config: Config, within: Within = ask) -> tuple[tuple[Entry, ...] | Unavailable, tuple[str, ...]]:
    """Return the entries of the journal for the timeline, or why it cannot be read, and its damaged lines."""
    try:
        journal = JournalStore(config.state_dir, within).read()
    except SourceError as error:
        return Unavailable("journal", str(error)), ()
    return journal.entries, journal.damage


def restore_entry(config: Config, entry: Entry) -> Restoration:
    """Recover what is unfinished, then restore an entry, under the cleaner's lock."""
    journal_store = JournalStore(config.state_dir)
    try:
        with journal_store.exclusive(config.lock_timeout.total_seconds()), deferred():
            return restoring.recover_and_restore(entry.name, node_files(config), journal_store, loop.wall())
    except (Busy, OSError, restoring.RestoreError, SourceError) as error:
        return Restoration(entry, done=False, why=describe_error(error))


def try_restore(config: Config, entry: Entry) -> Restoration:
    """Return what a restoration would do, and change nothing."""
    try:
        restoring.check_last(read_journal(config), entry)
        restoring.missing_of(entry, node_files(config))
    except (restoring.RestoreError, OSError) as error:
        return Restoration(entry, done=False, why=describe_error(error))
    return Restoration(entry, done=True)

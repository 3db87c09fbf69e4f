"""Wiring of cleanup: who may release addresses, and who restores them."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from posixpath import normpath

from agent.app import loop
from agent.app.sources import NodeSources, Readers, displayed_name, mounted_path
from agent.checks import engine
from agent.cleanup import probe, status
from agent.cleanup.journal import Entry, Journal
from agent.cleanup.journal_store import Busy, JournalStore
from agent.cleanup.recheck import Recheck
from agent.cleanup.restore import Restoration, restore
from agent.cleanup.run import Cleaner
from agent.cleanup.signals import held_signals
from agent.cleanup.unlink import NodeFiles, describe_error
from agent.config import Config, UsageError, both_names, option
from agent.model.release import BlockedBy, Blocker, Cleaning, Limits, ProbeResult
from agent.model.remedy import Remedy
from agent.model.report import Report
from agent.model.settings import AUTO
from agent.model.snapshot import Reservation, ReservationKey, Unavailable
from agent.sources.host.reservations import describe_networks
from agent.sources.source_error import SourceError, describe_os_error


def cleaner_of_daemon(
    config: Config, sources: NodeSources, heartbeat: Callable[[], None]
) -> Cleaner | None:
    """Return what cleans in each sync; None: nothing does. Only `auto` releases.

    Raises UsageError.
    """
    if config.cleanup == "off":
        return None

    dry_run = config.cleanup != "auto"
    allowed = replace(
        limits(config, dry_run=dry_run),
        per_sync=(option("max_per_sync"), config.max_per_sync),
        per_hour=(option("max_per_hour"), config.max_per_hour),
        unattended=True,
        node_label=config.cleanup_node_label,
    )
    return _cleaner(config, "run", sources, allowed, dry_run=dry_run, heartbeat=heartbeat)


def _cleaner(
    config: Config,
    actor: str,
    sources: NodeSources,
    allowed: Limits,
    *,
    dry_run: bool,
    heartbeat: Callable[[], None] = lambda: None,
) -> Cleaner:
    """Return what releases. `actor`: who does, for the journal. `heartbeat`: see Cleaner."""
    return Cleaner(
        limits=allowed,
        actor=actor,
        store=JournalStore(config.state_dir),
        recheck=recheck_of(config, sources.readers),
        read_brake=sources.brake,
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

    remedy = Remedy(
        "name the networks whose leaked addresses may be released, or auto for those that pods "
        f"of this node use (networks in {config.cni_networks_dir}: {networks})"
    )
    problem = f"{both_names('cleanup_network')} is not set"
    return Blocker(BlockedBy.NO_CLEANUP_NETWORK, problem, remedy)


def recheck_of(config: Config, readers: Readers) -> Recheck:
    """Return what asks for the owners of one sandbox right before its release."""
    runtimes = readers.runtimes
    return Recheck(
        has_container=lambda container_id: readers.in_time(lambda: runtimes.has(container_id)),
        has_checkpoint=lambda container_id: (
            readers.checkpoints.has(container_id) if runtimes.asks_docker else None
        ),
        results=readers.results,
        proc=config.proc,
        processes=readers.processes,
        probe_addresses=partial(_probe, config, readers),
    )


def _probe(
    config: Config, readers: Readers, reservations: Sequence[Reservation], send: bool
) -> Mapping[ReservationKey, ProbeResult]:
    """Return what `probe.probe` tells of each address. Raises SourceError."""
    if config.probe == "off":
        not_probed = ProbeResult("not probed: --probe=off", conclusive=False)
        return {reservation.key: not_probed for reservation in reservations}

    # What may make the interfaces of a network: its cached results say so, the first plugin of its
    # chain, and any that isolates.
    plugins: dict[str, set[str]] = {reservation.network: set() for reservation in reservations}
    for result in readers.results.read():
        if result.plugin and result.network in plugins:
            plugins[result.network].add(result.plugin)
    for network in readers.networks.last:
        if network.name in plugins:
            isolating = probe.ISOLATING.intersection(network.plugins)
            plugins[network.name].update(network.plugins[:1], isolating)

    return probe.probe(reservations, plugins, loop.clock, config.proc, send=send)


def node_files(config: Config) -> NodeFiles:
    """Return what removes and restores the files of host-local and of libcni."""
    return NodeFiles(
        networks_dir=config.cni_networks_dir,
        cache_dirs=tuple(config.cni_cache_dir),
        lock_timeout=config.lock_timeout.total_seconds(),
        clock=loop.clock,
        mounted=partial(mounted_path, run_dir=config.run_dir),
        names_data_dir=partial(_names_data_dir, config),
    )


def _names_data_dir(config: Config, data_dir: str) -> bool:
    """Return whether libcni's cache or the CNI configuration names a dataDir now.

    Only entries of the journal that have one ask for it. Raises SourceError.
    """
    readers = Readers.of_node(config)
    with suppress(SourceError):  # the configuration may name it
        cached = readers.results.read()
        named = {result.data_dir for result in cached if result.data_dir}
        if data_dir in map(normpath, named):
            return True

    networks = readers.in_time(readers.runtimes.networks)
    later = networks[0].later if networks else ()
    named = {network.data_dir for network in (*networks, *later) if network.data_dir}
    return data_dir in map(normpath, named)


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
    cleaner = _cleaner(config, "clean", sources, allowed, dry_run=dry_run)

    cleaner.before_snapshot()
    snapshots = loop.take_snapshots(
        sources.snapshot, displayed_name(config), config.grace, config.confirm_after
    )

    until_reported.enter_context(held_signals())
    report = engine.replay(snapshots, grace=config.grace, confirm_after=config.confirm_after)
    return cleaner.after_snapshot(snapshots, report)


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
    """Return the journal of this node; raises UsageError if it cannot be read."""
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
    return UsageError(f"{both_names('state_dir')}: {describe_error(error)}")

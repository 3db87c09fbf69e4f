"""Whether anything could be released from here now, and what was released. Changes nothing."""

from agent.cleanup.guards import GuardContext, RuntimeHistory
from agent.cleanup.journal import Entry, Journal
from agent.cleanup.journal_store import JournalStore
from agent.cleanup.summary import NoNetwork, find_blockers
from agent.cleanup.unlink import NodeFiles
from agent.model.brake import Brake
from agent.model.release import BlockedBy, Limits
from agent.model.report import Report
from agent.model.settings import AUTO
from agent.model.snapshot import NotRequested, Reading, Unavailable
from agent.sources.source_error import SourceError


def cleanup_status(
    report: Report,
    limits: Limits,
    *,
    mode: str,
    store: JournalStore,
    files: NodeFiles,
    no_network: NoNetwork,
) -> dict[str, object]:
    """Return the part `cleanup` of the status document. It promises no release: each has guards.

    `mode`: the setting `--cleanup`.
    """
    context = _context(report, limits, store)
    halted = context.halted
    if not halted and report.cleaning:
        # Only the daemon's cleaner knows it, as long as it cannot write it.
        halted = report.cleaning.halted

    blockers = [*find_blockers(context, files, store, no_network, halted=halted)]
    obstacles = [blocker.why for blocker in blockers if not blocker.network]
    unavailable = context.snapshot.unavailable_about_addresses()
    if unavailable:
        names = dict.fromkeys(source.source for source in unavailable)
        obstacles.append(f"unavailable sources: {', '.join(names)}")

    may_clean = all(blocker.by is not BlockedBy.NO_CLEANUP_NETWORK for blocker in blockers)
    networks = sorted(context.networks) if may_clean else []

    is_possible: bool | None = not obstacles
    if is_possible and (unknown := _why_unknown(context, files)):
        is_possible = None
        obstacles.append(unknown)

    return {
        "mode": mode,
        "networks": networks,
        "release_possible": is_possible,
        "why_not": obstacles,
        "brake": _brake(context.snapshot.brake),
    }


def _brake(brake: Reading[Brake]) -> str | None:
    """Return whether the brake is `on`, `off` or `unknown`; None: no setting names one."""
    if isinstance(brake, NotRequested):
        return None
    if isinstance(brake, Unavailable):
        return "unknown"
    return "on" if brake.value.on else "off"


def _context(report: Report, limits: Limits, store: JournalStore) -> GuardContext:
    """Return what `find_blockers` needs; no guard is asked with it."""
    error = store.why_unwritable()
    journal = Journal()
    try:
        journal = store.read()
    except SourceError as unreadable:
        error = str(unreadable)
    return GuardContext(
        report=report,
        runtime_history=RuntimeHistory(),
        limits=limits,
        actor="",  # no guard is asked
        journal=journal,
        journal_error=error,
    )


def _why_unknown(context: GuardContext, files: NodeFiles) -> str | None:
    """Return why it is not known what would be released from, if it is not."""
    allowed = context.networks
    if not allowed:
        return "no network is known that the pods of this node use"

    existing = {store.network for store in context.snapshot.reservations if not store.absent}
    if AUTO in context.limits.networks or allowed & existing:
        return None
    names = " or ".join(sorted(allowed))
    return f"--cleanup-network: {files.networks_dir} has no network {names}"


def read_releases(store: JournalStore) -> tuple[tuple[Entry, ...] | Unavailable, tuple[str, ...]]:
    """Return the entries of the journal, or why it cannot be read, and its damage."""
    try:
        journal = store.read()
    except SourceError as error:
        return Unavailable("journal", str(error)), ()
    return journal.entries, journal.damage

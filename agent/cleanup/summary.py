"""Builds the report of a cleanup: outcomes, blockers, warnings. Decides nothing."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from agent.checks.addresses import failing_plugin, hanging_plugin, host_ports
from agent.cleanup.guards import GuardContext, release_requests
from agent.cleanup.journal_store import JournalStore
from agent.cleanup.unlink import NodeFiles, ReadOnlyMount
from agent.model.assessment import Assessment
from agent.model.ranges import free
from agent.model.release import (
    BlockedBy,
    Blocker,
    Cleaning,
    NotReleasable,
    Outcome,
    Verdict,
)
from agent.model.remedy import Remedy
from agent.model.report import Report
from agent.model.runtime import DOCKER
from agent.model.settings import AUTO
from agent.model.snapshot import Known, NotRequested, Reservation, ReservationKey, Unavailable
from agent.sources.source_error import describe_os_error

NoNetwork: TypeAlias = Callable[[], Blocker | None]
"""Returns why no network may be cleaned, if none may be."""


def summarize(
    context: GuardContext,
    outcomes: Sequence[Outcome],
    blockers: tuple[Blocker, ...],
    *,
    dry_run: bool,
) -> Cleaning:
    """Return the report of a cleanup. `blockers`: why nothing, or not all, can be released."""
    snapshot = context.snapshot
    report = context.report

    released = _released(outcomes)
    refusals = (refusal for outcome in outcomes for refusal in outcome.refusals)
    bugs = {refusal.bug.name: refusal.bug for refusal in refusals if refusal.bug}

    warnings = [f"journal: {damage}" for damage in context.journal.damage]
    if not context.limits.unattended:
        warnings += _warnings_about_release(report, released)

    return Cleaning(
        node=snapshot.node_name,
        taken_at=snapshot.taken_at,
        dry_run=dry_run,
        outcomes=tuple(outcomes),
        not_releasable=tuple(_not_releasable(report.assessment, context.limits.only)),
        unavailable=snapshot.unavailable_about_addresses(),
        halted=context.halted,
        blockers=blockers,
        free_before={network.name: network.free for network in report.networks},
        free_after=_free_after(report, released),
        causes=report.leak_causes,
        docker=DOCKER in report.assessment.runtime.names,
        bugs=tuple(bugs.values()),
        warnings=tuple(warnings),
    )


def find_blockers(
    context: GuardContext,
    files: NodeFiles,
    store: JournalStore,
    no_network: NoNetwork,
    *,
    halted: str | None,
) -> Iterator[Blocker]:
    """Yield why nothing can be released here, or in one network, whatever is leaked.

    Nothing is changed. host-local's locks are not tried: that could create their file, and delay an
    ADD. `halted`: why cleanup has halted, if it has.
    """
    if halted:
        yield Blocker(BlockedBy.HALTED, f"cleanup halted: {halted}")

    brake = context.snapshot.brake
    if isinstance(brake, Known) and brake.value.on:
        remedy = Remedy("'kubectl nodeleak brake off' ends it, for all nodes")
        yield Blocker(BlockedBy.BRAKE_ON, brake.value.description, remedy)

    if blocker := no_network():
        yield blocker
    yield from unwritable_networks(context, files)

    if context.journal_error:
        problem = (
            f"cannot use the journal: {context.journal_error}: "
            "nothing is released without a journal, which is in --state-dir"
        )
        yield Blocker(BlockedBy.JOURNAL_UNWRITABLE, problem)
    elif full := store.why_full(context.snapshot.taken_at):
        yield Blocker(BlockedBy.JOURNAL_FULL, full)


def unwritable_networks(context: GuardContext, files: NodeFiles) -> Iterator[Blocker]:
    """Yield one blocker for each network, or one without a network's name if it is about all."""
    allowed = [
        store
        for store in context.snapshot.reservations
        if context.limits.networks & {AUTO, store.network}
        and isinstance(store.reading, Known)
        and not store.absent
    ]

    unwritable: dict[str, tuple[str, Remedy | None]] = {}
    for store in allowed:
        try:
            files.check_writable(store.directory)
        except ReadOnlyMount as mount:
            unwritable[store.network] = (f"cannot change {mount.problem}", mount.remedy)
        except OSError as error:
            problem = f"cannot change {error.filename}: {describe_os_error(error)}"
            unwritable[store.network] = (problem, None)

    is_every = len(unwritable) == len(allowed)
    for network, (problem, remedy) in unwritable.items():
        scope = None if is_every else network
        yield Blocker(BlockedBy.NETWORK_UNWRITABLE, problem, remedy, scope)


def _not_releasable(assessment: Assessment, only: frozenset[str] | None) -> Iterator[NotReleasable]:
    """Yield the addresses that were requested by name and have nothing to release."""
    requested = {ip for request in release_requests(assessment, only) for ip in request.ips}
    for ip in sorted((only or set()) - requested):
        reserved = [entry for entry in assessment.reservations if entry.name == ip]
        for classified in reserved:
            state = classified.state.value.replace("_", " ")
            yield NotReleasable(ip, f"{state}: {classified.why}", classified.network)
        if not reserved:
            yield NotReleasable(ip, _why_not_found(assessment))


def _why_not_found(assessment: Assessment) -> str:
    """Say why there is no reservation of an address that was requested."""
    stores = assessment.snapshot.reservations
    if unread := [store.network for store in stores if isinstance(store.reading, Unavailable)]:
        return f"not known: cannot read network {', '.join(unread)}"
    unused = [store.network for store in stores if isinstance(store.reading, NotRequested)]
    return f"not reserved (network {', '.join(unused)} is not in use)" if unused else "not reserved"


def _released(outcomes: Iterable[Outcome]) -> list[Reservation]:
    """Return what was, or in a dry run would be, released."""
    verdicts = {Verdict.RELEASED, Verdict.WOULD_RELEASE}
    requests = [outcome.request for outcome in outcomes if outcome.verdict in verdicts]
    return [reservation for request in requests for reservation in request.reservations]


def _free_after(report: Report, released: Iterable[Reservation]) -> dict[str, int | None]:
    """Return the free addresses of each network without what was released; None: not known."""
    released_keys = {reservation.key for reservation in released}
    free_after: dict[str, int | None] = {}
    for network in report.networks:
        free_after[network.name] = None
        if network.ranges is not None and network.free is not None:
            taken = [
                entry.name
                for entry in report.assessment.entries(network.name)
                if entry.blocks and ReservationKey(network.name, entry.name) not in released_keys
            ]
            free_after[network.name] = free(network.ranges, taken)
    return free_after


def _warnings_about_release(report: Report, released: Sequence[Reservation]) -> Iterator[str]:
    """Yield what takes addresses again, and which rules are left behind.

    The daemon refuses both, as far as they are known.
    """
    for tracked in report.findings:
        if tracked.finding.detector in {failing_plugin.NAME, hanging_plugin.NAME}:
            yield tracked.finding.message

    ports = host_ports.forwarded(report.assessment, released)
    known = {leak.ip: forwarded for leak, forwarded in ports.items() if forwarded}
    unknown = {leak.ip: None for leak, forwarded in ports.items() if forwarded is None}
    if known:
        yield host_ports.describe_rules(known)
    if unknown:
        yield host_ports.describe_rules(unknown)

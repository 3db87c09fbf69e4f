"""What is said of a cleanup: why nothing can be released here, what there is besides the outcomes. Decides nothing."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from agent.checks.addresses import failing_plugin, host_ports
from agent.cleanup.guards import GuardContext, release_requests
from agent.cleanup.journal import Journal, JournalStore
from agent.cleanup.unlink import NodeFiles, ReadOnlyMount
from agent.model.assessment import Assessment
from agent.model.ranges import free
from agent.model.release import (
    BlockedBy,
    Blocker,
    Cleaning,
    NotReleasable,
    Outcome,
    Remedy,
    Verdict,
)
from agent.model.report import Report
from agent.model.runtime import AUTO
from agent.model.snapshot import Known, NotRequested, Reservation, ReservationKey, Unavailable
from agent.sources.source_error import describe_os_error


def summarize(
    context: GuardContext,
    outcomes: Sequence[Outcome],
    journal: Journal,
    blockers: Iterable[Blocker],
    *,
    applied: bool,
) -> Cleaning:
    refusals = (refusal for outcome in outcomes for refusal in outcome.refusals)
    bugs = {refusal.bug.name: refusal.bug for refusal in refusals if refusal.bug}
    snapshot, report = context.snapshot, context.report
    return Cleaning(
        node=snapshot.node_name,
        taken_at=snapshot.taken_at,
        applied=applied,
        outcomes=tuple(outcomes),
        not_releasable=tuple(_not_releasable(report.assessment, context.limits.only)),
        unavailable=snapshot.unavailable_about_addresses(),
        halted=context.halted,
        blockers=tuple(blockers),
        free_before={network.name: network.free for network in report.networks},
        free_after=dict(_free_after(report, _released(outcomes))),
        causes=report.leak_causes,
        bugs=tuple(bugs.values()),
        warnings=(
            *(f"journal: {damage}" for damage in journal.damage),
            *(() if context.limits.unattended else _to_mend(report, _released(outcomes))),
        ),
    )


def find_blockers(
    context: GuardContext,
    files: NodeFiles,
    journal: JournalStore,
    no_network: Callable[[], Blocker | None],
) -> Iterator[Blocker]:
    """Yield why nothing can be released here, or in one network, whatever is leaked. Nothing is changed.

    host-local's locks are not tried: that could create their file, and delay an ADD.
    `no_network`: returns why no network may be cleaned, if none may be.
    """
    if context.halted:
        yield Blocker(BlockedBy.HALTED, f"cleanup halted: {context.halted}")
    if blocker := no_network():
        yield blocker
    yield from _unwritable(context, files)
    if context.journal_trouble:
        problem = (
            f"cannot use the journal: {context.journal_trouble}: "
            "nothing is released without a journal, which is in --state-dir"
        )
        yield Blocker(BlockedBy.JOURNAL_UNWRITABLE, problem)
    elif full := journal.full(context.snapshot.taken_at):
        yield Blocker(BlockedBy.JOURNAL_FULL, full)


def _unwritable(context: GuardContext, files: NodeFiles) -> Iterator[Blocker]:
    named = context.limits.networks
    failed: dict[str, tuple[str, Remedy | None]] = {}
    stores = (store for store in context.snapshot.reservations if named & {AUTO, store.network})
    allowed = [store for store in stores if isinstance(store.reading, Known) and not store.absent]
    for store in allowed:
        try:
            files.check_writable(store.directory)
        except ReadOnlyMount as mount:
            failed[store.network] = f"cannot change {mount.problem}", mount.remedy
        except OSError as error:
            problem = f"cannot change {error.filename}: {describe_os_error(error)}"
            failed[store.network] = problem, None
    for network, (problem, remedy) in failed.items():
        scope = "" if len(failed) == len(allowed) else network
        yield Blocker(BlockedBy.NETWORK_UNWRITABLE, problem, remedy, scope)


def _not_releasable(assessment: Assessment, only: frozenset[str] | None) -> Iterator[NotReleasable]:
    """Yield the addresses that were requested by name and have nothing to release, with the reason."""
    requested = {ip for request in release_requests(assessment, only) for ip in request.ips}
    for ip in sorted((only or set()) - requested):
        found = [entry for entry in assessment.reservations if entry.name == ip]
        for classified in found:
            state = classified.state.value.replace("_", " ")
            yield NotReleasable(ip, f"{state}: {classified.why}", classified.network)
        if not found:
            yield NotReleasable(ip, _not_found(assessment))


def _not_found(assessment: Assessment) -> str:
    stores = assessment.snapshot.reservations
    if unread := [store.network for store in stores if isinstance(store.reading, Unavailable)]:
        return f"not known: cannot read network {', '.join(unread)}"
    unused = [store.network for store in stores if isinstance(store.reading, NotRequested)]
    return f"not reserved (network {', '.join(unused)} is not in use)" if unused else "not reserved"


def _released(outcomes: Iterable[Outcome]) -> list[Reservation]:
    """Return what was, or in a dry run would be, released."""
    done = {Verdict.RELEASED, Verdict.WOULD_RELEASE}
    requests = [outcome.request for outcome in outcomes if outcome.verdict in done]
    return [reservation for request in requests for reservation in request.reservations]


def _free_after(
    report: Report, released: Iterable[Reservation]
) -> Iterator[tuple[str, int | None]]:
    """Yield for how many sandboxes each network has addresses now; None: that is not known."""
    gone = {reservation.key for reservation in released}
    for network in report.networks:
        if network.ranges is None or network.free is None:
            yield network.name, None
            continue
        names = (entry.name for entry in report.assessment.of(network.name) if entry.blocks)
        yield (
            network.name,
            free(
                network.ranges, (ip for ip in names if ReservationKey(network.name, ip) not in gone)
            ),
        )


def _to_mend(report: Report, released: Sequence[Reservation]) -> Iterator[str]:
    """Yield what takes addresses again, and which rules are left. The daemon refuses both, where they are known."""
    for tracked in report.findings:
        if tracked.finding.detector == failing_plugin.NAME:
            yield tracked.finding.message
    ports = host_ports.forwarded(report.assessment, released)
    for unknown in (False, True):
        if found := {
            leak.ip: known
            for leak, known in ports.items()
            if known != () and (known is None) == unknown
        }:
            yield host_ports.describe_rules(found)

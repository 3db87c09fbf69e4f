"""Each guard says why not, or says nothing. Pure: no guard knows of files, sockets or clocks.

A candidate is released when every guard is silent. The vetoes were already asked when the reservation was judged
(`classified.py`); they are asked again here, of the snapshot itself, so that no single mistake is enough.
"""

from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from ipaddress import ip_address
from typing import Final

from agent.checks.addresses.classify import made_at
from agent.cleanup.candidates import candidates, place
from agent.cleanup.guard_context import GuardContext
from agent.cleanup.runtime_history import FEWEST_CONTAINERS, MOST
from agent.model.assessment import State
from agent.model.ranges import RangeSets
from agent.model.release import Reason, Refusal, ReleaseRequest
from agent.model.snapshot import InsufficientData, NotRequested


def decide(case: GuardContext) -> tuple[tuple[ReleaseRequest, tuple[Refusal, ...]], ...]:
    """Ask every guard about every candidate. Oldest first; one that failed before comes after all that did not."""
    found = sorted(candidates(case.assessment, case.limits.only), key=lambda one: _turn(case, one))
    refused = [(one, tuple(no for guard in GUARDS if (no := _ask(guard, one, case)))) for one in found]
    return tuple(_within_budget(refused, case))


Guard = Callable[[ReleaseRequest, GuardContext], Refusal | None]


def _ask(guard: Guard, candidate: ReleaseRequest, case: GuardContext) -> Refusal | None:
    try:
        return guard(candidate, case)
    except InsufficientData as blind:
        return Refusal(Reason.SOURCE_UNAVAILABLE, str(blind))


def _turn(case: GuardContext, candidate: ReleaseRequest) -> tuple[int, int, tuple[str, str]]:
    failed = max(case.failures.get(f"{one.network}/{one.ip}", 0) for one in candidate.reservations)
    return failed, candidate.oldest_ns, place(candidate.reservations[0])


def not_stopped(_candidate: ReleaseRequest, case: GuardContext) -> Refusal | None:
    """An id that was released and is there again means that we were wrong once."""
    return Refusal(Reason.HALTED, case.halted) if case.halted else None


def everything_read(_candidate: ReleaseRequest, case: GuardContext) -> Refusal | None:
    """One silent source is enough to do nothing at all."""
    if unavailable := case.snapshot.unavailable_about_addresses():
        return Refusal(Reason.SOURCE_UNAVAILABLE, "; ".join(f"{one.source}: {one.why}" for one in unavailable))
    return None


def allowed_network(candidate: ReleaseRequest, case: GuardContext) -> Refusal | None:
    """Another network's ids may belong to another runtime, and would all look leaked."""
    if others := [name for name in candidate.networks if name not in case.limits.networks]:
        allowed = sorted(case.limits.networks.union(others))
        return Refusal(
            Reason.NETWORK_NOT_ALLOWED,
            f"network {', '.join(others)} is not to be cleaned",
            f"--cleanup-network={','.join(allowed)}",
        )
    return None


def no_container(candidate: ReleaseRequest, case: GuardContext) -> Refusal | None:
    """Whatever state it is in: a stopped sandbox still owns its address."""
    if candidate.container_id in case.listed:
        return Refusal(Reason.CONTAINER_EXISTS, "docker lists its container")
    return None


def no_checkpoint(candidate: ReleaseRequest, case: GuardContext) -> Refusal | None:
    """The kubelet still knows the sandbox, and will release the address itself."""
    if candidate.container_id in case.checkpointed:
        return Refusal(Reason.TEARDOWN_PENDING, "the kubelet keeps a checkpoint of its sandbox, and will try again")
    return None


def no_live_address(candidate: ReleaseRequest, case: GuardContext) -> Refusal | None:
    """Independent of docker and the API server: the kernel says that somebody uses it."""
    for one in candidate.reservations:
        if address := case.configured.get(one.ip):
            return Refusal(Reason.ADDRESS_IN_USE, f"process {address.pid} ({address.command}) has {one.ip} configured")
    return None


def no_claim(candidate: ReleaseRequest, case: GuardContext) -> Refusal | None:
    """Pod status may only save an address. Left alone on purpose, the other witnesses decide."""
    if isinstance(case.snapshot.pods, NotRequested):
        return None
    for one in candidate.reservations:
        if one.ip in case.claimed:
            return Refusal(Reason.CLAIMED_BY_POD, f"the pod {case.claimed[one.ip]} has {one.ip}")
    return None


def old_enough(candidate: ReleaseRequest, case: GuardContext) -> Refusal | None:
    """Older than the grace period by the file's time, and found the same by two looks."""
    now, grace = case.snapshot.taken_at, case.limits.grace
    for reservation in candidate.reservations:
        age = now - made_at(reservation)
        if age < timedelta(0):
            return Refusal(Reason.NOT_CONFIRMED, f"its file is {-age.total_seconds():.0f} s newer than this look")
        if age < grace:
            why = f"{age.total_seconds():.0f} s old, and --grace is {grace.total_seconds():.0f} s"
            return Refusal(Reason.NOT_CONFIRMED, why, "--grace=0s")
    for reservation in candidate.reservations:
        classified = case.states[reservation]
        if classified.state is not State.LEAKED or f"{classified.network}/{classified.name}" not in case.confirmed:
            return Refusal(Reason.NOT_CONFIRMED, f"it is {classified.state.value}: {classified.why}")
    return None


def inside_range(candidate: ReleaseRequest, case: GuardContext) -> Refusal | None:
    """Whatever lies outside is another's: an earlier pod CIDR's, or another program's."""
    for reservation in candidate.reservations:
        if case.limits.only and reservation.ip in case.limits.only:
            continue
        lift = _each("--ip=", candidate)
        sets = case.ranges[reservation.network]
        if isinstance(sets, InsufficientData):
            return Refusal(Reason.OUTSIDE_RANGE, str(sets), lift)
        if not _gives_out(sets, reservation.ip):
            told = ", ".join(str(one) for ranges in sets for one in ranges)
            return Refusal(Reason.OUTSIDE_RANGE, f"{reservation.ip} is not given out from {told}", lift)
    return None


def _each(option: str, candidate: ReleaseRequest) -> str:
    """Name every address of a sandbox, which is released whole."""
    return " ".join(f"{option}{reservation.ip}" for reservation in candidate.reservations)


def _gives_out(sets: RangeSets, ip: str) -> bool:
    address = ip_address(ip)
    return any(address in one and address != one.gateway for ranges in sets for one in ranges)


def whole(candidate: ReleaseRequest, case: GuardContext) -> Refusal | None:
    """A sandbox is released whole: half of one is a state that nobody knows how to read."""
    only = case.limits.only
    if only is None or not (others := sorted(one.ip for one in candidate.reservations if one.ip not in only)):
        return None
    return Refusal(
        Reason.PARTIAL_SANDBOX,
        f"its sandbox has {', '.join(others)} too, and is released whole or not at all",
        _each("--ip=", candidate),
    )


def believable_runtime(_candidate: ReleaseRequest, case: GuardContext) -> Refusal | None:
    """Runtimes answer wrongly, above all after a restart; believed once, that costs every address of the node."""
    doubted = case.runtime_history.doubted
    if doubted is not None and case.snapshot.uptime - doubted <= case.limits.settle:
        return Refusal(Reason.RUNTIME_DOUBTFUL, f"{case.runtime_history.why}; it is believed again after --settle")
    if isinstance(case.snapshot.pods, NotRequested):
        return None
    missing, running = len(case.unlisted), len(case.running)
    if running and (missing == running or (running >= FEWEST_CONTAINERS and missing * MOST > running)):
        return Refusal(
            Reason.RUNTIME_DOUBTFUL,
            f"docker lists nothing of {missing} of the {running} pods that run by the API server's word",
        )
    return None


def settled(_candidate: ReleaseRequest, case: GuardContext) -> Refusal | None:
    """The kubelet tries again by itself for minutes after a start; a leak is what is left when it has given up."""
    settle = case.limits.settle
    if not settle:
        return None
    now, processes = case.snapshot.taken_at, case.snapshot.processes.known()
    for name, start in (
        ("the kubelet", processes.kubelet),
        ("docker", processes.docker),
        ("the node", processes.booted),
    ):
        if start is None:
            return Refusal(Reason.UNSETTLED, f"{name} does not run", "--settle=0s")
        if now - start < settle:
            ago = max((now - start).total_seconds(), 0)
            why = f"{name} started {ago:.0f} s ago, and --settle is {settle.total_seconds():.0f} s"
            return Refusal(Reason.UNSETTLED, why, "--settle=0s")
    return None


def plausible_share(candidate: ReleaseRequest, case: GuardContext) -> Refusal | None:
    """When most of a range looks leaked, suspect our own eyes before the node."""
    for network in candidate.networks:
        share = case.shares[network]
        if share > case.limits.max_share:
            why = f"{share:.0%} of network {network} looks leaked, and --max-share is {case.limits.max_share:.0%}"
            return Refusal(Reason.IMPLAUSIBLE_SHARE, why, "--max-share=100%")
    return None


def journal_writable(_candidate: ReleaseRequest, case: GuardContext) -> Refusal | None:
    """No journal, no release."""
    return Refusal(Reason.JOURNAL_UNWRITABLE, case.journal_trouble) if case.journal_trouble else None


GUARDS: Final[tuple[Guard, ...]] = (
    not_stopped,
    everything_read,
    allowed_network,
    no_container,
    no_checkpoint,
    no_live_address,
    no_claim,
    old_enough,
    inside_range,
    whole,
    believable_runtime,
    settled,
    plausible_share,
    journal_writable,
)
"""Every guard but the budget, which depends on what the others let pass. The first to say no gives the reason."""


def _within_budget(
    judged: Iterable[tuple[ReleaseRequest, tuple[Refusal, ...]]], case: GuardContext
) -> Iterator[tuple[ReleaseRequest, tuple[Refusal, ...]]]:
    """Let pass as many addresses as may be released now, in the order of their turn."""
    passed = queued = 0
    for candidate, refusals in judged:
        no = refusals
        if not refusals:
            wanted = len(candidate.reservations)
            queued += wanted
            no = _over_budget(passed + wanted, queued, case)
            passed += 0 if no else wanted
        yield candidate, no


def _over_budget(wanted: int, queued: int, case: GuardContext) -> tuple[Refusal, ...]:
    """Say what each allowance would have to be for so many to pass, and with them all `queued` up to the last."""
    allowances = case.limits.allowances
    if all(wanted <= left for _, left in allowances):
        return ()
    short = [(setting, left) for setting, left in allowances if queued > left]
    why = ", ".join(f"{max(left, 0)} may be released now ({setting})" for setting, left in short)
    lift = " ".join(f"{setting}={queued + case.spent.get(setting, 0)}" for setting, _ in short)
    return (Refusal(Reason.OVER_BUDGET, f"{why}; up to it there are {queued}", lift),)

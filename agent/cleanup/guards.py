"""Which addresses may be released, and why not the others. Pure: no guard knows of files, sockets or clocks.

An address is released if no guard objects. Classification (`checks/addresses/classify.py`) has already checked for
owners; the guards check again, on the snapshot itself, so that no single mistake is enough.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from ipaddress import ip_address
from typing import Final

from agent.checks import runtime as runtimes
from agent.checks.addresses import leaked_reservation
from agent.checks.addresses.leaked_reservation import describe_rules
from agent.cleanup.guard_context import GuardContext
from agent.cleanup.runtime_history import FEWEST_CONTAINERS, MOST
from agent.model.assessment import Assessment, ClassifiedReservation, State
from agent.model.ranges import RangeSets
from agent.model.release import PassedOver, Reason, Refusal, ReleaseRequest
from agent.model.snapshot import InsufficientData, Known, NotRequested, Reservation, ReservationKey, Unavailable
from agent.model.text import count_of

Guard = Callable[[ReleaseRequest, GuardContext], Refusal | None]
Decision = tuple[ReleaseRequest, tuple[Refusal, ...]]
"""A request and every objection to it; it may be released if there is none."""

_CLOCK_ERROR: Final = timedelta(seconds=2)
"""Of the start of a process: the kernel tells when the node booted to the second."""
_LONGEST_ADD: Final = timedelta(minutes=1)
"""No plugin that works well takes longer. One that does objects whatever the clock says, which may have been moved."""
_WITHOUT_CONTAINER: Final = {State.LEAKED, State.CANDIDATE, State.UNMANAGED, State.TEARDOWN_PENDING, State.UNKNOWN}


def decide(context: GuardContext) -> tuple[Decision, ...]:
    """Ask every guard about every request. Oldest first, and requests that failed before go last."""
    requests = sorted(
        release_requests(context.assessment, context.limits.only), key=lambda request: _turn(request, context)
    )
    return tuple(_within_budget([(request, _objections(request, context)) for request in requests], context))


def release_requests(assessment: Assessment, only: frozenset[str] | None = None) -> tuple[ReleaseRequest, ...]:
    """Group the reservations that no runtime lists by sandbox. Empty if the list is not available.

    `only`: the sandboxes with one of these addresses.
    """
    if not isinstance(assessment.snapshot.containers, Known):
        return ()
    listed = {container.id for container in assessment.snapshot.containers.value}
    sandboxes: defaultdict[tuple[str, ...], list[ClassifiedReservation]] = defaultdict(list)
    for one in assessment.reservations:
        if one.state in _WITHOUT_CONTAINER and one.container_id not in listed:
            sandbox = (one.container_id,) if one.container_id else ("", one.network, one.name)
            sandboxes[sandbox].append(one)
    keeps_results = runtimes.deletes_at_start(assessment.snapshot)
    requests = (request for entries in sandboxes.values() if (request := _request(entries, keeps_results)))
    return tuple(request for request in requests if _selected(request, only))


def _selected(request: ReleaseRequest, only: frozenset[str] | None) -> bool:
    return only is None or any(reservation.ip in only for reservation in request.reservations)


def _request(entries: Iterable[ClassifiedReservation], keeps_results: bool) -> ReleaseRequest | None:
    reservations = [one.entry for one in entries if isinstance(one.entry, Reservation)]
    if not reservations:
        return None
    ordered = sorted(reservations, key=lambda reservation: reservation.key)
    return ReleaseRequest(tuple(ordered), next((one.pod for one in entries if one.pod), ""), keeps_results)


def passed_over(assessment: Assessment, only: frozenset[str] | None) -> tuple[PassedOver, ...]:
    """Return the addresses that were requested by name and have nothing to release, with the reason."""
    if only is None:
        return ()
    requested = {one.ip for request in release_requests(assessment, only) for one in request.reservations}
    return tuple(passed for ip in sorted(only - requested) for passed in _nothing_to_release(assessment, ip))


def _nothing_to_release(assessment: Assessment, ip: str) -> Iterator[PassedOver]:
    found = [one for one in assessment.reservations if one.name == ip]
    for one in found:
        yield PassedOver(ip, f"{one.state.value.replace('_', ' ')}: {one.why}", one.network)
    if not found:
        stores = assessment.snapshot.reservations
        unread = [store.network for store in stores if isinstance(store.reading, Unavailable)]
        unused = [store.network for store in stores if isinstance(store.reading, NotRequested)]
        not_read = f" (network {', '.join(unused)} is not in use)" if unused else ""
        yield PassedOver(
            ip, f"not known: cannot read network {', '.join(unread)}" if unread else f"not reserved{not_read}"
        )


def _turn(request: ReleaseRequest, context: GuardContext) -> tuple[int, int, ReservationKey]:
    failed = max(context.failures.get(one, 0) for one in request.reservations)
    return failed, request.oldest_ns, request.reservations[0].key


def _objections(request: ReleaseRequest, context: GuardContext) -> tuple[Refusal, ...]:
    return tuple(refusal for guard in GUARDS if (refusal := _ask(guard, request, context)))


def _ask(guard: Guard, request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    try:
        return guard(request, context)
    except InsufficientData as missing:
        return Refusal(Reason.SOURCE_UNAVAILABLE, str(missing))


def not_halted(_request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """A released container that reappears means that an earlier release was wrong."""
    return Refusal(Reason.HALTED, context.halted) if context.halted else None


def sources_available(_request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """One unavailable source is enough to release nothing."""
    if unavailable := context.snapshot.unavailable_about_addresses():
        return Refusal(Reason.SOURCE_UNAVAILABLE, "; ".join(f"{one.source}: {one.why}" for one in unavailable))
    return None


def allowed_network(request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """The IDs of another network may belong to another runtime. They would all look leaked."""
    if others := [name for name in request.networks if name not in context.allowed_networks]:
        allowed = sorted(context.limits.networks.union(others))
        return Refusal(
            Reason.NETWORK_NOT_ALLOWED,
            f"cleanup is not allowed in network {', '.join(others)}",
            f"--cleanup-network={','.join(allowed)}",
        )
    return None


def no_container(request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """In any state: a stopped sandbox still owns its address."""
    if request.container_id in context.listed:
        return Refusal(Reason.CONTAINER_EXISTS, f"{context.runtime} lists the container")
    return None


def no_checkpoint(request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """The kubelet still knows the sandbox and will release the address itself."""
    if request.container_id in context.checkpointed:
        return Refusal(
            Reason.TEARDOWN_PENDING, "the kubelet has a checkpoint of the sandbox and will retry its teardown"
        )
    return None


def no_configured_address(request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """The kernel's evidence, independent of the runtime and the API server."""
    for one in request.reservations:
        if address := context.configured.get(one.ip):
            return Refusal(Reason.ADDRESS_IN_USE, f"process {address.pid} ({address.command}) has {one.ip} configured")
    if place := context.mounted(request.container_id):
        return Refusal(Reason.ADDRESS_IN_USE, f"its network namespace is still mounted: {place}")
    return None


def no_plugin_at_work(request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """An ADD may outlive its runtime, and then give the address to a sandbox that nobody lists."""
    written = max(reservation.mtime for reservation in request.reservations)
    for plugin in context.snapshot.processes.known().plugins:
        age = context.snapshot.taken_at - plugin.started
        if plugin.started <= written + _CLOCK_ERROR or age >= _LONGEST_ADD:
            who = f"the CNI plugin {plugin.command} (process {plugin.pid})"
            why = f"{who} has been running for {age.total_seconds():.0f} s, and may have reserved the address"
            return Refusal(Reason.PLUGIN_AT_WORK, why)
    return None


def no_pod_claim(request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """Pod status can prove that an address is in use, never that it is leaked. It is optional (`--api=off`)."""
    if isinstance(context.snapshot.pods, NotRequested):
        return None
    for one in request.reservations:
        if one.ip in context.claimed:
            return Refusal(Reason.CLAIMED_BY_POD, f"pod {context.claimed[one.ip]} has {one.ip}")
    return None


def confirmed(request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """Older than the grace period by the file's mtime, and the same leak in two snapshots."""
    now, grace = context.snapshot.taken_at, context.limits.grace
    for reservation in request.reservations:
        age = now - reservation.mtime
        if age < timedelta(0):
            return Refusal(Reason.NOT_CONFIRMED, f"the file is {-age.total_seconds():.0f} s newer than the snapshot")
        if age < grace:
            why = f"{age.total_seconds():.0f} s old, and --grace is {grace.total_seconds():.0f} s"
            return Refusal(Reason.NOT_CONFIRMED, why, "--grace=0s")
    for gap in context.report.gaps:
        if gap.broken and gap.detector == leaked_reservation.NAME:
            return Refusal(Reason.NOT_CONFIRMED, f"the check of leaks failed: {gap.why}")
    for reservation in request.reservations:
        classified = context.classified[reservation]
        if classified.state is not State.LEAKED:
            return Refusal(Reason.NOT_CONFIRMED, f"its state is {classified.state.value}: {classified.why}")
    return None


def inside_range(request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """An address outside the range belongs to an earlier pod CIDR or to another program."""
    for reservation in request.reservations:
        if context.limits.only and reservation.ip in context.limits.only:
            continue
        lift = _each("--ip=", request)
        sets = context.ranges[reservation.network]
        if isinstance(sets, InsufficientData):
            return Refusal(Reason.OUTSIDE_RANGE, str(sets), lift)
        if not _allocates(sets, reservation.ip):
            listed = ", ".join(str(one) for ranges in sets for one in ranges)
            return Refusal(Reason.OUTSIDE_RANGE, f"{reservation.ip} is not allocated from {listed}", lift)
    return None


def _each(option: str, request: ReleaseRequest) -> str:
    return " ".join(f"{option}{reservation.ip}" for reservation in request.reservations)


def _allocates(sets: RangeSets, ip: str) -> bool:
    address = ip_address(ip)
    return any(address in one and address != one.gateway for ranges in sets for one in ranges)


def whole_sandbox(request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """No component expects a sandbox with only some of its addresses."""
    only = context.limits.only
    if only is None or not (others := sorted(one.ip for one in request.reservations if one.ip not in only)):
        return None
    return Refusal(
        Reason.PARTIAL_SANDBOX,
        f"the sandbox also has {', '.join(others)}; all its addresses are released together",
        _each("--ip=", request),
    )


def ordered_runtime(_request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """The list of such a runtime lacks sandboxes that are being made, and they have their addresses already."""
    if not (unordered := runtimes.unordered(context.snapshot)):
        return None
    named = ", ".join(map(str, unordered))
    return Refusal(Reason.RUNTIME_UNORDERED, f"{named} is not known to record a sandbox before its address is reserved")


def trusted_runtime(_request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """A runtime can return an incomplete list, mostly after a restart. Trusting it could cost every address."""
    since = context.runtime_history.suspect_since
    if since is not None and context.snapshot.uptime - since <= context.limits.settle:
        return Refusal(
            Reason.RUNTIME_DOUBTFUL, f"{context.runtime_history.why}; its list is trusted again after --settle"
        )
    if isinstance(context.snapshot.pods, NotRequested):
        return None
    missing, running = len(context.unlisted), len(context.running)
    if running and (missing == running or (running >= FEWEST_CONTAINERS and missing * MOST > running)):
        return Refusal(
            Reason.RUNTIME_DOUBTFUL,
            f"{context.runtime} lists no container of {missing} of the {running} pods that run according to the API "
            "server",
        )
    return None


def settled(_request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """The kubelet retries by itself for minutes after a start. A leak is what it leaves behind.

    No setting is offered, because without this guard an address in use can be lost (docs/proof.md). The
    runtime has answered, so one without a start time runs and was not recognized.
    """
    settle = context.limits.settle
    if not settle:
        return None
    now, processes = context.snapshot.taken_at, context.snapshot.processes.known()
    starts = {"the kubelet": processes.kubelet, "the node": processes.booted}
    starts |= {name: processes.start_of(name) for name in runtimes.names(context.snapshot)}
    if processes.cri_dockerd is not None:  # most nodes have none
        starts["cri-dockerd"] = processes.cri_dockerd
    for name, start in starts.items():
        if start is None:
            return Refusal(Reason.UNSETTLED, f"it is not known when {name} started: its process was not found")
        if now - start < settle:
            ago = max((now - start).total_seconds(), 0)
            return Refusal(
                Reason.UNSETTLED, f"{name} started {ago:.0f} s ago, and --settle is {settle.total_seconds():.0f} s"
            )
    return None


def plausible_share(request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """If more than this share of a range looks leaked, assume a faulty reading and release nothing."""
    for network in request.networks:
        share = context.shares[network]
        if share > context.limits.max_share:
            why = f"{share:.0%} of network {network} looks leaked, and --max-share is {context.limits.max_share:.0%}"
            return Refusal(Reason.IMPLAUSIBLE_SHARE, why, "--max-share=100%")
    return None


def plugin_works(request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """While each retry of a pod takes another address, automatic releases only feed it."""
    if not context.limits.unattended:
        return None
    for network in request.networks:
        if treadmill := context.treadmills.get(network):
            why = f"a CNI plugin of network {network} fails ({treadmill}): mend it first"
            return Refusal(Reason.PLUGIN_FAILING, why)
    return None


def no_host_ports(request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """A release leaves the rules that forward them, and they would lead to the next pod."""
    if not context.limits.unattended or context.limits.release_host_ports:
        return None
    ports = {one.ip: ports for one in request.reservations if (ports := context.host_ports.get(one))}
    return Refusal(Reason.HOST_PORTS, describe_rules(ports), "--release-host-ports=on") if ports else None


def journal_writable(_request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """No journal, no release."""
    return Refusal(Reason.JOURNAL_UNWRITABLE, context.journal_trouble) if context.journal_trouble else None


GUARDS: Final[tuple[Guard, ...]] = (
    not_halted,
    sources_available,
    allowed_network,
    no_container,
    no_checkpoint,
    no_configured_address,
    no_plugin_at_work,
    no_pod_claim,
    confirmed,
    inside_range,
    whole_sandbox,
    ordered_runtime,
    trusted_runtime,
    settled,
    plausible_share,
    plugin_works,
    no_host_ports,
    journal_writable,
)
"""Every guard but the budget, which depends on what these let pass. The first objection is the reported reason."""


def _within_budget(decisions: Iterable[Decision], context: GuardContext) -> Iterator[Decision]:
    """Let as many addresses pass as the allowances permit and the journal can hold, in the order of their turn."""
    passed = queued = 0
    for request, refusals in decisions:
        objections = refusals
        if not refusals:
            wanted = len(request.reservations)
            queued += wanted
            over = _over_budget, _over_room
            objections = tuple(refusal for one in over for refusal in one(passed + wanted, queued, context))
            passed += 0 if objections else wanted
        yield request, objections


def _over_budget(wanted: int, queued: int, context: GuardContext) -> tuple[Refusal, ...]:
    """Name the allowances that are too small, and the values that would admit all `queued` addresses so far."""
    allowances = context.limits.allowances
    if all(wanted <= left for _, left in allowances):
        return ()
    short = [(setting, left) for setting, left in allowances if queued > left]
    why = ", ".join(f"{setting} allows {count_of(max(left, 0), 'address', 'addresses')} now" for setting, left in short)
    lift = " ".join(f"{setting}={queued + context.spent.get(setting, 0)}" for setting, _ in short)
    return (Refusal(Reason.OVER_BUDGET, f"{why}; this is number {queued} in line", lift),)


def _over_room(wanted: int, queued: int, context: GuardContext) -> tuple[Refusal, ...]:
    """Without its entry, a release can be neither restored nor found wrong."""
    if wanted <= context.journal_room:
        return ()
    room = count_of(context.journal_room, "address", "addresses")
    why = f"the journal has room for {room} until its oldest entry is 24 hours old; this is number {queued} in line"
    return (Refusal(Reason.JOURNAL_FULL, why),)

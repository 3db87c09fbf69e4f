"""Each guard says why not, or says nothing. Pure: no guard knows of files, sockets or clocks.

A candidate is released when every guard is silent. The vetoes were already asked when the reservation was judged
(`occupancy.py`); they are asked again here, of the snapshot itself, so that no single mistake is enough.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from ipaddress import ip_address
from typing import Final

from agent.detectors import leaked_reservation
from agent.model.ranges import RangeSets, usable
from agent.model.release import Candidate, Limits, PassedOver, Reason, Refusal
from agent.model.report import Report
from agent.model.scene import Occupancy, Scene, State
from agent.model.snapshot import Address, Blind, NotAsked, Reservation, Seen, Snapshot
from agent.occupancy import made_at

FEWEST: Final = 8
"""A share of less than this many sandboxes is no share: a small range is half leaked soon."""

MOST: Final = 2
"""More than one in this many is most."""

FEWEST_CONTAINERS: Final = 4
"""Losing most of less than this many containers is everyday life."""

_OWNERLESS: Final = {State.LEAKED, State.YOUNG, State.ALIVE, State.TEARDOWN_PENDING, State.UNKNOWN}


@dataclass(frozen=True, slots=True)
class Vigil:
    """What is remembered of docker from look to look: a list is doubtful for a while, not for one look."""

    containers: int | None = None
    docker_start: timedelta | None = None
    """After boot."""
    doubted: timedelta | None = None
    """The boot clock when docker was last seen to restart, or to lose most of its containers."""
    why: str = ""


def watch(vigil: Vigil, snapshot: Snapshot) -> Vigil:
    """Remember this look, and whether docker lost its memory before it. What was not read changes nothing."""
    containers, started = _count(snapshot), _docker_start(snapshot)
    watched = replace(
        vigil,
        containers=vigil.containers if containers is None else containers,
        docker_start=vigil.docker_start if started is None else started,
    )
    why = _lost(vigil, watched)
    return replace(watched, doubted=snapshot.uptime, why=why) if why else watched


def _lost(before: Vigil, now: Vigil) -> str:
    """Say how docker lost its memory between two looks; empty where it did not."""
    if before.docker_start is not None and now.docker_start != before.docker_start:
        return "docker restarted between two looks"
    had, has = before.containers or 0, now.containers or 0
    if had >= FEWEST_CONTAINERS and has * MOST < had:
        return f"docker listed {had} containers, and in the next look {has}"
    return ""


def _count(snapshot: Snapshot) -> int | None:
    return len(snapshot.containers.items) if isinstance(snapshot.containers, Seen) else None


def _docker_start(snapshot: Snapshot) -> timedelta | None:
    if not isinstance(snapshot.daemons, Seen):
        return None
    return next((one.docker - one.booted for one in snapshot.daemons.items if one.docker is not None), None)


@dataclass(frozen=True, kw_only=True)
class Case:
    """All that the guards may know."""

    report: Report
    vigil: Vigil
    limits: Limits
    stopped: str = ""
    journal_trouble: str = ""
    """Why nothing can be written down; empty where it can."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """How often the release of an address failed, by `network/ip`."""
    spent: Mapping[str, int] = field(default_factory=dict)
    """How much of an allowance earlier rounds took, by the setting that says it."""

    @property
    def scene(self) -> Scene:
        return self.report.scene

    @property
    def snapshot(self) -> Snapshot:
        return self.report.scene.snapshot

    @cached_property
    def states(self) -> Mapping[Reservation, Occupancy]:
        return {one.entry: one for one in self.scene.occupancies if isinstance(one.entry, Reservation)}

    @cached_property
    def confirmed(self) -> frozenset[str]:
        """The leaks that two looks found the same, as `network/ip`."""
        return frozenset(
            judged.finding.subject
            for judged in self.report.findings
            if judged.confirmed and judged.finding.detector == leaked_reservation.NAME
        )

    @cached_property
    def listed(self) -> frozenset[str]:
        """The ids that docker lists; blind where it was not read."""
        return frozenset(container.id for container in self.snapshot.containers.known())

    @cached_property
    def checkpointed(self) -> frozenset[str]:
        """The ids that the kubelet still has a checkpoint of; blind where they were not read."""
        return frozenset(checkpoint.container_id for checkpoint in self.snapshot.checkpoints.known())

    @cached_property
    def configured(self) -> Mapping[str, Address]:
        """The addresses that processes have configured; blind where namespaces were not looked into."""
        return {address.ip: address for address in self.snapshot.addresses.known()}

    @cached_property
    def claimed(self) -> Mapping[str, str]:
        """The pods that have an address of their own by the API server's word, by address; blind without its word."""
        pods = (pod for pod in self.snapshot.pods.known() if pod.live and not pod.host_network)
        return {ip: pod.name for pod in pods for ip in pod.ips}

    @cached_property
    def running(self) -> frozenset[str]:
        """The pods that run here by the API server's word; blind without it."""
        return frozenset(
            pod.name for pod in self.snapshot.pods.known() if pod.phase == "Running" and not pod.deleting
        )  # fmt: skip

    @cached_property
    def unlisted(self) -> frozenset[str]:
        """Those of them that docker lists nothing of."""
        return self.running.difference(container.pod for container in self.snapshot.containers.known())

    @cached_property
    def ranges(self) -> Mapping[str, RangeSets | Blind]:
        """What each network gives out, or why that is not known."""
        return {store.network: self._ranges(store.network) for store in self.snapshot.reservations}

    def _ranges(self, network: str) -> RangeSets | Blind:
        try:
            return self.scene.ranges(network)
        except Blind as blind:
            return blind

    @cached_property
    def shares(self) -> Mapping[str, float]:
        """How much of the range of each network that was read looks leaked, from 0 to 1."""
        return {
            store.network: self._share(store.network)
            for store in self.snapshot.reservations
            if isinstance(store.reading, Seen)
        }

    def _share(self, network: str) -> float:
        occupancies = self.scene.of(network)
        suspects = (one for one in occupancies if one.state in {State.LEAKED, State.YOUNG})
        leaked = {one.container_id or one.name for one in suspects}
        if len(leaked) < FEWEST:
            return 0.0
        sets = self.ranges[network]
        size = len(occupancies) if isinstance(sets, Blind) else usable(sets)
        return min(1.0, len(leaked) / max(1, size))


def candidates(scene: Scene, only: frozenset[str] | None = None) -> tuple[Candidate, ...]:
    """Gather what docker does not list, sandbox by sandbox; nothing where docker was not read.

    `only`: the sandboxes with one of these addresses.
    """
    if not isinstance(scene.snapshot.containers, Seen):
        return ()
    listed = {container.id for container in scene.snapshot.containers.items}
    sandboxes: defaultdict[tuple[str, ...], list[tuple[Reservation, str]]] = defaultdict(list)
    for one in scene.occupancies:
        if isinstance(one.entry, Reservation) and one.state in _OWNERLESS and one.container_id not in listed:
            key = (one.container_id,) if one.container_id else ("", one.network, one.name)
            sandboxes[key].append((one.entry, one.pod))
    gathered = (
        Candidate(
            tuple(sorted((entry for entry, _ in several), key=_place)), next((pod for _, pod in several if pod), "")
        )
        for several in sandboxes.values()
    )
    return tuple(one for one in gathered if only is None or any(entry.ip in only for entry in one.reservations))


def passed_over(scene: Scene, only: frozenset[str] | None) -> tuple[PassedOver, ...]:
    """Say of each address that was asked for by name, and is no candidate, what it is."""
    if only is None:
        return ()
    judged = {one.ip for candidate in candidates(scene, only) for one in candidate.reservations}
    return tuple(said for ip in sorted(only - judged) for said in _what_it_is(scene, ip))


def _what_it_is(scene: Scene, ip: str) -> Iterator[PassedOver]:
    found = [one for one in scene.occupancies if one.name == ip]
    for one in found:
        yield PassedOver(ip, f"{one.state.value.replace('_', ' ')}: {one.why}", one.network)
    if not found:
        unread = [store.network for store in scene.snapshot.reservations if not isinstance(store.reading, Seen)]
        yield PassedOver(ip, f"not known: network {', '.join(unread)} was not read" if unread else "not reserved")


def _place(reservation: Reservation) -> tuple[str, str]:
    return reservation.network, reservation.ip


def judge(case: Case) -> tuple[tuple[Candidate, tuple[Refusal, ...]], ...]:
    """Ask every guard about every candidate. Oldest first; one that failed before comes after all that did not."""
    found = sorted(candidates(case.scene, case.limits.only), key=lambda one: _turn(case, one))
    refused = [(one, tuple(no for guard in GUARDS if (no := _ask(guard, one, case)))) for one in found]
    return tuple(_within_budget(refused, case))


Guard = Callable[[Candidate, Case], Refusal | None]


def _ask(guard: Guard, candidate: Candidate, case: Case) -> Refusal | None:
    try:
        return guard(candidate, case)
    except Blind as blind:
        return Refusal(Reason.SOURCE_UNREAD, str(blind))


def _turn(case: Case, candidate: Candidate) -> tuple[int, int, tuple[str, str]]:
    failed = max(case.failures.get(f"{one.network}/{one.ip}", 0) for one in candidate.reservations)
    return failed, candidate.oldest_ns, _place(candidate.reservations[0])


def not_stopped(_candidate: Candidate, case: Case) -> Refusal | None:
    """An id that was released and is there again means that we were wrong once."""
    return Refusal(Reason.STOPPED, case.stopped) if case.stopped else None


def everything_read(_candidate: Candidate, case: Case) -> Refusal | None:
    """One silent source is enough to do nothing at all."""
    if unread := case.snapshot.unread():
        return Refusal(Reason.SOURCE_UNREAD, "; ".join(f"{one.source}: {one.why}" for one in unread))
    return None


def allowed_network(candidate: Candidate, case: Case) -> Refusal | None:
    """Another network's ids may belong to another runtime, and would all look leaked."""
    if others := [name for name in candidate.networks if name not in case.limits.networks]:
        allowed = sorted(case.limits.networks.union(others))
        return Refusal(
            Reason.NETWORK_NOT_ALLOWED,
            f"network {', '.join(others)} is not to be cleaned",
            f"--cleanup-network={','.join(allowed)}",
        )
    return None


def no_container(candidate: Candidate, case: Case) -> Refusal | None:
    """Whatever state it is in: a stopped sandbox still owns its address."""
    if candidate.container_id in case.listed:
        return Refusal(Reason.CONTAINER_EXISTS, "docker lists its container")
    return None


def no_checkpoint(candidate: Candidate, case: Case) -> Refusal | None:
    """The kubelet still knows the sandbox, and will release the address itself."""
    if candidate.container_id in case.checkpointed:
        return Refusal(Reason.TEARDOWN_PENDING, "the kubelet keeps a checkpoint of its sandbox, and will try again")
    return None


def no_live_address(candidate: Candidate, case: Case) -> Refusal | None:
    """Independent of docker and the API server: the kernel says that somebody uses it."""
    for one in candidate.reservations:
        if address := case.configured.get(one.ip):
            return Refusal(Reason.ADDRESS_ALIVE, f"process {address.pid} ({address.command}) has {one.ip} configured")
    return None


def no_claim(candidate: Candidate, case: Case) -> Refusal | None:
    """Pod status may only save an address. Left alone on purpose, the other witnesses decide."""
    if isinstance(case.snapshot.pods, NotAsked):
        return None
    for one in candidate.reservations:
        if one.ip in case.claimed:
            return Refusal(Reason.CLAIMED_BY_POD, f"the pod {case.claimed[one.ip]} has {one.ip}")
    return None


def old_enough(candidate: Candidate, case: Case) -> Refusal | None:
    """Older than the grace period by the file's time, and found the same by two looks."""
    now, grace = case.snapshot.taken_at, case.limits.grace
    for reservation in candidate.reservations:
        age = now - made_at(reservation)
        if age < timedelta(0):
            return Refusal(Reason.TOO_YOUNG, f"its file is {-age.total_seconds():.0f} s newer than this look")
        if age < grace:
            why = f"{age.total_seconds():.0f} s old, and --grace is {grace.total_seconds():.0f} s"
            return Refusal(Reason.TOO_YOUNG, why, "--grace=0s")
    for reservation in candidate.reservations:
        occupancy = case.states[reservation]
        if occupancy.state is not State.LEAKED or f"{occupancy.network}/{occupancy.name}" not in case.confirmed:
            return Refusal(Reason.TOO_YOUNG, f"it is {occupancy.state.value}: {occupancy.why}")
    return None


def inside_range(candidate: Candidate, case: Case) -> Refusal | None:
    """Whatever lies outside is another's: an earlier pod CIDR's, or another program's."""
    for reservation in candidate.reservations:
        if case.limits.only and reservation.ip in case.limits.only:
            continue
        lift = f"--ip={reservation.ip}"
        sets = case.ranges[reservation.network]
        if isinstance(sets, Blind):
            return Refusal(Reason.OUTSIDE_RANGE, str(sets), lift)
        if not _gives_out(sets, reservation.ip):
            told = ", ".join(str(one) for ranges in sets for one in ranges)
            return Refusal(Reason.OUTSIDE_RANGE, f"{reservation.ip} is not given out from {told}", lift)
    return None


def _gives_out(sets: RangeSets, ip: str) -> bool:
    address = ip_address(ip)
    return any(address in one and address != one.gateway for ranges in sets for one in ranges)


def whole(candidate: Candidate, case: Case) -> Refusal | None:
    """A sandbox is released whole: half of one is a state that nobody knows how to read."""
    only = case.limits.only
    if only is None or not (others := sorted(one.ip for one in candidate.reservations if one.ip not in only)):
        return None
    return Refusal(
        Reason.PARTIAL_SANDBOX,
        f"its sandbox has {', '.join(others)} too, and is released whole or not at all",
        " ".join(f"--ip={ip}" for ip in others),
    )


def believable_runtime(_candidate: Candidate, case: Case) -> Refusal | None:
    """Runtimes answer wrongly, above all after a restart; believed once, that costs every address of the node."""
    doubted = case.vigil.doubted
    if doubted is not None and case.snapshot.uptime - doubted <= case.limits.settle:
        return Refusal(Reason.RUNTIME_DOUBTFUL, f"{case.vigil.why}; it is believed again after --settle")
    if isinstance(case.snapshot.pods, NotAsked):
        return None
    missing, running = len(case.unlisted), len(case.running)
    if running and (missing == running or (running >= FEWEST_CONTAINERS and missing * MOST > running)):
        return Refusal(
            Reason.RUNTIME_DOUBTFUL,
            f"docker lists nothing of {missing} of the {running} pods that run by the API server's word",
        )
    return None


def settled(_candidate: Candidate, case: Case) -> Refusal | None:
    """The kubelet tries again by itself for minutes after a start; a leak is what is left when it has given up."""
    settle = case.limits.settle
    if not settle:
        return None
    now, known = case.snapshot.taken_at, case.snapshot.daemons.known()
    if not known:
        return Refusal(Reason.UNSETTLED, "when the kubelet, docker and the node started is not known", "--settle=0s")
    for daemons in known:
        for name, start in (("the kubelet", daemons.kubelet), ("docker", daemons.docker), ("the node", daemons.booted)):
            if start is None:
                return Refusal(Reason.UNSETTLED, f"{name} does not run", "--settle=0s")
            if now - start < settle:
                ago = max((now - start).total_seconds(), 0)
                why = f"{name} started {ago:.0f} s ago, and --settle is {settle.total_seconds():.0f} s"
                return Refusal(Reason.UNSETTLED, why, "--settle=0s")
    return None


def plausible_share(candidate: Candidate, case: Case) -> Refusal | None:
    """When most of a range looks leaked, suspect our own eyes before the node."""
    for network in candidate.networks:
        share = case.shares[network]
        if share > case.limits.max_share:
            why = (
                f"{share:.0%} of network {network}'s range looks leaked, and --max-share is {case.limits.max_share:.0%}"
            )
            return Refusal(Reason.IMPLAUSIBLE_SHARE, why, "--max-share=100%")
    return None


def journal_writable(_candidate: Candidate, case: Case) -> Refusal | None:
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
    judged: Iterable[tuple[Candidate, tuple[Refusal, ...]]], case: Case
) -> Iterator[tuple[Candidate, tuple[Refusal, ...]]]:
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


def _over_budget(wanted: int, queued: int, case: Case) -> tuple[Refusal, ...]:
    """Say what each allowance would have to be for so many to pass, and with them all `queued` up to the last."""
    allowances = case.limits.allowances
    if all(wanted <= left for _, left in allowances):
        return ()
    short = [(setting, left) for setting, left in allowances if queued > left]
    why = ", ".join(f"{max(left, 0)} may be released now ({setting})" for setting, left in short)
    lift = " ".join(f"{setting}={queued + case.spent.get(setting, 0)}" for setting, _ in short)
    return (Refusal(Reason.OVER_BUDGET, f"{why}; up to it there are {queued}", lift),)

"""Which addresses may be released, and why not the others. Pure: no guard knows of files, sockets or clocks.

An address is released if no guard objects. Who owns it was asked for its state (`checks/addresses/classify.py`), and
the runtime, the kubelet and the kernel are asked once more, live, right before the release (`recheck.py`).
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from ipaddress import ip_address
from itertools import chain
from math import ceil
from posixpath import normpath
from typing import Final

from agent.checks.addresses import (
    failing_plugin,
    host_ports,
    leaked_reservation,
    leaked_share,
)
from agent.checks.kubelet_runtime import kubelet_runtime
from agent.checks.readings.attribution import cleanable
from agent.model.assessment import KUBENET, Assessment, State
from agent.model.bug import bug_of
from agent.model.clocks import PROCESS_START
from agent.model.ranges import RangeSets
from agent.model.release import Limits, Reason, Refusal, ReleaseRequest
from agent.model.report import Report
from agent.model.runtime import AUTO, DOCKER
from agent.model.snapshot import (
    DEFAULT_DATA_DIR,
    InsufficientData,
    Known,
    NotRequested,
    PortMapping,
    Reservation,
    Snapshot,
    known_or,
    require_available,
)
from agent.model.text import count_of

OWNED: Final = {
    State.TEARDOWN_PENDING: Reason.TEARDOWN_PENDING,
    State.UNMANAGED: Reason.ADDRESS_IN_USE,
}
"""The states in which somebody has an address although no runtime lists its container, and the reason of a refusal."""
_REQUESTED: Final = {State.LEAKED, State.CANDIDATE, State.UNKNOWN, *OWNED}

MIN_CONTAINERS: Final = 4  # to lose more than half of fewer containers than this is normal


@dataclass(frozen=True, slots=True)
class RuntimeHistory:
    """What earlier snapshots said of the container runtime."""

    running: int = 0
    """How many containers ran, if known. Not stopped ones: on a full range each try to start a pod leaves another."""
    start: timedelta | None = None  # of the runtime, after boot
    suspect_since: timedelta | None = None
    """The uptime at which the runtime was last seen to have restarted, or to have lost most of its containers."""
    why: str = ""

    def after(self, snapshot: Snapshot) -> "RuntimeHistory":
        """Add a snapshot. Data that is unavailable changes nothing."""
        name, running, start, why = kubelet_runtime(snapshot).name, self.running, self.start, ""
        if isinstance(snapshot.containers, Known):
            running = sum(container.running for container in snapshot.containers.value)
            if self.running >= MIN_CONTAINERS and running < self.running / 2:
                why = f"{name} listed {self.running} running containers, then {running} in the next snapshot"
        processes = known_or(snapshot.processes, None)
        if processes and (started := processes.start_of(name)):
            start = started - processes.booted
            why = (
                f"{name} restarted between two snapshots"
                if self.start not in {None, start}
                else why
            )
        return RuntimeHistory(
            running, start, snapshot.uptime if why else self.suspect_since, why or self.why
        )


@dataclass(frozen=True, kw_only=True)
class GuardContext:
    """Everything the guards may know. Each fact is computed once, and serves all requests of a sync."""

    report: Report
    runtime_history: RuntimeHistory
    limits: Limits
    spent: int = 0  # how many addresses were released within the last hour
    halted: str = ""  # why cleanup halted; empty if it did not
    journal_trouble: str = ""  # why the journal cannot be used; empty if it can
    journal_damage: Sequence[str] = ()  # the files of the journal that cannot be parsed
    restored: frozenset[str] = (
        frozenset()
    )  # the sandboxes that somebody restored: released by name only
    paused: Mapping[Reservation, tuple[Refusal, ...]] = field(default_factory=dict)
    """The leaks that are left alone for a while, and why; no refusals: their release has failed."""

    @property
    def assessment(self) -> Assessment:
        return self.report.assessment

    @property
    def snapshot(self) -> Snapshot:
        return self.report.assessment.snapshot

    @cached_property
    def networks(self) -> frozenset[str]:
        """The networks that may be cleaned: those of the settings; for `auto`, what is certain to be the pods'."""
        named = self.limits.networks
        return (named - {AUTO}) | cleanable(self.snapshot) if AUTO in named else named

    @cached_property
    def unread(self) -> Mapping[str, str]:
        """The directory of an address of a sandbox that is not read: of an attachment with its own dataDir."""
        read = {
            store.directory
            for store in self.snapshot.reservations
            if isinstance(store.reading, Known)
        }
        results = known_or(self.snapshot.cni_results, ())
        named = (
            (result.container_id, f"{normpath(result.data_dir)}/{result.network}")
            for result in results
        )
        default = "./", f"{DEFAULT_DATA_DIR}/"  # not named, or named: --cni-networks-dir has it
        return {
            sandbox: path
            for sandbox, path in named
            if path not in read and not path.startswith(default)
        }

    @cached_property
    def ranges(self) -> Mapping[str, RangeSets | InsufficientData]:
        """What each network allocates from, or why that is not known."""
        found: dict[str, RangeSets | InsufficientData] = {}
        for store in self.snapshot.reservations:
            try:
                found[store.network] = self.assessment.ranges(store.network)
            except InsufficientData as missing:
                found[store.network] = missing
        return found

    @cached_property
    def running(self) -> tuple[int, int]:
        """How many pods run according to the API server, and of how many of them no runtime lists a container."""
        running = {pod.name for pod in self.snapshot.pods.known() if pod.has_sandbox}
        return len(running), len(
            running.difference(container.pod for container in self.snapshot.containers.known())
        )

    @cached_property
    def retry_leaks(self) -> Mapping[str, failing_plugin.RetryLeak]:
        """The networks in which each retry of a pod takes another address."""
        return failing_plugin.retry_leaks(self.assessment)

    @cached_property
    def host_ports(self) -> Mapping[Reservation, tuple[PortMapping, ...] | None]:
        """The ports of the node that may still be forwarded to each address; None: not known."""
        return host_ports.forwarded(self.assessment, self.assessment.classified)

    @cached_property
    def shares(self) -> Mapping[str, float]:
        """How much of each network looks leaked, from 0 to 1."""
        return {
            network: leaked_share.share(self.assessment, network)
            for network in self._with_reservations
        }

    @cached_property
    def doubts(self) -> Mapping[str, str]:
        """Why the API server does not confirm the leaks of each network; empty: it does."""
        return {
            network: leaked_share.doubt(self.assessment, network)
            for network in self._with_reservations
        }

    @property
    def _with_reservations(self) -> frozenset[str]:
        return frozenset(reservation.network for reservation in self.assessment.classified)


Guard = Callable[[ReleaseRequest, GuardContext], Refusal | None]
Decision = tuple[ReleaseRequest, tuple[Refusal, ...]]
"""A request and every objection to it; it may be released if there is none."""


def decide(context: GuardContext) -> tuple[Decision, ...]:
    """Ask every guard about every request, the oldest first.

    What passes and is paused keeps the refusal that came after the guards, such as the probe's. If
    its release failed, it is left out.
    """
    requests = sorted(release_requests(context.assessment, context.limits.only), key=_sort_key)
    due: list[Decision] = []
    for request in requests:
        refusals = tuple(_objections(request, context))
        paused = [leak for leak in request.reservations if leak in context.paused]
        if paused and not refusals:
            refusals = context.paused[paused[0]]
            if not refusals:
                continue
        due.append((request, refusals))
    return tuple(_within_budget(due, context))


def _sort_key(request: ReleaseRequest) -> tuple[int, tuple[str, str]]:
    return min(reservation.mtime_ns for reservation in request.reservations), request.reservations[
        0
    ].key


def release_requests(
    assessment: Assessment, only: Collection[str] | None = None
) -> tuple[ReleaseRequest, ...]:
    """Group the reservations that no runtime lists by sandbox. `only`: the sandboxes with one of these addresses."""
    if not isinstance(assessment.snapshot.containers, Known):
        return ()
    sandboxes: defaultdict[tuple[str, ...], list[Reservation]] = defaultdict(list)
    for reservation, entry in assessment.classified.items():
        if entry.state in _REQUESTED:
            sandbox = (
                (entry.container_id,) if entry.container_id else ("", entry.network, entry.name)
            )
            sandboxes[sandbox].append(reservation)
    requests, keeps_results = [], assessment.runtime.deletes_at_start
    for reservations in sandboxes.values():
        pods = (assessment.classified[reservation].pod for reservation in reservations)
        ordered = sorted(reservations, key=lambda reservation: reservation.key)
        requests.append(ReleaseRequest(tuple(ordered), next(filter(None, pods), ""), keeps_results))
    return tuple(
        request for request in requests if only is None or {*request.ips}.intersection(only)
    )


def _objections(request: ReleaseRequest, context: GuardContext) -> Iterator[Refusal]:
    for guard in GUARDS:
        try:
            refusal = guard(request, context)
        except InsufficientData as missing:
            refusal = Refusal(Reason.SOURCE_UNAVAILABLE, str(missing))
        except Exception as error:  # noqa: BLE001 (what it would have said is not known)
            bug = bug_of("guard", guard.__name__, error)
            refusal = Refusal(Reason.GUARD_FAILED, bug.reason, bug=bug)
        if refusal:
            yield refusal


def not_halted(_request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """A released container that reappears means that an earlier release was wrong."""
    return Refusal(Reason.HALTED, context.halted) if context.halted else None


def sources_available(_request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """One unavailable source is enough to release nothing."""
    if unavailable := context.snapshot.unavailable_about_addresses():
        return Refusal(
            Reason.SOURCE_UNAVAILABLE,
            "; ".join(f"{source.source}: {source.why}" for source in unavailable),
        )
    return None


def allowed_network(request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """The IDs of another network may belong to another runtime. They would all look leaked."""
    if others := [name for name in request.networks if name not in context.networks]:
        setting = f"--cleanup-network={','.join(sorted(context.limits.networks.union(others)))}"
        return Refusal(
            Reason.NETWORK_NOT_ALLOWED,
            f"cleanup is not allowed in network {', '.join(others)}",
            setting,
        )
    return None


def no_plugin_at_work(request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """An ADD may outlive its runtime, and then give the address to a sandbox that nobody lists."""
    # One that hangs objects whatever the clock says, which may have been moved.
    written = max(reservation.mtime for reservation in request.reservations)
    for plugin in context.snapshot.processes.known().plugins:
        age = context.snapshot.taken_at - plugin.started
        if plugin.started - written <= PROCESS_START or age >= failing_plugin.PLUGIN_TIMEOUT:
            who = f"the CNI plugin {plugin.command} (process {plugin.pid})"
            why = f"{who} has been running for {age.total_seconds():.0f} s, and may have reserved the address"
            return Refusal(Reason.PLUGIN_AT_WORK, why)
    return None


def without_owner(request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """A live pod, the kubelet or something on the node still has an address of the sandbox.

    Pod status can prove that an address is in use, never that it is leaked. It is optional (`--api=off`).
    """
    index, sandbox = context.assessment.index, request.container_id
    require_available(context.snapshot.pods)
    for reservation in request.reservations:
        classified, claimed = (
            context.assessment.classified[reservation],
            reservation.ip in index.claims,
        )
        held = (
            reservation.ip in index.holders
            or sandbox in index.checkpoints
            or sandbox in index.mounted_namespaces
        )
        if classified.state in OWNED and (held or not claimed):
            return Refusal(OWNED[classified.state], classified.why)
        if claimed:
            return Refusal(
                Reason.CLAIMED_BY_POD, f"pod {index.claims[reservation.ip]} has {reservation.ip}"
            )
    return None


def confirmed(request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """Older than the grace period by its mtime, and the same leak in two snapshots."""
    for reservation in request.reservations:
        if refusal := _too_young(
            context.snapshot.taken_at - reservation.mtime, context.limits.grace
        ):
            return refusal
    for gap in context.report.gaps:
        if gap.broken and gap.detector == leaked_reservation.NAME:
            return Refusal(Reason.NOT_CONFIRMED, f"the check of leaks failed: {gap.why}")
    for reservation in request.reservations:
        classified = context.assessment.classified[reservation]
        if classified.state is not State.LEAKED:
            return Refusal(
                Reason.NOT_CONFIRMED, f"its state is {classified.state.value}: {classified.why}"
            )
    return _only_by_name(request, context)


def _only_by_name(request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    why = "somebody restored it after a release: whoever has the address may be visible to nobody here"
    if not request.container_id:
        why = "its file is empty: somebody may have made it to keep the address free"
    if context.limits.only is None and request.container_id in {"", *context.restored}:
        lift = " ".join(f"--ip={ip}" for ip in request.ips)
        return Refusal(Reason.NOT_CONFIRMED, why, lift)
    return None


def _too_young(age: timedelta, grace: timedelta) -> Refusal | None:
    if age < timedelta(0):
        return Refusal(
            Reason.NOT_CONFIRMED,
            f"the file is {-age.total_seconds():.0f} s newer than the snapshot",
        )
    if age < grace:
        why = f"{age.total_seconds():.0f} s old, and --grace is {grace.total_seconds():.0f} s"
        return Refusal(Reason.NOT_CONFIRMED, why, "--grace=0s")
    return None


def inside_range(request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """An address outside the range belongs to an earlier pod CIDR or to another program."""
    lift, named = " ".join(f"--ip={ip}" for ip in request.ips), context.limits.only or ()
    for reservation in request.reservations:
        if reservation.ip in named:
            continue
        sets = context.ranges[reservation.network]
        if isinstance(sets, InsufficientData):
            return Refusal(Reason.OUTSIDE_RANGE, str(sets), lift)
        address, ranges = ip_address(reservation.ip), [*chain.from_iterable(sets)]
        if not any(address in allocated and address != allocated.gateway for allocated in ranges):
            why = f"{reservation.ip} is not allocated from {', '.join(map(str, ranges))}"
            return Refusal(Reason.OUTSIDE_RANGE, why, lift)
    return None


def whole_sandbox(request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """No component expects a sandbox with only some of its addresses."""
    if request.container_id in context.unread:
        why = f"libcni's cache has another address of it, in {context.unread[request.container_id]}, which is not read"
        return Refusal(Reason.PARTIAL_SANDBOX, why)
    only = context.limits.only
    if only is None or not (others := sorted({*request.ips} - only)):
        return None
    why = f"the sandbox also has {', '.join(others)}; all its addresses are released together"
    return Refusal(Reason.PARTIAL_SANDBOX, why, " ".join(f"--ip={ip}" for ip in request.ips))


def ordered_runtime(_request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """The list of such a runtime lacks sandboxes that are being made, and they have their addresses already."""
    if not (unordered := context.assessment.runtime.without_record_order):
        return None
    named = ", ".join(map(str, unordered))
    return Refusal(
        Reason.RUNTIME_UNORDERED,
        f"{named} is not known to record a sandbox before its address is reserved",
    )


def trusted_runtime(_request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """A runtime can return an incomplete list, mostly after a restart. Trusting it could cost every address."""
    history, snapshot = context.runtime_history, context.snapshot
    if (
        history.suspect_since is not None
        and snapshot.uptime - history.suspect_since <= context.limits.settle
    ):
        return Refusal(
            Reason.RUNTIME_DOUBTFUL, f"{history.why}; its list is trusted again after --settle"
        )
    if isinstance(snapshot.pods, NotRequested):
        return None
    running, missing = context.running
    if running and (missing == running or (running >= MIN_CONTAINERS and missing > running / 2)):
        who = f"{missing} of the {running} pods that run according to the API server"
        return Refusal(
            Reason.RUNTIME_DOUBTFUL,
            f"{context.assessment.runtime.name} lists no container of {who}",
        )
    return None


def settled(_request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """The kubelet retries by itself for minutes after a start. A leak is what it leaves behind.

    No setting is offered, because without this guard an address in use can be lost (docs/proof.md). The
    runtime has answered, so one without a start time runs and was not recognized.
    """
    if not (settle := context.limits.settle):
        return None
    now, processes = context.snapshot.taken_at, context.snapshot.processes.known()
    starts = {"the kubelet": processes.kubelet, "the node": processes.booted}
    starts |= {name: processes.start_of(name) for name in context.assessment.runtime.names}
    if processes.cri_dockerd is not None:  # most nodes have none
        starts["cri-dockerd"] = processes.cri_dockerd
    for name, start in starts.items():
        if start is None:
            return Refusal(
                Reason.UNSETTLED, f"it is not known when {name} started: its process was not found"
            )
    ago, name = min(
        ((now - start).total_seconds(), name) for name, start in starts.items() if start
    )
    if ago >= settle.total_seconds():
        return None
    why = f"{name} started {max(ago, 0):.0f} s ago, and --settle is {settle.total_seconds():.0f} s"
    return Refusal(Reason.UNSETTLED, f"{why}: wait {ceil(settle.total_seconds() - ago)} s")


def plausible_share(request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """If more than this share of a range looks leaked, assume a faulty reading and release nothing.

    Unless the API server confirms the reading: then so much is leaked.
    """
    for network in request.networks:
        share, limit = context.shares[network], context.limits.max_share
        if share <= limit or not (doubt := context.doubts[network]):
            continue
        looks = f"{share:.0%} of network {network} looks leaked"
        why = f"{looks}, --max-share is {limit:.0%}, and {doubt}"
        why += ": first check on the node that the runtime has none of these containers"
        return Refusal(Reason.IMPLAUSIBLE_SHARE, why, "--max-share=100%")
    return None


def plugin_works(request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """While each retry of a pod takes another address, automatic releases only feed it."""
    for network in request.networks if context.limits.unattended else ():
        if leaking := context.retry_leaks.get(network):
            return Refusal(
                Reason.PLUGIN_FAILING,
                f"a CNI plugin of network {network} fails ({leaking}): mend it first",
            )
    return None


def no_host_ports(request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """A release leaves the rules that forward them, and they would lead to the next pod.

    Unknown is not none. But kubenet leaves no record: only ports that were seen object, or it would always be refused.
    """
    if not context.limits.unattended or context.limits.release_host_ports:
        return None
    found = {
        reservation.ip: context.host_ports[reservation] for reservation in request.reservations
    }
    kubenet = (request.networks, context.assessment.runtime.names) == ((KUBENET,), (DOCKER,))
    none = {(), None} if kubenet else {()}
    if not (ports := {ip: forwarded for ip, forwarded in found.items() if forwarded not in none}):
        return None
    why = host_ports.describe_rules(ports)
    if not any(ports.values()):
        record = (
            f"the spec of its pod {request.pod} was not seen"
            if request.pod
            else "no record says whose it was"
        )
        why = f"{record}, and {why}"
    return Refusal(Reason.HOST_PORTS, why, "--release-host-ports=on")


def journal_usable(_request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """No journal, no release: nor would it be known what was released before, and whether cleanup halted.

    A damaged file may say either. A person who releases is told of it.
    """
    if context.journal_trouble:
        return Refusal(Reason.JOURNAL_UNWRITABLE, context.journal_trouble)
    if context.limits.unattended and context.journal_damage:
        return Refusal(
            Reason.JOURNAL_UNWRITABLE,
            f"{context.journal_damage[0]}; it may say that cleanup halted",
        )
    return None


GUARDS: Final[tuple[Guard, ...]] = (
    not_halted, sources_available, allowed_network,
    without_owner, no_plugin_at_work, confirmed, inside_range, whole_sandbox,
    ordered_runtime, trusted_runtime, settled, plausible_share,
    plugin_works, no_host_ports, journal_usable,
)  # fmt: skip
"""Every guard but the budget, which depends on what these let pass. The first objection is the reported reason."""


def _within_budget(decisions: Collection[Decision], context: GuardContext) -> Iterator[Decision]:
    """Let as many addresses pass as the limits permit, in their order."""
    per_sync, per_hour = context.limits.per_sync, context.limits.per_hour
    budget = [
        (*limit, spent) for limit, spent in ((per_sync, 0), (per_hour, context.spent)) if limit
    ]
    passed, ready = (
        0,
        sum(len(request.reservations) for request, refusals in decisions if not refusals),
    )
    for request, refusals in decisions:
        wanted = len(request.reservations)
        if refusals:
            yield request, refusals
        elif any(spent + passed + wanted > limit for _, limit, spent in budget):
            yield request, (_over_budget(ready, budget),)
        else:
            passed += wanted
            yield request, ()


def _over_budget(ready: int, budget: Sequence[tuple[str, int, int]]) -> Refusal:
    """Name the limits that are too low, and the values that would admit all addresses that are `ready`."""
    short = [(setting, limit, spent) for setting, limit, spent in budget if spent + ready > limit]
    left = (
        (setting, count_of(max(limit - spent, 0), "address", "addresses"))
        for setting, limit, spent in short
    )
    allowed = ", ".join(f"{setting} allows {count} now" for setting, count in left)
    lift = " ".join(f"{setting}={ready + spent}" for setting, _, spent in short)
    return Refusal(Reason.OVER_BUDGET, f"{allowed}; ready to release: {ready}", lift)

"""Decides which addresses may be released, and why the others may not. Pure.

An address may be released if no guard refuses. `checks/addresses/classify.py` has already looked
for its owners. `recheck.py` asks the runtime, the kubelet and the kernel again, right before a
release.
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
from typing import Final, NamedTuple, TypeAlias

from agent.checks.addresses import (
    failing_plugin,
    hanging_plugin,
    host_ports,
    leaked_reservation,
    leaked_share,
)
from agent.checks.kubelet_runtime import kubelet_runtime
from agent.cleanup.journal import Journal
from agent.model.assessment import KUBENET, Assessment, State
from agent.model.brake import Brake
from agent.model.bug import bug_of
from agent.model.clocks import PROCESS_START
from agent.model.ranges import RangeSets
from agent.model.release import Limits, Reason, Refusal, ReleaseRequest
from agent.model.report import Report
from agent.model.runtime import DOCKER
from agent.model.settings import AUTO
from agent.model.snapshot import (
    DEFAULT_DATA_DIR,
    InsufficientData,
    Known,
    NotRequested,
    PortMapping,
    Reading,
    Reservation,
    Snapshot,
    Unavailable,
    known_or,
    require_available,
)
from agent.model.text import count_of

_REASON_BY_STATE: Final = {
    State.TEARDOWN_PENDING: Reason.TEARDOWN_PENDING,
    State.UNMANAGED: Reason.ADDRESS_IN_USE,
}
"""States with an owner other than a container of a runtime, and why their release is refused."""
_WITHOUT_CONTAINER: Final = {State.LEAKED, State.CANDIDATE, State.UNKNOWN, *_REASON_BY_STATE}

MIN_CONTAINERS: Final = 4  # to lose more than half of fewer containers than this is normal
_HOUR: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class RuntimeHistory:
    """What earlier snapshots said about the container runtime."""

    running: int = 0
    """Containers that ran, 0 if that is not known. Stopped ones do not count: on a full range each
    attempt to start a pod leaves another."""
    runtime_start: timedelta | None = None  # the uptime at which the runtime started
    suspect_since: timedelta | None = None
    """The uptime at which it was last seen to have restarted, or to have lost most containers."""
    suspicion: str = ""  # the last one

    def after(self, snapshot: Snapshot) -> "RuntimeHistory":
        """Return the history with one more snapshot. Unavailable data changes nothing."""
        name = kubelet_runtime(snapshot).name
        suspicion: str | None = None
        running = self.running
        if isinstance(snapshot.containers, Known):
            running = sum(container.running for container in snapshot.containers.value)
            if self.running >= MIN_CONTAINERS and running < self.running / 2:
                suspicion = (
                    f"{name} listed {self.running} running containers, "
                    f"then {running} in the next snapshot"
                )

        runtime_start = self.runtime_start
        processes = known_or(snapshot.processes, None)
        if processes and (started := processes.start_of(name)):
            runtime_start = started - processes.booted
            if self.runtime_start not in {None, runtime_start}:
                suspicion = f"{name} restarted between two snapshots"

        return RuntimeHistory(
            running=running,
            runtime_start=runtime_start,
            suspect_since=snapshot.uptime if suspicion else self.suspect_since,
            suspicion=suspicion or self.suspicion,
        )


@dataclass(frozen=True, kw_only=True)
class GuardContext:
    """Everything the guards may know in a sync. Facts are computed on first use and cached."""

    report: Report
    runtime_history: RuntimeHistory
    limits: Limits
    actor: str  # of this cleaner's releases in the journal
    journal: Journal
    journal_error: str | None  # why the journal cannot be used, if it cannot
    paused: Mapping[Reservation, tuple[Refusal, ...]] = field(default_factory=dict)
    """Leaks that are left alone for a while, and why; no refusals: their release failed."""

    @property
    def assessment(self) -> Assessment:
        return self.report.assessment

    @property
    def snapshot(self) -> Snapshot:
        return self.report.assessment.snapshot

    @cached_property
    def halted(self) -> str | None:
        """Why cleanup has halted, if it has."""
        return self.journal.why_halted()

    @cached_property
    def restored(self) -> frozenset[str]:
        """The sandboxes that somebody restored, which are released by name only."""
        return self.journal.restored_sandboxes()

    @cached_property
    def networks(self) -> frozenset[str]:
        """The networks that may be cleaned: see `allowed_networks`."""
        return allowed_networks(self.limits, self.snapshot)

    @cached_property
    def unread_directories(self) -> Mapping[str, str]:
        """Container ID -> directory with another address of that sandbox that nodeleak cannot read.

        The network of such an address has a dataDir of its own.
        """
        read = {
            store.directory
            for store in self.snapshot.reservations
            if isinstance(store.reading, Known)
        }

        # No dataDir (its normal path is "."), or the default one: both mean --cni-networks-dir,
        # which has a reading of its own.
        default = ("./", f"{DEFAULT_DATA_DIR}/")

        unread: dict[str, str] = {}
        for result in known_or(self.snapshot.cni_results, ()):
            directory = f"{normpath(result.data_dir)}/{result.network}"
            if directory not in read and not directory.startswith(default):
                unread[result.container_id] = directory
        return unread

    @cached_property
    def ranges(self) -> Mapping[str, RangeSets | InsufficientData]:
        """What each network allocates from, or why that is not known."""
        ranges: dict[str, RangeSets | InsufficientData] = {}
        for store in self.snapshot.reservations:
            try:
                ranges[store.network] = self.assessment.ranges(store.network)
            except InsufficientData as missing:
                ranges[store.network] = missing
        return ranges

    @cached_property
    def running_and_unlisted(self) -> tuple[int, int]:
        """How many pods run according to the API server, and how many of them no runtime lists."""
        running = {pod.name for pod in self.snapshot.pods.known() if pod.has_sandbox}
        listed = {container.pod for container in self.snapshot.containers.known()}
        return len(running), len(running - listed)

    @cached_property
    def retry_leaks(self) -> Mapping[str, failing_plugin.RetryLeak]:
        """The networks in which each retry of a pod takes another address."""
        return failing_plugin.retry_leaks(self.assessment)

    @cached_property
    def host_ports(self) -> Mapping[Reservation, tuple[PortMapping, ...] | None]:
        """The ports of the node that may still be forwarded to an address; None: not known."""
        return host_ports.forwarded(self.assessment, self.assessment.classified)

    @cached_property
    def doubted_shares(self) -> Mapping[str, tuple[float, str]]:
        """The share of leaks in each network where it is above --max-share and not confirmed.

        With the reason why the API server does not confirm it.
        """
        doubted: dict[str, tuple[float, str]] = {}
        for network in {reservation.network for reservation in self.assessment.classified}:
            share = leaked_share.share(self.assessment, network)
            if share > self.limits.max_share:
                doubt = leaked_share.doubt(self.assessment, network)
                if doubt:
                    doubted[network] = (share, doubt)
        return doubted


def allowed_networks(limits: Limits, snapshot: Snapshot) -> frozenset[str]:
    """Return the networks that may be cleaned.

    For `auto`: those that the CNI configuration of the kubelet's runtime names.
    """
    if AUTO not in limits.networks:
        return limits.networks
    configured = {
        network.name for network in known_or(snapshot.networks, ()) if network.may_use_host_local
    }
    return (limits.networks - {AUTO}) | configured


Guard: TypeAlias = Callable[[ReleaseRequest, GuardContext], Refusal | None]
Decision: TypeAlias = tuple[ReleaseRequest, tuple[Refusal, ...]]
"""A request and every refusal of it; it may be released if there is none."""


def decide(context: GuardContext) -> tuple[Decision, ...]:
    """Return every request with the refusals of all guards, the oldest first.

    A paused request that passes the guards is refused once more as it was after the guards, such as
    by the probe. If its release failed instead, it is left out until the pause ends.
    """
    requests = sorted(release_requests(context.assessment, context.limits.only), key=_age_order)

    decisions: list[Decision] = []
    for request in requests:
        refusals = tuple(_refusals(request, context))
        paused = [leak for leak in request.reservations if leak in context.paused]
        if paused and not refusals:
            refusals = context.paused[paused[0]]
            if not refusals:
                continue
        decisions.append((request, refusals))
    return tuple(_within_budget(decisions, context))


def _age_order(request: ReleaseRequest) -> tuple[int, tuple[str, str]]:
    """Sort key: the sandboxes with the oldest files first."""
    oldest = min(reservation.mtime_ns for reservation in request.reservations)
    return oldest, request.reservations[0].key


def release_requests(
    assessment: Assessment, only: Collection[str] | None = None
) -> tuple[ReleaseRequest, ...]:
    """Return a request for each sandbox that no runtime lists. Each empty file counts as a sandbox.

    `only`: the sandboxes with one of these addresses.
    """
    if not isinstance(assessment.snapshot.containers, Known):
        return ()
    sandboxes: defaultdict[tuple[str, ...], list[Reservation]] = defaultdict(list)
    for reservation, entry in assessment.classified.items():
        if entry.state in _WITHOUT_CONTAINER:
            empty_file = ("", entry.network, entry.name)
            sandbox = (entry.container_id,) if entry.container_id else empty_file
            sandboxes[sandbox].append(reservation)

    keeps_results = assessment.runtime.deletes_at_start
    requests: list[ReleaseRequest] = []
    for reservations in sandboxes.values():
        if only is not None and not any(leak.ip in only for leak in reservations):
            continue
        pods = (assessment.classified[reservation].pod for reservation in reservations)
        requests.append(
            ReleaseRequest(
                reservations=tuple(sorted(reservations, key=lambda leak: leak.key)),
                pod=next(filter(None, pods), ""),
                keeps_results=keeps_results,
            )
        )
    return tuple(requests)


def _refusals(request: ReleaseRequest, context: GuardContext) -> Iterator[Refusal]:
    """Yield what each guard says. One that lacks data, or raises, refuses."""
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


def not_braked(_request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """Whoever set the brake wants no release anywhere, whatever the evidence."""
    return refusal_of_brake(context.snapshot.brake)


def refusal_of_brake(brake: Reading[Brake]) -> Refusal | None:
    """Refuse unless the brake is known to be off, or no setting names one."""
    match brake:
        case NotRequested() | Known(value=Brake(on=False)):
            return None
        case Known():
            return Refusal(Reason.BRAKE_ON, brake.value.description)
        case Unavailable():
            return Refusal(Reason.SOURCE_UNAVAILABLE, f"{brake.source}: {brake.why}")


def chosen_node(_request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """The daemon may clean only nodes with a label. A Node that is not known does not have it."""
    label = context.limits.node_label
    if not label:
        return None

    node = context.snapshot.node.known()
    if node is not None and label in node.labels:
        return None
    what = "the Node has no label" if node else "there is no Node with a label"
    why = f"{what} {label} (--cleanup-node-label): the daemon only observes here"
    return Refusal(Reason.NODE_NOT_CHOSEN, why)


def sources_available(_request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """One unavailable source is enough to release nothing."""
    unavailable = context.snapshot.unavailable_about_addresses()
    if not unavailable:
        return None
    why = "; ".join(f"{source.source}: {source.why}" for source in unavailable)
    return Refusal(Reason.SOURCE_UNAVAILABLE, why)


def allowed_network(request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """The IDs of another network may belong to another runtime. They would all look leaked."""
    denied = [name for name in request.networks if name not in context.networks]
    if not denied:
        return None

    wider = ",".join(sorted(context.limits.networks.union(denied)))
    return Refusal(
        Reason.NETWORK_NOT_ALLOWED,
        f"cleanup is not allowed in network {', '.join(denied)}",
        f"--cleanup-network={wider}",
        networks=tuple(denied),
    )


def without_owner(request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """Refuses if a live pod, the kubelet or something on the node has an address of the sandbox.

    Pod status can prove that an address is in use, never that it is leaked. It is optional
    (`--api=off`).
    """
    index = context.assessment.index
    sandbox = request.container_id
    require_available(context.snapshot.pods)
    for reservation in request.reservations:
        classified = context.assessment.classified[reservation]
        claimed = reservation.ip in index.claims
        held = (
            reservation.ip in index.holders
            or sandbox in index.checkpoints
            or sandbox in index.mounted_namespaces
        )
        # Either refuses; the condition only chooses the reason.
        if classified.state in _REASON_BY_STATE and (held or not claimed):
            return Refusal(_REASON_BY_STATE[classified.state], classified.why)
        if claimed:
            why = f"pod {index.claims[reservation.ip]} has {reservation.ip}"
            return Refusal(Reason.CLAIMED_BY_POD, why)
    return None


def no_plugin_at_work(request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """An ADD may outlive its runtime, and then give the address to a sandbox that nobody lists.

    A plugin that runs for longer than `PLUGIN_TIMEOUT` always blocks: its start time is unreliable
    if the clock was set.
    """
    last_reserved_at = max(reservation.mtime for reservation in request.reservations)
    for plugin in context.snapshot.processes.known().plugins:
        age = context.snapshot.taken_at - plugin.started
        started_before = plugin.started - last_reserved_at <= PROCESS_START
        if started_before or age >= hanging_plugin.PLUGIN_TIMEOUT:
            why = (
                f"the CNI plugin {plugin.command} (process {plugin.pid}) has been running "
                f"for {age.total_seconds():.0f} s, and may have reserved the address"
            )
            return Refusal(Reason.PLUGIN_AT_WORK, why)
    return None


def confirmed(request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """A leak is older than the grace period by its mtime, and the same in two snapshots."""
    for reservation in request.reservations:
        age = context.snapshot.taken_at - reservation.mtime
        if refusal := _too_young(age, context.limits.grace):
            return refusal

    for gap in context.report.gaps:
        if gap.broken and gap.detector == leaked_reservation.NAME:
            return Refusal(Reason.NOT_CONFIRMED, f"the check of leaks failed: {gap.why}")
    for reservation in request.reservations:
        classified = context.assessment.classified[reservation]
        if classified.state is not State.LEAKED:
            why = f"its state is {classified.state.value}: {classified.why}"
            return Refusal(Reason.NOT_CONFIRMED, why)
    return _only_by_name(request, context)


def _too_young(age: timedelta, grace: timedelta) -> Refusal | None:
    seconds = age.total_seconds()
    if seconds < 0:
        why = f"the file is {-seconds:.0f} s newer than the snapshot"
        return Refusal(Reason.NOT_CONFIRMED, why)
    if age < grace:
        why = f"{seconds:.0f} s old, and --grace is {grace.total_seconds():.0f} s"
        return Refusal(Reason.NOT_CONFIRMED, why, "--grace=0s", wait=grace - age)
    return None


def _only_by_name(request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """Refuse what somebody may want to keep, unless it was requested by name."""
    if context.limits.only is not None:
        return None
    if not request.container_id:
        why = "its file is empty: somebody may have made it to keep the address free"
    elif request.container_id in context.restored:
        why = (
            "somebody restored it after a release: "
            "whoever has the address may be visible to nobody here"
        )
    else:
        return None
    return Refusal(Reason.NOT_CONFIRMED, why, _by_name(request))


def _by_name(request: ReleaseRequest) -> str:
    """Return the options that request all addresses of the sandbox by name."""
    return " ".join(f"--ip={ip}" for ip in request.ips)


def inside_range(request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """An address outside the range belongs to an earlier pod CIDR or to another program."""
    for reservation in request.reservations:
        if reservation.ip in (context.limits.only or ()):
            continue
        sets = context.ranges[reservation.network]
        if isinstance(sets, InsufficientData):
            return Refusal(Reason.OUTSIDE_RANGE, str(sets), _by_name(request))

        address = ip_address(reservation.ip)
        ranges = [*chain.from_iterable(sets)]
        if not any(address in range_ and address != range_.gateway for range_ in ranges):
            why = f"{reservation.ip} is not allocated from {', '.join(map(str, ranges))}"
            return Refusal(Reason.OUTSIDE_RANGE, why, _by_name(request))
    return None


def whole_sandbox(request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """No component expects a sandbox with only some of its addresses."""
    if directory := context.unread_directories.get(request.container_id):
        why = f"libcni's cache has another address of it, in {directory}, which is not read"
        return Refusal(Reason.PARTIAL_SANDBOX, why)

    only = context.limits.only
    if only is None or not (unnamed := sorted({*request.ips} - only)):
        return None
    why = f"the sandbox also has {', '.join(unnamed)}; all its addresses are released together"
    return Refusal(Reason.PARTIAL_SANDBOX, why, _by_name(request))


def ordered_runtime(_request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """A runtime that records a sandbox late does not list it while it has its address already."""
    unordered = context.assessment.runtime.without_record_order
    if not unordered:
        return None
    names = ", ".join(map(str, unordered))
    why = f"{names} is not known to record a sandbox before its address is reserved"
    return Refusal(Reason.RUNTIME_UNORDERED, why)


def trusted_runtime(_request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """A runtime's list can be incomplete, mostly after a restart: every address would leak."""
    history = context.runtime_history
    snapshot = context.snapshot
    since = history.suspect_since
    if since is not None and snapshot.uptime - since <= context.limits.settle:
        why = f"{history.suspicion}; its list is trusted again after --settle"
        wait = context.limits.settle - (snapshot.uptime - since)
        return Refusal(Reason.RUNTIME_DOUBTFUL, why, wait=wait)

    if isinstance(snapshot.pods, NotRequested):
        return None

    running, unlisted = context.running_and_unlisted
    lacks_most = running >= MIN_CONTAINERS and unlisted > running / 2
    if running and (unlisted == running or lacks_most):
        pods = f"{unlisted} of the {running} pods that run according to the API server"
        why = f"{context.assessment.runtime.name} lists no container of {pods}"
        return Refusal(Reason.RUNTIME_DOUBTFUL, why)
    return None


def settled(_request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """For minutes after a start the kubelet retries teardowns. Only what remains then is leaked.

    The refusal suggests no setting, because without this guard an address in use can be lost
    (docs/proof.md).
    The runtime has answered, so one without a start time runs and was not recognized.
    """
    settle = context.limits.settle.total_seconds()
    if not settle:
        return None

    processes = context.snapshot.processes.known()
    starts = {"the kubelet": processes.kubelet, "the node": processes.booted}
    starts |= {name: processes.start_of(name) for name in context.assessment.runtime.names}
    if processes.cri_dockerd is not None:  # most nodes have none
        starts["cri-dockerd"] = processes.cri_dockerd

    ages: list[tuple[float, str]] = []
    for name, start in starts.items():
        if start is None:
            why = f"it is not known when {name} started: its process was not found"
            return Refusal(Reason.UNSETTLED, why)
        ages.append(((context.snapshot.taken_at - start).total_seconds(), name))

    age, name = min(ages)
    if age >= settle:
        return None
    why = (
        f"{name} started {max(age, 0):.0f} s ago, and --settle is {settle:.0f} s: "
        f"wait {ceil(settle - age)} s"
    )
    return Refusal(Reason.UNSETTLED, why, wait=timedelta(seconds=settle - age))


def plausible_share(request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """If more than this share of a range looks leaked, assume a faulty reading: release nothing.

    Unless the API server confirms the reading: then so much is leaked.
    """
    for network in request.networks:
        if network in context.doubted_shares:
            share, doubt = context.doubted_shares[network]
            why = (
                f"{share:.0%} of network {network} looks leaked, "
                f"--max-share is {context.limits.max_share:.0%}, and {doubt}: "
                "first check on the node that the runtime has none of these containers"
            )
            return Refusal(Reason.IMPLAUSIBLE_SHARE, why, "--max-share=100%")
    return None


def plugin_works(request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """While each retry of a pod takes another address, automatic releases only feed it."""
    if not context.limits.unattended:
        return None
    for network in request.networks:
        if leaking := context.retry_leaks.get(network):
            why = f"a CNI plugin of network {network} fails ({leaking}): repair it first"
            return Refusal(Reason.PLUGIN_FAILING, why)
    return None


def no_host_ports(request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """A release leaves the rules that forward host ports, and they would lead to the next pod.

    Ports that are not known count as forwarded, except with kubenet, which leaves no record of
    them: every release would be refused.
    """
    if not context.limits.unattended or context.limits.release_host_ports:
        return None
    is_kubenet = request.networks == (KUBENET,) and context.assessment.runtime.names == (DOCKER,)

    ports = {leak.ip: context.host_ports[leak] for leak in request.reservations}
    ports = {
        ip: forwarded
        for ip, forwarded in ports.items()
        if forwarded or (forwarded is None and not is_kubenet)
    }
    if not ports:
        return None

    why = host_ports.describe_rules(ports)
    if not any(ports.values()):
        record = "no record says whose it was"
        if request.pod:
            record = f"the spec of its pod {request.pod} was not seen"
        why = f"{record}, and {why}"
    return Refusal(Reason.HOST_PORTS, why, "--release-host-ports=on")


def journal_usable(_request: ReleaseRequest, context: GuardContext) -> Refusal | None:
    """Without the journal, a release could not be undone, and a recorded halt would be missed.

    A damaged entry may hide a halt too. A person who releases is told of it; the daemon is refused.
    """
    if context.journal_error:
        return Refusal(Reason.JOURNAL_UNWRITABLE, context.journal_error)
    if context.limits.unattended and context.journal.damage:
        why = f"{context.journal.damage[0]}; it may say that cleanup halted"
        return Refusal(Reason.JOURNAL_UNWRITABLE, why)
    return None


GUARDS: Final[tuple[Guard, ...]] = (
    not_halted, not_braked, chosen_node, sources_available, allowed_network,
    without_owner, no_plugin_at_work, confirmed, inside_range, whole_sandbox,
    ordered_runtime, trusted_runtime, settled, plausible_share,
    plugin_works, no_host_ports, journal_usable,
)  # fmt: skip
"""Every guard but the budget, which depends on what these let pass, in order of importance."""


class _Budget(NamedTuple):
    setting: str
    limit: int  # addresses
    spent: int


def _within_budget(decisions: Collection[Decision], context: GuardContext) -> Iterator[Decision]:
    """Let as many addresses pass as the limits permit, in their order."""
    budgets: list[_Budget] = []
    if per_sync := context.limits.per_sync:
        budgets.append(_Budget(*per_sync, spent=0))
    if per_hour := context.limits.per_hour:
        since = context.snapshot.taken_at - _HOUR
        spent = context.journal.released_since(since, context.actor)
        budgets.append(_Budget(*per_hour, spent=spent))

    ready = sum(len(request.reservations) for request, refusals in decisions if not refusals)
    passed = 0

    for request, refusals in decisions:
        if refusals:
            yield request, refusals
            continue
        wanted = passed + len(request.reservations)
        if any(budget.spent + wanted > budget.limit for budget in budgets):
            yield request, (_over_budget(ready, budgets),)
        else:
            passed = wanted
            yield request, ()


def _over_budget(ready: int, budgets: Sequence[_Budget]) -> Refusal:
    """Name the limits that are too low, and the options that would admit all `ready` addresses."""
    too_low = [budget for budget in budgets if budget.spent + ready > budget.limit]
    allowed: list[str] = []
    for budget in too_low:
        left = count_of(max(budget.limit - budget.spent, 0), "address", "addresses")
        allowed.append(f"{budget.setting} allows {left} now")
    options = " ".join(f"{budget.setting}={budget.spent + ready}" for budget in too_low)
    why = f"{', '.join(allowed)}; ready to release: {ready}"
    return Refusal(Reason.OVER_BUDGET, why, options)

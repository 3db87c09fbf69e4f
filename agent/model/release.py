"""Releases: what can be given back, why an address is refused, and the outcome of each attempt."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from agent.model.bug import Bug
from agent.model.finding import LeakCause
from agent.model.remedy import Remedy
from agent.model.snapshot import Reservation, ReservationKey, Unavailable
from agent.model.word import Word


class Reason(Word):
    """Why an address is refused: the closed list of reasons. Users read the text below each."""

    HALTED = (
        "halted",
        """A released container reappeared, so cleanup cannot be trusted on this node.
        No setting overrides it. Run `nodeleak clean`, or see the runbook NodeleakCleanupHalted, for
        what to do.""",
    )
    BRAKE_ON = (
        "brake_on",
        """Somebody set the brake, which stops every release in the cluster.
        No setting overrides it while --brake names it. `kubectl nodeleak brake` says since when
        and why it is on, and `kubectl nodeleak brake off` ends it.""",
    )
    NODE_NOT_CHOSEN = (
        "node_not_chosen",
        """The Node lacks the label that --cleanup-node-label names, so the daemon only observes
        here. `nodeleak clean` is not refused.
        No setting overrides it. Label the Node: `kubectl label node NODE
        nodeleak.dev/cleanup=auto`, or whatever the setting names.""",
    )
    SOURCE_UNAVAILABLE = (
        "source_unavailable",
        """A source could not be read, and it could hold evidence of an owner, or the brake.
        No setting overrides it. `nodeleak clean` names the source; `nodeleak explain` it.""",
    )
    NETWORK_NOT_ALLOWED = (
        "network_not_allowed",
        """The network is not one that may be cleaned.
        Overridden by: --cleanup-network, with the network's name or auto.""",
    )
    CONTAINER_EXISTS = (
        "container_exists",
        """The container runtime has a container or sandbox with this ID.
        No setting overrides it. The kubelet removes it.""",
    )
    TEARDOWN_PENDING = (
        "teardown_pending",
        """A sandbox checkpoint exists: its teardown is incomplete.
        No setting overrides it. If it lasts, run `nodeleak explain stuck_teardown`.""",
    )
    ADDRESS_IN_USE = (
        "address_in_use",
        """Something on this node has the address: a process, a mounted network namespace, a
        route of its own, or whatever answers a probe of it (run `nodeleak explain probe`).
        No setting overrides it. Run `nodeleak explain unmanaged_address`.""",
    )
    PROBE_UNANSWERED = (
        "probe_unanswered",
        """The probe could not tell whether the address is in use: nothing answered, and the
        node did not report it unreachable. A firewall may drop the probe. Or the address cannot
        be probed, and a network namespace is mounted whose sandbox is not known.
        No setting overrides it. Run cleanup again. If it lasts, see the runbook
        NodeleakUnmanagedAddress.""",
    )
    PLUGIN_AT_WORK = (
        "plugin_at_work",
        """A CNI plugin that may have reserved the address is still running: it outlives its
        runtime, and may yet give the address to a pod.
        No setting overrides it. It passes when the plugin ends. If it hangs, end its process.""",
    )
    CLAIMED_BY_POD = (
        "claimed_by_pod",
        """According to the API server, a live pod has the address.
        No setting overrides it. It ends with the pod.""",
    )
    NOT_CONFIRMED = (
        "not_confirmed",
        """The reservation is younger than --grace, or no leak in two snapshots, or its file is
        empty or was restored.
        Overridden by: --grace, for its age; --ip, for the last two. Otherwise run `nodeleak clean`
        again.""",
    )
    OUTSIDE_RANGE = (
        "outside_range",
        """The network does not allocate this address on this node.
        Overridden by: --ip, for an address that you have checked yourself: it may belong to another
        program.""",
    )
    PARTIAL_SANDBOX = (
        "partial_sandbox",
        """The sandbox has another address that was not requested. All addresses of a sandbox
        are released together, and none where another one is in a directory that is not read.
        Overridden by: --ip, with all of them.""",
    )
    RUNTIME_DOUBTFUL = (
        "runtime_doubtful",
        """The list of containers is not trusted: it lacks running pods, or most of it has just
        disappeared.
        No setting overrides it. It passes with time after a restart. If not, compare the runtime's
        list (`docker ps`, `crictl pods`) with the node's pods.""",
    )
    RUNTIME_UNORDERED = (
        "runtime_unordered",
        """The container runtime is too old, or its version is unknown: it may record a sandbox
        only after its address is reserved. A reservation without a record may then belong to a
        pod that is starting.
        No setting overrides it. Upgrade it: containerd to 1.6.9 or later (or 1.5.15), CRI-O to 1.20
        or later.""",
    )
    UNSETTLED = (
        "unsettled",
        """The kubelet, the container runtime, cri-dockerd or the node started recently, or it
        is not known when. The kubelet's own retries come first.
        No setting overrides it. It passes by itself, once all of them have run for --settle.""",
    )
    IMPLAUSIBLE_SHARE = (
        "implausible_share",
        """So much of the range looks leaked that a faulty reading is more likely, and the API
        server does not confirm it. It does if the runtime lists a running sandbox of every pod
        of this node that has an address, and at least four of these pods are in the network.
        Overridden by: --max-share, after you have checked on the node that these containers are
        gone.""",
    )
    PLUGIN_FAILING = (
        "plugin_failing",
        """A CNI plugin fails, and each retry of a pod takes another address of this network:
        what the daemon releases would be taken again.
        No setting overrides it. Repair the plugin: run `nodeleak explain failing_plugin`. Only the
        daemon refuses: `nodeleak clean` does not.""",
    )
    HOST_PORTS = (
        "host_ports",
        """Rules in iptables or nftables may still forward host ports to the address. nodeleak
        does not remove them, and they would lead to the next pod that gets it.
        Overridden by: --release-host-ports. Only the daemon refuses: `nodeleak clean` does not.""",
    )
    JOURNAL_UNWRITABLE = (
        "journal_unwritable",
        """The journal cannot be read or written. Nothing is released without a journal entry.
        Or a file of it is damaged, which may say that cleanup halted: then only the daemon
        refuses.
        No setting overrides it. Make --state-dir writable. `clean --apply` exits with 74 then, a
        dry run with 6. Move a damaged file to another directory, after you have read what is left
        of it.""",
    )
    OVER_BUDGET = (
        "over_budget",
        """The limit on releases is reached for now.
        Overridden by: --max, --max-per-sync, --max-per-hour. It passes by itself.""",
    )
    JOURNAL_FULL = (
        "journal_full",
        """The journal has no room for more releases now. It keeps each for 24 hours, so that it
        can be restored. It never drops an entry that is restored, unfinished, halted or
        damaged.
        No setting overrides it. It passes by itself, unless all entries are of these kinds. Then
        move those that are no longer needed to another directory, such as restored ones whose
        pod has ended.""",
    )
    ENTRY_TOO_LARGE = (
        "entry_too_large",
        """The journal could not read the entry of this release again, because the sandbox's
        results in libcni's cache have megabytes. So the release could not be restored.
        No setting overrides it. Move the files that the message names to another directory.""",
    )
    GUARD_FAILED = (
        "guard_failed",
        """A guard failed because of a bug in nodeleak, so it is unknown whether it would
        refuse.
        No setting overrides it. Report the bug with its traceback, which `nodeleak clean` prints
        and the agent logs.""",
    )
    SNAPSHOT_EXPIRED = (
        "snapshot_expired",
        """The snapshot was too old by the time this address came up for release.
        No setting overrides it. Run cleanup again; the daemon does so by itself.""",
    )


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What a probe of one address found. It can only refuse a release."""

    why: str
    reason: Reason | None = None  # of a refusal; None: it refuses nothing
    conclusive: bool = True
    """False: the address could not be asked, or its silence would prove nothing."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why one guard, the probe, the recheck or the journal refuses a release."""

    reason: Reason
    why: str
    setting: str = ""  # the option, with its value, that would lift it; empty if no option should
    networks: tuple[str, ...] = ()  # that have to be allowed, where the option names networks
    wait: timedelta | None = None  # until it passes by itself; None: that is not known, or it won't
    bug: Bug | None = None  # why the guard failed, if it did


class Verdict(Word):
    """The outcome for an address."""

    RELEASED = "released", "The reservation was removed. The journal can restore it."
    WOULD_RELEASE = "would_release", "Every guard passed. This was a dry run."
    REFUSED = "refused", "A guard refused it, or the recheck did."
    CHANGED = (
        "changed",
        """Under the lock, the file was not the one that was assessed. The race was lost and
        nothing was touched.""",
    )
    GONE = "gone", "Another process, most likely the kubelet, had already released it."
    BUSY = (
        "busy",
        """Another process held a lock for longer than `--lock-timeout`. Nothing was changed.
        Do: try again. If it lasts, find that process (runbook NodeleakReleasesFailing).""",
    )
    INTERRUPTED = (
        "interrupted",
        "A signal ended the run before this release began. Nothing was touched.",
    )
    FAILED = (
        "failed",
        """The release failed. The reservation is where it was, or the next cleanup puts it
        back.
        Do: repair what the message names (runbook NodeleakReleasesFailing), then try again.""",
    )
    IN_DOUBT = (
        "in_doubt",
        """Only in the journal: the agent was killed during the release, and a reservation is
        gone since. It is not known who removed it.""",
    )


PERMISSIONS: Final = frozenset({Reason.BRAKE_ON, Reason.NODE_NOT_CHOSEN, Reason.OVER_BUDGET})
"""Refusals that say nothing about the address: somebody does not want it released here and now."""
CLEANER: Final = "cleaner"
"""The part (`Bug.part`) whose failure leaves a cleanup without outcomes."""
RESULTS: Final = tuple(verdict for verdict in Verdict if verdict is not Verdict.IN_DOUBT)
"""The outcomes of a cleanup."""
MISSED = (Verdict.CHANGED, Verdict.GONE, Verdict.BUSY, Verdict.INTERRUPTED, Verdict.FAILED)
"""The outcomes, other than a release, for an address that passed every guard."""


@dataclass(frozen=True, slots=True)
class ReleaseRequest:
    """All addresses of one sandbox, released together or not at all.

    An empty file names no sandbox, and is a request of its own.
    """

    reservations: tuple[Reservation, ...]
    pod: str = ""
    keeps_results: bool = False
    """The runtime calls DEL for libcni's cached result when it starts, so that the result is left
    in place for it."""

    @property
    def container_id(self) -> str:
        return self.reservations[0].container_id

    @property
    def ips(self) -> tuple[str, ...]:
        return tuple(reservation.ip for reservation in self.reservations)

    @property
    def networks(self) -> tuple[str, ...]:
        return tuple(sorted({reservation.network for reservation in self.reservations}))

    @property
    def directories(self) -> tuple[str, ...]:
        """The directories of these networks (`Reservation.directory`)."""
        return tuple(sorted({reservation.directory for reservation in self.reservations}))


@dataclass(frozen=True, slots=True)
class Outcome:
    request: ReleaseRequest
    verdict: Verdict
    refusals: tuple[Refusal, ...] = ()  # the most important first
    why: str = ""  # what happened, if it was not a refusal
    entry: str = ""  # the name of the journal entry, if there is one
    waited: float | None = None
    """Seconds until the agent held host-local's locks; None if it did not try."""
    held: float | None = None  # seconds for which it held them


class BlockedBy(Word):
    """Why no release is possible here, whatever is leaked. Users read the text below each."""

    HALTED = (
        "halted",
        """A released container reappeared, so cleanup cannot be trusted on this node.
        Do: see the runbook NodeleakCleanupHalted.""",
    )
    BRAKE_ON = (
        "brake_on",
        """Somebody set the brake, which stops every release in the cluster.
        Do: read its reason with `kubectl nodeleak brake`. `kubectl nodeleak brake off` ends it.""",
    )
    NO_CLEANUP_NETWORK = (
        "no_cleanup_network",
        """--cleanup-network is not set, so no network may be cleaned.
        Do: in a pod, release with a Job (kubectl nodeleak clean-job), or apply
        deploy/overlays/cleanup-exec; both set it. Elsewhere, add --cleanup-network=auto.""",
    )
    NETWORK_UNWRITABLE = (
        "network_unwritable",
        """The directories of host-local's reservations are mounted read-only, or this process
        may not change them.
        Do: in a pod, release with a Job (kubectl nodeleak clean-job), or apply
        deploy/overlays/cleanup-exec; both mount them writable. Elsewhere, run as root.""",
    )
    JOURNAL_UNWRITABLE = (
        "journal_unwritable",
        """The journal cannot be read or written. Nothing is released without a journal entry.
        Do: make --state-dir writable, with space left on its disk.""",
    )
    JOURNAL_FULL = (
        "journal_full",
        """The journal has no room for another release. It keeps each for 24 hours, so that it
        can be restored, and some entries longer.
        Do: wait until its oldest entry is 24 hours old, or do what the message says.""",
    )


@dataclass(frozen=True, slots=True)
class Blocker:
    """One reason why no release is possible here, whatever is leaked."""

    by: BlockedBy
    problem: str
    remedy: Remedy | None = None  # None: the problem says what to do, or nothing can be done
    network: str | None = None  # the only network that it is about; None: all of them

    @property
    def why(self) -> str:
        """The problem and its remedy, in one line."""
        return f"{self.problem}: {self.remedy.text}" if self.remedy else self.problem


@dataclass(frozen=True, slots=True)
class NotReleasable:
    """An address that was requested by name and has nothing to release."""

    ip: str
    why: str
    network: str = ""  # empty: it is reserved in no network


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What cleanup may release."""

    networks: frozenset[str]  # their names, or `AUTO`
    grace: timedelta
    settle: timedelta
    max_share: float  # of a range, from 0 to 1; more only if the API server confirms the reading
    only: frozenset[str] | None = None  # the addresses requested by name; None: any
    per_sync: tuple[str, int] | None = None  # the setting, and how many addresses; None: any number
    per_hour: tuple[str, int] | None = None
    unattended: bool = False  # nobody watches: the daemon cleans
    node_label: str = ""  # `KEY=VALUE` that the Node must have; empty: none
    release_host_ports: bool = False
    """Unattended, release also addresses to which host ports may still be forwarded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaning:
    """What one cleanup decided and did."""

    node: str
    taken_at: datetime
    dry_run: bool
    outcomes: tuple[Outcome, ...] = ()
    not_releasable: tuple[NotReleasable, ...] = ()  # requested by name: in use or not reserved
    unavailable: tuple[Unavailable, ...] = ()
    halted: str | None = None  # why cleanup has halted, if it has
    blockers: tuple[Blocker, ...] = ()
    """Of a dry run: why `--apply` could release nothing here, or in a network.

    Of failed releases: what could not be written.
    """
    free_before: Mapping[str, int | None] = field(default_factory=dict)
    """Free addresses by network, as of the snapshot; None if the range is not known."""
    free_after: Mapping[str, int | None] = field(default_factory=dict)
    """The same without what was or would be released."""
    causes: Mapping[ReservationKey, LeakCause] = field(default_factory=dict)
    """The likely causes of leaks, where they are known."""
    warnings: tuple[str, ...] = ()  # other news for the operator, such as damage to the journal
    docker: bool = False
    """Whether the pods' runtime is docker."""
    bugs: tuple[Bug, ...] = ()
    """What failed in this cleanup because of a bug of the agent: guards, or the cleaner itself."""

    def tally(self) -> Counter[Verdict]:
        """Count addresses, not sandboxes, by verdict."""
        return Counter(
            outcome.verdict for outcome in self.outcomes for _ in outcome.request.reservations
        )

    def releasable(self) -> Counter[str] | None:
        """Count the addresses by network that only a permission keeps from a release now.

        Or that this cleanup would have released if it were none that only reports. None: it is not
        known, as some data are unavailable.
        """
        if self.unavailable or self.broken:
            return None
        counts = Counter[str]()
        for outcome in self.outcomes:
            reasons = {refusal.reason for refusal in outcome.refusals}
            is_permitted = outcome.verdict is Verdict.WOULD_RELEASE
            if is_permitted or (reasons and reasons <= PERMISSIONS):
                counts.update(leak.network for leak in outcome.request.reservations)
        return counts

    def with_pods(self, pods: Mapping[str, str]) -> "Cleaning":
        """Name the pods of sandboxes that have none, for display. `pods`: by container ID."""
        outcomes: list[Outcome] = []
        for outcome in self.outcomes:
            request = outcome.request
            pod = request.pod or pods.get(request.container_id, "")
            outcomes.append(replace(outcome, request=replace(request, pod=pod)))
        return replace(self, outcomes=tuple(outcomes))

    @property
    def broken(self) -> str:
        """Why the cleaner itself failed, so that the outcomes are not known; empty: it did not."""
        return next((bug.reason for bug in self.bugs if bug.part == CLEANER), "")

    @property
    def failed(self) -> bool:
        return any(outcome.verdict in {Verdict.BUSY, Verdict.FAILED} for outcome in self.outcomes)

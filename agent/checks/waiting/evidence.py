"""What this node itself shows about why pods wait. Pure.

Evidence proves if it is what the message says, read independently here. It only fits if it would
stop pods too, and nothing shows that it stops these. It contradicts if what the message says is no
longer so.
"""

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Final, NamedTuple

from agent.checks.host_local_ranges import refusal
from agent.checks.kubelet_service import LOG_FILES, lacks_kubelet
from agent.checks.node_network import (
    blocking_files,
    hanging_plugin,
    missing_subnet_env,
    why_no_network,
)
from agent.checks.waiting_pods import are_exhausted, is_recent
from agent.model import catalog
from agent.model.assessment import Assessment, State, or_none
from agent.model.catalog import Entry
from agent.model.finding import WaitCause
from agent.model.node_network import CniFile, CniFiles, Disk
from agent.model.remedy import Remedy
from agent.model.runtime import CONTAINERD
from agent.model.snapshot import NotRequested, SandboxFailure, Snapshot, known_or
from agent.model.text import count_of, format_age, join_few, join_names

_FULL: Final = 2**20
"""Bytes. With less, a file of host-local or libcni may not be written."""
DISK: Final = frozenset({
    "reservations_disk_full", "reservations_not_writable", "cached_result_not_written",
    "no_space", "read_only",
})  # fmt: skip
SUBNET_ENV: Final = frozenset({"flannel_subnet_env", "flannel_subnet_env_incomplete"})
REFUSED: Final = frozenset({"host_bits", "invalid_ranges", "no_ranges"})
BRIDGE_ADDRESS: Final = "bridge_other_address"
NO_BINARY: Final = "plugin_binary_missing"
ATTEMPT_LASTS: Final = frozenset({
    "container_name_reserved", "crio_ready_next_retry", "crio_stage", "deadline_exceeded",
    "runtime_slow", "sandbox_name_reserved",
})  # fmt: skip
"""The entries by which an attempt to make the sandbox does not end."""

_CONFIGURATION: Final = "broken_cni_config"
_FULL_RANGE: Final = "exhausted_range"
HANGING: Final = "hanging_plugin"
_REFUSED_RANGE: Final = "wrong_range"
STOPPED: Final = "stopped_kubelet"


class Weight(StrEnum):
    """What evidence is worth, in the words that introduce it."""

    PROOF = "proof on this node: "
    FITS = "it fits that "
    CONTRADICTION = "but "


class Evidence(NamedTuple):
    text: str
    weight: Weight = Weight.FITS
    detector: str = ""
    """The one that tells this as a fault, and what to do about it; empty: none does."""
    remedy: Remedy | None = None
    """What to do about it, if no detector tells it."""


class Situation(NamedTuple):
    """What evidence is looked for."""

    cause: WaitCause
    failure: SandboxFailure | None
    assessment: Assessment
    pods: frozenset[str] = frozenset()
    """The uids of those that wait."""
    on_host: bool = False
    """Whether all of them are in the node's network."""

    @property
    def snapshot(self) -> Snapshot:
        return self.assessment.snapshot

    @property
    def entry(self) -> str:
        return self.failure.entry if self.failure else ""

    @property
    def plugin(self) -> str:
        return self.failure.plugin if self.failure else ""


def gather(situation: Situation) -> list[Evidence]:
    """Return what this node shows, proofs first."""
    if situation.cause is WaitCause.VOLUME_PENDING:
        return []
    looks = _LOOKS_ON_HOST if situation.on_host else _LOOKS
    found = [evidence for look in looks for evidence in look(situation)]
    return sorted(found, key=lambda evidence: list(Weight).index(evidence.weight))


def exhausted_network(failure: SandboxFailure, assessment: Assessment) -> str | None:
    """Return the network that was checked and has the range of a failure."""
    for store in assessment.snapshot.reservations:
        if not isinstance(store.reading, NotRequested):
            ranges = or_none(assessment.ranges, store.network)
            if ranges and are_exhausted(ranges, failure):
                return store.network
    return None


def _range(situation: Situation) -> Iterator[Evidence]:
    """Compare the range that a plugin finds full with what was counted here."""
    failure = situation.failure
    if failure is None:
        for configured in known_or(situation.snapshot.networks, ()):
            if or_none(situation.assessment.free, configured.name) == 0:
                text = f"network {configured.name} has no free address"
                yield Evidence(text, detector=_FULL_RANGE)
        return

    if not failure.exhausted:
        return

    network = exhausted_network(failure, situation.assessment)
    free = or_none(situation.assessment.free, network) if network else None
    if free == 0:
        yield Evidence(f"network {network} has no free address", Weight.PROOF, _FULL_RANGE)
    elif not is_recent(failure, situation.snapshot):
        return
    elif free is None:
        text = "no network that was checked has this range: its network was not read"
        yield Evidence(text, Weight.CONTRADICTION)
    else:
        addresses = count_of(free, "free address", "free addresses")
        yield Evidence(f"network {network} has {addresses} now", Weight.CONTRADICTION)


def _requested_address(situation: Situation) -> Iterator[Evidence]:
    """Say who has the one address that a pod asks for."""
    failure = situation.failure
    if failure is None or not failure.requested_ip or failure.exhausted:
        return
    if situation.cause is not WaitCause.NO_ADDRESS:
        return  # no range has that address

    ip = failure.requested_ip
    entries = [entry for entry in situation.assessment.reservations if entry.name == ip]
    for entry in entries:
        where = f"{ip} is reserved in network {entry.network}"
        if entry.state is State.LEAKED:
            text = f"{where} for container {entry.container}, which no longer exists: it is leaked"
        else:
            state = entry.state.value.replace("_", " ")
            text = f"{where} (state {state}: {entry.why}), so it is not known to be leaked"
        yield Evidence(text, Weight.PROOF)

    if not entries:
        text = f"no directory that was read has a reservation of {ip}"
        yield Evidence(text, Weight.CONTRADICTION)


def _subnet_env(situation: Situation) -> Iterator[Evidence]:
    files = known_or(situation.snapshot.cni_files, None)
    env = files.subnet_env if files else None
    if env is None or situation.plugin not in {"", "flannel"}:
        return

    is_named = situation.entry in SUBNET_ENV
    if env.problem:
        text = f"{env.path} {env.problem} (flanneld writes it when it starts)"
        missing = missing_subnet_env(situation.snapshot)
        detector = _CONFIGURATION if missing else ""
        yield Evidence(text, Weight.PROOF if is_named else Weight.FITS, detector)
    elif is_named:
        yield Evidence(f"{env.path} is complete now", Weight.CONTRADICTION)


def _refused_range(situation: Situation) -> Iterator[Evidence]:
    """Say which configured range host-local refuses."""
    if situation.entry not in REFUSED:
        return
    for network in known_or(situation.snapshot.networks, ()):
        if reason := refusal(network, may_be_docker=False):
            text = f"the configuration of network {network.name} is refused, because {reason}"
            yield Evidence(text, Weight.PROOF, _REFUSED_RANGE)


def _bridge(situation: Situation) -> Iterator[Evidence]:
    """Say which addresses a bridge has, if the message is that they are not the gateway's."""
    if situation.entry != BRIDGE_ADDRESS:
        return

    values = _message_values(situation.failure)
    for link in known_or(situation.snapshot.links, ()):
        if link.name != values.get("bridge"):
            continue
        has = join_names(link.addresses) or "no address"
        if values.get("gateway") in link.addresses:
            yield Evidence(f"{link.name} has {has} now", Weight.CONTRADICTION)
        else:
            yield Evidence(f"bridge {link.name} has {has}", Weight.PROOF)


def _disks(situation: Situation) -> Iterator[Evidence]:
    for disk in known_or(situation.snapshot.disks, ()):
        if text := _disk_problem(disk):
            yield Evidence(text, Weight.PROOF if situation.entry in DISK else Weight.FITS)


def _disk_problem(disk: Disk) -> str:
    if disk.read_only:
        return f"the file system of {disk.path} is read-only"
    if disk.total_bytes and disk.free_bytes < _FULL:
        return f"the file system of {disk.path} is full"
    if disk.total_inodes and not disk.free_inodes:
        return f"the file system of {disk.path} has no free inodes"
    return ""


def _plugins(situation: Situation) -> Iterator[Evidence]:
    """Say which programs are missing. Only those that networks name are looked for."""
    files = known_or(situation.snapshot.cni_files, None)
    missing = files.missing_plugins if files else None
    is_named = situation.entry == NO_BINARY
    for plugin in missing or ():
        weight = Weight.PROOF if is_named and plugin == situation.plugin else Weight.FITS
        yield Evidence(f"the program of CNI plugin {plugin} is missing", weight, _CONFIGURATION)

    networks = known_or(situation.snapshot.networks, ())
    named = {name for network in networks for name in (*network.plugins, network.ipam)}
    if is_named and missing is not None and situation.plugin in named.difference(missing):
        text = f"the program of {situation.plugin} is there now"
        yield Evidence(text, Weight.CONTRADICTION)


def _network(situation: Situation) -> Iterator[Evidence]:
    """Say what the runtime and the Node say of the network, and which files explain it."""
    status = known_or(situation.snapshot.runtime_status, None)
    ready = situation.snapshot.network_ready
    concerns_all = situation.cause is WaitCause.NETWORK_NOT_READY
    if status and ready is False:
        words = ": ".join(filter(None, (status.reason, status.message)))
        text = f"the runtime says that its network is not ready ({words})"
        reason = why_no_network(situation.snapshot)
        detector = _CONFIGURATION if reason and reason.step else ""
        yield Evidence(text, Weight.PROOF if concerns_all else Weight.FITS, detector)
        if status.load_error:
            yield Evidence(f"it has loaded no network: {status.load_error}", Weight.PROOF)
    elif ready and concerns_all:
        yield Evidence("the runtime says that its network is ready now", Weight.CONTRADICTION)

    if concerns_all or ready is False:
        yield from _files(situation, is_down=ready is False)

    node = known_or(situation.snapshot.node, None)
    if node is not None and node.not_ready:
        yield Evidence(f"the Node is not Ready: {node.not_ready}")


def _files(situation: Situation, *, is_down: bool) -> Iterator[Evidence]:
    """Say what keeps the runtime from loading a CNI configuration."""
    files = known_or(situation.snapshot.cni_files, None)
    if files is None:
        return

    weight = Weight.PROOF if is_down else Weight.FITS
    if not files.exists:
        yield Evidence(f"the directory {files.directory} does not exist", weight)
    elif not files.files:
        text = f"no CNI configuration is in {files.directory}: the network's pod has not written it"
        yield Evidence(text, weight)

    for file in blocking_files(situation.snapshot):
        rest = _rest(file, files) if situation.assessment.runtime.names == (CONTAINERD,) else ""
        yield Evidence(f"{files.directory}/{file.name} {file.problem}{rest}", weight)


def _rest(file: CniFile, files: CniFiles) -> str:
    """Say what containerd does then: it stops at the first file that it cannot load."""
    later = files.files[files.files.index(file) + 1 :]
    names = join_names([each.name for each in later])
    return f", so containerd does not load {names} either" if names else ""


def _processes(situation: Situation) -> Iterator[Evidence]:
    """Say that a plugin hangs, or that no kubelet runs."""
    snapshot = situation.snapshot
    processes = known_or(snapshot.processes, None)
    if processes is None:
        return

    plugin = None if situation.on_host else hanging_plugin(snapshot)
    if plugin is not None:
        age = format_age(snapshot.taken_at - plugin.started)
        text = f"CNI plugin {plugin.command} (process {plugin.pid}) has been running for {age}"
        yield Evidence(text, detector=HANGING)

    if situation.cause is WaitCause.UNEXPLAINED and processes.kubelet is None:
        text = "no kubelet was found: it does not run, or is part of another process (k3s, RKE2)"
        yield Evidence(text, detector=STOPPED)


def _earlier_sandboxes(situation: Situation) -> Iterator[Evidence]:
    """Say which pods have an earlier sandbox, which the kubelet removes before it makes another.

    Only its log says that this fails. Once it is torn down, it has no address.
    """
    is_explained = situation.cause is not WaitCause.UNEXPLAINED
    if is_explained or lacks_kubelet(situation.snapshot):
        return

    containers = situation.assessment.index.containers
    own = {id_ for id_, container in containers.items() if container.pod_uid in situation.pods}
    earlier = {
        entry.container
        for entry in situation.assessment.reservations
        if entry.state is State.NOT_READY and entry.container_id in own
    }
    if earlier:
        count = count_of(len(earlier), "earlier sandbox still has", "earlier sandboxes still have")
        which = join_few(sorted(earlier))
        log = Remedy(
            "See why that is not torn down, in the logs of the kubelet and the runtime (k3s and "
            f"RKE2: also `{LOG_FILES}`):",
            "journalctl -u kubelet -u containerd -u crio -u 'k3s*' -u 'rke2*' | "
            f"grep {min(earlier)[:12]}",
        )
        text = f"{count} an address, and must be torn down before a new one: {which}"
        yield Evidence(text, remedy=log)


def entry_of(failure: SandboxFailure) -> Entry | None:
    """Return what the catalog has of a message; None: it does not know it."""
    return next((entry for entry in catalog.entries() if entry.key == failure.entry), None)


def remedies(failure: SandboxFailure) -> Iterator[Remedy]:
    """Yield what a message means and what to do; nothing if the catalog does not know it."""
    entry = entry_of(failure)
    if entry is not None:
        values = _message_values(failure)
        yield Remedy(f"What it means: {catalog.fill_in(entry.meaning, values)}")
        for step in entry.steps:
            yield Remedy(catalog.fill_in(step, values))


def _message_values(failure: SandboxFailure | None) -> dict[str, str]:
    """Return the variable parts of a message, by the names that the catalog gives them."""
    if failure is None:
        return {}
    matches = catalog.matches(failure.message)
    return next((dict(one.values) for one in matches if one.entry.key == failure.entry), {})


_LOOKS: Final[tuple[Callable[[Situation], Iterator[Evidence]], ...]] = (
    _range, _requested_address, _refused_range, _subnet_env, _bridge, _disks, _plugins, _network,
    _earlier_sandboxes, _processes,
)  # fmt: skip
_LOOKS_ON_HOST: Final = (_disks, _processes)

"""Pods get addresses that are not the node's, or host-local refuses the range that is configured.

Other nodes send the traffic for a pod to the node whose pod CIDR (`spec.podCIDRs` of the Node) has
its address. Pods get others if another file of the CNI configuration comes first, such as the
sample bridge of containerd or CRI-O, whose range is the same on every node; if flannel's
`subnet.env` is of another node or time; or if the range was written by hand. Pods of before keep
addresses of an earlier range.

Means: a network of the pods has a range outside of the node's pod CIDRs, family by family, or
running pods have such addresses; or its ranges are ones that host-local refuses in ADD and in DEL
(host bits, none at all, overlapping). Only bridge, ptp and flannel are judged: Calico, Cilium,
macvlan and others have addresses of their own. A Node without a pod CIDR is not judged, unless
another file shows that the cluster has a network that is not used.
Severity critical: pods wait, or have such addresses while the cluster's own network is configured
in another place. Severity info: the range is wider than the pod CIDR, which is right on a cluster
of one node; or flannel has addresses from elsewhere than the Node, as with etcd.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from shlex import quote
from typing import Final

from agent.checks.detector import Advice, Noun, Step
from agent.checks.host_local_ranges import BRIDGING, IPNetwork, refusal, subnet_of
from agent.checks.kubelet_service import Distribution, distribution, restart_command
from agent.checks.node_network import waiting
from agent.model.assessment import (
    KUBENET,
    PRIMARY,
    Assessment,
    ClassifiedReservation,
    State,
    or_none,
)
from agent.model.finding import Finding, Severity
from agent.model.node_network import CniFile, CniFiles
from agent.model.ranges import Range
from agent.model.remedy import Remedy
from agent.model.runtime import DOCKER, RuntimeNetwork
from agent.model.snapshot import InsufficientData, known_or, require_available
from agent.model.text import count_of, join_few

NAME = "wrong_range"
SEVERITIES: Final = (Severity.INFO, Severity.WARNING, Severity.CRITICAL)
NOUN: Final = Noun("network with a wrong range", "networks with wrong ranges")
ADVICE: Final = Advice(
    steps=(Step("Keep the directory of a network that running pods have addresses from."),),
    runbook="Networks.md#nodeleakwrongrange",
)

_API_SERVER: Final = "kube-system/kube-apiserver"
_FLANNEL: Final = "flannel"
_ROUTED: Final = BRIDGING | {_FLANNEL}
"""The plugins whose pods other nodes reach through the node that has the pod CIDR."""
_GENERIC: Final = BRIDGING | {
    "macvlan",
    "ipvlan",
    "vlan",
    "host-device",
    "loopback",
    "dummy",
    "tap",
}
"""The plugins that anybody's file may name: others are those of a cluster's CNI."""
_SAMPLES: Final = {
    ip_network("10.88.0.0/16"): "of containerd and podman",
    ip_network("10.85.0.0/16"): "of CRI-O",
}
"""The ranges of the configurations that come with runtimes."""

_IF_INTENDED: Final = (
    "If this is the cluster's only node, or routes for the range are written by hand, nothing is "
    "wrong. Otherwise:"
)
_IF_FLANNEL_USES_ETCD: Final = "If flannel keeps its subnets in etcd, nothing is wrong. Otherwise:"
_DELETE_PODS: Final = Remedy(
    "Delete the pods that are named: their controllers create them again with other addresses."
)


@dataclass(frozen=True, slots=True)
class _PodNetwork:
    """A network whose pods other nodes reach by the node's pod CIDR."""

    name: str
    plugin: str  # the first one of its chain, or the one that made the interfaces
    subnets: tuple[IPNetwork, ...]  # of its ranges
    users: tuple[ClassifiedReservation, ...]  # the addresses that running pods have from it
    is_current: bool  # the runtime gives it to new pods
    is_written: bool  # the subnets are those of its configuration


def find(assessment: Assessment) -> Iterator[Finding]:
    snapshot = assessment.snapshot
    refused: set[str] = set()
    undecided: set[str] = set()
    runtimes = assessment.runtime.names
    for network in known_or(snapshot.networks, ()):
        reason = refusal(network, may_be_docker=not runtimes or DOCKER in runtimes)
        if reason:
            refused.add(network.name)
            yield from _find_refused(network.name, reason, assessment)
        elif not runtimes and refusal(network, may_be_docker=False):
            undecided.add(network.name)

    for pod_network in _pod_networks(assessment):
        if pod_network.name not in refused | undecided:
            yield from _compare(pod_network, assessment)

    require_available(snapshot.networks, snapshot.node, snapshot.pods, snapshot.cni_files)
    if undecided:
        require_available(snapshot.runtimes)
    if _may_have_misplaced(assessment):
        require_available(snapshot.containers)
    assessment.require_reservations()


def _find_refused(name: str, reason: str, assessment: Assessment) -> Iterator[Finding]:
    """Yield a finding unless pods run with addresses of the network, and none waits.

    The version of host-local then accepts the configuration, or it is newer than they are.
    """
    waiting_pods = waiting(assessment.snapshot)
    entries = or_none(assessment.entries, name)
    if not waiting_pods:
        states = None if entries is None else {entry.state for entry in entries}
        if states is not None and State.IN_USE in states:
            return
        if states is None or State.UNKNOWN in states:
            raise InsufficientData(f"it is unknown whether pods run with addresses of {name}")

    severity = Severity.CRITICAL if waiting_pods else Severity.WARNING
    file = _file_of(name, assessment)
    text = f"{name}: host-local refuses its configuration, because {reason}"
    step = Remedy(f"Correct the range in {file or 'the CNI configuration'}.")
    where = f"see {file}" if file else ""
    yield _finding(name, "refused", [text, where, waiting_pods], severity, (step,))


def _pod_networks(assessment: Assessment) -> Iterator[_PodNetwork]:
    """Yield the networks that give pods their `eth0` and rely on the node's pod CIDR."""
    configured: dict[str, RuntimeNetwork] = {}
    for network in known_or(assessment.snapshot.networks, ()):
        configured.setdefault(network.name, network)

    first = next(iter(configured), None)
    in_use = or_none(lambda: assessment.networks) or ()
    for name in dict.fromkeys([*configured, *in_use]):
        entries = or_none(assessment.entries, name) or ()
        users = tuple(
            entry for entry in entries if entry.state is State.IN_USE and entry.ifname in PRIMARY
        )

        own = configured.get(name)
        plugin = own.plugins[0] if own and own.plugins else _plugin_in_cache(users, assessment)
        allocates = own is None or own.ipam == "host-local" or plugin == _FLANNEL
        if plugin in _ROUTED and allocates and (users or name == first):
            subnets = _subnets(name, own, assessment)
            yield _PodNetwork(
                name,
                plugin,
                subnets,
                users,
                is_current=own is not None,
                is_written=own is not None and bool(own.ranges),
            )


def _may_have_misplaced(assessment: Assessment) -> bool:
    """Return whether pods may have addresses that are not the node's: their state is unknown."""
    cidrs = _pod_cidrs(assessment)
    return any(
        entry.state is State.UNKNOWN
        and entry.ifname in PRIMARY
        and not (cidrs and _is_within(entry.name, cidrs))
        for entry in assessment.reservations
    )


def _plugin_in_cache(users: Sequence[ClassifiedReservation], assessment: Assessment) -> str:
    """Return the plugin that made the interfaces of a network; empty: the cache does not say."""
    for user in users:
        for result in assessment.index.results.get(user.container_id, ()):
            if result.network == user.network and result.plugin:
                return result.plugin
    return ""


def _subnets(
    name: str, own: RuntimeNetwork | None, assessment: Assessment
) -> tuple[IPNetwork, ...]:
    """Return the subnets of a network's ranges; none if they are not known."""
    if own and own.ranges:
        return tuple(_written_subnets(own))
    sets = or_none(assessment.ranges, name) or ()
    return tuple(_enclosing(range_) for ranges in sets for range_ in ranges)


def _enclosing(range_: Range) -> IPNetwork:
    """Return the smallest subnet that has all of a range."""
    bits = (int(range_.first) ^ int(range_.last)).bit_length()
    return ip_network((range_.first, range_.first.max_prefixlen - bits), strict=False)


def _compare(network: _PodNetwork, assessment: Assessment) -> Iterator[Finding]:
    """Yield a finding if a network's ranges, or addresses from it, are not within the pod CIDRs."""
    cidrs = _pod_cidrs(assessment)
    misplaced = tuple(user for user in network.users if not _is_within(user.name, cidrs))
    outside = [subnet for subnet in network.subnets if _relation(subnet, cidrs) == "outside"]
    wider = [subnet for subnet in network.subnets if _relation(subnet, cidrs) == "wider"]

    if not network.is_current:
        yield from _find_earlier_network(network, misplaced, assessment)
    elif outside:
        yield _finding_outside(network, outside, misplaced, assessment)
    elif not cidrs and any(subnet in _SAMPLES for subnet in network.subnets):
        yield from _find_sample(network, assessment)
    elif wider:
        yield _finding_wider(network, wider, misplaced, assessment)
    elif cidrs or network.is_written:
        yield from _find_earlier_range(network, assessment)


def _finding_outside(
    network: _PodNetwork,
    outside: Sequence[IPNetwork],
    misplaced: Sequence[ClassifiedReservation],
    assessment: Assessment,
) -> Finding:
    """`misplaced`: the addresses of running pods that are outside of the pod CIDRs."""
    shadowed = _describe_unused_files(network, assessment)
    sample = _describe_sample(outside)
    text = (
        f"{network.name} gives pods addresses of {_join(outside)}{sample}, which is "
        f"outside of the node's pod CIDR {_join(_pod_cidrs(assessment))}"
    )
    severity = Severity.CRITICAL if shadowed and misplaced else Severity.WARNING
    steps = _steps_outside(network, assessment, shadowed=bool(shadowed), sample=bool(sample))
    parts = [text, shadowed or _where_written(network, assessment), _describe_users(misplaced)]
    return _finding(network.name, "outside", parts, severity, steps)


def _find_sample(network: _PodNetwork, assessment: Assessment) -> Iterator[Finding]:
    """Yield a finding if a cluster's network is configured and pods get a sample's addresses."""
    if shadowed := _describe_unused_files(network, assessment):
        subnets = network.subnets
        text = f"{network.name} gives pods addresses of {_join(subnets)}{_describe_sample(subnets)}"
        severity = Severity.CRITICAL if network.users else Severity.WARNING
        steps = _steps_outside(network, assessment, shadowed=True, sample=True)
        parts = [text, shadowed, _describe_users(network.users)]
        yield _finding(network.name, "outside", parts, severity, steps)


def _steps_outside(
    network: _PodNetwork, assessment: Assessment, *, shadowed: bool, sample: bool
) -> Iterator[Remedy]:
    """Yield what to do about a range outside of the pod CIDR."""
    within_k3s = distribution(assessment.snapshot) is Distribution.K3S
    if not shadowed and network.plugin != _FLANNEL:
        yield Remedy(_IF_INTENDED)
    elif not shadowed and not within_k3s:
        yield Remedy(_IF_FLANNEL_USES_ETCD)

    node = quote(assessment.snapshot.node_name)
    yield Remedy("Keep new pods away:", f"kubectl cordon {node}")

    if shadowed:
        file = quote(_file_of(network.name, assessment) or "FILE")

        which = ["are named"] if network.users else []
        which += ["wait"] if waiting(assessment.snapshot) else []
        if which:
            pods = " and those that ".join(which)
            yield Remedy(f"Delete the pods that {pods}: their teardown needs that file.")
        yield Remedy("Move that one file away then, and keep the others:", f"mv {file} /root/")
    else:
        if network.plugin == _FLANNEL and within_k3s:
            text = "Restart k3s, which runs flannel itself: it writes subnet.env again:"
            yield Remedy(text, restart_command(assessment.snapshot))
        elif network.plugin == _FLANNEL:
            text = "Delete flannel's pod on this node: its successor writes subnet.env again."
            yield Remedy(text)
        elif sample:
            yield Remedy("Install the cluster's CNI, or see why its pod does not run on this node.")
        else:
            yield Remedy("Correct the range in the file.")
        yield _DELETE_PODS

    yield Remedy("When nothing is found any more:", f"kubectl uncordon {node}")


def _finding_wider(
    network: _PodNetwork,
    wider: Sequence[IPNetwork],
    misplaced: Sequence[ClassifiedReservation],
    assessment: Assessment,
) -> Finding:
    text = (
        f"{network.name} has the range {_join(wider)}, wider than the node's pod CIDR "
        f"{_join(_pod_cidrs(assessment))}: in a cluster of several nodes, another node can give "
        "out the same addresses"
    )
    certain = misplaced and not _runs_api_server(assessment)
    severity = Severity.WARNING if certain else Severity.INFO
    parts = [text, _where_written(network, assessment), _describe_users(misplaced)]
    step = Remedy("Give each node a range of its own, unless this is the only one.")
    return _finding(network.name, "wider", parts, severity, (step,))


def _find_earlier_network(
    network: _PodNetwork, misplaced: Sequence[ClassifiedReservation], assessment: Assessment
) -> Iterator[Finding]:
    """Yield a finding for pods with addresses of a network that new pods do not get."""
    current = ", ".join(assessment.snapshot.network_names)
    cidrs = _pod_cidrs(assessment)
    if not cidrs and current and any(subnet in _SAMPLES for subnet in network.subnets):
        misplaced = network.users

    if misplaced:
        which = f", which is outside of the node's pod CIDR {_join(cidrs)}" if cidrs else ""
        text = f"{count_of(len(misplaced), 'pod')} got an address from {network.name}{which}"
        new = f"new pods get theirs from {current}" if current else ""
        parts = [text, new, _describe_users(misplaced)]
        yield _finding(network.name, "earlier", parts, Severity.WARNING, (_DELETE_PODS,))


def _find_earlier_range(network: _PodNetwork, assessment: Assessment) -> Iterator[Finding]:
    """Yield a finding for pods with addresses of a range that a network no longer has."""
    cidrs = _pod_cidrs(assessment)
    bounds = cidrs or network.subnets
    misplaced = [user for user in network.users if not _is_within(user.name, bounds)]
    if misplaced:
        what = f"the node's pod CIDR {_join(cidrs)}" if cidrs else f"its range {_join(bounds)}"
        text = (
            f"{network.name}: {count_of(len(misplaced), 'pod has', 'pods have')} an address of an "
            f"earlier range, outside of {what}: no route leads to it"
        )
        parts = [text, _describe_users(misplaced)]
        yield _finding(network.name, "earlier", parts, Severity.WARNING, (_DELETE_PODS,))


def _finding(
    network: str,
    kind: str,
    parts: Iterable[str],
    severity: Severity,
    steps: Iterable[Remedy],
) -> Finding:
    """Return a finding that says all parts that are not empty."""
    message = "; ".join(filter(None, parts))
    return Finding(
        NAME,
        network,
        message,
        severity=severity,
        network=network,
        identity=(kind,),
        steps=tuple(steps),
    )


def _pod_cidrs(assessment: Assessment) -> tuple[IPNetwork, ...]:
    """Return the pod CIDRs of the Node; none if they are not known, or one is no network."""
    node = known_or(assessment.snapshot.node, None)
    if node is None:
        return ()
    try:
        return tuple(ip_network(cidr, strict=False) for cidr in node.pod_cidrs)
    except ValueError:
        return ()


def _is_within(ip: str, networks: Sequence[IPNetwork]) -> bool:
    """Return whether an address is in one of the networks, or there is none of its family."""
    address = ip_address(ip)
    family = [network for network in networks if network.version == address.version]
    return not family or any(address in network for network in family)


def _relation(subnet: IPNetwork, cidrs: Sequence[IPNetwork]) -> str:
    """Return `outside` or `wider`, as a range lies to the pod CIDRs of its family.

    Empty: it is within one, or there is none.
    """
    family = [cidr for cidr in cidrs if cidr.version == subnet.version]
    if not family or any(subnet.subnet_of(cidr) for cidr in family):  # type: ignore[arg-type]
        return ""
    return "wider" if any(subnet.overlaps(cidr) for cidr in family) else "outside"


def _describe_unused_files(network: _PodNetwork, assessment: Assessment) -> str:
    """Say which files of the cluster's own networks are not used; empty: none is seen."""
    files = known_or(assessment.snapshot.cni_files, None)
    if files is None:
        return ""

    used = _position(network.name, files)
    parts: list[str] = []
    for position, file in enumerate(files.files):
        if file.problem is None and position != used and _is_of_cluster(file, assessment):
            subnets = [subnet for each in file.networks for subnet in _written_subnets(each)]
            names = ", ".join([file.network, *map(str, subnets)])
            later = ""
            if used is not None and used < position:
                later = f", because {_path(files, used)} comes first"
            parts.append(f"{file.name} (network {names}) is not used{later}")
    return "; ".join(parts)


def _is_of_cluster(file: CniFile, assessment: Assessment) -> bool:
    """Return whether a file is of a cluster's CNI, or has a range within the node's pod CIDR."""
    cidrs = _pod_cidrs(assessment)
    for network in file.networks:
        if network.plugins and network.plugins[0] not in _GENERIC:
            return True

        fits = [
            subnet
            for subnet in _written_subnets(network)
            if any(subnet.version == cidr.version for cidr in cidrs)
        ]
        if fits and not any(_relation(subnet, cidrs) for subnet in fits):
            return True
    return False


def _written_subnets(network: RuntimeNetwork) -> list[IPNetwork]:
    """Return the subnets in a network's configuration, without those that are invalid."""
    written = [subnet_of(range_) for ranges in network.ranges for range_ in ranges]
    return [subnet for subnet in written if subnet is not None]


def _position(network: str, files: CniFiles) -> int | None:
    """Return where the file of a network is in the order of the runtimes; None: not known."""
    for position, file in enumerate(files.files):
        names = {file.network, *(each.name for each in file.networks)}
        if file.problem is None and network in names:
            return position
    return None


def _file_of(network: str, assessment: Assessment) -> str:
    """Return the path of a network's file; empty: not known."""
    files = known_or(assessment.snapshot.cni_files, None)
    if files is None:
        return ""
    position = _position(network, files)
    return "" if position is None else _path(files, position)


def _path(files: CniFiles, position: int) -> str:
    return f"{files.directory}/{files.files[position].name}"


def _where_written(network: _PodNetwork, assessment: Assessment) -> str:
    """Say where a network's range is written."""
    files = known_or(assessment.snapshot.cni_files, None)
    if network.plugin == _FLANNEL:
        path = files.subnet_env.path if files and files.subnet_env else "flannel's subnet.env"
        return f"see {path}"
    if network.name == KUBENET:
        return ""
    file = _file_of(network.name, assessment)
    return f"see {file}" if file else ""


def _describe_sample(subnets: Sequence[IPNetwork]) -> str:
    for subnet in subnets:
        if subnet in _SAMPLES:
            return f" (the sample {_SAMPLES[subnet]}, the same on every node)"
    return ""


def _describe_users(users: Sequence[ClassifiedReservation]) -> str:
    """Name the pods that have addresses, with these."""
    if not users:
        return ""
    names = sorted(f"{user.pod or user.container_id[:12]} {user.name}" for user in users)
    return f"{count_of(len(names), 'address', 'addresses')} in use: {join_few(names)}"


def _runs_api_server(assessment: Assessment) -> bool:
    """Return whether this is a node of the control plane, which may be the only one."""
    pods = known_or(assessment.snapshot.pods, ())
    return any(pod.static and pod.name.startswith(_API_SERVER) for pod in pods)


def _join(networks: Sequence[IPNetwork]) -> str:
    return ", ".join(map(str, networks))

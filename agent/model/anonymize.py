"""Recordings without names: texts are replaced, except for words listed here; addresses are moved.

A name becomes a number by its place in the order of all names: equal names stay equal, sorted ones stay sorted, and
nobody can find a name by guessing it. Networks and ranges keep their sizes, and an address its place in them.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
    collapse_addresses,
    ip_address,
    ip_interface,
)
from itertools import chain
from typing import Any, Final, TypeAlias, TypeVar

from agent.model.assessment import KUBENET
from agent.model.ranges import Range
from agent.model.recording import Recording
from agent.model.registration import DELETION_CANDIDATE, TO_BE_DELETED, UNINITIALIZED
from agent.model.runtime import CONTAINERD, CRI_O, DOCKER
from agent.model.snapshot import SOURCES
from agent.model.volumes import MIGRATED

_Rename: TypeAlias = Callable[[str], str]
_T = TypeVar("_T")


def anonymous(recording: Recording) -> Recording:
    """Return a recording of which the replay is the same, without names and addresses."""
    names: set[str] = set()

    def collect(name: str) -> str:
        names.add(name)
        return name

    _rewrite(recording, collect)
    return _rewrite(recording, _new_names(names).__getitem__)


@dataclass(frozen=True, slots=True)
class _Rule:
    """How a text is split into names, and which of them are kept."""

    name: re.Pattern[str]
    kept: Callable[[str], object]

    def apply(self, text: str, rename: _Rename) -> str:
        return self.name.sub(lambda found: found[0] if self.kept(found[0]) else rename(found[0]), text)


WORDS: Final = frozenset({
    KUBENET, DOCKER, CONTAINERD, CRI_O, "cni", "external", *SOURCES, "eth0", "net1", "tcp", "udp", "sctp",
    "host-local", "flannel",
    "created", "running", "paused", "restarting", "removing", "exited", "dead", "unknown",
    "not ready", "being created", "recorded but not listed", "in another namespace of containerd",
    "Pending", "Running", "Succeeded", "Failed", "Unknown", "True", "False",
    "ReplicaSet", "ReplicationController", "Job", "StatefulSet", "DaemonSet", "pods", "node", "nodes",
})  # fmt: skip
"""Words of Kubernetes, container runtimes and CNI that decide something."""
DEVICE_WORDS: Final = frozenset({
    "devices", "kubevirt", "io", "nvidia", "amd", "intel", "com", "gpu", "kvm", "tun", "vhost", "net", "sock",
})  # fmt: skip
VOLUME_WORDS: Final = frozenset("/".join((*chain(*MIGRATED.items()), "iscsi", "fc")).split("/"))
REASON_WORDS: Final = frozenset(
    """
    a according account address after again all allocate allocated allocation an and answered api api's are argument as
    at available bad be because been below broke broken but by bytes cache call can can't canceled cannot capacity
    certificate changed changes check checkpoint checkpoint-dir cleaning clocks cluster-autoscaler-status cni-cache-dir
    cni-networks-dir code command complete configmap connect connected connection container container's containers
    content cri-dockerd date deleted denied desc description descriptor device device-plugins-dir devices didn't digits
    directory docker docker's does down due earlier empty endpoint enough entry error event events evidence exist exists
    expected failed failure family fifo file files flags followed for forbidden format found get got groups handle has
    have healthy here hex holds host host's host-local hostpid id ids if in inappropriate incomplete input/output
    interface internal interrupted invalid ioctl is it items its json know known kube-system kubeconfig kubelet
    kubelet's kubelet-dir left less levels limit line link links list listed lists long longer malformed many memory
    metadata.uid middle missing mode modification more mounted name named namespace namespaces needs network networks no
    node node's nodes none nor not number object objects of off on only open operation or out own owner parse path peer
    permission permitted persistentvolumeclaims persistentvolumes phase pipe plugin plugins pod pods present previously
    proc process protocol provider read read-only real reason refused registered regular rejected released reliable
    request requested requests required reservation reset resolution resolve resource resources resourceversion response
    restore restored root route rpc run running runtime s sandbox sandboxes server service set show shows silent since
    single so socket space stale stat status still stopped string structure such supported symbolic system taken
    temporarily temporary text than that the their there these this time timed to together too transitions transport
    true unavailable unexpected unhealthy unknown unreachable unregistered update use used uses verify version volume
    volumeattachments volumes waiting waits was watch watched watches were whether which whose with within without
    writes written wrote yet
    """.split()  # noqa: SIM905 (a list of so many words is twice as long)
).union(map(str, range(1000)), (KUBENET,))
"""Words of the agent's and the kubelet's own texts and of the system's errors, and numbers of up to three digits."""


_OWN_VERSION: Final = r"(?:v|docker://|containerd://|cri-o://)?[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,4}(?![0-9.])"


def _is_reason_word(word: str) -> bool:
    return word.lower().removeprefix("--") in REASON_WORDS


_NAMES: Final = _Rule(re.compile(r"[^/]+"), WORDS.__contains__)
"""Such as `namespace/name` and `Kind/name`."""
_WHOLE: Final = _Rule(re.compile(r".+", re.DOTALL), {UNINITIALIZED, TO_BE_DELETED, DELETION_CANDIDATE}.__contains__)
_SUBNET: Final = _Rule(re.compile(r".+", re.DOTALL), {"usePodCidr", "usePodCidrIPv6"}.__contains__)
_DEVICES: Final = _Rule(re.compile(r"[^-./]+"), DEVICE_WORDS.__contains__)
"""Resources and sockets: part by part, so that a socket that is named after a resource still is."""
_VOLUMES: Final = _Rule(re.compile(r"[^/^]+"), VOLUME_WORDS.__contains__)
_TEXT: Final = _Rule(
    re.compile(r"(?<!\w)(['\"]).*\1|[^\s,;().:][^\s,;()]*?(?=[.:]*(?:[\s,;()]|$))", re.DOTALL), _is_reason_word
)
"""Free text, word by word; what it quotes is one name."""
_VERSION: Final = _Rule(re.compile(rf"\A{_OWN_VERSION}|.+", re.DOTALL), re.compile(_OWN_VERSION).fullmatch)

_RULES: Final[Mapping[str, _Rule]] = {
    **dict.fromkeys(("pod_cidrs", "Taint.key"), _WHOLE),
    "WrittenRange.subnet": _SUBNET,
    "Watch.resource": _NAMES,
    **dict.fromkeys(("resource", "wants", "wants_in_init", "socket", "PluginSocket.name"), _DEVICES),
    **dict.fromkeys(("volume", "volumes", "volumes_in_use", "volumes_attached"), _VOLUMES),
    **dict.fromkeys(("why", "message", "trouble", "not_requested"), _TEXT),
    **dict.fromkeys(("server_version", "Node.runtime", "ContainerRuntime.version"), _VERSION),
}
"""By `Type.field` or by field; all other fields are names."""


def _rewrite(value: _T, rename: _Rename, place: str = "", field: str = "") -> _T:
    """Return a value of the model with every name and address replaced."""
    new: Any
    match value:
        case None | bool() | int() | float() | datetime() | timedelta() | StrEnum():
            return value
        case str():
            new = (_RULES.get(place) or _RULES.get(field, _NAMES)).apply(value, rename)
        case IPv4Address() | IPv6Address():
            new = ip_address(rename(str(type(value)(int(value)))))  # without the zone that IPv6 may have
        case tuple():
            new = tuple(_rewrite(one, rename, place, field) for one in value)
        case _ if is_dataclass(value) and not isinstance(value, type):
            new = _rewrite_fields(value, rename)
        case _:
            raise TypeError(f"{place}: {type(value).__name__} is not a type of recordings")
    return new  # type: ignore[no-any-return]


def _rewrite_fields(value: Any, rename: _Rename) -> Any:
    if isinstance(value, Range):
        rename(str(_around(value)))  # its addresses stay together
    names = [(one.name, f"{type(value).__name__}.{one.name}") for one in fields(value)]
    return replace(value, **{name: _rewrite(getattr(value, name), rename, place, name) for name, place in names})


def _around(one: Range) -> IPv4Network | IPv6Network:
    """Return the smallest network that contains a range."""
    different = (int(one.first) ^ int(one.last)).bit_length()
    return ip_interface(f"{one.first}/{one.first.max_prefixlen - different}").network


def _new_names(names: Iterable[str]) -> Mapping[str, str]:
    """Return the new name of each name and address."""
    addresses = {name: address for name in names if (address := _address(name)) is not None}
    others = sorted(set(names) - addresses.keys())
    digits = len(str(len(others)))
    new = {name: f"n{number:0{digits}}" for number, name in enumerate(others)}
    for first in (IPv4Address("240.0.0.0"), IPv6Address("2001:db8::")):
        family = {name: one for name, one in addresses.items() if one.version == first.version}
        move = _mover([one.network for one in family.values()], first)
        for name, one in family.items():
            new[name] = f"{move(one)}/{one.network.prefixlen}" if "/" in name else str(move(one))
    return new


def _address(name: str) -> IPv4Interface | IPv6Interface | None:
    """Return an address or a subnet that is written as Go and Python write it."""
    try:
        address = ip_interface(name)
    except ValueError:
        return None
    zone = isinstance(address, IPv6Interface) and address.ip.scope_id
    return None if zone or name not in {str(address), str(address.ip)} else address


def _mover(networks: Iterable[Any], first: IPv4Address | IPv6Address) -> Callable[[Any], IPv4Address | IPv6Address]:
    """Return a function that moves addresses: the networks follow one another, from `first` on, in their order."""
    blocks = [*collapse_addresses(networks)]
    old = [int(block.network_address) for block in blocks]
    new, end = _packed([block.num_addresses for block in blocks], int(first))
    if end > 1 << first.max_prefixlen:
        new, _ = _packed([block.num_addresses for block in blocks], 0)

    def move(address: Any) -> IPv4Address | IPv6Address:
        place = bisect_right(old, int(address.ip)) - 1
        return type(first)(new[place] + int(address.ip) - old[place])

    return move


def _packed(sizes: Iterable[int], first: int) -> tuple[list[int], int]:
    """Return where networks of these sizes begin, and where the last one ends."""
    begins, end = [], first
    for size in sizes:
        begins.append(-(-end // size) * size)
        end = begins[-1] + size
    return begins, end

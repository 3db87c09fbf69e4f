"""Recordings without names: texts are replaced, except for words listed here; addresses are moved.

A name becomes a number by its place in the order of all names: equal names stay equal, sorted ones
stay sorted, and nobody can find a name by guessing it. Networks and ranges keep their sizes, and an
address its place in them.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address, collapse_addresses, ip_address, ip_interface
from itertools import chain
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from agent.model import catalog
from agent.model.assessment import KUBENET
from agent.model.documents import Recording
from agent.model.ranges import Range
from agent.model.registration import (
    BESIDE_A_CLOUD,
    DELETION_CANDIDATE,
    EMBEDDED_CONTROLLERS,
    OPENSTACK,
    TO_BE_DELETED,
    UNINITIALIZED,
)
from agent.model.rejections import ADMISSION_REASONS
from agent.model.runtime import CONTAINERD, CRI_O, DOCKER
from agent.model.snapshot import CREATION_REASONS, FAILED_KILL, SOURCES
from agent.model.volumes import MIGRATED

_Rename: TypeAlias = Callable[[str], str]
_T = TypeVar("_T")


def anonymous(recording: Recording) -> Recording:
    """Return a recording without names and addresses, whose replay is the same."""
    names: dict[str, str] = {}
    _rewrite(recording, lambda name: names.setdefault(name, name))
    return _rewrite(recording, _new_names(names).__getitem__)


class _Rule(NamedTuple):
    """How a text is split into names, and which of them are kept."""

    name: re.Pattern[str]
    """Matches one name. What is between two of them is kept."""
    kept: Callable[[str], object]
    """Whether a name decides something, and has to stay."""


WORDS: Final = frozenset({
    KUBENET, DOCKER, CONTAINERD, CRI_O, "cni", "external", *SOURCES, "eth0", "net1",
    "tcp", "udp", "sctp", "host-local", "flannel", "bridge", "ptp", "macvlan", "ipvlan", "vlan",
    "host-device", "loopback", "dummy", "tap", "add", "delete",
    "created", "running", "paused", "restarting", "removing", "exited", "dead", "unknown",
    "not ready", "being created", "recorded but not listed", "in another namespace of containerd",
    "Pending", "Running", "Succeeded", "Failed", "Unknown", "True", "False",
    "ReplicaSet", "ReplicationController", "Job", "StatefulSet", "DaemonSet",
    "pods", "node", "nodes",
})  # fmt: skip
"""Words of Kubernetes, container runtimes and CNI that decide something."""

DEVICE_WORDS: Final = frozenset({
    "devices", "kubevirt", "io", "nvidia", "amd", "intel", "com", "gpu", "kvm", "tun", "vhost",
    "net", "sock",
})  # fmt: skip
"""Parts of the names of devices and their plugins, by which resources and drivers are told apart."""

VOLUME_WORDS: Final = frozenset("/".join((*chain(*MIGRATED.items()), "iscsi", "fc")).split("/"))
"""Volume plugins and CSI drivers."""

SCHEMES: Final = frozenset({*EMBEDDED_CONTROLLERS, *BESIDE_A_CLOUD, OPENSTACK})
"""Cloud providers, as the scheme of a provider ID names them."""

_PHRASES: Final = "Pod was rejected: |enough resource:"
_OWN_VERSION: Final = (
    r"(?:v|docker://|containerd://|cri-o://)?[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,4}(?![0-9.])"
)
"""Of Kubernetes and the container runtimes. What follows it is a name: it may say who built it."""

_ANYTHING: Final = re.compile(r".+", re.DOTALL)

_NAMES: Final = _Rule(re.compile(r"[^/]+"), WORDS.__contains__)
"""Such as `namespace/name` and `Kind/name`."""

_WHOLE: Final = _Rule(_ANYTHING, {UNINITIALIZED, TO_BE_DELETED, DELETION_CANDIDATE}.__contains__)
_SUBNET: Final = _Rule(_ANYTHING, {"usePodCidr", "usePodCidrIPv6"}.__contains__)
_DEVICES: Final = _Rule(re.compile(r"[^-_./]+"), DEVICE_WORDS.__contains__)
"""Resources and sockets: part by part, so that a socket that is named after a resource still is."""

_VOLUMES: Final = _Rule(re.compile(r"[^/^]+"), VOLUME_WORDS.__contains__)
_PROVIDER_IDS: Final = _Rule(re.compile(r"[^/:]+"), SCHEMES.__contains__)
_RANGE_SET: Final = _Rule(re.compile(r"[^-,]+"), lambda _: False)
"""As host-local writes it: `10.1.0.2-10.1.0.9,10.2.0.2-10.2.0.9`."""

_KEPT: Final = _Rule(
    _ANYTHING,
    {*CREATION_REASONS, FAILED_KILL, *(entry.key for entry in catalog.entries())}.__contains__,
)
_REASON: Final = _Rule(_ANYTHING, ADMISSION_REASONS.__contains__)
_TEXT: Final = _Rule(
    re.compile(rf"{_PHRASES}|(?:(?!{_PHRASES}).)+", re.DOTALL), re.compile(_PHRASES).fullmatch
)
"""Free text, as a single name: nobody can check each word of it.

Two phrases of the kubelet decide a cause, and are kept.
"""

_VERSION: Final = _Rule(
    re.compile(rf"\A{_OWN_VERSION}|.+", re.DOTALL), re.compile(_OWN_VERSION).fullmatch
)

_RULES: Final[Mapping[str, _Rule]] = {
    **dict.fromkeys(("pod_cidrs", "Taint.key", "Link.addresses", "SubnetEnv.subnets"), _WHOLE),
    "WrittenRange.subnet": _SUBNET,
    "Watch.resource": _NAMES,
    **dict.fromkeys(
        (
            "resource",
            "wants",
            "wants_in_init",
            "dra_resources",
            "drivers",
            "socket",
            "PluginSocket.name",
        ),
        _DEVICES,
    ),
    **dict.fromkeys(("volume", "volumes", "volumes_in_use", "volumes_attached"), _VOLUMES),
    **dict.fromkeys(("provider_id", "earlier_id", "schemes"), _PROVIDER_IDS),
    **dict.fromkeys(("why", "message", "trouble", "not_requested"), _TEXT),
    **dict.fromkeys(("not_ready", "load_error", "problem", "SandboxFailure.kind"), _TEXT),
    **dict.fromkeys(("SandboxFailure.reason", "SandboxFailure.entry", "VolumeEvent.entry"), _KEPT),
    "Rejection.reason": _REASON,
    "exhausted": _RANGE_SET,
    **dict.fromkeys(("server_version", "Node.runtime", "Node.kubelet"), _VERSION),
    "ContainerRuntime.version": _VERSION,
}
"""By `Type.field` or by field; all other fields are names."""


def _rewrite(value: _T, rename: _Rename, path: str = "", field: str = "") -> _T:
    """Return a value of the model with every name and address replaced.

    `path`, `field`: `Type.field` and the field that has it, which decide the rule.
    """
    new: Any
    match value:
        case None | bool() | int() | float() | datetime() | timedelta() | StrEnum():
            return value
        case str():
            rule = _RULES.get(path) or _RULES.get(field, _NAMES)
            new = rule.name.sub(
                lambda name: name[0] if rule.kept(name[0]) else rename(name[0]), value
            )
        case IPv4Address() | IPv6Address():
            without_zone = type(value)(int(value))
            new = ip_address(rename(str(without_zone)))
        case tuple():
            new = tuple(_rewrite(item, rename, path, field) for item in value)
        case _ if is_dataclass(value) and not isinstance(value, type):
            new = _rewrite_fields(value, rename)
        case _:
            raise TypeError(f"{path}: {type(value).__name__} is not a type of recordings")
    return new  # type: ignore[no-any-return]


def _rewrite_fields(value: Any, rename: _Rename) -> Any:
    if isinstance(value, Range):
        # The smallest network around it is renamed first, so that its addresses stay together.
        different_bits = (int(value.first) ^ int(value.last)).bit_length()
        prefix = value.first.max_prefixlen - different_bits
        rename(str(ip_interface(f"{value.first}/{prefix}").network))

    new = {}
    for field in fields(value):
        path = f"{type(value).__name__}.{field.name}"
        new[field.name] = _rewrite(getattr(value, field.name), rename, path, field.name)
    return replace(value, **new)


def _new_names(names: Iterable[str]) -> Mapping[str, str]:
    """Return the new name of each name and address."""
    addresses = {name: address for name in names if (address := _address(name)) is not None}

    words = sorted(set(names) - addresses.keys())
    digits = len(str(len(words)))
    new = {word: f"n{number:0{digits}}" for number, word in enumerate(words)}

    for first in (IPv4Address("240.0.0.0"), IPv6Address("2001:db8::")):
        family = {
            name: address for name, address in addresses.items() if address.version == first.version
        }
        new.update(_new_addresses(family, first))
    return new


def _new_addresses(
    family: Mapping[str, Any], first: IPv4Address | IPv6Address
) -> Iterator[tuple[str, str]]:
    """Yield each name of an address with its new name.

    `first`: where the networks of this family begin now.
    """
    old_networks = [address.network for address in family.values()]
    moved = _new_places(old_networks, int(first), first.max_prefixlen)
    networks = list(moved)

    for name, address in family.items():
        after = bisect_right(networks, address.ip, key=lambda network: network.network_address)
        network = networks[after - 1]
        ip = type(first)(moved[network] + int(address.ip) - int(network.network_address))
        yield name, f"{ip}/{address.network.prefixlen}" if "/" in name else str(ip)


def _address(name: str) -> Any:
    """Return an address or a subnet, as Go and Python write it, without a zone; or None."""
    try:
        address = ip_interface(name)
    except ValueError:
        return None
    spellings = {str(address), str(address.ip)}
    return address if "%" not in name and name in spellings else None


def _new_places(networks: Iterable[Any], first: int, bits: int) -> Mapping[Any, int]:
    """Return where each network begins now.

    They follow each other in their order, from `first` on if there is room.
    """
    moved: dict[Any, int] = {}
    end = first
    for network in collapse_addresses(networks):
        size = network.num_addresses
        moved[network] = -(-end // size) * size  # rounded up: a network begins at a multiple
        end = moved[network] + size

    if first == 0 or end <= 1 << bits:
        return moved
    return _new_places(moved, 0, bits)

"""Which ranges host-local refuses, in ADD and in DEL. Pure.

The rules are those of host-local since 0.8.0 (its config.go, range.go and range_set.go). Older ones
accept host bits.
"""

from collections.abc import Sequence
from contextlib import suppress
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from itertools import chain, combinations
from typing import Final, TypeAlias

from agent.model.ranges import Range, RangeSets
from agent.model.runtime import RuntimeNetwork, WrittenRange

IPNetwork: TypeAlias = IPv4Network | IPv6Network

BRIDGING: Final = frozenset({"bridge", "ptp"})
"""The plugins whose networks other nodes reach by routes."""
_PASS_ON: Final = BRIDGING | {"macvlan", "ipvlan", "vlan", "host-device", "dummy", "tap"}
"""The plugins that give host-local their own configuration as it is written."""
_SMALLEST: Final = 4  # addresses of a subnet from which host-local allocates
_OF_THE_NODE: Final = "usePodCidr"
"""What Calico's configuration has in place of a subnet, and Calico replaces by the pod CIDR."""


def refusal(network: RuntimeNetwork, *, may_be_docker: bool) -> str | None:
    """Return why host-local refuses the ranges of a network; None: it accepts them, or is not used.

    `may_be_docker`: whether the kubelet's runtime is docker, or is not known. cri-dockerd can add
    the pod CIDR to a configuration without a range.
    """
    if network.ipam != "host-local" or network.plugins[:1] == ("flannel",):
        return None  # flannel replaces whatever is written
    if not any(network.ranges):
        passes_on = bool(network.plugins) and network.plugins[0] in _PASS_ON
        return "it has no range" if passes_on and not may_be_docker else None
    return _sets_refusal(network.ranges)


def subnet_of(written: WrittenRange) -> IPNetwork | None:
    """Return the subnet of a range without its host bits; None: it has none of its own."""
    try:
        return ip_network(written.subnet, strict=False)
    except ValueError:
        return None


def written_ranges(network: RuntimeNetwork) -> RangeSets:
    """Return the ranges of a network as far as they are valid, and subnets of their own."""
    sets: list[tuple[Range, ...]] = []
    for ranges in network.ranges:
        valid: list[Range] = []
        for written in ranges:
            with suppress(ValueError):
                valid.append(written.parse())
        sets.append(tuple(valid))
    return tuple(sets)


def _sets_refusal(sets: Sequence[Sequence[WrittenRange]]) -> str | None:
    """Return the first reason; those of single ranges come before others, as host-local has it."""
    if not all(sets):
        return "one of its range sets is empty"
    own = [
        [written for written in ranges if not written.subnet.startswith(_OF_THE_NODE)]
        for ranges in sets
    ]
    for written in chain.from_iterable(own):
        if reason := _range_refusal(written):
            return reason

    valid = [[written.parse() for written in ranges] for ranges in own]
    if any(len({range_.first.version for range_ in ranges}) > 1 for ranges in valid):
        return "one of its range sets has addresses of both families"
    for one, another in combinations(chain.from_iterable(valid), 2):
        if one.first in another or another.first in one:
            return f"two of its ranges overlap: {one} and {another}"
    return None


def _range_refusal(written: WrittenRange) -> str | None:
    """Return why host-local refuses a range by itself; None: it does not."""
    subnet = subnet_of(written)
    if subnet is None:
        return f"{written.subnet} is not a subnet"
    if subnet.num_addresses < _SMALLEST:
        return f"{written.subnet} is too small to allocate from"

    address = ip_address(written.subnet.partition("/")[0])
    if address != subnet.network_address:
        return f"{written.subnet} has host bits set: its network address is {subnet}"

    for key, text in (("rangeStart", written.first), ("rangeEnd", written.last)):
        try:
            if text and ip_address(text) not in subnet:
                return f"{key} {text} is not in {written.subnet}"
        except ValueError:
            return f"{key} {text} is not an address"
    try:
        written.parse()
    except ValueError as error:
        return str(error)
    return None

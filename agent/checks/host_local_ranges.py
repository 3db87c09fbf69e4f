"""Which ranges host-local refuses, in ADD and in DEL. Pure.

The rules are those of host-local since 0.8.0 (its config.go, range.go and range_set.go). Older ones
accept host bits.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from itertools import chain, combinations
from typing import Final, TypeAlias

from agent.model.ranges import IPAddress, Range, RangeSets, subnet_range
from agent.model.runtime import RuntimeNetwork, WrittenRange

IPNetwork: TypeAlias = IPv4Network | IPv6Network
_Block: TypeAlias = tuple[IPAddress, IPAddress]  # its first and its last address

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
    return next(_refusals(network.ranges), None)


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
                valid.append(
                    subnet_range(written.subnet, written.first, written.last, written.gateway)
                )
        sets.append(tuple(valid))
    return tuple(sets)


def _refusals(sets: Sequence[Sequence[WrittenRange]]) -> Iterator[str]:
    """Yield each reason; those of single ranges come first, as host-local has it."""
    own = [
        [written for written in ranges if not written.subnet.startswith(_OF_THE_NODE)]
        for ranges in sets
    ]
    if not all(sets):
        yield "one of its range sets is empty"
    reasons = list(filter(None, map(_range_refusal, chain.from_iterable(own))))
    if reasons:
        yield reasons[0]
        return
    blocks = [[_block(written) for written in ranges] for ranges in own]
    if any(len({first.version for first, _ in ranges}) > 1 for ranges in blocks):
        yield "one of its range sets has addresses of both families"
    for one, another in combinations(chain.from_iterable(blocks), 2):
        if _overlap(one, another):
            yield f"two of its ranges overlap: {_text(one)} and {_text(another)}"


def _range_refusal(written: WrittenRange) -> str | None:
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
        subnet_range(written.subnet, written.first, written.last, written.gateway)
    except ValueError as error:
        return str(error)
    return None


def _block(written: WrittenRange) -> _Block:
    range_ = subnet_range(written.subnet, written.first, written.last)
    return range_.first, range_.last


def _overlap(one: _Block, another: _Block) -> bool:
    same_family = one[0].version == another[0].version
    return same_family and int(one[0]) <= int(another[1]) and int(another[0]) <= int(one[1])


def _text(block: _Block) -> str:
    return f"{block[0]}-{block[1]}"

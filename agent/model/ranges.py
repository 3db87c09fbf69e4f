"""The addresses that host-local may give out in a network, counted as host-local counts them."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from itertools import chain, groupby, product
from typing import TypeAlias

IPAddress = IPv4Address | IPv6Address
_parsed = lru_cache(maxsize=1024)(ip_address)  # each sync asks for the same addresses several times


@dataclass(frozen=True, slots=True)
class Range:
    """One range of host-local's configuration. First and last address are inclusive.

    The gateway is never given out.
    """

    first: IPAddress
    last: IPAddress
    gateway: IPAddress

    def __str__(self) -> str:
        # The form in which host-local itself names a range when it is exhausted.
        return f"{self.first}-{self.last}"

    @property
    def usable(self) -> int:
        return int(self.last) - int(self.first) + 1 - (self.gateway in self)

    def __contains__(self, ip: IPAddress) -> bool:
        return ip.version == self.first.version and int(self.first) <= int(ip) <= int(self.last)


def subnet_range(subnet: str, first: str = "", last: str = "", gateway: str = "") -> Range:
    """Fill in what the configuration leaves out, as host-local's `Range.Canonicalize` does.

    The network's own address and, in IPv4, the broadcast address are left out; the gateway is the
    first address. Raises ValueError for anything that is not an address or a subnet, is too small
    to give anything out, or outside.
    """
    # A number would be an address, and so would true.
    if not all(isinstance(text, str) for text in (subnet, first, last, gateway)):
        raise ValueError(f"{subnet} is not a range")
    network: IPv4Network | IPv6Network = ip_network(subnet, strict=False)
    if network.num_addresses < 4:  # noqa: PLR2004 (a /31 or /32: host-local refuses it)
        raise ValueError(f"{subnet} is too small to allocate from")

    lowest = network.network_address + 1
    highest = network.broadcast_address - (network.version == 4)  # noqa: PLR2004

    written = Range(
        first=ip_address(first or lowest),
        last=ip_address(last or highest),
        gateway=ip_address(gateway or lowest),
    )

    if written.first not in network or written.last not in network or written.last not in written:
        raise ValueError(f"{written} is not a range of {subnet}")
    return written


RangeSets: TypeAlias = tuple[tuple[Range, ...], ...]
"""A network's configuration: a sandbox gets an address from each set (in dual stack, each family
has a set)."""


def covers(sets: RangeSets, ip: str) -> bool:
    """Whether an address is in one of the ranges. Raises ValueError if it is none."""
    address = _parsed(ip)
    return any(address in range_ for ranges in sets for range_ in ranges)


def overlap(some: RangeSets, others: RangeSets) -> str | None:
    """Return the first address that both can give out."""
    for range_, other in product(chain.from_iterable(some), chain.from_iterable(others)):
        if range_.first in other or other.first in range_:
            first = max(range_.first, other.first, key=int)
            while first in {range_.gateway, other.gateway}:
                first += 1
            if first in range_ and first in other:
                return str(first)
    return None


def begin_within(some: RangeSets, others: RangeSets) -> bool:
    """Return whether any of the ranges begins in any of the others."""
    ranges = chain.from_iterable(some)
    return any(range_.first in other for range_ in ranges for other in chain.from_iterable(others))


def usable(sets: RangeSets) -> int:
    """Count the sandboxes for which there are addresses: the smallest set decides."""
    return min((sum(range_.usable for range_ in ranges) for ranges in sets), default=0)


def free(sets: RangeSets, taken: Iterable[str]) -> int:
    """Count the sandboxes for which there are addresses left: the fullest set decides."""
    left = [sum(range_.usable for range_ in ranges) for ranges in sets]
    for address in map(_parsed, taken):
        for index, ranges in enumerate(sets):
            left[index] -= any(address in range_ and address != range_.gateway for range_ in ranges)
    return min(left, default=0)


def numbered(ip: str) -> tuple[int, int]:
    """Return an address's family and number, to sort by."""
    address = _parsed(ip)
    return address.version, int(address)


def runs(ips: Iterable[str]) -> list[str]:
    """Write three or more consecutive addresses as one text, in order."""
    ordered = sorted(ips, key=numbered)
    texts: list[str] = []
    # Consecutive addresses differ from their position by the same number.
    positions = groupby(enumerate(ordered), lambda item: numbered(item[1])[1] - item[0])
    for _, group in positions:
        run = [ip for _, ip in group]
        texts += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else run  # noqa: PLR2004
    return texts

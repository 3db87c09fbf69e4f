"""How the node's kernel would reach an address: RTM_GETROUTE over netlink (rtnetlink(7)).

Nothing is sent to the network, and no capability is needed. Numbers and structures are those of
Linux 6.1: linux/rtnetlink.h, linux/netlink.h, linux/if.h, linux/ipv6_route.h, linux/route.h.
"""

import errno
import fcntl
import os
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Final, NamedTuple

from agent.sources.source_error import SourceError

_HEADER: Final = struct.Struct("IHHII")  # `struct nlmsghdr`
_ROUTE: Final = struct.Struct("8BI")  # `struct rtmsg`
_ATTRIBUTE: Final = struct.Struct("HH")  # `struct rtattr`

_RTM_GETROUTE: Final = 26
_NLM_F_REQUEST: Final = 1
_NLMSG_ERROR: Final = 2
_RTM_F_FIB_MATCH: Final = 0x2000
"""Return the entry of the routing table, with its prefix. Linux < 4.13 ignores it."""

_RTN_UNICAST: Final = 1
_RTN_LOCAL: Final = 2

_RTA_DST: Final = 1
_RTA_OIF: Final = 4
_ELSEWHERE: Final = frozenset({5, 9, 18, 22})
"""Of a route that leads beyond a link: RTA_GATEWAY, RTA_MULTIPATH, RTA_VIA, RTA_ENCAP."""

_NO_ROUTE: Final = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL}
"""Also for the routes of the types unreachable, prohibit and blackhole."""
_TIMEOUT: Final = 5.0  # seconds

_TABLE: Final = Path("/proc/net/route")  # the main table of IPv4
_TABLE_IPV6: Final = Path("/proc/net/ipv6_route")
_ELSEWHERE_IPV6: Final = 0x80000000 | 0x0200
"""Flags of a route that leads to no link: RTF_LOCAL, RTF_REJECT."""

_SIOCGIFFLAGS: Final = 0x8913
_IFF_NOARP: Final = 0x80


class Route(NamedTuple):
    """How the node would reach an address. All defaults: it would not, or not on a link."""

    local: bool = False
    """It is an address of the node itself."""
    link: str = ""
    """The interface on whose link the address is; empty: none, or one without neighbors."""
    alone: bool = False
    """The route is for this address alone, as each pod has one with ptp and Calico."""
    prefix: int = 0
    """Of the route, in bits; all bits if it is not known."""
    other_links: tuple[str, ...] = ()
    """Interfaces with another route to it: it may be there."""


class _Answer(NamedTuple):
    """A route as the kernel describes it."""

    kind: int
    """RTN_UNICAST and the like."""
    prefix: int
    flags: int
    attributes: frozenset[int]
    """The types of its attributes: RTA_OIF and the like."""
    device: int
    """The index of its interface; 0: none."""


def find_route(ip: str) -> Route:
    """Return how the node would reach an address; raises SourceError."""
    try:
        answer = _get_route(ip, 0)
        if answer is None or answer.attributes & _ELSEWHERE:
            return Route()
        if answer.kind == _RTN_LOCAL:
            return Route(local=True)
        if answer.kind != _RTN_UNICAST:
            return Route()

        listed = _listed_ipv6(ip) if ":" in ip else _listed_ipv4(ip)
        return _route_on_link(ip, answer, tuple(listed))
    except (OSError, struct.error, ValueError) as error:
        raise SourceError(f"cannot ask the kernel for the route to {ip}: {error}") from error


def _route_on_link(ip: str, answer: _Answer, listed: Sequence[tuple[str, int]]) -> Route:
    """Return a route without a gateway.

    `listed`: the routes to the address in /proc, as interface and prefix.
    """
    link = socket.if_indextoname(answer.device)
    own = [bits for name, bits in listed if name == link]
    # The default route leads everywhere, and says nothing of an address.
    others = {name for name, bits in listed if bits and name != link}

    all_bits = ip_address(ip).max_prefixlen
    prefix = _find_prefix(ip, answer, own)
    alone = prefix == all_bits

    return Route(
        link=link if alone or _has_neighbors(link) else "",
        alone=alone,
        prefix=all_bits if prefix is None else prefix,
        other_links=tuple(sorted(others)),
    )


def _find_prefix(ip: str, answer: _Answer, listed: Sequence[int]) -> int | None:
    """Return the prefix of the route; None: not known. `listed`: those of its link in /proc."""
    entry = _get_route(ip, _RTM_F_FIB_MATCH)
    if entry != answer:
        return entry.prefix if entry else None
    # The flag is ignored: every answer is about the address alone.
    return None if ":" in ip else max(listed, default=None)


def _listed_ipv4(ip: str) -> Iterator[tuple[str, int]]:
    """Yield interface and prefix of each route without a gateway to a network with the address."""
    # The kernel writes addresses as the machine has their four bytes in memory.
    address = int.from_bytes(ip_address(ip).packed, sys.byteorder)
    for line in _TABLE.read_bytes().splitlines()[1:]:
        name, network, gateway, _, _, _, _, mask, *_ = line.split()
        mask_bits = int(mask, 16)
        if not int(gateway, 16) and address & mask_bits == int(network, 16):
            yield os.fsdecode(name), mask_bits.bit_count()


def _listed_ipv6(ip: str) -> Iterator[tuple[str, int]]:
    """Yield the same for IPv6; nothing if the kernel has none."""
    if not _TABLE_IPV6.exists():
        return

    address = int(ip_address(ip))
    for line in _TABLE_IPV6.read_bytes().splitlines():
        network, prefix, _, _, gateway, _, _, _, flags, name = line.split(maxsplit=9)
        if int(gateway, 16) or int(flags, 16) & _ELSEWHERE_IPV6:
            continue

        bits = int(prefix, 16)
        host_bits = 128 - bits
        if int(network, 16) >> host_bits == address >> host_bits:
            yield os.fsdecode(name.strip()), bits


def _get_route(ip: str, flags: int) -> _Answer | None:
    """Ask the kernel for one route; None: there is none. Raises OSError and struct.error."""
    address = ip_address(ip)
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    body = _ROUTE.pack(family, address.max_prefixlen, 0, 0, 0, 0, 0, 0, flags)
    body += _ATTRIBUTE.pack(_ATTRIBUTE.size + len(address.packed), _RTA_DST)
    body += address.packed
    header = _HEADER.pack(_HEADER.size + len(body), _RTM_GETROUTE, _NLM_F_REQUEST, 1, 0)

    kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
    with socket.socket(socket.AF_NETLINK, kind, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(_TIMEOUT)
        kernel.send(header + body)
        return _parse(kernel.recv(1 << 16))


def _parse(message: bytes) -> _Answer | None:
    """Return the route in an answer; None: there is none. Raises OSError for other errors."""
    length, message_type, *_ = _HEADER.unpack_from(message)
    if message_type == _NLMSG_ERROR:
        (code,) = struct.unpack_from("i", message, _HEADER.size)
        if -code in _NO_ROUTE:
            return None
        raise OSError(-code, os.strerror(-code))

    _, prefix, _, _, _, _, _, kind, flags = _ROUTE.unpack_from(message, _HEADER.size)

    attributes = set()
    device = 0
    offset = _HEADER.size + _ROUTE.size
    while offset < min(length, len(message)):
        size, name = _ATTRIBUTE.unpack_from(message, offset)
        if name == _RTA_OIF:
            (device,) = struct.unpack_from("I", message, offset + _ATTRIBUTE.size)
        attributes.add(name)
        aligned = size + 3 & ~3  # RTA_ALIGN: to four bytes
        offset += max(aligned, _ATTRIBUTE.size)

    return _Answer(kind, prefix, flags, frozenset(attributes), device)


def _has_neighbors(interface: str) -> bool:
    """Return whether the kernel resolves addresses on this interface (ARP, NDP)."""
    request = struct.pack("16sH22x", interface.encode(), 0)  # `struct ifreq`
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as any_socket:
        answer = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request)

    (flags,) = struct.unpack_from("H", answer, 16)
    return not flags & _IFF_NOARP

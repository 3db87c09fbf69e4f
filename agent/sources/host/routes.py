"""Asks the kernel how it would reach an address (RTM_GETROUTE over netlink). Sends nothing; needs no capability."""

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

# linux/rtnetlink.h, linux/netlink.h, linux/if.h
_RTM_GETROUTE, _NLM_F_REQUEST, _NLMSG_ERROR = 26, 1, 2
_RTM_F_FIB_MATCH: Final = 0x2000
"""Return the entry of the routing table, with its prefix. A kernel before 4.13 ignores it."""
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_MULTIPATH, _RTA_VIA, _RTA_ENCAP = 1, 4, 5, 9, 18, 22
_ELSEWHERE: Final = frozenset({_RTA_GATEWAY, _RTA_MULTIPATH, _RTA_VIA, _RTA_ENCAP})
_UNICAST, _LOCAL = 1, 2
_SIOCGIFFLAGS, _IFF_NOARP = 0x8913, 0x80
_HEADER, _ROUTE, _ATTRIBUTE = struct.Struct("IHHII"), struct.Struct("8BI"), struct.Struct("HH")
_NO_ROUTE: Final = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL}
"""Also for the routes of the types unreachable, prohibit and blackhole."""
_TIMEOUT: Final = 5.0
_TABLE: Final = Path("/proc/net/route")  # the main table of IPv4
_TABLE_IPV6: Final = Path("/proc/net/ipv6_route")
_ELSEWHERE_IPV6: Final = 0x80000000 | 0x0200  # RTF_LOCAL and RTF_REJECT (linux/ipv6_route.h, linux/route.h)


class Route(NamedTuple):
    local: bool = False  # it is an address of the node itself
    link: str = ""
    """The interface on whose link the address is; empty: not on a link, or on a link without neighbors (a tunnel)."""
    alone: bool = False  # the route is for this address alone, as each pod has one with ptp and Calico
    prefix: int = 0  # of the route, in bits; all bits if it is not known
    others: tuple[str, ...] = ()
    """Other interfaces with a route to a network with the address: it may be on their links."""


def find_route(ip: str) -> Route:
    """Return how the node would reach an address; raises SourceError."""
    try:
        found = _ask(ip, 0)
        if found is None or found.kind not in {_UNICAST, _LOCAL} or found.attributes & _ELSEWHERE:
            return Route()
        if found.kind == _LOCAL:
            return Route(local=True)
        return _on_link(ip, found, tuple(_listed_ipv6(ip) if ":" in ip else _listed_ipv4(ip)))
    except (OSError, struct.error, ValueError) as error:
        raise SourceError(f"cannot ask the kernel for the route to {ip}: {error}") from error


def _on_link(ip: str, found: "_Found", listed: Sequence[tuple[str, int]]) -> Route:
    name, longest = socket.if_indextoname(found.device), ip_address(ip).max_prefixlen
    prefix = _prefix(ip, found, [bits for link, bits in listed if link == name])
    return Route(
        link=name if prefix == longest or _has_neighbors(name) else "",
        alone=prefix == longest,
        prefix=longest if prefix is None else prefix,
        others=tuple(sorted({link for link, bits in listed if bits and link != name})),
    )


def _prefix(ip: str, found: "_Found", listed: Sequence[int]) -> int | None:
    """Return the prefix of the route; None: not known. `listed`: those of its link in /proc."""
    entry = _ask(ip, _RTM_F_FIB_MATCH)
    if entry != found:
        return entry.prefix if entry else None
    # The flag is ignored: every answer is about the address alone.
    return None if ":" in ip else max(listed, default=None)


def _listed_ipv4(ip: str) -> Iterator[tuple[str, int]]:
    """Yield each route to a network with the address, without a gateway, in /proc: its interface and its prefix."""
    # The kernel writes addresses as the machine has their four bytes in memory.
    address = int.from_bytes(ip_address(ip).packed, sys.byteorder)
    for name, to, gateway, _, _, _, _, mask, *_ in (line.split() for line in _TABLE.read_bytes().splitlines()[1:]):
        if not int(gateway, 16) and address & int(mask, 16) == int(to, 16):
            yield os.fsdecode(name), int(mask, 16).bit_count()


def _listed_ipv6(ip: str) -> Iterator[tuple[str, int]]:
    """Yield the same for IPv6."""
    address = int(ip_address(ip))
    for line in _TABLE_IPV6.read_bytes().splitlines() if _TABLE_IPV6.exists() else ():
        to, prefix, _, _, gateway, _, _, _, flags, name = line.split(maxsplit=9)
        bits = int(prefix, 16)
        near = not int(gateway, 16) and not int(flags, 16) & _ELSEWHERE_IPV6
        if near and int(to, 16) >> 128 - bits == address >> 128 - bits:
            yield os.fsdecode(name.strip()), bits


class _Found(NamedTuple):
    kind: int
    prefix: int
    flags: int
    attributes: frozenset[int]
    device: int


def _ask(ip: str, flags: int) -> _Found | None:
    """Ask for one route; None: there is none."""
    address = ip_address(ip)
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6  # noqa: PLR2004 (a version)
    body = _ROUTE.pack(family, address.max_prefixlen, 0, 0, 0, 0, 0, 0, flags)
    body += _ATTRIBUTE.pack(_ATTRIBUTE.size + len(address.packed), _RTA_DST) + address.packed
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(_TIMEOUT)
        kernel.send(_HEADER.pack(_HEADER.size + len(body), _RTM_GETROUTE, _NLM_F_REQUEST, 1, 0) + body)
        return _parse(kernel.recv(1 << 16))


def _parse(answer: bytes) -> _Found | None:
    length, kind, *_ = _HEADER.unpack_from(answer)
    if kind == _NLMSG_ERROR:
        (code,) = struct.unpack_from("i", answer, _HEADER.size)
        if -code in _NO_ROUTE:
            return None
        raise OSError(-code, os.strerror(-code))
    _, prefix, _, _, _, _, _, route_kind, flags = _ROUTE.unpack_from(answer, _HEADER.size)
    attributes, device, at = set[int](), 0, _HEADER.size + _ROUTE.size
    while at < min(length, len(answer)):
        size, name = _ATTRIBUTE.unpack_from(answer, at)
        if name == _RTA_OIF:
            (device,) = struct.unpack_from("I", answer, at + _ATTRIBUTE.size)
        attributes.add(name)
        at += max(size + 3 & ~3, _ATTRIBUTE.size)
    return _Found(route_kind, prefix, flags, frozenset(attributes), device)


def _has_neighbors(interface: str) -> bool:
    """Return whether the kernel resolves addresses on this interface (ARP, NDP)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as any_socket:
        answer = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, struct.pack("16sH22x", interface.encode(), 0))
    (flags,) = struct.unpack_from("H", answer, 16)
    return not flags & _IFF_NOARP

"""Asks the addresses themselves whether somebody has them: one UDP datagram each, all at once. Needs no capability.

A network namespace without a process is in no list, and a pod that gets its address shares it. But the kernel in it
answers: the port is closed. Where nobody has the address, the node's own kernel reports after three unanswered requests
(ARP or NDP, one a second) that the host is unreachable.
"""

import contextlib
import errno
import fcntl
import os
import selectors
import socket
import struct
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Final, NamedTuple

from agent.model.release import ProbeResult, Reason
from agent.model.snapshot import Reservation, ReservationKey
from agent.sources.source_error import SourceError, cannot_read

# How the kernel would reach an address (RTM_GETROUTE over netlink). Nothing is sent; no capability is needed.

# linux/rtnetlink.h, linux/netlink.h, linux/if.h
_RTM_GETROUTE, _NLM_F_REQUEST, _NLMSG_ERROR = 26, 1, 2
_RTM_F_FIB_MATCH: Final = (
    0x2000  # return the entry of the routing table, with its prefix; ignored before 4.13
)
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_MULTIPATH, _RTA_VIA, _RTA_ENCAP = 1, 4, 5, 9, 18, 22
_ELSEWHERE: Final = frozenset({_RTA_GATEWAY, _RTA_MULTIPATH, _RTA_VIA, _RTA_ENCAP})
_UNICAST, _LOCAL = 1, 2
_SIOCGIFFLAGS, _IFF_NOARP = 0x8913, 0x80
_HEADER, _ROUTE, _ATTRIBUTE = struct.Struct("IHHII"), struct.Struct("8BI"), struct.Struct("HH")
_NO_ROUTE: Final = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL}
"""Also for the routes of the types unreachable, prohibit and blackhole."""
_TIMEOUT: Final = 5.0  # seconds
_TABLE: Final = Path("/proc/net/route")  # the main table of IPv4
_TABLE_IPV6: Final = Path("/proc/net/ipv6_route")
_ELSEWHERE_IPV6: Final = (
    0x80000000 | 0x0200
)  # RTF_LOCAL and RTF_REJECT (linux/ipv6_route.h, linux/route.h)


class _Route(NamedTuple):
    local: bool = False  # it is an address of the node itself
    link: str = ""  # the interface on whose link the address is; empty: none, or one without neighbors (a tunnel)
    alone: bool = (
        False  # the route is for this address alone, as each pod has one with ptp and Calico
    )
    prefix: int = 0  # of the route, in bits; all bits if it is not known
    others: tuple[
        str, ...
    ] = ()  # interfaces that also have a route to it: it may be on their links


class _Found(NamedTuple):
    kind: int
    prefix: int
    flags: int
    attributes: frozenset[int]
    device: int


def _find_route(ip: str) -> _Route:
    """Return how the node would reach an address; raises SourceError."""
    try:
        found = _ask(ip, 0)
        if found is None or found.kind not in {_UNICAST, _LOCAL} or found.attributes & _ELSEWHERE:
            return _Route()
        if found.kind == _LOCAL:
            return _Route(local=True)
        return _on_link(ip, found, tuple(_listed_ipv6(ip) if ":" in ip else _listed_ipv4(ip)))
    except (OSError, struct.error, ValueError) as error:
        raise SourceError(f"cannot ask the kernel for the route to {ip}: {error}") from error


def _on_link(ip: str, found: _Found, listed: Sequence[tuple[str, int]]) -> _Route:
    name, longest = socket.if_indextoname(found.device), ip_address(ip).max_prefixlen
    prefix = _prefix(ip, found, [bits for link, bits in listed if link == name])
    return _Route(
        link=name if prefix == longest or _has_neighbors(name) else "",
        alone=prefix == longest,
        prefix=longest if prefix is None else prefix,
        others=tuple(sorted({link for link, bits in listed if bits and link != name})),
    )


def _prefix(ip: str, found: _Found, listed: Sequence[int]) -> int | None:
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
    for name, to, gateway, _, _, _, _, mask, *_ in (
        line.split() for line in _TABLE.read_bytes().splitlines()[1:]
    ):
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


def _ask(ip: str, flags: int) -> _Found | None:
    """Ask for one route; None: there is none."""
    address = ip_address(ip)
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6  # noqa: PLR2004 (a version)
    body = _ROUTE.pack(family, address.max_prefixlen, 0, 0, 0, 0, 0, 0, flags)
    body += _ATTRIBUTE.pack(_ATTRIBUTE.size + len(address.packed), _RTA_DST) + address.packed
    with socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE
    ) as kernel:
        kernel.settimeout(_TIMEOUT)
        kernel.send(
            _HEADER.pack(_HEADER.size + len(body), _RTM_GETROUTE, _NLM_F_REQUEST, 1, 0) + body
        )
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
        answer = fcntl.ioctl(
            any_socket, _SIOCGIFFLAGS, struct.pack("16sH22x", interface.encode(), 0)
        )
    (flags,) = struct.unpack_from("H", answer, 16)
    return not flags & _IFF_NOARP


# The datagrams.

_PORT: Final = 9  # of the discard service, which nobody runs
_DATAGRAM: Final = b"nodeleak"
_APART: Final = (
    0.002  # the kernel sends 1000 reports a second at most (icmp_msgs_per_sec), and drops others
)
_EVERY: Final = 4.5  # longer than the search for a neighbor, because each datagram that waits for one is reported
_TIMES: Final = 3  # where the kernel remembers a neighbor that is gone, it forgets it after 8 s, then looks for 3 s
_ORIGIN_ICMP: Final = frozenset({2, 3})
_ERROR: Final = struct.Struct(
    "IBBBxII"
)  # `struct sock_extended_err`; the address of who reports the error follows
_REACHED: Final = frozenset({"bridge", "calico", "flannel", "ptp"})
"""Plugins whose pods the node has on a link, or a route to each of."""
ISOLATING: Final = frozenset({"macvlan", "ipvlan"})
"""Plugins whose pods the node itself does not reach: they are on the link of its interface, and it is not on theirs."""
_IPV6_ADDRESSES: Final = Path("/proc/net/if_inet6")
_LINK_LOCAL, _NOT_READY = (
    0x20,
    0x40 | 0x04,
)  # `IPV6_ADDR_LINKLOCAL`; `IFA_F_TENTATIVE` (RFC 4862) or `IFA_F_OPTIMISTIC`
_FAMILIES: Final = {
    socket.AF_INET: (socket.IPPROTO_IP, 11, socket.IP_TTL, 4),
    socket.AF_INET6: (socket.IPPROTO_IPV6, 25, socket.IPV6_UNICAST_HOPS, 8),
}
"""The level of the options, `RECVERR`, the limit of hops, and where the address is in a socket address."""


def probe(
    reservations: Iterable[Reservation],
    plugins: Mapping[str, Collection[str]],
    clock: Callable[[], float],
    proc: Path,
    *,
    send: bool = True,
) -> dict[ReservationKey, ProbeResult]:
    """Return what is known of each address; raises SourceError if the kernel cannot be asked, or is not the node's."""
    # `plugins`: by network, those that may make its interfaces. `send`: False: nothing is sent, and an address is left
    # out if a probe of it would tell whether somebody has it.
    _require_network_of_the_node(proc)
    results, probes = dict[ReservationKey, ProbeResult](), dict[ReservationKey, _Probe]()
    for reservation in reservations:
        key, ip, route = reservation.key, reservation.ip, _find_route(reservation.ip)
        doubt = _doubt(route, plugins[reservation.network])
        if result := _unasked(ip, route, plugins[reservation.network]):
            results[key] = result
        elif send:
            probes[key] = _Probe(ip, route, doubt)
        elif doubt:
            results[key] = ProbeResult(
                f"a probe of {ip} cannot prove that nobody has it: {doubt}", conclusive=False
            )
    waiting = list(probes.values())
    try:
        for _ in range(_TIMES):
            waiting = _ask_once(waiting, clock)
    except OSError as error:
        raise SourceError(f"cannot probe addresses: {error}") from error
    return results | {key: probe.result() for key, probe in probes.items()}


def _unasked(ip: str, route: _Route, plugins: Collection[str]) -> ProbeResult | None:
    """Return what the route and the plugins tell; None: the address is on a link and can be asked."""
    if route.local:
        return ProbeResult(f"{ip} is an address of the node itself", Reason.ADDRESS_IN_USE)
    if route.alone:
        return ProbeResult(
            f"a route to {ip} alone leads to interface {route.link}", Reason.ADDRESS_IN_USE
        )
    isolating = ", ".join(sorted(ISOLATING.intersection(plugins)))
    why = (
        f"the node does not reach pods of {isolating}"
        if route.link
        else "the node has it on no link"
    )
    return (
        ProbeResult(f"{ip} cannot be probed: {why}", conclusive=False)
        if isolating or not route.link
        else None
    )


def _doubt(route: _Route, plugins: Collection[str]) -> str:
    """Say why it would prove nothing that an address does not answer; empty: it would prove that nobody has it."""
    if route.others:
        return f"{', '.join(route.others)} cannot be asked"
    which = ", ".join(sorted(plugins)) or "a plugin that is not known"
    return (
        ""
        if plugins and _REACHED.issuperset(plugins)
        else f"the node may not reach pods of {which}"
    )


def _require_network_of_the_node(proc: Path) -> None:
    """Raise SourceError in a pod's own network, where nobody has the address of any other pod."""
    own, node = Path("/proc/self/net/dev"), proc / "1/net/dev"
    try:
        # A file of each network namespace, which tells them apart without a capability.
        same = own.stat().st_ino == node.stat().st_ino
    except OSError as error:
        raise SourceError(
            f"cannot probe addresses: {cannot_read(error.filename, error)}"
        ) from error
    if not same:
        raise SourceError(
            "cannot probe addresses: this is not the node's network (set hostNetwork: true)"
        )


class _Probe:
    """One address, and the socket that asks it."""

    def __init__(self, ip: str, route: _Route, doubt: str) -> None:
        self.ip, self._route, self._doubt = ip, route, doubt
        self._found: ProbeResult | None = None
        self._unsent = self._sender = ""
        self._family = socket.AF_INET6 if ":" in ip else socket.AF_INET

    def connect(self) -> socket.socket:
        """Return a socket to ask with; raises OSError."""
        asking = socket.socket(
            self._family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        try:
            level, reports, hops, _ = _FAMILIES[self._family]
            asking.setsockopt(level, reports, 1)
            asking.setsockopt(level, hops, 1)  # the route may have changed: no gateway forwards it
            asking.connect((self.ip, _PORT))
            self._sender = str(asking.getsockname()[0])
            self._unsent = self._no_sender()
        except OSError:
            asking.close()
            raise
        return asking

    def _no_sender(self) -> str:
        """Return why "host unreachable" would prove nothing: nobody was asked, or nobody could answer the sender."""
        if self._family == socket.AF_INET:
            # A pod that has no route to the sender ignores its ARP request (rp_filter).
            near = ip_address(self._sender) in ip_network(
                f"{self.ip}/{self._route.prefix}", strict=False
            )
            return (
                ""
                if near
                else f"the node asks as {self._sender}, which is not in the network of the route"
            )
        why = "the node cannot ask there: it has no IPv6 address on it, or one that is still tentative"
        return "" if _can_ask_as(self._sender, self._route.link) else why

    def result(self) -> ProbeResult:
        why = (
            self._unsent
            or f"no answer within {_TIMES * _EVERY:.0f} s, and the node does not report it unreachable"
        )
        return self._found or ProbeResult(
            f"{self.ip} on {self._route.link}: {why}", Reason.PROBE_UNANSWERED
        )

    def send(self, asking: socket.socket) -> None:
        # Any other error was received, and is read from the queue.
        with contextlib.suppress(OSError):
            try:
                asking.send(_DATAGRAM)
            except PermissionError:
                self._unsent = "a firewall of the node does not let the probe pass"

    def receive(self, asking: socket.socket) -> bool:
        """Read what has arrived, and return whether it settles the question."""
        with contextlib.suppress(BlockingIOError):
            _, reports, _, _ = asking.recvmsg(1, 512, socket.MSG_ERRQUEUE)
            for _, _, report in reports:
                self._read_report(report)
        with contextlib.suppress(OSError):  # errors are those of the queue
            asking.recv(1)
            self._found = self._found or self._in_use("it sent a datagram")
        return self._found is not None

    def _read_report(self, report: bytes) -> None:
        code, origin, _, _, _, _ = _ERROR.unpack_from(report)
        if origin not in _ORIGIN_ICMP:
            return
        *_, at = _FAMILIES[self._family]
        size = 4 if self._family == socket.AF_INET else 16
        sender = socket.inet_ntop(self._family, report[_ERROR.size + at :][:size])
        if (
            sender != self.ip and _find_route(sender).local
        ):  # not the address itself, behind a firewall
            self._unsent = self._unsent or self._no_sender()
            if code == errno.EHOSTUNREACH and not self._unsent:
                why = f"nobody on {self._route.link} has {self.ip}: host unreachable"
                doubt = f", which proves nothing: {self._doubt}" if self._doubt else ""
                self._found = ProbeResult(f"{why}{doubt}", conclusive=not doubt)
        else:
            by = "" if sender == self.ip else f" by {sender}"
            self._found = self._in_use(f"{os.strerror(code).lower()}{by}")

    def _in_use(self, what: str) -> ProbeResult:
        return ProbeResult(
            f"{self.ip} answers on {self._route.link} ({what})", Reason.ADDRESS_IN_USE
        )


def _can_ask_as(sender: str, link: str) -> bool:
    """Return whether the kernel has an IPv6 address to ask as: the sender on this link, or the link-local address."""
    # An interface may have nearly any bytes as its name: the last field, as it is.
    addresses = (
        line.split(maxsplit=5) for line in _IPV6_ADDRESSES.read_bytes().split(b"\n") if line
    )
    on_link = (fields for fields in addresses if fields[5:] == [os.fsencode(link)])
    ready = [fields for fields in on_link if not int(fields[4], 16) & _NOT_READY]
    packed = ip_address(sender.partition("%")[0]).packed.hex().encode()
    return any(fields[0] == packed or int(fields[3], 16) == _LINK_LOCAL for fields in ready)


def _ask_once(probes: Iterable[_Probe], clock: Callable[[], float]) -> list[_Probe]:
    """Send a datagram to each, and return those that are not settled; raises OSError."""
    # Each time from a new socket: the kernel chooses the sender when a socket connects, and takes a sender to which no
    # report comes while the address of the link is tentative, as that of a bridge is which has just got its first pod.
    with contextlib.ExitStack() as open_sockets, selectors.DefaultSelector() as waiting:

        def receive(seconds: float) -> None:
            for key, _ in waiting.select(seconds):
                address, asking = key.data
                if address.receive(asking):
                    waiting.unregister(asking)

        for address in probes:
            asking = open_sockets.enter_context(address.connect())
            waiting.register(asking, selectors.EVENT_READ, (address, asking))
            address.send(asking)
            receive(_APART)
        until = clock() + _EVERY
        while waiting.get_map() and (left := until - clock()) > 0:
            receive(left)
        return [key.data[0] for key in waiting.get_map().values()]

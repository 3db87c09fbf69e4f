"""Asks the addresses themselves whether somebody has them: one UDP datagram each, all at once.

Needs no capability. A network namespace without a process appears in no list, and a new pod with
its address would duplicate it. But the kernel in it answers that the port is closed. Where nobody
has the address, the node's own kernel reports after three unanswered requests (ARP or NDP, one a
second) that the host is unreachable.
"""

import contextlib
import errno
import os
import selectors
import socket
import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Final

from agent.model.release import ProbeResult, Reason
from agent.model.snapshot import Reservation, ReservationKey
from agent.sources.host.route import Route, find_route
from agent.sources.source_error import SourceError, cannot_read

_PORT: Final = 9  # of the discard service, which nobody runs
_DATAGRAM: Final = b"nodeleak"
_SEND_INTERVAL: Final = 0.002
"""Seconds between datagrams: the kernel drops ICMP reports beyond 1,000 a second
(`icmp_msgs_per_sec`)."""
_ROUND_SECONDS: Final = 4.5
"""Longer than the search for a neighbor, because each datagram that waits for one is reported."""
_ROUNDS: Final = 3
"""A neighbor that is gone is forgotten after 8 s, and then looked for during 3 s."""
_ORIGIN_ICMP: Final = frozenset({2, 3})  # SO_EE_ORIGIN_ICMP, SO_EE_ORIGIN_ICMP6
_ERROR: Final = struct.Struct("IBBBxII")
"""`struct sock_extended_err` (linux/errqueue.h); the address of who reports the error follows."""
_REACHED: Final = frozenset({"bridge", "calico", "flannel", "ptp"})
"""Plugins whose pods the node has on a link, or a route to each of."""
ISOLATING: Final = frozenset({"macvlan", "ipvlan"})
"""Plugins whose pods are on the link of the node's interface, and the node is not on theirs."""
_IPV6_ADDRESSES: Final = Path("/proc/net/if_inet6")
_LINK_LOCAL: Final = 0x20  # IPV6_ADDR_LINKLOCAL
_NOT_READY: Final = 0x40 | 0x04  # IFA_F_TENTATIVE (RFC 4862), IFA_F_OPTIMISTIC
_FAMILIES: Final = {
    socket.AF_INET: (socket.IPPROTO_IP, 11, socket.IP_TTL, 4),
    socket.AF_INET6: (socket.IPPROTO_IPV6, 25, socket.IPV6_UNICAST_HOPS, 8),
}
"""The level of the options, RECVERR, the hop limit, the address' offset in a socket address."""


def probe(
    reservations: Iterable[Reservation],
    plugins: Mapping[str, Collection[str]],
    clock: Callable[[], float],
    proc: Path,
    *,
    send: bool = True,
) -> dict[ReservationKey, ProbeResult]:
    """Return what is known of each address.

    `plugins`: by network, those that may make its interfaces. `send`: False: nothing is sent, and
    an address is left out if only a datagram would tell. Raises SourceError if the kernel cannot
    be asked, or is not the node's.
    """
    _require_network_of_the_node(proc)

    results: dict[ReservationKey, ProbeResult] = {}
    probes: dict[ReservationKey, _Probe] = {}
    for reservation in reservations:
        ip = reservation.ip
        route = find_route(ip)
        makers = plugins[reservation.network]
        doubt = _reason_to_doubt_unreachable(route, makers)
        if result := _result_without_probe(ip, route, makers):
            results[reservation.key] = result
        elif send:
            probes[reservation.key] = _Probe(ip, route, doubt)
        elif doubt:
            why = f"a probe of {ip} cannot prove that nobody has it: {doubt}"
            results[reservation.key] = ProbeResult(why, conclusive=False)

    waiting = [*probes.values()]
    try:
        for _ in range(_ROUNDS):
            waiting = _send_round(waiting, clock)
    except OSError as error:
        raise SourceError(f"cannot probe addresses: {error}") from error
    return results | {key: probe.result() for key, probe in probes.items()}


def _result_without_probe(ip: str, route: Route, plugins: Collection[str]) -> ProbeResult | None:
    """Return what route and plugins tell; None: the address is on a link and can be probed.

    What is not conclusive is left to `Recheck.probe`, which refuses it if a network namespace is
    mounted whose sandbox is not known.
    """
    if route.local:
        return ProbeResult(f"{ip} is an address of the node itself", Reason.ADDRESS_IN_USE)
    if route.alone:
        why = f"a route to {ip} alone leads to interface {route.link}"
        return ProbeResult(why, Reason.ADDRESS_IN_USE)
    if not route.link:
        why = f"{ip} cannot be probed: the node has it on no link"
        return ProbeResult(why, conclusive=False)
    if isolating := sorted(ISOLATING.intersection(plugins)):
        why = f"{ip} cannot be probed: the node does not reach pods of {', '.join(isolating)}"
        return ProbeResult(why, conclusive=False)
    return None


def _reason_to_doubt_unreachable(route: Route, plugins: Collection[str]) -> str | None:
    """Return why "host unreachable" is inconclusive; None: it proves that the address is unused."""
    if route.other_links:
        return f"{', '.join(route.other_links)} cannot be asked"
    if plugins and _REACHED.issuperset(plugins):
        return None
    makers = ", ".join(sorted(plugins)) or "a plugin that is not known"
    return f"the node may not reach pods of {makers}"


def _require_network_of_the_node(proc: Path) -> None:
    """Raise SourceError in a pod's own network, where nobody has the address of any other pod."""
    try:
        # A file of each network namespace, which tells them apart without a capability.
        own = Path("/proc/self/net/dev").stat().st_ino
        node = (proc / "1/net/dev").stat().st_ino
    except OSError as error:
        reason = cannot_read(error.filename, error)
        raise SourceError(f"cannot probe addresses: {reason}") from error

    if own != node:
        raise SourceError(
            "cannot probe addresses: this is not the node's network (set hostNetwork: true)"
        )


class _Probe:
    """One address, and what has been heard of it."""

    def __init__(self, ip: str, route: Route, doubt: str | None) -> None:
        """`doubt`: why silence is inconclusive."""
        self._ip = ip
        self._route = route
        self._doubt = doubt
        self._result: ProbeResult | None = None
        self._unsent: str | None = None  # why nobody was asked, or could answer
        self._sender = ""
        self._family = socket.AF_INET6 if ":" in ip else socket.AF_INET

    def connect(self) -> socket.socket:
        """Return a socket to send from; raises OSError."""
        kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        connected = socket.socket(self._family, kind)
        try:
            level, reports, hops, _ = _FAMILIES[self._family]
            connected.setsockopt(level, reports, 1)
            connected.setsockopt(level, hops, 1)  # the route may have changed: past no gateway
            connected.connect((self._ip, _PORT))
            self._sender = str(connected.getsockname()[0])
            self._unsent = self._why_unanswerable()
        except OSError:
            connected.close()
            raise
        return connected

    def _why_unanswerable(self) -> str | None:
        """Return why "host unreachable" would prove nothing, if so.

        Nobody was asked, or nobody could answer the sender.
        """
        if self._family == socket.AF_INET6:
            if _can_send_from(self._sender, self._route.link):
                return None
            return (
                "the node cannot ask there: it has no IPv6 address on it, "
                "or one that is still tentative"
            )
        # A pod that has no route to the sender ignores its ARP request (rp_filter).
        network = ip_network(f"{self._ip}/{self._route.prefix}", strict=False)
        if ip_address(self._sender) in network:
            return None
        return f"the node asks as {self._sender}, which is not in the network of the route"

    def result(self) -> ProbeResult:
        if self._result:
            return self._result
        seconds = f"{_ROUNDS * _ROUND_SECONDS:.0f} s"
        silence = f"no answer within {seconds}, and the node does not report it unreachable"
        why = f"{self._ip} on {self._route.link}: {self._unsent or silence}"
        return ProbeResult(why, Reason.PROBE_UNANSWERED)

    def send(self, connected: socket.socket) -> None:
        """Send the datagram. If a firewall forbids it, silence proves nothing."""
        # Any other error was received, and is read from the queue.
        with contextlib.suppress(OSError):
            try:
                connected.send(_DATAGRAM)
            except PermissionError:
                self._unsent = "a firewall of the node does not let the probe pass"

    def receive(self, connected: socket.socket) -> bool:
        """Read what has arrived. Return whether there is a result."""
        with contextlib.suppress(BlockingIOError):
            _, reports, _, _ = connected.recvmsg(1, 512, socket.MSG_ERRQUEUE)
            for _, _, report in reports:
                self._read_report(report)

        with contextlib.suppress(OSError):  # errors are those of the queue
            connected.recv(1)
            self._result = self._result or self._in_use("it sent a datagram")
        return self._result is not None

    def _read_report(self, report: bytes) -> None:
        """Read what the kernel reports of a datagram: `sock_extended_err` and who reports it."""
        code, origin, *_ = _ERROR.unpack_from(report)
        if origin not in _ORIGIN_ICMP:
            return

        *_, offset = _FAMILIES[self._family]
        size = 4 if self._family == socket.AF_INET else 16
        sender = socket.inet_ntop(self._family, report[_ERROR.size + offset :][:size])
        if sender == self._ip or not find_route(sender).local:
            by = "" if sender == self._ip else f" by {sender}"
            self._result = self._in_use(f"{os.strerror(code).lower()}{by}")
            return

        # The node itself reports, not the address behind a firewall.
        self._unsent = self._unsent or self._why_unanswerable()
        if code == errno.EHOSTUNREACH and not self._unsent:
            why = f"nobody on {self._route.link} has {self._ip}: host unreachable"
            if self._doubt:
                why += f", which proves nothing: {self._doubt}"
            self._result = ProbeResult(why, conclusive=self._doubt is None)

    def _in_use(self, answer: str) -> ProbeResult:
        why = f"{self._ip} answers on {self._route.link} ({answer})"
        return ProbeResult(why, Reason.ADDRESS_IN_USE)


def _can_send_from(sender: str, link: str) -> bool:
    """Return whether the kernel has an IPv6 address to ask from: the sender, or link-local."""
    packed = ip_address(sender.partition("%")[0]).packed.hex().encode()
    # The name is the last field, as it is: an interface may have nearly any bytes as its name.
    for line in _IPV6_ADDRESSES.read_bytes().split(b"\n"):
        fields = line.split(maxsplit=5)
        if fields[5:] != [os.fsencode(link)] or int(fields[4], 16) & _NOT_READY:
            continue
        if fields[0] == packed or int(fields[3], 16) == _LINK_LOCAL:
            return True
    return False


def _send_round(probes: Iterable[_Probe], clock: Callable[[], float]) -> list[_Probe]:
    """Send a datagram to each address. Return the probes without a result; raises OSError."""
    # Each round from new sockets: the kernel chooses the sender when a socket connects. While the
    # address of the link is tentative, as that of a bridge is that has just got its first pod, it
    # chooses a sender to which no report comes.
    with contextlib.ExitStack() as open_sockets, selectors.DefaultSelector() as waiting:

        def receive(seconds: float) -> None:
            for key, _ in waiting.select(seconds):
                probe, connected = key.data
                if probe.receive(connected):
                    waiting.unregister(connected)

        for probe in probes:
            connected = open_sockets.enter_context(probe.connect())
            waiting.register(connected, selectors.EVENT_READ, (probe, connected))
            probe.send(connected)
            receive(_SEND_INTERVAL)

        until = clock() + _ROUND_SECONDS
        while waiting.get_map() and (left := until - clock()) > 0:
            receive(left)
        return [key.data[0] for key in waiting.get_map().values()]

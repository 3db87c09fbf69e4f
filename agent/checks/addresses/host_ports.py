"""The ports of the node that rules in iptables or nftables may still forward to an address, after its pod is gone.

A CNI plugin forwards what libcni's cached result has. kubenet and CRI-O forward by themselves, as the pod's spec says.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Final

from agent.model.assessment import Assessment
from agent.model.index import SnapshotIndex
from agent.model.runtime import CRI_O
from agent.model.snapshot import PortMapping, Reservation, known_or
from agent.model.text import count_of

Ports = tuple[PortMapping, ...]

_NAMED: Final = 3  # ports in one sentence about several


def forwarded(
    assessment: Assessment, reservations: Iterable[Reservation]
) -> dict[Reservation, Ports | None]:
    """Return the ports that may still be forwarded to each address; None: not known."""
    snapshot, found = assessment.snapshot, dict[Reservation, Ports | None]()
    processes, by_runtime = known_or(snapshot.processes, None), CRI_O in assessment.runtime.names
    networks = () if by_runtime else known_or(snapshot.networks, ())
    silent = {network.name for network in networks} - {
        network.name for network in networks if network.forwards_ports
    }
    # No result has what a plugin in a file of its own forwards: one without ports proves nothing.
    incomplete = {network.name for network in networks if network.plugin_files} - silent
    for reservation in reservations:
        ports = assessment.memory.of(reservation).host_ports
        if ports is None and reservation.network in silent:
            ports = ()
        # A reboot removes the rules, and an ADD that died before it wrote the file has not come to make any.
        rebooted = processes is not None and processes.booted > reservation.mtime
        gone = rebooted or not reservation.container_id
        may_lack = by_runtime or reservation.network in incomplete
        found[reservation] = () if gone else _cached(reservation, assessment.index, ports, may_lack)
    return found


def _cached(
    reservation: Reservation, index: SnapshotIndex, otherwise: Ports | None, may_lack: bool
) -> Ports | None:
    """Return the ports in libcni's results.

    Those of kubenet, and of libcni before 0.8, name neither ports nor pod. `may_lack`: a result
    without ports may lack some.
    """
    results = [
        result
        for result in index.results.get(reservation.container_id, ())
        if result.network == reservation.network
    ]
    named = [
        result.port_mappings
        for result in results
        if result.port_mappings or (result.pod and not may_lack)
    ]
    return tuple(dict.fromkeys(chain.from_iterable(named))) if named else otherwise


def describe(ports: str) -> str:
    """Say what a release does not remove. `ports`: of the node, and where they lead; may be empty."""
    return f"; iptables or nftables rules may still forward host port {ports}" if ports else ""


def describe_rules(ports: Mapping[str, Sequence[PortMapping] | None]) -> str:
    """Say which rules a release leaves, and one command that shows them. `ports`: of each address; None: not known."""
    saved = "(iptables-save -t nat; ip6tables-save -t nat; nft list ruleset) | grep -i dnat"
    show = f"such rules would lead to the next pod; see them on the node: `{saved} | grep -wE '{_pattern(ports)}'`"
    known = [f"{port} to {ip}" for ip, forwarded in ports.items() for port in forwarded or ()]
    if not known:
        return f"rules that forward host ports to {count_of(len(ports), 'address', 'addresses')} are not known; {show}"
    more = f" and {len(known) - _NAMED} more" if len(known) > _NAMED else ""
    return f"{describe(', '.join(known[:_NAMED]) + more).removeprefix('; ')}; {show}"


def _pattern(ips: Iterable[str]) -> str:
    """Return what matches the addresses, for `grep -wE`: short enough for a whole range."""
    ends: dict[str, list[str]] = {}
    for ip in ips:
        cut = max(ip.rfind("."), ip.rfind(":")) + 1
        ends.setdefault(ip[:cut].replace(".", "[.]"), []).append(ip[cut:])
    return "|".join(
        f"{start}({'|'.join(end)})" if len(end) > 1 else f"{start}{end[0]}"
        for start, end in ends.items()
    )

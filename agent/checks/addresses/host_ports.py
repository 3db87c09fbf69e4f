"""The ports of the node that firewall rules may still forward to an address whose pod is gone.

A CNI plugin forwards what libcni's cached result has. kubenet and CRI-O forward by themselves, as
the pod's spec says.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from agent.model.assessment import Assessment
from agent.model.index import SnapshotIndex
from agent.model.runtime import CRI_O
from agent.model.snapshot import PortMapping, Reservation, known_or
from agent.model.text import count_of

Ports = tuple[PortMapping, ...]

_NAMED: Final = 3  # ports in one sentence about several
_MAY_FORWARD: Final = "iptables or nftables rules may still forward host port"


def forwarded(
    assessment: Assessment, reservations: Iterable[Reservation]
) -> dict[Reservation, Ports | None]:
    """Return the ports that may still be forwarded to each address; None: unknown."""
    processes = known_or(assessment.snapshot.processes, None)
    booted = processes.booted if processes else None
    by_runtime = CRI_O in assessment.runtime.names
    networks = () if by_runtime else known_or(assessment.snapshot.networks, ())
    forwarding = {network.name for network in networks if network.forwards_ports}
    silent = {network.name for network in networks} - forwarding
    # No result has what a plugin in a file of its own forwards: without ports it proves nothing.
    incomplete = {network.name for network in networks if network.plugin_files} & forwarding

    ports: dict[Reservation, Ports | None] = {}
    for reservation in reservations:
        # A reboot removes the rules, and an ADD that died before it wrote the file made none.
        rebooted = booted is not None and booted > reservation.mtime
        if rebooted or not reservation.container_id:
            ports[reservation] = ()
            continue

        may_lack = by_runtime or reservation.network in incomplete
        cached = _cached(reservation, assessment.index, may_lack=may_lack)

        in_spec = assessment.memory.get(reservation).host_ports
        if in_spec is None and reservation.network in silent:
            in_spec = ()
        ports[reservation] = in_spec if cached is None else cached
    return ports


def _cached(reservation: Reservation, index: SnapshotIndex, *, may_lack: bool) -> Ports | None:
    """Return the ports in libcni's results; None: no result tells.

    Those of kubenet, and of libcni before 0.8, name neither ports nor pod. `may_lack`: a result
    without ports may lack some.
    """
    ports: list[PortMapping] = []
    tells = False
    for result in index.results_of(reservation):
        tells = tells or bool(result.port_mappings or (result.pod and not may_lack))
        ports += result.port_mappings
    return tuple(dict.fromkeys(ports)) if tells else None


def describe(ports: str) -> str:
    """Say what a release does not remove. `ports`: of the node, and where they lead, or empty."""
    return f"; {_MAY_FORWARD} {ports}" if ports else ""


def describe_rules(ports: Mapping[str, Sequence[PortMapping] | None]) -> str:
    """Say which rules a release leaves, and one command that shows them.

    `ports`: of each address; None: unknown.
    """
    show = f"such rules would lead to the next pod; see them on the node: `{show_rules(ports)}`"
    known = [f"{port} to {ip}" for ip, forwarded in ports.items() for port in forwarded or ()]
    if not known:
        addresses = count_of(len(ports), "address", "addresses")
        return f"rules that forward host ports to {addresses} are not known; {show}"

    more = f" and {len(known) - _NAMED} more" if len(known) > _NAMED else ""
    return f"{_MAY_FORWARD} {', '.join(known[:_NAMED])}{more}; {show}"


def show_rules(ips: Iterable[str]) -> str:
    """Return the command that shows the rules which forward to one of these addresses."""
    tables = "(iptables-save -t nat; ip6tables-save -t nat; nft list ruleset)"
    return f"{tables} | grep -i dnat | grep -wE '{_pattern(ips)}'"


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

"""The order of reservations in tables and documents; findings are ordered by `Report.sorted_findings`."""

from collections.abc import Iterable

from agent.model.assessment import ClassifiedReservation


def sorted_reservations(reservations: Iterable[ClassifiedReservation]) -> list[ClassifiedReservation]:
    """Sort by network and address, addresses by value; entries that are not addresses come last."""
    return sorted(reservations, key=lambda one: address_order(one.network, one.name, is_address=one.blocks))


def address_order(network: str, name: str, *, is_address: bool) -> tuple[str, bool, tuple[int, ...], str]:
    return network, not is_address, _numeric(name) if is_address else (), name


def _numeric(ip: str) -> tuple[int, ...]:
    """Order addresses of one family by value, IPv4 before IPv6, without parsing each with `ipaddress`: it is slow."""
    if ":" in ip:
        head, _, tail = ip.partition("::")
        groups = [int(group, 16) for group in head.split(":") if group]
        after = [int(group, 16) for group in tail.split(":") if group]
        return (6, *groups, *([0] * (8 - len(groups) - len(after))), *after)
    return (4, *map(int, ip.split(".")))

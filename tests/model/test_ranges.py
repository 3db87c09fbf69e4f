"""Addresses counted as host-local counts them, in the report of a node."""

from dataclasses import replace

from agent.model.report import NetworkSummary
from agent.model.runtime import RuntimeNetwork, WrittenRange
from tests.builders import (
    DB_ID,
    WEB_ID,
    WORKER,
    cni_result,
    findings_of,
    node,
    reservation,
    scanned,
    without,
)


def network(name: str, *sets: tuple[WrittenRange, ...]) -> RuntimeNetwork:
    return RuntimeNetwork(name, ("bridge",), "host-local", ranges=sets)


def summary(*sets: tuple[WrittenRange, ...], taken: tuple[str, ...] = ()) -> NetworkSummary:
    """Return the summary of a network with these ranges, of which these addresses are taken."""
    files = [reservation(ip, f"{n:064x}") for n, ip in enumerate(taken)]
    (found,) = scanned(node(networks=[network("kubenet", *sets)], reservations=files)).networks
    return found


def test_usable_addresses_exclude_network_broadcast_and_gateway_and_free_ones_have_no_file() -> (
    None
):
    for subnet, range_, count in (
        ("10.253.6.128/25", "10.253.6.129-10.253.6.254", 125),
        ("10.244.1.0/24", "10.244.1.1-10.244.1.254", 253),
        ("10.244.1.17/24", "10.244.1.1-10.244.1.254", 253),
        ("10.0.0.0/30", "10.0.0.1-10.0.0.2", 1),
        ("fd00::/124", "fd00::1-fd00::f", 14),
        ("fd00::/64", "fd00::1-fd00::ffff:ffff:ffff:ffff", 2**64 - 2),
    ):
        (found,) = scanned(
            node(node=[replace(WORKER, pod_cidrs=(subnet,))], reservations=[])
        ).networks
        assert (str((found.ranges or ())[0][0]), found.usable) == (range_, count)
    for subnet in ("10.0.0.0/31", "10.0.0.0/32", "fd00::/128", "10.0.0.0/33", "banana", ""):
        assert summary((WrittenRange(subnet),)).usable is None
    # A gateway outside the range uses no address.
    for gateway, count in (("10.0.0.1", 10), ("10.0.0.15", 9)):
        assert (
            summary((WrittenRange("10.0.0.0/24", "10.0.0.10", "10.0.0.19", gateway),)).usable
            == count
        )
    # Free ones are those without a file.
    first, second = WrittenRange("10.0.0.0/29"), WrittenRange("10.1.0.0/29")
    taken = ("10.0.0.2", "10.0.0.3", "10.0.0.1", "10.0.0.7", "10.9.9.9", "fd00::2")
    for sets, files, usable, free in (
        (((first,),), taken, 5, 3),
        # Ranges of one set are summed, and the fullest set decides.
        (((first, second),), ("10.0.0.2",), 10, 9),
        (((first,), (second,)), ("10.0.0.2",), 5, 4),
    ):
        found = summary(*sets, taken=files)
        assert (found.usable, found.free) == (usable, free)


def test_two_ranges_overlap_where_both_can_give_out_an_address() -> None:
    """The first address is the gateway, which neither gives out."""
    for one, other, shared in (
        ("10.244.1.0/24", "10.244.1.0/24", "10.244.1.2"),
        ("10.244.0.0/16", "10.244.1.0/24", "10.244.1.2"),
        ("10.244.1.0/24", "10.244.2.0/24", ""),
        ("fd00::/64", "fd00::/112", "fd00::2"),
    ):
        for subnets in ((one, other), (other, one)):
            files = (
                reservation("10.9.0.2", WEB_ID),
                reservation("10.9.0.3", DB_ID, network="storage"),
            )
            networks = [
                network(name, (WrittenRange(subnet),))
                for name, subnet in zip(("kubenet", "storage"), subnets, strict=True)
            ]
            found = findings_of("overlapping_ranges", node(reservations=files, networks=networks))
            assert [finding.message for finding in found] == [
                f"kubenet and storage can both give out {shared}: two pods can get the same address"
            ] * bool(shared)


def test_the_runtimes_configuration_has_the_range() -> None:
    dual = [replace(WORKER, pod_cidrs=("10.244.1.0/24", "fd00::/120"))]
    for written, expected in (
        ([WrittenRange("10.9.0.0/24", "10.9.0.9")], ["10.9.0.9-10.9.0.254"]),
        ([WrittenRange("usePodCidr")], ["10.244.1.1-10.244.1.254"]),
        (
            [WrittenRange("usePodCidr"), WrittenRange("usePodCidrIPv6")],
            ["10.244.1.1-10.244.1.254", "fd00::1-fd00::ff"],
        ),
    ):
        networks = [network("kubenet", *((one,) for one in written))]
        (found,) = scanned(node(networks=networks, node=dual)).networks
        assert [str(range_) for ranges in found.ranges or () for range_ in ranges] == expected
    assert summary((WrittenRange("usePodCidrIPv6"),)).ranges is None
    # The pod CIDR in place of a range needs the Node.
    pod_cidr = [network("kubenet", (WrittenRange("usePodCidr"),))]
    (found,) = scanned(without(node(networks=pod_cidr), "node")).networks
    assert found.ranges is None
    cached = replace(cni_result(WEB_ID, "shop/web", network="storage"), uses_pod_cidr=True)
    of_calico = node(cached, reservation("10.244.1.2", WEB_ID, network="storage"))
    for snapshot, range_ in (
        (of_calico, "10.244.1.1-10.244.1.254"),
        (without(of_calico, "node"), None),
    ):
        (_, storage) = scanned(snapshot).networks
        assert (str(storage.ranges[0][0]) if storage.ranges else None) == range_

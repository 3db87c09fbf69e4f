"""Addresses counted as host-local counts them."""

from ipaddress import ip_address

import pytest

from agent.model.ranges import covers, free, overlap, serves, subnet_range, usable
from tests.builders import ranges


@pytest.mark.parametrize(
    ("subnet", "first", "last", "count"),
    [
        ("10.253.6.128/25", "10.253.6.129", "10.253.6.254", 125),
        ("10.244.1.0/24", "10.244.1.1", "10.244.1.254", 253),
        ("10.244.1.17/24", "10.244.1.1", "10.244.1.254", 253),
        ("10.0.0.0/30", "10.0.0.1", "10.0.0.2", 1),
        ("fd00::/124", "fd00::1", "fd00::f", 14),
        ("fd00::/64", "fd00::1", "fd00::ffff:ffff:ffff:ffff", 2**64 - 2),
    ],
)
def test_usable_addresses_exclude_network_broadcast_and_gateway(subnet: str, first: str, last: str, count: int) -> None:
    range_ = subnet_range(subnet)
    assert (str(range_), range_.usable, range_.gateway) == (f"{first}-{last}", count, ip_address(first))


@pytest.mark.parametrize("subnet", ["10.0.0.0/31", "10.0.0.0/32", "fd00::/128", "10.0.0.0/33", "banana", ""])
def test_a_subnet_without_usable_addresses_is_no_range(subnet: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        subnet_range(subnet)


def test_a_gateway_outside_the_range_uses_no_address() -> None:
    assert subnet_range("10.0.0.0/24", "10.0.0.10", "10.0.0.19", "10.0.0.1").usable == 10
    assert subnet_range("10.0.0.0/24", "10.0.0.10", "10.0.0.19", "10.0.0.15").usable == 9


def test_no_range_has_no_address() -> None:
    assert (usable(()), free((), ["10.0.0.2"])) == (0, 0)


def test_free_addresses_are_those_without_a_file() -> None:
    sets = ranges("10.0.0.0/29")
    assert usable(sets) == 5
    assert free(sets, ["10.0.0.2", "10.0.0.3", "10.0.0.1", "10.0.0.7", "10.9.9.9", "fd00::2"]) == 3


def test_ranges_of_one_set_are_summed_and_the_fullest_set_decides() -> None:
    (first,), (second,) = ranges("10.0.0.0/29", "10.1.0.0/29")
    both = ((first, second),)
    assert (usable(both), free(both, ["10.0.0.2"])) == (10, 9)
    assert (usable(((first,), (second,))), free(((first,), (second,)), ["10.0.0.2"])) == (5, 4)


def test_an_address_is_covered_by_its_own_family_only() -> None:
    assert covers(ranges("10.0.0.0/24"), "10.0.0.9")
    assert not covers(ranges("10.0.0.0/24"), "10.0.1.9")
    assert not covers(ranges("fd00::/64"), "10.0.0.9")


def test_a_range_serves_the_subnet_it_lies_in() -> None:
    assert serves(ranges("10.0.0.0/24"), ranges("10.0.0.0/24"))
    assert serves(ranges("10.0.0.0/25"), ranges("10.0.0.0/24"))
    assert not serves(ranges("10.0.0.0/24"), ranges("10.1.0.0/24"))
    assert not serves(ranges("10.0.0.0/24"), ranges("fd00::/64"))


@pytest.mark.parametrize(
    ("some", "other", "first"),
    [
        ("10.244.1.0/24", "10.244.1.0/24", "10.244.1.2"),
        ("10.244.0.0/16", "10.244.1.0/24", "10.244.1.2"),
        ("10.244.1.0/24", "10.244.2.0/24", ""),
        ("fd00::/64", "fd00::/112", "fd00::2"),
    ],
)
def test_two_ranges_overlap_where_both_can_give_out_an_address(some: str, other: str, first: str) -> None:
    """The first address is the gateway, which neither gives out."""
    range_, another = ((subnet_range(some),),), ((subnet_range(other),),)
    assert overlap(range_, another) == overlap(another, range_) == first

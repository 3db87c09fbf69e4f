"""How a range is laid out: properties of the grid, and the examples of the reference."""

from collections import Counter
from dataclasses import replace
from ipaddress import ip_address
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from agent.exporters import range_map
from agent.exporters.range_map import MARK_LABELS, Cell, Mark, RangeMap, lay_out, mark_of
from agent.model.assessment import ClassifiedReservation, State
from agent.model.ranges import Range, subnet_range
from tests.builders import CIDR, dark_node, node, reservation, scanned, unrecognized, without
from tests.strategies import nodes

SUBNETS = (
    "10.0.0.0/30", "10.0.0.0/28", "10.0.0.128/25", "10.0.0.0/24", "10.0.2.0/23", "10.0.4.0/22", "10.0.0.0/16",
    "10.0.0.0/8", "fd00::/120", "fd00::/112", "fd00::/64", "0.0.0.0/0", "::/0",
)  # fmt: skip


@st.composite
def ranges(draw: st.DrawFn) -> Range:
    """A subnet's range, or a part of it with odd ends, and a gateway anywhere."""
    whole = subnet_range(draw(st.sampled_from(SUBNETS)))
    family = type(whole.first)
    within = st.integers(int(whole.first), int(whole.last))
    low, high = sorted((draw(within), draw(within)))
    odd = Range(family(low), family(high), family(draw(within)))
    return draw(st.sampled_from([whole, whole, odd]))


def classified(ip: str, state: State = State.IN_USE) -> ClassifiedReservation:
    return ClassifiedReservation(reservation(ip), state, "because")


@st.composite
def laid_out(draw: st.DrawFn) -> tuple[Range, dict[int, ClassifiedReservation], RangeMap]:
    """A range with some addresses taken, near its beginning most of the time."""
    one = draw(ranges())
    size = int(one.last) - int(one.first) + 1
    offsets = st.one_of(st.integers(0, min(size - 1, 300)), st.integers(0, size - 1))
    numbers = draw(st.lists(offsets, max_size=12, unique=True))
    family = type(one.first)
    taken = {
        int(one.first) + n: classified(str(family(int(one.first) + n)), draw(st.sampled_from(State))) for n in numbers
    }
    outside = {ip_address("192.0.2.1"): classified("192.0.2.1"), ip_address("2001:db8::1"): classified("2001:db8::1")}
    everything = {family(number): entry for number, entry in taken.items()} | outside
    inside = {int(ip): entry for ip, entry in everything.items() if ip in one}
    return one, inside, lay_out(one, everything, available=True)


@given(laid_out())
def test_each_address_is_in_exactly_one_cell(given: tuple[Range, dict[int, ClassifiedReservation], RangeMap]) -> None:
    one, _, drawn = given
    cells = list(drawn.cells)
    assert (cells[0].first, cells[-1].last) == (one.first, one.last)
    assert all(int(before.last) + 1 == int(after.first) for before, after in pairwise(cells))


@given(laid_out())
def test_the_counts_of_a_cell_are_its_size_and_those_of_all_are_the_range(
    given: tuple[Range, dict[int, ClassifiedReservation], RangeMap],
) -> None:
    one, taken, drawn = given
    counted: Counter[Mark] = Counter()
    for cell in drawn.cells:
        assert sum(cell.counts.values()) == cell.size
        assert all(count > 0 for count in cell.counts.values())
        counted.update(cell.counts)
    assert counted.total() == int(one.last) - int(one.first) + 1
    states = Counter(mark_of(entry) for entry in taken.values())
    assert {mark: counted[mark] for mark in states} == states
    gateway = one.gateway in one and int(one.gateway) not in taken
    assert counted[Mark.GATEWAY] == gateway
    assert counted[Mark.FREE] == counted.total() - len(taken) - gateway


@given(laid_out())
def test_a_reservation_is_in_the_cell_of_its_address(
    given: tuple[Range, dict[int, ClassifiedReservation], RangeMap],
) -> None:
    _, taken, drawn = given
    for number, entry in taken.items():
        (cell,) = (one for one in drawn.cells if int(one.first) <= number <= int(one.last))
        assert mark_of(entry) in cell.counts
        assert cell.classified is (entry if cell.size == 1 else None)


@given(laid_out())
def test_a_map_is_never_larger_than_a_screen(given: tuple[Range, dict[int, ClassifiedReservation], RangeMap]) -> None:
    _, _, drawn = given
    assert len(list(drawn.cells)) <= 512 + 2 * 32 + 1
    assert all(len(row.cells) == drawn.columns for row in drawn.rows)
    assert drawn.columns in {16, 32}


@given(laid_out())
def test_rows_start_at_a_multiple_and_follow_each_other(
    given: tuple[Range, dict[int, ClassifiedReservation], RangeMap],
) -> None:
    _, _, drawn = given
    width = drawn.block * drawn.columns
    starts = [int(row.first) for row in drawn.rows]
    assert all(start % width == 0 for start in starts)
    assert all(after - before == width for before, after in pairwise(starts))


@given(nodes(two_networks=True))
def test_every_entry_of_a_node_is_somewhere_on_its_map(snapshot: object) -> None:
    report = scanned(snapshot)  # type: ignore[arg-type]
    for one in range_map.network_maps(report):
        entries = Counter(mark_of(entry) for entry in report.assessment.reservations if entry.network == one.network)
        shown = one.counts
        assert {mark: shown[mark] for mark in entries} == entries


def cells(drawn: RangeMap) -> list[Cell]:
    return list(drawn.cells)


def test_a_24_has_a_cell_per_address_and_its_gateway_is_never_free() -> None:
    drawn = lay_out(subnet_range(CIDR), {}, available=True)
    assert (drawn.block, drawn.columns, len(drawn.rows), drawn.rest) == (1, 16, 16, None)
    assert drawn.rows[0].cells[0] is None, "the network's own address"
    assert cells(drawn)[0].mark is Mark.GATEWAY
    assert {cell.mark for cell in cells(drawn)[1:]} == {Mark.FREE}
    assert list(drawn.rule) == ["One cell per address."]


def test_a_full_16_is_in_blocks_marked_by_the_most_severe() -> None:
    taken = {ip_address(ip): classified(ip) for ip in ("10.0.0.2", "10.0.7.9", "10.0.255.9")}
    taken[ip_address("10.0.7.200")] = classified("10.0.7.200", State.LEAKED)
    drawn = lay_out(subnet_range("10.0.0.0/16"), taken, available=True)
    assert (drawn.block, len(cells(drawn)), drawn.rest) == (256, 256, None)
    seventh = cells(drawn)[7]
    assert (str(seventh), seventh.mark) == ("10.0.7.0-10.0.7.255", Mark.LEAKED)
    assert seventh.counts == {Mark.LEAKED: 1, Mark.IN_USE: 1, Mark.FREE: 254}
    assert list(drawn.rule) == ["One cell per 256 addresses, marked by the most severe."]


def test_a_64_is_laid_out_up_to_its_highest_reservation() -> None:
    drawn = lay_out(subnet_range("fd00::/64"), {ip_address("fd00::7"): classified("fd00::7")}, available=True)
    assert (drawn.block, drawn.columns) == (1, 16)
    assert drawn.rest is not None
    assert str(drawn.rest.first) == "fd00::100"
    assert list(drawn.rule)[1] == "The last cell is the rest: 1.8e+19 addresses, free."


def test_unavailable_reservations_are_nowhere_free() -> None:
    (network,) = range_map.network_maps(scanned(without(node(), "reservations")))
    assert not network.available
    assert network.counts.keys() == {Mark.UNAVAILABLE, Mark.GATEWAY}
    drawn = lay_out(subnet_range("fd00::/64"), {}, available=False)
    assert list(drawn.rule)[1].endswith("unavailable.")


def test_without_data_there_is_no_map() -> None:
    (network,) = range_map.network_maps(scanned(dark_node()))
    assert (network.maps, network.elsewhere, network.counts) == (None, (), Counter())


def test_entries_outside_the_ranges_are_listed() -> None:
    report = scanned(node(reservation("10.9.9.9"), reservation("fd00::9"), unrecognized("notes")))
    (network,) = range_map.network_maps(report)
    assert [one.name for one in network.elsewhere] == ["10.9.9.9", "fd00::9", "notes"]
    assert (network.counts[Mark.LEAKED], network.counts[Mark.UNRECOGNIZED]) == (2, 1)


def test_an_unrecognized_entry_named_as_an_address_takes_it() -> None:
    (network,) = range_map.network_maps(scanned(node(unrecognized("10.244.1.77", blocks=True))))
    assert (network.elsewhere, network.counts[Mark.UNRECOGNIZED]) == ((), 1)


def test_a_reserved_gateway_is_shown_as_reserved() -> None:
    (network,) = range_map.network_maps(scanned(node(reservation("10.244.1.1"))))
    assert (network.counts[Mark.GATEWAY], network.counts[Mark.UNMANAGED]) == (0, 1), "the node itself has it"


def test_every_state_has_a_mark_and_every_mark_a_label() -> None:
    assert {Mark(state.value) for state in State} == set(Mark) - {Mark.FREE, Mark.GATEWAY, Mark.UNAVAILABLE}
    assert MARK_LABELS.keys() == set(Mark)


def test_a_network_without_ranges_has_no_map() -> None:
    report = scanned(node(reservation("10.244.1.9")))
    (summary,) = report.networks
    (network,) = range_map.network_maps(replace(report, networks=(replace(summary, ranges=None),)))
    assert network.maps is None
    assert [one.name for one in network.elsewhere] == ["10.244.1.2", "10.244.1.3", "10.244.1.9"]

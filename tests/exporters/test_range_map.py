"""How a range is laid out: properties of the grid. What it looks like is in the golden files."""

from collections import Counter
from dataclasses import replace
from ipaddress import ip_address
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from agent.exporters.range_map import LOOKS, Mark, RangeMap, lay_out, mark_of, network_maps
from agent.model.assessment import ClassifiedReservation, State
from agent.model.ranges import Range, subnet_range
from agent.model.snapshot import Snapshot
from tests.builders import node, reservation, scanned, unrecognized
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
def test_each_address_is_counted_in_exactly_one_cell(
    given: tuple[Range, dict[int, ClassifiedReservation], RangeMap],
) -> None:
    one, taken, drawn = given
    cells = list(drawn.cells)
    assert (cells[0].first, cells[-1].last) == (one.first, one.last)
    assert all(int(before.last) + 1 == int(after.first) for before, after in pairwise(cells))
    for cell in cells:
        assert cell.counts.total() == int(cell.last) - int(cell.first) + 1
        assert all(count > 0 for count in cell.counts.values())
    states = Counter(mark_of(entry) for entry in taken.values())
    gateway = one.gateway in one and int(one.gateway) not in taken
    assert {mark: drawn.counts[mark] for mark in states} == states
    assert drawn.counts[Mark.GATEWAY] == gateway
    assert drawn.counts[Mark.FREE] == drawn.counts.total() - len(taken) - gateway


@given(laid_out())
def test_a_reservation_is_in_the_cell_of_its_address(
    given: tuple[Range, dict[int, ClassifiedReservation], RangeMap],
) -> None:
    _, taken, drawn = given
    for number, entry in taken.items():
        (cell,) = (one for one in drawn.cells if int(one.first) <= number <= int(one.last))
        assert mark_of(entry) in cell.counts
        assert cell.entry is (entry if cell.first == cell.last else None)
        assert max(map(list(Mark).index, cell.counts)) == list(Mark).index(cell.mark), "the most severe"


@given(laid_out())
def test_a_map_is_no_larger_than_a_screen_and_its_rows_start_at_a_multiple(
    given: tuple[Range, dict[int, ClassifiedReservation], RangeMap],
) -> None:
    _, _, drawn = given
    assert len(list(drawn.cells)) <= 512 + 2 * 32 + 1
    assert {len(row.cells) for row in drawn.rows} == {drawn.columns} <= {16, 32}
    width, starts = drawn.block * drawn.columns, [int(row.first) for row in drawn.rows]
    assert all(start % width == 0 for start in starts)
    assert all(after - before == width for before, after in pairwise(starts))


@given(nodes(two_networks=True))
def test_every_entry_of_a_node_is_somewhere_on_its_map(snapshot: Snapshot) -> None:
    report = scanned(snapshot)
    for one in network_maps(report):
        mine = (entry for entry in report.assessment.reservations if entry.network == one.network.name)
        entries = Counter(map(mark_of, mine))
        assert {mark: one.counts[mark] for mark in entries} == entries


def test_what_lies_outside_the_ranges_is_listed_and_a_name_can_take_an_address() -> None:
    report = scanned(node(reservation("10.9.9.9"), unrecognized("notes"), unrecognized("10.244.1.77", blocks=True)))
    (network,) = network_maps(report)
    assert [one.name for one in network.elsewhere] == ["10.9.9.9", "notes"]
    assert (network.counts[Mark.LEAKED], network.counts[Mark.UNRECOGNIZED]) == (1, 2)
    (summary,) = report.networks
    (network,) = network_maps(replace(report, networks=(replace(summary, ranges=None),)))
    assert len(network.elsewhere) == 5
    (network,) = network_maps(scanned(node(reservation("10.244.1.1"))))
    assert (network.counts[Mark.GATEWAY], network.counts[Mark.UNMANAGED]) == (0, 1), "the node itself has it"


def test_every_state_has_a_mark_and_every_mark_a_letter_of_its_own() -> None:
    assert {Mark(state.value) for state in State} == set(Mark) - {Mark.FREE, Mark.GATEWAY, Mark.UNAVAILABLE}
    assert len({LOOKS[mark].letter for mark in Mark}) == len(Mark)

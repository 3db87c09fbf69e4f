"""Tables of addresses: their order, their columns, and how they fit a terminal."""

from dataclasses import replace
from datetime import timedelta

import pytest

from agent.cli import clean as clean_command
from agent.cli import scan as scan_command
from agent.exporters.text.addresses import AddressRow, TableView, name_lines, sorted_rows
from agent.exporters.text.clean import clean_names, clean_table
from agent.exporters.text.scan import scan_names, scan_table
from agent.exporters.text.table import grid, table
from agent.model.finding import LeakCause
from agent.model.release import Cleaning, Verdict
from tests.builders import GONE, node, reservation, sandbox, scanned, unrecognized
from tests.exporters.cleanings import ENTRY, cleaning, outcome, refused

HOURS = [timedelta(hours=n) for n in range(10)]
ROWS = [
    AddressRow(network="kubenet", ip="10.0.0.10", state="leaked", age=HOURS[3], pod="shop/b"),
    AddressRow(network="kubenet", ip="10.0.0.9", state="unknown", age=HOURS[5], cause="node_reboot"),
    AddressRow(network="kubenet", ip="fd00::2", state="candidate", age=HOURS[1], pod="shop/a"),
    AddressRow(network="bridge", ip="10.0.1.1", state="leaked", cause="kubelet_restart"),
    AddressRow(network="kubenet", ip="notes", state="unrecognized", is_address=False),
]


@pytest.mark.parametrize(
    ("sort_by", "expected"),
    [
        ("ip", ["10.0.1.1", "10.0.0.9", "10.0.0.10", "fd00::2", "notes"]),
        ("age", ["10.0.0.9", "10.0.0.10", "fd00::2", "10.0.1.1", "notes"]),
        ("state", ["fd00::2", "10.0.1.1", "10.0.0.10", "10.0.0.9", "notes"]),
        ("verdict", ["fd00::2", "10.0.1.1", "10.0.0.10", "10.0.0.9", "notes"]),
        ("cause", ["10.0.1.1", "10.0.0.9", "10.0.0.10", "fd00::2", "notes"]),
        ("pod", ["fd00::2", "10.0.0.10", "10.0.1.1", "10.0.0.9", "notes"]),
    ],
)
def test_addresses_are_sorted_by_value_and_what_is_not_known_comes_last(sort_by: str, expected: list[str]) -> None:
    assert [row.ip for row in sorted_rows(ROWS, sort_by)] == expected
    assert sorted_rows(list(reversed(ROWS)), sort_by) == sorted_rows(ROWS, sort_by)


@pytest.mark.parametrize("orders", [scan_command.SCAN_ORDERS, clean_command.CLEAN_ORDERS])
def test_every_order_that_a_command_offers_exists(orders: tuple[str, ...]) -> None:
    assert {one: len(sorted_rows(ROWS, one)) for one in orders} == dict.fromkeys(orders, len(ROWS))


def test_names_are_for_scripts() -> None:
    assert name_lines(ROWS[:2]) == "kubenet/10.0.0.10\nkubenet/10.0.0.9\n"
    assert name_lines([AddressRow(network="a\x1b[2J", ip="b\n", state="leaked")]) == "a\\x1b[2J/b\\n\n"


# How a table fits


def test_a_column_without_a_value_is_left_out() -> None:
    assert list(table(["A", "CAUSE", "B", "LAST"], [["a", "", "", ""], ["a", "", "b", ""]])) == ["A  B", "a", "a  b"]
    assert list(table(["A", "B", "C"], [["a", "", "c"], ["a", "b", "c"]]))[1] == "a  -  c"
    assert list(table(["A", "LAST"], [["a", ""], ["a", "b"]])) == ["A  LAST", "a", "a  b"]


@pytest.mark.parametrize("columns", range(20, 120))
def test_lines_fit_the_terminal(columns: int) -> None:
    rows = [["ADDRESS", "POD", "WHY"], ["10.244.1.9", "shop/" + "cart" * 9, "because of this and that"]]
    assert max(map(len, grid(rows, columns))) <= columns


def test_the_widest_names_and_reasons_are_cut_and_addresses_last() -> None:
    rows = [["ADDRESS", "POD", "WHY"], ["10.244.100.200", "shop/cart-6d5f7c-x2x4z", "because of this"]]
    assert list(grid(rows, 46)) == [
        "ADDRESS         POD             WHY",
        "10.244.100.200  shop/cart-6d5…  because of th…",
    ]
    assert list(grid(rows, 30))[1] == "10.244.100.200  shop/ca…  bec…"
    assert list(grid(rows))[1] == "10.244.100.200  shop/cart-6d5f7c-x2x4z  because of this"


def test_characters_that_are_escaped_count_as_they_are_printed() -> None:
    rows = [["POD", "WHY"], ["\x1b\x1b", "x" * 40]]
    assert [len(line) for line in grid(rows, 30)] == [13, 30]


# scan and clean

CLEANING: Cleaning = cleaning(
    outcome(Verdict.WOULD_RELEASE, reservation("10.244.1.10", age=HOURS[3])),
    refused(of=(reservation("10.244.1.9", "8" * 64, age=HOURS[9]),)),
    applied=False,
)


def addresses(text: str) -> list[str]:
    return [
        line.split()[1] for line in text.splitlines() if line.startswith("kubenet  10.244.1.") and "-" not in line[:20]
    ]


def test_clean_sorts_by_address_and_not_by_turn() -> None:
    assert addresses(clean_table(CLEANING)) == ["10.244.1.9", "10.244.1.10"]
    assert addresses(clean_table(CLEANING, TableView("verdict"))) == ["10.244.1.9", "10.244.1.10"]
    younger = replace(CLEANING, outcomes=(*CLEANING.outcomes[:1], refused(of=(reservation("10.244.1.9"),))))
    assert addresses(clean_table(younger, TableView("age"))) == ["10.244.1.10", "10.244.1.9"]


def test_clean_shows_the_cause_where_it_is_known() -> None:
    lines = clean_table(replace(CLEANING, causes={reservation("10.244.1.9").key: LeakCause.NODE_REBOOT})).splitlines()
    assert [" ".join(line.split()) for line in lines[3:6]] == [
        "NETWORK ADDRESS AGE CAUSE CONTAINER POD VERDICT",
        "kubenet 10.244.1.9 9h node_reboot 888888888888 - refused",
        "kubenet 10.244.1.10 3h - 999999999999 shop/cart would release",
    ]


def test_wide_has_the_whole_id() -> None:
    assert GONE not in clean_table(CLEANING)
    assert GONE in clean_table(CLEANING, TableView(wide=True))


def test_the_names_are_those_of_released_addresses() -> None:
    assert clean_names(CLEANING, TableView()) == "kubenet/10.244.1.10\n"
    done = cleaning(outcome(Verdict.RELEASED, reservation("10.244.1.10")), refused(of=(reservation("10.244.1.9"),)))
    assert clean_names(done, TableView()) == "kubenet/10.244.1.10\n"


def test_on_a_narrow_terminal_only_names_are_cut() -> None:
    released = cleaning(outcome(Verdict.RELEASED, reservation("10.244.1.9"), entry=ENTRY))
    wide = replace(
        released, outcomes=tuple(replace(one, request=replace(one.request, pod="p" * 60)) for one in released.outcomes)
    )
    lines = clean_table(wide, TableView(columns=110)).splitlines()
    assert max(map(len, lines)) <= 110
    assert any(f"10.244.1.9  2h   {GONE[:12]}  " in line and line.endswith(f"released  {ENTRY}") for line in lines)


def test_scan_lists_leaks_only_where_the_whole_list_is_wanted() -> None:
    report = scanned(node(reservation("10.244.1.9"), reservation("10.244.1.10", "8" * 64), unrecognized("notes")))
    assert "  leaked  " not in scan_table(report)
    assert "unrecognized" in scan_table(report)
    for text in (scan_table(report, verbose=True), scan_table(report, view=TableView(wide=True))):
        assert text.count("  leaked  ") == 2
    assert GONE in scan_table(report, view=TableView(wide=True))
    assert scan_names(report, TableView()) == "kubenet/10.244.1.9\nkubenet/10.244.1.10\nkubenet/notes\n"


def test_a_healthy_node_has_no_names() -> None:
    assert scan_names(scanned(node(reservation("10.244.1.9"), sandbox(GONE, "shop/cart"))), TableView()) == ""

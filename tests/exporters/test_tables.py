"""Tables for terminals: order, columns, how they fit; and no output has control characters."""

import re
from typing import Any

import pytest
from hypothesis import given

from agent.cli import clean as clean_command
from agent.cli import scan as scan_command
from agent.exporters.text.addresses import AddressRow, TableView, name_lines, sorted_rows
from agent.exporters.text.clean import clean_table
from agent.exporters.text.map import map_table
from agent.exporters.text.scan import scan_table
from agent.exporters.text.status import status_line, status_table
from agent.exporters.text.table import grid
from agent.exporters.text.timeline import timeline_table
from agent.exporters.timeline import timeline_document
from agent.model.snapshot import Snapshot
from agent.model.status import no_report
from tests.builders import node, scanned, without
from tests.exporters.built import CLEANINGS, EVIL, LOST, NODES
from tests.model.test_status import GOOD
from tests.strategies import nodes


def row(ip: str, **more: Any) -> AddressRow:
    return {"network": "kubenet", "ip": ip, "age_seconds": None, "cause": None, "pod": None, **more}


ROWS = [
    row("1", network="bridge", state="leaked", cause="kubelet_restart"),
    row("9", state="unknown", age_seconds=5.0, cause="node_reboot"),
    row("10", state="leaked", age_seconds=3.0, pod="shop/b"),
    row("fd00::2", state="candidate", age_seconds=1.0, pod="shop/a"),
    row("notes", state="unrecognized"),
]


def test_addresses_are_sorted_by_a_column_and_what_is_not_known_comes_last() -> None:
    orders = {
        "ip": "1 9 10 fd00::2 notes",
        "age": "9 10 fd00::2 1 notes",
        "state": "fd00::2 1 10 9 notes",
        "verdict": "fd00::2 1 10 9 notes",
        "cause": "1 9 10 fd00::2 notes",
        "pod": "fd00::2 10 1 9 notes",
    }
    assert {*scan_command.SCAN_ORDERS, *clean_command.CLEAN_ORDERS} == set(orders)
    for order, expected in orders.items():
        rows = [{**one, "verdict": one["state"]} for one in ROWS]
        assert [one["ip"] for one in sorted_rows(rows, order)] == expected.split()


def test_names_are_for_scripts() -> None:
    assert name_lines(ROWS[:2]) == "bridge/1\nkubenet/9\n"
    assert name_lines([row("b\n", network="a\x1b[2J")]) == "a\\x1b[2J/b\\n\n"


def test_lines_fit_the_terminal_and_addresses_are_cut_last() -> None:
    rows = [["ADDRESS", "POD", "WHY"], ["10.244.100.200", "shop/cart-6d5f7c-x2x4z", "because of this"]]
    for columns in range(20, 120):
        assert max(map(len, grid(rows, columns))) <= columns
    assert list(grid(rows, 46))[1] == "10.244.100.200  shop/cart-6d5…  because of th…"
    assert list(grid(rows, 30))[1] == "10.244.100.200  shop/ca…  bec…"
    assert list(grid(rows))[1] == "10.244.100.200  shop/cart-6d5f7c-x2x4z  because of this"
    assert [len(line) for line in grid([["POD", "WHY"], ["\x1b\x1b", "x" * 40]], 30)] == [13, 30], "as they are printed"
    view = TableView(columns=70)
    for text in (scan_table(scanned(node(LOST)), view=view), clean_table(CLEANINGS["busy and failed"], view)):
        heads, *listed = [line for line in text.splitlines() if re.match("NETWORK|kubenet", line)]
        assert max(map(len, [heads, *listed])) <= 70


@pytest.mark.parametrize("name", NODES)
def test_no_text_has_control_characters(name: str) -> None:
    report = scanned(NODES[name])
    texts = (
        scan_table(report, verbose=True, view=TableView(wide=True)),
        map_table(report, color=False, unicode=True),
        timeline_table(timeline_document(report), ""),
        status_table({**GOOD, "headline": EVIL}),
        status_line({**GOOD, "headline": EVIL}),
    )
    for text in texts:
        assert text.replace("\n", "").isprintable()
        assert not re.search(r" +\n", text)


# The map


def plain(snapshot: Snapshot, *, color: bool = False, unicode: bool = True) -> str:
    return map_table(scanned(snapshot), color=color, unicode=unicode)


def test_a_map_needs_neither_colors_nor_unicode() -> None:
    text = plain(node(LOST), unicode=False)
    assert text.isascii()
    assert "G o o . . . . . L" in text
    assert plain(without(node(), "reservations"), unicode=False).isascii()
    colored = plain(node(LOST), color=True)
    assert "\x1b[1;37;41mL\x1b[0m" in colored
    assert re.sub(r"\x1b\[[\d;]*m", "", colored) == plain(node(LOST))


@given(nodes(two_networks=True))
def test_any_node_can_be_drawn(snapshot: Snapshot) -> None:
    text = plain(snapshot, unicode=False)
    assert text.startswith("Node ")
    assert max(len(line) for line in text.splitlines() if re.match(r"  [\da-f.:]+  ", line) or not line) <= 80


# The status


def test_a_command_to_copy_has_only_words() -> None:
    (finding,) = GOOD["findings"]
    text = status_table({**GOOD, "findings": [{**finding, "detector": "; rm -rf /"}], "unavailable": []})
    assert text.endswith("\nFor more:\n  nodeleak scan\n")


def test_without_a_daemon_there_is_one_sentence_with_the_remedy() -> None:
    down = no_report("no daemon answers")
    sentence = "No status: no daemon answers; 'nodeleak scan' checks this node without a daemon\n"
    assert status_table(down) == status_line(down) == sentence

"""The map for terminals: every line fits, letters need no colors, and unavailable data never looks free."""

import re

import pytest
from hypothesis import given

from agent.exporters.range_map import Mark
from agent.exporters.text.map import LETTERS, map_table
from agent.model.snapshot import Snapshot
from tests.builders import cni_result, dark_node, node, ranges, reservation, scanned, unrecognized, without
from tests.strategies import nodes

LOST = reservation("10.244.1.9")


def plain(snapshot: Snapshot, *, color: bool = False, unicode: bool = True) -> list[str]:
    return map_table(scanned(snapshot), color=color, unicode=unicode).splitlines()


def test_a_leak_has_its_letter_at_its_address() -> None:
    lines = plain(node(LOST))
    assert lines[:5] == [
        "Node worker-1, 2026-03-26T20:00:00Z",
        "Warning: 1 leaked pod address on worker-1",
        "",
        "kubenet 10.244.1.1-10.244.1.254",
        "  10.244.1.0      G ■ ■ · · · · · L · · · · · ·",
    ]
    assert lines[21:] == [
        "",
        "  L   1 leaked",
        "  ■   2 in use",
        "  G   1 gateway",
        "  · 250 free",
        "",
        "1 finding: run without --map to list them.",
    ]


def test_a_terminal_without_unicode_gets_ascii() -> None:
    text = "\n".join(plain(node(LOST), unicode=False))
    assert text.isascii()
    assert "G o o . . . . . L" in text
    assert "".join(plain(without(node(), "reservations"), unicode=False)).isascii()


def test_colors_do_not_replace_letters() -> None:
    colored = "\n".join(plain(node(LOST), color=True))
    assert "\x1b[1;37;41mL\x1b[0m" in colored
    assert re.sub(r"\x1b\[[\d;]*m", "", colored).splitlines() == plain(node(LOST))


@pytest.mark.parametrize(
    "subnets", [("10.0.0.0/23",), ("10.0.0.0/16",), ("fd00:1111:2222:3333:4444:5555:6666:0/112",), ("10.0.0.0/8",)]
)
def test_every_row_of_a_map_fits_a_small_terminal(subnets: tuple[str, ...]) -> None:
    last = {"10.0.0.0/23": "10.0.1.9", "10.0.0.0/8": "10.255.255.9"}.get(subnets[0], "10.0.255.9")
    snapshot = node(reservation(last), cni_results=[cni_result("f" * 64, "", *subnets)], node=[])
    lines = plain(snapshot)
    rows = lines[lines.index(f"kubenet {ranges(*subnets)[0][0]}") + 1 :]
    assert max(map(len, rows)) <= 80, rows


def test_unavailable_reservations_look_unavailable() -> None:
    text = "\n".join(plain(without(node(), "reservations")))
    assert "kubenet: reservations unavailable: no address below is known to be free" in text
    assert "G ░ ░ ░" in text
    assert "·" not in text
    assert "Incomplete: 9 of 16 checks could not run: it gave no word" in text
    assert "  reservations: it gave no word" in text


def test_without_data_there_is_no_map_and_the_text_says_so() -> None:
    text = "\n".join(plain(dark_node()))
    assert "kubenet: range unknown" in text
    assert "reservations unavailable" in text


def test_entries_outside_the_ranges_are_listed_and_escaped() -> None:
    lines = plain(node(unrecognized("evil\x1b[2J"), *(reservation(f"10.9.9.{n}", f"{n:064x}") for n in range(1, 50))))
    assert "  Entries outside every known range:" in lines
    assert "    L 10.9.9.1" in lines
    assert "    and 10 more: -o json lists all" in lines
    assert not any("\x1b" in line for line in plain(node(unrecognized("evil\x1b[2J"))))


@given(nodes(two_networks=True))
def test_any_node_can_be_drawn(snapshot: Snapshot) -> None:
    text = map_table(scanned(snapshot), color=False, unicode=False)
    assert text.startswith("Node ")
    assert text.isascii()


def test_each_mark_has_a_letter_of_its_own() -> None:
    assert LETTERS.keys() == set(Mark)
    assert len(set(LETTERS.values())) == len(LETTERS)

"""The map for terminals: every line fits, letters tell without colours, and nothing unread looks free."""

import re

import pytest
from hypothesis import given

from agent.exporters.range_map import Mark
from agent.exporters.text.map import LETTERS, drawn
from agent.model.snapshot import Snapshot
from tests.builders import cni_result, dark_node, node, ranges, reservation, scanned, unrecognized, without
from tests.strategies import nodes

LOST = reservation("10.244.1.9")


def plain(snapshot: Snapshot, *, colour: bool = False, unicode: bool = True) -> list[str]:
    return drawn(scanned(snapshot), colour=colour, unicode=unicode).splitlines()


def test_a_leak_is_a_letter_at_its_address() -> None:
    lines = plain(node(LOST))
    assert lines[:4] == [
        "Node worker-1, 2026-03-26T20:00:00Z",
        "",
        "kubenet 10.244.1.1-10.244.1.254",
        "  10.244.1.0      G ■ ■ · · · · · L · · · · · ·",
    ]
    assert lines[20:] == [
        "",
        "  L   1 leaked",
        "  ■   2 in use",
        "  G   1 gateway, never given out",
        "  · 250 free",
        "",
        "Findings: 1 (without --map they are told).",
    ]


def test_a_terminal_that_knows_ascii_only_is_told_in_ascii() -> None:
    text = "\n".join(plain(node(LOST), unicode=False))
    assert text.isascii()
    assert "G o o . . . . . L" in text
    assert "".join(plain(without(node(), "reservations"), unicode=False)).isascii()


def test_colours_are_beside_the_letters_and_not_instead() -> None:
    coloured = "\n".join(plain(node(LOST), colour=True))
    assert "\x1b[1;37;41mL\x1b[0m" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured).splitlines() == plain(node(LOST))


@pytest.mark.parametrize(
    "subnets", [("10.0.0.0/23",), ("10.0.0.0/16",), ("fd00:1111:2222:3333:4444:5555:6666:0/112",), ("10.0.0.0/8",)]
)
def test_every_row_of_a_map_fits_a_small_terminal(subnets: tuple[str, ...]) -> None:
    last = {"10.0.0.0/23": "10.0.1.9", "10.0.0.0/8": "10.255.255.9"}.get(subnets[0], "10.0.255.9")
    snapshot = node(reservation(last), cni_results=[cni_result("f" * 64, "", *subnets)], node=[])
    lines = plain(snapshot)
    rows = lines[lines.index(f"kubenet {ranges(*subnets)[0][0]}") + 1 :]
    assert max(map(len, rows)) <= 80, rows


def test_what_was_not_read_looks_so() -> None:
    text = "\n".join(plain(without(node(), "reservations")))
    assert "kubenet: its reservations were NOT READ; nothing below is known to be free" in text
    assert "G ░ ░ ░" in text
    assert "·" not in text
    assert "No findings, as far as could be read." in text
    assert "  reservations: it gave no word" in text


def test_in_the_dark_nothing_is_drawn_and_that_is_said() -> None:
    text = "\n".join(plain(dark_node()))
    assert "kubenet: its range is not known" in text
    assert "NOT READ" in text


def test_what_is_elsewhere_is_named_and_cannot_steer_the_terminal() -> None:
    lines = plain(node(unrecognized("evil\x1b[2J"), *(reservation(f"10.9.9.{n}", f"{n:064x}") for n in range(1, 50))))
    assert "  Entries of no known range:" in lines
    assert "    L 10.9.9.1" in lines
    assert "    and 10 more: -o json lists all" in lines
    assert not any("\x1b" in line for line in plain(node(unrecognized("evil\x1b[2J"))))


@given(nodes(two_networks=True))
def test_any_node_can_be_drawn(snapshot: Snapshot) -> None:
    text = drawn(scanned(snapshot), colour=False, unicode=False)
    assert text.startswith("Node ")
    assert text.isascii()


def test_no_letter_stands_for_two_marks() -> None:
    assert LETTERS.keys() == set(Mark)
    assert len(set(LETTERS.values())) == len(LETTERS)

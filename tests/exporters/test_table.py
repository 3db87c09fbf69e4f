"""The table for people: a summary, what is odd, the findings in words, and what could not be read."""

from datetime import timedelta

from agent.exporters.table import grid, table
from agent.model.finding import Gap
from agent.model.snapshot import Address, Checkpoint
from tests.builders import (
    CIDR,
    GONE,
    cni_result,
    dark_node,
    foreign,
    node,
    reservation,
    sandbox,
    scanned,
    without,
    without_api,
)

LOST = reservation("10.244.1.9")


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_a_healthy_node_is_a_few_lines() -> None:
    assert lines(table(scanned(node()))) == [
        "Node worker-1, 2026-03-26T20:00:00Z",
        "",
        "NETWORK RANGE USABLE RESERVED FREE STATES",
        "kubenet 10.244.1.1-10.244.1.254 253 2 251 2 in_use",
        "",
        "No findings.",
    ]


def test_a_leak_is_listed_and_told_in_words() -> None:
    told = lines(table(scanned(node(LOST, cni_result(GONE, "shop/cart", CIDR)))))
    assert "kubenet 10.244.1.1-10.244.1.254 253 3 250 2 in_use, 1 leaked" in told
    assert "Findings (1; `nodeleak explain DETECTOR` says what to do):" in told
    (finding,) = (line for line in told if line.startswith("leaked_reservation: "))
    assert "10.244.1.9 is reserved for container 999999999999 of pod shop/cart, which is gone" in finding


def test_what_is_in_order_is_counted_and_not_listed() -> None:
    text = table(scanned(node(LOST, sandbox(GONE, "shop/cart", "exited"))))
    assert "2 in_use, 1 held" in text
    assert LOST.ip not in text


def test_what_is_on_its_way_is_listed_with_why() -> None:
    young = reservation("10.244.1.10", "8" * 64, age=timedelta(0))
    told = table(scanned(node(LOST, Checkpoint(GONE, "shop/cart"), young, foreign("notes"))))
    for word in ("teardown_pending", "young", "foreign", "the kubelet keeps a checkpoint", "it is a directory"):
        assert word in told
    assert "No findings." in told


def test_a_long_list_is_cut_and_says_so() -> None:
    leaks = [reservation(f"10.244.1.{n}", f"{n:064x}") for n in range(10, 60)]
    told = table(scanned(node(*leaks)))
    assert "leaked_reservation: … and 10 more: -o json lists all" in told
    assert "50 leaked" in told
    assert "Findings (50;" in told


def test_in_the_dark_nothing_is_said_to_be_well() -> None:
    told = lines(table(scanned(dark_node())))
    assert "kubenet ? ? ? ? not read" in told
    assert "No findings, as far as could be read." in told
    assert "No findings." not in told
    assert "Could not be read (nothing is concluded from these):" in told
    assert "containers: it gave no word" in told
    assert "leaked_reservation: reservations: it gave no word" in told


def test_without_the_api_it_says_what_verdicts_rest_on() -> None:
    told = table(scanned(without_api(node())))
    assert "Judged without the API server (--api=off): by docker, checkpoints and network namespaces." in told
    assert "Not judged without it: unreserved_pod_ip, shared_ip." in told
    assert "Could not be" not in told
    assert "No findings." in told


def test_without_the_api_a_silent_docker_is_still_told() -> None:
    told = table(scanned(without(without_api(node()), "containers")))
    assert "containers: it gave no word" in told
    assert "leaked_reservation: containers: it gave no word" in told
    assert "No findings, as far as could be read." in told


def test_a_broken_detector_is_told() -> None:
    from dataclasses import replace  # noqa: PLC0415

    report = replace(scanned(node()), gaps=(Gap("shared_ip", "KeyError: 'a bug'", broken=True),))
    assert "shared_ip: KeyError: 'a bug'" in table(report)
    assert "No findings, as far as could be read." in table(report)


def test_an_empty_directory_has_no_reservation() -> None:
    assert "kubenet 10.244.1.1-10.244.1.254 253 0 253 no reservation" in lines(
        table(scanned(node(reservations=[], pods=[])))
    )


def test_columns_are_aligned_and_the_last_runs_on() -> None:
    assert list(grid([["A", "LONG", "WHY"], ["long", "b", "because of this and that"]])) == [
        "A     LONG  WHY",
        "long  b     because of this and that",
    ]


def test_no_line_ends_in_blanks() -> None:
    text = table(scanned(node(LOST)))
    assert [line for line in text.splitlines() if line != line.rstrip()] == []
    assert text.endswith("\n")


def test_a_process_cannot_steer_the_readers_terminal() -> None:
    held = Address(LOST.ip, 7, "\x1b[2Jsh\n")
    text = table(scanned(node(LOST, addresses=[held])))
    assert "\x1b" not in text
    assert "process 7 (\N{REPLACEMENT CHARACTER}[2Jsh\N{REPLACEMENT CHARACTER})" in text

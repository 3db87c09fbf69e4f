"""The table for people: a summary, what is odd, the findings in words, and what could not be read."""

from datetime import timedelta

from agent.exporters.text.scan import grid, table
from agent.model.devices import TransitionKind
from agent.model.finding import Gap
from agent.model.snapshot import Address, Checkpoint
from tests.builders import (
    CIDR,
    GONE,
    KVM,
    cni_result,
    dark_node,
    device_plugins,
    late_plugins,
    node,
    plugin_socket,
    registered,
    reservation,
    sandbox,
    scanned,
    transition,
    unrecognized,
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
    assert "10.244.1.9 is reserved for container 999999999999 of pod shop/cart, which no longer exists" in finding


def test_what_is_in_order_is_counted_and_not_listed() -> None:
    text = table(scanned(node(LOST, sandbox(GONE, "shop/cart", "exited"))))
    assert "2 in_use, 1 not_ready" in text
    assert LOST.ip not in text


def test_what_is_on_its_way_is_listed_with_why() -> None:
    young = reservation("10.244.1.10", "8" * 64, age=timedelta(0))
    told = table(scanned(node(LOST, Checkpoint(GONE, "shop/cart"), young, unrecognized("notes"))))
    for word in (
        "teardown_pending",
        "candidate",
        "unrecognized",
        "the kubelet keeps a checkpoint",
        "it is a directory",
    ):
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
    assert "Not judged without it: unreserved_pod_ip, shared_ip" in told
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


# Devices


def test_resources_have_a_section_with_since_when_and_how_late() -> None:
    told = lines(table(scanned(node(device_plugins=late_plugins()))))
    assert told[told.index("Devices:") + 1 :][:3] == [
        "RESOURCE DEVICES ALLOCATED REGISTERED SINCE LATE(s) SOCKET",
        f"{KVM} 3 1 yes 2026-03-26T19:00:09Z 9.5 kubevirt-kvm.sock",
        "",
    ]


def test_what_is_not_known_of_a_resource_is_a_question_mark() -> None:
    plugins = device_plugins(registered(KVM), kubelet_socket=timedelta(hours=1))
    assert f"{KVM} 0 ? no ? ? ?" in lines(table(scanned(without(node(device_plugins=plugins), "pods"))))


def test_a_socket_of_no_known_resource_is_listed_too() -> None:
    told = lines(table(scanned(node(device_plugins=device_plugins(plugin_socket("strange.sock"))))))
    assert "? ? ? ? ? ? strange.sock" in told


def test_a_socket_that_is_gone_or_that_nobody_is_connected_to_says_so() -> None:
    gone = device_plugins(registered(KVM), transition(TransitionKind.SOCKET_GONE, socket="kubevirt-kvm.sock"))
    assert "kubevirt-kvm.sock (gone)" in table(scanned(node(device_plugins=gone)))
    alone = device_plugins(registered(KVM), plugin_socket(connected=False))
    assert "kubevirt-kvm.sock (not connected)" in table(scanned(node(device_plugins=alone)))


def test_a_node_without_devices_has_no_such_section() -> None:
    assert "Devices" not in table(scanned(node()))


def test_plugins_that_were_not_read_have_no_section_and_are_told_as_unread() -> None:
    told = table(scanned(without(node(), "device_plugins")))
    assert "Devices:" not in told
    assert "device_plugins: it gave no word" in told


def test_a_resource_cannot_steer_the_readers_terminal() -> None:
    told = table(scanned(node(device_plugins=device_plugins(registered("a.b/\x1b[2J")))))
    assert "\x1b" not in told
    assert "a.b/\N{REPLACEMENT CHARACTER}[2J" in told


def test_a_hundred_resources_are_cut_and_the_table_says_so() -> None:
    told = table(scanned(node(device_plugins=device_plugins(*(registered(f"a.b/c{n:03}") for n in range(100))))))
    assert "… and 60 more: -o json lists all" in told
    assert "a.b/c039" in told
    assert "a.b/c040  " not in told

"""A report as text: headline, summary, findings, and unavailable data."""

from dataclasses import replace
from datetime import timedelta

import pytest

from agent.exporters.text.scan import scan_table
from agent.exporters.text.table import grid
from agent.model.devices import TransitionKind
from agent.model.finding import Finding, LeakCause, Severity, SkippedCheck, TrackedFinding
from agent.model.rejections import PodOutcome, RejectedPod, RejectionCause
from agent.model.report import Report
from agent.model.snapshot import Address, Checkpoint
from tests.builders import (
    CIDR,
    GONE,
    KVM,
    NOW,
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
EXHAUSTED = RejectionCause.EXHAUSTED


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_a_healthy_node_is_a_few_lines() -> None:
    assert lines(scan_table(scanned(node()))) == [
        "Node worker-1, 2026-03-26T20:00:00Z",
        "OK: no findings",
        "",
        "NETWORK RANGE USABLE RESERVED FREE STATES",
        "kubenet 10.244.1.1-10.244.1.254 253 2 251 2 in_use",
    ]


def test_a_leak_is_counted_and_described() -> None:
    text = lines(scan_table(scanned(node(LOST, cni_result(GONE, "shop/cart", CIDR)))))
    assert "kubenet 10.244.1.1-10.244.1.254 253 3 250 2 in_use, 1 leaked" in text
    assert "1 finding (for more: `nodeleak explain leaked_reservation`):" in text
    (finding,) = (line for line in text if line.startswith("leaked_reservation: "))
    assert "10.244.1.9 is reserved for container 999999999999 of pod shop/cart, which no longer exists" in finding


def test_healthy_reservations_are_only_counted() -> None:
    text = scan_table(scanned(node(LOST, sandbox(GONE, "shop/cart", "exited"))))
    assert "2 in_use, 1 not_ready" in text
    assert LOST.ip not in text


def test_other_states_are_listed_with_why() -> None:
    recent = reservation("10.244.1.10", "8" * 64, age=timedelta(0))
    text = scan_table(scanned(node(LOST, Checkpoint(GONE, "shop/cart"), recent, unrecognized("notes"))))
    for expected in (
        "teardown_pending",
        "candidate",
        "unrecognized",
        "its checkpoint remains",
        "it is a directory",
    ):
        assert expected in text
    assert "OK: no findings" in text


def test_a_long_list_is_cut_and_says_so() -> None:
    leaks = [reservation(f"10.244.1.{n}", f"{n:064x}") for n in range(10, 60)]
    text = scan_table(scanned(node(*leaks)))
    assert "10.244.1.48, 10.244.1.49 and 10 more" in text
    assert "50 leaked" in text
    assert "50 findings (for more:" in text


def test_without_data_nothing_is_said_to_be_healthy() -> None:
    text = lines(scan_table(scanned(dark_node())))
    assert "kubenet ? ? ? ? unavailable" in text
    assert "Incomplete: 16 of 16 checks could not run: it gave no word" in text
    assert not any(line.startswith("OK") for line in text)
    assert "Unavailable (nothing is concluded from these sources):" in text
    (sources,) = [line.removesuffix(": it gave no word") for line in text if line.endswith(": it gave no word")][1:]
    assert {"containers", "pods", "node"} <= set(sources.split(", "))
    assert any(line.startswith("leaked_reservation, ") and ": needs " in line for line in text)


def test_a_reason_that_sources_share_is_written_once_below_the_headline() -> None:
    text = lines(scan_table(scanned(without(node(LOST), "pods", "node"))))
    assert [line for line in text if "it gave no word" in line] == [
        "Incomplete: 10 of 16 checks could not run: it gave no word",
        "pods, node: it gave no word",
    ]
    assert "kubenet 10.244.1.9 unknown 2h - needs pods" in text
    assert any(line.endswith("unregistered_node, detached_volume: needs node") for line in text)


def test_without_the_api_it_says_which_sources_it_used() -> None:
    text = scan_table(scanned(without_api(node())))
    assert "Checked without the API server (--api=off): only this node was read." in text
    assert "Skipped without it: unreserved_pod_ip, shared_ip" in text
    assert "could not run" not in text
    assert "OK: no findings" in text


def test_without_the_api_unavailable_containers_are_still_reported() -> None:
    text = scan_table(scanned(without(without_api(node()), "containers")))
    assert "containers: it gave no word" in text
    assert "leaked_reservation, unmanaged_address, stuck_teardown, failing_plugin: needs containers" in text
    assert "Incomplete: 4 of 16 checks could not run: it gave no word" in text


def test_a_failed_detector_is_reported() -> None:
    report = replace(scanned(node()), gaps=(SkippedCheck("shared_ip", "KeyError: 'a bug'", broken=True),))
    assert "shared_ip: KeyError: 'a bug'" in scan_table(report)
    assert "Incomplete: 1 of 16 checks could not run: shared_ip: KeyError" in scan_table(report)


def test_an_empty_directory_has_no_reservation() -> None:
    assert "kubenet 10.244.1.1-10.244.1.254 253 0 253 no reservation" in lines(
        scan_table(scanned(node(reservations=[], pods=[])))
    )


def test_columns_are_aligned_but_the_last() -> None:
    assert list(grid([["A", "LONG", "WHY"], ["long", "b", "because of this and that"]])) == [
        "A     LONG  WHY",
        "long  b     because of this and that",
    ]


def test_no_line_ends_in_blanks() -> None:
    text = scan_table(scanned(node(LOST)))
    assert [line for line in text.splitlines() if line != line.rstrip()] == []
    assert text.endswith("\n")


def test_the_name_of_a_process_is_escaped() -> None:
    address = Address(LOST.ip, 7, "\x1b[2Jsh\n")
    text = scan_table(scanned(node(LOST, addresses=[address])))
    assert "\x1b" not in text
    assert r"process 7 (\x1b[2Jsh\n)" in text


# Devices


def test_device_resources_have_a_section_with_their_delay() -> None:
    text = lines(scan_table(scanned(node(device_plugins=late_plugins()))))
    assert text[text.index("Devices:") + 1 :] == [
        "RESOURCE DEVICES ALLOCATED REGISTERED SINCE REGISTERED AFTER SOCKET",
        f"{KVM} 3 1 yes 2026-03-26T19:00:09Z 9.5 s kubevirt-kvm.sock",
    ]


def test_unknown_values_of_a_resource_are_question_marks() -> None:
    plugins = device_plugins(registered(KVM), kubelet_socket=timedelta(hours=1))
    assert f"{KVM} 0 ? no ? ? ?" in lines(scan_table(scanned(without(node(device_plugins=plugins), "pods"))))


def test_a_socket_of_no_known_resource_is_listed_too() -> None:
    text = lines(scan_table(scanned(node(device_plugins=device_plugins(plugin_socket("strange.sock"))))))
    assert "? ? ? ? ? ? strange.sock" in text


def test_a_socket_that_is_gone_or_not_connected_says_so() -> None:
    gone = device_plugins(registered(KVM), transition(TransitionKind.SOCKET_GONE, socket="kubevirt-kvm.sock"))
    assert "kubevirt-kvm.sock (gone)" in scan_table(scanned(node(device_plugins=gone)))
    alone = device_plugins(registered(KVM), plugin_socket(connected=False))
    assert "kubevirt-kvm.sock (not connected)" in scan_table(scanned(node(device_plugins=alone)))


def test_a_node_without_devices_has_no_such_section() -> None:
    assert "Devices" not in scan_table(scanned(node()))


def test_unavailable_device_plugins_have_no_section_and_are_reported() -> None:
    text = scan_table(scanned(without(node(), "device_plugins")))
    assert "Devices:" not in text
    assert "device_plugins: it gave no word" in text


def test_the_name_of_a_resource_is_escaped() -> None:
    text = scan_table(scanned(node(device_plugins=device_plugins(registered("a.b/\x1b[2J")))))
    assert "\x1b" not in text
    assert r"a.b/\x1b[2J" in text


def test_a_hundred_resources_are_cut_and_the_table_says_so() -> None:
    text = scan_table(scanned(node(device_plugins=device_plugins(*(registered(f"a.b/c{n:03}") for n in range(100))))))
    assert "… and 60 more: use -v to list all" in text
    assert "a.b/c039" in text
    assert "a.b/c040  " not in text


# Findings


def report_with(*findings: Finding) -> Report:
    tracked = tuple(TrackedFinding(one, one.since or NOW, confirmed=True) for one in findings)
    return replace(scanned(node()), findings=tracked)


def leak(ip: str, cause: LeakCause, hours: int = 1) -> Finding:
    since = NOW - timedelta(hours=hours)
    return Finding("leaked_reservation", f"kubenet/{ip}", f"{ip} leaked", network="kubenet", cause=cause, since=since)


def test_findings_are_ordered_by_severity_and_then_by_age() -> None:
    report = report_with(
        replace(leak("10.0.0.1", LeakCause.UNKNOWN), severity=Severity.INFO, message="third"),
        Finding("shared_ip", "b", "second", since=NOW),
        Finding("unmanaged_address", "c", "first", since=NOW - timedelta(hours=9)),
        Finding("exhausted_range", "kubenet", "worst", Severity.CRITICAL, "kubenet"),
    )
    text = scan_table(report)
    assert sorted(("worst", "first", "second", "third"), key=text.index) == ["worst", "first", "second", "third"]


def test_leaks_of_one_restart_are_one_line_unless_verbose() -> None:
    restart, reboot = LeakCause.KUBELET_RESTART, LeakCause.NODE_REBOOT
    report = report_with(leak("10.0.0.9", restart), leak("10.0.0.10", restart), leak("10.0.0.1", reboot, hours=5))
    text = lines(scan_table(report))
    cause = "likely cause: kubelet restart at 2026-03-26 19:00:00Z or earlier"
    grouped = f"2 addresses in kubenet leaked, {cause}: 10.0.0.9, 10.0.0.10"
    assert text[text.index("3 findings (for more: `nodeleak explain leaked_reservation`):") + 1 :][:2] == [
        "leaked_reservation: 10.0.0.1 leaked",
        f"leaked_reservation: {grouped}",
    ]
    assert "leaked_reservation: 10.0.0.9 leaked" in lines(scan_table(report, verbose=True))


def test_leaks_without_a_restart_are_one_line_with_the_oldest_time() -> None:
    text = scan_table(report_with(*(leak(f"10.0.0.{n}", LeakCause.UNKNOWN, hours=n) for n in (1, 2, 3))))
    assert "3 addresses in kubenet leaked, cause unknown" in text
    assert "reserved at 2026-03-26 17:00:00Z (the oldest): 10.0.0.3, 10.0.0.2, 10.0.0.1" in text


def rejected(pod: str, outcome: PodOutcome = PodOutcome.STUCK, cause: RejectionCause = EXHAUSTED) -> Finding:
    one = RejectedPod(pod, pod, "", KVM, NOW, cause, outcome, f"why of {pod}", f"delete {pod}")
    return Finding(
        "rejected_pod", f"pod {pod}", f"{pod} was rejected", pod=pod, cause=cause, resource=KVM, pod_outcome=outcome,
        rejected_pods=(one,),
    )  # fmt: skip


def test_rejected_pods_of_one_cause_are_one_line_unless_verbose() -> None:
    report = report_with(
        rejected("shop/a"),
        rejected("shop/b"),
        rejected("shop/c", cause=RejectionCause.UNHEALTHY),
        rejected("shop/d", PodOutcome.TERMINATING_STUCK),
        rejected("shop/e", PodOutcome.TERMINATING_STUCK),
    )
    text = lines(scan_table(report))
    what = f"2 pods were rejected for {KVM} (shop/a, shop/b)"
    assert [line for line in text if line.startswith("rejected_pod: ")] == [
        f"rejected_pod: {what}; for the first of them: why of shop/a; delete shop/a",
        *(f"rejected_pod: shop/{one} was rejected" for one in "cde"),
    ]
    assert "rejected_pod: shop/b was rejected" in lines(scan_table(report, verbose=True))


@pytest.mark.parametrize(
    ("free", "advice"),
    [
        (0, "no address is free: pods that start now fail"),
        (90, "not urgent: 90 free addresses left"),
        (9, "Do: 9 free addresses left; release the leaked addresses"),
        (None, "unknown"),
    ],
)
def test_what_to_do_about_leaks_depends_on_free_addresses(free: int | None, advice: str) -> None:
    report = report_with(leak("10.244.1.9", LeakCause.UNKNOWN))
    networks = tuple(replace(one, free=free) for one in report.networks)
    (line,) = (line for line in lines(scan_table(replace(report, networks=networks))) if line.startswith("Do: "))
    assert advice in line
    assert "nodeleak clean --dry-run" in line
    assert "never delete reservation files by hand" in line


def test_what_to_do_is_below_the_findings_of_each_detector_unless_they_say_it() -> None:
    report = report_with(
        Finding("shared_ip", "b", "two", Severity.CRITICAL, since=NOW),
        rejected("shop/a"),
        Finding("shared_ip", "a", "one", Severity.CRITICAL, since=NOW - timedelta(hours=1)),
        Finding("unmanaged_address", "c", "java", since=NOW),
    )
    text = lines(scan_table(report))
    start = text.index(
        "4 findings (for more: `nodeleak explain shared_ip`, `nodeleak explain rejected_pod`, "
        "`nodeleak explain unmanaged_address`):"
    )
    heads = [line.partition(" ")[0] for line in text[start + 1 :]]
    assert heads == ["shared_ip:", "shared_ip:", "Do:", "rejected_pod:", "unmanaged_address:", "Do:"]
    assert text[start + 3].startswith("Do: cordon the node first; then delete all pods that share the address")


def test_unavailable_sources_name_the_command_that_says_what_to_check() -> None:
    assert "\n  Do: `nodeleak explain containers`\n" in scan_table(scanned(without(node(), "containers")))


def test_verbose_lists_everything() -> None:
    plugins = device_plugins(*(registered(f"a.b/c{n:03}") for n in range(100)))
    text = scan_table(scanned(node(device_plugins=plugins)), verbose=True)
    assert "a.b/c099" in text
    assert "more" not in text

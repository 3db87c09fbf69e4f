"""A real node with containerd: every address is judged as on a node with docker."""

import re
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from .agent import Report
from .containerd_node import ContainerdNode
from .node import eventually

pytestmark = pytest.mark.e2e


def test_a_healthy_node_has_no_finding(node: ContainerdNode) -> None:
    addresses = node.pods(4)
    report = node.scan()
    assert report.states == dict.fromkeys(addresses, "in_use")
    assert {pod.rpartition("-")[0] for pod in report.pods.values() if pod} == {"default/e2e-containerd"}
    assert report.findings == []
    assert report.unavailable == set()
    assert report.insufficient_data == {"replayed_watch"}, "a single command watches nothing"
    assert report.network["free"] == 125 - 4


def test_pods_that_come_and_go_are_never_leaked_or_a_finding(node: ContainerdNode) -> None:
    over = Event()

    def scan_without_pause() -> list[Report]:
        reports = []
        while not over.is_set():
            reports.append(node.scan("--grace=0s", "--confirm-after=1ms", "--api=off"))
            reports.append(node.scan("--grace=0s", "--confirm-after=1ms"))
        return reports

    with ThreadPoolExecutor(1) as scanning:
        reports = scanning.submit(scan_without_pause)
        try:
            coming = node.ask_for(10)
            for _ in range(4):
                going, coming = coming, node.ask_for(10)
                node.cluster.kubectl("wait", "pods", *going, "--for=condition=Ready", "--timeout=120s")
                node.cluster.kubectl("delete", "pods", *going, "--grace-period=1", "--wait=false")
            node.cluster.kubectl("delete", "pods", *coming, "--grace-period=1")
            eventually(lambda: _nothing_reserved(node), 90)
        finally:
            over.set()

    states = [state for report in reports.result() for state in report.states.values()]
    assert {"in_use", "not_ready"} <= set(states)
    assert not {"leaked", "candidate", "unknown", "unmanaged"} & set(states)
    assert [one for report in reports.result() for one in report.findings if one["severity"] != "info"] == []
    assert {one for report in reports.result() for one in report.unavailable} == set()


def test_lost_runtime_state_leaks_every_address_and_all_of_them_can_be_released(node: ContainerdNode) -> None:
    before = set(node.pods(4))
    node.lose_runtime_state(namespaces=True)
    leaked = before & set(node.reserved)
    assert leaked == before

    report = _scanned(node)
    assert {ip for ip, state in report.states.items() if state == "leaked"} == leaked
    assert set(report.subjects("leaked_reservation")) == {f"cbr0/{ip}" for ip in leaked}
    cleaned = node.clean("--apply")
    assert {ip for ip, verdict in cleaned.verdicts.items() if verdict == "released"} == leaked
    assert not leaked & set(node.reserved)
    assert set(node.scan("--grace=0s").states.values()) <= {"in_use"}


def test_namespaces_without_a_process_keep_their_addresses_until_they_are_deleted(node: ContainerdNode) -> None:
    before = set(node.pods(3))
    node.lose_runtime_state(namespaces=False)
    report = _scanned(node)
    assert {ip for ip, state in report.states.items() if state == "unmanaged"} == before
    found = report.subjects("unmanaged_address")
    assert set(found) == {f"cbr0/{ip}" for ip in before}
    refused = node.clean("--apply").verdicts
    assert {ip: refused[ip] for ip in before} == dict.fromkeys(before, "address_in_use")
    assert before <= set(node.reserved)

    for one in found.values():
        (name,) = re.findall(r"/netns/(\S+) ", one["message"])
        node.run("ip", "netns", "delete", name)
    released = node.clean("--apply").verdicts
    assert {ip for ip, verdict in released.items() if verdict == "released"} == before


def test_a_namespace_that_libcni_does_not_name_answers_the_probe(node: ContainerdNode) -> None:
    before = set(node.pods(2))
    node.lose_runtime_state(namespaces=False)
    node.forget_results()
    assert {ip for ip, state in _scanned(node).states.items() if state == "leaked"} == before
    refused = node.clean("--apply").addresses
    assert {ip: refused[ip]["reason"] for ip in before} == dict.fromkeys(before, "address_in_use")
    assert all("answers on cni0" in refused[ip]["why"] for ip in before), refused
    assert before <= set(node.reserved)


def test_a_containerd_that_is_stopped_or_silent_makes_everything_unknown(node: ContainerdNode) -> None:
    node.pods(2)
    with node.held("containerd"):
        report = node.scan(codes=(3,))
        assert set(report.states.values()) == {"unknown"}
        assert {"containers", "networks"} <= report.unavailable
        assert node.clean("--apply", codes=(3,)).verdicts == {}
    eventually(lambda: _all_in_use(node), 60)


def test_a_restarted_containerd_changes_nothing(node: ContainerdNode) -> None:
    addresses = node.pods(3)
    node.kill("containerd")
    reports = [node.scan("--grace=0s", "--confirm-after=1ms", "--api=off", codes=(0, 3)) for _ in range(20)]
    assert not {"leaked", "candidate"} & {state for report in reports for state in report.states.values()}
    eventually(lambda: _all_in_use(node), 60)
    assert set(node.reserved) == set(addresses)


def test_the_daemon_reports_a_leak_and_its_end(node: ContainerdNode) -> None:
    before = set(node.pods(2))
    with node.daemon("--interval=1s", "--grace=0s", "--confirm-after=2s") as daemon:
        eventually(lambda: _states(daemon.report(), {"in_use"}), 30)
        node.lose_runtime_state(namespaces=True)
        eventually(lambda: _found(daemon.report(), before), 90)
        node.clean("--apply")
        eventually(lambda: _found(daemon.report(), set()), 30)


def _scanned(node: ContainerdNode) -> Report:
    """Scan once the kubelet has made sandboxes again: before, the list without any is not believed."""
    return eventually(lambda: node.scan("--grace=0s"), 60)


def _states(report: Report, expected: set[str]) -> None:
    assert set(report.states.values()) == expected


def _found(report: Report, leaked: set[str]) -> None:
    assert set(report.subjects("leaked_reservation")) == {f"cbr0/{ip}" for ip in leaked}


def _all_in_use(node: ContainerdNode) -> None:
    assert set(node.scan(codes=(0, 3)).states.values()) == {"in_use"}


def _nothing_reserved(node: ContainerdNode) -> None:
    assert not node.reserved

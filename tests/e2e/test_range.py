"""Addresses in use without a reservation, and an exhausted range."""

from ipaddress import ip_address

import pytest

from .agent import Nodeleak
from .node import STORE, Cluster, Pods, eventually, moved_away, reservations

pytestmark = pytest.mark.e2e


def test_a_live_pod_whose_file_was_removed_has_an_unreserved_address(pods: Pods, nodeleak: Nodeleak) -> None:
    owners = pods(2)
    ip, pod = next(iter(owners.items()))

    with moved_away(STORE / ip):
        # The API server may list the pod as it was a moment ago, without its address.
        scan = eventually(lambda: nodeleak.scan("--exit-code", codes=[1]), 10)
        with nodeleak.running("--interval=500ms", "--confirm-after=1s") as daemon:
            eventually(lambda: _count(daemon.opened("unreserved_pod_ip"), 1))
            metrics = daemon.metrics()

    assert ip not in scan.states
    (finding,) = scan.findings
    assert (finding["detector"], finding["pod"]) == ("unreserved_pod_ip", pod)
    assert ip in finding["message"]
    assert metrics.get("findings", detector="unreserved_pod_ip", severity="critical", phase="confirmed") == 1
    assert nodeleak.scan("--exit-code").findings == []


def test_a_range_exhausted_for_the_kubelet_is_reported_with_its_number_of_leaks(
    cluster: Cluster, pods: Pods, nodeleak: Nodeleak
) -> None:
    owners = pods(1)
    network = nodeleak.scan().network
    # The scheduler sends as many pods as the node allows: a shortage begins when fewer addresses are free.
    room = int(cluster.kubectl("get", "node", cluster.node, "-o", "jsonpath={.status.allocatable.pods}")) - len(owners)
    leaked = cluster.reserve(network["free"] - room)
    assert nodeleak.scan("--grace=0s").subjects("exhausted_range") == {}
    leaked += cluster.reserve(1)
    scan = nodeleak.scan("--grace=0s")
    assert f"{room - 1} free addresses for {room} more pods" in _exhausted(scan.findings)

    leaked += cluster.reserve(room - 2)
    names = pods.ask_for(2)  # for one address
    eventually(lambda: _kubelet_refused_one_of(names, cluster))

    def nothing_left() -> None:
        scan, size = nodeleak.scan("--grace=0s", "--exit-code", codes=[1]), network["usable"]
        assert (scan.network["reserved"], scan.network["free"]) == (size, 0)
        assert [ip for ip, state in scan.states.items() if state == "leaked"] == sorted(leaked, key=ip_address)
        assert list(scan.states.values()).count("in_use") == size - len(leaked)
        taken = f"{size} of {size} addresses are reserved ({len(leaked)} leaked)"
        assert f"no free addresses; {taken}" in _exhausted(scan.findings)

    eventually(nothing_left, 30)

    cluster.release_ownerless()
    everyone = pods.running()
    assert nodeleak.scan("--exit-code").states == dict.fromkeys(everyone, "in_use")
    assert reservations().keys() == everyone.keys()


def _count(found: dict[str, dict[str, object]], number: int) -> None:
    assert len(found) == number


def _exhausted(findings: list[dict[str, str]]) -> str:
    (message,) = (one["message"] for one in findings if one["detector"] == "exhausted_range")
    return message


def _kubelet_refused_one_of(names: list[str], cluster: Cluster) -> None:
    shown = r"jsonpath={range .items[*]}{.involvedObject.name} {.message}{'\n'}{end}"
    events = cluster.kubectl("get", "events", "-o", shown)
    assert any(
        line.startswith(tuple(names)) and "no IP addresses available in range set" in line
        for line in events.splitlines()
    ), events

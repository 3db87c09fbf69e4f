"""The document `nodeleak.scan/v1`: exactly these keys, and null for what is not known."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

from agent.checks.registry import DETECTORS
from agent.exporters.json.scan import scan_document
from agent.exporters.order import sorted_reservations
from agent.model.assessment import Assessment, State
from agent.model.finding import Finding, TrackedFinding
from agent.model.rejections import PodOutcome, RejectionCause
from agent.model.report import Report
from agent.model.snapshot import Node
from tests.builders import (
    CIDR,
    GONE,
    KVM,
    KVM_SOCKET,
    NOW,
    assessment,
    cni_result,
    dark_node,
    device_plugins,
    empty_file,
    late_plugins,
    node,
    processes,
    registered,
    reservation,
    scanned,
    unrecognized,
    without,
    without_api,
)

LOST = reservation("10.244.1.9")


def exported(report: Report) -> Any:
    """Draw a report, and read it back as a program would."""
    return json.loads(json.dumps(scan_document(report), allow_nan=False))


def test_a_healthy_node_has_every_key() -> None:
    tree = exported(scanned(replace(node(), server_version="v1.20.2")))
    assert tree == {
        "schema": "nodeleak.scan/v1",
        "node": "worker-1",
        "taken_at": "2026-03-26T20:00:00Z",
        "server_version": "v1.20.2",
        "networks": [
            {
                "name": "kubenet",
                "ranges": ["10.244.1.1-10.244.1.254"],
                "usable": 253,
                "reserved": 2,
                "free": 251,
                "states": {state.value: 2 if state is State.IN_USE else 0 for state in State},
                "not_in_use": None,
            }
        ],
        "reservations": [
            {
                "network": "kubenet",
                "ip": ip,
                "container_id": container_id,
                "ifname": "eth0",
                "state": "in_use",
                "pod": pod,
                "age_seconds": 7200.0,
                "why": "its container is running",
                "cause": None,
            }
            for ip, container_id, pod in (
                ("10.244.1.2", "1" * 64, "shop/web"),
                ("10.244.1.3", "2" * 64, "shop/db"),
            )
        ],
        "device_plugins": [],
        "findings": [],
        "unavailable": [],
        "insufficient_data": [],
    }


def test_a_leak_has_its_pod_cause_and_time() -> None:
    hour = timedelta(hours=1)
    report = scanned(node(LOST, cni_result(GONE, "shop/cart", CIDR), processes=[processes(kubelet=hour)]))
    (finding,) = exported(report)["findings"]
    assert [one["cause"] for one in exported(report)["reservations"] if one["state"] == "leaked"] == ["kubelet_restart"]
    assert finding == {
        "detector": "leaked_reservation",
        "subject": "kubenet/10.244.1.9",
        "message": "10.244.1.9 is reserved for container 999999999999 of pod shop/cart, which no longer exists; "
        "likely cause: kubelet restart at 2026-03-26 19:00:00Z or earlier",
        "severity": "warning",
        "count": 1,
        "since": "2026-03-26T19:00:00Z",
        "confirmed": True,
        "cause": "kubelet_restart",
        "network": "kubenet",
        "pod": "shop/cart",
        "resource": None,
        "pod_outcome": None,
        "host_ports": [],
        "strength": None,
    }


def test_a_finding_without_a_cause_has_null() -> None:
    (finding,) = exported(scanned(node(reservations=[reservation("10.244.1.2", "1" * 64)])))["findings"]
    assert (finding["detector"], finding["cause"], finding["pod"]) == ("unreserved_pod_ip", None, "shop/db")


def test_without_data_nothing_is_zero() -> None:
    tree = exported(scanned(dark_node()))
    (network,) = tree["networks"]
    assert network == {
        "name": "kubenet", "ranges": None, "usable": None, "reserved": None, "free": None, "states": None,
        "not_in_use": None,
    }  # fmt: skip
    assert tree["reservations"] == []
    assert {one["source"] for one in tree["unavailable"]} >= {"reservations", "containers", "pods"}
    assert all(one["why"] == "it gave no word" for one in tree["unavailable"])
    assert {one["detector"] for one in tree["insufficient_data"]} == {detector.NAME for detector in DETECTORS}


def test_an_unknown_server_version_is_null() -> None:
    assert exported(scanned(node()))["server_version"] is None


def test_a_disabled_source_is_not_unavailable_but_detectors_lack_data() -> None:
    tree = exported(scanned(without_api(node())))
    assert tree["unavailable"] == []
    assert {one["detector"]: one["why"] for one in tree["insufficient_data"]}["shared_ip"] == "pods: --api=off"


def test_an_unrecognized_entry_has_only_a_name() -> None:
    tree = exported(scanned(node(unrecognized("notes.txt"))))
    assert tree["reservations"][-1] == {
        "network": "kubenet",
        "ip": "notes.txt",
        "container_id": None,
        "ifname": None,
        "state": "unrecognized",
        "pod": None,
        "age_seconds": None,
        "why": "it is a directory",
        "cause": None,
    }


def test_an_empty_file_is_reserved_for_the_empty_id() -> None:
    tree = exported(scanned(node(empty_file("10.244.1.9"))))
    assert (tree["reservations"][-1]["container_id"], tree["reservations"][-1]["state"]) == ("", "leaked")


def test_numbers_are_numbers() -> None:
    wide = Node("worker-1", ("fd00::/64",), 110)
    (network,) = exported(scanned(node(reservation("fd00::9"), node=[wide])))["networks"]
    assert network["usable"] == 2**64 - 2
    assert all(type(n) is int for n in network["states"].values())


def test_a_file_from_the_future_has_a_negative_age() -> None:
    tree = exported(scanned(node(reservation("10.244.1.9", age=timedelta(seconds=-90)))))
    assert tree["reservations"][-1]["age_seconds"] == -90.0


def test_states_are_the_closed_set_in_every_network() -> None:
    tree = exported(scanned(node(reservation("10.9.0.2", network="storage"))))
    assert [set(one["states"]) for one in tree["networks"]] == [{state.value for state in State}] * 2


def test_an_unavailable_network_is_null() -> None:
    kubenet, storage = exported(scanned(node(unread_networks=["storage"])))["networks"]
    assert (kubenet["reserved"], storage["reserved"]) == (2, None)


def test_addresses_are_in_numerical_order() -> None:
    names = ["10.244.1.9", "10.244.1.10", "10.244.0.200", "fd00::9", "fd00::10", "fd00::a", "fd00:0:1::1", "fd00::"]
    snapshot = node(*(reservation(ip) for ip in names), unrecognized("zebra"), unrecognized("alpha"), reservations=[])
    assert ordered(assessment(snapshot)) == [
        "10.244.0.200", "10.244.1.9", "10.244.1.10",
        "fd00::", "fd00::9", "fd00::a", "fd00::10", "fd00:0:1::1", "alpha", "zebra",
    ]  # fmt: skip


def ordered(exported: Assessment) -> list[str]:
    return [one.name for one in sorted_reservations(exported.reservations)]


def test_reservations_are_ordered_by_network_first() -> None:
    snapshot = node(reservation("10.0.0.1", network="storage"), reservations=[LOST])
    assert ordered(assessment(snapshot)) == ["10.244.1.9", "10.0.0.1"]


def test_unavailable_sources_have_their_reason() -> None:
    assert exported(scanned(without(node(), "processes")))["unavailable"] == [
        {"source": "processes", "why": "it gave no word"}
    ]


# Devices


def test_a_resource_has_its_socket_and_delay() -> None:
    assert exported(scanned(node(device_plugins=late_plugins())))["device_plugins"] == [
        {
            "resource": KVM,
            "devices": 3,
            "allocated": 1,
            "registered": True,
            "registered_since": "2026-03-26T19:00:09Z",
            "registration_delay_seconds": 9.536,
            "socket": KVM_SOCKET,
            "socket_present": True,
            "connected": True,
        }
    ]


def test_unknown_values_of_a_resource_are_null() -> None:
    plugins = device_plugins(registered(KVM), kubelet_socket=timedelta(hours=1))
    snapshot = without(node(device_plugins=plugins), "pods")
    (plugin,) = exported(scanned(snapshot))["device_plugins"]
    unknown = ("allocated", "registered_since", "registration_delay_seconds", "socket", "socket_present", "connected")
    assert [plugin[key] for key in unknown] == [None] * 6
    assert (plugin["devices"], plugin["registered"]) == (0, False)


def test_unavailable_plugins_are_null_and_not_empty() -> None:
    assert exported(scanned(without(node(), "device_plugins")))["device_plugins"] is None


def test_a_rejected_pod_has_its_resource_and_outcome() -> None:
    finding = Finding(
        "shared_ip",
        "shop/render",
        "refused",
        resource=KVM,
        pod_outcome=PodOutcome.STUCK,
        cause=RejectionCause.KUBELET_RESTART,
    )
    report = replace(scanned(node()), findings=(TrackedFinding(finding, NOW, confirmed=True),))
    (one,) = exported(report)["findings"]
    assert (one["resource"], one["pod_outcome"], one["cause"]) == (KVM, "stuck", "kubelet_restart")

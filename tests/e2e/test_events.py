"""Events and the node condition in a real API server, as kubectl shows them."""

import json
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from .node import Cluster, Pods, eventually
from .nodeleak import Daemon, Nodeleak

pytestmark = pytest.mark.e2e

QUICK = ("--interval=500ms", "--confirm-after=0s", "--grace=0s")
RIGHTS = (
    {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
)
"""Those of the base deployment."""


@pytest.fixture(autouse=True)
def _silence(cluster: Cluster) -> Iterator[None]:
    """No Events of nodeleak before and after the test."""
    forget(cluster)
    yield
    forget(cluster)


def events(cluster: Cluster, reason: str = "") -> list[dict[str, Any]]:
    """Return the Events of nodeleak."""
    found = cluster.get("events", "--all-namespaces")["items"]
    ours = [event for event in found if event.get("source", {}).get("component") == "nodeleak"]
    return [event for event in ours if reason in {"", event["reason"]}]


def forget(cluster: Cluster) -> None:
    for event in events(cluster):
        cluster.kubectl(
            "delete", "event", "-n", event["metadata"]["namespace"], event["metadata"]["name"]
        )


def only_event(cluster: Cluster, reason: str) -> dict[str, Any]:
    found = events(cluster, reason)
    assert len(found) == 1, found
    return found[0]


def described(cluster: Cluster, reason: str) -> str:
    lines = [
        line
        for line in cluster.kubectl("describe", "node", cluster.node).splitlines()
        if reason in line
    ]
    assert len(lines) == 1
    return lines[0]


def test_describe_node_shows_the_leak_and_its_release_with_create_and_patch_only(
    cluster: Cluster, pods: Pods, nodeleak: Nodeleak, tmp_path: Path
) -> None:
    old = pods(2)
    with cluster.account("nodeleak-e2e-events", RIGHTS, tmp_path / "modest.conf") as modest:
        # Both leak before the daemon looks: it would name the other one five minutes after the first.
        cluster.leak()
        pods.running()
        scan = partial(nodeleak.scan, *QUICK[1:], codes=(0, 3))
        eventually(lambda: scan().having("leaked"), equal=set(old))
        with nodeleak.running(*QUICK, f"--kubeconfig={modest}", "--node-condition=on") as daemon:
            eventually(lambda: _names_all(only_event(cluster, "LeakedReservation"), old))
            shown = eventually(lambda: described(cluster, "LeakedReservation"))
            eventually(lambda: _sent(daemon, "LeakedReservation") >= 1, equal=True)
            assert daemon.metrics().total("events_dropped_total") == 0
            eventually(lambda: len(daemon.events("delivery.failed")), equal=1)
            (refused,) = daemon.events("delivery.failed")
        leaked = only_event(cluster, "LeakedReservation")

        assert "Warning" in shown
        assert any(ip in shown for ip in old)
        assert leaked["metadata"]["namespace"] == "default"
        # kubectl 1.20 takes the node's name for its uid.
        about = {"kind": "Node", "name": cluster.node, "namespace": "", "uid": cluster.node}
        selector = ",".join(f"involvedObject.{field}={value}" for field, value in about.items())
        found = cluster.kubectl("get", "events", "--all-namespaces", f"--field-selector={selector}")
        assert "LeakedReservation" in found
        assert (refused["what"], refused["cause"]) == ("condition", "refused")
        assert "nodes/status" in refused["why"] or "cannot patch" in refused["why"]

        # A restarted agent continues the existing Event.
        with nodeleak.running(*QUICK, f"--kubeconfig={modest}") as daemon:
            eventually(
                lambda: (
                    only_event(cluster, "LeakedReservation")["lastTimestamp"]
                    > leaked["lastTimestamp"]
                ),
                equal=True,
            )
            assert daemon.metrics().total("events_dropped_total") == 0
        again = only_event(cluster, "LeakedReservation")
        assert (again["count"], again["firstTimestamp"]) == (
            leaked["count"],
            leaked["firstTimestamp"],
        )
        _names_all(again, old)

        with nodeleak.running(*QUICK, "--cleanup=auto", "--settle=0s", f"--kubeconfig={modest}"):
            released = eventually(lambda: only_event(cluster, "ReleasedReservation"))
            shown = eventually(lambda: described(cluster, "ReleasedReservation"))
    assert "Normal" in shown
    assert any(ip in released["message"] for ip in old)
    only_event(cluster, "LeakedReservation")


def _names_all(event: dict[str, Any], addresses: Iterable[str]) -> None:
    assert not [ip for ip in addresses if ip not in event["message"]], event


def _sent(daemon: Daemon, reason: str) -> float:
    return daemon.metrics().by("reason", "events_sent_total").get(reason, 0)


def condition(cluster: Cluster) -> dict[str, Any]:
    conditions = cluster.described_node()["status"]["conditions"]
    return next((found for found in conditions if found["type"] == "CNIAddressPressure"), {})


def remove_condition(cluster: Cluster) -> None:
    """As docs/reference.md says."""
    patch = {"status": {"conditions": [{"$patch": "delete", "type": "CNIAddressPressure"}]}}
    cluster.kubectl("patch", "node", cluster.node, "--subresource=status", "-p", json.dumps(patch))


def test_the_condition_is_true_while_addresses_are_scarce_and_survives_a_restart(
    cluster: Cluster, nodeleak: Nodeleak
) -> None:
    def has(status: str, reason: str) -> dict[str, Any]:
        now = condition(cluster)
        assert (now.get("status"), now.get("reason")) == (status, reason)
        return now

    remove_condition(cluster)
    try:
        with nodeleak.running(*QUICK, "--events=off", "--node-condition=on") as daemon:
            calm = eventually(lambda: has("False", "CNIAddressesAvailable"))
            free = nodeleak.scan().network["free"]
            # The scheduler sends as many pods as the node allows: a shortage begins when fewer addresses are free.
            room = int(cluster.described_node()["status"]["allocatable"]["pods"])
            cluster.reserve(free - room)
            assert nodeleak.scan("--grace=0s").subjects("exhausted_range") == {}
            cluster.reserve(1)
            scarce = eventually(lambda: has("True", "CNIAddressesScarce"))
            eventually(
                lambda: daemon.metrics().get("node_condition_patches_total", result="sent"), equal=2
            )
            eventually(lambda: len(daemon.events("finding.opened")), equal=free - room + 2)
            assert events(cluster) == []
        assert scarce["lastTransitionTime"] > calm["lastTransitionTime"]
        assert f"{room - 1} free addresses for {room} more pods" in scarce["message"]

        with nodeleak.running(*QUICK, "--node-condition=on"):
            heartbeat = scarce["lastHeartbeatTime"]
            eventually(lambda: condition(cluster)["lastHeartbeatTime"] > heartbeat, equal=True)
            assert condition(cluster)["lastTransitionTime"] == scarce["lastTransitionTime"]
            cluster.release_ownerless()
            eventually(lambda: has("False", "CNIAddressesAvailable"))
    finally:
        remove_condition(cluster)
    assert condition(cluster) == {}
    cluster.kubectl("wait", "node", cluster.node, "--for=condition=Ready")

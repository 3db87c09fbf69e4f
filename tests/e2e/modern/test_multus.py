"""Multus gives pods further interfaces: a bridge of their own, and a macvlan in the range of the nodes' network."""

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.e2e.node import eventually, pod_with
from tests.e2e.nodeleak import Report

from .layouts import MULTUS
from .networks import allowed, configured
from .node import ModernNode

pytestmark = [pytest.mark.e2e]
_PODS: Final = 3
_STORAGE: Final = 5  # Addresses of the attachment `storage`
_EAGER: Final = ("--grace=0s", "--confirm-after=1ms")
_GROUP: Final = "k8s.cni.cncf.io"
_DEFINITION: Final = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"network-attachment-definitions.{_GROUP}"},
    "spec": {
        "group": _GROUP,
        "scope": "Namespaced",
        "names": {"plural": "network-attachment-definitions", "kind": "NetworkAttachmentDefinition"},
        "versions": [
            {
                "name": "v1", "served": True, "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}  # fmt: skip


def _attachment(name: str, plugin: dict[str, Any], **ipam: str) -> dict[str, Any]:
    config = {"cniVersion": "1.0.0", "name": name, **plugin, "ipam": {"type": "host-local", **ipam}}
    metadata = {"name": name, "namespace": "default"}
    spec = {"config": json.dumps(config)}
    return {
        "apiVersion": f"{_GROUP}/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": metadata,
        "spec": spec,
    }


@pytest.fixture
def multus(node: ModernNode) -> Iterator[ModernNode]:
    """A node with Multus, whose attachment `storage` has five addresses."""
    with configured(node, MULTUS), allowed(node):
        node.cluster.apply(_DEFINITION)
        storage = _attachment(
            "storage",
            {"type": "bridge", "bridge": "storage0"},
            subnet=f"10.254.{node.number}.248/29",
        )
        # The nodes' own network, as on a flat LAN.
        lan = _attachment(
            "lan", {"type": "macvlan", "master": "eth0"},
            subnet="10.254.0.0/24", rangeStart=f"10.254.0.{node.number}0", rangeEnd=f"10.254.0.{node.number}9",
        )  # fmt: skip
        eventually(lambda: node.cluster.apply(storage, lan))
        yield node


def _ask_for(node: ModernNode, count: int) -> list[str]:
    names = [f"e2e-{node.profile}-multus-{number}" for number in range(count)]
    pods = [pod_with(node.cluster, name) for name in names]
    for pod in pods:
        pod["metadata"]["annotations"] = {
            f"{_GROUP.replace('cni.', 'v1.cni.')}/networks": "storage, lan"
        }
    node.cluster.apply(*pods)
    return names


def _judged(report: Report) -> dict[str, str]:
    return {network["name"]: network["not_in_use"] for network in report.document["networks"]}


def test_the_networks_of_attachments_are_judged_and_released(multus: ModernNode) -> None:
    names = _ask_for(multus, _PODS)
    multus.ready(names)
    healthy = multus.scan()
    assert {finding["severity"] for finding in healthy.findings} <= {"info"}, healthy.findings
    assert _judged(healthy) == {"cbr0": None, "storage": None, "lan": None}
    assert set(healthy.states.values()) == {"in_use"}
    assert len(healthy.states) == 3 * _PODS

    before = set(multus.reserved())
    multus.leak("records")
    eventually(lambda: _storage_is_full(multus, names, before))
    multus.leak("records")
    report = eventually(lambda: _all_leaked(multus))

    refused = multus.clean("--apply")  # `auto` is the networks of the CNI configuration
    assert set(refused.verdicts.values()) == {"network_not_allowed"}, refused.verdicts
    _release(multus, set(report.states))
    multus.ready(names)
    eventually(lambda: set(multus.scan(*_EAGER).states.values()), equal={"in_use"})


def _release(node: ModernNode, expected: set[str]) -> None:
    """Release with the settings that the dry run advises.

    A pod that is tried again has a namespace before any record names it; until then, what cannot be probed is refused.
    """
    told = node.clean().settings
    released = set[str]()

    def check() -> None:
        verdicts = node.clean("--apply", *told).verdicts
        released.update(ip for ip, verdict in verdicts.items() if verdict == "released")
        assert set(verdicts.values()) <= {"released", "probe_unanswered"}, verdicts
        assert released == expected, (told, verdicts)

    eventually(check)


def _all_leaked(node: ModernNode) -> Report:
    report = node.scan(*_EAGER, codes=(0, 3))
    assert set(report.states.values()) == {"leaked"}, (report.states, report.unavailable)
    assert report.subjects("exhausted_range")["storage"]["severity"] == "critical"
    return report


def _storage_is_full(node: ModernNode, names: list[str], before: set[str]) -> None:
    """Check that pods run with its last two addresses: an ADD that is at work may give one back."""
    assert len(node.reserved("storage")) == _STORAGE
    told = {node.pod(name)["status"].get("podIP") for name in names}
    assert len(told - before - {None}) == _STORAGE - _PODS, told


def test_a_reboot_loses_the_namespaces_before_multus_can_delete(multus: ModernNode) -> None:
    names = _ask_for(multus, _PODS)
    multus.ready(names)
    before = set(multus.reserved())
    multus.reboot()
    multus.ready(names)
    report = eventually(lambda: _settled(multus))
    leaked = report.having("leaked")
    assert leaked <= before
    if leaked:
        _release(multus, leaked)
    assert len(multus.reserved()) == 3 * _PODS
    multus.ready(names)


def _settled(node: ModernNode) -> Report:
    report = node.scan(*_EAGER, codes=(0, 3))
    assert set(report.states.values()) <= {"in_use", "leaked"}, report.states
    assert list(report.states.values()).count("in_use") == 3 * _PODS
    return report

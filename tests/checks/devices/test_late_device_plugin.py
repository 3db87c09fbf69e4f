"""A device plugin that has not registered again."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from agent.checks.devices import late_device_plugin
from agent.model.devices import TransitionKind
from agent.model.finding import Finding
from agent.model.snapshot import InsufficientData, NodeDevices, NotRequested, Snapshot, SourceDisabled
from tests.builders import (
    KVM,
    KVM_SOCKET,
    NOW,
    WORKER,
    assessment,
    device_plugins,
    found,
    node,
    plugin_socket,
    refused_pod,
    registered,
    transition,
    unavailable,
    without,
    without_api,
)


def seconds(n: float) -> timedelta:
    return timedelta(seconds=n)


def look(*things: Any, kubelet: float, written: float = 9000, **others: Any) -> Snapshot:
    """A node whose kubelet started so many seconds ago, and wrote its checkpoint so many seconds ago."""
    devices = device_plugins(*things, kubelet_socket=seconds(kubelet), checkpoint_written=seconds(written))
    return node(device_plugins=devices, **others)


def late(snapshot: Snapshot) -> Finding:
    (one,) = found(late_device_plugin, snapshot)
    return one


def test_a_plugin_has_a_minute_to_notice_that_the_kubelet_restarted() -> None:
    assert found(late_device_plugin, look(registered(KVM, "d0"), kubelet=59)) == []
    one = late(look(registered(KVM, "d0"), kubelet=61))
    assert (one.subject, one.resource, one.since) == (KVM, KVM, NOW - seconds(61))
    assert "the kubelet started 1m1s ago" in one.message
    assert "drops it after 5 minutes" in one.message


def test_a_plugin_that_has_registered_again_is_not_late() -> None:
    seen = look(plugin_socket(ago=seconds(890)), registered(KVM, "d0"), kubelet=900, written=889)
    assert found(late_device_plugin, seen) == []


def test_after_five_minutes_the_kubelet_has_dropped_it_and_the_node_says_so() -> None:
    told = [replace(WORKER, devices=(NodeDevices(KVM, 0, 0),))]
    asking = [refused_pod("lab/vm")]
    one = late(look(registered("nvidia.com/gpu", "g0"), kubelet=400, written=90, node=told, pods=asking))
    assert one.subject == KVM
    assert "the kubelet no longer offers it, and the node's status has capacity 0, allocatable 0" in one.message


def test_without_the_api_server_it_says_what_files_say() -> None:
    seen = without_api(look(registered(KVM, "d0"), kubelet=400))
    assert late(seen).message.endswith("the kubelet no longer offers it")


def test_an_unread_node_is_admitted_after_what_files_say() -> None:
    findings = late_device_plugin.find(assessment(without(look(registered(KVM, "d0"), kubelet=400), "node")))
    assert next(findings).subject == KVM
    with pytest.raises(InsufficientData):
        next(findings)


def test_what_earlier_looks_knew_is_awaited_though_the_checkpoint_is_gone() -> None:
    history = (
        transition(TransitionKind.KUBELET_STARTED, ago=seconds(9000)),
        transition(TransitionKind.REGISTERED, KVM),
    )
    devices = device_plugins(*history, kubelet_socket=seconds(100))
    assert late(node(device_plugins=devices)).subject == KVM


def test_what_was_dropped_before_the_kubelet_started_is_not_awaited() -> None:
    """Somebody took the plugin away; the node's status keeps the key for ever."""
    history = (transition(TransitionKind.KUBELET_STARTED, ago=seconds(9000)), transition(TransitionKind.DROPPED, KVM))
    told = [replace(WORKER, devices=(NodeDevices(KVM, 0, 0),))]
    devices = device_plugins(*history, kubelet_socket=seconds(100))
    assert found(late_device_plugin, node(device_plugins=devices, node=told)) == []


def test_devices_that_are_all_sick_are_another_trouble() -> None:
    """Their plugin is connected, or the kubelet would have dropped it."""
    connected = look(plugin_socket(ago=seconds(200)), registered(KVM), kubelet=210, written=199)
    assert found(late_device_plugin, connected) == []
    untold = plugin_socket(ago=seconds(800), connected=None)
    assert found(late_device_plugin, look(untold, registered(KVM), kubelet=900, written=799)) == []
    assert late(look(untold, registered(KVM), kubelet=100, written=50)).subject == KVM


@pytest.mark.parametrize(
    ("connected", "words"), [(False, "the kubelet is not connected to its plugin's socket"), (None, "exists;")]
)
def test_what_is_seen_of_its_socket_is_said(connected: bool | None, words: str) -> None:
    seen = look(plugin_socket(ago=seconds(90), connected=connected), registered(KVM, "d0"), kubelet=100)
    assert words in late(seen).message


def test_a_socket_that_is_gone_is_said_to_be() -> None:
    history = (
        transition(TransitionKind.SOCKET_APPEARED, socket=KVM_SOCKET),
        transition(TransitionKind.REGISTERED, KVM),
    )
    assert (
        f"its plugin's socket {KVM_SOCKET} is gone" in late(look(*history, registered(KVM, "d0"), kubelet=100)).message
    )


def test_a_plugin_that_was_lost_later_has_a_minute_as_well() -> None:
    def lost(ago: float) -> Snapshot:
        history = (
            transition(TransitionKind.KUBELET_STARTED, ago=seconds(9000)),
            transition(TransitionKind.REGISTERED, KVM, ago=seconds(8990)),
            transition(TransitionKind.LOST, KVM, ago=seconds(ago)),
        )
        dead = plugin_socket(ago=seconds(8991), connected=False)
        return look(*history, dead, registered(KVM, "d0"), kubelet=9000, written=8990)

    assert found(late_device_plugin, lost(59)) == []
    assert "and lost it at" in late(lost(61)).message


def test_a_finding_stays_the_same_from_look_to_look() -> None:
    def after(n: float) -> Snapshot:
        devices = device_plugins(registered(KVM, "d0"), kubelet_socket=seconds(100))
        return node(device_plugins=devices, later=seconds(n))

    assert {late(after(n)).key for n in (0, 15, 300)} == {(late_device_plugin.NAME, KVM)}


def test_a_kubelet_that_has_not_started_since_the_boot_awaits_nobody() -> None:
    seen = replace(look(registered(KVM, "d0"), kubelet=900), uptime=seconds(300))
    assert found(late_device_plugin, seen) == []


def test_it_is_blind_where_the_plugins_were_not_read_and_by_choice_where_they_were_left_alone() -> None:
    with pytest.raises(InsufficientData):
        found(late_device_plugin, node(device_plugins=unavailable("device_plugins")))
    with pytest.raises(SourceDisabled):
        found(late_device_plugin, node(device_plugins=NotRequested("device_plugins", "no such directory")))

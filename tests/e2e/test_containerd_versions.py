"""Leaks and churn on real containerd 1.6, 1.7 and 2 of Debian, each in namespaces of its own, without a cluster."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from ipaddress import ip_address
from threading import Event
from typing import Any

import pytest

from agent.sources.runtime.cri import Cri
from agent.sources.source_error import SourceError
from tests.containerd.failure import CannotRun
from tests.containerd.node import NODELEAK, SLOWED, ContainerdNode, containerd_node
from tests.containerd.packages import VERSIONS, unpacked
from tests.wire import needs, until

from .agent import Cleaned, Report

pytestmark = pytest.mark.e2e

_NETWORK = ("--network=pods", "--grace=0s", "--confirm-after=1ms")
_CLEANING = (*_NETWORK, "--cleanup-network=pods", "--settle=0s", "--max-share=100%")
_NO_API = {"NODELEAK_API": "off"}
_SECONDS = 12
_WORKERS = 4

Start = Callable[..., ContainerdNode]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a node with a version of containerd."""
    with ExitStack() as nodes:

        def started(family: str, **options: Any) -> ContainerdNode:
            try:
                return nodes.enter_context(containerd_node(unpacked(family), **options))
            except CannotRun as error:
                needs(False, str(error))
                raise

        yield started


def scan(node: ContainerdNode) -> Report:
    out = node.run(str(NODELEAK), "scan", "-o", "json", *_NETWORK, env=_NO_API)
    return Report(0, json.loads(out))


def clean(node: ContainerdNode) -> Cleaned:
    out = node.run(str(NODELEAK), "clean", "-o", "json", "--apply", *_CLEANING, env=_NO_API)
    return Cleaned(0, json.loads(out), 0.0, 0)


def leaked(node: ContainerdNode) -> set[str]:
    """Return the leaked addresses; the findings must name the same ones."""
    report = scan(node)
    found = {ip for ip, state in report.states.items() if state == "leaked"}
    assert set(report.subjects("leaked_reservation")) == {f"pods/{ip}" for ip in found}
    return found


def address_of(node: ContainerdNode, sandbox: str) -> str:
    (ip,) = (ip for ip, owner in node.reserved.items() if owner == sandbox)
    assert node.kubelet.address(sandbox) == ip
    return ip


def released(cleaned: Cleaned) -> set[str]:
    assert set(cleaned.verdicts.values()) <= {"released"}, cleaned.addresses
    return set(cleaned.verdicts)


def test_a_containerd_that_is_killed_during_add_leaks_the_address(start: Start) -> None:
    node = start("1.7")  # from 1.7.23 to 1.7.30
    kept = node.kubelet.run("kept")
    node.turn(after_add="3")
    with ThreadPoolExecutor(1) as background:
        failing = background.submit(node.kubelet.run, "killed")
        until(lambda: len(node.reserved) == 2, "host-local reserves the address")
        (ip,) = (ip for ip, sandbox in node.reserved.items() if sandbox != kept)
        assert scan(node).states[ip] in {"in_use", "not_ready"}, "it is being created"
        node.kill_containerd()
        assert isinstance(failing.exception(10), SourceError)
    until(lambda: not node.plugins_running(), "host-local survives containerd and ends")
    node.turn(after_add=None)
    node.start_containerd()
    assert leaked(node) == set(), "the sandbox is listed until the kubelet removes it"
    node.collect(keep=[kept])

    assert leaked(node) == {ip}, "its removal did not run DEL"
    assert released(clean(node)) == {ip}
    assert set(node.reserved.values()) == {kept}


@pytest.mark.parametrize(("family", "cached"), [("1.6", True), ("1.7", False)])
def test_a_deleted_record_leaves_a_namespace_that_keeps_its_address(start: Start, family: str, cached: bool) -> None:
    node = start(family)
    kept, lost = node.kubelet.run("kept"), node.kubelet.run("lost")
    ip, namespace = address_of(node, lost), node.namespace_of(lost)
    node.lose_record(lost)
    node.kill_containerd()
    node.start_containerd()
    assert lost not in node.kubelet.sandboxes()
    assert namespace in node.mounted_namespaces()
    if not cached:
        node.forget_result(lost)

    assert (ip in leaked(node)) is not cached, "without libcni's cache only the probe can tell"
    refused = clean(node).addresses[ip]
    assert refused["reason"] == "address_in_use"
    assert (namespace if cached else "answers on cni0") in refused["why"]
    node.run("ip", "netns", "delete", namespace)
    node.run("ip", "neigh", "flush", "dev", "cni0")  # otherwise the kernel believes for up to a minute that it is there
    assert leaked(node) == {ip}
    assert released(clean(node)) == {ip}
    assert set(node.reserved.values()) == {kept}


def test_a_chain_that_fails_in_add_and_del_leaks_an_address_at_each_attempt(start: Start) -> None:
    node = start("2", chained=[{"type": "failing"}])
    kept = node.kubelet.run("kept")
    node.turn(fail="")
    for attempt in range(3):
        with pytest.raises(SourceError, match="made to fail"):
            node.kubelet.run(f"failing-{attempt}")
    node.turn(fail=None)
    node.collect(keep=[kept])

    expected = {ip for ip, sandbox in node.reserved.items() if sandbox != kept}
    assert len(expected) == 3
    assert leaked(node) == expected
    assert released(clean(node)) == expected
    assert set(node.reserved.values()) == {kept}


@pytest.mark.parametrize("family", VERSIONS)
def test_a_plugin_that_survives_its_deadline_leaks_again_and_again(start: Start, family: str) -> None:
    """Its parent is killed and DEL has run when it reserves the address. No record comes back, so nothing is halted."""
    node = start(family)
    kept = node.kubelet.run("kept")
    for attempt in range(2):
        node.turn(before_add="4")
        with pytest.raises(SourceError):
            node.kubelet.run(f"late-{attempt}", timeout=1.5)
        node.turn(before_add=None)
        node.collect(keep=[kept])
        assert set(node.reserved.values()) == {kept}
        until(lambda: len(node.reserved) == 2, "host-local reserves the address")
        until(lambda: not node.plugins_running(), "host-local ends")

        expected = {ip for ip, sandbox in node.reserved.items() if sandbox != kept}
        assert leaked(node) == expected
        assert released(clean(node)) == expected
        assert set(node.reserved.values()) == {kept}


@pytest.mark.parametrize("family", VERSIONS)
def test_both_addresses_of_a_sandbox_are_leaked_and_released_together(start: Start, family: str) -> None:
    node = start(family, subnet6="fd00:231::/112")
    kept, lost = node.kubelet.run("kept"), node.kubelet.run("lost")
    expected, namespace = {ip for ip, sandbox in node.reserved.items() if sandbox == lost}, node.namespace_of(lost)
    assert {ip_address(ip).version for ip in expected} == {4, 6}
    assert leaked(node) == set()
    node.lose_record(lost)
    node.kill_containerd()
    node.start_containerd()
    node.run("ip", "netns", "delete", namespace)
    for version in ("-4", "-6"):
        node.run("ip", version, "neigh", "flush", "dev", "cni0")

    assert leaked(node) == expected
    assert released(clean(node)) == expected
    assert list(node.reserved.values()) == [kept, kept]


@pytest.mark.parametrize("family", VERSIONS)
def test_a_network_that_is_renamed_under_running_pods_leaks_their_addresses(start: Start, family: str) -> None:
    node = start(family)
    before = [node.kubelet.run(f"pod-{number}") for number in range(3)]
    addresses = {address_of(node, sandbox): sandbox for sandbox in before}
    node.configure_network("other", addresses=("10.231.0.100", "10.231.0.200"))
    until(lambda: _networks(node) == ["other"], "containerd loads the network")
    assert set(scan(node).states.values()) == {"in_use"}
    for sandbox in before[1:]:
        node.kubelet.stop(sandbox)
        node.kubelet.remove(sandbox)

    expected = {ip for ip, sandbox in addresses.items() if sandbox != before[0]}
    assert leaked(node) == expected, "DEL ran in the other network"
    assert released(clean(node)) == expected
    assert set(node.reserved.values()) == {before[0]}


@pytest.mark.parametrize("family", VERSIONS)
def test_sandboxes_that_come_and_go_have_an_owner_in_every_snapshot(start: Start, family: str) -> None:
    node, over = start(family), Event()
    node.turn(**{name.replace("-", "_"): seconds for name, seconds in SLOWED.items()})

    def work(worker: int) -> int:
        made = 0
        while not over.is_set():
            sandbox = node.kubelet.run(f"worker-{worker}-{made}")
            node.kubelet.stop(sandbox)
            node.kubelet.remove(sandbox)
            made += 1
        return made

    with ThreadPoolExecutor(_WORKERS) as workers:
        working = [workers.submit(work, number) for number in range(_WORKERS)]
        try:
            observer = (sys.executable, "-m", "tests.containerd.observer", str(_SECONDS))
            found = json.loads(node.run(*observer, env={**_NO_API, "NODELEAK_NETWORK": "pods"}))
        finally:
            over.set()
        made = sum(one.result() for one in working)

    assert found["wrong"] == 0, found
    assert found["states"].keys() >= {"in_use", "not_ready"}, found
    # Otherwise too little happened to show anything.
    assert found["looks"] > 20, found
    assert found["unlisted"] > 5, found
    assert made > 5
    assert node.reserved == {}


def _networks(node: ContainerdNode) -> list[str]:
    loaded = Cri(node.kubelet.socket, 10.0, time.perf_counter).networks().loaded
    assert loaded is not None
    return [str(network["name"]) for network in loaded]

"""Leaks and churn on real containerd 1.6, 1.7 and 2 of Debian, each in namespaces of its own, without a cluster."""

import json
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
from tests.containerd.node import ContainerdNode, containerd_node
from tests.containerd.packages import VERSIONS, CannotRun, unpacked
from tests.wire import needs, until

from .node import eventually
from .nodeleak import NODELEAK, Cleaned, Report, release

pytestmark = pytest.mark.e2e

_NETWORK = ("--network=pods", "--grace=0s", "--confirm-after=1ms", "--api=off")
_CLEANING = (*_NETWORK, "--cleanup-network=pods", "--settle=0s", "--max-share=100%")
_SLOWED = {"before_add": "0.1", "after_add": "0.1", "before_del": "0.05", "after_del": "0.05"}
"""Seconds that host-local sleeps: a sandbox is in the middle of being created for longer than a snapshot takes."""
_LOOKS, _WORKERS = 20, 4

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
    return Report(0, json.loads(node.run(str(NODELEAK), "scan", "-o", "json", *_NETWORK)))


def clean(node: ContainerdNode) -> Cleaned:
    return Cleaned(
        0, json.loads(node.run(str(NODELEAK), "clean", "-o", "json", "--apply", *_CLEANING))
    )


def check_leaks(node: ContainerdNode, expected: set[str], *kept: str) -> None:
    """Check that these addresses are leaked, that findings name the same ones, and that only they are released."""
    eventually(lambda: leaked(node), equal=expected)
    release(lambda: clean(node), expected)
    assert {*node.reserved.values()} == {*kept}


def leaked(node: ContainerdNode) -> set[str]:
    report = scan(node)
    assert report.subjects("leaked_reservation").keys() == {
        f"pods/{ip}" for ip in report.having("leaked")
    }
    return report.having("leaked")


def lose(node: ContainerdNode, sandbox: str) -> str:
    """Delete the records of a running sandbox; return the namespace that is left of it."""
    namespace = node.namespace_of(sandbox)
    node.lose_record(sandbox)
    node.kill_containerd()
    node.start_containerd()
    assert sandbox not in node.kubelet.sandboxes()
    assert namespace in node.run("ls", "/run/netns").split()
    return namespace


def delete_namespace(node: ContainerdNode, namespace: str) -> None:
    node.run("ip", "netns", "delete", namespace)
    for version in (
        "-4",
        "-6",
    ):  # otherwise the kernel believes for up to a minute that it is there
        node.run("ip", version, "neigh", "flush", "dev", "cni0")


def test_a_containerd_that_is_killed_during_add_leaks_the_address(start: Start) -> None:
    node = start("1.7")  # from 1.7.23 to 1.7.30
    kept = node.kubelet.run("kept")
    node.turn(hold_after_add="until containerd is dead")
    with ThreadPoolExecutor(1) as background:
        failing = background.submit(node.kubelet.run, "killed")
        until(lambda: len(node.reserved) == 2, "host-local reserves the address")
        (ip,) = node.not_of(kept)
        assert scan(node).states[ip] in {"in_use", "not_ready"}, "it is being created"
        node.kill_containerd()
        assert isinstance(failing.exception(), SourceError)
    node.turn(hold_after_add=None)
    until(lambda: not node.plugins_running(), "host-local survives containerd and ends")
    node.start_containerd()
    assert leaked(node) == set(), "the sandbox is listed until the kubelet removes it"
    node.collect(keep=[kept])
    check_leaks(node, {ip}, kept)  # its removal did not run DEL


def test_a_deleted_record_leaves_a_namespace_that_keeps_its_address(start: Start) -> None:
    for family, cached in (("1.6", True), ("1.7", False)):
        node = start(family)
        kept, lost = node.kubelet.run("kept"), node.kubelet.run("lost")
        (ip,) = node.not_of(kept)
        assert node.kubelet.address(lost) == ip
        namespace = lose(node, lost)
        if not cached:
            node.forget_result(lost)

        assert (ip in leaked(node)) is not cached, "without libcni's cache only the probe can tell"
        refused = clean(node).addresses[ip]
        assert refused["reason"] == "address_in_use"
        assert (namespace if cached else "answers on cni0") in refused["why"]
        delete_namespace(node, namespace)
        check_leaks(node, {ip}, kept)


def test_a_chain_that_fails_in_add_and_del_leaks_an_address_at_each_attempt(start: Start) -> None:
    node = start("2", chained=[{"type": "failing"}])
    kept = node.kubelet.run("kept")
    node.turn(fail="")
    for attempt in range(3):
        with pytest.raises(SourceError, match="made to fail"):
            node.kubelet.run(f"failing-{attempt}")
    node.turn(fail=None)
    node.collect(keep=[kept])
    assert len(node.not_of(kept)) == 3
    check_leaks(node, node.not_of(kept), kept)


@pytest.mark.parametrize("family", VERSIONS)
def test_a_plugin_that_survives_its_deadline_leaks_again_and_again(
    start: Start, family: str
) -> None:
    """Its parent is killed and DEL has run when it reserves the address. No record comes back, so nothing is halted."""
    node = start(family)
    kept = node.kubelet.run("kept")
    for attempt in range(2):
        node.turn(hold_before_add="until DEL has run")
        _let_a_deadline_pass(node, f"late-{attempt}")
        node.collect(keep=[kept])
        assert node.not_of(kept) == set()
        node.turn(hold_before_add=None)
        until(lambda: len(node.reserved) == 2, "host-local reserves the address")
        until(lambda: not node.plugins_running(), "host-local ends")
        check_leaks(node, node.not_of(kept), kept)


def _let_a_deadline_pass(node: ContainerdNode, name: str) -> None:
    """Ask for a sandbox until a deadline has passed while the ADD waited, and DEL has run."""
    node.turn(held=None)
    for timeout in (1.5, 6.0, 24.0, 96.0):  # a busy machine may not have come to the ADD
        with pytest.raises(SourceError):
            node.kubelet.run(f"{name}-{timeout:.0f}", timeout=timeout)
        if node.held():
            until(lambda: node.deleted(node.held()), "DEL runs", 60)
            return
    pytest.fail("no ADD began")


@pytest.mark.parametrize("family", VERSIONS)
def test_both_addresses_of_a_sandbox_and_those_of_a_renamed_network_leak(
    start: Start, family: str
) -> None:
    node = start(family, subnet6="fd00:231::/112")
    kept, lost = node.kubelet.run("kept"), node.kubelet.run("lost")
    expected = node.not_of(kept)
    assert {ip_address(ip).version for ip in expected} == {4, 6}
    assert leaked(node) == set()
    delete_namespace(node, lose(node, lost))
    check_leaks(node, expected, kept)

    removed = node.kubelet.run("removed")
    expected = node.not_of(kept)
    assert len(expected) == 2
    node.configure_network("other")
    until(lambda: _networks(node) == ["other"], "containerd loads the network")
    assert set(scan(node).states.values()) == {"in_use"}
    node.kubelet.stop(removed)
    node.kubelet.remove(removed)
    check_leaks(node, expected, kept)  # DEL ran in the other network


@pytest.mark.parametrize("family", VERSIONS)
def test_sandboxes_that_come_and_go_have_an_owner_in_every_snapshot(
    start: Start, family: str
) -> None:
    node, over = start(family), Event()
    node.turn(**_SLOWED)

    def work(worker: int) -> int:
        made = 0
        while not over.is_set():
            sandbox = node.kubelet.run(f"worker-{worker}-{made}")
            node.kubelet.stop(sandbox)
            node.kubelet.remove(sandbox)
            made += 1
        return made

    with ThreadPoolExecutor(_WORKERS + 2) as threads:
        working = [threads.submit(work, number) for number in range(_WORKERS)]
        try:
            looking = [threads.submit(scan, node) for _ in range(_LOOKS)]
            reports = [look.result() for look in looking]
        finally:
            over.set()
        made = sum(worker.result() for worker in working)

    assert [report.document for report in reports if report.findings or report.unavailable] == []
    reserved = [found for report in reports for found in report.document["reservations"]]
    # host-local creates a file and then writes it, so an empty one is about to be written.
    states = {found["state"] for found in reserved if found["container_id"]}
    assert states <= {"in_use", "not_ready"}
    # Otherwise too little happened to show anything.
    assert "not_ready" in states
    assert sum(found["why"].endswith("recorded but not listed") for found in reserved) > 3
    assert made > 5
    assert node.reserved == {}


def _networks(node: ContainerdNode) -> list[str]:
    loaded = Cri(node.kubelet.socket, 10.0, time.perf_counter).networks().loaded
    assert loaded is not None
    return [str(network["name"]) for network in loaded]

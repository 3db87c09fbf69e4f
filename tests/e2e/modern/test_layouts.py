"""The networks of the distributions: a range that leaks fill until no pod can run, ghosts, a release, a restore."""

from collections.abc import Iterator
from typing import Final

import pytest

from tests.e2e.node import eventually
from tests.e2e.nodeleak import release
from tests.wire import only_with

from .layouts import LAYOUTS, MACVLAN, Layout
from .networks import configured
from .node import ModernNode

pytestmark = pytest.mark.e2e
_PODS: Final = 4
_EAGER: Final = ("--grace=0s", "--confirm-after=1ms")
_LEAKS: Final = "records"  # As `wipe`, without libcni's cached results, so that CRI-O does not repair it at its start


_MARKS: Final = {
    "kubeadm": pytest.mark.every_runtime,
    "crio": pytest.mark.every_runtime,
    "k3s": pytest.mark.k3s,
}
_PARAMS: Final = [pytest.param(one, id=one.name, marks=_MARKS.get(one.name, ())) for one in LAYOUTS]
_OF_EACH_PLUGIN: Final = [
    pytest.param(one, id=one.name, marks=[pytest.mark.k3s] if one.name == "k3s" else ())
    for one in LAYOUTS
    if one.name in {"kubeadm", "k3s", "rke2", "gke", "crio"}
]
"""Flannel (and that of k3s), Calico's plugin, ptp, bridge with two families."""


@pytest.fixture
def layout(request: pytest.FixtureRequest, node: ModernNode) -> Iterator[Layout]:
    chosen: Layout = request.param
    with configured(node, chosen):
        yield chosen


@pytest.mark.parametrize("layout", _PARAMS, indirect=True)
def test_leaks_fill_the_range_and_are_released(node: ModernNode, layout: Layout) -> None:
    names = node.ask_for(_PODS)
    node.ready(names)
    healthy = node.scan()
    assert {finding["detector"] for finding in healthy.findings} <= {"exhausted_range"}, (
        "one address is left"
    )
    assert set(healthy.states.values()) == {"in_use"}
    assert healthy.network["name"] == layout.network

    node.leak(_LEAKS)
    planted: set[str] = set()
    eventually(lambda: _fill(node, layout, names, {*healthy.states}, planted))
    node.leak(_LEAKS)  # nothing is free now, so no pod runs any more
    eventually(lambda: [name for name in names if node.pod(name)["status"].get("podIP")], equal=[])
    leaked = eventually(lambda: _all_leaked(node, layout))
    assert len(leaked) >= _PODS
    released = release(lambda: node.clean("--apply"), leaked)
    node.ready(names)
    now = eventually(lambda: _all_in_use(node, {*healthy.states}))

    free = min(ip for ip in released - now if "." in ip)
    node.nodeleak.restore(free, "--apply", wrapped=node.inside)
    restored = node.scan(*_EAGER).having("leaked")  # dual stack: both
    assert free in restored <= released
    again = node.clean("--apply", *(f"--ip={ip}" for ip in restored)).verdicts
    assert {again[ip] for ip in restored} == {"released"}


@pytest.mark.usefixtures("layout")
@pytest.mark.parametrize("layout", _OF_EACH_PLUGIN, indirect=True)
def test_addresses_of_namespaces_that_are_still_mounted_are_not_released(node: ModernNode) -> None:
    # CRI-O frees at its start what libcni's cache names, and its namespace with it. Docker's namespaces lie in
    # /run/docker, and are lost with its state.
    only_with(node.profile in {"containerd", "k3s"}, "a runtime whose namespaces outlive its state")
    names = node.ask_for(2)
    node.ready(names)
    before = set(node.scan().states)
    node.leak("ghosts")
    node.kubectl("delete", "pods", *names, "--grace-period=0", "--force")
    eventually(lambda: before - node.scan(*_EAGER).having("unmanaged"), equal=set())
    assert "released" not in node.clean("--apply").verdicts.values()
    node.run(
        "rm", "-rf", "/var/lib/cni/results", "/var/lib/cni/cache"
    )  # now only the addresses themselves tell
    assert "released" not in node.clean("--apply").verdicts.values()
    node.run("sh", "-c", "awk '$3 == \"nsfs\" {print $2}' /proc/mounts | xargs -r umount")
    left = before & node.scan(*_EAGER).states.keys()
    release(lambda: node.clean("--apply"), left)


def test_addresses_of_macvlan_stay_while_a_namespace_of_an_unknown_sandbox_is_mounted(
    node: ModernNode,
) -> None:
    """The node asks on its own link, where nobody answers it: only the configuration tells that this proves nothing."""
    only_with(node.profile == "containerd", "a runtime whose namespaces outlive its state")
    with configured(node, MACVLAN):
        names = node.ask_for(2)
        node.ready(names)
        node.leak("ghosts")
        node.kubectl("delete", "pods", *names, "--grace-period=0", "--force")
        node.run("rm", "-rf", "/var/lib/cni/results", "/var/lib/cni/cache")
        leaked = eventually(lambda: _some_leaked(node))
        verdicts = node.clean("--apply").verdicts
        assert {verdicts[ip] for ip in leaked} == {"probe_unanswered"}
        node.run("sh", "-c", "awk '$3 == \"nsfs\" {print $2}' /proc/mounts | xargs -r umount")
        release(lambda: node.clean("--apply"), leaked)


def _fill(
    node: ModernNode, layout: Layout, names: list[str], before: set[str], planted: set[str]
) -> None:
    """Wait until the pods have the addresses that they can get, and plant leaks in what is left.

    An address that is reserved for a pod without one may be free again: an ADD that ends with its
    runtime, or that fails later, gives it back.
    """
    taken = {name for name in node.run("ls", layout.directory).split() if name.count(".") == 3}
    new = taken - before - planted
    told = {node.pod(name)["status"].get("podIP") for name in names}
    assert new <= told, (new, told)
    assert len(new) == min(_PODS, layout.size - _PODS), (taken, before)
    if layout.uses_pod_cidr:
        for _ in range(layout.size - len(taken)):
            planted.update(node.reserve(1))


def _all_leaked(node: ModernNode, layout: Layout) -> set[str]:
    report = node.scan(*_EAGER, codes=(0, 3))
    assert set(report.states.values()) == {"leaked"}, (report.states, report.unavailable)
    assert report.network["free"] == 0
    assert report.subjects("exhausted_range")[layout.network]["severity"] == "critical"
    return report.having("leaked")


def _some_leaked(node: ModernNode) -> set[str]:
    leaked = node.scan(*_EAGER).having("leaked")
    assert leaked
    return leaked


def _all_in_use(node: ModernNode, before: set[str]) -> set[str]:
    """Return the addresses: as many as before the leaks."""
    states = node.scan(*_EAGER).states
    assert list(states.values()) == ["in_use"] * len(before), states
    return set(states)

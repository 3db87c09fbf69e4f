"""A CNI plugin fails in ADD and in DEL: each retry of a pod takes another address, and nothing gives it back."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import pytest

from tests.e2e.node import eventually, pod_with
from tests.e2e.nodeleak import BOLD
from tests.wire import only_with

from .layouts import LAYOUTS
from .networks import allowed, configured
from .node import ModernNode

pytestmark = [pytest.mark.e2e]
_PODS: Final = 3
_EAGER: Final = ("--grace=0s", "--confirm-after=1ms")
_PTP: Final = next(layout for layout in LAYOUTS if layout.name == "gke")
"""Not with cniVersion 1.1.0: containerd asks each plugin for its STATUS then, and starts no pod if one is missing."""


@contextmanager
def _no_binary(node: ModernNode) -> Iterator[None]:
    """The chain names a plugin that is not installed."""
    plugin = node.plugins / "portmap"
    away = plugin.rename(node.plugins / "away")
    try:
        yield
    finally:
        away.rename(plugin)


@contextmanager
def _no_iptables(node: ModernNode) -> Iterator[None]:
    """As on RKE2's nodes where iptables was not installed: portmap fails for a pod with a host port."""
    programs = node.run(
        "sh", "-c", "ls /usr/sbin/iptables /usr/sbin/ip6tables /usr/sbin/nft 2>/dev/null; true"
    ).split()
    for program in programs:
        node.run("mount", "--bind", "/dev/null", program)
    try:
        yield
    finally:
        for program in programs:
            node.run("umount", "-l", program)  # who tried it may have it open


_BROKEN: Final = """#!/bin/sh
[ "$CNI_COMMAND" != VERSION ] || exec "$0.real"
echo '{"cniVersion": "0.3.1", "code": 100, "msg": "broken"}'
exit 1
"""


def _broken(node: ModernNode) -> AbstractContextManager[None]:
    """A plugin that refuses whatever it is asked."""
    return node.replaced_plugin("portmap", _BROKEN)


@pytest.mark.parametrize(
    ("failing", "says", "runtimes"),
    [
        (
            _no_binary,
            'failed to find plugin "portmap"',
            {"containerd"},
        ),  # CRI-O does not load such a configuration
        (_no_iptables, "iptables", {"containerd"}),  # CRI-O does host ports itself
        pytest.param(_broken, "broken", {"containerd", "crio"}, marks=pytest.mark.every_runtime),
    ],
    ids=["missing binary", "no iptables", "broken"],
)
def test_the_plugin_is_named_before_the_leaks_that_it_makes(
    node: ModernNode, failing: Any, says: str, runtimes: set[str]
) -> None:
    only_with(node.profile in runtimes, "a runtime that loses an address then")
    with allowed(node), configured(node, _PTP):
        with failing(node):
            names = _ask_for(node, _PODS)
            eventually(lambda: _is_told(node, says))
            before = node.reserved()
            with node.daemon(
                "--cleanup=auto", "--interval=2s", *BOLD, "--confirm-after=1ms"
            ) as daemon:
                eventually(
                    lambda: (
                        daemon.metrics()
                        .by("reason", "releases_refused_total")
                        .get("plugin_failing", 0)
                        > 0
                    ),
                    equal=True,
                )
            assert before.items() <= node.reserved().items()
        eventually(lambda: _release_for(node, names))
        eventually(lambda: _detectors(node) - {"exhausted_range"}, equal=set())


def _ask_for(node: ModernNode, count: int) -> list[str]:
    pods = [
        pod_with(node.cluster, f"e2e-{node.profile}-failing-{number}") for number in range(count)
    ]
    for number, pod in enumerate(pods):
        (container,) = pod["spec"]["containers"]
        container["ports"] = [{"containerPort": 80, "hostPort": 8080 + number}]
    node.cluster.apply(*pods)
    return [pod["metadata"]["name"] for pod in pods]


def _is_told(node: ModernNode, says: str) -> None:
    report = node.scan(*_EAGER, codes=(0, 3))
    found = report.subjects("failing_plugin")
    assert found, (report.states, report.unavailable)
    (finding,) = found.values()
    assert "portmap" in finding["message"], finding
    assert says in finding["message"], finding
    assert finding["severity"] == "critical"


def _release_for(node: ModernNode, names: list[str]) -> None:
    """Release what can be released now, until the pods run."""
    cleaned = node.clean("--apply", codes=(0, 3, 4, 6))
    assert {name for name in names if not node.is_ready(name)} == set(), cleaned.verdicts


def _detectors(node: ModernNode) -> set[str]:
    return {finding["detector"] for finding in node.scan("--grace=0s").findings}

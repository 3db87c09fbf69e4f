"""An ADD outlives its runtime: its IPAM plugin has reserved an address, hangs, and may yet give it to the pod."""

from collections.abc import Iterator
from typing import Final

import pytest

from tests.e2e.node import eventually

from .node import ModernNode

pytestmark = [pytest.mark.e2e, pytest.mark.every_runtime]
_HANGING: Final = """#!/bin/sh
"$0.real"
code=$?
[ "$CNI_COMMAND" != ADD ] || sleep 600
exit $code
"""
_PLUGINS: Final = "host-local|bridge"


@pytest.fixture
def _hanging_host_local(node: ModernNode) -> Iterator[None]:
    """Replace host-local on the node: after it has reserved an address, it hangs.

    A pod runs before: without a bridge no address can be probed, and none is released beside a namespace of nobody.
    """
    node.pods(1)
    try:
        with node.replaced_plugin("host-local", _HANGING):
            yield
    finally:
        _end_plugins(node)
        node.clear()
        node.reboot()  # nobody else removes the namespace of an ADD that has lost its runtime


@pytest.mark.usefixtures("_hanging_host_local")
def test_an_address_is_not_released_while_a_plugin_may_give_it_to_a_pod(node: ModernNode) -> None:
    before = node.reserved()
    (name,) = node.ask_for(1)
    eventually(lambda: len(node.reserved().keys() - before), equal=1)
    (ip,) = node.reserved().keys() - before
    node.run("pkill", "-KILL", "-x", node.profile)
    node.kubectl("delete", "pod", name, "--grace-period=0", "--force")
    node.start()
    assert node.run("pgrep", "-x", _PLUGINS).split(), "the plugins have ended with their runtime"

    verdict = eventually(lambda: node.clean("--apply", codes=(0, 3, 6)).verdicts.get(ip, ""))
    # Other runtimes than CRI-O still have a record of the sandbox.
    assert verdict == "plugin_at_work" if node.profile == "crio" else verdict != "released"

    _end_plugins(node)
    eventually(lambda: _is_free(node, ip))


def _is_free(node: ModernNode, ip: str) -> None:
    cleaned = node.clean("--apply", codes=(0, 3, 6))
    assert ip not in node.reserved(), cleaned.document


def _end_plugins(node: ModernNode) -> None:
    node.run("pkill", "-KILL", "-x", _PLUGINS, codes=(0, 1))

"""Pods wait, or should be gone, for reasons other than a leak: the first screen says which, and a way out."""

import json
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Final

import pytest

from tests.e2e.node import eventually, pod_with
from tests.e2e.nodeleak import Report
from tests.wire import only_with

from .layouts import CIDR, LAYOUTS, Layout
from .networks import allowed, configured
from .node import ModernNode

pytestmark = pytest.mark.e2e
_EAGER: Final = ("--grace=0s", "--confirm-after=1ms")
_FLANNEL: Final = next(layout for layout in LAYOUTS if layout.name == "kubeadm")
_BRIDGE: Final = next(layout for layout in LAYOUTS if layout.name == "cni-1.1")
_OTHER_RANGE: Final = "10.99.7.0/24"

Fault = Callable[[ModernNode], AbstractContextManager[None]]


@contextmanager
def _bridge_with_another_address(node: ModernNode) -> Iterator[None]:
    """As after the node was given another pod CIDR."""
    node.run("sh", "-c", "ip link add cni0 type bridge 2>/dev/null; ip addr flush dev cni0")
    node.run("ip", "addr", "add", "10.99.0.1/24", "dev", "cni0")
    node.run("ip", "link", "set", "cni0", "up")
    try:
        yield
    finally:
        node.run("ip", "link", "delete", "cni0")


@contextmanager
def _no_subnet_env(node: ModernNode) -> Iterator[None]:
    """As after a boot, until flannel's daemon has started."""
    file = "/run/flannel/subnet.env"
    content = node.run("cat", file)
    node.run("rm", file)
    try:
        yield
    finally:
        node.write(file, content)


@contextmanager
def _no_configuration(node: ModernNode) -> Iterator[None]:
    """As until the DaemonSet of the cluster's CNI has written its file."""
    files = {path: path.read_text() for path in node.net_d.iterdir() if path.is_file()}
    for path in files:
        path.unlink()
    try:
        yield
    finally:
        for path, content in files.items():
            new = path.with_suffix(".new")
            new.write_text(content)
            new.rename(path)


@contextmanager
def _empty_first_file(node: ModernNode) -> Iterator[None]:
    """As after a power failure while an installer wrote it."""
    new = node.net_d / "00-empty.new"
    new.touch()
    file = new.rename(node.net_d / "00-empty.conflist")
    try:
        yield
    finally:
        file.unlink()
        _reload(node)


@contextmanager
def _full_disk(node: ModernNode) -> Iterator[None]:
    """A small tmpfs stands for a full disk."""
    node.run("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/var/lib/cni")
    node.run("sh", "-c", "head -c 1m /dev/zero >/var/lib/cni/full 2>/dev/null; true")
    try:
        yield
    finally:
        node.run("umount", "-l", "/var/lib/cni")


@contextmanager
def _no_bridge_plugin(node: ModernNode) -> Iterator[None]:
    plugin = node.plugins / "bridge"
    away = plugin.rename(node.plugins / "away")
    try:
        yield
    finally:
        away.rename(plugin)
        _reload(node)


@contextmanager
def _leak_of_a_fixed_address(node: ModernNode) -> Iterator[None]:
    """Pods ask for the address that a leak holds."""
    with configured(node, _BRIDGE):
        (held,) = node.reserve(1, CIDR.replace("{number}", node.number))
        plugins = [dict(plugin) for plugin in _BRIDGE.plugins]
        plugins[0]["args"] = {"cni": {"ips": [held]}}
        _write(node, replace(_BRIDGE, plugins=plugins))
        yield


def _write(node: ModernNode, layout: Layout) -> None:
    for name, one in layout.files.items():
        new = node.net_d / f"{name}.new"
        new.write_text(json.dumps(one).replace("{number}", node.number))
        new.rename(node.net_d / name)


def _reload(node: ModernNode) -> None:
    """Make the runtime read its configuration again: it takes notice of a file that is renamed."""
    for path in node.net_d.glob("*.conflist"):
        new = path.with_suffix(".new")
        new.write_text(path.read_text())
        new.rename(path)


_ALL: Final = frozenset({"containerd", "crio"})
_CONTAINERD: Final = frozenset({"containerd"})
FAULTS: Final = [
    pytest.param(_bridge_with_another_address, r"cni0.*10\.99\.0\.1", _CONTAINERD, id="bridge"),
    pytest.param(_no_subnet_env, r"/run/flannel/subnet\.env", _CONTAINERD, id="subnet.env"),
    pytest.param(_full_disk, r"no space left on device", _CONTAINERD, id="full disk"),
    pytest.param(
        _no_configuration, r"no CNI configuration", _ALL, id="no configuration",
        marks=pytest.mark.every_runtime,
    ),
    pytest.param(_empty_first_file, r"00-empty\.conflist is empty", _CONTAINERD, id="empty file"),
    pytest.param(
        _no_bridge_plugin, r"bridge", _ALL, id="no plugin", marks=pytest.mark.every_runtime,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "says", "runtimes"), FAULTS)
def test_the_first_screen_says_why_pods_wait(
    node: ModernNode, fault: Fault, says: str, runtimes: frozenset[str]
) -> None:
    only_with(node.profile in runtimes, "a runtime for which this is another fault")
    # With flannel, the account may list Events as well.
    setup = configured(node, _FLANNEL) if fault is _no_subnet_env else allowed(node)
    with setup:
        with fault(node):
            names = node.ask_for(2)
            print(eventually(lambda: _is_told(node, says, names)))  # noqa: T201 (shown if it fails)
        node.ready(names)
        eventually(lambda: _waiting(node), equal={})


def _is_told(node: ModernNode, says: str, names: list[str]) -> str:
    """Return the first screen once it names the pods that wait, and what stops them."""
    screen = _screen(node)
    assert not screen.startswith("OK"), screen
    assert all(name in screen for name in names), screen
    assert re.search(says, re.sub(r"\s+", " ", screen)), screen
    return screen


def _scan(node: ModernNode) -> Report:
    return node.scan(*_EAGER, codes=(0, 3))


def _screen(node: ModernNode) -> str:
    return node.screen(*_EAGER)


def _waiting(node: ModernNode) -> dict[str, Any]:
    return _scan(node).subjects("waiting_pods")


def test_a_pod_that_asks_for_the_address_of_a_leak(node: ModernNode) -> None:
    only_with(node.profile == "containerd", "a runtime for which this is enough")
    with allowed(node), _leak_of_a_fixed_address(node):
        (name,) = node.ask_for(1)
        (held,) = node.reserved()
        print(eventually(lambda: _is_told(node, re.escape(held), [name])))  # noqa: T201
        cleaned = node.clean("--apply")
        assert cleaned.released == {held}
        node.ready([name])


def test_pods_that_get_addresses_of_another_node(node: ModernNode) -> None:
    only_with(node.profile == "containerd", "a runtime for which this is enough")
    ipam = {"type": "host-local", "ranges": [[{"subnet": _OTHER_RANGE}]]}
    plugins = [dict(_BRIDGE.plugins[0]) | {"ipam": ipam}]
    with configured(node, replace(_BRIDGE, plugins=plugins)):
        names = node.pods(2)
        screen = _screen(node)
        print(screen)  # noqa: T201
        assert not screen.startswith("OK"), screen
        assert node.cluster.pod_cidr in screen
        assert _OTHER_RANGE in screen
        assert any(name in screen for name in names.values())


def test_a_backup_copy_of_the_directory_is_no_network(node: ModernNode) -> None:
    pods = node.pods(2)
    leaked = node.reserve(5)
    network = node.networks / node.network
    copy = network.with_name(f"{network.name}.bak")
    node.run("cp", "-a", *(f"/var/lib/cni/networks/{path.name}" for path in (network, copy)))
    try:
        report = node.scan(*_EAGER)
        assert set(leaked) == report.having("leaked")
        assert len(report.states) == len(pods) + len(leaked)
        screen = _screen(node)
        print(screen)  # noqa: T201
        assert copy.name in screen
        assert "cordon" not in screen
        cleaned = node.clean("--apply")
        assert cleaned.released == set(leaked)
        assert set(leaked) <= {path.name for path in copy.iterdir()}
    finally:
        node.run("rm", "-r", f"/var/lib/cni/networks/{copy.name}")


def test_a_pod_on_a_node_without_a_kubelet(node: ModernNode) -> None:
    only_with(node.profile == "containerd", "a runtime for which this is enough")
    name = f"e2e-{node.profile}-{secrets.token_hex(3)}"
    pod = pod_with(node.cluster, name)
    del pod["spec"]["nodeName"]
    pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node.cluster.node}
    with node.stopped("kubelet"):
        node.cluster.apply(pod)
        screen = eventually(lambda: _without_kubelet(node, name))
        print(screen)  # noqa: T201
    node.ready([name])


def _without_kubelet(node: ModernNode, name: str) -> str:
    screen = _screen(node)
    assert name in screen
    assert "kubelet" in screen.partition("\n\n")[0], screen
    assert not screen.startswith("OK"), screen
    return screen


_FAILS_IN_DEL: Final = """#!/bin/sh
[ "$CNI_COMMAND" = DEL ] || exec "$0.real"
cat >/dev/null
echo '{"cniVersion": "1.0.0", "code": 100, "msg": "the firewall is locked"}'
exit 1
"""


def test_pods_that_should_have_been_gone_for_five_minutes(node: ModernNode) -> None:
    """A plugin fails only in DEL, and a shim has stopped."""
    only_with(node.profile == "containerd", "a runtime that keeps such sandboxes, and has shims")
    stopped, failing = node.pods(2).values()
    (shim,) = node.run("pgrep", "-f", f"containerd-shim.*{_sandbox(node, stopped)}").split()
    node.run("kill", "-STOP", shim)
    try:
        with allowed(node), node.replaced_plugin("portmap", _FAILS_IN_DEL):
            node.kubectl("delete", "pod", stopped, failing, "--grace-period=1", "--wait=false")
            says = "the firewall is locked"
            print(eventually(lambda: _is_told(node, says, [stopped, failing]), 600))  # noqa: T201
    finally:
        node.run("kill", "-CONT", shim)
    eventually(node.reserved, equal={})


def _sandbox(node: ModernNode, pod: str) -> str:
    (sandbox,) = [ip for ip in node.reserved() if ip == node.address(pod)]
    return node.reserved()[sandbox]

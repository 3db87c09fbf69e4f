"""Plugins in files of their own, beside the list of a network: as libcni >= 1.3 loads them (its `conf.go`)."""

import json
import os
from pathlib import Path
from typing import Any, Final

import pytest

from agent.model.runtime import RuntimeNetwork
from agent.sources.host.cni_config import default_networks
from tests.wire import error_of

BRIDGE: Final = {"type": "bridge", "ipam": {"type": "host-local", "subnet": "10.244.1.0/24"}}
PORTMAP: Final = {"type": "portmap", "capabilities": {"portMappings": True}}


@pytest.fixture
def net_d(tmp_path: Path) -> Path:
    directory = tmp_path / "net.d"
    (directory / "pods").mkdir(parents=True)
    return directory


def write(path: Path, tree: Any) -> None:
    path.write_text(json.dumps(tree))


def only(net_d: Path) -> RuntimeNetwork:
    (network,) = default_networks(net_d)
    return network


def test_plugins_beside_a_list_are_appended_in_the_order_of_their_files(net_d: Path) -> None:
    write(net_d / "10-pods.conflist", {"name": "pods", "plugins": [BRIDGE]})
    write(net_d / "pods/a.json", PORTMAP)
    (net_d / "pods/b.conf").mkdir()
    found = only(net_d)
    assert (found.plugins, found.forwards_ports, found.plugin_files) == (("bridge",), False, False)
    write(net_d / "pods/20-portmap.conf", PORTMAP)
    write(net_d / "pods/10-firewall.conf", {"TYPE": "firewall"})
    found = only(net_d)
    assert found.plugins == ("bridge", "firewall", "portmap")
    assert (found.ipam, found.forwards_ports, found.plugin_files) == ("host-local", True, True)
    only_inlined = {"name": "pods", "plugins": [BRIDGE], "loadOnlyInlinedPlugins": "True"}
    write(net_d / "10-pods.conflist", only_inlined)
    found = only(net_d)
    assert (found.plugins, found.forwards_ports, found.plugin_files) == (("bridge",), False, False)
    (net_d / "pods").rename(net_d / "else")
    (net_d / "pods").symlink_to("else")
    write(net_d / "10-pods.conflist", {"name": "pods"})
    assert only(net_d).plugins == ("firewall", "portmap"), "and none needs to be in the list"


def test_a_list_is_refused_whose_plugins_libcni_refuses_and_the_next_file_is_the_default(
    net_d: Path,
) -> None:
    write(net_d / "20-next.conflist", {"name": "next", "plugins": [BRIDGE]})
    write(net_d / "pods/10.conf", PORTMAP)
    for tree in (
        {"name": "other"},
        {"name": "pods", "plugins": []},
        {"name": "pods", "plugins": None},
        {"name": "pods", "loadOnlyInlinedPlugins": True},
        {"name": "pods", "plugins": [BRIDGE], "loadOnlyInlinedPlugins": "yes"},
        {"name": "pods", "plugins": [BRIDGE], "loadOnlyInlinedPlugins": 1},
        {"name": "../net.d/pods"},
        {"plugins": [BRIDGE]},
    ):
        write(net_d / "10-pods.conflist", tree)
        assert only(net_d).name == "next", tree
    write(net_d / "10-pods.conflist", {"name": "pods", "plugins": [BRIDGE]})
    assert only(net_d).name == "pods"
    for refused in ("{", "[]", "{}", '{"type": ""}', '{"type"'):
        (net_d / "pods/10.conf").write_text(refused)
        assert only(net_d).name == "next", refused
    (net_d / "pods/10.conf").unlink()
    (net_d / "pods/10.conf").symlink_to("missing")
    assert "cannot read" in error_of(lambda: default_networks(net_d)), "it may come any moment"


def test_a_plugin_that_is_put_beside_a_list_changes_it(net_d: Path) -> None:
    write(net_d / "10-pods.conflist", {"name": "pods", "plugins": [BRIDGE]})
    os.utime(net_d, ns=(10**18, 10**18))
    before = only(net_d).changed_ns
    write(net_d / "pods/10.conf", PORTMAP)
    os.utime(net_d, ns=(10**18, 10**18))
    placed = max((net_d / "pods").stat().st_mtime_ns, (net_d / "pods/10.conf").stat().st_ctime_ns)
    assert before < only(net_d).changed_ns == placed

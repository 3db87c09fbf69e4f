"""The network interfaces of this machine, and those of a network namespace of its own."""

import json
import os
import sys
from ipaddress import ip_interface
from pathlib import Path

from agent.model.node_network import Link
from agent.sources.host.links import LinksSource, read_links
from tests.builders import node, waiting_pod
from tests.wire import error_of, needs, run

_PROGRAM = """
import json
from pathlib import Path
from agent.sources.host.links import read_links
print(json.dumps([[link.name, *link.addresses] for link in read_links(Path("/proc"))]))
"""


def own_proc(directory: Path) -> Path:
    """Return a process table whose first process has the network of this one."""
    (directory / "1/net").mkdir(parents=True)
    (directory / "1/net/dev").symlink_to("/proc/self/net/dev")
    return directory


def test_a_network_is_listed_with_every_address_and_links_that_have_none() -> None:
    needs(os.geteuid() == 0, "root, to make a network namespace")
    setup = (
        "ip link set lo up; ip link add cni0 type bridge; ip address add 10.88.0.1/16 dev cni0;"
        "ip address add 10.89.0.1/16 dev cni0; ip link add flannel.1 type bridge;"
        "ip address add 10.1.0.1 peer 10.1.0.2/32 dev flannel.1; ip link add unused type bridge;"
    )
    own = ("unshare", "--net", "--pid", "--fork", "--mount-proc")
    output = run(*own, "sh", "-c", f'{setup} exec "$0" -c "$1"', sys.executable, _PROGRAM)
    links = {name: addresses for name, *addresses in json.loads(output)}
    assert links["lo"][0] == "127.0.0.1/8"
    assert links["cni0"] == ["10.88.0.1/16", "10.89.0.1/16"]
    assert links["flannel.1"] == ["10.1.0.1/32"], "the address of its own end"
    assert links["unused"] == []


def test_the_links_of_this_machine_have_addresses_that_parse(tmp_path: Path) -> None:
    links = read_links(own_proc(tmp_path))
    assert "lo" in {link.name for link in links}
    assert all(ip_interface(address) for link in links for address in link.addresses)
    assert all(isinstance(link, Link) for link in links)


def test_the_links_of_another_network_are_not_those_of_the_node(tmp_path: Path) -> None:
    (tmp_path / "1/net").mkdir(parents=True)
    assert "cannot read" in error_of(lambda: read_links(tmp_path))
    (tmp_path / "1/net/dev").touch()
    expected = "this is not the node's network (set hostNetwork: true)"
    assert error_of(lambda: read_links(tmp_path)) == expected


def test_links_are_read_only_while_something_is_stuck(tmp_path: Path) -> None:
    source = LinksSource(tmp_path)
    assert source.reason_not_needed(node()) is not None
    assert source.reason_not_needed(node(waiting_pod())) is None

"""The probe of addresses, in real network namespaces: who answers, who does not, and who is never asked."""

import base64
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fakes.host import write_sockets
from tests.network import BRIDGE4, BRIDGE6, Network, network, sniffer
from tests.wire import needs

PLUGINS = (
    ("kubenet", "bridge"),
    ("vlan", "macvlan"),
    ("mixed", "bridge"),
    ("mixed", "ipvlan"),
    ("acme", "acme"),
)
"""By network, as libcni's cache tells them."""
DROPPED = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
IN_USE, UNANSWERED = "address_in_use", "probe_unanswered"
CODE = """
import json, socket, sys, time
from tests.builders import reservation
from tests.wired import wired

class OldKernel(socket.socket):
    def send(self, message):
        route = self.family == socket.AF_NETLINK
        return super().send(message[:24] + bytes(4) + message[28:] if route else message)

proc, cache, is_old, send, *names = sys.argv[1:]
if is_old == "True":
    socket.socket = OldKernel
pairs = [name.rpartition("/") for name in names]
reserved = [reservation(ip, network=network or "kubenet") for network, _, ip in pairs]
recheck = wired(proc=proc, cni_cache_dir=cache).recheck
began = time.monotonic()
results = recheck.probe_addresses(reserved, send == "True")
found = {str(key).removeprefix("kubenet/"): [one.reason, one.why, one.conclusive] for key, one in results.items()}
print(json.dumps([time.monotonic() - began, found]))
"""


@dataclass(frozen=True)
class Probed:
    seconds: float
    refusals: dict[str, str | None]
    whys: dict[str, str]
    asked: dict[str, bool]


def probed(
    net: Network, *names: str, proc: str = "", is_old: bool = False, send: bool = True
) -> Probed:
    """Probe without any capability.

    `names`: addresses, after their network if it is not kubenet's. `proc`: by default a node's with this network.

    `is_old`: the kernel ignores the flags of a request for a route, as before 4.13.
    """
    with tempfile.TemporaryDirectory() as directory:
        cache = Path(directory) / "cache"
        cache.mkdir()
        for number, (cached, plugin) in enumerate(PLUGINS):
            config = base64.b64encode(json.dumps({"type": plugin, "ipam": {}}).encode()).decode()
            tree = {
                "kind": "cniCacheV1",
                "containerId": f"{number:064x}",
                "networkName": cached,
                "config": config,
            }
            (cache / f"{cached}-{number:064x}-eth0").write_text(json.dumps(tree))
        write_sockets(Path(directory))
        Path(directory).chmod(0o755)
        arguments = (proc or directory, str(cache), str(is_old), str(send), *names)
        seconds, results = json.loads(net.python(CODE, *arguments, within=DROPPED))
    assert set(results) == set(names) or not send
    return Probed(
        seconds, *({ip: found[index] for ip, found in results.items()} for index in range(3))
    )


@pytest.fixture
def net() -> Iterator[Network]:
    needs(shutil.which("setpriv") is not None, "setpriv, to drop capabilities")
    with network() as made:
        yield made


def test_a_namespace_without_a_process_answers_and_where_nobody_has_an_address_it_is_unreachable(
    net: Network,
) -> None:
    none = probed(net, "10.244.1.20", "fd00:244::20")
    assert none.refusals == {"10.244.1.20": None, "fd00:244::20": None}, (
        "a bridge without any pod has nobody"
    )
    net.pod("ghost", 9)
    at_once = probed(net, "10.244.1.9", "fd00:244::9")
    assert at_once.refusals == {"10.244.1.9": IN_USE, "fd00:244::9": IN_USE}
    assert at_once.whys["fd00:244::9"] == "fd00:244::9 answers on cbr0 (connection refused)"
    nobody = [
        *(f"10.244.1.{number}" for number in range(20, 40)),
        *(f"fd00:244::{number}" for number in range(20, 40)),
    ]
    found = probed(net, "10.244.1.9", *nobody)
    assert found.refusals == {"10.244.1.9": IN_USE} | dict.fromkeys(nobody)
    assert found.whys["10.244.1.20"] == "nobody on cbr0 has 10.244.1.20: host unreachable"
    assert 2.5 < found.seconds < 60, "three seconds for all of them, and not for each"


def tentative(net: Network, seconds: int) -> None:
    """Start the bridge again: for so long, the kernel uses none of its IPv6 addresses (RFC 4862)."""
    net.run("sysctl", "-qw", f"net.ipv6.conf.cbr0.dad_transmits={seconds}")
    net.ip("link set cbr0 down", "link set cbr0 up", f"addr add {BRIDGE6}/64 dev cbr0")
    assert "tentative" in net.run("ip", "-6", "addr", "show", "dev", "cbr0")


def test_a_bridge_that_has_just_got_its_address_is_waited_for_and_one_without_is_no_proof(
    net: Network,
) -> None:
    net.pod("ghost", 9)
    for seconds, ghost, nobody in ((2, IN_USE, None), (60, UNANSWERED, UNANSWERED)):
        tentative(net, seconds)
        found = probed(net, "fd00:244::9", "fd00:244::20")
        assert found.refusals == {"fd00:244::9": ghost, "fd00:244::20": nobody}


def test_silence_is_no_proof_and_an_outdated_neighbor_is_waited_for(net: Network) -> None:
    for name, number in (("lost", 8), ("drops", 9), ("other", 7)):
        net.pod(name, number)
    needs(shutil.which("iptables") is not None, "iptables, for a firewall")
    net.run("ip", "netns", "exec", "drops", "iptables", "-A", "INPUT", "-p", "udp", "-j", "DROP")
    net.ip("neigh add 10.244.1.6 lladdr 02:00:00:00:00:06 dev cbr0 nud permanent")
    net.ip("neigh add fd00:244::6 lladdr 02:00:00:00:00:06 dev cbr0 nud permanent")
    # The kernel still knows where the address was, as it does of each pod that the kubelet has probed.
    gone = ("10.244.1.8", "fd00:244::8")
    assert probed(net, *gone).refusals == dict.fromkeys(gone, IN_USE)
    net.ip("netns del lost", *(f"neigh change {ip} dev cbr0 nud stale" for ip in gone))
    silent = ("10.244.1.6", "fd00:244::6", "10.244.1.9")
    found = probed(net, *gone, *silent)
    assert found.refusals == dict.fromkeys(gone) | dict.fromkeys(silent, UNANSWERED)
    assert found.whys["10.244.1.6"] == (
        "10.244.1.6 on cbr0: no answer within 14 s, and the node does not report it unreachable"
    )


def test_a_firewall_of_the_pod_is_somebody_and_one_of_the_node_no_proof(net: Network) -> None:
    needs(shutil.which("iptables") is not None, "iptables, for a firewall")
    net.pod("ghost", 9)
    ghost = ("ip", "netns", "exec", "ghost")
    for within, chain, reject, expected in (
        (ghost, "INPUT", "icmp-host-prohibited", IN_USE),
        (ghost, "INPUT", "icmp-host-unreachable", IN_USE),
        (ghost, "INPUT", "icmp-net-prohibited", IN_USE),
        ((), "OUTPUT", "icmp-port-unreachable", UNANSWERED),
        ((), "OUTPUT", "icmp-host-unreachable", UNANSWERED),
    ):
        rule = ("-p", "udp", "-j", "REJECT", f"--reject-with={reject}")
        net.run(*within, "iptables", "-A", chain, *rule)
        found = probed(net, "10.244.1.9")
        net.run(*within, "iptables", "-D", chain, *rule)
        assert found.refusals == {"10.244.1.9": expected}
    assert (
        found.whys["10.244.1.9"]
        == "10.244.1.9 on cbr0: a firewall of the node does not let the probe pass"
    )


def test_a_link_on_which_the_node_asks_as_somebody_else_is_no_proof(net: Network) -> None:
    """The pod has no route to who asks, and ignores it (rp_filter), or the kernel has nobody to ask as."""
    net.ip(
        "link add other type veth peer name other2",
        "addr add 10.99.0.1/32 dev other",
        "link set other up",
    )
    net.ip("addr add fd00:99::1/128 dev other nodad")
    net.pod("ghost", 9)
    net.run("ip", "netns", "exec", "ghost", "sysctl", "-qw", "net.ipv4.conf.all.rp_filter=1")
    net.ip(
        "addr flush dev cbr0 scope link",
        f"addr change {BRIDGE6}/64 dev cbr0 preferred_lft 0 valid_lft forever",
    )
    net.ip(
        "route replace 10.244.1.0/24 dev cbr0 src 10.99.0.1",
        "route replace fd00:244::/64 dev cbr0 src fd00:99::1",
    )
    found = probed(net, "10.244.1.9", "fd00:244::9")
    assert found.refusals == {"10.244.1.9": UNANSWERED, "fd00:244::9": UNANSWERED}
    why = "the node asks as 10.99.0.1, which is not in the network of the route"
    assert found.whys["10.244.1.9"] == f"10.244.1.9 on cbr0: {why}"


ECHO = """
import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("10.244.1.9", 9))
print("ready", flush=True)
_, sender = server.recvfrom(100)
server.sendto(b"hello", sender)
"""


def test_any_answer_is_somebody(net: Network) -> None:
    net.pod("ghost", 9)
    command = net.enter("ip", "netns", "exec", "ghost", sys.executable, "-c", ECHO)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:  # noqa: S603 (a command of ours)
        assert server.stdout
        assert server.stdout.readline() == "ready\n"
        found = probed(net, "10.244.1.9")
    assert found.refusals == {"10.244.1.9": IN_USE}
    assert found.whys["10.244.1.9"] == "10.244.1.9 answers on cbr0 (it sent a datagram)"


def test_what_the_route_tells_is_not_asked_and_nothing_from_another_network_than_the_nodes(
    net: Network,
) -> None:
    net.pod("ghost", 9)
    net.ip("route add 10.244.1.77/32 dev h-ghost", "-6 route add fd00:244::77/128 dev h-ghost")
    net.ip("route add 10.7.0.1/32 dev h-ghost")
    alone, own, off_link = (
        ("10.244.1.77", "fd00:244::77", "10.7.0.1"),
        (BRIDGE4, BRIDGE6, "127.0.0.1"),
        ("10.9.9.9", "fd99::9"),
    )
    with sniffer(net, "ghost", "eth0") as arrived:
        found = probed(net, *alone, *own, *off_link)
    assert found.refusals == dict.fromkeys((*alone, *own), IN_USE) | dict.fromkeys(off_link)
    assert found.whys["10.244.1.77"] == "a route to 10.244.1.77 alone leads to interface h-ghost"
    assert found.whys[BRIDGE4] == f"{BRIDGE4} is an address of the node itself"
    assert arrived == [0]
    for proc, why in (
        ("/proc", "this is not the node's network (set hostNetwork: true)"),
        ("/nowhere", "cannot read /nowhere/1/net/dev: no such file or directory"),
    ):
        with pytest.raises(
            AssertionError, match=re.escape(f"SourceError: cannot probe addresses: {why}")
        ):
            probed(net, "10.244.1.20", proc=proc)


def test_a_kernel_before_4_13_lists_the_prefix_of_a_route_in_a_file(net: Network) -> None:
    net.pod("ghost", 9)
    net.ip(
        "route add 10.244.0.0/16 via 10.244.1.3", "route add 10.244.1.77/32 dev h-ghost",
        "link add other type veth peer name other2", "addr add 10.99.0.1/32 dev other", "link set other up",
        "route add 10.245.1.0/24 dev cbr0 src 10.99.0.1",
    )  # fmt: skip
    known = {
        "10.244.1.9": IN_USE,
        "10.244.1.20": None,
        "10.244.1.77": IN_USE,
        "10.245.1.20": UNANSWERED,
    }
    for is_old in (True, False):
        found = probed(net, *known, is_old=is_old)
        assert found.refusals == known
        assert (
            found.whys["10.244.1.77"] == "a route to 10.244.1.77 alone leads to interface h-ghost"
        )
        assert found.whys["10.244.1.20"] == "nobody on cbr0 has 10.244.1.20: host unreachable"


def test_nothing_is_sent_off_the_link(net: Network) -> None:
    """The default gateway is a namespace, which would see every datagram."""
    net.ip(
        "netns add gateway", "link add up0 type veth peer name eth0 netns gateway", "link set up0 up",
        "-n gateway link set eth0 up", "addr add 198.18.0.2/24 dev up0", "-n gateway addr add 198.18.0.1/24 dev eth0",
        "addr add fd00:18::2/64 dev up0 nodad", "-n gateway addr add fd00:18::1/64 dev eth0 nodad",
        "route add default via 198.18.0.1", "-6 route add default via fd00:18::1",
        "route add 10.11.0.0/16 nexthop via 198.18.0.1 nexthop via 198.18.0.3",
        "-6 route add fd11::/16 nexthop via fd00:18::1 nexthop via fd00:18::3",
        "route add 10.12.0.1/32 via 198.18.0.1", "-6 route add fd12::1/128 via fd00:18::1",
        "route add blackhole 10.13.0.0/16", "-6 route add unreachable fd13::/16", "route add prohibit 10.14.0.0/16",
        "link add tunnel0 type veth peer name tunnel1", "link set tunnel1 up",
        "link set tunnel0 arp off up", "route add 10.15.0.0/16 dev tunnel0",
    )  # fmt: skip
    with sniffer(net, "gateway", "eth0") as control:
        code = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'', ('10.9.9.9', 9))"
        net.python(code)
    off_link = (
        "10.9.9.9", "fd99::9", "10.11.0.1", "fd11::1", "10.12.0.1", "fd12::1", "10.13.0.1", "fd13::1", "10.14.0.1",
        "10.15.0.1", "224.0.0.9", "10.244.1.255",
    )  # fmt: skip
    with sniffer(net, "gateway", "eth0") as arrived:
        found = probed(net, *off_link)
    assert found.refusals == dict.fromkeys(off_link)
    assert found.whys == {
        ip: f"{ip} cannot be probed: the node has it on no link" for ip in off_link
    }
    assert (control, arrived, any(found.asked.values())) == ([1], [0], False)


def test_silence_on_one_of_several_links_is_no_proof(net: Network) -> None:
    """The kernel asks on the link of the longest prefix only."""
    net.ip(
        "link add up0 type veth peer name up1", "link set up0 up", "link set up1 up",
        "addr add 10.244.1.129/26 dev up0", "-6 addr add fd00:244::8000/120 dev up0 nodad",
    )  # fmt: skip
    net.pod("ghost", 150)
    found = probed(net, "10.244.1.150", "10.244.1.20", "fd00:244::20")
    assert found.refusals == dict.fromkeys(found.whys)
    assert found.asked == {"10.244.1.150": False, "10.244.1.20": True, "fd00:244::20": True}
    assert found.whys["10.244.1.150"].endswith(
        "host unreachable, which proves nothing: cbr0 cannot be asked"
    )
    assert probed(net, *found.whys, send=False).whys == {
        "10.244.1.150": "a probe of 10.244.1.150 cannot prove that nobody has it: cbr0 cannot be asked"
    }


def test_pods_that_the_node_does_not_reach_are_not_said_to_be_absent(net: Network) -> None:
    net.ip(
        "link add up0 type veth peer name up1", "link set up0 up", "link set up1 up", "addr add 10.20.0.1/24 dev up0",
        "netns add ghost", "link add link up0 name eth0 netns ghost type macvlan mode bridge",
        "-n ghost addr add 10.20.0.9/24 dev eth0", "-n ghost link set eth0 up",
    )  # fmt: skip
    net.pod("ghost2", 9)
    found = probed(
        net, "10.20.0.9", "vlan/10.20.0.9", "mixed/10.20.0.9", "vlan/10.20.0.1", "vlan/10.244.1.9"
    )
    assert found.refusals == dict.fromkeys(found.whys) | {"vlan/10.20.0.1": IN_USE}
    assert found.whys["10.20.0.9"] == "nobody on up0 has 10.20.0.9: host unreachable"
    assert (
        found.whys["vlan/10.20.0.9"]
        == "10.20.0.9 cannot be probed: the node does not reach pods of macvlan"
    )
    assert (
        found.whys["mixed/10.20.0.9"]
        == "10.20.0.9 cannot be probed: the node does not reach pods of ipvlan"
    )
    assert found.asked == dict.fromkeys(found.whys, False) | {
        "10.20.0.9": True,
        "vlan/10.20.0.1": True,
    }


def test_silence_proves_something_only_for_pods_that_the_node_reaches(net: Network) -> None:
    net.pod("ghost", 9)
    doubts = {
        "acme": "the node may not reach pods of acme",
        "unknown": "the node may not reach pods of a plugin that",
    }
    names = [f"{plugin}/10.244.1.{number}" for plugin in doubts for number in (9, 20)]
    found, dry = probed(net, *names), probed(net, *names, "10.244.1.9", send=False)
    assert dry.refusals == dict.fromkeys(names), "nothing is said where it would prove something"
    for plugin, doubt in doubts.items():
        ghost, nobody = f"{plugin}/10.244.1.9", f"{plugin}/10.244.1.20"
        for name in (ghost, nobody):
            why = f"a probe of {name.partition('/')[2]} cannot prove that nobody has it: {doubt}"
            assert dry.whys[name].startswith(why)
        assert (found.refusals[ghost], found.asked[ghost]) == (IN_USE, True)
        assert (found.refusals[nobody], found.asked[nobody]) == (None, False)
        why = f"nobody on cbr0 has 10.244.1.20: host unreachable, which proves nothing: {doubt}"
        assert found.whys[nobody].startswith(why)

"""What a dry run says of rules that forward host ports to an address: a release does not remove them."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from agent.checks.addresses.host_ports import describe_rules
from tests.cli.test_cni_config import CONTAINERD, CRI_O, on
from tests.cli.test_networks import BRIDGE, NOW, OF_A_POD, Stand, cache_result, standing
from tests.fakes.cri import cniconfig

PORTMAP: Final = {"type": "portmap", "capabilities": {"portMappings": True}}
LEAKED: Final = "9" * 64
IP: Final = "10.244.1.200"
SAVED: Final = "(iptables-save -t nat; ip6tables-save -t nat; nft list ruleset) | grep -i dnat"
COMMAND: Final = f"`{SAVED} | grep -wE '{IP.replace('.', '[.]')}'`"
SHOWN: Final = f"such rules would lead to the next pod; see them on the node: {COMMAND}"


def leak(stand: Stand, *cached_ports: dict[str, Any], cached: bool = True) -> None:
    """Write a leak of an hour ago, and what libcni keeps of its sandbox."""
    reservation = stand.host.networks / "cbr0" / IP
    reservation.write_text(f"{LEAKED}\r\neth0")
    hour_ago = (NOW - timedelta(hours=1)).timestamp()
    os.utime(reservation, (hour_ago, hour_ago))
    config = {"plugins": [BRIDGE, PORTMAP]}
    more = {"cniArgs": OF_A_POD, "capabilityArgs": {"portMappings": list(cached_ports)}}
    if cached:
        cache_result(stand.host.cache, "cbr0", LEAKED, IP, "eth0", config, **more)


def warnings(stand: Stand) -> list[str]:
    document = stand.cleaned("--settle=0s", "--max-share=100%")
    assert document["verdicts"]["would_release"] == 1, document
    return list(document["warnings"])


def test_only_host_ports_in_the_cached_result_are_named(tmp_path: Path) -> None:
    with standing(tmp_path, on(CONTAINERD)) as stand:
        leak(stand)
        assert warnings(stand) == []
        leak(stand, {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"})
        rules = f"iptables or nftables rules may still forward host port 8080/tcp to {IP}; {SHOWN}"
        assert warnings(stand) == [rules]


def test_host_ports_that_no_cached_result_has_are_not_known(tmp_path: Path) -> None:
    unknown = [f"rules that forward host ports to 1 address are not known; {SHOWN}"]
    for name, runtime, chain, expected in (
        ("a", CRI_O, "", unknown),  # it does so itself, and leaves no record
        ("b", CONTAINERD, cniconfig(BRIDGE, PORTMAP, name="cbr0"), unknown),
        ("c", CONTAINERD, cniconfig(BRIDGE, name="cbr0"), []),
    ):
        with standing(tmp_path / name, on(runtime), chain) as stand:
            leak(stand, cached=runtime == CRI_O)
            assert warnings(stand) == expected


def test_a_result_without_ports_proves_nothing_if_plugins_are_in_files_of_their_own(
    tmp_path: Path,
) -> None:
    """libcni's cache has the configuration of those in the list only."""
    unknown = [f"rules that forward host ports to 1 address are not known; {SHOWN}"]
    for name, chain, expected in (
        ("a", cniconfig(BRIDGE, PORTMAP, name="cbr0"), []),
        ("b", cniconfig(BRIDGE, PORTMAP, name="cbr0", inlined=1), unknown),
        ("c", cniconfig(BRIDGE, {"type": "tuning"}, name="cbr0", inlined=1), []),
    ):
        with standing(tmp_path / name, on(CONTAINERD), chain) as stand:
            more = {
                "cniArgs": OF_A_POD,
                "capabilityArgs": {"portMappings": [{"hostPort": 8080}]},
            }
            leak(stand, cached=False)
            config = {"plugins": [BRIDGE]}
            cache_result(stand.host.cache, "cbr0", LEAKED, IP, "eth0", config, **more)
            assert warnings(stand) == expected, name


def test_one_command_shows_the_rules_of_all_addresses() -> None:
    text = describe_rules(dict.fromkeys(("10.42.0.2", "10.42.0.33", "10.42.1.4", "fd00::9")))
    assert "4 addresses are not known; such" in text
    assert "| grep -wE '10[.]42[.]0[.](2|33)|10[.]42[.]1[.]4|fd00::9'`" in text

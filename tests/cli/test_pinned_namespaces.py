"""Leaks whose network namespace is still mounted, without a process: what scan says, and that clean releases none.

The pods, their bridge and the mount table are real; docker and the process table are fakes.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import DONE, LEAKED, UNAVAILABLE, Done, SmallNode, engine, nodeleak
from tests.cli.test_networks import OF_A_POD, cache_result
from tests.deploy.monitoring import RUNBOOKS
from tests.network import Network, network, sniffer
from tests.wire import ID, FakeServer, run

IP = "10.244.1.9"
ON = {"NODELEAK_PROBE": ""}  # The default, which the other tests of commands replace


@dataclass
class Pinned:
    """A small node with a leak, in a network of its own."""

    node: SmallNode
    net: Network

    def run(self, *command: str, **more: str) -> Done:
        options = [*self.node.options, "--api=off"]
        return nodeleak(*command, *options, prefix=self.net.enter(), **(ON | more))

    def clean(self, *arguments: str, **more: str) -> tuple[str, str, float]:
        """Return the verdict for the leak, why, and how long it took."""
        done = self.run(
            "clean", "-o", "json", "--cleanup-network=auto", "--max-share=100%", *arguments, **more
        )
        assert done.code in {DONE, UNAVAILABLE}, done
        (release,) = json.loads(done.out)["addresses"]
        refusals = [f"{one['reason']}: {one['why']}" for one in release["refusals"]]
        return release["verdict"], refusals[0] if refusals else release["why"], done.seconds

    def refused(self, *arguments: str, **more: str) -> str:
        """Return why nothing is released."""
        verdict, why, _ = self.clean("--apply", *arguments, **more)
        assert (verdict, self.reserved) == ("refused", True)
        return why

    def named_by_cache(self, namespace: str, container_id: str = LEAKED) -> None:
        """Let libcni's cache name the namespace of the leaked sandbox, or of another one."""
        result = {
            "ips": [{"address": f"{IP}/24"}],
            "interfaces": [{"name": "eth0", "sandbox": namespace}],
        }
        (self.node.home / "cache" / f"kubenet-{container_id}-eth0").write_text(json.dumps(result))

    def cached(self, network: str, plugin: str, container_id: str, address: str) -> None:
        """Let libcni's cache have the result of a plugin."""
        config = {"type": plugin, "ipam": {"type": "host-local"}}
        more: dict[str, Any] = {"cniArgs": OF_A_POD, "result": {"ips": [{"address": address}]}}
        cache_result(self.node.home / "cache", network, container_id, "", config=config, **more)

    @property
    def reserved(self) -> bool:
        return (self.node.home / "networks/kubenet" / IP).exists()

    @property
    def evidence(self) -> list[str]:
        (entry,) = (self.node.home / "state/journal").glob("*.json")
        return list(json.loads(entry.read_text())["evidence"])


@pytest.fixture
def pinned(tmp_path: Path) -> Iterator[Pinned]:
    with FakeServer(engine, at=tmp_path / "docker.sock") as server, network() as net:
        node = SmallNode(tmp_path, server)
        (node.proc / "1/mountinfo").unlink()
        (node.proc / "1/mountinfo").symlink_to(f"/proc/{net.pid}/mountinfo")
        net.pod("cni-9", 9)
        net.pod("cni-2", 2)
        yield Pinned(node, net)


def test_an_address_that_answers_to_a_release_is_released_only_when_nobody_has_it(
    pinned: Pinned,
) -> None:
    assert pinned.run("scan").code == DONE
    assert pinned.clean()[0] == "would_release"
    assert pinned.net.udp_received("cni-9") == 0, "only a release sends a probe"
    assert pinned.refused() == f"address_in_use: probe: {IP} answers on cbr0 (connection refused)"
    assert pinned.net.udp_received("cni-9") == 1
    pinned.net.ip("netns delete cni-9", f"neigh flush to {IP}")
    verdict, _, seconds = pinned.clean("--apply")
    assert (verdict, pinned.reserved) == ("released", False)
    assert seconds > 3
    assert pinned.evidence[-1] == f"nobody on cbr0 has {IP}: host unreachable"


def test_an_address_with_a_route_of_its_own_or_without_an_answer_is_not_released(
    pinned: Pinned,
) -> None:
    pinned.net.ip("netns delete cni-9", f"route add {IP}/32 dev h-cni-2")
    assert (
        pinned.refused()
        == f"address_in_use: probe: a route to {IP} alone leads to interface h-cni-2"
    )
    pinned.net.ip(
        f"route del {IP}/32 dev h-cni-2",
        f"neigh replace {IP} lladdr 02:00:00:00:00:09 dev cbr0 nud permanent",
    )
    assert pinned.refused().startswith(
        f"probe_unanswered: probe: {IP} on cbr0: no answer within 14 s"
    )


def test_without_the_probe_nothing_is_sent_and_a_namespace_of_nobody_keeps_the_address(
    pinned: Pinned,
) -> None:
    for more in ((), ("--apply",)):
        verdict, why, _ = pinned.clean("--probe=off", *more)
        assert (verdict, pinned.reserved, pinned.net.udp_received("cni-9")) == ("refused", True, 0)
        assert why.startswith(
            "probe_unanswered: probe: not probed: --probe=off, and a network namespace is mounted"
        )
    pinned.net.ip("netns delete cni-9")
    pinned.named_by_cache("/run/netns/cni-2", ID)
    assert pinned.clean("--probe=off")[:2] == ("would_release", "not probed: --probe=off")
    assert pinned.clean("--probe=off", "--apply")[0] == "released"
    assert not any("probe" in answer for answer in pinned.evidence), "nothing was asked"
    assert "the kubelet has no checkpoint of the sandbox" in pinned.evidence


def test_another_network_leaves_the_probe_as_it_is_but_silence_of_pods_out_of_reach_is_no_proof(
    pinned: Pinned,
) -> None:
    for number, subnet in enumerate(("10.0.0.3/8", "10.244.1.3/24", "10.244.1.9/28")):
        pinned.cached("lan", "macvlan", f"{number:064x}", subnet)
    assert pinned.clean()[0] == "would_release"
    assert pinned.refused() == f"address_in_use: probe: {IP} answers on cbr0 (connection refused)"
    for path in (pinned.node.home / "cache").glob("lan-*"):
        path.unlink()
    pinned.net.ip("netns delete cni-9", f"neigh flush to {IP}")
    pinned.cached("kubenet", "acme", "1" * 64, f"{IP}/24")
    (dry, unsure, _), (verdict, why, _) = pinned.clean(), pinned.clean("--apply")
    doubt = "the node may not reach pods of acme, bridge, and a network namespace is mounted whose sandbox is not known"
    assert (dry, verdict, pinned.reserved) == ("refused", "refused", True)
    assert f"{IP} cannot prove that nobody has it: {doubt}" in unsure
    assert f"nobody on cbr0 has {IP}: host unreachable, which proves nothing: {doubt}" in why


def test_an_address_on_no_link_is_released_if_it_is_known_whose_each_namespace_is(
    pinned: Pinned,
) -> None:
    # As in all other tests of commands, if this machine has no pods: then only a gateway leads to such an address.
    pinned.net.ip(
        "link delete cbr0", "netns add gateway", "link add up0 type veth peer name eth0 netns gateway",
        "link set up0 up", "-n gateway link set eth0 up", "addr add 198.18.0.2/24 dev up0",
        "-n gateway addr add 198.18.0.1/24 dev eth0", "route add default via 198.18.0.1",
    )  # fmt: skip
    with sniffer(pinned.net, "gateway", "eth0") as arrived:
        dry, why, _ = pinned.clean()
        assert (dry, pinned.clean("--apply")[0]) == ("refused", "refused")
        assert why.startswith(
            f"probe_unanswered: probe: {IP} cannot be probed: the node has it on no link, and a network"
        )
        pinned.net.ip("netns delete cni-9")
        for number, name in enumerate(("gateway", "cni-2")):
            pinned.named_by_cache(f"/run/netns/{name}", f"{number:064x}")
        dry, why, _ = pinned.clean()
        assert (dry, why) == ("would_release", f"{IP} cannot be probed: the node has it on no link")
        verdict = pinned.clean("--apply")[0]
    assert (verdict, arrived) == ("released", [0])
    assert not any("probe" in answer for answer in pinned.evidence), "nothing was asked"


# What libcni's cache and the mount table show, without a probe


def test_a_mounted_namespace_is_found_and_never_released_until_the_commands_of_the_runbook_end_it(
    pinned: Pinned,
) -> None:
    pinned.named_by_cache("/var/run/netns/cni-9")
    report = pinned.run("scan", "-o", "json").out
    (finding,) = (
        one for one in json.loads(report)["findings"] if one["subject"] == f"kubenet/{IP}"
    )
    assert finding["detector"] == "unmanaged_address"
    assert "network namespace /run/netns/cni-9 (without a process)" in finding["message"]
    verdict, why, _ = pinned.clean("--apply", NODELEAK_PROBE="off")
    assert (verdict, pinned.reserved) == ("refused", True)
    assert why == (
        "address_in_use: the runtime does not know its container, but its network namespace is still mounted, "
        "without a process: /run/netns/cni-9"
    )
    page = (RUNBOOKS / "AddressesInUse.md").read_text()
    (extract,) = re.findall(r"nodeleak scan -o json \| (.+) > namespaces$", page, re.MULTILINE)
    (delete,) = re.findall(r"^ *ssh root@\$NODE '(.+)' < namespaces$", page, re.MULTILINE)
    found = run("sh", "-c", extract, given=report)
    assert found == "/run/netns/cni-9\n"
    run(*pinned.net.enter("sh", "-c", delete), given=found)
    pinned.net.ip(f"neigh flush to {IP}")
    assert pinned.clean("--apply")[0] == "released"


def test_a_namespace_mounted_only_for_the_runtime_is_never_released_nor_without_the_mount_table(
    pinned: Pinned,
) -> None:
    pinned.named_by_cache("/var/run/netns/cni-9")
    (pinned.node.proc / "1/mountinfo").rename(pinned.node.proc / "7/mountinfo")
    (pinned.node.proc / "1/mountinfo").touch()
    assert pinned.refused(NODELEAK_PROBE="off").startswith("address_in_use: ")
    for pid in (7, 1):
        (pinned.node.proc / f"{pid}/mountinfo").rename(pinned.node.home / "table")
        assert "mounted_namespaces: cannot read" in pinned.run("scan").said
        assert pinned.refused(NODELEAK_PROBE="off").startswith("source_unavailable: ")
        (pinned.node.home / "table").rename(pinned.node.proc / f"{pid}/mountinfo")

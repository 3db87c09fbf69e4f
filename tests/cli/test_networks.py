"""scan and clean on nodes whose pods do not use the directory that is read: it is left over, elsewhere, or missing."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cli.test_failures import nodeleak
from tests.fakes.apiserver import apiserver
from tests.fakes.engine import engine
from tests.fakes.host import Host, build, write_kubeconfig
from tests.fakes.nodes import FakeNode, healthy, the_incident

NOW: Final = datetime.now(UTC)  # noqa: TID251 (a stand-in's files are as old as a real one's)
NINETY_DAYS_AGO: Final = (NOW - timedelta(days=90)).timestamp()
CIDR: Final = "10.244.1.0/24"


@dataclass(frozen=True)
class Stand:
    """A node in a private directory, with fakes of docker and the API server."""

    node: FakeNode
    host: Host

    def options(self, api: str = "on", *more: str) -> list[str]:
        asked = ["--api=off"] if api == "off" else [f"--node={self.node.name}", f"--kubeconfig={self.host.kubeconfig}"]
        return [*asked, *self.host.options, "--confirm-after=1ms", *more]

    def scan(self, *more: str, api: str = "on", code: int = 0) -> Any:
        done = nodeleak("scan", "-o", "json", *self.options(api, *more))
        assert (done.code, done.err) == (code, ""), done
        return json.loads(done.out)

    def text(self, *more: str, api: str = "on") -> str:
        return nodeleak("scan", *self.options(api, *more)).out

    def clean(self, *more: str, api: str = "on") -> Any:
        done = nodeleak("clean", "-o", "json", *self.options(api, *more))
        assert done.err == "", done
        return json.loads(done.out)

    def files(self) -> set[str]:
        return {path.name for path in self.host.store.iterdir()}


@contextmanager
def standing(directory: Path, node: FakeNode) -> Iterator[Stand]:
    host = build(directory / "node", node)
    with ExitStack() as stack:
        if node.runtime.startswith("docker"):
            stack.enter_context(engine(host.docker_socket, node))
        write_kubeconfig(host, stack.enter_context(apiserver(node)))
        yield Stand(node, host)


def a_node(**changes: Any) -> FakeNode:
    return replace(healthy(NOW, 5, CIDR), **changes)


def leave_over(store: Path, ips: list[str]) -> None:
    """Write reservations of containers that were gone 90 days ago."""
    store.mkdir(exist_ok=True)
    for number, ip in enumerate(ips):
        path = store / ip
        path.write_text(f"{number:064x}\r\neth0")
        os.utime(path, (NINETY_DAYS_AGO, NINETY_DAYS_AGO))


def every_address() -> list[str]:
    return [f"10.244.1.{last}" for last in range(2, 255)]


def subjects(document: Any) -> list[str]:
    return [f"{one['detector']} {one['subject']}" for one in document["findings"]]


def leaks(document: Any) -> list[str]:
    return [one for one in subjects(document) if one.startswith("leaked_reservation ")]


def kubenet(document: Any) -> Any:
    (network,) = (one for one in document["networks"] if one["name"] == "kubenet")
    return network


# Not in use


@pytest.mark.parametrize("left", [0, 5, 253], ids=["empty", "of live pods", "full"])
@pytest.mark.parametrize("api", ["on", "off"])
def test_the_kubenet_directory_of_a_node_that_moved_to_another_network_is_no_fault(
    tmp_path: Path, left: int, api: str
) -> None:
    with standing(tmp_path, a_node(network="cbr0")) as stand:
        leave_over(stand.host.store, every_address()[:left])
        before = stand.files()
        document = stand.scan(api=api)
        assert subjects(document) == []
        assert document["unavailable"] == []
        assert document["reservations"] == []
        told = "the pods of this node get their addresses from network cbr0"
        assert kubenet(document) == {
            "name": "kubenet", "ranges": None, "usable": None, "reserved": None, "free": None, "states": None,
            "not_in_use": told,
        }  # fmt: skip
        assert f"not in use: {told}" in stand.text(api=api)
        assert "kubenet: not in use" in stand.text("--map", api=api)
        assert stand.clean("--apply", "--settle=0s", api=api)["addresses"] == []
        assert stand.files() == before


def test_a_network_in_use_is_judged_beside_one_that_is_not(tmp_path: Path) -> None:
    with standing(tmp_path, a_node(network="cbr0")) as stand:
        leave_over(stand.host.store, every_address()[:5])
        leave_over(stand.host.networks / "cbr0", ["10.244.1.99"])
        document = stand.scan("--network=kubenet,cbr0")
        assert subjects(document) == ["leaked_reservation cbr0/10.244.1.99"]
        of_addresses = ("leaked_reservation", "unreserved_pod_ip", "shared_ip", "unmanaged_address", "exhausted_range")
        assert [one for one in document["insufficient_data"] if one["detector"] in of_addresses] == []


def test_a_left_over_directory_on_a_containerd_node_is_no_fault(tmp_path: Path) -> None:
    with standing(tmp_path, a_node(network="cbr0", runtime="containerd://1.7.24")) as stand:
        leave_over(stand.host.store, every_address())
        document = stand.scan()
        assert subjects(document) == []
        assert kubenet(document)["not_in_use"] == "the pods of this node get their addresses from network cbr0"


def test_kubenet_as_the_network_of_containerd_is_still_counted(tmp_path: Path) -> None:
    with standing(tmp_path, a_node(runtime="containerd://1.7.24")) as stand:
        leave_over(stand.host.store, every_address()[5:])
        assert subjects(stand.scan(code=0)) == ["exhausted_range kubenet"]


def test_a_directory_is_not_in_use_if_the_data_directory_of_its_network_is_elsewhere(tmp_path: Path) -> None:
    with standing(tmp_path, a_node(data_dir="/run/cni-ipam-state")) as stand:
        shutil.rmtree(stand.host.store)
        leave_over(stand.host.store, every_address()[:5])
        document = stand.scan()
        assert subjects(document) == []
        assert kubenet(document)["not_in_use"] == (
            "the pods of this node get their addresses from network kubenet in /run/cni-ipam-state: "
            "check --cni-networks-dir"
        )


def test_while_a_node_moves_pods_of_both_networks_have_their_reservation(tmp_path: Path) -> None:
    """One pod still has its address from kubenet: kubenet is in use, and the others are reserved elsewhere."""
    with standing(tmp_path, a_node(network="cbr0")) as stand:
        first = stand.node.running[0]
        stand.host.store.mkdir()
        shutil.move(stand.host.networks / "cbr0" / first.ip, stand.host.store / first.ip)
        document = stand.scan()
        assert kubenet(document)["not_in_use"] is None
        assert subjects(document) == []


# Unknown whether in use, or in use: judged


def test_the_incident_is_diagnosed_without_credentials(tmp_path: Path) -> None:
    with standing(tmp_path, the_incident(NOW)) as stand:
        assert len(leaks(stand.scan(api="off"))) == 7


@pytest.mark.parametrize("api", ["on", "off"])
def test_the_leaks_of_a_drained_node_are_found_and_released(tmp_path: Path, api: str) -> None:
    node = the_incident(NOW)
    drained = replace(node, running=tuple(one for one in node.running if not one.ip), pending=())
    with standing(tmp_path, drained) as stand:
        assert len(leaks(stand.scan(api=api))) == 7
        assert stand.clean("--apply", api=api)["verdicts"]["released"] == 7


def test_a_podman_container_does_not_put_a_drained_node_out_of_use(tmp_path: Path) -> None:
    node = the_incident(NOW)
    with standing(tmp_path, replace(node, running=(), pending=())) as stand:
        (stand.host.cache / f"podman-{'d' * 64}-eth0").write_text(json.dumps({"ip4": {"ip": "10.88.0.2/16"}}))
        assert len(leaks(stand.scan())) == 7


def test_reservations_that_were_deleted_by_hand_are_still_reported(tmp_path: Path) -> None:
    with standing(tmp_path, a_node()) as stand:
        for sandbox in stand.node.running:
            (stand.host.store / sandbox.ip).unlink()
        assert {one.partition(" ")[0] for one in subjects(stand.scan())} == {"unreserved_pod_ip"}


def test_the_leaks_of_a_secondary_network_are_found_while_no_pod_uses_it(tmp_path: Path) -> None:
    with standing(tmp_path, a_node()) as stand:
        storage = stand.host.networks / "storage"
        storage.mkdir()
        path = storage / "10.99.0.7"
        path.write_text(f"{'9' * 64}\r\nnet1")
        os.utime(path, (NINETY_DAYS_AGO, NINETY_DAYS_AGO))
        cached = json.dumps({"ip4": {"ip": "10.99.0.7/24"}})
        (stand.host.cache / f"storage-{'9' * 64}-net1").write_text(cached)
        document = stand.scan("--network=kubenet,storage", api="off")
        assert "leaked_reservation storage/10.99.0.7" in subjects(document)

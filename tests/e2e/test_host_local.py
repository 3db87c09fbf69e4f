"""The files of this machine's host-local are read correctly, whatever its version."""

import secrets
from pathlib import Path

import pytest

from .agent import Nodeleak
from .node import docker, host_local, reservations

pytestmark = pytest.mark.e2e

DUAL_STACK = ["198.51.100.0/28", "2001:db8::/64"]


def test_both_addresses_of_a_container_are_read_and_classified_together(nodeleak: Nodeleak, tmp_path: Path) -> None:
    store = tmp_path / "networks" / "dual"
    arguments = (f"--cni-networks-dir={store.parent}", "--network=dual", "--api=off", "--grace=0s")
    owned = docker("create", "--network=none", "nodeleak/busybox:1").strip()
    try:
        ids = [owned, secrets.token_hex(32)]
        given = [
            [ip["address"].partition("/")[0] for ip in host_local("ADD", one, DUAL_STACK, "dual", store)["ips"]]
            for one in ids
        ]
        scan = nodeleak.scan(*arguments, codes=[3])  # the range of this network is not configured
        assert "exhausted_range" in {one["detector"] for one in scan.document["insufficient_data"]}
        assert {file.name for file in store.iterdir()} > reservations(store).keys()  # its own files are no entries
        assert [set(ips) for ips in given] == [
            {ip for ip, one in reservations(store).items() if one == id_} for id_ in ids
        ]
        assert scan.states == dict.fromkeys(given[0], "not_ready") | dict.fromkeys(given[1], "leaked")
        read = {one["ip"]: (one["container_id"], one["ifname"]) for one in scan.document["reservations"]}
        assert read == {ip: (one, "eth0") for ip, one in reservations(store).items()}

        for one in ids:
            host_local("DEL", one, DUAL_STACK, "dual", store)
        assert nodeleak.scan(*arguments).states == {}  # whatever the range is, all of it is free
    finally:
        docker("rm", owned)

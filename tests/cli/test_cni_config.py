"""scan and clean where the CNI configuration alone tells which networks pods use."""

import base64
import json
import os
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cli.commands import DONE, UNAVAILABLE, nodeleak
from tests.cli.test_networks import (
    BRIDGE,
    CIDR,
    NINETY_DAYS_AGO,
    NOW,
    OF_A_POD,
    Stand,
    a_node,
    cache_result,
    every_address,
    leaks,
    leave_over,
    standing,
    subjects,
)
from tests.fakes import cri
from tests.fakes.grpc_server import FakeGrpcServer
from tests.fakes.host import build, configure
from tests.fakes.nodes import FakeNode
from tests.wire import needs

CRI_O: Final = "cri-o://1.35.6"
CONTAINERD: Final = "containerd://2.1.9"
DOCKER: Final = "docker://20.10.24"
HOST_LOCAL: Final = {"type": "host-local", "ranges": [[{"subnet": CIDR}]]}
FLANNEL: Final = {"type": "flannel", "delegate": {"isDefaultGateway": True}}
EGRESS: Final = {
    "name": "egress-cni", "type": "egress-cni", "enabled": "false", "ipam": {
        "type": "host-local", "ranges": [[{"subnet": "fd00::ac:00/118"}]], "dataDir": "/run/cni/v4pd/egress-v6-ipam",
    },
}  # fmt: skip
"""As the chain of EKS has it."""


def on(runtime: str, **changes: Any) -> FakeNode:
    return a_node(network="cbr0", runtime=runtime, **changes)


def forget_results(stand: Stand) -> None:
    for path in stand.host.cache.iterdir():
        path.unlink()


def reconfigure(
    stand: Stand, name: str, *plugins: dict[str, Any], file: str = "", **more: Any
) -> None:
    """Put this configuration in place of the one that the node has."""
    for path in stand.host.net_d.iterdir():
        path.unlink()
    configure(stand.host.net_d / (file or f"10-{name}.conflist"), name, *plugins, **more)


def judged(document: Any) -> set[str]:
    return {network["name"] for network in document["networks"] if network["not_in_use"] is None}


def verdicts(stand: Stand) -> Any:
    return stand.cleaned("--settle=0s", "--max-share=100%")["verdicts"]


@pytest.mark.parametrize("runtime", [CRI_O, DOCKER])
def test_leaks_are_found_without_cached_results_whether_pods_run_or_not(
    tmp_path: Path, runtime: str
) -> None:
    with standing(tmp_path / "a", on(runtime, running=())) as stand:
        leave_over(stand.host.networks / "cbr0", every_address())
        document = stand.scan()
        (critical,) = (one for one in document["findings"] if one["severity"] == "critical")
        assert critical["message"].startswith(
            "cbr0: no free addresses; 253 of 253 addresses are reserved (253 leaked)"
        )
        assert len(leaks(document)) == 253
        assert verdicts(stand)["would_release"] == 253
    with standing(tmp_path / "b", on(runtime)) as stand:
        forget_results(stand)
        stand.host.store.mkdir()  # kubenet's, which is no fault
        document = stand.scan()
        assert (subjects(document), judged(document)) == ([], {"cbr0"})
        leave_over(stand.host.networks / "cbr0", every_address()[20:52])
        assert len(leaks(stand.scan())) == 32
        assert verdicts(stand)["would_release"] == 32


@pytest.mark.parametrize("network", ["kubenet", "cbr0", "cbr0, which was renamed"])
@pytest.mark.parametrize(
    ("container_id", "cached"),
    [("cnitool-77383ca0a0715733ca6f", True), ("e" * 64, True), (f"default-{'a' * 64}", False)],
    ids=["cnitool", "an ID like a pod's", "nerdctl"],
)
def test_an_address_that_is_no_pods_leaves_the_network_of_the_pods_judged(
    tmp_path: Path, network: str, container_id: str, cached: bool
) -> None:
    name = network.partition(",")[0]
    with standing(tmp_path, a_node(network=name, runtime=DOCKER)) as stand:
        leave_over(stand.host.networks / name, every_address()[5:9])
        if network != name:
            reconfigure(stand, "renamed", BRIDGE)
        # What an ADD by hand, or one of another program, leaves in the network of the pods.
        leave_over(stand.host.networks / name, ["10.244.1.99"])
        (stand.host.networks / name / "10.244.1.99").write_text(f"{container_id}\r\neth0")
        if cached:
            cache_result(stand.host.cache, name, container_id, "10.244.1.99")
        document = stand.scan()
        assert name in judged(document)
        assert leaks(document)[:4] == [
            f"leaked_reservation {name}/{ip}" for ip in every_address()[5:9]
        ]


def test_a_process_whose_address_two_networks_reserve_is_that_of_the_running_container(
    tmp_path: Path,
) -> None:
    """Two VLANs may have one range: the pod of one has the address, and the other has leaked it."""
    with standing(tmp_path, a_node(network="vlan20", runtime=CRI_O)) as stand:
        shared, alone = stand.node.running[0].ip, "10.244.1.99"
        leave_over(stand.host.networks / "vlan10", [alone, shared])
        cache_result(stand.host.cache, "vlan10", "0" * 64, alone, "net1", BRIDGE, cniArgs=OF_A_POD)
        document = stand.scan()
        assert sorted(subjects(document)) == [
            f"leaked_reservation vlan10/{alone}",
            "overlapping_ranges vlan10 and vlan20",
            f"unmanaged_address vlan10/{shared}",
        ]
        (told,) = (one for one in document["findings"] if one["detector"] == "unmanaged_address")
        assert told["severity"] == "info", "the process is a healthy pod's"
        why = {
            one["ip"]: one["why"] for one in document["reservations"] if one["network"] == "vlan10"
        }
        assert why[shared].endswith(
            "has the address, which vlan20 reserves for a container that the runtime has"
        )
        cleaned = stand.cleaned("--apply", "--settle=0s", "--cleanup-network=auto,vlan10")
        assert {one["ip"]: one["reason"] for one in cleaned["addresses"]} == {
            shared: "address_in_use",
            alone: None,
        }
        assert {path.name for path in (stand.host.networks / "vlan10").iterdir()} >= {shared}


MULTUS: Final = {"type": "multus", "kubeconfig": "/etc/cni/net.d/multus.d/multus.kubeconfig"}
CBR0: Final = {"name": "cbr0", "plugins": [BRIDGE]}


@pytest.mark.parametrize(
    "multus",
    [
        MULTUS | {"delegates": [CBR0]},
        MULTUS | {"Delegates": [{"Name": "cbr0", "PLUGINS": [BRIDGE]}]},
        MULTUS | {"delegates": [{"name": "cbr0", **BRIDGE}]},
        MULTUS | {"clusterNetwork": "cbr0"},
        MULTUS | {"type": "multus-shim", "clusterNetwork": "/host/etc/cni/net.d/10-cbr0.conflist"},
    ],
    ids=["list", "case", "plugin", "name", "thick"],
)
@pytest.mark.parametrize("runtime", [CRI_O, CONTAINERD])
def test_the_delegate_of_multus_is_judged_and_cleaned(
    tmp_path: Path, multus: dict[str, Any], runtime: str
) -> None:
    loaded = cri.cniconfig(multus, name="multus-cni-network") if runtime == CONTAINERD else ""
    with standing(tmp_path, on(runtime, running=()), loaded) as stand:
        (stand.host.net_d / "00-multus.conf").write_text(
            json.dumps({"name": "multus-cni-network", **multus})
        )
        leave_over(stand.host.networks / "cbr0", every_address())
        document = stand.scan()
        assert "exhausted_range cbr0" in subjects(document)
        assert judged(document) == {"cbr0"}
        assert verdicts(stand)["would_release"] == 253


def test_a_multus_whose_delegates_are_elsewhere_is_a_gap(tmp_path: Path) -> None:
    with standing(tmp_path, on(CRI_O, running=())) as stand:
        reconfigure(stand, "multus-cni-network", MULTUS | {"clusterNetwork": "other"})
        why = {one["source"]: one["why"] for one in stand.scan(code=3)["unavailable"]}
        assert (
            "clusterNetwork other is in no file: name the network with --network" in why["networks"]
        )


def reserve_further(
    stand: Stand,
    number: int,
    cache: Path | None = None,
    *,
    of_pod: bool = True,
    namespace: str = "",
    config: Any = None,
) -> Path:
    """Leave an old reservation of a further network with its cached result.

    `namespace`: where that of the pod was mounted; empty: the result names none.
    """
    container_id, ip, store = f"{number:064x}", f"10.99.0.{number}", stand.host.networks / "storage"
    leave_over(store, [ip])
    (store / ip).write_text(f"{container_id}\r\nnet1")
    os.utime(store / ip, (NINETY_DAYS_AGO, NINETY_DAYS_AGO))
    result = {
        "ips": [{"address": f"{ip}/24"}],
        "interfaces": [{"name": "net1", "sandbox": namespace}],
    }
    more = {"cniArgs": OF_A_POD if of_pod else None, "result": result}
    return cache_result(
        cache or stand.host.cache, "storage", container_id, ip, "net1", config, **more
    )


def test_a_further_network_is_judged_by_its_cached_results_of_pods(tmp_path: Path) -> None:
    with standing(tmp_path, on(CRI_O)) as stand:
        reserve_further(stand, 3, of_pod=False)
        assert (leaks(stand.scan()), judged(stand.scan())) == ([], {"cbr0"}), (
            "it is another program's"
        )
        for number in (4, 5):
            reserve_further(stand, number)
        document = stand.scan()
        assert judged(document) == {"cbr0", "storage"}
        assert subjects(document) == [
            f"leaked_reservation storage/10.99.0.{number}" for number in (4, 5)
        ]
        states = {
            one["ip"]: one["state"]
            for one in document["reservations"]
            if one["network"] == "storage"
        }
        assert states == {"10.99.0.3": "unknown", "10.99.0.4": "leaked", "10.99.0.5": "leaked"}


def test_the_directory_of_an_attachment_that_only_its_results_name_is_read(tmp_path: Path) -> None:
    with standing(tmp_path, on(CRI_O)) as stand:
        host_local = {
            "type": "host-local",
            "dataDir": "/run/storage-ipam",
            "ranges": [[{"subnet": "10.99.0.0/24"}]],
        }
        reserve_further(stand, 4, config={"plugins": [BRIDGE | {"ipam": host_local}]})
        (run := tmp_path / "run").mkdir()
        shutil.move(stand.host.networks / "storage", tmp_path / "aside")
        where = f"--run-dir={run}"
        assert subjects(stand.scan(where)) == [], "it is not mounted"
        shutil.move(tmp_path / "aside", run / "storage-ipam/storage")
        assert subjects(stand.scan(where)) == ["leaked_reservation storage/10.99.0.4"]
        options = ("--settle=0s", "--ip=10.99.0.4", "--cleanup-network=storage", where)
        assert stand.cleaned(*options)["verdicts"]["would_release"] == 1
        # What users write is no path before it is checked.
        for number, data_dir in enumerate(("/x\0", "/x\ud800", "x", "/none", 7, ["/x"]), 5):
            ipam = {"type": "host-local", "dataDir": data_dir}
            reserve_further(stand, number, config={"plugins": [BRIDGE | {"ipam": ipam}]})
        assert judged(stand.scan()) == {"cbr0", "storage"}


def test_the_results_of_multus_are_read_by_default(tmp_path: Path) -> None:
    needs(os.geteuid() == 0, "root, to mount directories")
    with standing(tmp_path, on(CRI_O)) as stand:
        stand.host.cache.rename(stand.host.networks.parent / "results")
        (multus := stand.host.networks.parent / "multus/results").mkdir(parents=True)
        reserve_further(stand, 5, multus)
        reserve_further(stand, 6, multus, namespace="/var/run/netns/cni-6")
        mounted = "1 0 0:4 net:[4026532281] /run/netns/cni-6 rw - nsfs nsfs rw\n"
        (stand.host.proc / "1/mountinfo").write_text(mounted)
        mounting = "mount -t tmpfs none /var/lib && mkdir /var/lib/cni && mount --bind $0 /var/lib/cni && exec $*"
        prefix = ("unshare", "--mount", "sh", "-c", mounting, str(stand.host.networks.parent))
        options = [
            option for option in stand.options("off") if not option.startswith("--cni-cache-dir=")
        ]
        done = nodeleak("scan", "-o", "json", *options, prefix=prefix)
        document = json.loads(done.out)
        assert leaks(document) == ["leaked_reservation storage/10.99.0.5"], done
        states = {
            one["ip"]: one["state"]
            for one in document["reservations"]
            if one["network"] == "storage"
        }
        assert states["10.99.0.6"] == "unmanaged", done
        more = ("--ip=10.99.0.6", "--cleanup-network=storage", "--settle=0s")
        done = nodeleak("clean", "-o", "json", *more, *options, prefix=prefix)
        (release,) = json.loads(done.out)["addresses"]
        assert release["refusals"][0]["reason"] == "address_in_use", done


def test_a_further_network_whose_add_fails_is_judged_while_a_pod_waits(tmp_path: Path) -> None:
    for name, waiting in (("a", ()), ("b", (("shop", "web-1"),))):
        with standing(tmp_path / name, on(CRI_O, pending=waiting)) as stand:
            store = stand.host.networks / "storage"
            leave_over(store, ["10.99.0.7", "10.99.0.8"])
            os.utime(store / "10.99.0.8", ((NOW - timedelta(minutes=10)).timestamp(),) * 2)
            expected = (
                [f"leaked_reservation storage/10.99.0.{last}" for last in (7, 8)] if waiting else []
            )
            document = stand.scan(code=UNAVAILABLE if waiting else DONE)
            assert sorted(leaks(document)) == expected, name
            found = verdicts(stand)
            assert (found["would_release"], found["refused"]) == (0, len(expected)), (
                "no configuration names it"
            )


def test_a_network_of_before_is_not_judged_while_a_pod_waits_for_something_else(
    tmp_path: Path,
) -> None:
    with standing(tmp_path, on(CRI_O, pending=(("shop", "web-1"),))) as stand:
        leave_over(stand.host.networks / "before", ["10.99.0.7"])
        os.utime(
            stand.host.networks / "before/10.99.0.7",
            ((NOW - timedelta(minutes=10)).timestamp(),) * 2,
        )
        cache_result(
            stand.host.cache, "before", f"{0:064x}", "10.99.0.7", config=BRIDGE, cniArgs=OF_A_POD
        )  # succeeded
        assert leaks(stand.scan()) == []


def test_a_first_file_that_the_runtime_may_have_skipped_is_not_believed_while_a_pod_waits(
    tmp_path: Path,
) -> None:
    for name, waiting in (("a", ()), ("b", (("shop", "web-1"),))):
        with standing(tmp_path / name, on(CRI_O, running=(), pending=waiting)) as stand:
            leave_over(stand.host.networks / "cbr0", every_address())
            forget_results(stand)
            cache_result(
                stand.host.cache, "cbr0", "0" * 64, "10.99.0.0", cniArgs=OF_A_POD
            )  # of a pod that is gone
            configure(stand.host.net_d / "05-weave.conflist", "weave", {"type": "weave-net"})
            document = stand.scan(code=UNAVAILABLE if waiting else DONE)
            missing = [one["why"] for one in document["unavailable"]]
            assert ["skips network weave" in why for why in missing] == [True] * len(waiting), (
                missing
            )
            assert verdicts(stand)["would_release"] == 0
            leave_over(stand.host.networks / "weave", ["10.32.0.1"])
            yesterday = (NOW - timedelta(days=1)).timestamp()
            os.utime(
                stand.host.networks / "weave/10.32.0.1", (yesterday, yesterday)
            )  # it had the last address
            # The range of weave is not known, but nobody doubts that it is used.
            assert not [
                one for one in stand.scan(code=UNAVAILABLE)["unavailable"] if "skips" in one["why"]
            ]


def test_a_first_file_whose_network_no_pod_has_is_a_gap_if_a_later_one_is_that_of_the_pods(
    tmp_path: Path,
) -> None:
    with standing(tmp_path, on(CRI_O)) as stand:
        configure(stand.host.net_d / "05-old.conflist", "old", BRIDGE)
        for path in (stand.host.net_d / "05-old.conflist", stand.host.net_d):
            os.utime(path, (NINETY_DAYS_AGO, NINETY_DAYS_AGO))  # as `cp -p` does
        document = stand.scan(code=UNAVAILABLE)
        assert (subjects(document), [one["source"] for one in document["unavailable"]]) == (
            [],
            ["networks"],
        )
        assert judged(document) == {"cbr0"}


@pytest.mark.parametrize("api", ["on", "off"])
def test_a_network_renamed_under_running_pods_is_told_at_once(tmp_path: Path, api: str) -> None:
    with standing(tmp_path, on(CRI_O)) as stand:
        reconfigure(stand, "renamed", BRIDGE)
        for _ in range(2):
            found = [
                one
                for one in subjects(stand.scan(api=api))
                if not one.startswith("unreserved_pod_ip renamed/")
            ]
            assert found == ["overlapping_ranges cbr0 and renamed"]
            (stand.host.networks / "renamed").mkdir(exist_ok=True)
        assert (
            len(
                [
                    one
                    for one in subjects(stand.scan())
                    if one.startswith("unreserved_pod_ip renamed/")
                ]
            )
            == 5
        )


@pytest.mark.parametrize("runtime", [CRI_O, CONTAINERD])
@pytest.mark.parametrize(
    "chain",
    [
        ({"type": "aws-cni"}, EGRESS, {"type": "portmap"}),
        ({"type": "aws-cni"}, EGRESS | {"enabled": False}),
        ({"type": "cilium-cni"},),
    ],
    ids=["eks", "boolean", "cilium"],
)
def test_a_network_without_host_local_is_no_gap(
    tmp_path: Path, runtime: str, chain: tuple[dict[str, Any], ...]
) -> None:
    loaded = cri.cniconfig(*chain, name="aws-cni") if runtime == CONTAINERD else ""
    with standing(tmp_path, on(runtime), loaded) as stand:
        reconfigure(stand, "aws-cni", *chain)
        shutil.rmtree(stand.host.networks / "cbr0")
        for path in stand.host.cache.glob("cbr0-*"):  # libcni has a result of each pod
            result = json.loads(path.read_text()) | {"networkName": "aws-cni"}
            result["config"] = base64.b64encode(
                json.dumps({"name": "aws-cni", "plugins": chain}).encode()
            ).decode()
            path.with_name(path.name.replace("cbr0", "aws-cni")).write_text(json.dumps(result))
            path.unlink()
        document = stand.scan()
        assert (subjects(document), document["unavailable"]) == ([], [])
        forget_results(stand)
        document = stand.scan()
        assert (subjects(document), document["unavailable"]) == ([], [])


def test_every_plugin_of_a_chain_counts_and_two_directories_of_host_local_are_a_gap(
    tmp_path: Path,
) -> None:
    with standing(tmp_path, on(CRI_O, running=())) as stand:
        reconfigure(stand, "cbr0", {"Type": "aws-cni", "IPAM": {"type": "other"}}, BRIDGE)
        leave_over(stand.host.networks / "cbr0", every_address())
        assert "exhausted_range cbr0" in subjects(stand.scan())
        second = tmp_path / "second/cbr0"
        second.parent.mkdir()
        leave_over(second, ["10.55.0.5"])
        ipam = {
            "type": "host-local",
            "ranges": [[{"subnet": "10.55.0.0/24"}]],
            "dataDir": str(second.parent),
        }
        reconfigure(stand, "cbr0", BRIDGE, {"type": "macvlan", "ipam": ipam})
        document = stand.scan(code=3)
        assert subjects(document) == []
        why = {one["source"]: one["why"] for one in document["unavailable"]}
        both = f"{stand.host.networks} and {second.parent}"
        assert why == {
            "reservations": f"network cbr0 has two dataDirs, {both}, and only one can be read"
        }


@pytest.mark.parametrize(
    "break_it", [shutil.rmtree, lambda path: [one.unlink() for one in path.iterdir()]]
)
@pytest.mark.parametrize("runtime", [CRI_O, DOCKER])
def test_without_the_configuration_nothing_is_called_unused(
    tmp_path: Path, runtime: str, break_it: Any
) -> None:
    with standing(tmp_path, on(runtime, running=())) as stand:
        leave_over(stand.host.networks / "cbr0", every_address())
        break_it(stand.host.net_d)
        document = stand.scan(code=3)
        why = {one["source"]: one["why"] for one in document["unavailable"]}
        assert str(stand.host.net_d) in why["networks"]
        assert "--cni-config-dir" in why["networks"]
        assert "it is unknown whether pods use network cbr0" in why["reservations"]
        # A fake CRI-O says that its network is ready, and no pod waits.
        assert subjects(document) == []


LOADED_NONE: Final = json.dumps({"Networks": [], "PluginConfDir": "/etc/cni/net.d"})


@pytest.mark.parametrize("runtime", [CRI_O, CONTAINERD])
def test_a_runtime_without_a_configuration_is_no_fault_of_a_mount_and_hides_no_leak(
    tmp_path: Path, runtime: str
) -> None:
    loaded = LOADED_NONE if runtime == CONTAINERD else ""
    not_ready = "cni plugin not initialized"
    for name, changes in (("a", {}), ("b", {"running": ()})):
        node = on(runtime, **changes)
        with standing(tmp_path / name, node, loaded, not_ready=not_ready) as stand:
            (stand.host.proc / "1/ns").mkdir()
            (stand.host.proc / "1/ns/mnt").symlink_to("/proc/self/ns/mnt")
            leave_over(stand.host.networks / "cbr0", every_address()[20:52])
            if runtime == CONTAINERD:  # a damaged file comes first, and it loads all or nothing
                (stand.host.net_d / "05-mesh.conflist").touch()
            else:
                reconfigure(stand, "cbr0")
            if node.running:
                document = stand.scan()
                assert document["unavailable"] == []
                assert judged(document) == {"cbr0"}
                assert len(leaks(document)) == 32
            else:
                (missing,) = stand.scan(code=3)["unavailable"]
                assert missing["source"] == "reservations"
                reason = "the container runtime has loaded no CNI configuration"
                assert missing["why"].endswith(reason)
            assert verdicts(stand)["would_release"] == 0, "no configuration names its network"


def test_the_first_file_that_libcni_accepts_is_the_default_network_and_podmans_is_not_released(
    tmp_path: Path,
) -> None:
    with standing(tmp_path, on(CRI_O, running=())) as stand:
        for name, text in (
            ("00-a.conflist", "{"), ("01-b.conf", "[]"), ("02-c.json", "{}"), ("03-d.conflist", '{"name": "d"}'),
            ("04-e.conflist.bak", json.dumps({"name": "e", "plugins": [BRIDGE]})),
        ):  # fmt: skip
            (stand.host.net_d / name).write_text(text)
        (stand.host.net_d / "05-f.conf").mkdir()
        configure(stand.host.net_d / "87-podman.conflist", "podman", BRIDGE)
        configure(stand.host.net_d / "nerdctl-bridge.conflist", "bridge", BRIDGE)
        leave_over(stand.host.networks / "cbr0", every_address()[:3])
        leave_over(stand.host.networks / "podman", ["10.88.0.2"])
        leave_over(stand.host.networks / "bridge", [])
        (stand.host.networks / "bridge/10.4.0.2").write_text(f"default-{'a' * 64}")
        document = stand.scan()
        assert judged(document) == {"cbr0"}
        assert len(leaks(document)) == 3
        others = set(subjects(document)).difference(leaks(document))
        overlaps = {f"overlapping_ranges cbr0 and {name}" for name in ("bridge", "podman")}
        assert others == {"broken_cni_config 00-a.conflist", *overlaps}
        (stand.host.net_d / "87-podman.conflist").rename(stand.host.net_d / "05-podman.conflist")
        document = stand.scan(code=UNAVAILABLE)
        assert judged(document) == {"podman"}
        assert "left_over_network cbr0" in subjects(document)
        assert leaks(document) == []
        assert [one["state"] for one in document["reservations"]] == ["unknown"]
        assert verdicts(stand)["refused"] == 1
        for name in ("05-podman", "10-cbr0", "nerdctl-bridge"):
            (stand.host.net_d / f"{name}.conflist").unlink()
        why = {one["source"]: one["why"] for one in stand.scan(code=3)["unavailable"]}
        assert "is a CNI configuration: 00-a.conflist: " in why["networks"]


def test_no_directory_is_left_over_while_a_pod_waits_for_an_address(tmp_path: Path) -> None:
    for name, waiting, found in (
        ("a", (), ["left_over_network old"]),
        ("b", (("shop", "web-1"),), []),
    ):
        with standing(tmp_path / name, on(CRI_O, pending=waiting)) as stand:
            leave_over(stand.host.networks / "old", ["10.99.0.7"])
            assert subjects(stand.scan()) == found


def test_a_cached_result_that_is_too_large_costs_that_result_only(tmp_path: Path) -> None:
    with standing(tmp_path, on(CRI_O)) as stand:
        large = next(path for path in stand.host.cache.iterdir() if path.name.startswith("cbr0-"))
        large.write_text(large.read_text() + " " * 4_200_000)
        leave_over(stand.host.networks / "cbr0", ["10.244.1.98", "10.244.1.99"])
        ghost = f"cbr0-{1:064x}-eth0"  # of the second one
        (stand.host.cache / ghost).write_text(" " * 4_200_000)
        document = stand.scan()
        assert leaks(document) == ["leaked_reservation cbr0/10.244.1.98"]
        (unknown,) = (one for one in document["reservations"] if one["state"] == "unknown")
        assert (unknown["ip"], ghost in unknown["why"]) == ("10.244.1.99", True)
        assert verdicts(stand)["would_release"] == 1


def test_a_frozen_runtime_is_waited_for_once_in_a_snapshot(tmp_path: Path) -> None:
    node = on(CONTAINERD)
    host = build(tmp_path / "node", node)
    with FakeGrpcServer(host.containerd_socket, lambda call: call.hang()) as server:
        document = Stand(node, host).scan("--docker-timeout=300ms", api="off", code=3)
        why = f"{host.containerd_socket}: Status: no complete response within 0.3 s"
        unavailable = {one["source"]: one["why"] for one in document["unavailable"]}
        assert (server.connections, unavailable["networks"], unavailable["containers"]) == (
            1,
            why,
            why,
        )
        Stand(node, host).scan("--docker-timeout=300ms", "--network=cbr0", api="off", code=3)
        assert server.connections == 2


@pytest.mark.parametrize("runtime", [CRI_O, CONTAINERD, DOCKER])
@pytest.mark.parametrize(
    ("name", "plugin"),
    [
        ("cbr0", FLANNEL),
        ("cbr0", BRIDGE),
        (
            "k8s-pod-network",
            {"type": "calico", "ipam": {"type": "host-local", "subnet": "usePodCidr"}},
        ),
        ("kubenet", BRIDGE | {"bridge": "cbr0"}),
        ("k8s-pod-network", {"type": "ptp", "ipam": HOST_LOCAL}),
    ],
    ids=["flannel", "bridge", "canal", "aks", "gke"],
)
def test_a_healthy_node_is_ok(
    tmp_path: Path, runtime: str, name: str, plugin: dict[str, Any]
) -> None:
    loaded = cri.cniconfig(plugin, name=name) if runtime == CONTAINERD else ""
    flag = "cni" if runtime == DOCKER else ""
    with standing(
        tmp_path, a_node(network=name, runtime=runtime, network_plugin=flag), loaded
    ) as stand:
        reconfigure(stand, name, plugin)
        document = stand.scan(f"--run-dir={stand.host.root}/run")  # without that of this machine
        assert (subjects(document), document["unavailable"], judged(document)) == ([], [], {name})


def test_a_data_directory_below_run_is_judged(tmp_path: Path) -> None:
    with standing(tmp_path, on(CRI_O, data_dir="/run/cni-ipam-state", running=())) as stand:
        run = f"--run-dir={stand.host.root}/run"
        assert judged(stand.scan(run)) == {"cbr0"}, "host-local has not made it yet"
        store = stand.host.root / "run/cni-ipam-state/cbr0"
        store.parent.mkdir()
        shutil.move(stand.host.networks / "cbr0", store)
        leave_over(store, every_address())
        assert "exhausted_range cbr0" in subjects(stand.scan(run))

"""Where distributions keep host-local's directories: leaks are found there, and released.

Simulated nodes: the configurations are those that the projects publish, shortened.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.cli.commands import nodeleak
from tests.cli.test_networks import (
    CIDR,
    Stand,
    a_node,
    every_address,
    leaks,
    leave_over,
    standing,
    subjects,
)
from tests.fakes import cri

PORTMAP: Final = {"type": "portmap", "capabilities": {"portMappings": True}}
LEAKED: Final = every_address()[5:9]


@dataclass(frozen=True)
class Layout:
    network: str
    chain: tuple[dict[str, Any], ...]
    data_dir: str = "/var/lib/cni/networks"
    runtime: str = "containerd://2.1.4"


def host_local(subnet: str = CIDR, data_dir: str = "") -> dict[str, Any]:
    ipam = {"type": "host-local", "ranges": [[{"subnet": subnet}]]}
    return ipam | ({"dataDir": data_dir} if data_dir else {})


def egress(data_dir: str) -> dict[str, Any]:
    """Of EKS; its addresses are not those that the API server knows."""
    return {
        "name": "egress-cni", "type": "egress-cni", "enabled": "true",
        "ipam": host_local(CIDR, data_dir),
    }  # fmt: skip


LAYOUTS: Final = {
    "Antrea": Layout(
        "antrea",
        ({"type": "antrea", "ipam": {"type": "host-local"}}, PORTMAP, {"type": "bandwidth"}),
        "/run/antrea/cni/networks",
    ),
    "EKS with IPv6": Layout(
        "aws-cni",
        ({"type": "aws-cni"}, egress("/run/cni/v6pd/egress-v4-ipam"), PORTMAP),
        "/run/cni/v6pd/egress-v4-ipam",
    ),
    "EKS with IPv6 egress": Layout(
        "aws-cni",
        ({"type": "aws-cni"}, egress("/run/cni/v4pd/egress-v6-ipam"), PORTMAP),
        "/run/cni/v4pd/egress-v6-ipam",
    ),
    "minikube": Layout(
        "bridge",
        ({"type": "bridge", "ipam": {"type": "host-local", "subnet": "10.244.0.0/16"}}, PORTMAP),
    ),
    "kind": Layout(
        "kindnet",
        ({"type": "ptp", "ipam": host_local(data_dir="/run/cni-ipam-state")}, PORTMAP),
        "/run/cni-ipam-state",
    ),
    "k0s": Layout(
        "mynet",
        ({"name": "kubernetes", "type": "bridge", "ipam": {"type": "host-local", "subnet": CIDR}},),
    ),
    "canal": Layout(
        "k8s-pod-network",
        ({"type": "calico", "ipam": host_local("usePodCidr")}, PORTMAP, {"type": "bandwidth"}),
        runtime="containerd://2.0.5-k3s1",
    ),
    "Talos": Layout("cbr0", ({"type": "flannel", "delegate": {"hairpinMode": True}}, PORTMAP)),
    "MicroK8s with flannel": Layout(
        "microk8s-flannel-network", ({"type": "flannel"}, PORTMAP), runtime="containerd://1.6.28"
    ),
    "Cilium with host-local": Layout(
        "cilium",
        ({"type": "cilium-cni", "ipam": host_local(data_dir="/var/lib/cni/networks")},),
    ),
    "TrueNAS": Layout(
        "ix-net",
        (
            {
                "type": "multus",
                "delegates": [
                    {"name": "ix-net", "plugins": [{"type": "bridge", "ipam": host_local()}]}
                ],
            },
        ),
    ),
    "OpenShift SDN": Layout(
        "openshift-sdn", ({"type": "openshift-sdn"},), runtime="cri-o://1.27.8"
    ),
}


@contextmanager
def node_of(directory: Path, layout: Layout) -> Iterator[tuple[Stand, Path, list[str]]]:
    """Yield a node, its network's directory as nodeleak sees it, and the options for that."""
    run = directory / "run"
    node = a_node(network=layout.network, runtime=layout.runtime)
    loaded = cri.cniconfig(*layout.chain, name=layout.network)
    is_crio = layout.runtime.startswith("cri-o")
    with standing(directory, node, "" if is_crio else loaded) as stand:
        for path in stand.host.net_d.iterdir():
            path.unlink()
        tree = {"cniVersion": "0.4.0", "name": layout.network, "plugins": list(layout.chain)}
        (stand.host.net_d / "10-pods.conflist").write_text(json.dumps(tree))
        own = stand.host.networks / layout.network
        if layout.data_dir.startswith("/run/"):
            own = run / Path(layout.data_dir).relative_to("/run") / layout.network
            own.parent.mkdir(parents=True)
            shutil.move(stand.host.networks / layout.network, own)
        leave_over(own, LEAKED)
        yield stand, own, [f"--run-dir={run}", f"--state-dir={directory / 'state'}"]


def test_leaks_are_found_and_released_wherever_a_distribution_keeps_them(tmp_path: Path) -> None:
    for number, (name, layout) in enumerate(LAYOUTS.items()):
        with node_of(tmp_path / str(number), layout) as (stand, directory, options):
            document = stand.scan(*options)
            expected = [f"leaked_reservation {layout.network}/{ip}" for ip in LEAKED]
            assert subjects(document) == expected, name
            assert document["unavailable"] == [], name
            before = {path.name for path in directory.iterdir()}
            done = stand.cleaned("--apply", "--settle=0s", *options)
            assert done["verdicts"]["released"] == len(LEAKED), (name, done)
            assert before - {path.name for path in directory.iterdir()} == set(LEAKED), name


def test_openshift_sdn_below_multus_needs_its_name(tmp_path: Path) -> None:
    multus = Layout("openshift-sdn", ({"type": "multus-shim"},), runtime="cri-o://1.27.8")
    with node_of(tmp_path, multus) as (stand, _, options):
        document = stand.scan(*options, code=3)
        assert "name their networks with --network" in document["unavailable"][0]["why"]
        named = [*options, "--network=openshift-sdn"]
        assert len(leaks(stand.scan(*named))) == len(LEAKED)


def test_a_backup_of_the_directory_stays_as_it_is_while_the_original_is_cleaned(
    tmp_path: Path,
) -> None:
    with node_of(tmp_path, LAYOUTS["Talos"]) as (stand, directory, options):
        copy = directory.parent / "cbr0.bak"
        shutil.copytree(directory, copy)  # with their times, as `cp -a`
        before = {path.name: path.read_bytes() for path in copy.iterdir()}
        document = stand.scan(*options)
        assert len(leaks(document)) == len(LEAKED)
        assert "left_over_network cbr0.bak" in subjects(document)
        assert "overlapping_ranges" not in json.dumps(document["findings"])
        for network in ("auto", "auto,cbr0.bak", "cbr0.bak"):
            named = (f"--cleanup-network={network}", "--settle=0s", *options)
            done = nodeleak("clean", "-o", "json", *stand.options("on", *named))
            places = {one["network"] for one in json.loads(done.out)["addresses"]}
            assert places == {"cbr0"}, network
        done = stand.cleaned("--apply", "--settle=0s", *options)
        assert done["verdicts"] | {"released": 0} == dict.fromkeys(done["verdicts"], 0)
        assert done["verdicts"]["released"] == len(LEAKED)
        assert {path.name: path.read_bytes() for path in copy.iterdir()} == before
        # Now nothing is in both.
        for path in copy.iterdir():
            if path.name not in LEAKED:
                path.unlink()
        document = stand.scan(*options)
        assert subjects(document) == ["left_over_network cbr0.bak"]
        assert stand.cleaned("--apply", "--settle=0s", *options)["addresses"] == []


def test_nerdctl_that_shares_the_directory_of_the_pods_is_named_and_left_alone(
    tmp_path: Path,
) -> None:
    with node_of(tmp_path, LAYOUTS["minikube"]) as (stand, directory, options):
        of_nerdctl = [f"10.4.0.{last}" for last in range(2, 6)]
        for ip in of_nerdctl:
            (directory / ip).write_text(f"default-{'a' * 64}\r\neth0")
        text = stand.text(*options)
        assert "is an ID of nerdctl, which shares this directory" in text
        assert "bridge: 4 files are outside of the range." in text
        assert stand.cleaned("--apply", "--settle=0s", *options)["verdicts"]["released"] == 4
        assert {path.name for path in directory.iterdir()} >= set(of_nerdctl)

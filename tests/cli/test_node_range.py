"""scan on nodes whose CNI configuration gives pods addresses that are not the node's, or none."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, Final

from tests.cli.commands import nodeleak
from tests.cli.test_cni_config import FLANNEL, reconfigure
from tests.cli.test_networks import NOW, Stand, cache_result
from tests.fakes import cri
from tests.fakes.apiserver import apiserver
from tests.fakes.grpc_server import FakeGrpcServer
from tests.fakes.host import build, configure, write_kubeconfig
from tests.fakes.nodes import FakeNode, healthy

CONTAINERD: Final = "containerd://1.7.24"
CRI_O: Final = "cri-o://1.35.6"
POD_CIDR: Final = "10.244.1.0/24"
CALICO: Final = {"type": "calico", "ipam": {"type": "calico-ipam"}}


def bridge(subnet: str) -> dict[str, Any]:
    ipam = {"type": "host-local", "ranges": [[{"subnet": subnet}]]}
    return {"type": "bridge", "bridge": "cni0", "ipam": ipam}


@contextmanager
def node_with(
    directory: Path,
    node: FakeNode,
    *loaded: dict[str, Any],
    pod_cidr: str = POD_CIDR,
    not_ready: str = "",
) -> Iterator[Stand]:
    """`loaded`: the plugins that containerd has. `not_ready`: what the runtime says of its network."""
    host = build(directory / "node", node)
    config = {"cniconfig": cri.cniconfig(*loaded, name=node.network)} if loaded else {}
    runtime = cri.of_node(node, config)
    runtime.network_not_ready = not_ready
    with ExitStack() as stack:
        stack.enter_context(FakeGrpcServer(host.containerd_socket, runtime.answer))
        assigned = replace(node, cidr=IPv4Network(pod_cidr))
        write_kubeconfig(host, stack.enter_context(apiserver(assigned)))
        yield Stand(node, host)


def messages(document: Any, detector: str) -> list[str]:
    return [
        f"{one['severity']}: {one['message']}"
        for one in document["findings"]
        if one["detector"] == detector
    ]


def test_the_file_that_comes_with_containerd_shadows_flannels(tmp_path: Path) -> None:
    sample = bridge("10.88.0.0/16")
    node = replace(healthy(NOW, 3, "10.88.0.0/16"), network="containerd-net", runtime=CONTAINERD)
    with node_with(tmp_path, node, sample) as stand:
        net_d = stand.host.net_d
        configure(net_d / "20-flannel.conflist", "cbr0", FLANNEL)
        (told,) = messages(stand.scan(), "wrong_range")
        assert told.startswith(
            "critical: containerd-net gives pods addresses of 10.88.0.0/16 (the sample of "
            "containerd and podman, the same on every node), which is outside of the node's pod "
            f"CIDR {POD_CIDR}; 20-flannel.conflist (network cbr0"
        )
        shown = [f"{one.namespace}/{one.pod} {one.ip}" for one in node.running if one.ip]
        assert [pod for pod in shown if pod not in told] == []
        text = stand.text()
        assert f"mv {net_d}/10-containerd-net.conflist /root/" in text
        assert text.splitlines()[1] == "Critical: 1 network with a wrong range"


def test_every_node_has_the_sample_bridge_of_cri_o(tmp_path: Path) -> None:
    node = replace(healthy(NOW, 3, "10.85.0.0/16"), network="crio", runtime=CRI_O)
    with node_with(tmp_path / "a", node) as stand:
        (told,) = messages(stand.scan(), "wrong_range")
        assert told.startswith("warning: crio gives pods addresses of 10.85.0.0/16 (the sample of ")
        assert "Install the cluster's CNI, or see why its pod does not run on" in stand.text()
    # The same node, whose pod CIDR is that range.
    with node_with(tmp_path / "b", node, pod_cidr="10.85.0.0/16") as stand:
        assert stand.scan()["findings"] == []


def test_calico_allocates_in_the_range_of_flannels_pods(tmp_path: Path) -> None:
    node = replace(healthy(NOW, 4, POD_CIDR), network="cbr0", runtime=CONTAINERD)
    calico = node.running[0]
    with node_with(tmp_path, node) as stand:
        reconfigure(stand, "k8s-pod-network", CALICO)
        (stand.host.networks / "cbr0" / calico.ip).unlink()
        (stand.host.cache / f"cbr0-{calico.id}-eth0").unlink()
        cache_result(stand.host.cache, "k8s-pod-network", calico.id, calico.ip, config=CALICO)
        document = stand.scan()
        (told,) = messages(document, "overlapping_ranges")
        assert told.startswith(
            "warning: k8s-pod-network gives pods addresses in the range of cbr0, which its IPAM "
            f"does not know of, such as {calico.ip} of pod {calico.namespace}/{calico.pod}"
        )
        assert "cbr0 is no longer in the CNI configuration, and " in told
        assert messages(document, "wrong_range") == []


def test_host_local_refuses_a_subnet_with_host_bits(tmp_path: Path) -> None:
    plugin = bridge("10.244.1.1/24")
    node = replace(healthy(NOW, 0, POD_CIDR), network="kubenet", runtime=CONTAINERD, running=())
    with node_with(tmp_path, node, plugin) as stand:
        reconfigure(stand, "kubenet", plugin)
        (told,) = messages(stand.scan(), "wrong_range")
        assert told == (
            "warning: kubenet: host-local refuses its configuration, because 10.244.1.1/24 has "
            "host bits set: its network address is 10.244.1.0/24; see "
            f"{stand.host.net_d}/10-kubenet.conflist"
        )


def test_an_empty_first_file_is_told_by_the_rule_of_each_runtime(tmp_path: Path) -> None:
    not_initialized = "cni plugin not initialized"
    for runtime, words in (
        (CONTAINERD, "has no network for pods: 05-mesh.conflist is empty"),
        (CRI_O, "uses 10-cbr0.conflist (network cbr0): 05-mesh.conflist is empty"),
    ):
        name = runtime[:2]  # the path of a socket has to be short
        node = replace(healthy(NOW, 0, POD_CIDR), network="cbr0", runtime=runtime, running=())
        not_ready = not_initialized if runtime == CONTAINERD else ""
        with node_with(tmp_path / name, node, not_ready=not_ready) as stand:
            (stand.host.net_d / "05-mesh.conflist").touch()
            (told,) = messages(stand.scan(), "broken_cni_config")
            assert words in told
        # Without that file nothing is wrong.
        with node_with(tmp_path / f"{name}-2", node) as stand:
            assert stand.scan()["findings"] == []


def test_a_node_without_a_configuration_is_told_so_and_not_to_mount_it(tmp_path: Path) -> None:
    for runtime in (CONTAINERD, CRI_O):
        node = replace(healthy(NOW, 0, POD_CIDR), network="cbr0", runtime=runtime, running=())
        directory = tmp_path / runtime[:2]
        with node_with(directory, node, not_ready="no network config found") as stand:
            (stand.host.proc / "1/ns").mkdir()
            (stand.host.proc / "1/ns/mnt").symlink_to("/proc/self/ns/mnt")  # as on the node itself
            for path in stand.host.net_d.iterdir():
                path.unlink()
            (told,) = messages(_document(stand), "broken_cni_config")
            assert f"{stand.host.net_d} has no CNI configuration" in told
            assert "must be mounted" not in stand.text()
            stand.host.net_d.rmdir()
            (told,) = messages(_document(stand), "broken_cni_config")
            assert f"{stand.host.net_d} does not exist" in told


def _document(stand: Stand) -> Any:
    """Return the report as JSON, whether it is complete or not."""
    return json.loads(nodeleak("scan", "-o", "json", *stand.options()).out)

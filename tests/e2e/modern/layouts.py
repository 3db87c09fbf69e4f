"""How the distributions configure CNI: the files of /etc/cni/net.d, with a range so small that it fills."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

CIDR: Final = "10.254.{number}.16/29"  # Five addresses for pods. `{number}` is the node's.
_LARGER: Final = "10.254.{number}.32/27"
_CIDR_V6: Final = "fd00:254:{number}::/125"
_ROUTES: Final = [{"dst": "0.0.0.0/0"}]
_HOST_LOCAL: Final = {"type": "host-local", "ranges": [[{"subnet": CIDR}]], "routes": _ROUTES}
_PORTMAP: Final = {"type": "portmap", "capabilities": {"portMappings": True}}
_BANDWIDTH: Final = {"type": "bandwidth", "capabilities": {"bandwidth": True}}


@dataclass(frozen=True)
class Layout:
    name: str
    network: str  # The network whose directory has the reservations
    file: str  # In /etc/cni/net.d
    plugins: Sequence[Mapping[str, Any]]
    version: str = "0.3.1"
    data_dir: str = "/var/lib/cni/networks"
    flanneld: bool = (
        False  # Whether it runs, and writes the range for the plugin `flannel`: the node's pod CIDR
    )
    uses_pod_cidr: bool = (
        False  # Whether its range is the node's pod CIDR, instead of five addresses
    )
    multus: bool = (
        False  # Whether Multus is in front of it, as the installer of its thin plugin writes it
    )

    @property
    def size(self) -> int:
        """How many addresses for pods its range has."""
        return 125 if self.uses_pod_cidr else 5

    @property
    def directory(self) -> str:
        return f"{self.data_dir}/{self.network}"

    @property
    def files(self) -> dict[str, Any]:
        """The files of /etc/cni/net.d by name."""
        network = {"cniVersion": self.version, "name": self.network, "plugins": self.plugins}
        multus = {
            "cniVersion": "0.3.1",
            "name": "multus-cni-network",
            "type": "multus",
            "kubeconfig": "/etc/kubernetes/kubelet.conf",
            "delegates": [network],  # the configuration that was there, once more inside
            "capabilities": {"portMappings": True},
        }
        return {self.file: network} | ({"00-multus.conf": multus} if self.multus else {})


def _bridge(bridge: str, ipam: Mapping[str, Any] = _HOST_LOCAL, **more: object) -> dict[str, Any]:
    return {
        "type": "bridge",
        "bridge": bridge,
        "isGateway": True,
        "hairpinMode": True,
        "ipam": ipam,
    } | more


def _ptp(ipam: Mapping[str, Any] = _HOST_LOCAL, **more: object) -> dict[str, Any]:
    return {"type": "ptp", "ipam": ipam} | more


def _flannel(**delegate: object) -> dict[str, Any]:
    return {
        "type": "flannel",
        "delegate": {"hairpinMode": True, "isDefaultGateway": True} | delegate,
    }


_USE_POD_CIDR: Final = {"type": "host-local", "ranges": [[{"subnet": "usePodCidr"}]]}
_DUAL_STACK: Final = {
    "type": "host-local",
    "ranges": [[{"subnet": CIDR}], [{"subnet": _CIDR_V6}]],
    "routes": [*_ROUTES, {"dst": "::/0"}],
}
_OF_NODES: Final = {
    "subnet": "10.254.0.0/24",
    "rangeStart": "10.254.0.200",
    "rangeEnd": "10.254.0.204",
}
_AKS: Final = _bridge(
    "cbr0", mtu=1500, addIf="eth0", ipMasq=False, promiscMode=True, hairpinMode=False
)
_MASQUERADED: Final = _PORTMAP | {"externalSetMarkChain": "KUBE-MARK-MASQ"}
_KUBE_ROUTER: Final = _bridge(
    "kube-bridge", {"type": "host-local", "subnet": CIDR}, isDefaultGateway=True
)

MACVLAN: Final = Layout(
    "macvlan", "mac", "10-mac.conflist",
    [{"type": "macvlan", "master": "eth0", "ipam": {"type": "host-local", "ranges": [[_OF_NODES]]}}],
)  # fmt: skip
"""On the link of the nodes themselves: they have it, and do not reach its pods."""
LAYOUTS: Final = (
    Layout("kubeadm", "cbr0", "10-flannel.conflist", [_flannel(), _PORTMAP], flanneld=True, uses_pod_cidr=True),
    Layout(
        "k3s", "cbr0", "10-flannel.conflist", [_flannel(forceAddress=True), _PORTMAP, _BANDWIDTH],
        flanneld=True, uses_pod_cidr=True,
    ),
    Layout(  # with canal
        "rke2", "k8s-pod-network", "10-canal.conflist",
        [{"type": "calico", "ipam": _USE_POD_CIDR}, _PORTMAP, _BANDWIDTH], "1.0.0", uses_pod_cidr=True,
    ),
    Layout("aks", "kubenet", "10-containerd-net.conflist", [_AKS, _MASQUERADED]),
    Layout("gke", "k8s-pod-network", "10-containerd-net.conflist", [_ptp(mtu=1460), _PORTMAP]),  # without Dataplane V2
    Layout(
        "kind", "kindnet", "10-kindnet.conflist",
        [_ptp(_HOST_LOCAL | {"dataDir": "/run/cni-ipam-state"}, ipMasq=False, mtu=1500), _PORTMAP],
        data_dir="/run/cni-ipam-state",
    ),
    Layout("crio", "crio", "11-crio-ipv4-bridge.conflist", [_bridge("cni0", _DUAL_STACK, ipMasq=True)], "1.0.0"),
    Layout("kube-router", "kubernetes", "10-kuberouter.conflist", [_KUBE_ROUTER], "0.3.0"),
    Layout("cni-1.1", "pods", "10-pods.conflist", [_bridge("cni0"), _PORTMAP], "1.1.0"),
)  # fmt: skip
MULTUS: Final = Layout(
    "multus", "cbr0", "10-bridge.conflist", [_bridge("cni0", {"type": "host-local", "subnet": _LARGER}), _PORTMAP],
    multus=True,
)  # fmt: skip
"""Its attachments are those of the test: name them in `--cleanup-network`."""

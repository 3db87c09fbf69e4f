"""How the distributions configure CNI: the files of /etc/cni/net.d, with a range so small that it fills."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

CIDR: Final = "10.254.{number}.16/29"
"""Five addresses for pods. `{number}` is the node's."""
_LARGER: Final = "10.254.{number}.32/27"
_CIDR_V6: Final = "fd00:254:{number}::/125"
_ROUTES: Final = [{"dst": "0.0.0.0/0"}]
_HOST_LOCAL: Final = {"type": "host-local", "ranges": [[{"subnet": CIDR}]], "routes": _ROUTES}
_PORTMAP: Final = {"type": "portmap", "capabilities": {"portMappings": True}}
_BANDWIDTH: Final = {"type": "bandwidth", "capabilities": {"bandwidth": True}}


@dataclass(frozen=True)
class Layout:
    name: str
    distribution: str
    network: str
    """The network whose directory has the reservations."""
    files: Mapping[str, Any]
    """By name, in /etc/cni/net.d."""
    data_dir: str = "/var/lib/cni/networks"
    flanneld: bool = False
    """Whether it runs, and writes the range for the plugin `flannel`: the node's pod CIDR."""
    probe: bool = True
    """Whether the probe can ask an address of this network: it is on a link of the node."""
    uses_pod_cidr: bool = False
    """Whether its range is the node's pod CIDR, instead of five addresses."""

    @property
    def size(self) -> int:
        """How many addresses for pods its range has."""
        return 125 if self.uses_pod_cidr else 5

    @property
    def directory(self) -> str:
        return f"{self.data_dir}/{self.network}"


def _network(name: str, *plugins: Mapping[str, Any], version: str = "0.3.1") -> dict[str, Any]:
    return {"cniVersion": version, "name": name, "plugins": list(plugins)}


def _bridge(bridge: str, ipam: Mapping[str, Any] = _HOST_LOCAL, **more: object) -> dict[str, Any]:
    return {"type": "bridge", "bridge": bridge, "isGateway": True, "hairpinMode": True, "ipam": ipam} | more


def _flannel(**delegate: object) -> dict[str, Any]:
    return {"type": "flannel", "delegate": {"hairpinMode": True, "isDefaultGateway": True} | delegate}


MACVLAN: Final = Layout(
    "macvlan",
    "",
    "mac",
    {
        "10-mac.conflist": _network(
            "mac",
            {
                "type": "macvlan",
                "master": "eth0",
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": "10.254.0.0/24", "rangeStart": "10.254.0.200", "rangeEnd": "10.254.0.204"}]],
                },
            },
        )
    },
    probe=False,
)
"""On the link of the nodes themselves: they have it, and do not reach its pods."""
LAYOUTS: Final = (
    Layout(
        "kubeadm",
        "kubeadm with flannel",
        "cbr0",
        {"10-flannel.conflist": _network("cbr0", _flannel(), _PORTMAP)},
        flanneld=True,
        uses_pod_cidr=True,
    ),
    Layout(
        "k3s",
        "k3s",
        "cbr0",
        {"10-flannel.conflist": _network("cbr0", _flannel(forceAddress=True), _PORTMAP, _BANDWIDTH)},
        flanneld=True,
        uses_pod_cidr=True,
    ),
    Layout(
        "rke2",
        "RKE2 with canal",
        "k8s-pod-network",
        {
            "10-canal.conflist": _network(
                "k8s-pod-network",
                {"type": "calico", "ipam": {"type": "host-local", "ranges": [[{"subnet": "usePodCidr"}]]}},
                _PORTMAP,
                _BANDWIDTH,
                version="1.0.0",
            )
        },
        probe=False,
        uses_pod_cidr=True,
    ),
    Layout(
        "aks",
        "AKS with kubenet",
        "kubenet",
        {
            "10-containerd-net.conflist": _network(
                "kubenet",
                _bridge("cbr0", mtu=1500, addIf="eth0", ipMasq=False, promiscMode=True, hairpinMode=False),
                _PORTMAP | {"externalSetMarkChain": "KUBE-MARK-MASQ"},
            )
        },
    ),
    Layout(
        "gke",
        "GKE without Dataplane V2",
        "k8s-pod-network",
        {
            "10-containerd-net.conflist": _network(
                "k8s-pod-network", {"type": "ptp", "mtu": 1460, "ipam": _HOST_LOCAL}, _PORTMAP
            )
        },
        probe=False,
    ),
    Layout(
        "kind",
        "kind",
        "kindnet",
        {
            "10-kindnet.conflist": _network(
                "kindnet",
                {"type": "ptp", "ipMasq": False, "ipam": _HOST_LOCAL | {"dataDir": "/run/cni-ipam-state"}, "mtu": 1500},
                _PORTMAP,
            )
        },
        data_dir="/run/cni-ipam-state",
        probe=False,
    ),
    Layout(
        "crio",
        "CRI-O's own bridge",
        "crio",
        {
            "11-crio-ipv4-bridge.conflist": _network(
                "crio",
                _bridge(
                    "cni0",
                    {
                        "type": "host-local",
                        "ranges": [[{"subnet": CIDR}], [{"subnet": _CIDR_V6}]],
                        "routes": [*_ROUTES, {"dst": "::/0"}],
                    },
                    ipMasq=True,
                ),
                version="1.0.0",
            )
        },
    ),
    Layout(
        "kube-router",
        "kube-router",
        "kubernetes",
        {
            "10-kuberouter.conflist": _network(
                "kubernetes",
                _bridge("kube-bridge", {"type": "host-local", "subnet": CIDR}, isDefaultGateway=True),
                version="0.3.0",
            )
        },
    ),
    Layout(
        "cni-1.1",
        "any, cniVersion 1.1.0",
        "pods",
        {"10-pods.conflist": _network("pods", _bridge("cni0"), _PORTMAP, version="1.1.0")},
    ),
)
_BRIDGED: Final = _network("cbr0", _bridge("cni0", {"type": "host-local", "subnet": _LARGER}), _PORTMAP)
MULTUS: Final = Layout(
    "multus",
    "Multus, with a bridge and a macvlan attachment (name them in `--cleanup-network`)",
    "cbr0",
    {
        "00-multus.conf": {
            "cniVersion": "0.3.1",
            "name": "multus-cni-network",
            "type": "multus",
            "kubeconfig": "/etc/kubernetes/kubelet.conf",
            "delegates": [_BRIDGED],
            "capabilities": {"portMappings": True},
        },
        "10-bridge.conflist": _BRIDGED,
    },
)
"""As the installer of Multus' thin plugin writes it: the configuration that was there, once more inside."""

# shellcheck shell=bash
# A node as k3s makes it, of the parts of the profile containerd. The kubelet has the name of k3s' only program; its
# command line names no file, and no runtime. (`-a`: it is a program of many, which goes by its first argument.)

# shellcheck source=runtime-containerd.sh
. "$HERE/runtime-containerd.sh"
NUMBER=12 POD_CIDR=${CLUSTER_CIDR:-10.254.12.0/25}
K3S=/var/lib/rancher/k3s
RUNTIME_STATE="/run/k3s/containerd $K3S/agent/containerd"
ENDPOINT=/run/k3s/containerd/containerd.sock
CONFIG=$K3S/agent/etc/containerd/config.toml
NET_D=$K3S/agent/etc/cni/net.d CNI_BIN=$K3S/data/cni
KUBELET=(-a kubelet $K3S/data/current/bin/k3s-server --config-dir=$K3S/agent/etc/kubelet.conf.d)

configure_runtime() {
  mkdir -p "$(outside $K3S)"/{agent/etc/kubelet.conf.d,data/current/bin}
  cp -u "$KUBERNETES/kubelet" "$(outside "${KUBELET[2]}")"
  ln -sf /var/lib/kubelet/config.yaml "$(outside $K3S)/agent/etc/kubelet.conf.d/00-k3s-defaults.conf"
  configure_containerd
}

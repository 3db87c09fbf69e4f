# shellcheck shell=bash
# The node's runtime is containerd 2, built from its module, with Debian's runc.

NUMBER=9 POD_CIDR=${CLUSTER_CIDR:-10.254.9.0/25} NETWORK=cbr0
RUNTIME=(containerd)
RUNTIME_STATE="/run/containerd /var/lib/containerd"
ENDPOINT=/run/containerd/containerd.sock
CONFIG=/etc/containerd/config.toml
RUNTIME_PROGRAMS=$(built containerd)
MODULES+=(containerd)
PACKAGES+=(runc)

runtime_answers() { ctr version; }
load_image() { ctr --namespace k8s.io images import --local "$1"; }
ctr() { inside ctr --address=$ENDPOINT "$@"; }
configure_runtime() { configure_containerd; }

configure_containerd() {
  mkdir -p "$(outside ${CONFIG%/*})"
  cat >"$(outside $CONFIG)" <<END
version = 3
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "docker.io/nodeleak/pause:1"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["$CNI_BIN"]
    conf_dir = "$NET_D"
END
  unit containerd containerd --config=$CONFIG --address=$ENDPOINT --state=${RUNTIME_STATE% *} --root=${RUNTIME_STATE#* }
}

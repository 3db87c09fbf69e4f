# shellcheck shell=bash
# The node's runtime is containerd 2, built from its module, with Debian's runc.

NUMBER=9 POD_CIDR=${CLUSTER_CIDR:-10.254.9.0/25} NETWORK=cbr0
RUNTIME=(containerd)
RUNTIME_STATE="/run/containerd /var/lib/containerd"
ENDPOINT=/run/containerd/containerd.sock
RUNTIME_PROGRAMS=$(built containerd)
MODULES+=(containerd)
PACKAGES+=(runc)

runtime_answers() { inside ctr version; }
load_image() { inside ctr --namespace k8s.io images import --local "$1"; }

configure_runtime() {
  mkdir -p "$NODE_STATE/etc/containerd"
  cat >"$NODE_STATE/etc/containerd/config.toml" <<'END'
version = 3
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "docker.io/nodeleak/pause:1"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/opt/cni/bin"]
    conf_dir = "/etc/cni/net.d"
END
  unit containerd containerd --config /etc/containerd/config.toml
}

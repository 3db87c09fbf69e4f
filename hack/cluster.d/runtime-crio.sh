# shellcheck shell=bash
# The node's runtime is CRI-O, built from its module, with Debian's runc and conmon.

NUMBER=10 POD_CIDR=${CLUSTER_CIDR:-10.254.10.0/25} NETWORK=crio
RUNTIME=(crio)
RUNTIME_STATE="/run/crio /run/containers /var/lib/crio /var/lib/containers"
ENDPOINT=/run/crio/crio.sock
RUNTIME_PROGRAMS=$(built cri-o)
MODULES+=(cri-o)
PACKAGES+=(runc conmon skopeo)

runtime_answers() { inside curl -sf --max-time 5 --unix-socket "$ENDPOINT" http://crio/info; }

load_image() {
  local name
  for name in $(tar -xOf "$NODE_STATE/images/${1##*/}" manifest.json | jq -r '.[].RepoTags[]'); do
    inside skopeo copy --quiet "docker-archive:$1:$name" "containers-storage:$name"
  done
}

# runc-wrapper: CRI-O asks for limits of huge pages and the kubelet for a negative oom_score_adj where neither is possible.
configure_runtime() {
  mkdir -p "$NODE_STATE"/etc/{crio,containers}
  cat >"$NODE_STATE/etc/crio/crio.conf" <<END
[crio]
log_dir = "/var/lib/crio/logs"
version_file = "/run/crio/version"
[crio.runtime]
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
default_runtime = "runc"
pinns_path = "$RUNTIME_PROGRAMS/pinns"
apparmor_profile = "unconfined"
seccomp_profile = ""
[crio.runtime.runtimes.runc]
runtime_path = "/run/node/units/runc"
monitor_path = "/usr/bin/conmon"
monitor_cgroup = "pod"
[crio.image]
pause_image = "docker.io/nodeleak/pause:1"
pause_command = "/pause"
[crio.network]
plugin_dirs = ["/opt/cni/bin"]
network_dir = "/etc/cni/net.d"
END
  echo '{"default": [{"type": "insecureAcceptAnything"}]}' >"$NODE_STATE/etc/containers/policy.json"
  echo 'unqualified-search-registries = ["docker.io"]' >"$NODE_STATE/etc/containers/registries.conf"
  cat >"$NODE_STATE/etc/containers/storage.conf" <<'END'
[storage]
driver = "overlay"
runroot = "/run/containers/storage"
graphroot = "/var/lib/containers/storage"
END
  install -m 755 "$HERE/runc-wrapper" "$NODE_STATE/units/runc"
  unit crio crio --log-level=info
}

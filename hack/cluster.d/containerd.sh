# shellcheck shell=bash
# The second node: a kubelet on containerd, in mount and PID namespaces of its own, where every path is that of a real
# node. Its network namespace is the machine's. Only pods that tolerate its taint, or name it, run there.

CONTAINERD_NODE=nodeleak-containerd
CONTAINERD_CIDR=10.253.7.0/25
CONTAINERD_STATE=$STATE/containerd # its /etc/cni/net.d and its directories in /var/lib, seen from outside

run_containerd() {
  answers docker || die "the containerd node gets its images from docker: hack/cluster start docker"
  mkdir -p "$CONTAINERD_STATE"/{net.d,kubelet,cni,containerd,nodeleak}
  [ -e "$STATE/containerd.conf" ] || (node_credentials containerd "$CONTAINERD_NODE" "$(node_ip)" 127.0.0.1)
  docker save nodeleak/pause:1 nodeleak/busybox:1 -o "$CONTAINERD_STATE/images.tar"
  containerd_configuration
  spawn containerd unshare --mount --pid --fork --kill-child --mount-proc --propagation private \
    bash "$HERE/containerd-node" "$CONTAINERD_STATE" "${CLUSTER_CONTAINERD:-/usr/bin}" "$CACHE/bin/kubelet" \
    --kubeconfig="$STATE/containerd.conf" --hostname-override="$CONTAINERD_NODE" --node-ip="$(node_ip)" \
    --container-runtime=remote --container-runtime-endpoint=unix:///run/containerd/containerd.sock \
    --port=10350 --healthz-port=10348 --read-only-port=0 --cgroup-driver=cgroupfs --cgroups-per-qos=false \
    --enforce-node-allocatable= --client-ca-file="$STATE/pki/ca.crt" --anonymous-auth=false \
    --authorization-mode=Webhook --authentication-token-webhook=true --tls-cert-file="$STATE/pki/containerd.crt" \
    --tls-private-key-file="$STATE/pki/containerd.key" --resolv-conf=/etc/resolv.conf --fail-swap-on=false \
    --image-gc-high-threshold=100 --eviction-hard= --node-labels=runtime=containerd \
    --register-with-taints=runtime=containerd:NoSchedule --v=4
}

containerd_configuration() {
  cat >"$CONTAINERD_STATE/net.d/10-cbr0.conflist" <<END
{"cniVersion": "0.4.0", "name": "cbr0", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "$CONTAINERD_CIDR"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
END
  cat >"$CONTAINERD_STATE/config.toml" <<END
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/nodeleak/pause:1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
END
}

containerd_ready() {
  local cidr
  mine containerd && healthz http://127.0.0.1:10348/healthz || return 1
  cidr=$(admin get node "$CONTAINERD_NODE" -o jsonpath='{.spec.podCIDR}') || return 1
  [ -n "$cidr" ] || admin patch node "$CONTAINERD_NODE" -p \
    "{\"spec\": {\"podCIDR\": \"$CONTAINERD_CIDR\", \"podCIDRs\": [\"$CONTAINERD_CIDR\"]}}"
  admin wait node "$CONTAINERD_NODE" --for=condition=Ready --timeout=1s
}

# Its namespaces end with it, and with them its processes and mounts.
remove_containerd() {
  if [ -e /sys/class/net/cni0 ]; then ip link delete cni0; fi
  unmount "$CONTAINERD_STATE"
}

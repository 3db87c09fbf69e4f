# shellcheck shell=bash
# The node's runtime is docker behind cri-dockerd, built from their modules (Debian's docker is too old for cri-dockerd).

NUMBER=11 POD_CIDR=${CLUSTER_CIDR:-10.254.11.0/25} NETWORK=k8s-pod-network
RUNTIME=(dockerd cri-dockerd)
RUNTIME_STATE="/run/docker /var/lib/docker /var/lib/cri-dockerd"
ENDPOINT=/run/cri-dockerd.sock
RUNTIME_PROGRAMS=$(built cri-dockerd):$(built docker):$(built containerd)
MODULES+=(cri-dockerd docker containerd)
PACKAGES+=(runc)
# cri-dockerd 0.4.3 gives the kubelet URLs without a scheme. From 1.36, kubelets take them for HTTPS, and kubectl exec fails.
[ "${MINOR#1.}" -lt 36 ] || KUBELET_EXTRA="--feature-gates=ExtendWebSocketsToKubelet=false ${KUBELET_EXTRA-}"

runtime_answers() {
  case "$1" in
    dockerd) inside curl -sf --max-time 5 --unix-socket /run/docker.sock http://docker/_ping ;;
    cri-dockerd) inside test -S "$ENDPOINT" ;;
  esac
}

load_image() {
  inside curl -sf --unix-socket /run/docker.sock -H 'Content-Type: application/x-tar' --data-binary "@$1" http://docker/images/load
}

configure_runtime() {
  mkdir -p "$NODE_STATE/etc/docker"
  install -m 755 "$HERE/runc-wrapper" "$NODE_STATE/units/runc"
  echo '{"exec-opts": ["native.cgroupdriver=cgroupfs"], "default-runtime": "node",
    "runtimes": {"node": {"path": "/run/node/units/runc"}}, "shutdown-timeout": 5}' >"$NODE_STATE/etc/docker/daemon.json"
  unit dockerd dockerd --host unix:///run/docker.sock
  unit cri-dockerd cri-dockerd --container-runtime-endpoint "unix://$ENDPOINT" --docker-endpoint unix:///run/docker.sock \
    --network-plugin cni --cni-bin-dir /opt/cni/bin --cni-conf-dir /etc/cni/net.d --cni-cache-dir /var/lib/cni/cache \
    --pod-infra-container-image nodeleak/pause:1
}
